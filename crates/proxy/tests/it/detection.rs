//! Protocol detection: the side that speaks first decides, however slowly it does, and never a timeout.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Http2Frames as H2, TestCa};

use crate::harness::{Proxy, static_bootstrap, static_cluster};

/// Proxies a port nobody declared: HTTP is answered here, TLS for `tls.example.com` is ended here, and everything else goes
/// to the server as it is.
struct Undeclared {
    proxy: Proxy,
    server: TcpListener,
    _ca: TestCa,
}

/// What the listener says of its filters' time.
const TIMEOUTS: [&str; 2] = [
    "listener_filters_timeout: 0s\ncontinue_on_listener_filters_timeout: true",
    // A millisecond is over before any test's client has spoken.
    "listener_filters_timeout: 0.001s\ncontinue_on_listener_filters_timeout: true",
];

impl Undeclared {
    fn start(timeout: &str) -> Self {
        let server = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let ca = TestCa::new();
        let identity = ca.for_dns(&["tls.example.com"]);
        let listener = format!(
            r#"
name: undeclared
address: {{socket_address: {{address: 127.0.2.2, port_value: 0}}}}
{timeout}
listener_filters:
- name: tls_inspector
  typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector}}
- name: http_inspector
  typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector}}
filter_chains:
- filter_chain_match: {{transport_protocol: raw_buffer, application_protocols: [http/1.1]}}
  filters: [{http}]
- filter_chain_match: {{transport_protocol: tls, server_names: [tls.example.com]}}
  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      common_tls_context:
        tls_certificates:
        - certificate_chain: {{inline_string: {chain:?}}}
          private_key: {{inline_string: {key:?}}}
  filters: [{http}]
default_filter_chain:
  filters:
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: server
"#,
            http = HTTP.replace('\n', " "),
            chain = identity.cert_pem,
            key = identity.key_pem,
        );
        let cluster = static_cluster("server", server.local_addr().expect("bound"), "");
        let proxy = Proxy::start(&static_bootstrap(&listener, &[cluster]));
        proxy.wait_live();
        Self { proxy, server, _ca: ca }
    }

    fn connect(&self) -> TcpStream {
        Connection::socket(self.proxy.listener("undeclared")).expect("it accepts")
    }

    fn accept(&self) -> TcpStream {
        let (server, _) = self.server.accept().expect("the proxy connects");
        server.set_read_timeout(Some(std::time::Duration::from_secs(15))).expect("a socket");
        server
    }
}

