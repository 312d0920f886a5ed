//! The UDP proxy: sessions, their ends, limits, and what happens to them when hosts, routes and listeners change.

use std::collections::HashSet;
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_testkit::{eventually, wait::PATIENCE};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::{Resource, ResourceType};

use crate::harness::{ControlPlane, Proxy, dynamic_bootstrap, resource, set, stat, static_bootstrap, static_cluster};

/// A server that answers each datagram with its name, a colon, and the datagram.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<HashSet<SocketAddr>>>,
}

impl Server {
    fn start(name: &'static str) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
        socket.set_read_timeout(Some(Duration::from_millis(20))).expect("a socket");
        let (address, stop) = (socket.local_addr().expect("bound"), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut clients) = ([0; 65_535], HashSet::new());
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, client)) = socket.recv_from(&mut buffer) else { continue };
                clients.insert(client);
                let answer = [name.as_bytes(), b":", &buffer[..length]].concat();
                _ = socket.send_to(&answer, client);
            }
            clients
        });
        Self { address, stop, thread: Some(thread) }
    }

    /// Ends it: the addresses that it was called from.
    fn clients(mut self) -> HashSet<SocketAddr> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().expect("not ended").join().expect("no panic")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn listener(address: &str, filter: &str) -> String {
    format!(
        r#"
name: udp
address: {{socket_address: {{protocol: UDP, address: "{address}", port_value: 0}}}}
listener_filters:
- name: envoy.filters.udp_listener.udp_proxy
  typed_config:
    "@type": type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig
    stat_prefix: dns
{filter}"#
    )
}

fn client(proxy: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a free port");
    socket.connect(proxy).expect("a socket");
    socket.set_read_timeout(Some(PATIENCE)).expect("a socket");
    socket
}

fn ask(client: &UdpSocket, question: &[u8]) -> String {
    client.send(question).expect("sent");
    let mut answer = [0; 65_535];
    let length = client.recv(&mut answer).expect("an answer");
    String::from_utf8_lossy(&answer[..length]).into_owned()
}

/// Whether nothing comes back, as far as a short wait tells.
fn is_silent(client: &UdpSocket, question: &[u8]) -> bool {
    client.set_read_timeout(Some(Duration::from_millis(150))).expect("a socket");
    client.send(question).expect("sent");
    let answer = client.recv(&mut [0; 100]);
    client.set_read_timeout(Some(PATIENCE)).expect("a socket");
    answer.is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::ConnectionRefused))
}

fn sum(proxy: &Proxy, name: &str) -> u64 {
    stat(proxy, name).iter().sum()
}

fn wait_for(proxy: &Proxy, name: &str, expected: u64) {
    eventually(&format!("{name} to be {expected}"), || (sum(proxy, name) == expected).then_some(()));
}

fn start(address: &str, filter: &str, server: &Server, cluster: &str) -> Proxy {
    let clusters = [static_cluster("backend", server.address, cluster)];
    let proxy = Proxy::start(&static_bootstrap(&listener(address, filter), &clusters));
    proxy.wait_live();
    proxy
}

#[test]
fn many_clients_have_sessions_of_their_own_and_the_sessions_end_when_idle() {
    const CLIENTS: usize = 300;
    let server = Server::start("a");
    let proxy = start("127.0.0.1", "    cluster: backend\n    idle_timeout: 2s\n", &server, "");
    let clients: Vec<_> = (0..CLIENTS).map(|_| client(proxy.listener("udp"))).collect();
    for round in ["one", "two"] {
        for client in &clients {
            assert_eq!(ask(client, round.as_bytes()), format!("a:{round}"));
        }
    }
    let sessions = CLIENTS as u64;
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_total"), sessions);
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_rx_datagrams"), 2 * sessions);
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_tx_datagrams"), 2 * sessions);
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_rx_bytes"), 6 * sessions);
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_tx_bytes"), 10 * sessions);
    assert_eq!(sum(&proxy, "cluster.backend.udp.sess_tx_datagrams"), 2 * sessions);
    assert_eq!(sum(&proxy, "cluster.backend.udp.sess_rx_datagrams"), 2 * sessions);
    wait_for(&proxy, "udp.dns.downstream_sess_active", 0);
    assert_eq!(sum(&proxy, "udp.dns.idle_timeout"), sessions);
    drop(proxy);
    assert_eq!(server.clients().len(), CLIENTS, "each session has a port of its own, and keeps it");
}

