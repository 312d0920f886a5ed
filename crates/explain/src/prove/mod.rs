//! Proves whether any request gets from one party to another: decided over all policies and routes, not sampled.
//!
//! Each call path from a caller to a workload (the address that is called, the proxies on the path, the route that is taken,
//! how the connection is secured) becomes a condition on the request. The values of each attribute fall into classes that no
//! matcher on the call path can distinguish (`atoms.rs`); over these a search finds a request or shows that there is none
//! (`formula.rs`). A request that it finds is tried with the proxies' own decision before it is called a witness.
//!
//! | question | file |
//! |---|---|
//! | which texts does a matcher accept? | `prove/language.rs` |
//! | which values must be tried? | `prove/atoms.rs`, `prove/space.rs` |
//! | what does a filter or a route ask? | `prove/rules.rs` |
//! | who calls which address, over which proxies? | `prove/call_paths.rs` |
//! | which call paths are there, and which condition does each have? | `prove/find.rs`, `prove/call_path.rs` |
//! | is there a request that meets it, and does it pass? | `prove/search.rs`, `prove/trial.rs` |
//! | which policies are the reason that nothing gets through? | `prove/reasons.rs` |

mod answer;
mod atoms;
#[cfg(test)]
mod brute;
mod call_path;
mod call_paths;
mod find;
mod formula;
mod language;
mod reasons;
mod rules;
mod search;
mod space;
mod text;
mod trial;

use std::collections::BTreeSet;
use std::sync::Arc;

use evenkeel_model::policy::ConditionKey;
use evenkeel_model::{Snapshot, Workload};

use self::call_path::CallPath;
use self::call_paths::{Client, Kind};
use self::search::{Found, search};
use crate::question::QuestionError;
use crate::world::World;

pub use self::answer::{Claim, Party, Proof, Reachability, Reason, Witness};

/// Maximum number of call paths that are examined; with more, nothing is decided.
const MAX_CALL_PATHS: usize = 50_000;
/// Maximum number of reasons in an answer.
const MAX_REASONS: usize = 20;

impl World {
    /// Decides whether any request gets through.
    pub fn prove(&self, claim: &Claim) -> Result<Proof, QuestionError> {
        let clients = self.clients(&claim.from, &claim.to)?;
        let targets = match claim.to {
            Party::Outside => Vec::new(),
            _ => self.of_party(&claim.to)?,
        };
        let mut proof = Proof::new(claim);
        if clients.is_empty() {
            proof.notes.push("there is no such caller in these files".to_owned());
        }
        let mut blocked: Vec<CallPath> = Vec::new();
        let mut known = BTreeSet::new();
        // Requests first, then what is no request, and ports that objects name before others: a witness that can be read and tried is
        // worth more.
        for (requests, unnamed_port) in [(true, false), (true, true), (false, false), (false, true)] {
            if !requests && (claim.path.is_some() || claim.method.is_some()) {
                continue;
            }
            for client in &clients {
                for call_path in find::of(self, claim, client, &targets, &mut proof) {
                    let dialled = &call_path.dialled;
                    let is_next = (requests, unnamed_port) == (dialled.kind == Kind::Http, dialled.unnamed_port);
                    if !is_next || !known.insert(call_path.same()) {
                        continue;
                    }
                    proof.call_paths += 1;
                    if proof.call_paths > MAX_CALL_PATHS {
                        proof.verdict = Reachability::Undecided;
                        proof
                            .notes
                            .push(format!("there are more than {MAX_CALL_PATHS} call paths: ask about fewer parties"));
                        return Ok(proof);
                    }
                    match search(&call_path, self, claim) {
                        Found::Witness(witness) => {
                            proof.verdict = Reachability::Reachable;
                            proof.witness = Some(*witness);
                            proof.reasons.clear();
                            proof.notes.clear();
                            // It gets through only if what is not enforced here lets it.
                            proof.doubt(reasons::unknown(self, &call_path));
                            return Ok(proof);
                        }
                        Found::Nothing => blocked.push(call_path),
                        Found::Undecided(why) => {
                            proof.verdict = Reachability::Undecided;
                            if !proof.notes.contains(&why) {
                                proof.notes.push(why);
                            }
                        }
                    }
                }
            }
        }
        self.look_beyond_gateways(claim, &targets, &mut proof);
        let closed = std::mem::take(&mut proof.closed);
        proof.doubt(closed);
        for call_path in &blocked {
            // Something may get through where only a stand-in refuses it.
            if reasons::is_unknown(self, claim, call_path) {
                proof.doubt(reasons::unknown(self, call_path));
            }
        }
        self.add_reasons(claim, &blocked, &mut proof);
        Ok(proof)
    }

    /// Examines calls from gateways, which a caller inside the mesh may call as anybody outside may. If anything gets through
    /// from there, the claim is undecided.
    fn look_beyond_gateways(&self, claim: &Claim, targets: &[Arc<Workload>], proof: &mut Proof) {
        for (gateway, note) in std::mem::take(&mut proof.gateways) {
            let client = Client::Outside(gateway);
            let onward = Claim { port: None, host: None, ..claim.clone() };
            let call_paths = find::of(self, &onward, &client, targets, proof);
            if call_paths.iter().any(|call_path| !matches!(search(call_path, self, &onward), Found::Nothing)) {
                proof.verdict = Reachability::Undecided;
                proof.notes.push(note);
            }
        }
    }

