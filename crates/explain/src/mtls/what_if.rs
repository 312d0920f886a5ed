//! Finds the clients that would break if a PeerAuthentication were STRICT: those whose plaintext traffic was observed, and
//! those whose configuration makes them send it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_api::{Kind, Object};
use evenkeel_model::{MtlsMode, Selectable, Workload};
use serde::Serialize;

use super::Ledger;
use crate::place::Source;
use crate::prove::{Claim, Party, open_ports};
use crate::transport;
use crate::world::World;

/// The scope of the change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// The whole mesh.
    Mesh,
    /// A namespace.
    Namespace(String),
    /// A workload, and its namespace.
    Workload(String, String),
}

/// The traffic that a change would break.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct WhatIf {
    /// The scope of the change.
    pub at: String,
    /// The traffic that breaks.
    pub breaks: Vec<Broken>,
    /// What is unknown.
    pub notes: Vec<String>,
}

/// A client that would break.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Broken {
    /// The client.
    pub client: String,
    /// The server.
    pub server: String,
    /// The server's port.
    pub port: u16,
    /// `traffic`, `configuration` or `both`.
    pub known_from: &'static str,
    /// Why it breaks.
    pub reason: String,
    /// The object that makes it send plain text.
    pub source: Option<Source>,
    /// Connections in plain text that were seen.
    pub connections: Option<u64>,
}

impl World {
    /// Returns what breaks if PeerAuthentication is STRICT there. `seen`: the ledger of the running mesh; `None`: it is not
    /// known.
    pub fn what_if_strict(&self, target: &Target, seen: Option<&Ledger>) -> WhatIf {
        let after = World::of_mesh(
            self.changed(target),
            self.places.texts().clone(),
            self.addresses.clone(),
            self.mesh.clone(),
        );
        let servers = self.servers(target);
        let mut breaks: BTreeMap<(String, String, u16), Broken> = BTreeMap::new();
        let mut known = BTreeSet::new();
        for client in self.snapshot.workloads.iter() {
            if !known.insert((client.namespace.clone(), client.workload_name.clone())) {
                continue;
            }
            for server in servers.iter().filter(|server| server.pod != client.pod) {
                self.compare(&after, client, server, &mut breaks);
            }
        }
        if let Some(seen) = seen {
            add_seen(&after, seen, &servers, &mut breaks);
        }
        let at = match target {
            Target::Mesh => "the whole mesh".to_owned(),
            Target::Namespace(namespace) => format!("the namespace {namespace}"),
            Target::Workload(name, namespace) => format!("{name}.{namespace}"),
        };
        let mut notes = seen.map(|seen| seen.notes.clone()).unwrap_or_default();
        if seen.is_none() {
            notes.push("no proxy was asked: this is what the configuration says".to_owned());
        }
        WhatIf { at, breaks: breaks.into_values().collect(), notes }
    }

    fn compare(
        &self,
        after: &World,
        client: &Arc<Workload>,
        server: &Arc<Workload>,
        all: &mut BTreeMap<(String, String, u16), Broken>,
    ) {
        let party = |workload: &Workload| {
            Party::Workload(workload.workload_name.to_string(), Some(workload.namespace.to_string()))
        };
        let claim = Claim {
            from: party(client),
            to: party(server),
            path: None,
            method: None,
            port: None,
            host: None,
            without_jwt: true,
        };
        let (before, then) = (open_ports(self, &claim, client, server), open_ports(after, &claim, client, server));
        for (port, way) in before {
            // A client that calls by another name, or by the address, may still get there.
            if then.contains(&(port, way.clone())) {
                continue;
            }
            let (reason, source) = match way {
                None if !client.has_proxy => ("it has no sidecar, so it sends plain text".to_owned(), None),
                None => ("its annotations exclude this from capture, so it sends plain text".to_owned(), None),
                Some(cluster) => {
                    let described = self.proxy(client).config.clusters.get(&*cluster).map(|compiled| {
                        let first = compiled.endpoints.hosts.first().map(AsRef::as_ref);
                        transport::describe(self, client, compiled, first)
                    });
                    match described.and_then(|described| described.source) {
                        Some(source) => {
                            ("its DestinationRule does not use mutual TLS of the mesh".to_owned(), Some(source))
                        }
                        None => ("its sidecar passes this on in plain text".to_owned(), None),
                    }
                }
            };
            let name = |own: &Workload| format!("{}.{}", own.workload_name, own.namespace);
            let broken = Broken {
                client: name(client),
                server: name(server),
                port,
                known_from: "configuration",
                reason,
                source,
                connections: None,
            };
            all.entry((broken.client.clone(), broken.server.clone(), port)).or_insert(broken);
        }
    }

