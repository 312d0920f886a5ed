//! Virtual addresses: each is assigned once and kept across restarts.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use serde::{Deserialize, Serialize};

/// Addresses of services whose manifest has none. Store it and pass it to the next [`Builder`](crate::Builder), so that
/// a service keeps its address for as long as it is remembered.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddressBook {
    /// Address by the service's host.
    addresses: BTreeMap<String, IpAddr>,
}

/// A range from which virtual addresses are assigned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    first: u32,
    size: u32,
    /// Addresses at the start that are never assigned.
    reserved: u32,
}

/// Kubernetes Services: 10.96.0.0/12. The first 256 are reserved for addresses that clusters usually fix (10.96.0.1 for
/// the API server, 10.96.0.10 for DNS).
pub(crate) const SERVICES: Range = Range { first: u32::from_be_bytes([10, 96, 0, 0]), size: 1 << 20, reserved: 256 };

/// Hosts of ServiceEntries without addresses: 240.240.0.0/16, as in Istio.
pub(crate) const SERVICE_ENTRIES: Range =
    Range { first: u32::from_be_bytes([240, 240, 0, 0]), size: 1 << 16, reserved: 1 };

/// Maximum number of removed hosts whose addresses are remembered.
const MAX_REMEMBERED_HOSTS: usize = 16_384;

impl AddressBook {
    /// The address of a host, if one is assigned.
    pub fn address(&self, host: &str) -> Option<IpAddr> {
        self.addresses.get(host).copied()
    }

    /// Adds the assignments of another book, for control planes that share one file. Where both have a host or an
    /// address, this book wins. Addresses of removed hosts are forgotten when there are too many.
    pub fn joined(self, other: &Self) -> Self {
        if self.addresses.len() > MAX_REMEMBERED_HOSTS {
            return other.clone();
        }
        let taken: BTreeSet<IpAddr> = self.addresses.values().copied().collect();
        let mut addresses = self.addresses;
        for (host, address) in other.addresses.iter().filter(|(_, address)| !taken.contains(address)) {
            addresses.entry(host.clone()).or_insert(*address);
        }
        Self { addresses }
    }

    /// Returns the number of hosts with an address.
    pub fn len(&self) -> usize {
        self.addresses.len()
    }

    /// Whether no host has an address.
    pub fn is_empty(&self) -> bool {
        self.addresses.is_empty()
    }
}

/// Assigns addresses from a book: hosts get, keep and lose addresses as they come and go.
#[derive(Debug, Default)]
pub(crate) struct Allotment {
    book: AddressBook,
    /// The book the other way round.
    hosts: HashMap<IpAddr, String>,
    wanted: BTreeMap<String, Range>,
    /// The number of manifests that claim an address.
    reserved: HashMap<IpAddr, usize>,
    /// Hosts that need an address and have none.
    missing: BTreeSet<String>,
    /// Addresses claimed since the last assignment.
    claimed: BTreeSet<IpAddr>,
}

impl Allotment {
    pub(crate) fn new(book: AddressBook) -> Self {
        let hosts = book.addresses.iter().map(|(host, address)| (*address, host.clone())).collect();
        Self { book, hosts, ..Self::default() }
    }

    pub(crate) fn book(&self) -> &AddressBook {
        &self.book
    }

    pub(crate) fn into_book(self) -> AddressBook {
        self.book
    }

    /// Records that a manifest claims an address, or no longer does.
    pub(crate) fn reserve(&mut self, address: IpAddr, is_there: bool) {
        let count = self.reserved.entry(address).or_default();
        *count = if is_there { *count + 1 } else { count.saturating_sub(1) };
        match *count {
            0 => {
                self.reserved.remove(&address);
            }
            _ => {
                self.claimed.insert(address);
            }
        }
    }

    /// Records that a host needs an address from this range, or none.
    pub(crate) fn want(&mut self, host: &str, range: Option<Range>) {
        match range {
            Some(range) => {
                self.wanted.insert(host.to_owned(), range);
                if self.book.address(host).is_none_or(|address| !range.contains(address)) {
                    self.missing.insert(host.to_owned());
                }
            }
            None => {
                self.wanted.remove(host);
                self.missing.remove(host);
            }
        }
    }

