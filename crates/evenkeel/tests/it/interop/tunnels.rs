//! TCP in HTTP tunnels: Evenkeel opens them as Envoy does and handles responses alike, and each can tunnel through the other.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use evenkeel_testkit::{Connection, Random, TcpEcho, eventually, free_ports};

use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, cluster, endpoint, scene, tcp_listener};

/// What a proxy that is asked for a tunnel answers; from then on it sends back what it gets.
const ANSWERS: &[(&str, &str)] = &[
    ("opens", "HTTP/1.1 200 OK\r\n\r\n"),
    ("speaks-first", "HTTP/1.1 200 OK\r\n\r\nhello "),
    ("with-headers", "HTTP/1.1 200 Connection established\r\nproxy-agent: test\r\n\r\n"),
    ("created", "HTTP/1.1 201 Created\r\n\r\n"),
    ("continues", "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
    ("wants-a-login", "HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n"),
    ("fails", "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 2\r\n\r\nno"),
    ("odd-headers", "HTTP/1.1 200 OK\r\nX-Two: one\r\nx-two: \"2\" \\\r\nx-empty:\r\nx-word: caf\u{e9}\r\n\r\n"),
    ("keeps-it-secret", "HTTP/1.1 200 OK\r\nx-word: secret\r\n\r\n"),
    // Asked again it opens.
    ("has-a-second-thought", "HTTP/1.1 503 Service Unavailable\r\nx-word: not yet\r\ncontent-length: 0\r\n\r\n"),
    ("redirects", "HTTP/1.1 302 Found\r\nlocation: /\r\ncontent-length: 0\r\n\r\n"),
    ("closes", ""),
    ("speaks-no-http", "SSH-2.0-OpenSSH_9.2\r\n\r\n"),
];

#[test]
fn evenkeel_and_envoy_ask_for_tunnels_alike() {
    let rows: Vec<_> = ANSWERS.iter().map(|(name, _)| ((*name).to_owned(), asking(name))).collect();
    let Observed { seen, asked, logged } = compare::<{ ANSWERS.len() }>(&rows, "", peer);
    assert!(seen.contains(&"opens: \"ping\"".to_owned()), "{seen:#?}");
    assert!(asked[0].contains("x-from: 127.0.0.1"), "{asked:#?}");
    let said = "{\"headers\":[{\"key\":\":status\",\"value\":\"200\"},{\"key\":\"proxy-agent\",\"value\":\"test\"}]}";
    assert!(logged.contains(&format!("with-headers - - {said} - -")), "{logged:#?}");
    assert!(logged.iter().any(|line| line.starts_with("fails UF,URX tunnel_response:503 {")), "{logged:#?}");
    assert!(logged.iter().any(|line| line.starts_with("has-a-second-thought UF tunnel_response:503 {")), "{logged:#?}");
}

/// The heads a peer was sent.
pub(super) type Requests = Arc<Mutex<Vec<String>>>;

/// What came of tunnels that were asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Observed {
    /// What clients got.
    pub(super) seen: Vec<String>,
    /// What the peer was sent.
    pub(super) asked: Vec<String>,
    /// What access logs say: flags, the reason of a failure, and what the peer said.
    pub(super) logged: Vec<String>,
}

/// A row's lines: one of text, one of JSON.
fn access_log(path: &Path, name: &str) -> String {
    const STATE: &str = "%FILTER_STATE(envoy.tcp_proxy.propagate_response";
    let text = format!(
        "{name} %RESPONSE_FLAGS% %UPSTREAM_TRANSPORT_FAILURE_REASON% {STATE}_headers)% {STATE}_trailers:TYPED)% \
         {STATE}_headers:PLAIN)%"
    );
    let json = format!(
        "json_format: {{ a_name: \"{name}\", headers: \"{STATE}_headers:TYPED)%\", plain: \"{STATE}_trailers:PLAIN)%\", \
         trailers: \"{STATE}_trailers)%\" }}"
    );
    web::access_log(path, &[&text, &json])
}

/// Has Envoy and Evenkeel ask a peer each for the tunnels of `rows`: what each is called, and how it is asked for. What came of it
/// must be the same for both. `more`: how the peer is spoken to.
pub(super) fn compare<const ROWS: usize>(
    rows: &[(String, String)],
    more: &str,
    mut peer: impl FnMut() -> (SocketAddr, Requests),
) -> Observed {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("access.log"));
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(|program| {
        let (peer, asked) = peer();
        let (ports, [admin]) = (free_ports::<ROWS>(), free_ports::<1>());
        let listener = |((name, config), port): (&(String, String), u16)| {
            let name = name.split(',').next().unwrap_or_default();
            tcp_listener(&format!("l{port}"), port, &format!("{config}, {}", access_log(&log, name)))
        };
        let listeners: String = rows.iter().zip(ports).map(listener).collect();
        let text = scene(admin, &listeners, &[on_loopback("peer", peer.port(), more)]);
        std::fs::write(&file, text).expect("a writable folder");
        // Not a row's port: whoever looks whether it is open asks for a tunnel.
        let mut process = web::start(program, &file, admin, admin);
        let seen: Vec<_> = rows.iter().zip(ports).map(|((name, _), port)| look(name, port)).collect();
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        let mut asked = asked.lock().expect("nobody panicked").clone();
        asked.sort();
        asked.dedup();
        let logged = eventually(&format!("{program:?} to have written all"), || {
            let text = std::fs::read_to_string(&log).ok()?;
            let mut lines: Vec<_> = text.lines().map(str::to_owned).collect();
            lines.sort();
            (text.ends_with('\n') && lines.len() == 2 * ROWS).then_some(lines)
        });
        std::fs::remove_file(&log).expect("it was written");
        Observed { seen, asked, logged }
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
fn peer() -> (SocketAddr, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let asked = Requests::default();
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
    let again = {
        let mut asked = asked.lock().ok()?;
        let again = asked.contains(&head);
        asked.push(head);
        again
    };
    let answer = if again { ANSWERS.first()?.1 } else { answer };
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
    let attempts = if name == "has-a-second-thought" { 2 } else { 1 };
    let kept = name != "keeps-it-secret";
    format!(
        "cluster: peer, max_connect_attempts: {attempts}, tunneling_config: {{ propagate_response_headers: {kept}, \
         hostname: \"{name}.test:443\", headers_to_add: [ {{ header: {{ key: x-from, value: \
         \"%DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT%\" }} }}, {{ header: {{ key: x-name, value: \"%REQUESTED_SERVER_NAME%\" }} }} ] }}"
    )
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

fn on_loopback(name: &str, port: u16, more: &str) -> String {
    cluster(name, &endpoint(port, ""), more)
}

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
        let text = scene(admin, &opening_listener(port), &[on_loopback("echo", echo.address().port(), "")]);
        std::fs::write(&file, text).expect("a writable folder");
        (port, web::start(program, &file, admin, port))
    });
    for program in programs {
        for (opener, (at, _)) in programs.iter().zip(&openers) {
            let file = folder.path().join("asks.yaml");
            let [http1, http2, admin] = free_ports::<3>();
            let tunnel =
                |cluster: &str| format!("cluster: {cluster}, tunneling_config: {{ hostname: \"echo.test:7\" }}");
            let listeners =
                tcp_listener("http1", http1, &tunnel("http1")) + &tcp_listener("http2", http2, &tunnel("http2"));
            let text = scene(admin, &listeners, &[on_loopback("http1", *at, ""), on_loopback("http2", *at, HTTP2)]);
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
