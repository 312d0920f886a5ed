//! Clients that try to exhaust the proxy's memory, descriptors or CPU time: the share of each is bounded, and others are
//! served.

use std::io::Write as _;
use std::net::TcpStream;
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use evenkeel_testkit::{Http2Frames, Process, eventually, free_port};

use super::gateway::Gateway;
use super::handshakes::Server;
use super::{Over, answered, descriptors, resident_kib};

/// What an attack may make the proxy hold, in KiB.
const HELD_KIB: u64 = 64 << 10;

/// Half-open connections: as many as the issue of a busy edge, or as the machine lets this test open.
const HALF_OPEN: usize = 10_000;

#[test]
fn bombs_of_headers_are_small() {
    let gateway = Gateway::new();
    let before = resident_kib(&gateway.process);
    for _ in 0..20 {
        // HPACK: one field of 4 KiB in the table, then as many references to it as a frame takes.
        let mut connection = Http2Frames::open(gateway.address).expect("it accepts");
        connection.frame(Http2Frames::SETTINGS, 0, 0, &[]).expect("it reads");
        let value = vec![b'a'; 3900];
        // A literal with incremental indexing (RFC 7541 section 6.2.1), its length as an integer of 7 bits and more.
        let length = value.len() - 127;
        let field = [&[0x40, 1, b'x', 0x7f][..], &[(length & 0x7f) as u8 | 0x80, (length >> 7) as u8], &value].concat();
        let block = [&[0x82, 0x84, 0x86, 0x01, 1, b'a'][..], &field, &[0xbe; 12_000]].concat();
        let flags = Http2Frames::END_STREAM | Http2Frames::END_HEADERS;
        connection.frame(Http2Frames::HEADERS, flags, 1, &block).expect("it reads");
        assert_ne!(answered(&mut connection).expect("an answer"), Over::Served);
    }
    // CONTINUATION without end, and with nothing in it.
    for payload in [&[0x00, 1, b'x', 1, b'y'].repeat(3000)[..], &[]] {
        let mut connection = Http2Frames::open(gateway.address).expect("it accepts");
        connection.frame(Http2Frames::SETTINGS, 0, 0, &[]).expect("it reads");
        connection.frame(Http2Frames::HEADERS, Http2Frames::END_STREAM, 1, &[0x82, 0x84, 0x86]).expect("it reads");
        let sent = (0..100_000).find(|_| connection.frame(Http2Frames::CONTINUATION, 0, 1, payload).is_err());
        assert!(sent.is_some(), "the proxy reads on");
    }
    // Many lines, and a long one, over HTTP/1.
    for head in ["x: y\r\n".repeat(200_000), format!("x: {}\r\n", "y".repeat(2_000_000))] {
        let answer = super::talk(gateway.address, format!("GET / HTTP/1.1\r\nHost: a.test\r\n{head}\r\n").as_bytes());
        let answer = answer.expect("it accepts");
        assert!(answer.is_empty() || super::statuses(&answer) == [431], "{answer}");
    }
    let held = resident_kib(&gateway.process).saturating_sub(before);
    assert!(held < HELD_KIB, "{held} KiB");
    gateway.serves_others();
    gateway.logs(&["431"]);
}

#[test]
fn half_open_connections_and_slow_handshakes_hold_little() {
    let server = Server::new();
    server.serves_others();
    let most = evenkeel_process::resources::raise_open_files().expect("a limit");
    // Both ends of each connection are on this machine, but only one of them is in this process.
    let count = HALF_OPEN.min(usize::try_from(most).unwrap_or(usize::MAX).saturating_sub(500));
    assert!(count >= 1_000, "this machine lets a process open {most} files only");
    let (before, open) = (resident_kib(&server.process), descriptors(&server.process));
    let beginnings: [&[u8]; 4] = [b"", &[22], &[22, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], b"GET / HT"];
    let clients: Vec<TcpStream> = (0..count)
        .map(|number| {
            let mut client = TcpStream::connect(server.address).expect("it accepts");
            let _ = client.write_all(beginnings[number % beginnings.len()]);
            client
        })
        .collect();
    server.serves_others();
    let held = resident_kib(&server.process).saturating_sub(before);
    // 8 KiB each, with what the allocator keeps.
    assert!(held < HELD_KIB + 8 * count as u64, "{count} half-open connections hold {held} KiB");
    drop(clients);
    eventually("the descriptors to be given back", || (descriptors(&server.process) <= open + 8).then_some(()));
    server.serves_others();
}

#[test]
fn a_proxy_without_descriptors_goes_on_and_recovers() {
    let port = free_port();
    let bootstrap = format!(
        "static_resources: {{listeners: [{{name: l, address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}, \
         filter_chains: [{{filters: [{{name: http, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: http, \
         route_config: {{virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}]}}, \
         http_filters: [{{name: r, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]}}}}]}}]}}]}}"
    );
    let mut command = Command::new("bash");
    // Both limits: the proxy raises the soft one to the hard one.
    command.args(["-c", "ulimit -n 96 && exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_evenkeel")]);
    command.args(["proxy", "--concurrency", "1", "--config-yaml", &bootstrap]).process_group(0);
    let mut process = Process::spawn(&mut command);
    let address = ([127, 0, 0, 1], port).into();
    process.wait_for_port(address);
    let clients: Vec<TcpStream> = (0..200).map(|_| TcpStream::connect(address).expect("the kernel accepts")).collect();
    process.wait_for_line("cannot accept");
    drop(clients);
    eventually("an answer", || {
        let mut connection = evenkeel_testkit::Connection::open(address).ok()?;
        (connection.get("a", "/", "Connection: close\r\n").ok()?.status == 200).then_some(())
    });
    assert!(process.exited().is_none(), "{}", process.output());
}
