//! What only the cluster's name server answers, by Kubernetes' specification of DNS-based service discovery: SRV records of
//! ports, names of addresses (PTR), and names of Pods by their addresses.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::str::FromStr;

use hickory_proto::rr::rdata::{PTR, SRV};
use hickory_proto::rr::{Name, RData, RecordType};

use super::normal::normal;

/// Priority of all SRV records: there is no order among them.
const PRIORITY: u16 = 0;
/// Weight of all SRV records: clients choose evenly.
const WEIGHT: u16 = 100;

/// The records of a name server that is responsible for the cluster's domain.
#[derive(Debug, Clone)]
pub struct Authority {
    /// By name: ports and hosts.
    services: HashMap<Box<str>, Vec<(u16, Box<str>)>>,
    /// By address.
    pointers: HashMap<IpAddr, Vec<Box<str>>>,
    /// The network of Pods, and its prefix.
    pods: (Ipv4Addr, u8),
    /// The suffix of Pods' names.
    below: Box<str>,
}

/// The name of one endpoint below its headless Service: its host name, or its address with dashes.
pub fn endpoint_name(host_name: Option<&str>, address: IpAddr) -> String {
    host_name.map_or_else(|| address.to_string().replace(['.', ':'], "-"), str::to_owned)
}

impl Authority {
    /// An authority for a cluster whose Pods have addresses of this network.
    pub fn new(cluster_domain: &str, pods: (Ipv4Addr, u8)) -> Self {
        let below = format!(".pod.{}", normal(cluster_domain)).into();
        Self { services: HashMap::new(), pointers: HashMap::new(), pods, below }
    }

    /// Adds a port of a Service: it is at `target`, on `number` there.
    pub fn add_port(&mut self, host: &str, name: &str, udp: bool, number: u16, target: &str) {
        let protocol = if udp { "udp" } else { "tcp" };
        let named = (!name.is_empty()).then(|| format!("_{name}._{protocol}.{host}"));
        for name in named.iter().map(String::as_str).chain([host]) {
            let records = self.services.entry(normal(name).into()).or_default();
            let record = (number, normal(target).into());
            if !records.contains(&record) {
                records.push(record);
            }
        }
    }

    /// Adds a name of an address.
    pub fn add_pointer(&mut self, address: IpAddr, name: &str) {
        let (names, name) = (self.pointers.entry(address).or_default(), normal(name).into());
        if !names.contains(&name) {
            names.push(name);
        }
    }

    /// The records of a name; `None` if it has none of this type.
    pub(super) fn find(&self, name: &str, kind: RecordType) -> Option<Vec<RData>> {
        let absolute = |name: &str| Name::from_str(&format!("{name}.")).ok();
        match kind {
            RecordType::SRV => {
                let records = self.services.get(&*normal(name))?.iter();
                let record = |(port, target): &(u16, Box<str>)| {
                    Some(RData::SRV(SRV::new(PRIORITY, WEIGHT, *port, absolute(target)?)))
                };
                Some(records.filter_map(record).collect())
            }
            RecordType::PTR => {
                let names = self.pointers.get(&reversed(name)?)?.iter();
                Some(names.filter_map(|name| Some(RData::PTR(PTR(absolute(name)?)))).collect())
            }
            _ => None,
        }
    }

    /// The address in a Pod's name: `10-244-1-7.shop.pod.cluster.local`.
    pub(super) fn pod(&self, name: &str) -> Option<Ipv4Addr> {
        let name = normal(name);
        let (dashed, namespace) = name.strip_suffix(&*self.below)?.split_once('.')?;
        let address: Ipv4Addr = dashed.replace('-', ".").parse().ok()?;
        let (network, prefix) = self.pods;
        let mask = u32::MAX.checked_shl(32 - u32::from(prefix.min(32))).unwrap_or(0);
        let is_one = u32::from(address) & mask == u32::from(network) & mask;
        (is_one && !namespace.is_empty() && !namespace.contains('.')).then_some(address)
    }
}

/// The address whose name is asked for: that of `7.1.244.10.in-addr.arpa`.
pub fn reversed(name: &str) -> Option<IpAddr> {
    let name = normal(name);
    let mut labels: Vec<&str> = name.strip_suffix(".in-addr.arpa")?.split('.').collect();
    labels.reverse();
    labels.join(".").parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_ports_addresses_and_pods_have_records() {
        let mut authority = Authority::new("cluster.local", (Ipv4Addr::new(10, 244, 0, 0), 16));
        let (web, pod) = ("web.shop.svc.cluster.local", IpAddr::from([10, 244, 1, 7]));
        authority.add_port(web, "http", false, 80, web);
        authority.add_port(web, "", true, 53, web);
        let named = endpoint_name(None, pod);
        authority.add_port(
            "db.shop.svc.cluster.local",
            "sql",
            false,
            5432,
            &format!("{named}.db.shop.svc.cluster.local"),
        );
        authority.add_pointer(pod, &format!("{named}.db.shop.svc.cluster.local"));
        let check = |name: &str, kind: RecordType, expected: Option<&[&str]>| {
            let found = authority.find(name, kind);
            let found = found.map(|records| records.iter().map(ToString::to_string).collect::<Vec<_>>());
            assert_eq!(
                found.as_deref(),
                expected.map(|all| all.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>()).as_deref(),
                "{name}"
            );
        };
        check(
            "_HTTP._tcp.web.shop.svc.cluster.local.",
            RecordType::SRV,
            Some(&["0 100 80 web.shop.svc.cluster.local."]),
        );
        check("_http._udp.web.shop.svc.cluster.local.", RecordType::SRV, None);
        let both = ["0 100 80 web.shop.svc.cluster.local.", "0 100 53 web.shop.svc.cluster.local."];
        check("web.shop.svc.cluster.local.", RecordType::SRV, Some(&both));
        check("web.shop.svc.cluster.local.", RecordType::A, None);
        let one = ["0 100 5432 10-244-1-7.db.shop.svc.cluster.local."];
        check("_sql._tcp.db.shop.svc.cluster.local.", RecordType::SRV, Some(&one));
        check("7.1.244.10.in-addr.arpa.", RecordType::PTR, Some(&["10-244-1-7.db.shop.svc.cluster.local."]));
        check("8.1.244.10.in-addr.arpa.", RecordType::PTR, None);
        check("1.244.10.in-addr.arpa.", RecordType::PTR, None);
        let check = |name: &str, expected: Option<[u8; 4]>| {
            assert_eq!(authority.pod(name), expected.map(Ipv4Addr::from), "{name}");
        };
        check("10-244-1-7.shop.pod.cluster.local.", Some([10, 244, 1, 7]));
        check("10-244-1-7.shop.POD.cluster.local", Some([10, 244, 1, 7]));
        check("127-0-0-1.shop.pod.cluster.local", None);
        check("10-244-1.shop.pod.cluster.local", None);
        check("10-244-1-7.pod.cluster.local", None);
        check("10-244-1-7.a.b.pod.cluster.local", None);
        assert_eq!(endpoint_name(Some("web-0"), pod), "web-0");
    }
}
