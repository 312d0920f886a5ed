//! The Services of the mesh with their addresses and ready replicas, as the control plane knows them.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};

use evenkeel_base::cidr::{self, IpNet};
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
    /// What these and ServiceEntries name.
    #[serde(default)]
    pub registered: Registered,
}

/// What Services and ServiceEntries name, inside and outside of the mesh.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Registered {
    hosts: Vec<RegisteredHost>,
    /// Addresses and names, each with its port.
    endpoints: Vec<(String, u16)>,
}

#[derive(Debug, Clone, Deserialize)]
struct RegisteredHost {
    /// It may begin with `*.`.
    host: String,
    /// The host that it is another name of.
    alias_of: Option<String>,
    /// Addresses and ranges of addresses.
    addresses: Vec<String>,
    ports: Vec<u16>,
}

impl Registered {
    /// Whether a name is a host of the registry, or of one of its endpoints.
    pub(crate) fn names_host(&self, name: &str) -> bool {
        let name = name.trim_end_matches('.').to_ascii_lowercase();
        let fits = |host: &str| match host.strip_prefix('*') {
            Some(domain) => name.len() > domain.len() && name.ends_with(&domain.to_ascii_lowercase()),
            None => name.eq_ignore_ascii_case(host.trim_end_matches('.')),
        };
        self.hosts.iter().any(|host| fits(&host.host) || host.alias_of.as_deref().is_some_and(fits))
            || self.endpoints.iter().any(|(address, _)| fits(address))
    }

    /// Whether an address outside the mesh, and its port, are in the registry. `is_machine` says whether a name means the
    /// machine, which has the address `machine`: a range of addresses does not name it.
    pub(crate) fn names_address(&self, to: SocketAddrV4, machine: Ipv4Addr, is_machine: impl Fn(&str) -> bool) -> bool {
        let (ip, port) = (IpAddr::V4(*to.ip()), to.port());
        let is_it = |name: &str| match name.parse::<IpAddr>() {
            Ok(address) => address == ip,
            Err(_) => *to.ip() == machine && is_machine(name),
        };
        let includes = |range: &String| {
            let range = cidr::parse(range);
            let meant = |range: &IpNet| *to.ip() != machine || range.prefix_len() == range.max_prefix_len();
            range.is_ok_and(|range| meant(&range) && range.contains(&ip))
        };
        let has = |host: &RegisteredHost| {
            host.ports.contains(&port) && (is_it(&host.host) || host.addresses.iter().any(includes))
        };
        self.endpoints.iter().any(|(address, at)| *at == port && is_it(address)) || self.hosts.iter().any(has)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What ServiceEntries of every resolution name.
    #[test]
    fn the_registry_names_hosts_and_addresses_and_the_machine_only_by_its_own() {
        let page = r#"{"hosts": [
            {"host": "api.corp", "alias_of": null, "addresses": ["240.240.0.1/32"], "ports": [443]},
            {"host": "*.wild.example", "alias_of": null, "addresses": [], "ports": [80, 7001]},
            {"host": "host.evenkeel.internal", "alias_of": null, "addresses": [], "ports": [5432]},
            {"host": "lan.corp", "alias_of": null, "addresses": ["10.0.0.0/8", "192.0.2.9/32"], "ports": [25]},
            {"host": "db", "alias_of": null, "addresses": ["10.244.0.2/32"], "ports": [3306]},
            {"host": "old.shop.svc.cluster.local", "alias_of": "new.corp", "addresses": [], "ports": []}],
            "endpoints": [["api.corp", 443], ["192.0.2.1", 8080], ["real.corp", 80], ["dev.corp", 9000]]}"#;
        let registered: Registered = serde_json::from_str(page).expect("a page of the control plane");
        let names = |name: &str, expected| assert_eq!(registered.names_host(name), expected, "{name}");
        for name in ["api.corp.", "API.corp", "a.b.wild.example", "real.corp", "new.corp.", "lan.corp"] {
            names(name, true);
        }
        for name in ["corp", "data.api.corp", "api.corp.lan", "wild.example", "evilwild.example", ""] {
            names(name, false);
        }
        let is_machine = |name: &str| ["host.evenkeel.internal", "dev.corp"].contains(&name);
        let address = |to: &str, expected| {
            let to = to.parse().expect("an address");
            assert_eq!(registered.names_address(to, Ipv4Addr::new(10, 244, 0, 2), is_machine), expected, "{to}");
        };
        for to in
            ["192.0.2.1:8080", "192.0.2.9:25", "10.1.2.3:25", "10.244.0.2:5432", "10.244.0.2:3306", "10.244.0.2:9000"]
        {
            address(to, true);
        }
        for to in
            ["192.0.2.1:80", "192.0.2.9:80", "10.244.0.2:25", "10.244.0.2:7001", "10.244.0.2:80", "203.0.113.1:443"]
        {
            address(to, false);
        }
    }
}
