//! Parts of an exchange besides its request and its response: time limits, interim responses, tunnels.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Backend, Connection, Http2Frames as H2, Reply, TestCa, eventually};

use crate::harness::{MeshTls, Proxy, answering, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// A route for everything to the cluster `backend`, with these fields of the route action and of the connection manager.
fn to_backend(action: &str, manager: &str) -> String {
    format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: \
         {{cluster: backend{action}}}}}]}}]}}\n      {manager}"
    )
}

fn start(routes: &str, backend: std::net::SocketAddr, chain: &str) -> Proxy {
    let clusters = [static_cluster("backend", backend, "")];
    let proxy = Proxy::start(&static_bootstrap(&http_listener("web", routes, chain), &clusters));
    proxy.wait_live();
    proxy
}

#[test]
fn a_connection_lasts_no_longer_than_it_may() {
    let manager = "common_http_protocol_options: {max_connection_duration: 0.2s}";
    let routes = format!("{}\n      {manager}", answering("hello"));
    let proxy = start(&routes, ([127, 0, 0, 1], 9).into(), "");
    let web = proxy.listener("web");
    let mut http1 = Connection::open(web).expect("it accepts");
    assert_eq!(http1.get("test", "/", "").expect("an answer").text(), "hello");
    assert_eq!(http1.ending(Duration::from_secs(10)).expect("a timeout can be set"), Ending::Closed);
    let mut http2 = H2::open(web).expect("it accepts");
    http2.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    http2.get().expect("it reads");
    let codes = http2.end().expect("it ends");
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == 0), "GOAWAY without an error: {codes:?}");
    eventually("both to be counted", || (stat(&proxy, "web.downstream_cx_max_duration_reached") == [2]).then_some(()));
}

#[test]
fn a_stream_lasts_no_longer_than_it_may() {
    let silent = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let action = ", timeout: 0s, max_stream_duration: {max_stream_duration: 0.2s}";
    let proxy = start(&to_backend(action, ""), silent.local_addr().expect("bound"), "");
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    let response = client.get("test", "/", "").expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (504, "downstream duration timeout"));
}

/// Envoy sends browsers to another host here.
#[test]
fn unescaped_slashes_lead_to_no_other_host() {
    let manager = "path_with_escaped_slashes_action: UNESCAPE_AND_REDIRECT";
    for (options, path, expected) in [
        ("", "/%2Fevil.example/", "/.//evil.example/"),
        ("", "/%5Cevil.example/", "/./\\evil.example/"),
        ("", "//evil.example%2F", "/.//evil.example/"),
        ("normalize_path: true", "/%2Fevil.example/", "/.//evil.example/"),
        ("normalize_path: true", "/%5Cevil.example/", "/.//evil.example/"),
        ("normalize_path: true", "/a/..%2F%2Fevil.example/", "/.//evil.example/"),
        ("merge_slashes: true", "/%2Fevil.example/", "/evil.example/"),
        ("", "/a%2Fb?c=%2F", "/a/b?c=%2F"),
    ] {
        let routes = format!("{}\n      {manager}\n      {options}", answering("hello"));
        let proxy = start(&routes, ([127, 0, 0, 1], 9).into(), "");
        let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
        let response = client.get("test", path, "").expect("an answer");
        assert_eq!((response.status, response.header("location")), (307, Some(expected)), "{options} {path}");
    }
}

#[test]
fn a_host_is_told_of_the_deadline_that_is_kept() {
    let backend = Backend::start(|_| Reply::text("answered"));
    let proxy = start(&to_backend(", timeout: 0s, max_grpc_timeout: 1s", ""), backend.address(), "");
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    for (asked, told) in [("5S", "1000m"), ("300m", "300m")] {
        let fields = format!("content-type: application/grpc\r\ngrpc-timeout: {asked}\r\n");
        client.get("test", "/", &fields).expect("an answer");
        let request = backend.requests().pop().expect("a request");
        assert_eq!(request.header("grpc-timeout"), Some(told), "{asked}");
    }
}

