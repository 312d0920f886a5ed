//! A DNS server on loopback with answers set by the test.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::eventually;

const A: u16 = 1;
/// The response code of a name that does not exist.
pub const NXDOMAIN: u8 = 3;
/// The response code of a server that cannot answer.
pub const SERVFAIL: u8 = 2;

/// The server's answer for a name.
#[derive(Debug, Clone)]
pub enum Answer {
    /// The addresses of the name, and their TTL in seconds.
    Addresses(Vec<Ipv4Addr>, u32),
    /// Like `Addresses`, over TCP only: answers over UDP are truncated.
    LargeAddresses(Vec<Ipv4Addr>, u32),
    /// This error.
    Error(u8),
    /// No answer.
    Silence,
}

/// A DNS server on loopback, on one port of UDP and TCP.
pub struct Dns {
    /// Its address.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    answers: Mutex<HashMap<String, Answer>>,
    asked: AtomicUsize,
    asked_over_tcp: AtomicUsize,
    stop: AtomicBool,
}

impl Dns {
    /// A server that knows no name: it answers NXDOMAIN.
    pub fn start() -> Self {
        // A port that is free for TCP may be taken for UDP.
        let (tcp, udp) = eventually("a port free for both", || {
            let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
            let udp = UdpSocket::bind(tcp.local_addr().ok()?).ok()?;
            Some((tcp, udp))
        });
        let address = tcp.local_addr().expect("bound");
        let shared = Arc::<Shared>::default();
        let (by_udp, by_tcp) = (Arc::clone(&shared), Arc::clone(&shared));
        thread::spawn(move || {
            let mut query = [0; 512];
            while let Ok((length, client)) = udp.recv_from(&mut query) {
                if by_udp.stop.load(Ordering::SeqCst) {
                    return;
                }
                if let Some(reply) = by_udp.reply(&query[..length], false) {
                    let _ = udp.send_to(&reply, client);
                }
            }
        });
        thread::spawn(move || {
            for mut stream in tcp.incoming().flatten() {
                if by_tcp.stop.load(Ordering::SeqCst) {
                    return;
                }
                let shared = Arc::clone(&by_tcp);
                thread::spawn(move || {
                    let mut length = [0; 2];
                    while stream.read_exact(&mut length).is_ok() {
                        let mut query = vec![0; u16::from_be_bytes(length).into()];
                        if stream.read_exact(&mut query).is_err() {
                            return;
                        }
                        let Some(reply) = shared.reply(&query, true) else { return };
                        let length = u16::try_from(reply.len()).expect("short").to_be_bytes();
                        let _ = stream.write_all(&[&length[..], &reply].concat());
                    }
                });
            }
        });
        Self { address, shared }
    }

    /// Sets the answer for a name.
    pub fn answer(&self, name: &str, answer: Answer) {
        self.shared.answers.lock().expect("not poisoned").insert(name.to_owned(), answer);
    }

    /// Returns how many queries for IPv4 addresses of known names it has received.
    pub fn asked(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }

    /// Returns how many queries came over TCP.
    pub fn asked_over_tcp(&self) -> usize {
        self.shared.asked_over_tcp.load(Ordering::SeqCst)
    }
}

impl Drop for Dns {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = std::net::TcpStream::connect(self.address);
        let _ = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.send_to(&[0], self.address));
    }
}

impl Shared {
    /// RFC 1035 section 4: the question comes back, with answers behind it.
    fn reply(&self, query: &[u8], over_tcp: bool) -> Option<Vec<u8>> {
        let (name, end) = question(query)?;
        let kind = u16::from_be_bytes([*query.get(end)?, *query.get(end + 1)?]);
        let answer = self.answers.lock().expect("not poisoned").get(&name).cloned();
        if kind == A && answer.is_some() {
            self.asked.fetch_add(1, Ordering::SeqCst);
            self.asked_over_tcp.fetch_add(over_tcp.into(), Ordering::SeqCst);
        }
        let (addresses, ttl, code, truncated) = match answer.unwrap_or(Answer::Error(NXDOMAIN)) {
            Answer::Addresses(addresses, ttl) => (addresses, ttl, 0, false),
            Answer::LargeAddresses(addresses, ttl) => (addresses, ttl, 0, !over_tcp),
            Answer::Error(code) => (Vec::new(), 0, code, false),
            Answer::Silence => return None,
        };
        let addresses = if kind == A && !truncated { addresses } else { Vec::new() };
        let mut reply = query[..2].to_vec();
        reply.extend([0x84 | if truncated { 2 } else { 0 } | (query[2] & 1), 0x80 | code]);
        reply.extend([0, 1, 0, u8::try_from(addresses.len()).expect("few"), 0, 0, 0, 0]);
        reply.extend(&query[12..end + 4]);
        for address in addresses {
            // The name is the question's, at byte 12.
            reply.extend([0xc0, 12, 0, 1, 0, 1]);
            reply.extend(ttl.to_be_bytes());
            reply.extend([0, 4]);
            reply.extend(address.octets());
        }
        Some(reply)
    }
}

/// Returns the name in a query, in lower case and without the trailing dot, and the position of its end.
fn question(query: &[u8]) -> Option<(String, usize)> {
    let (mut labels, mut at) = (Vec::new(), 12);
    loop {
        let length = usize::from(*query.get(at)?);
        at += 1;
        if length == 0 {
            return Some((labels.join("."), at));
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + length)?).to_ascii_lowercase());
        at += length;
    }
}
