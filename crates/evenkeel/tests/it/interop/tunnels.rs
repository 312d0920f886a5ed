//! TCP in HTTP tunnels: Evenkeel asks for them as Envoy does and makes the same of the answers, and either of the two opens
//! them for either.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use evenkeel_testkit::{Connection, Random, TcpEcho, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER, endpoint};

/// What a proxy that is asked for a tunnel answers; from then on it sends back what it gets.
const ANSWERS: &[(&str, &str)] = &[
    ("opens", "HTTP/1.1 200 OK\r\n\r\n"),
    ("speaks-first", "HTTP/1.1 200 OK\r\n\r\nhello "),
    ("with-headers", "HTTP/1.1 200 Connection established\r\nproxy-agent: test\r\n\r\n"),
    ("created", "HTTP/1.1 201 Created\r\n\r\n"),
    ("continues", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
    ("wants-a-login", "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"),
    ("fails", "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"),
    ("redirects", "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
    ("closes", ""),
    ("speaks-no-http", "SSH-2.0-OpenSSH_9.2\r\n\r\n"),
];

#[test]
fn evenkeel_and_envoy_ask_for_tunnels_alike() {
    let rows: Vec<_> = ANSWERS.iter().map(|(name, _)| ((*name).to_owned(), asking(name))).collect();
    let (seen, asked) = compare::<{ ANSWERS.len() }>(&rows, "", peer);
    assert!(seen.contains(&"opens: \"ping\"".to_owned()), "{seen:#?}");
    assert!(asked[0].contains("x-from: 127.0.0.1"), "{asked:#?}");
}

/// The heads a peer was sent.
pub(super) type Asked = Arc<Mutex<Vec<String>>>;

/// Has Envoy and Evenkeel ask a peer each for the tunnels of `rows`: what each is called, and the TCP proxy that asks for it. Returns
/// what clients got and what the peer was sent, which must be the same for both. `more`: how the peer is spoken to.
pub(super) fn compare<const ROWS: usize>(
    rows: &[(String, String)],
    more: &str,
    mut peer: impl FnMut() -> (SocketAddr, Asked),
) -> (Vec<String>, Vec<String>) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| {
        let (peer, asked) = peer();
        let (ports, [admin]) = (free_ports::<ROWS>(), free_ports::<1>());
        let listeners: String = rows.iter().zip(ports).map(|((_, config), port)| tcp_listener(port, config)).collect();
        let text = scene(admin, &listeners, &[cluster("peer", peer.port(), more)]);
        std::fs::write(&file, text).expect("a writable folder");
        let mut process = web::start(program, &file, admin, ports[0]);
        let look = |((name, _), port): (&(String, String), u16)| {
            process.wait_for_port((Ipv4Addr::LOCALHOST, port).into());
            look(name, port)
        };
        let seen: Vec<_> = rows.iter().zip(ports).map(look).collect();
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        let mut asked = asked.lock().expect("nobody panicked").clone();
        asked.sort();
        asked.dedup();
        (seen, asked)
    });
    assert_eq!(envoy, evenkeel, "Envoy, Evenkeel");
    envoy
}

/// What a client gets back until it has its own words.
fn look(name: &str, port: u16) -> String {
    let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("it accepts");
    // Where there is no tunnel the connection may be gone before.
    let _ = client.send("ping");
    let mut got = String::new();
    while !got.ends_with("ping") {
        match client.read_exact(1) {
            Ok(bytes) => got += &String::from_utf8_lossy(&bytes),
            Err(_) => return format!("{name}: {got:?}, then its end"),
        }
    }
    format!("{name}: {got:?}")
}

/// A proxy that answers as the table says of the name it is asked for; and the heads it was sent.
fn peer() -> (SocketAddr, Asked) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let asked = Asked::default();
    let seen = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || tunnel(stream, &seen));
        }
    });
    (address, asked)
}

