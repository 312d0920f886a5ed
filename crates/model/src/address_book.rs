//! Virtual addresses: allotted once, kept over restarts.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// Addresses of services whose manifest gives none. Store it, and give it to the next [`build`](crate::build): then a
/// service keeps its address for as long as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressBook {
    /// Address by the service's host.
    addresses: BTreeMap<String, IpAddr>,
}

/// A range virtual addresses are taken from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    first: u32,
    size: u32,
    /// Addresses at the start that are never allotted.
    reserved: u32,
}

/// Kubernetes Services: 10.96.0.0/12. The first 256 are left to what clusters usually pin there
/// (10.96.0.1 the API server, 10.96.0.10 DNS).
pub(crate) const SERVICES: Range = Range { first: u32::from_be_bytes([10, 96, 0, 0]), size: 1 << 20, reserved: 256 };

/// Hosts of ServiceEntries without addresses: 240.240.0.0/16, as in Istio.
pub(crate) const SERVICE_ENTRIES: Range =
    Range { first: u32::from_be_bytes([240, 240, 0, 0]), size: 1 << 16, reserved: 1 };

/// Most hosts that are remembered though they are gone, in hosts.
const MAX_REMEMBERED_HOSTS: usize = 16_384;

impl AddressBook {
    /// The address of a host, if it has been allotted one.
    pub fn address(&self, host: &str) -> Option<IpAddr> {
        self.addresses.get(host).copied()
    }

    /// How many hosts have an address.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether no host has an address.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }

    /// The address of each of `hosts`: the one it had, unless a manifest (`taken`) has claimed it since, or a free one
    /// found from the hash of its name. None is left = the host gets none.
    pub(crate) fn allot(&mut self, hosts: &BTreeMap<String, Range>, taken: &BTreeSet<IpAddr>) {
        self.addresses.retain(|host, address| {
            !taken.contains(address) && hosts.get(host).is_none_or(|range| range.contains(*address))
        });
        if self.addresses.len() > MAX_REMEMBERED_HOSTS {
            self.addresses.retain(|host, _| hosts.contains_key(host));
        }
        let mut used: BTreeSet<IpAddr> = self.addresses.values().copied().chain(taken.iter().copied()).collect();
        for (host, range) in hosts {
            if self.addresses.contains_key(host) {
                continue;
            }
            if let Some(address) = range.probe(host).find(|address| !used.contains(address)) {
                used.insert(address);
                self.addresses.insert(host.clone(), address);
            }
        }
    }
}

impl Range {
    /// All addresses that may be allotted, starting at the one the name hashes to.
    fn probe(self, host: &str) -> impl Iterator<Item = IpAddr> {
        // The last one is the broadcast address.
        let count = self.size - self.reserved - 1;
        let start = (fnv1a(host.as_bytes()) % u64::from(count)) as u32;
        (0..count).map(move |step| {
            let offset = self.reserved + (start + step) % count;
            IpAddr::V4(Ipv4Addr::from(self.first + offset))
        })
    }

    fn contains(self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(v4) => (self.first..self.first + self.size).contains(&u32::from(v4)),
            IpAddr::V6(_) => false,
        }
    }
}

/// FNV-1a, 64 bits: the same on every machine and in every release, which the standard library's hash is not.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::cidr::IpNet;

    use super::*;

    fn hosts(names: &[&str]) -> BTreeMap<String, Range> {
        names.iter().map(|n| ((*n).to_owned(), SERVICES)).collect()
    }

    #[test]
    fn addresses_do_not_depend_on_the_neighbours_and_stay() {
        let mut first = AddressBook::default();
        first.allot(&hosts(&["a", "b"]), &BTreeSet::new());
        let mut second = AddressBook::default();
        second.allot(&hosts(&["b"]), &BTreeSet::new());
        assert_eq!(first.address("b"), second.address("b"));
        assert_ne!(first.address("a"), first.address("b"));

        let before = first.address("a");
        first.allot(&hosts(&["b", "c"]), &BTreeSet::new());
        first.allot(&hosts(&["a", "b", "c"]), &BTreeSet::new());
        assert_eq!(first.address("a"), before, "a host that was away keeps its address");
    }

    #[test]
    fn a_manifest_takes_precedence() {
        let mut book = AddressBook::default();
        book.allot(&hosts(&["a"]), &BTreeSet::new());
        let before = book.address("a").unwrap();
        book.allot(&hosts(&["a"]), &BTreeSet::from([before]));
        assert!(book.address("a").is_some_and(|now| now != before));
    }

    #[test]
    fn addresses_are_distinct_and_in_range() {
        let names: Vec<String> = (0..5000).map(|i| format!("s{i}")).collect();
        let mut book = AddressBook::default();
        book.allot(&names.iter().map(|n| (n.clone(), SERVICES)).collect(), &BTreeSet::new());
        let distinct: BTreeSet<IpAddr> = names.iter().filter_map(|n| book.address(n)).collect();
        assert_eq!(distinct.len(), names.len());
        let range: IpNet = "10.96.0.0/12".parse().unwrap();
        let pinned: IpNet = "10.96.0.0/24".parse().unwrap();
        assert!(distinct.iter().all(|a| range.contains(a) && !pinned.contains(a)));
    }

    #[test]
    fn a_full_range_gives_none() {
        let tiny = Range { first: 1, size: 4, reserved: 1 };
        let mut book = AddressBook::default();
        book.allot(&["a", "b", "c"].map(|n| (n.to_owned(), tiny)).into(), &BTreeSet::new());
        assert_eq!(book.len(), 2);
    }

    #[test]
    fn survives_serialization() {
        let mut book = AddressBook::default();
        book.allot(&hosts(&["a"]), &BTreeSet::new());
        let text = serde_json::to_string(&book).unwrap();
        assert_eq!(serde_json::from_str::<AddressBook>(&text).unwrap(), book);
    }
}
