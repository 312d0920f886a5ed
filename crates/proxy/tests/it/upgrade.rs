//! One process takes over from another under load, and no client notices.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use evenkeel_proxy::run_until;
use evenkeel_testkit::load::{Stop, on_new_connections, on_one_connection};
use evenkeel_testkit::{Backend, Connection, Reply, TcpEcho, eventually};

use crate::harness::{
    MeshTls, Proxy, http_listener, http_listener_at, protocol, settings, stat, static_bootstrap, static_cluster,
};

const TO_WEB: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, route: {cluster: web}}]}]}";

const TCP: &str = r#"
name: tcp
address: {socket_address: {address: 127.0.2.9, port_value: 0}}
filter_chains:
- filters:
  # It has nothing to do for these connections, so they move.
  - name: istio.metadata_exchange
    typed_config: {"@type": type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange, protocol: istio-peer-exchange}
  - name: envoy.filters.network.tcp_proxy
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy
      stat_prefix: tcp
      cluster: echo
"#;

fn bootstrap(web: SocketAddr, echo: SocketAddr, more: &[String]) -> String {
    let item = |yaml: &str| {
        let indented = yaml.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
        format!("  -\n{indented}")
    };
    let clusters = item(&static_cluster("web", web, "")) + &item(&static_cluster("echo", echo, ""));
    let listeners = [http_listener("web", TO_WEB, ""), TCP.to_owned()]
        .iter()
        .chain(more)
        .map(|yaml| item(yaml))
        .collect::<String>();
    format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\nstatic_resources:\n  \
         clusters:\n{clusters}  listeners:\n{listeners}"
    )
}

fn start(bootstrap: &str, socket: &Path, workers: usize) -> Proxy {
    let proxy = Proxy::start_as(bootstrap, |settings| {
        settings.concurrency = workers;
        settings.handover = Some(socket.to_owned());
    });
    proxy.wait_live();
    proxy
}

/// One TCP connection with bytes in flight all the time, which come back as they were sent.
fn stream(tcp: SocketAddr, stop: &AtomicBool) -> usize {
    let mut sending = Connection::socket(tcp).expect("it accepts");
    let mut receiving = sending.try_clone().expect("a socket");
    let byte = |at: usize| (at % 251) as u8;
    std::thread::scope(|scope| {
        let sent = scope.spawn(move || {
            let mut sent = 0;
            while !stop.load(Ordering::Relaxed) {
                let chunk: Vec<u8> = (sent..sent + 7001).map(byte).collect();
                sending.write_all(&chunk).expect("the stream is open");
                sent += chunk.len();
            }
            sending.shutdown(Shutdown::Write).expect("the stream is open");
            sent
        });
        let (mut received, mut chunk) = (0, vec![0; 64 * 1024]);
        loop {
            let count = receiving.read(&mut chunk).expect("the stream is open");
            if count == 0 {
                break;
            }
            let expected = (received..received + count).map(byte);
            assert!(chunk[..count].iter().copied().eq(expected), "other bytes after {received}");
            received += count;
        }
        let sent = sent.join().expect("the sender does not fail");
        assert_eq!(sent, received);
        received
    })
}