#[test]
fn early_hints_reach_an_http2_client_before_the_answer() {
    let raw =
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";
    let backend = Backend::start(|_| Reply::Raw(raw.to_vec()));
    let proxy = start(&to_backend("", ""), backend.address(), "");
    let mut client = H2::open(proxy.listener("web")).expect("it accepts");
    client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    let stream = client.get().expect("it reads");
    let mut kinds = Vec::new();
    loop {
        let frame = client.next_frame().expect("a frame").expect("the connection lives");
        if frame.stream != stream {
            continue;
        }
        kinds.push(frame.kind);
        if frame.kind == H2::DATA {
            assert_eq!(frame.payload, b"ok");
            break;
        }
        assert_eq!(frame.flags & H2::END_STREAM, 0, "{frame:?}");
    }
    assert_eq!(kinds, [H2::HEADERS, H2::HEADERS, H2::DATA]);
}

#[test]
fn a_host_may_say_many_times_that_it_is_at_work() {
    let raw = ["HTTP/1.1 102 Processing\r\n\r\n".repeat(20).as_str(), "HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"]
        .concat();
    let backend = Backend::start(move |_| Reply::Raw(raw.clone().into_bytes()));
    let proxy = start(&to_backend("", ""), backend.address(), "");
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
    let statuses: Vec<_> = (0..21).map(|_| client.head_response().expect("a head").status).collect();
    assert_eq!(statuses, [vec![102; 20], vec![200]].concat());
}

#[test]
fn a_host_that_is_asked_whether_to_go_on_says_so_itself() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = upstream.local_addr().expect("bound");
    let proxy = start(&to_backend("", "proxy_100_continue: true"), address, "");
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    let head = "POST / HTTP/1.1\r\nhost: test\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
    client.send(head).expect("it reads");
    let (mut host, _) = upstream.accept().expect("the proxy connects");
    let mut read_to = |end: &[u8]| {
        let mut seen = Vec::new();
        while !seen.ends_with(end) {
            let mut byte = [0];
            host.read_exact(&mut byte).expect("the request");
            seen.push(byte[0]);
        }
        String::from_utf8(seen).expect("text")
    };
    let asked = read_to(b"\r\n\r\n");
    assert!(asked.contains("expect: 100-continue\r\n"), "{asked}");
    (&host).write_all(b"HTTP/1.1 100 Continue\r\n\r\n").expect("it reads");
    assert_eq!(client.head_response().expect("100").status, 100);
    client.send("hello").expect("it reads");
    let mut body = [0; 5];
    host.read_exact(&mut body).expect("the body");
    host.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").expect("it reads");
    assert_eq!((&body, client.response().expect("an answer").text().as_str()), (b"hello", "ok"));
}

#[test]
fn a_try_whose_answer_stops_is_over() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = upstream.local_addr().expect("bound");
    let policy = ", timeout: 0s, retry_policy: {retry_on: 5xx, num_retries: 0, per_try_idle_timeout: 0.2s}";
    let proxy = start(&to_backend(policy, ""), address, "");
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
    let (mut host, _) = upstream.accept().expect("the proxy connects");
    host.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhel").expect("it reads");
    let answer = client.read_to_end().expect("what there is");
    assert!(answer.ends_with(b"\r\n\r\nhel"), "{}", answer.escape_ascii());
    eventually("its end to be counted", || (stat(&proxy, ".upstream_rq_active") == [0]).then_some(()));
}

#[test]
fn connect_goes_on_to_a_host_that_is_a_proxy_itself() {
    let upstream = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = upstream.local_addr().expect("bound");
    let serving = std::thread::spawn(move || {
        let (mut stream, _) = upstream.accept().expect("the proxy connects");
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).expect("a head");
            head.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").expect("the proxy reads");
        let mut word = [0; 5];
        stream.read_exact(&mut word).expect("the tunnel is open");
        stream.write_all(&word).expect("the tunnel is open");
        String::from_utf8(head).expect("text")
    });
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {connect_matcher: \
                  {}}, route: {cluster: backend, upgrade_configs: [{upgrade_type: CONNECT}]}}]}]}";
    let proxy = start(routes, address, "");
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    client.send("CONNECT far.test:443 HTTP/1.1\r\nhost: far.test:443\r\n\r\n").expect("it reads");
    // `head_response`: what follows the head is the tunnel's.
    assert_eq!(client.head_response().expect("an answer").status, 200);
    client.send("hello").expect("the tunnel is open");
    assert_eq!(client.read_exact(5).expect("the tunnel is open"), b"hello");
    let head = serving.join().expect("no panic");
    assert!(head.starts_with("CONNECT far.test:443 HTTP/1.1\r\n"), "{head}");
}

