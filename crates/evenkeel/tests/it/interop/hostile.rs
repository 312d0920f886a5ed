//! Malicious input, clients that never finish and clients that never read: none of them crashes the proxy, uses memory
//! without bound, or prevents others from being served.

use std::io::Write;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use evenkeel_testkit::{Connection, Process, Random, eventually};

use super::proxy::{Program, Scene};

/// Connections of each kind of client.
const CLIENTS: usize = 40;
/// What all clients that do not read may make the proxy hold, in KiB; they ask for 40 times as much.
const HELD_KIB: u64 = 100 << 10;

#[test]
fn garbage_on_every_port_disturbs_nobody() {
    let scene = Scene::new();
    let mut proxy = scene.start(Program::Evenkeel);
    let mut steady = Bystander::new(&scene);
    let descriptors = count_descriptors(&proxy);
    for port in scene.every_port() {
        for bytes in garbage() {
            let Ok(mut client) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else {
                panic!("port {port} no longer accepts; the proxy printed:\n{}", proxy.output());
            };
            // The proxy may close in the middle of it: that is its right.
            let _ = client.write_all(&bytes);
        }
        steady.is_served();
    }
    assert!(proxy.exited().is_none(), "the proxy ended:\n{}", proxy.output());
    assert!(!proxy.output().contains("panicked"), "{}", proxy.output());
    eventually("the clients' connections to be given back", || {
        (count_descriptors(&proxy) <= descriptors + 8).then_some(())
    });
}

#[test]
fn clients_that_never_finish_hold_nobody_up() {
    let scene = Scene::new();
    let mut proxy = scene.start(Program::Evenkeel);
    let mut steady = Bystander::new(&scene);
    let starts = [
        "G",
        "GET / HTTP/1.1\r\nHost: actions.test\r\nX-A: ",
        "POST / HTTP/1.1\r\nHost: actions.test\r\nContent-Length: 9\r\n\r\nabc",
    ];
    let clients: Vec<TcpStream> = scene
        .every_port()
        .into_iter()
        .flat_map(|port| starts.map(|start| (port, start)))
        .map(|(port, start)| {
            let mut client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("a port that accepts");
            let _ = client.write_all(start.as_bytes());
            client
        })
        .collect();
    for _ in 0..50 {
        steady.is_served();
    }
    assert!(proxy.exited().is_none(), "the proxy ended:\n{}", proxy.output());
    drop(clients);
}

#[test]
fn clients_that_never_read_take_bounded_memory() {
    let scene = Scene::new();
    let mut proxy = scene.start(Program::Evenkeel);
    let mut steady = Bystander::new(&scene);
    let before = resident_kib(&proxy);
    // A hundred answers of a megabyte each, asked for at once and never read.
    let requests = "GET /behave/large HTTP/1.1\r\nHost: actions.test\r\n\r\n".repeat(100);
    let clients: Vec<TcpStream> = (0..CLIENTS)
        .map(|_| {
            let mut client = TcpStream::connect(scene.http()).expect("a port that accepts");
            client.set_write_timeout(Some(Duration::from_secs(5))).expect("a timeout");
            let _ = client.write_all(requests.as_bytes());
            client
        })
        .collect();
    for _ in 0..50 {
        steady.is_served();
    }
    let held = resident_kib(&proxy).saturating_sub(before);
    assert!(held < HELD_KIB, "{CLIENTS} clients that do not read make the proxy hold {held} KiB");
    assert!(proxy.exited().is_none(), "the proxy ended:\n{}", proxy.output());
    drop(clients);
}

/// Somebody else's connection, which has to go on being served.
struct Bystander(Connection);

impl Bystander {
    fn new(scene: &Scene) -> Self {
        Self(Connection::open(scene.http()).expect("a port that accepts"))
    }

    fn is_served(&mut self) {
        let response = self.0.get("actions.test", "/", "").expect("an answer to a well-behaved client");
        assert_eq!(response.status, 200, "{response:?}");
    }
}

fn garbage() -> Vec<Vec<u8>> {
    let noise = |seed, count| Random::new(seed).bytes(count);
    vec![
        Vec::new(),
        vec![0],
        vec![0; 100_000],
        b"\r\n".repeat(50_000),
        b"GET / HTTP/1.1\r\n".to_vec(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(),
        [b"GET /".as_slice(), &[b'a'; 1_000_000]].concat(),
        [b"GET / HTTP/1.1\r\nHost: a\r\n".as_slice(), &b"x: y\r\n".repeat(100_000)].concat(),
        b"POST / HTTP/1.1\r\nHost: actions.test\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n".to_vec(),
        // The start of a TLS handshake whose lengths promise more than comes.
        vec![0x16, 3, 1, 0xff, 0xff, 1, 0, 0xff, 0xfb, 3, 3],
        [vec![0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], noise(7, 508)].concat(),
        noise(1, 17),
        noise(2, 70_000),
        noise(3, 300_000),
    ]
}

/// Only root may look: a proxy closes them to others of its user.
fn count_descriptors(process: &Process) -> usize {
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", process.pid()));
    let closed = |error: &std::io::Error| error.kind() == std::io::ErrorKind::PermissionDenied;
    if descriptors.as_ref().is_err_and(closed) { 0 } else { descriptors.expect("a running process").count() }
}

fn resident_kib(process: &Process) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("a running process");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a VmRSS line");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}
