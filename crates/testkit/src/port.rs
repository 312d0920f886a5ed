//! Ports for servers that cannot report which port they got.

use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below Linux's ephemeral range (32768…), so that no outgoing connection takes the port between its choice and its use.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A TCP port on which nothing listens, not handed out before by this process.
///
/// Where the server can bind port 0 and say what it got, prefer that.
pub fn free_port() -> u16 {
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // Test binaries that run at the same time start in different places.
        let start = (std::process::id() % 97) as u16 * 123;
        let port = FIRST + start.wrapping_add(step) % COUNT;
        if TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok() {
            return port;
        }
    }
    panic!("no free TCP port in {FIRST}..{}", FIRST + COUNT)
}

/// `N` different free ports.
pub fn free_ports<const N: usize>() -> [u16; N] {
    std::array::from_fn(|_| free_port())
}