const HTTP: &str = r#"{name: envoy.filters.network.http_connection_manager, typed_config: {
"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager,
stat_prefix: http, route_config: {name: local, virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /},
direct_response: {status: 200, body: {inline_string: "as HTTP"}}}]}]}, http_filters: [{name: envoy.filters.http.router,
typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}"#;

fn expect(stream: &mut TcpStream, expected: &[u8]) {
    let mut bytes = vec![0; expected.len()];
    stream.read_exact(&mut bytes).unwrap_or_else(|error| panic!("{:?}: {error}", String::from_utf8_lossy(expected)));
    assert_eq!(String::from_utf8_lossy(&bytes), String::from_utf8_lossy(expected));
}

fn expect_end(stream: &mut TcpStream) {
    let mut rest = Vec::new();
    stream.read_to_end(&mut rest).expect("an end in order");
    assert!(rest.is_empty(), "{:?}", String::from_utf8_lossy(&rest));
}

/// One byte per segment; the proxy sees them arrive one by one, for each write is a packet of its own.
fn send_slowly(stream: &mut TcpStream, bytes: &[u8]) {
    for byte in bytes {
        stream.write_all(&[*byte]).expect("the proxy reads");
        std::thread::yield_now();
    }
}

#[test]
fn a_server_that_speaks_first_is_heard() {
    for timeout in TIMEOUTS {
        let scene = Undeclared::start(timeout);
        let mut client = scene.connect();
        let mut server = scene.accept();
        server.write_all(b"220 ready\r\n").expect("the proxy reads");
        expect(&mut client, b"220 ready\r\n");
        client.write_all(b"GET / HTTP/1.1\r\n").expect("the proxy reads");
        expect(&mut server, b"GET / HTTP/1.1\r\n");
        client.shutdown(Shutdown::Write).expect("open");
        expect_end(&mut server);
        server.write_all(b"221 bye\r\n").expect("the proxy reads");
        drop(server);
        expect(&mut client, b"221 bye\r\n");
        expect_end(&mut client);
    }
}

#[test]
fn a_slow_http_client_stays_an_http_client() {
    for timeout in TIMEOUTS {
        let scene = Undeclared::start(timeout);
        let mut client = scene.connect();
        // By now the client has been silent for long enough that its server was asked.
        let mut server = scene.accept();
        send_slowly(&mut client, b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        let mut answer = String::new();
        client.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("as HTTP"), "{answer}");
        expect_end(&mut server);
    }
}

#[test]
fn a_server_that_leaves_a_client_in_the_middle_of_its_head_decides_nothing() {
    let scene = Undeclared::start(TIMEOUTS[0]);
    let mut client = scene.connect();
    let server = scene.accept();
    client.write_all(b"GET / HT").expect("the proxy reads");
    // Its bytes are in the proxy's hands before the server's end is.
    drop(server);
    client.write_all(b"TP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").expect("the proxy reads");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
}

#[test]
fn a_client_of_neither_protocol_gets_the_connection_that_was_made_ahead() {
    let scene = Undeclared::start(TIMEOUTS[0]);
    let mut client = scene.connect();
    let mut server = scene.accept();
    send_slowly(&mut client, b"\0\0\0\x0fhello");
    expect(&mut server, b"\0\0\0\x0fhello");
    server.write_all(b"and hello").expect("the proxy reads");
    expect(&mut client, b"and hello");
}

#[test]
fn a_server_that_closes_without_a_word_closes_its_client() {
    let scene = Undeclared::start(TIMEOUTS[0]);
    let mut client = scene.connect();
    drop(scene.accept());
    expect_end(&mut client);
}

#[test]
fn a_server_that_is_not_there_closes_its_client() {
    let Undeclared { proxy, server, .. } = Undeclared::start(TIMEOUTS[0]);
    drop(server);
    let mut client = Connection::socket(proxy.listener("undeclared")).expect("it accepts");
    expect_end(&mut client);
}

#[test]
fn a_client_that_only_listens_is_served() {
    let scene = Undeclared::start(TIMEOUTS[0]);
    let mut client = scene.connect();
    client.shutdown(Shutdown::Write).expect("open");
    let mut server = scene.accept();
    expect_end(&mut server);
    server.write_all(b"12:00").expect("the proxy reads");
    drop(server);
    expect(&mut client, b"12:00");
    expect_end(&mut client);
}

#[test]
fn a_client_hello_in_single_bytes_is_tls() {
    for (name, passed_on) in [("tls.example.com", false), ("other.example.com", true)] {
        let scene = Undeclared::start(TIMEOUTS[1]);
        let mut client = scene.connect();
        let mut server = scene.accept();
        let hello = TlsClient { server_name: name, ..TlsClient::default() }.client_hello();
        send_slowly(&mut client, &hello);
        if passed_on {
            expect(&mut server, &hello);
        } else {
            let mut record = [0; 3];
            client.read_exact(&mut record).expect("a ServerHello");
            assert_eq!(record, [22, 3, 3], "a handshake record");
            expect_end(&mut server);
        }
    }
}

/// Envoy takes the first of these bytes for a request of HTTP/1.
#[test]
fn a_preface_in_single_bytes_or_with_a_pause_is_http2() {
    let routes = crate::harness::answering("hello");
    let proxy = Proxy::start(&static_bootstrap(&crate::harness::http_listener("auto", &routes, ""), &[]));
    proxy.wait_live();
    // SETTINGS, which are empty, and GET on stream 1.
    let settings = H2::bytes(H2::SETTINGS, 0, 0, b"");
    let whole = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], &H2::get_bytes(1)].concat();
    let others_are_served = || {
        let mut other = Connection::open(proxy.listener("auto")).expect("it accepts");
        assert_eq!(other.get("test", "/", "").expect("an answer").status, 200);
    };
    for cut in [None, Some(1), Some(3), Some(16), Some(23)] {
        let mut client = Connection::socket(proxy.listener("auto")).expect("it accepts");
        match cut {
            None => send_slowly(&mut client, &whole),
            Some(cut) => {
                client.write_all(&whole[..cut]).expect("the proxy reads");
                // By then the proxy has seen what there is.
                others_are_served();
                client.write_all(&whole[cut..]).expect("the proxy reads");
            }
        }
        let mut first = [0; 9];
        client.read_exact(&mut first).expect("an answer");
        assert_eq!((first[3], &first[5..]), (H2::SETTINGS, &[0; 4][..]), "{cut:?}: {}", first.escape_ascii());
    }
    // What begins like one is HTTP/1 as soon as it differs.
    let mut client = Connection::open(proxy.listener("auto")).expect("it accepts");
    client.send("P").expect("the proxy reads");
    others_are_served();
    client.send("OST / HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n").expect("the proxy reads");
    assert_eq!(client.response().expect("an answer").text(), "hello");
}