#[test]
fn answers_come_from_the_address_that_the_client_has_sent_to() {
    let server = Server::start("a");
    let proxy = start("0.0.0.0", "    cluster: backend\n", &server, "");
    let port = proxy.listener("udp").port();
    for address in ["127.0.0.1", "127.0.0.7", "127.9.9.9"] {
        // A connected socket accepts answers from its peer only.
        assert_eq!(ask(&client(SocketAddr::new(address.parse().expect("an address"), port)), b"x"), "a:x");
    }
}

#[test]
fn longer_datagrams_than_the_configuration_allows_are_dropped_and_counted() {
    let server = Server::start("a");
    let proxy = start("127.0.0.1", "    cluster: backend\n", &server, "");
    let client = client(proxy.listener("udp"));
    assert_eq!(ask(&client, &[b'x'; 1498]).len(), 1500);
    assert!(is_silent(&client, &[b'x'; 1501]));
    wait_for(&proxy, "udp.dns.downstream_sess_rx_datagrams_dropped", 1);
    assert!(is_silent(&client, &[b'x'; 1499]), "the answer has 1501 bytes");
    wait_for(&proxy, "cluster.backend.udp.sess_rx_datagrams_dropped", 1);
    assert_eq!(ask(&client, b""), "a:", "an empty datagram is one");
}

#[test]
fn datagrams_without_a_host_a_route_or_room_are_dropped_and_counted() {
    let server = Server::start("a");
    let check = |filter: &str, cluster: &str, first_answers: bool, expected: (&str, u64)| {
        let proxy = start("127.0.0.1", filter, &server, cluster);
        let (first, second) = (client(proxy.listener("udp")), client(proxy.listener("udp")));
        if first_answers {
            assert_eq!(ask(&first, b"x"), "a:x");
        } else {
            assert!(is_silent(&first, b"x"));
        }
        assert!(is_silent(&second, b"x"));
        assert_eq!(sum(&proxy, expected.0), expected.1, "{filter}");
    };
    let breaker = "  circuit_breakers: {thresholds: [{max_connections: 1}]}\n";
    check("    cluster: backend\n", breaker, true, ("cluster.backend.upstream_cx_overflow", 1));
    check("    cluster: nowhere\n", "", false, ("udp.dns.downstream_sess_no_route", 2));
    check("    matcher: {}\n", "", false, ("udp.dns.downstream_sess_no_route", 2));
}

#[test]
fn a_refusing_host_ends_nothing_but_is_counted() {
    let refusing = UdpSocket::bind("127.0.0.1:0").expect("a free port").local_addr().expect("bound");
    let clusters = [static_cluster("backend", refusing, "")];
    let proxy = Proxy::start(&static_bootstrap(&listener("127.0.0.1", "    cluster: backend\n"), &clusters));
    proxy.wait_live();
    let client = client(proxy.listener("udp"));
    (0..3).for_each(|_| assert!(is_silent(&client, b"x")));
    assert!(sum(&proxy, "cluster.backend.udp.sess_rx_errors") > 0);
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_total"), 1);
}

fn cluster(server: Option<&Server>) -> Arc<Resource> {
    let endpoints = server.map_or_else(String::new, |server| {
        let SocketAddr::V4(address) = server.address else { panic!("IPv4") };
        let (ip, port) = (address.ip(), address.port());
        format!(
            "{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}]}}"
        )
    });
    let text =
        format!("name: backend\ntype: STATIC\nload_assignment: {{cluster_name: backend, endpoints: [{endpoints}]}}\n");
    resource::<Cluster>("backend", &text)
}