    fn add_reasons(&self, claim: &Claim, blocked: &[CallPath], proof: &mut Proof) {
        let mut seen = BTreeSet::new();
        for call_path in blocked {
            // The same server and caller have the same reason, whatever the address.
            if proof.reasons.len() >= MAX_REASONS || !seen.insert(call_path.key()) {
                continue;
            }
            let reason = reasons::of(self, claim, call_path);
            if !proof.reasons.contains(&reason) {
                proof.reasons.push(reason);
            }
        }
        if proof.call_paths == 0 && proof.reasons.is_empty() {
            proof.reasons.push(Reason { text: reasons::no_way(claim), sources: Vec::new() });
        }
    }

    /// The workloads of a party, one Pod of each; all of them if policies ask for addresses.
    fn of_party(&self, party: &Party) -> Result<Vec<Arc<Workload>>, QuestionError> {
        let all = self.snapshot.workloads.iter();
        let found: Vec<Arc<Workload>> = match party {
            Party::Any => all.cloned().collect(),
            Party::Outside => Vec::new(),
            Party::Namespace(namespace) => all.filter(|own| *own.namespace == **namespace).cloned().collect(),
            Party::Workload(name, namespace) => {
                let is_namespace =
                    namespace.is_none() && self.snapshot.workloads.iter().any(|own| *own.namespace == **name);
                match self.find(name, namespace.as_deref()) {
                    Err(QuestionError::NoWorkload { .. }) if is_namespace => {
                        return self.of_party(&Party::Namespace(name.clone()));
                    }
                    found => {
                        let found = found?;
                        let is_pod = *found.pod == **name && *found.workload_name != **name;
                        if is_pod { vec![found] } else { self.pods_of(&found) }
                    }
                }
            }
        };
        if found.is_empty() && matches!(party, Party::Namespace(_)) {
            let mut there: Vec<&str> = self.snapshot.workloads.iter().map(|own| &*own.namespace).collect();
            there.dedup();
            let there = format!("workloads are in {}", there.join(", "));
            return Err(QuestionError::NoWorkload { name: party.to_string(), there });
        }
        if reads_addresses(&self.snapshot) {
            return Ok(found);
        }
        let mut known = BTreeSet::new();
        Ok(found.into_iter().filter(|own| known.insert((own.namespace.clone(), own.workload_name.clone()))).collect())
    }

    fn clients(&self, from: &Party, to: &Party) -> Result<Vec<Client>, QuestionError> {
        let gateways = || -> Vec<Client> {
            let mut known = BTreeSet::new();
            let all = self.snapshot.workloads.iter().filter(|own| self.is_gateway(own));
            all.filter(|own| known.insert((own.namespace.clone(), own.workload_name.clone())))
                .map(|gateway| Client::Outside(Arc::clone(gateway)))
                .collect()
        };
        // A gateway calls for its own clients.
        let workloads = |all: Vec<Arc<Workload>>| -> Vec<Client> {
            let of =
                |own: Arc<Workload>| if self.is_gateway(&own) { Client::Outside(own) } else { Client::Workload(own) };
            all.into_iter().map(of).collect()
        };
        Ok(match from {
            Party::Outside => gateways(),
            Party::Any => {
                let mut all = workloads(self.of_party(from)?);
                if *to != Party::Outside {
                    all.push(Client::Anyone);
                }
                all
            }
            _ => workloads(self.of_party(from)?),
        })
    }
}

/// Whether some policy asks for addresses, by which the Pods of a workload differ.
fn reads_addresses(snapshot: &Snapshot) -> bool {
    let is_address = |key: &ConditionKey| {
        matches!(key, ConditionKey::SourceIp | ConditionKey::RemoteIp | ConditionKey::DestinationIp)
    };
    let rules = snapshot.authorization_policies.iter().flat_map(|policy| &policy.rules);
    rules.into_iter().any(|rule| {
        let of_source = rule.from.iter().any(|from| {
            let lists = [&from.ip_blocks, &from.not_ip_blocks, &from.remote_ip_blocks, &from.not_remote_ip_blocks];
            lists.into_iter().any(|list| !list.is_empty())
        });
        of_source || rule.when.iter().any(|condition| is_address(&condition.key))
    })
}

/// The declared ports of a workload at which connections of another are accepted, whatever policies say of requests; with each
/// cluster that leads there (`None`: the client's proxy is not met).
pub(crate) fn open_ports(
    world: &World,
    claim: &Claim,
    client: &Arc<Workload>,
    server: &Arc<Workload>,
) -> BTreeSet<(u16, Option<Arc<str>>)> {
    let mut declared: BTreeSet<u16> = server.inbound_ports().iter().map(|port| port.port).collect();
    declared.extend(server.ports.iter().map(|port| port.number));
    let mut proof = Proof::new(claim);
    let client = if world.is_gateway(client) {
        Client::Outside(Arc::clone(client))
    } else {
        Client::Workload(Arc::clone(client))
    };
    let call_paths = find::of(world, claim, &client, std::slice::from_ref(server), &mut proof);
    let mut open = BTreeSet::new();
    for call_path in call_paths {
        let port = call_path.upstream.to.port();
        if call_path.dialled.kind != call_paths::Kind::Tls && declared.contains(&port) && call_path.is_accepted(world) {
            open.insert((port, call_path.first.as_ref().map(|first| first.cluster.clone())));
        }
    }
    open
}
