//! The TCP proxy: which connections count as idle, and what happens to them; bulk data, half-closes and resets.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use evenkeel_testkit::tls::{TestCa, TlsClient};
use evenkeel_testkit::{Connection, Random, eventually};

use crate::harness::{Proxy, stat, static_bootstrap, static_cluster};

/// Far longer than a busy machine holds up a test between two bytes.
const IDLE: Duration = Duration::from_millis(1500);

fn bootstrap(upstream: &TcpListener) -> String {
    with_idle_timeout(upstream, IDLE)
}

/// Zero: none.
fn with_idle_timeout(upstream: &TcpListener, idle: Duration) -> String {
    let listener = format!(
        r#"
name: tcp
address: {{socket_address: {{address: 127.0.2.1, port_value: 0}}}}
filter_chains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: backend
      idle_timeout: {}s
"#,
        idle.as_secs_f64()
    );
    static_bootstrap(&listener, &[static_cluster("backend", upstream.local_addr().expect("bound"), "")])
}

/// A client of the proxy and the connection that the proxy made for it.
fn open(proxy: &Proxy, upstream: &TcpListener) -> (TcpStream, TcpStream) {
    let client = Connection::socket(proxy.listener("tcp")).expect("it accepts");
    let (host, _) = upstream.accept().expect("the proxy connects");
    host.set_read_timeout(client.read_timeout().expect("set")).expect("a socket");
    (client, host)
}

fn pass(from: &mut TcpStream, to: &mut TcpStream) {
    let mut byte = [0];
    from.write_all(b"x").expect("the proxy reads");
    to.read_exact(&mut byte).expect("the proxy writes");
    assert_eq!(&byte, b"x");
}

fn assert_closed(side: &mut TcpStream) {
    assert_eq!(side.read(&mut [0; 16]).expect("an end in order"), 0);
}

#[test]
fn an_idle_connection_is_closed_on_both_sides() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&bootstrap(&upstream));
    proxy.wait_live();
    let (mut client, mut host) = open(&proxy, &upstream);
    let last_byte = Instant::now();
    pass(&mut client, &mut host);
    assert_closed(&mut client);
    assert_closed(&mut host);
    assert!(last_byte.elapsed() >= IDLE, "closed after {:?}", last_byte.elapsed());
    eventually("the timeout to be counted", || (stat(&proxy, "tcp.tcp.idle_timeout") == [1]).then_some(()));
    eventually("no connection", || (stat(&proxy, "tcp.tcp.downstream_cx_active") == [0]).then_some(()));
}

#[test]
fn bytes_in_one_direction_keep_a_connection_until_they_stop() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&bootstrap(&upstream));
    proxy.wait_live();
    let (client, host) = open(&proxy, &upstream);
    let other = open(&proxy, &upstream);
    let one_way = |mut from: TcpStream, mut to: TcpStream| {
        let started = Instant::now();
        eventually("more than two idle times to pass", || {
            pass(&mut from, &mut to);
            (started.elapsed() > 2 * IDLE + IDLE / 2).then_some(())
        });
        assert_closed(&mut from);
        assert_closed(&mut to);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| one_way(client, host));
        scope.spawn(|| one_way(other.1, other.0));
    });
    eventually("both timeouts to be counted", || (stat(&proxy, "tcp.tcp.idle_timeout") == [2]).then_some(()));
}

#[test]
fn bulk_both_ways_at_once_arrives_as_it_was_and_half_closes_travel() {
    const BYTES: usize = 24 << 20;
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&with_idle_timeout(&upstream, Duration::ZERO));
    proxy.wait_live();
    let (mut client, mut host) = open(&proxy, &upstream);
    // Small messages first and last, for a direction changes its ways when it becomes bulky, and back.
    pass(&mut client, &mut host);
    pass(&mut host, &mut client);
    let sent = Random::new(0).bytes(BYTES);
    let send = |mut stream: &TcpStream, last: bool| {
        stream.write_all(&sent).expect("the proxy reads");
        if last {
            stream.write_all(b"end").expect("the proxy reads");
            stream.shutdown(Shutdown::Write).expect("open");
        }
    };
    let receive = |mut stream: &TcpStream, length: usize| {
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).expect("the proxy writes");
        bytes
    };
    std::thread::scope(|scope| {
        scope.spawn(|| send(&client, false));
        scope.spawn(|| send(&host, true));
        scope.spawn(|| assert!(receive(&host, BYTES) == sent, "what went up differs"));
        assert!(receive(&client, BYTES) == sent, "what came down differs");
    });
    assert_eq!(receive(&client, 3), b"end");
    assert_closed(&mut client);
    // The host has closed its side; the client's is still open.
    pass(&mut client, &mut host);
    client.shutdown(Shutdown::Write).expect("open");
    assert_closed(&mut host);
    let counted = |name| stat(&proxy, &format!("tcp.tcp.{name}"));
    eventually("bytes to be counted", || {
        let up = BYTES as u64 + 2;
        (counted("downstream_cx_rx_bytes_total") == [up] && counted("downstream_cx_tx_bytes_total") == [up + 2])
            .then_some(())
    });
}