#[test]
fn sessions_follow_hosts_that_go_and_stay_when_the_listener_changes() {
    let (first, second) = (Server::start("a"), Server::start("b"));
    let with = |filter: &str, server: Option<&Server>| {
        let udp = resource::<Listener>("udp", &listener("127.0.0.1", filter));
        vec![(ResourceType::Listener, udp), (ResourceType::Cluster, cluster(server))]
    };
    let mut control = ControlPlane::start(set(with("    cluster: backend\n", Some(&first))));
    let proxy = Proxy::start(&dynamic_bootstrap(control.address, "DELTA_GRPC", ""));
    let mut publish = |resources: Vec<(ResourceType, Arc<Resource>)>| {
        control.change(|set| resources.into_iter().for_each(|(kind, resource)| set.insert(kind, resource)));
    };
    let client = client(proxy.listener("udp"));
    eventually("the first answer", || {
        client.send(b"x").expect("sent");
        client.recv(&mut [0; 9]).ok()
    });
    // Another idle timeout: the same address, and the same session.
    publish(with("    cluster: backend\n    idle_timeout: 40s\n", Some(&first)));
    eventually("the new listener", || {
        assert_eq!(ask(&client, b"y"), "a:y");
        proxy.get("/config_dump").text().contains("40s").then_some(())
    });
    assert_eq!(ask(&client, b"y"), "a:y");
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_total"), 1);
    // Another host.
    publish(with("    cluster: backend\n", Some(&second)));
    eventually("the other host", || (ask(&client, b"z") == "b:z").then_some(()));
    assert_eq!(sum(&proxy, "udp.dns.downstream_sess_active"), 1);
    // No host.
    publish(with("    cluster: backend\n", None));
    wait_for(&proxy, "udp.dns.downstream_sess_active", 0);
    assert!(is_silent(&client, b"x"));
    assert!(sum(&proxy, "cluster.backend.upstream_cx_none_healthy") > 0);
    // And one again.
    publish(with("    cluster: backend\n", Some(&first)));
    eventually("the host", || (!is_silent(&client, b"x")).then_some(()));
}

#[test]
fn sessions_are_logged_when_they_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("log");
    let log = format!(
        "    cluster: backend\n    idle_timeout: 0.1s\n    access_log:\n    - name: envoy.access_loggers.file\n      \
         typed_config:\n        \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog\n        \
         path: {}\n        log_format: {{text_format_source: {{inline_string: \"%UPSTREAM_CLUSTER% %UPSTREAM_HOST% \
         %BYTES_RECEIVED% %BYTES_SENT% %DOWNSTREAM_REMOTE_ADDRESS%\\n\"}}}}\n",
        path.display()
    );
    let server = Server::start("a");
    let proxy = start("127.0.0.1", &log, &server, "");
    let client = client(proxy.listener("udp"));
    assert_eq!(ask(&client, b"xyz"), "a:xyz");
    let expected = format!("backend {} 3 5 {}\n", server.address, client.local_addr().expect("bound"));
    eventually("the line", || std::fs::read_to_string(&path).ok().filter(|text| *text == expected));
}

#[test]
fn each_datagram_may_go_to_another_host() {
    let (first, second) = (Server::start("a"), Server::start("b"));
    let both = format!("{}\n", static_cluster("backend", first.address, ""));
    let endpoint = |server: &Server| {
        format!(
            "{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {}}}}}}}}}",
            server.address.port()
        )
    };
    let both = both.replace(&endpoint(&first), &format!("{}, {}", endpoint(&first), endpoint(&second)));
    for (filter, hosts) in [("    use_per_packet_load_balancing: true\n", 2), ("", 1)] {
        let filter = format!("    cluster: backend\n{filter}");
        let proxy = Proxy::start(&static_bootstrap(&listener("127.0.0.1", &filter), std::slice::from_ref(&both)));
        proxy.wait_live();
        let client = client(proxy.listener("udp"));
        let answers: HashSet<_> = (0..40).map(|_| ask(&client, b"x")).collect();
        assert_eq!(answers.len(), hosts, "{filter}: {answers:?}\n{both}");
    }
}