#[test]
fn several_upgrades_under_load_cost_nothing() {
    let web = Backend::start(|request| Reply::text(request.target.clone()));
    let echo = TcpEcho::start();
    let bootstrap = bootstrap(web.address(), echo.address(), &[]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("private").join("proxy.sock");
    let mut proxy = start(&bootstrap, &socket, 2);
    let (web, tcp, admin) = (proxy.listener("web"), proxy.listener("tcp"), proxy.admin);
    let mut quiet = Connection::open(web).expect("it accepts");
    assert_eq!(quiet.get("test", "/before", "").expect("an answer").text(), "/before");
    // Nobody has said yet what it is to be.
    let mut silent = Connection::open(web).expect("it accepts");
    // Half a head has arrived when the first upgrade begins.
    let mut half = Connection::open(web).expect("it accepts");
    half.send("GET /half HTTP/1.1\r\nho").expect("it reads");

    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(2));
    std::thread::scope(|scope| {
        let ending = Stop(&stop);
        let kept = [(); 2].map(|()| scope.spawn(|| on_one_connection(web, &stop, &asked)));
        let new = scope.spawn(|| on_new_connections(web, &stop, &asked));
        let streams = [(); 2].map(|()| scope.spawn(|| stream(tcp, &stop)));
        for workers in [1, 3, 2] {
            let before = asked.load(Ordering::Relaxed);
            let next = start(&bootstrap, &socket, workers);
            assert_eq!((next.listener("web"), next.listener("tcp"), next.admin), (web, tcp, admin));
            if workers == 1 {
                half.send("st: test\r\n\r\n").expect("it reads");
                assert_eq!(half.response().expect("an answer").text(), "/half");
            }
            eventually("the process before to end", || proxy.has_ended().then_some(()));
            std::mem::replace(&mut proxy, next).stop().expect("a clean end");
            eventually("more requests", || (asked.load(Ordering::Relaxed) > before + 50).then_some(()));
            let failed = kept.iter().any(|client| client.is_finished()) || new.is_finished();
            assert!(!failed && !streams.iter().any(|stream| stream.is_finished()), "a client has failed");
        }
        drop(ending);
        kept.into_iter().for_each(|client| client.join().expect("no failure"));
        new.join().expect("no failure");
        for stream in streams {
            assert!(stream.join().expect("no failure") > 7001);
        }
    });
    assert_eq!(quiet.get("test", "/after", "").expect("the same connection").text(), "/after");
    assert_eq!(silent.get("test", "/first", "").expect("the same connection").text(), "/first");
    // What all four processes counted.
    let asked = asked.load(Ordering::Relaxed) as u64 + 2;
    eventually("all requests to be counted", || {
        (stat(&proxy, "http.web.downstream_rq_total") == [asked]).then_some(())
    });
    eventually("both streams to be counted once", || {
        (stat(&proxy, "tcp.tcp.downstream_cx_total") == [2]).then_some(())
    });
    drop((quiet, half, silent));
    for gauge in ["http.web.downstream_cx_active", "tcp.tcp.downstream_cx_active"] {
        eventually("nothing to be open", || (stat(&proxy, gauge) == [0]).then_some(()));
    }
}

/// A listener for TCP, with the fields of a filter chain.
fn encrypted_tcp(transport: &str) -> String {
    format!("{}{transport}", TCP.replace("name: tcp", "name: secure-tcp").replace("127.0.2.9", "127.0.2.10"))
        .replace("stat_prefix: tcp", "stat_prefix: secure-tcp")
}

/// Asks over connections that last until the proxy asks its client to leave; returns how often that was.
fn kept_until_asked(dial: &(dyn Fn() -> Connection + Sync), stop: &AtomicBool, asked: &AtomicUsize) -> usize {
    let (mut connection, mut left) = (dial(), 0);
    while !stop.load(Ordering::Relaxed) {
        let turn = asked.fetch_add(1, Ordering::Relaxed);
        let response = connection.get("test", &format!("/{turn}"), "").expect("an answer");
        assert_eq!((response.status, response.text()), (200, format!("/{turn}")));
        assert_eq!(response.header("x-peer"), Some(MeshTls::CLIENT));
        if !response.keeps_open() {
            (connection, left) = (dial(), left + 1);
        }
    }
    left
}

