//! The cluster's name server: it resolves names of services and of the machine, and forwards other names to the
//! machine's resolvers.
//!
//! It serves programs without a sidecar, agents of sidecars (which know the mesh's names and forward the others), and
//! proxies that resolve the hosts of a ServiceEntry. These proxies must not receive the virtual address that the mesh
//! assigned to such a host.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::dns::{
    Chain, Names, Outcome, Server, Table, Upstream, addresses_in, answer, no_such_name, over_tcp, over_udp, question,
    reversed,
};
use evenkeel_agent::resolv_conf;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;

use super::EgressError;
use super::broker_client::BrokerClient;
use super::hosts::MachineNames;
use super::rules::{RESERVED, SERVICES, network};
use super::services::{Services, no_names};
use crate::addresses::{BRIDGE_ADDRESS, NAME_SERVER, OWN_NAME_SERVER};
use crate::cluster::is_in_mesh;

/// The DNS port.
const PORT: u16 = 53;
/// The file that lists the machine's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The resolver of a machine that lists none (resolv.conf(5)).
const LOCAL_RESOLVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// The time after which the next resolver is queried as well.
const PATIENCE: Duration = Duration::from_millis(800);
/// The timeout of all resolvers together; a sidecar's agent waits somewhat longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most simultaneous queries to the machine's resolvers; further ones are answered SERVFAIL at once.
const MAX_QUESTIONS: usize = 512;

/// The name server, on all of its addresses.
pub struct Dns {
    servers: [Arc<Server<MachineResolver>>; 3],
}

impl Dns {
    /// Binds to the cluster's usual address, to the bridge's address, which no capture rule redirects and which
    /// proxies therefore use, and to a loopback address for the control plane.
    pub async fn bind(
        services: Arc<Services>,
        broker: Option<Arc<BrokerClient>>,
        names: MachineNames,
    ) -> Result<Self, EgressError> {
        let machine = MachineResolver::new(services, broker, names);
        let own = MachineResolver { is_own: true, ..machine.clone() };
        let bind = async |address: Ipv4Addr, resolver: &MachineResolver| {
            let address = SocketAddr::new(address.into(), PORT);
            let server = Server::bind(address, Names::default(), resolver.clone()).await;
            server.map(Arc::new).map_err(|error| EgressError::Listen(address, std::io::Error::other(error)))
        };
        let (cluster, bridge) = (bind(NAME_SERVER, &machine).await?, bind(BRIDGE_ADDRESS, &machine).await?);
        Ok(Self { servers: [cluster, bridge, bind(OWN_NAME_SERVER, &own).await?] })
    }

    /// Serves until dropped.
    pub async fn serve(self) {
        let [cluster, bridge, own] = self.servers;
        tokio::join!(cluster.run(), bridge.run(), own.run());
    }
}

/// Resolves names with the mesh's services first, then with the machine.
#[derive(Debug, Clone)]
struct MachineResolver {
    services: Arc<Services>,
    broker: Option<Arc<BrokerClient>>,
    /// A table without names, to recognize the cluster's domain.
    cluster: Arc<Table>,
    own: MachineNames,
    questions: Arc<Semaphore>,
    /// Whether the control plane asks, which the mesh's policy for its workloads is not about.
    is_own: bool,
}

impl MachineResolver {
    fn new(services: Arc<Services>, broker: Option<Arc<BrokerClient>>, own: MachineNames) -> Self {
        Self {
            services,
            broker,
            cluster: Arc::new(no_names()),
            own,
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
            is_own: false,
        }
    }

    /// Asks the machine's resolvers, if the mesh's policy allows that. A name carries whatever its asker wants out of the
    /// mesh, and an answer leads traffic wherever its giver wants.
    async fn ask_outside(&self, broker: &BrokerClient, query: &[u8], udp: bool) -> Option<Vec<u8>> {
        if !self.is_own {
            let services = self.services.now().await;
            let (name, _) = question(query)?;
            if !services.allow_any && !services.registered.names_host(&name) {
                tracing::info!(
                    name,
                    "the mesh's outboundTrafficPolicy is REGISTRY_ONLY, and no ServiceEntry has this name"
                );
                return no_such_name(query);
            }
        }
        let response = self.resolve(broker, query, udp).await?;
        if addresses_in(&response).is_none_or(|addresses| addresses.iter().any(is_inside)) {
            let name = question(query).map(|(name, _)| name).unwrap_or_default();
            tracing::warn!(
                name,
                "a resolver of the machine answers with an address of the mesh, or not readably; refused"
            );
            None
        } else {
            Some(response)
        }
    }

