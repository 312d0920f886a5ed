//! An access log service that is down, does not read, or is flooded: requests are served as without it, and lost entries are
//! counted.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;

use evenkeel_testkit::{Connection, Process, eventually, free_port, free_ports};
use tempfile::TempDir;

use super::collector::Collector;
use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, cluster, endpoint};

const GRPC: &str = "type.googleapis.com/envoy.extensions.access_loggers.grpc.v3.HttpGrpcAccessLogConfig";
/// A long header value, of which a few hundred entries fill every buffer.
const LONG: usize = 8000;

/// A proxy whose requests are logged by the service at a port.
struct Scene {
    process: Process,
    port: u16,
    admin: u16,
    _folder: TempDir,
}

impl Scene {
    fn start(service: u16, buffer: &str) -> Self {
        let [port, admin] = free_ports::<2>();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file: PathBuf = folder.path().join("bootstrap.yaml");
        let log = format!(
            "{{ name: a, typed_config: {{ \"@type\": {GRPC}, additional_request_headers_to_log: [ x-long ], common_config: {{ log_name: n, \
             transport_api_version: V3, buffer_flush_interval: 0.02s, {buffer} grpc_service: {{ envoy_grpc: {{ cluster_name: als }} }} }} }} }}"
        );
        let manager = format!(
            "          access_log: [ {log} ]\n          http_filters: [ {ROUTER} ]\n{}",
            web::one_host("              - { match: { prefix: / }, direct_response: { status: 200 } }\n")
        );
        let clusters = [cluster("als", &endpoint(service, ""), HTTP2)];
        let text = web::scene(admin, &web::http_listener("l", port, &manager), &clusters);
        std::fs::write(&file, text).expect("a writable folder");
        let process = web::start(Program::Evenkeel, &file, admin, port);
        Self { process, port, admin, _folder: folder }
    }

    /// Sends that many requests, each with the long header.
    fn requests(&self, count: usize) {
        let mut client = Connection::open((Ipv4Addr::LOCALHOST, self.port).into()).expect("it accepts");
        let header = format!("x-long: {}\r\n", "x".repeat(LONG));
        for _ in 0..count {
            assert_eq!(client.get("x.test", "/", &header).expect("an answer").status, 200);
        }
    }

    /// `logs_written` and `logs_dropped`.
    fn counted(&self) -> (usize, usize) {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin));
        let page =
            Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("a page").text();
        let value = |name: &str| {
            let name = format!("access_logs.grpc_access_log.{name}: ");
            page.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok()).unwrap_or(0)
        };
        (value("logs_written"), value("logs_dropped"))
    }
}

#[test]
fn a_dead_service_costs_entries_and_later_gets_new_ones() {
    let port = free_port();
    let scene = Scene::start(port, "");
    scene.requests(20);
    eventually("what is lost to be counted", || (scene.counted().1 >= 20).then_some(()));
    // It comes up: entries arrive again without help.
    let collector = Collector::start_on(port);
    eventually("new entries", || {
        scene.requests(1);
        (collector.entries() > 0).then_some(())
    });
    // And again after it has gone.
    drop(collector);
    scene.requests(20);
    let collector = Collector::start_on(port);
    eventually("entries of a new stream", || {
        scene.requests(1);
        (collector.entries() > 0).then_some(())
    });
    assert!(
        collector.streams().iter().all(|stream| stream.logs.iter().take(1).all(|first| first.identifier.is_some()))
    );
}

#[test]
fn a_service_that_never_reads_delays_nobody() {
    let service = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    for buffer in ["", "buffer_size_bytes: 0,", "buffer_size_bytes: 200000,"] {
        let scene = Scene::start(service.local_addr().expect("bound").port(), buffer);
        // Far more than all buffers hold.
        let mut sent = 0;
        eventually("entries to be dropped", || {
            scene.requests(100);
            sent += 100;
            (scene.counted().1 > 100).then_some(())
        });
        let (written, dropped) = scene.counted();
        assert!(written + dropped >= sent && written < sent, "{buffer}: {sent} {written} {dropped}");
        // Two workers, each with a buffer, a stream's bytes, and the last entry beyond each limit.
        let most = 2 * (2 * 200_000 + 3 * 64 * 1024 + 4 * (LONG + 500));
        assert!(written * LONG < most, "{buffer}: {written} entries are held");
        scene.requests(10);
    }
}

#[test]
fn a_flood_reaches_a_service_that_reads() {
    let collector = Collector::start();
    let scene = Scene::start(collector.port, "");
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| scene.requests(500));
        }
    });
    let (written, dropped) = scene.counted();
    assert_eq!(written + dropped, 2000);
    eventually("all that was taken", || (collector.entries() >= written).then_some(()));
    assert_eq!(collector.entries(), written);
}

#[test]
fn the_last_entries_are_sent_as_the_process_ends() {
    let collector = Collector::start();
    let mut scene = Scene::start(collector.port, "");
    scene.requests(5);
    scene.process.signal(evenkeel_testkit::Signal::SIGTERM);
    eventually("all entries", || (collector.entries() == 5).then_some(()));
}