/// TLS and HTTP/2 have state that does not travel: such connections are asked to end, each as its protocol has it, while
/// others are accepted by the successor.
#[test]
fn encrypted_and_multiplexed_connections_drain_without_an_error() {
    let (application, echo, tls) =
        (Backend::start(|request| Reply::text(request.target.clone())), TcpEcho::start(), MeshTls::new());
    let named = TO_WEB.replace(
        "name: local,",
        "name: local, response_headers_to_add: [{header: {key: x-peer, value: '%DOWNSTREAM_PEER_URI_SAN%'}}],",
    );
    let secure = http_listener("secure", &format!("drain_timeout: 0.2s\n      {named}"), &tls.listener("h2, http/1.1"));
    let more = [secure, encrypted_tcp(&tls.listener("istio"))];
    let bootstrap = bootstrap(application.address(), echo.address(), &more);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("private").join("proxy.sock");
    let mut proxy = start(&bootstrap, &socket, 2);
    let (secure, secure_tcp) = (proxy.listener("secure"), proxy.listener("secure-tcp"));
    // Its clients' requests share HTTP/2 connections to the proxy that is replaced.
    let http2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
    let to_proxy = static_cluster("web", secure, &format!("{http2}, {}", tls.cluster("h2")));
    let gateway = Proxy::start(&static_bootstrap(&http_listener("gateway", TO_WEB, ""), &[to_proxy]));
    gateway.wait_live();
    let entry = gateway.listener("gateway");

    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    let direct = || tls.open(secure).expect("it accepts");
    let multiplexed = || Connection::open(entry).expect("it accepts");
    std::thread::scope(|scope| {
        let ending = Stop(&stop);
        let encrypted = [(); 2].map(|()| scope.spawn(|| kept_until_asked(&direct, &stop, &asked)));
        let shared = [(); 2].map(|()| scope.spawn(|| kept_until_asked(&multiplexed, &stop, &asked)));
        for workers in [1, 3, 2] {
            let before = asked.load(Ordering::Relaxed);
            // What cannot be asked to end stays with the process that has it.
            let mut stream = tls.open(secure_tcp).expect("it accepts");
            let mut echoes = |word: &str| {
                stream.send(word).expect("the stream is open");
                assert_eq!(stream.read_exact(word.len()).expect("the stream is open"), word.as_bytes());
            };
            echoes("before");
            let next = start(&bootstrap, &socket, workers);
            eventually("load on the successor", || (asked.load(Ordering::Relaxed) > before + 50).then_some(()));
            assert!(!proxy.has_ended(), "a stream is still open");
            echoes("meanwhile");
            drop(stream);
            eventually("the process before to end", || proxy.has_ended().then_some(()));
            std::mem::replace(&mut proxy, next).stop().expect("a clean end");
            let failed = encrypted.iter().chain(&shared).any(|client| client.is_finished());
            assert!(!failed, "a client has failed");
        }
        drop(ending);
        // Each upgrade asked each client to leave, once; behind the gateway nobody noticed.
        assert_eq!(encrypted.map(|client| client.join().expect("no failure")), [3; 2]);
        assert_eq!(shared.map(|client| client.join().expect("no failure")), [0; 2]);
    });
    assert_eq!(stat(&gateway, "http.gateway.downstream_rq_5xx"), [0]);
    assert!(stat(&gateway, "cluster.web.upstream_cx_http2_total").iter().sum::<u64>() >= 4);
}

#[test]
fn connections_taken_over_count_against_the_listeners_limit() {
    let web = Backend::start(|request| Reply::text(request.target.clone()));
    let echo = TcpEcho::start();
    let limit = "layered_runtime: {layers: [{name: static, static_layer: {envoy.resource_limits.listener.web.connection_limit: 2}}]}";
    let bootstrap = format!("{}\n{limit}\n", bootstrap(web.address(), echo.address(), &[]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("private").join("proxy.sock");
    let proxy = start(&bootstrap, &socket, 2);
    let web = proxy.listener("web");
    let served = || {
        let mut connection = Connection::open(web).ok()?;
        connection.get("test", "/", "").ok().map(|_| connection)
    };
    let mut kept = [served().expect("an answer"), served().expect("an answer")];
    assert!(served().is_none(), "more than the limit");
    let next = start(&bootstrap, &socket, 2);
    eventually("the process before to end", || proxy.has_ended().then_some(()));
    for connection in &mut kept {
        assert_eq!(connection.get("test", "/kept", "").expect("the same connection").text(), "/kept");
    }
    assert!(served().is_none(), "those that were taken over count");
    drop(kept);
    eventually("room", served);
    drop(proxy);
    next.stop().expect("a clean end");
}

#[test]
fn a_successor_that_cannot_start_leaves_everything_as_it_was() {
    let web = Backend::start(|request| Reply::text(request.target.clone()));
    let echo = TcpEcho::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("private").join("proxy.sock");
    let good = bootstrap(web.address(), echo.address(), &[]);
    let proxy = start(&good, &socket, 2);
    let mut connection = Connection::open(proxy.listener("web")).expect("it accepts");
    let mut check = |what: &str| {
        let response = connection.get("test", what, "").expect("an answer");
        assert_eq!((response.text().as_str(), response.keeps_open()), (what, true));
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let other = http_listener_at(taken.local_addr().expect("bound"), "other", TO_WEB, "");
    let refused = bootstrap(web.address(), echo.address(), &[other]);
    for (what, text) in [("/syntax", "static_resources: ["), ("/taken", &refused)] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut settings = settings(text, &folder, None);
        settings.handover = Some(socket.clone());
        let (_stop, stopped) = tokio::sync::oneshot::channel();
        run_until(settings, stopped).expect_err("a broken configuration");
        check(what);
        assert_eq!((proxy.get("/ready").status, proxy.has_ended()), (200, false));
    }
    let next = start(&good, &socket, 2);
    check("/after");
    eventually("the process before to end", || proxy.has_ended().then_some(()));
    drop((proxy, connection));
    next.stop().expect("a clean end");
}