#[test]
fn a_reset_on_one_side_is_a_reset_on_the_other() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let proxy = Proxy::start(&bootstrap(&upstream));
    proxy.wait_live();
    for from_client in [true, false] {
        let (mut client, mut host) = open(&proxy, &upstream);
        pass(&mut client, &mut host);
        let (resets, mut sees) = if from_client { (client, host) } else { (host, client) };
        // Unread bytes make closing a reset.
        sees.write_all(b"unread").expect("the proxy reads");
        eventually("the bytes to arrive", || (resets.peek(&mut [0]).ok() == Some(1)).then_some(()));
        drop(resets);
        let error = sees.read(&mut [0]).expect_err("a reset");
        assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "from the client: {from_client}");
    }
}

/// A TCP proxy behind a filter chain match.
fn chain(matches: &str, target: &str) -> String {
    format!(
        r#"- filter_chain_match: {{{matches}}}
  filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      {target}
"#
    )
}

#[test]
fn tls_is_passed_on_unread_by_server_name() {
    let hosts = [(); 4].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    let listener = format!(
        r#"
name: tcp
address: {{socket_address: {{address: 127.0.2.4, port_value: 0}}}}
listener_filters:
- name: tls_inspector
  typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}
filter_chains:
{}{}{}"#,
        chain("server_names: [a.example.com]", "cluster: c0"),
        chain("server_names: [\"*.example.com\"]", "cluster: c1"),
        chain(
            "server_names: [shared.test]",
            "weighted_clusters: {clusters: [{name: c2, weight: 3}, {name: c3, weight: 1}]}"
        ),
    );
    let clusters: Vec<String> = hosts
        .iter()
        .enumerate()
        .map(|(index, host)| static_cluster(&format!("c{index}"), host.local_addr().expect("bound"), ""))
        .collect();
    let proxy = Proxy::start(&static_bootstrap(&listener, &clusters));
    proxy.wait_live();
    hosts.iter().for_each(|host| host.set_nonblocking(true).expect("a socket"));
    // Which host got the connection, with the very bytes the client sent.
    let ask = |name: &str| {
        let hello = TlsClient { server_name: name, ..TlsClient::default() }.client_hello();
        let mut client = Connection::socket(proxy.listener("tcp")).expect("it accepts");
        client.write_all(&hello).expect("the proxy reads");
        let (index, mut server) = eventually("a host to be called", || {
            hosts.iter().enumerate().find_map(|(index, host)| Some((index, host.accept().ok()?.0)))
        });
        server.set_nonblocking(false).expect("a socket");
        let mut seen = vec![0; hello.len()];
        server.read_exact(&mut seen).expect("the proxy writes");
        assert!(seen == hello, "{name}: changed on the way");
        index
    };
    for (name, expected) in [("a.example.com", 0), ("b.example.com", 1), ("deep.b.example.com", 1)] {
        assert_eq!(ask(name), expected, "{name}");
    }
    let shared: Vec<usize> = (0..80).map(|_| ask("shared.test")).collect();
    let heavy = shared.iter().filter(|index| **index == 2).count();
    assert!(shared.iter().all(|index| [2, 3].contains(index)), "{shared:?}");
    // Three in four: fewer than 40 or all 80 of 80 happen once in ten million runs.
    assert!((40..80).contains(&heavy), "{heavy} of 80 went to the cluster of weight 3 of 4");
    let hello = TlsClient { server_name: "nobody.test", ..TlsClient::default() }.client_hello();
    let mut client = Connection::socket(proxy.listener("tcp")).expect("it accepts");
    client.write_all(&hello).expect("the proxy reads");
    assert_eq!(client.read(&mut [0]).unwrap_or(0), 0, "no chain takes it");
    eventually("the refusal to be counted", || stat(&proxy, ".no_filter_chain_match").contains(&1).then_some(()));
}

#[test]
fn a_server_name_may_name_the_cluster() {
    let [named, other] = [(), ()].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
    const NAME: &str = "outbound_.80_._.web.shop.svc.cluster.local";
    let listener = r#"
name: tcp
address: {socket_address: {address: 127.0.2.1, port_value: 0}}
listener_filters:
- name: envoy.filters.listener.tls_inspector
  typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}
filter_chains:
- filters:
  - name: envoy.filters.network.sni_cluster
    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.sni_cluster.v3.SniCluster}
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: other
"#;
    let cluster = |name, host: &TcpListener| static_cluster(name, host.local_addr().expect("bound"), "");
    let proxy = Proxy::start(&static_bootstrap(listener, &[cluster(NAME, &named), cluster("other", &other)]));
    proxy.wait_live();
    let ca = TestCa::new();
    let hello =
        |server_name| TlsClient { server_name, root_pem: ca.root_pem(), identity: None, alpn: &[] }.client_hello();
    let arrives_at = |host: &TcpListener, bytes: &[u8]| {
        let mut client = Connection::socket(proxy.listener("tcp")).expect("it accepts");
        client.write_all(bytes).expect("the proxy reads");
        let (mut host, _) = host.accept().expect("the proxy connects");
        let mut arrived = vec![0; bytes.len()];
        host.read_exact(&mut arrived).expect("the proxy writes");
        assert_eq!(arrived, bytes);
    };
    arrives_at(&named, &hello(NAME));
    // Without a name it is the configured one.
    arrives_at(&other, b"no TLS at all");
    // There is no such cluster.
    let mut lost = Connection::socket(proxy.listener("tcp")).expect("it accepts");
    lost.write_all(&hello("unknown.test")).expect("the proxy reads");
    let end = lost.read(&mut [0; 16]);
    assert!(matches!(&end, Ok(0) | Err(_)), "{end:?}");
    eventually("it to be counted", || (stat(&proxy, "tcp.tcp.downstream_cx_no_route") == [1]).then_some(()));
}
