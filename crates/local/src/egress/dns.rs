//! The cluster's name server: it resolves names of services and of the machine, and forwards other names to the
//! machine's resolvers.
//!
//! It serves programs without a sidecar, agents of sidecars (which know the mesh's names and forward the others), and
//! proxies that resolve the hosts of a ServiceEntry. These proxies must not receive the virtual address that the mesh
//! assigned to such a host.

use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use evenkeel_agent::dns::{
    Chain, HostEntry, Names, Outcome, SearchDomain, Server, Table, Upstream, answer, no_such_name, over_tcp, over_udp,
    question, reversed,
};
use evenkeel_agent::resolv_conf;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::sync::Semaphore;

use super::EgressError;
use super::broker_client::BrokerClient;
use super::hosts::{self, MAX_HOSTS_BYTES};
use super::rules::{MACHINE, MACHINE_NAMES, RESERVED, SERVICES, network};
use super::services::{Services, no_names};
use crate::addresses::{BRIDGE_ADDRESS, NAME_SERVER};
use crate::cluster::is_in_mesh;

/// The DNS port.
const PORT: u16 = 53;
/// The file that lists the machine's resolvers.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The file with the machine's own names.
const HOSTS: &str = "/etc/hosts";
/// The resolver of a machine that lists none (resolv.conf(5)).
const LOCAL_RESOLVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT);
/// The time after which the next resolver is queried as well.
const PATIENCE: Duration = Duration::from_millis(800);
/// The timeout of all resolvers together; a sidecar's agent waits somewhat longer.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(5);
/// The most simultaneous queries to the machine's resolvers; further ones are answered SERVFAIL at once.
const MAX_QUESTIONS: usize = 512;

/// The name server, on both of its addresses.
pub struct Dns {
    servers: [Arc<Server<MachineResolver>>; 2],
}

impl Dns {
    /// Binds to the cluster's usual address, and to the bridge's address, which no capture rule redirects and which
    /// proxies therefore use.
    pub async fn bind(services: Arc<Services>, broker: Option<Arc<BrokerClient>>) -> Result<Self, EgressError> {
        let machine = MachineResolver::new(services, broker);
        let bind = async |address: Ipv4Addr| {
            let address = SocketAddr::new(address.into(), PORT);
            let server = Server::bind(address, Names::default(), machine.clone()).await;
            server.map(Arc::new).map_err(|error| EgressError::Listen(address, std::io::Error::other(error)))
        };
        Ok(Self { servers: [bind(NAME_SERVER).await?, bind(BRIDGE_ADDRESS).await?] })
    }

    /// Serves until dropped.
    pub async fn serve(self) {
        let [cluster, bridge] = self.servers;
        tokio::join!(cluster.run(), bridge.run());
    }
}

/// Resolves names with the mesh's services first, then with the machine.
#[derive(Debug, Clone)]
struct MachineResolver {
    services: Arc<Services>,
    broker: Option<Arc<BrokerClient>>,
    /// A table without names, to recognize the cluster's domain.
    cluster: Arc<Table>,
    own: Arc<Mutex<MachineNames>>,
    questions: Arc<Semaphore>,
}

/// Names of the machine itself and of its `/etc/hosts`, as last read.
#[derive(Debug, Default)]
struct MachineNames {
    changed: Option<SystemTime>,
    table: Arc<Table>,
}

impl MachineResolver {
    fn new(services: Arc<Services>, broker: Option<Arc<BrokerClient>>) -> Self {
        let own = MachineNames { changed: None, table: Arc::new(names_of_machine(broker.is_some(), "")) };
        Self {
            services,
            broker,
            cluster: Arc::new(no_names()),
            own: Arc::new(Mutex::new(own)),
            questions: Arc::new(Semaphore::new(MAX_QUESTIONS)),
        }
    }

    /// The names; reads the file again if it has changed.
    fn own_names(&self) -> Arc<Table> {
        let mut own = self.own.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = fs::metadata(HOSTS).and_then(|hosts| hosts.modified()).ok();
        if changed != own.changed {
            let mut text = Vec::new();
            let read = fs::File::open(HOSTS).and_then(|file| file.take(MAX_HOSTS_BYTES).read_to_end(&mut text));
            if let Err(error) = read {
                tracing::info!(error = %error, "cannot read {HOSTS}");
            }
            own.table = Arc::new(names_of_machine(self.broker.is_some(), &String::from_utf8_lossy(&text)));
            own.changed = changed;
        }
        own.table.clone()
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
        match (answer(query, &self.own_names(), udp), &self.broker) {
            (Outcome::Forward, Some(broker)) => {
                self.resolve(broker, query, udp).await.map_or(Outcome::Forward, Outcome::Respond)
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
    match udp {
        true => over_udp(&broker.udp(resolver).await?, query).await,
        false => over_tcp(&mut broker.tcp(resolver).await?, query).await,
    }
}

fn names_of_machine(open: bool, hosts: &str) -> Table {
    let machine = open.then_some(MACHINE);
    let entry = |host: &str| HostEntry {
        host: host.to_owned(),
        ips: machine.into_iter().map(IpAddr::from).collect(),
        short_name: String::new(),
        namespace: String::new(),
    };
    let own = MACHINE_NAMES.iter().filter(|_| open).map(|name| entry(name));
    let nowhere = SearchDomain { namespace: String::new(), cluster_domain: String::new() };
    // The machine's own names come last, so that no line of the file overrides them.
    Table::new(hosts::entries(hosts, machine).into_iter().chain(own), &nowhere)
}