    /// Assigns each waiting host its previous address, unless a manifest has claimed it since, or a free one searched
    /// from the hash of its name. If none is free, the host waits. Returns the hosts whose address has changed.
    pub(crate) fn allot(&mut self) -> BTreeSet<String> {
        let mut changed = BTreeSet::new();
        for address in std::mem::take(&mut self.claimed).iter().filter(|a| self.reserved.contains_key(a)) {
            if let Some(host) = self.hosts.remove(address) {
                self.book.addresses.remove(&host);
                changed.insert(host);
            }
        }
        self.missing.extend(changed.iter().filter(|host| self.wanted.contains_key(*host)).cloned());
        for host in &self.missing {
            if let Some(address) = self.book.addresses.remove(host) {
                self.hosts.remove(&address);
                changed.insert(host.clone());
            }
        }
        if self.book.addresses.len() > MAX_REMEMBERED_HOSTS {
            self.book.addresses.retain(|host, _| self.wanted.contains_key(host));
            self.hosts.retain(|_, host| self.wanted.contains_key(host));
        }
        for host in std::mem::take(&mut self.missing) {
            let Some(range) = self.wanted.get(&host) else { continue };
            let is_free = |address: &IpAddr| !self.hosts.contains_key(address) && !self.reserved.contains_key(address);
            let free = range.probe(&host).find(is_free);
            match free {
                Some(address) => {
                    self.hosts.insert(address, host.clone());
                    self.book.addresses.insert(host.clone(), address);
                    changed.insert(host);
                }
                None => {
                    self.missing.insert(host);
                }
            }
        }
        changed
    }
}

impl Range {
    /// Returns all addresses of the range that may be assigned, starting at the hash of the name.
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

/// FNV-1a, 64 bits. Unlike the standard library's hash it is the same on every machine and in every release.
pub(crate) fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::cidr::IpNet;

    use super::*;

    fn allot(book: AddressBook, hosts: &[&str], range: Range, taken: &[IpAddr]) -> AddressBook {
        let mut allotment = Allotment::new(book);
        taken.iter().for_each(|address| allotment.reserve(*address, true));
        hosts.iter().for_each(|host| allotment.want(host, Some(range)));
        allotment.allot();
        allotment.into_book()
    }

    #[test]
    fn addresses_do_not_depend_on_the_neighbours_and_stay() {
        let first = allot(AddressBook::default(), &["a", "b"], SERVICES, &[]);
        let second = allot(AddressBook::default(), &["b"], SERVICES, &[]);
        assert_eq!(first.address("b"), second.address("b"));
        assert_ne!(first.address("a"), first.address("b"));

        let before = first.address("a");
        let without = allot(first, &["b", "c"], SERVICES, &[]);
        let again = allot(without, &["a", "b", "c"], SERVICES, &[]);
        assert_eq!(again.address("a"), before, "a host that was away keeps its address");
    }

    #[test]
    fn a_manifest_takes_precedence() {
        let book = allot(AddressBook::default(), &["a"], SERVICES, &[]);
        let before = book.address("a").unwrap();
        let book = allot(book, &["a"], SERVICES, &[before]);
        assert!(book.address("a").is_some_and(|now| now != before));
    }

    #[test]
    fn addresses_are_distinct_and_in_range() {
        let names: Vec<String> = (0..5000).map(|i| format!("s{i}")).collect();
        let hosts: Vec<&str> = names.iter().map(String::as_str).collect();
        let book = allot(AddressBook::default(), &hosts, SERVICES, &[]);
        let distinct: BTreeSet<IpAddr> = names.iter().filter_map(|n| book.address(n)).collect();
        assert_eq!(distinct.len(), names.len());
        let range: IpNet = "10.96.0.0/12".parse().unwrap();
        let pinned: IpNet = "10.96.0.0/24".parse().unwrap();
        assert!(distinct.iter().all(|a| range.contains(a) && !pinned.contains(a)));
    }

    #[test]
    fn a_full_range_gives_none() {
        let tiny = Range { first: 1, size: 4, reserved: 1 };
        let mut allotment = Allotment::new(allot(AddressBook::default(), &["a", "b", "c"], tiny, &[]));
        assert_eq!(allotment.book().len(), 2);
        for (host, range) in [("a", None), ("b", Some(tiny)), ("c", Some(tiny))] {
            allotment.want(host, range);
        }
        assert!(allotment.allot().is_empty(), "those that are gone are remembered");
    }

    #[test]
    fn of_two_books_the_stored_one_counts() {
        let stored = allot(AddressBook::default(), &["a", "b"], SERVICES, &[]);
        let own = allot(AddressBook::default(), &["b", "c"], SERVICES, &[]);
        let both = stored.clone().joined(&own);
        assert_eq!(both.len(), 3);
        assert_eq!((both.address("a"), both.address("c")), (stored.address("a"), own.address("c")));
    }

    #[test]
    fn survives_serialization() {
        let book = allot(AddressBook::default(), &["a"], SERVICES, &[]);
        let text = serde_json::to_string(&book).unwrap();
        assert_eq!(serde_json::from_str::<AddressBook>(&text).unwrap(), book);
    }
}
