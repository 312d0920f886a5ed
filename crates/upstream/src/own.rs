//! The connections that this proxy has made, so that its own listeners and its admin port recognize them: a configuration may lead a
//! request back to the proxy that it comes from, again and again until no descriptor is left, and a client may ask the proxy for what only
//! the proxy itself may ask for.
//!
//! A connection is known by both its addresses, which no other connection of the machine has at the same time. The table keeps the latest
//! ones only: a loop makes its connections one after the other, and each is looked up at once.

use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use evenkeel_runtime_config::view::ConnectionView;
use rustc_hash::FxHasher;

/// Connections that are known at a time; 32 KiB.
const SLOTS: usize = 4096;

/// The bits of a slot for the number of hops; the others identify the connection.
const HOPS: u64 = 0xff;

/// How often a request or a connection may come back to the proxy that it comes from. A sidecar that calls its own workload needs one hop;
/// more come from gateways behind each other on one machine.
pub const MAX_HOPS: u8 = 5;

/// The connections of one process, shared by its threads.
#[derive(Debug, Default)]
pub struct OwnConnections {
    /// Made with the first connection. Zero: empty.
    slots: OnceLock<Box<[AtomicU64]>>,
    admin: OnceLock<SocketAddr>,
    /// The ports of the proxy's listeners, now or before, a bit each.
    ports: OnceLock<Box<[AtomicU64]>>,
}

impl OwnConnections {
    /// Notes a new connection: its addresses here and there, and how often what it carries has come back already, this time included.
    pub fn note(&self, local: SocketAddr, remote: SocketAddr, hops: u8) {
        let slots = self.slots.get_or_init(|| (0..SLOTS).map(|_| AtomicU64::new(0)).collect());
        if let Some(slot) = slots.get(index(local)) {
            slot.store(identity(local, reached(remote)) | u64::from(hops.max(1)), Ordering::Release);
        }
    }

    /// Notes a connection that is about to be made from this port, which is bound and so nobody else's. A listener may look it up before
    /// [`OwnConnections::note`] knows its address.
    pub fn announce(&self, port: u16, remote: SocketAddr, hops: u8) {
        self.note(SocketAddr::new(ANY, port), remote, hops);
    }

    /// Notes that the proxy listens on this port.
    pub fn listens(&self, port: u16) {
        let ports = self.ports.get_or_init(|| (0..=u16::MAX / 64).map(|_| AtomicU64::new(0)).collect());
        if let Some(word) = ports.get(usize::from(port / 64)) {
            word.fetch_or(1 << (port % 64), Ordering::Relaxed);
        }
    }

    /// Whether a connection to this port may be one to the proxy itself.
    pub fn may_be_own(&self, port: u16) -> bool {
        let word = self.ports.get().and_then(|ports| ports.get(usize::from(port / 64)));
        word.is_some_and(|word| word.load(Ordering::Relaxed) & (1 << (port % 64)) != 0)
    }

    /// Whether an accepted connection is one of them, and its number of hops; 0: it comes from somebody else. It is forgotten with that,
    /// because another connection may have the addresses later.
    pub fn take(&self, peer: SocketAddr, local: SocketAddr) -> u8 {
        let Some(slot) = self.slots.get().and_then(|slots| slots.get(index(peer))) else { return 0 };
        let found = slot.load(Ordering::Acquire);
        if ![identity(peer, local), identity(SocketAddr::new(ANY, peer.port()), local)].contains(&(found & !HOPS)) {
            return 0;
        }
        _ = slot.compare_exchange(found, 0, Ordering::AcqRel, Ordering::Relaxed);
        (found & HOPS) as u8
    }

    /// The number of hops of an accepted connection, as far as it is known already: one that was not announced may not be noted yet.
    pub fn hops_so_far(&self, connection: &ConnectionView) -> u8 {
        if let Some(hops) = connection.own_hops.get() {
            return *hops;
        }
        match self.take(connection.direct_remote, connection.local) {
            0 => 0,
            hops => *connection.own_hops.get_or_init(|| hops),
        }
    }

    /// The number of hops of an accepted connection, looked up once.
    pub fn hops(&self, connection: &ConnectionView) -> u8 {
        *connection.own_hops.get_or_init(|| self.take(connection.direct_remote, connection.local))
    }