    /// The workloads that the change is about, one Pod of each.
    fn servers(&self, target: &Target) -> Vec<Arc<Workload>> {
        let mut known = BTreeSet::new();
        let is_it = |own: &&Arc<Workload>| match target {
            Target::Mesh => true,
            Target::Namespace(namespace) => *own.namespace == **namespace,
            Target::Workload(name, namespace) => *own.workload_name == **name && *own.namespace == **namespace,
        };
        let all = self.snapshot.workloads.iter().filter(is_it).filter(|own| own.has_proxy && !self.is_gateway(own));
        all.filter(|own| known.insert((own.namespace.clone(), own.workload_name.clone()))).cloned().collect()
    }

    /// The objects with the change.
    fn changed(&self, target: &Target) -> Vec<Object> {
        let root = self.snapshot.mesh.root_namespace.to_string();
        let own = match target {
            Target::Workload(..) => self.servers(target).first().cloned(),
            _ => None,
        };
        let (namespace, selector) = match target {
            Target::Mesh => (root, String::new()),
            Target::Namespace(namespace) => (namespace.clone(), String::new()),
            Target::Workload(_, namespace) => {
                let labels = own.as_ref().map(|own| serde_json::json!(own.labels)).unwrap_or_default();
                (namespace.clone(), format!("selector: {{matchLabels: {labels}}}, "))
            }
        };
        let text = format!(
            "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: what-if-strict, namespace: {namespace}}}\n\
             spec: {{{selector}mtls: {{mode: STRICT}}}}\n"
        );
        let (made, _) = evenkeel_api::load(&[("<what-if>".into(), text.into())]);
        // It replaces those for the same workloads.
        let is_replaced = |object: &&Object| {
            let policies = self.snapshot.peer_authentications_of(&object.namespace);
            let written = policies.iter().find(|policy| policy.origin == object.origin);
            object.kind() == Kind::PeerAuthentication
                && *object.namespace == *namespace
                && written.is_some_and(|policy| match &own {
                    Some(own) => !policy.selector.is_empty() && own.labels.selected_by(&policy.selector),
                    None => policy.selector.is_empty(),
                })
        };
        let kept = self.objects().iter().filter(|object| !is_replaced(object)).cloned();
        kept.chain(made).collect()
    }
}

/// Adds plaintext traffic that was observed and would not be accepted any more.
fn add_seen(
    after: &World,
    seen: &Ledger,
    servers: &[Arc<Workload>],
    all: &mut BTreeMap<(String, String, u16), Broken>,
) {
    for row in seen.edges.iter().filter(|row| row.plaintext && row.connections > 0 && row.by_server.is_some()) {
        let is_it = |own: &&Arc<Workload>| format!("{}.{}", own.workload_name, own.namespace) == row.server.name;
        let Some(server) = servers.iter().find(is_it) else { continue };
        if after.snapshot.mtls_mode(&server.namespace, &server.labels, row.port) != MtlsMode::Strict {
            continue;
        }
        let key = (row.client.name.clone(), row.server.name.clone(), row.port);
        match all.get_mut(&key) {
            Some(known) => {
                known.known_from = "both";
                known.connections = Some(row.connections);
            }
            None => {
                let broken = Broken {
                    client: row.client.name.clone(),
                    server: row.server.name.clone(),
                    port: row.port,
                    known_from: "traffic",
                    reason: "it sends plain text".to_owned(),
                    source: None,
                    connections: Some(row.connections),
                };
                all.insert(key, broken);
            }
        }
    }
}