fn tunnel(mut stream: TcpStream, asked: &Mutex<Vec<String>>) -> Option<()> {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).ok()?;
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let (_, answer) = ANSWERS.iter().find(|(name, _)| head.starts_with(&format!("CONNECT {name}.test:443 ")))?;
    asked.lock().ok()?.push(head);
    stream.write_all(answer.as_bytes()).ok()?;
    if answer.is_empty() {
        return None;
    }
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        stream.write_all(buffer.get(..count)?).ok()?;
    }
    stream.shutdown(Shutdown::Write).ok()
}

fn asking(name: &str) -> String {
    format!(
        "cluster: peer, tunneling_config: {{ hostname: \"{name}.test:443\", headers_to_add: [ {{ header: {{ key: x-from, value: \
         \"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%\" }} }}, {{ header: {{ key: x-name, value: \"%REQUESTED_SERVER_NAME%\" }} }} ] }}"
    )
}

fn tcp_listener(port: u16, config: &str) -> String {
    let filter = format!(
        "      - name: tcp
        typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, {config} }}
"
    );
    web::listener(&format!("l{port}"), port, &filter)
}

/// Opens tunnels to the cluster `echo`.
fn opening_listener(port: u16) -> String {
    let manager = format!(
        "          http2_protocol_options: {{ allow_connect: true }}
          upgrade_configs: [ {{ upgrade_type: CONNECT }} ]
          http_filters: [ {ROUTER} ]
{}",
        web::one_host(
            "              - { match: { connect_matcher: {} }, route: { cluster: echo, upgrade_configs: [ { upgrade_type: CONNECT, connect_config: {} } ] } }\n"
        )
    );
    web::http_listener(&format!("l{port}"), port, &manager)
}

fn cluster(name: &str, port: u16, more: &str) -> String {
    let host = endpoint(port, "");
    format!(
        "  - {{ name: {name}, type: STATIC, {more} load_assignment: {{ cluster_name: {name}, endpoints: [ {{ lb_endpoints: [ {host} ] }} ] }} }}\n"
    )
}

fn scene(admin: u16, listeners: &str, clusters: &[String]) -> String {
    web::scene(admin, listeners, &clusters.concat())
}

pub(super) const HTTP2: &str = "typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: { \"@type\": \
                     type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: { \
                     http2_protocol_options: {} } } },";

#[test]
fn either_opens_tunnels_for_either() {
    const BYTES: usize = 3 << 20;
    let echo = TcpEcho::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let programs = [Program::Envoy, Program::Evenkeel];
    let sent = Random::new(7).bytes(BYTES);
    let openers = programs.map(|program| {
        let file = folder.path().join(format!("{program:?}-opens.yaml"));
        let [port, admin] = free_ports::<2>();
        let text = scene(admin, &opening_listener(port), &[cluster("echo", echo.address().port(), "")]);
        std::fs::write(&file, text).expect("a writable folder");
        (port, web::start(program, &file, admin, port))
    });
    for program in programs {
        for (opener, (at, _)) in programs.iter().zip(&openers) {
            let file = folder.path().join("asks.yaml");
            let [http1, http2, admin] = free_ports::<3>();
            let tunnel =
                |cluster: &str| format!("cluster: {cluster}, tunneling_config: {{ hostname: \"echo.test:7\" }}");
            let listeners = tcp_listener(http1, &tunnel("http1")) + &tcp_listener(http2, &tunnel("http2"));
            let text = scene(admin, &listeners, &[cluster("http1", *at, ""), cluster("http2", *at, HTTP2)]);
            std::fs::write(&file, text).expect("a writable folder");
            let _process = web::start(program, &file, admin, http1);
            for (name, port) in [("HTTP/1.1", http1), ("HTTP/2", http2)] {
                let what = format!("{program:?} through {opener:?} over {name}");
                let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it accepts");
                let mut got = vec![0; BYTES];
                std::thread::scope(|scope| {
                    scope.spawn(|| (&client).write_all(&sent).expect("the proxy reads"));
                    (&client).read_exact(&mut got).unwrap_or_else(|error| panic!("{what}: {error}"));
                });
                assert!(got == sent, "{what}");
                client.shutdown(Shutdown::Write).expect("open");
                let rest = (&client).read_to_end(&mut got);
                assert!(matches!(rest, Ok(0)), "{what}: {rest:?} behind its end");
            }
        }
    }
}