    /// Sets the address of the admin port.
    pub fn set_admin(&self, address: SocketAddr) {
        self.listens(address.port());
        self.admin.get_or_init(|| address);
    }

    /// Whether this is the admin port, or would be if the address were that of this machine.
    pub fn is_admin(&self, address: SocketAddr, is_local: bool) -> bool {
        self.admin.get().is_some_and(|admin| {
            admin.port() == address.port() && (is_local || admin.ip().to_canonical() == address.ip().to_canonical())
        })
    }
}

/// Stands for an address that is not known yet.
const ANY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The address at which a connection to this one arrives: the unspecified address leads to loopback.
fn reached(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip().to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}

fn index(client: SocketAddr) -> usize {
    usize::from(client.port()) % SLOTS
}

fn identity(client: SocketAddr, server: SocketAddr) -> u64 {
    let mut hasher = FxHasher::default();
    for address in [client, server] {
        (address.ip().to_canonical(), address.port()).hash(&mut hasher);
    }
    // Never that of an empty slot.
    (hasher.finish() | 1 << 63) & !HOPS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn own_connections_are_known_by_both_addresses() {
        let own = OwnConnections::default();
        let check = |noted: (&str, &str), seen: (&str, &str), expected: u8| {
            own.note(at(noted.0), at(noted.1), 3);
            assert_eq!(own.take(at(seen.0), at(seen.1)), expected, "{noted:?} seen as {seen:?}");
        };
        check(("10.0.0.1:4000", "10.0.0.1:80"), ("10.0.0.1:4000", "10.0.0.1:80"), 3);
        check(("10.0.0.1:4000", "10.0.0.1:80"), ("[::ffff:10.0.0.1]:4000", "[::ffff:10.0.0.1]:80"), 3);
        check(("127.0.0.1:4000", "0.0.0.0:80"), ("127.0.0.1:4000", "127.0.0.1:80"), 3);
        check(("[::1]:4000", "[::]:80"), ("[::1]:4000", "[::1]:80"), 3);
        // Another program on this machine, or elsewhere, with the same port.
        check(("10.0.0.1:4000", "10.9.9.9:80"), ("10.0.0.1:4000", "10.0.0.1:80"), 0);
        check(("10.0.0.1:4000", "10.0.0.1:80"), ("10.0.0.2:4000", "10.0.0.1:80"), 0);
        // Announced, and looked up before it is noted.
        own.announce(4000, at("10.0.0.1:80"), 2);
        assert_eq!(own.take(at("10.0.0.1:4000"), at("10.0.0.1:81")), 0);
        assert_eq!(own.take(at("10.0.0.1:4000"), at("10.0.0.1:80")), 2);
        // Looked up once.
        own.note(at("10.0.0.1:1"), at("10.0.0.1:80"), 0);
        assert_eq!(own.take(at("10.0.0.1:1"), at("10.0.0.1:80")), 1);
        assert_eq!(own.take(at("10.0.0.1:1"), at("10.0.0.1:80")), 0);
    }

    #[test]
    fn ports_are_known_from_when_they_are_bound() {
        let own = OwnConnections::default();
        assert!(!own.may_be_own(80));
        [0, 80, 65_535].iter().for_each(|port| own.listens(*port));
        for (port, expected) in
            [(0, true), (1, false), (79, false), (80, true), (81, false), (65_534, false), (65_535, true)]
        {
            assert_eq!(own.may_be_own(port), expected, "{port}");
        }
    }

    #[test]
    fn the_admin_port_is_known_under_each_of_its_addresses() {
        let check = |admin: &str, address: &str, is_local: bool, expected: bool| {
            let own = OwnConnections::default();
            own.set_admin(at(admin));
            assert_eq!(own.is_admin(at(address), is_local), expected, "{admin} {address}");
        };
        check("127.0.0.1:15000", "127.0.0.1:15000", true, true);
        check("127.0.0.1:15000", "[::ffff:127.0.0.1]:15000", true, true);
        check("127.0.0.1:15000", "0.0.0.0:15000", true, true);
        check("0.0.0.0:15000", "10.0.0.1:15000", true, true);
        check("10.0.0.1:15000", "10.0.0.1:15000", false, true);
        check("127.0.0.1:15000", "10.0.0.2:15000", false, false);
        check("127.0.0.1:15000", "127.0.0.1:15001", true, false);
    }
}