#[test]
fn a_websocket_passes_from_a_tls_client() {
    let backend = Backend::start(|_| Reply::Upgrade("websocket".to_owned()));
    let ca = TestCa::new();
    let server = ca.for_dns(&["web.test"]);
    let inline = |text: &str| format!("{{inline_string: {}}}", serde_json::to_string(text).expect("a string"));
    let transport = format!(
        "  transport_socket:\n    name: tls\n    typed_config:\n      \"@type\": \
         type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext\n      \
         common_tls_context: {{tls_certificates: [{{certificate_chain: {}, private_key: {}}}]}}\n",
        inline(&server.cert_pem),
        inline(&server.key_pem),
    );
    let routes = to_backend("", "upgrade_configs: [{upgrade_type: websocket}]");
    let proxy = start(&routes, backend.address(), &transport);
    let tls = TlsClient { server_name: "web.test", root_pem: ca.root_pem(), ..TlsClient::default() };
    let mut client = tls.open(proxy.listener("web")).expect("a handshake");
    let fields = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    assert_eq!(client.get("web.test", "/chat", fields).expect("an answer").status, 101);
    client.send("hello").expect("the tunnel is open");
    assert_eq!(client.read_exact(5).expect("an echo"), b"hello");
    assert_eq!(stat(&proxy, "http.web.downstream_cx_upgrades_active"), [1]);
}

/// Extended CONNECT over mutual TLS, both ways: one proxy asks for it, the other grants it, and tunnels share a connection.
#[test]
fn websockets_share_an_encrypted_http2_connection() {
    const TUNNELS: usize = 3;
    let (backend, tls) = (Backend::start(|_| Reply::Upgrade("websocket".to_owned())), MeshTls::new());
    let takes = "http2_protocol_options: {allow_connect: true}\n      upgrade_configs: [{upgrade_type: websocket}]";
    let inner = start(&to_backend("", takes), backend.address(), &tls.listener("h2"));
    let http2 = protocol("explicit_http_config: {http2_protocol_options: {allow_connect: true}}");
    let to_inner = static_cluster("backend", inner.listener("web"), &format!("{http2}, {}", tls.cluster("h2")));
    let outer = http_listener("outer", &to_backend("", "upgrade_configs: [{upgrade_type: websocket}]"), "");
    let outer = Proxy::start_with(&static_bootstrap(&outer, &[to_inner]), 1);
    outer.wait_live();
    let fields = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
    let mut clients: Vec<_> = (0..TUNNELS)
        .map(|_| {
            let mut client = Connection::open(outer.listener("outer")).expect("it accepts");
            assert_eq!(client.get("web.test", "/chat", fields).expect("an answer").status, 101);
            client
        })
        .collect();
    for round in 0..10 {
        for (number, client) in clients.iter_mut().enumerate() {
            let word = format!("{round} of {number};");
            client.send(&word).expect("the tunnel is open");
            assert_eq!(client.read_exact(word.len()).expect("an echo"), word.as_bytes());
        }
    }
    assert_eq!(stat(&outer, "cluster.backend.upstream_cx_http2_total"), [1]);
    assert_eq!(stat(&inner, "http.web.downstream_cx_upgrades_active"), [TUNNELS as u64]);
    // Either end may close: the application here, the client there.
    drop(backend);
    assert_eq!(clients[0].ending(Duration::from_secs(10)).expect("a timeout can be set"), Ending::Closed);
    drop(clients);
    for (proxy, name) in [(&inner, "web"), (&outer, "outer")] {
        eventually("no tunnel", || {
            (stat(proxy, &format!("http.{name}.downstream_cx_upgrades_active")) == [0]).then_some(())
        });
    }
}