    /// The first answer of the machine's resolvers. If one does not answer soon, the next one is queried as well.
    async fn resolve(&self, broker: &BrokerClient, query: &[u8], udp: bool) -> Option<Vec<u8>> {
        let _question = self.questions.try_acquire().ok()?;
        let mut resolvers = resolv_conf::resolvers(Path::new(RESOLV_CONF), SocketAddr::new(NAME_SERVER.into(), PORT));
        if resolvers.is_empty() {
            resolvers.push(LOCAL_RESOLVER);
        }
        let mut waiting: FuturesUnordered<_> = resolvers
            .into_iter()
            .zip(0u32..)
            .map(async |(resolver, nth)| {
                tokio::time::sleep(PATIENCE * nth).await;
                let answer = ask(broker, resolver, query, udp).await;
                answer.map_err(|error| tracing::info!(%resolver, %error, "a resolver of the machine failed")).ok()
            })
            .collect();
        let first = async {
            while let Some(answer) = waiting.next().await {
                if answer.is_some() {
                    return answer;
                }
            }
            None
        };
        tokio::time::timeout(RESOLVE_TIMEOUT, first).await.ok().flatten()
    }
}

impl Upstream for MachineResolver {
    /// Follows names that are other names of a host, wherever that is.
    async fn ask(&self, query: &[u8], udp: bool) -> Option<Vec<u8>> {
        let (mut chain, mut asked) = (Chain::new(query), query.to_vec());
        loop {
            match self.look_up(&asked, udp).await {
                Outcome::Respond(response) => return chain.respond(Some(response), udp),
                Outcome::Follow(host) => match chain.follow(host) {
                    Some(next) => asked = next,
                    None => return chain.respond(None, udp),
                },
                Outcome::Forward | Outcome::Ask(_) | Outcome::Ignore => return chain.respond(None, udp),
            }
        }
    }
}

impl MachineResolver {
    async fn look_up(&self, query: &[u8], udp: bool) -> Outcome {
        // Names below the cluster's domain, and those of its addresses, are never forwarded, whether they exist or not.
        if !matches!(answer(query, &self.cluster, udp), Outcome::Forward) || is_about_the_mesh(query) {
            return match answer(query, &self.services.now().await.names, udp) {
                Outcome::Forward => no_such_name(query).map_or(Outcome::Ignore, Outcome::Respond),
                found => found,
            };
        }
        match (answer(query, &self.own.table(), udp), &self.broker) {
            (Outcome::Forward, Some(broker)) => {
                self.ask_outside(broker, query, udp).await.map_or(Outcome::Forward, Outcome::Respond)
            }
            (found, _) => found,
        }
    }
}

/// Whether the name of an address of the mesh is wanted.
fn is_about_the_mesh(query: &[u8]) -> bool {
    let address = question(query).filter(|(_, reverse)| *reverse).and_then(|(name, _)| reversed(&name));
    let Some(IpAddr::V4(address)) = address else { return false };
    let within = |(first, prefix): (Ipv4Addr, u8)| network(address, prefix) == first;
    is_in_mesh(address) || within(SERVICES) || within(RESERVED)
}

async fn ask(broker: &BrokerClient, resolver: SocketAddr, query: &[u8], udp: bool) -> std::io::Result<Vec<u8>> {
    if udp {
        over_udp(&broker.udp(resolver).await?, query).await
    } else {
        over_tcp(&mut broker.tcp(resolver).await?, query).await
    }
}

/// Whether only the mesh itself has this address: those of replicas and of the machine.
fn is_inside(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V4(ip) if is_in_mesh(*ip))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mesh_answers_with_addresses_of_the_mesh() {
        let check = |address: &str, expected| {
            assert_eq!(is_inside(&address.parse().expect("an address")), expected, "{address}");
        };
        check("10.244.0.2", true);
        check("10.244.255.255", true);
        check("10.245.0.2", false);
        check("192.0.2.1", false);
        check("2001:db8::1", false);
    }
}
