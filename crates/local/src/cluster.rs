//! The Services of the mesh with their addresses and ready replicas, as the control plane knows them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use serde::Deserialize;

use crate::addresses::{BRIDGE_ADDRESS, CONTROL_DEBUG, NAME_SERVER, POD_PREFIX};
use crate::client::Call;
use crate::egress::rules::{is_own, network};

/// The page's answer. Only the generation is there if it is the one that was asked with.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Cluster {
    /// The control plane's generation.
    pub generation: u64,
    /// Whether programs may call destinations that are not services (the mesh's `outboundTrafficPolicy`); `false` until it is
    /// known.
    #[serde(default)]
    pub allow_any: bool,
    /// All Services.
    pub services: Option<Vec<Service>>,
}

/// A Service.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Service {
    /// Its full name.
    pub host: String,
    /// Whether it has no address of its own.
    pub headless: bool,
    /// The host that it is another name of.
    pub alias_of: Option<String>,
    /// Its addresses, as networks of one address.
    pub addresses: Vec<String>,
    /// Its ports.
    pub ports: Vec<Port>,
}

/// A port of a Service.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Port {
    /// Its name; may be empty.
    pub name: String,
    /// Its number.
    pub number: u16,
    /// Whether it is for UDP.
    pub udp: bool,
    /// The ready endpoints behind it.
    pub endpoints: Vec<Endpoint>,
}

/// A ready endpoint.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Endpoint {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: u16,
    /// Its host name below that of a headless Service.
    pub host_name: Option<String>,
}

impl Service {
    /// Its virtual addresses, except those that `up` itself has given to somebody else.
    pub(crate) fn ips(&self) -> impl Iterator<Item = IpAddr> {
        let taken = |ip: &IpAddr| match ip {
            IpAddr::V4(ip) => *ip == NAME_SERVER || ip.is_loopback() || is_in_mesh(*ip),
            IpAddr::V6(_) => false,
        };
        self.addresses.iter().filter_map(|address| single(address)).filter(move |ip| !taken(ip))
    }
}

impl Endpoint {
    /// Its address and port if it is a replica of this mesh. Others would be called past the egress process and the mesh's
    /// policy.
    pub(crate) fn replica(&self) -> Option<SocketAddrV4> {
        let IpAddr::V4(ip) = self.address else { return None };
        is_replica(ip).then(|| SocketAddrV4::new(ip, self.port))
    }
}

/// Whether an address may be that of a replica.
pub(crate) fn is_replica(ip: Ipv4Addr) -> bool {
    is_in_mesh(ip) && !is_own(ip)
}

/// Whether an address is of the network of replicas, the bridge and the machine.
pub(crate) fn is_in_mesh(ip: Ipv4Addr) -> bool {
    network(ip, POD_PREFIX) == network(BRIDGE_ADDRESS, POD_PREFIX)
}

/// Asks the control plane. `known`: the generation that the caller has.
pub(crate) async fn fetch(known: Option<u64>) -> Result<Cluster, String> {
    let query = known.map(|generation| format!("?generation={generation}")).unwrap_or_default();
    let call = Call::get("localhost", format!("/debug/cluster{query}"));
    let answer = call.send(None, CONTROL_DEBUG).await.map_err(|error| error.to_string())?;
    serde_json::from_str(&answer.body).map_err(|error| format!("/debug/cluster: {error}"))
}

/// The address of a network with a single address, which is the form of virtual addresses on the pages.
fn single(network: &str) -> Option<IpAddr> {
    let (address, prefix) = network.split_once('/').unwrap_or((network, ""));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { "32" } else { "128" };
    (prefix.is_empty() || prefix == whole).then_some(address)
}
