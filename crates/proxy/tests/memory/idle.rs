//! The memory of an idle connection, measured with hundreds of them open after a request each.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, TestCa, eventually};

use crate::counting::{CONNECTIONS, Retained};
use crate::harness::{Proxy, answering, http_listener, stat, static_bootstrap, static_cluster};
use crate::{alone, mutual_tls};

/// Bars for one idle HTTP/1.1 connection, everything included but the kernel's part.
const PLAIN_BYTES: usize = 4 * 1024;
const TLS_BYTES: usize = 20 * 1024;
/// The same for a TCP proxy's connection, its upstream's side included.
const TCP_BYTES: usize = 4 * 1024;

const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\nuser-agent: memory\r\n\r\n";

fn ask(connection: &mut (impl Read + Write)) {
    connection.write_all(REQUEST).expect("the proxy reads");
    let mut answer = Vec::with_capacity(1024);
    while !answer.ends_with(b"hello") {
        let mut byte = [0; 512];
        let count = connection.read(&mut byte).expect("the proxy answers");
        assert!(count > 0, "closed after {:?}", String::from_utf8_lossy(&answer));
        answer.extend_from_slice(&byte[..count]);
    }
}

fn open_plain(address: SocketAddr) -> TcpStream {
    let mut socket = Connection::socket(address).expect("it accepts");
    ask(&mut socket);
    socket
}

/// Waits until the proxy has `count` connections on its listener.
fn settle(proxy: &Proxy, count: usize) {
    eventually("all connections to be counted", || {
        let active = stat(proxy, "http.http.downstream_cx_active");
        (active == [count as u64]).then_some(())
    });
}

#[test]
fn idle_connections_are_small() {
    let _alone = alone();
    let listener = http_listener("http", &answering("hello"), "");
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[]), 1);
    proxy.wait_live();
    let address = proxy.listener("http");
    Retained::measure(|| open_plain(address), |count| settle(&proxy, count)).check("plain", PLAIN_BYTES);
    drop(proxy);

    let ca = TestCa::new();
    let server = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/server");
    let client = ca.for_spiffe("spiffe://cluster.local/ns/default/sa/client");
    let context = mutual_tls(&ca, &server);
    let listener = http_listener("http", &answering("hello"), &context);
    let proxy = Proxy::start_with(&static_bootstrap(&listener, &[]), 1);
    proxy.wait_live();
    let address = proxy.listener("http");
    let tls = TlsClient { server_name: "", root_pem: String::new(), identity: Some(&client), alpn: &[] };
    let open = || tls.open_unverified(address, ask).expect("a handshake");
    Retained::measure(open, |count| settle(&proxy, count)).check("mutual TLS", TLS_BYTES);
    drop(proxy);

    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let cluster = static_cluster("tcp", upstream.local_addr().expect("bound"), "");
    let listener = r#"
name: tcp
address: {socket_address: {address: 127.0.2.9, port_value: 0}}
filter_chains:
- filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: tcp}
"#;
    let proxy = Proxy::start_with(&static_bootstrap(listener, &[cluster]), 1);
    proxy.wait_live();
    let address = proxy.listener("tcp");
    let servers = std::cell::RefCell::new(Vec::with_capacity(CONNECTIONS + 1));
    let open = || {
        let mut socket = Connection::socket(address).expect("it accepts");
        let (mut server, _) = upstream.accept().expect("the proxy connects");
        socket.write_all(b"x").expect("the proxy reads");
        server.read_exact(&mut [0]).expect("the proxy writes");
        servers.borrow_mut().push(server);
        socket
    };
    Retained::measure(open, |_| ()).check("TCP proxy, both sides", TCP_BYTES);
}
