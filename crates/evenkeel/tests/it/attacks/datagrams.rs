//! A flood of datagrams from many addresses, as a sender with forged ones makes it: the clients that are known keep their sessions, new
//! ones are served, and the proxy holds a bounded number of sessions.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_testkit::{Process, eventually, free_ports};

use super::{descriptors, resident_kib};

/// Descriptors that the proxy may open; half of them are for sessions.
const DESCRIPTORS: usize = 512;
/// Clients that have had an answer and have sent again.
const KNOWN: u16 = 40;
/// Datagrams of the flood, each from another address.
const FORGED: u32 = 20_000;
/// After so many of them the known clients send again.
const ROUND: u32 = 2_000;
/// What the flood may make the proxy hold, in KiB.
const HELD_KIB: u64 = 32 << 10;
/// A datagram may be lost, as the flood fills the buffers of sockets.
const TRIES: usize = 40;

/// Answers each datagram with the port that it came from, which tells sessions apart.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl Server {
    fn start() -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket");
        let (address, stop) = (socket.local_addr().expect("bound"), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        std::thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((_, client)) = socket.recv_from(&mut buffer) else { continue };
                _ = socket.send_to(client.port().to_string().as_bytes(), client);
            }
        });
        Self { address, stop }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn start(listener: u16, admin: u16, server: SocketAddr) -> Process {
    let bootstrap = format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {admin}}}}}}}\n\
         static_resources:\n  listeners:\n  - name: l\n    \
         address: {{socket_address: {{protocol: UDP, address: 127.0.0.1, port_value: {listener}}}}}\n    \
         listener_filters: [{{name: udp, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig, stat_prefix: u, cluster: c}}}}]\n  \
         clusters:\n  - name: c\n    type: STATIC\n    load_assignment: {{cluster_name: c, endpoints: [{{lb_endpoints: \
         [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}]}}]}}\n",
        server.port()
    );
    let mut command = Command::new("bash");
    // Both limits: the proxy raises the soft one to the hard one.
    let limited = format!("ulimit -n {DESCRIPTORS} && exec \"$0\" \"$@\"");
    command.args(["-c", &limited, env!("CARGO_BIN_EXE_evenkeel")]);
    command.args(["proxy", "--concurrency", "1", "--config-yaml", &bootstrap]).process_group(0);
    let mut process = Process::spawn(&mut command);
    process.wait_for_port(([127, 0, 0, 1], admin).into());
    process
}

/// A client at an address of its own.
fn client(address: Ipv4Addr, proxy: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind((address, 0)).expect("an address of loopback");
    socket.connect(proxy).expect("a socket");
    socket.set_read_timeout(Some(Duration::from_millis(250))).expect("a socket");
    socket
}

/// The session of a client, as the server names it.
fn session(client: &UdpSocket) -> Option<String> {
    let mut answer = [0; 64];
    (0..TRIES).find_map(|_| {
        client.send(b"x").ok()?;
        let length = client.recv(&mut answer).ok()?;
        Some(String::from_utf8_lossy(&answer[..length]).into_owned())
    })
}

#[test]
fn a_flood_of_datagrams_ends_no_session_of_a_known_client() {
    let server = Server::start();
    let [port, admin] = free_ports::<2>();
    let mut process = start(port, admin, server.address);
    let proxy = SocketAddr::from(([127, 0, 0, 1], port));
    let known: Vec<UdpSocket> = (0..KNOWN).map(|at| client(Ipv4Addr::new(127, 1, 1, at as u8 + 1), proxy)).collect();
    let sessions = || -> BTreeMap<usize, Option<String>> {
        known.iter().enumerate().map(|(at, client)| (at, session(client))).collect()
    };
    eventually("the listener", || session(&known[0]));
    sessions();
    let before = sessions();
    assert!(before.values().all(Option::is_some), "{before:?}");
    let resident = resident_kib(&process);
    for number in 0..FORGED {
        // The answers find nobody: the socket is gone.
        let [_, high, middle, low] = number.to_be_bytes();
        let source = Ipv4Addr::new(127, 100 + high, middle, low.max(1));
        let forged = UdpSocket::bind((source, 0)).expect("an address of loopback");
        _ = forged.send_to(b"flood", proxy);
        if number % ROUND == ROUND - 1 {
            assert_eq!(sessions(), before, "after {number} datagrams");
        }
    }
    assert!(descriptors(&process) <= DESCRIPTORS, "{} descriptors", descriptors(&process));
    let held = resident_kib(&process).saturating_sub(resident);
    assert!(held < HELD_KIB, "{held} KiB");
    let new = client(Ipv4Addr::new(127, 2, 2, 2), proxy);
    assert!(session(&new).is_some(), "a new client is not served");
    assert!(process.exited().is_none(), "{}", process.output());
}
