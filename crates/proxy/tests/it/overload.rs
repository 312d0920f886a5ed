//! Past its limits the proxy refuses cleanly, and serves again as soon as there is room.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::mpsc::channel;

use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Backend, Connection, Http2Frames as H2, Reply, Response, TcpEcho, eventually};

use crate::harness::{MeshTls, Proxy, answering, http_listener, stat, static_bootstrap, static_cluster};

const TO_BACKEND: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                          /}, route: {cluster: backend}}]}]}";

fn with_runtime(bootstrap: &str, key: &str, value: u32) -> String {
    format!("{bootstrap}\nlayered_runtime: {{layers: [{{name: static, static_layer: {{{key}: {value}}}}}]}}\n")
}

/// An overload manager whose heap is full however little it holds.
fn with_full_heap(bootstrap: &str, action: &str) -> String {
    format!(
        "{bootstrap}
overload_manager:
  refresh_interval: 0.05s
  resource_monitors:
  - name: heap
    typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig, max_heap_size_bytes: 1}}
  actions:
  - name: envoy.overload_actions.{action}
    triggers: [{{name: heap, threshold: {{value: 0.9}}}}]
"
    )
}

fn answering_bootstrap() -> String {
    static_bootstrap(&http_listener("web", &answering("hello"), ""), &[])
}

/// A connection that has been served once.
fn served(web: SocketAddr) -> Connection {
    let mut connection = Connection::open(web).expect("it accepts");
    assert_eq!(connection.get("test", "/", "").expect("an answer").status, 200);
    connection
}

/// The connection is reset, at once or with the first request.
fn assert_reset(web: SocketAddr) {
    let answer = Connection::open(web).and_then(|mut connection| connection.get("test", "/", ""));
    let error = match answer {
        Ok(response) => panic!("served: {}", response.status),
        Err(error) => error.kind(),
    };
    assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
}

#[test]
fn connections_past_a_limit_are_reset_and_the_others_served() {
    let check = |key: &str, counter: &str, workers: usize| {
        let proxy = Proxy::start_with(&with_runtime(&answering_bootstrap(), key, 3), workers);
        proxy.wait_live();
        let web = proxy.listener("web");
        let mut kept: Vec<_> = (0..3).map(|_| served(web)).collect();
        (0..5).for_each(|_| assert_reset(web));
        for connection in &mut kept {
            assert_eq!(connection.get("test", "/", "").expect("still served").status, 200);
        }
        assert_eq!(stat(&proxy, counter).iter().sum::<u64>(), 5, "{key}");
        drop(kept.pop());
        eventually("room for one more", || {
            let mut connection = Connection::open(web).ok()?;
            connection.get("test", "/", "").ok().filter(|response| response.status == 200)
        });
    };
    check("envoy.resource_limits.listener.web.connection_limit", ".downstream_cx_overflow", 1);
    check("envoy.resource_limits.listener.web.connection_limit", ".downstream_cx_overflow", 4);
    check("overload.global_downstream_max_connections", ".downstream_global_cx_overflow", 2);
}

/// Such as the listener that answers probes.
#[test]
fn a_listener_may_be_exempt_from_the_limit_of_the_process() {
    let listener = http_listener("web", &answering("hello"), "");
    let bootstrap = static_bootstrap(&format!("{}\nignore_global_conn_limit: true\n", listener.trim_end()), &[]);
    let proxy = Proxy::start_with(&with_runtime(&bootstrap, "overload.global_downstream_max_connections", 3), 2);
    proxy.wait_live();
    let web = proxy.listener("web");
    let _kept: Vec<_> = (0..5).map(|_| served(web)).collect();
    assert_eq!(stat(&proxy, ".downstream_global_cx_overflow").iter().sum::<u64>(), 0);
}

#[test]
fn connections_past_a_limit_are_reset_whatever_they_speak() {
    const LIMIT: &str = "envoy.resource_limits.listener.web.connection_limit";
    let check = |bootstrap: &str, served: &dyn Fn(SocketAddr) -> std::io::Result<Connection>| {
        let proxy = Proxy::start_with(&with_runtime(bootstrap, LIMIT, 3), 2);
        proxy.wait_live();
        let web = proxy.listener("web");
        let mut kept: Vec<_> = (0..3).map(|_| served(web).expect("within the limit")).collect();
        for _ in 0..5 {
            let error = served(web).err().expect("past the limit").kind();
            assert!(matches!(error, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error:?}");
        }
        assert_eq!(stat(&proxy, ".downstream_cx_overflow").iter().sum::<u64>(), 5);
        kept.pop();
        eventually("room for one more", || served(web).ok());
    };
    let tls = MeshTls::new();
    check(&static_bootstrap(&http_listener("web", &answering("hello"), &tls.listener("http/1.1")), &[]), &|web| {
        let mut connection = tls.open(web)?;
        connection.get("test", "/", "").map(|_| connection)
    });
    let echo = TcpEcho::start();
    let tcp = "name: web\naddress: {socket_address: {address: 127.0.2.11, port_value: 0}}\nfilter_chains:\n- filters:\n  - name: \
               tcp\n    typed_config: {\"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, \
               stat_prefix: tcp, cluster: echo}\n";
    check(&static_bootstrap(tcp, &[static_cluster("echo", echo.address(), "")]), &|web| {
        let mut connection = Connection::open(web)?;
        connection.send("hello")?;
        connection.read_exact(5).map(|_| connection)
    });
}

#[test]
fn requests_past_the_listeners_limit_get_503_until_there_is_room() {
    let (arrived, arrival) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let backend = Backend::start(move |request| {
        if request.target == "/hold" {
            arrived.send(()).expect("the test waits");
            released.lock().expect("not poisoned").recv_timeout(PATIENCE).expect("the test lets it go");
        }
        Reply::text("answered")
    });
    let cluster = static_cluster("backend", backend.address(), "");
    let bootstrap = static_bootstrap(&http_listener("web", TO_BACKEND, ""), &[cluster]);
    let bootstrap = with_runtime(&bootstrap, "evenkeel.resource_limits.listener.web.request_limit", 2);
    let proxy = Proxy::start_with(&bootstrap, 2);
    proxy.wait_live();
    let web = proxy.listener("web");

    let mut held = [(); 2].map(|()| Connection::open(web).expect("it accepts"));
    for connection in &mut held {
        connection.send("GET /hold HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
        arrival.recv_timeout(PATIENCE).expect("the request reaches the host");
    }
    let mut refused = Connection::open(web).expect("connections are not limited");
    for _ in 0..3 {
        let response = refused.get("test", "/", "").expect("an answer");
        assert_eq!((response.status, response.text().as_str()), (503, "envoy overloaded"));
        assert!(response.keeps_open());
    }
    assert_eq!(stat(&proxy, "http.web.downstream_rq_overload_close"), [3]);
    // Whichever of them waits first goes first.
    held.iter().for_each(|_| release.send(()).expect("requests wait"));
    for connection in &mut held {
        let response = connection.response().expect("an answer");
        assert_eq!((response.status, response.text().as_str()), (200, "answered"));
    }
    eventually("room for a request", || refused.get("test", "/", "").ok().filter(|response| response.status == 200));
}

/// An HTTP/2 client whose SETTINGS were sent.
fn http2(web: SocketAddr, settings: &[u8]) -> H2 {
    let mut client = H2::open(web).expect("it accepts");
    client.frame(H2::SETTINGS, 0, 0, settings).expect("it reads");
    client
}

#[test]
fn streams_past_the_listeners_limit_get_503_and_their_connection_lives() {
    let (arrived, arrival) = channel();
    let (release, released) = channel::<()>();
    let released = Mutex::new(released);
    let backend = Backend::start(move |_| {
        arrived.send(()).expect("the test waits");
        released.lock().expect("not poisoned").recv_timeout(PATIENCE).expect("the test lets it go");
        Reply::text("answered")
    });
    let cluster = static_cluster("backend", backend.address(), "");
    let bootstrap = static_bootstrap(&http_listener("web", TO_BACKEND, ""), &[cluster]);
    let bootstrap = with_runtime(&bootstrap, "evenkeel.resource_limits.listener.web.request_limit", 2);
    let proxy = Proxy::start_with(&bootstrap, 2);
    proxy.wait_live();
    let mut client = http2(proxy.listener("web"), b"");
    for _ in 0..2 {
        client.get().expect("it reads");
        arrival.recv_timeout(PATIENCE).expect("the request reaches the host");
    }
    let body_of = |client: &mut H2, stream: u32| loop {
        let frame = client.next_frame().expect("a frame").expect("the connection lives");
        if frame.kind == H2::DATA && frame.stream == stream && !frame.payload.is_empty() {
            return String::from_utf8(frame.payload).expect("text");
        }
    };
    let refused = client.get().expect("it reads");
    assert_eq!(body_of(&mut client, refused), "envoy overloaded");
    assert_eq!(stat(&proxy, "http.web.downstream_rq_overload_close"), [1]);
    release.send(()).expect("requests wait");
    let frame =
        eventually("an answer", || client.next_frame().expect("a frame").filter(|frame| frame.kind == H2::DATA));
    assert!(frame.stream < refused && frame.payload == b"answered", "{frame:?}");
    // Its place is free.
    eventually("room for a request", || (stat(&proxy, "http.web.downstream_rq_active") == [1]).then_some(()));
    client.get().expect("it reads");
    arrival.recv_timeout(PATIENCE).expect("the request reaches the host");
    (0..2).for_each(|_| release.send(()).expect("requests wait"));
}

/// Bytes that the connections of [`with_little_memory`] may hold.
const MEMORY_LIMIT: u32 = 400_000;

/// A proxy with a limit of memory, before a backend whose answer to `big` is far larger than that; all others are small.
fn with_little_memory(big: &'static str) -> (Proxy, Backend) {
    let backend = Backend::start(move |request| match request.target.as_str() {
        target if target == big => Reply::Fixed(200, Vec::new(), vec![b'x'; 8 << 20]),
        _ => Reply::text("small"),
    });
    let cluster = static_cluster("backend", backend.address(), "");
    let bootstrap = static_bootstrap(&http_listener("web", TO_BACKEND, ""), &[cluster]);
    let bootstrap = with_runtime(&bootstrap, "evenkeel.resource_limits.listener.web.memory_limit", MEMORY_LIMIT);
    let proxy = Proxy::start_with(&bootstrap, 2);
    proxy.wait_live();
    (proxy, backend)
}

#[test]
fn streams_without_a_window_are_cut_with_their_connection_when_the_listeners_memory_is_full() {
    let (proxy, _backend) = with_little_memory("/");
    let web = proxy.listener("web");
    let mut good = Connection::open(web).expect("it accepts");
    let mut small = || good.get("test", "/small", "").expect("an answer, if only that there is no room").status;
    assert_eq!(small(), 200);
    // `SETTINGS_INITIAL_WINDOW_SIZE` is 0 (RFC 9113 section 6.5.2).
    let mut greedy = http2(web, &[0, 4, 0, 0, 0, 0]);
    let sum = |name: &str| stat(&proxy, name).iter().sum::<u64>();
    eventually("the connection to be cut", || {
        // Once it is closed nothing can be asked for any more.
        let _ = greedy.get();
        assert!([200, 503].contains(&small()));
        (sum(".downstream_cx_memory_cut") > 0).then_some(())
    });
    drop(greedy);
    eventually("nothing to be held", || (sum(".downstream_memory_bytes") == 0).then_some(()));
    eventually("room", || (small() == 200).then_some(()));
}

#[test]
fn clients_that_do_not_read_are_cut_when_the_listeners_memory_is_full() {
    let (proxy, _backend) = with_little_memory("/big");
    let web = proxy.listener("web");
    let mut good = served(web);
    let held = || stat(&proxy, ".downstream_memory_bytes").iter().sum::<u64>();
    let cut = || stat(&proxy, ".downstream_cx_memory_cut").iter().sum::<u64>();

    let mut slow = Vec::new();
    eventually("a connection to be cut", || {
        // Past the limit new ones are reset.
        let asked = Connection::open(web)
            .and_then(|mut client| client.send("GET /big HTTP/1.1\r\nhost: test\r\n\r\n").map(|()| client));
        slow.extend(asked);
        (cut() > 0).then_some(())
    });
    eventually("what is held to be counted", || (1..=u64::from(MEMORY_LIMIT)).contains(&held()).then_some(()));
    let answer = good.get("test", "/", "").expect("an answer, if only that there is no room");
    assert!(answer.keeps_open() && [200, 503].contains(&answer.status), "{answer:?}");
    drop(slow);
    eventually("room", || good.get("test", "/", "").ok().filter(|answer| answer.status == 200));
    eventually("nothing to be held", || (held() == 0).then_some(()));
    assert_eq!(served(web).get("test", "/", "").expect("an answer").text(), "small");
}

#[test]
fn a_full_heap_begins_the_actions_that_are_configured() {
    let get =
        |proxy: &Proxy| -> Option<Response> { Connection::open(proxy.listener("web")).ok()?.get("test", "/", "").ok() };
    let check = |action: &str, seen: &dyn Fn(&Proxy) -> Option<()>| {
        let proxy = Proxy::start(&with_full_heap(&answering_bootstrap(), action));
        proxy.wait_live();
        eventually(action, || seen(&proxy));
        let text = proxy.get("/stats").text();
        let active = format!("overload.envoy.overload_actions.{action}.active: 1\n");
        assert!(text.contains(&active), "{active} not in {text}");
    };
    check("stop_accepting_requests", &|proxy| {
        get(proxy).filter(|response| response.status == 503 && response.text() == "envoy overloaded").map(|_| ())
    });
    check("disable_http_keepalive", &|proxy| {
        get(proxy).filter(|response| response.status == 200 && response.has_token("connection", "close")).map(|_| ())
    });
    check("reject_incoming_connections", &|proxy| {
        let refused = get(proxy).is_none();
        (refused && stat(proxy, ".downstream_cx_overload_reject").iter().sum::<u64>() > 0).then_some(())
    });
    check("shrink_heap", &|proxy| get(proxy).filter(|response| response.status == 200).map(|_| ()));
}

#[test]
fn while_connections_are_not_accepted_they_wait_and_are_served_later() {
    let bootstrap = format!(
        "{}
overload_manager:
  refresh_interval: 0.05s
  resource_monitors:
  - name: connections
    typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig, max_active_downstream_connections: 100}}
  actions:
  - name: envoy.overload_actions.stop_accepting_connections
    triggers: [{{name: connections, threshold: {{value: 0.02}}}}]
",
        answering_bootstrap()
    );
    let proxy = Proxy::start_with(&bootstrap, 1);
    proxy.wait_live();
    let web = proxy.listener("web");
    let kept = [served(web), served(web)];
    let line = "overload.envoy.overload_actions.stop_accepting_connections.active: 1\n";
    eventually("accepting to stop", || proxy.get("/stats").text().contains(line).then_some(()));
    let mut waiting = Connection::open(web).expect("the kernel's queue takes it");
    waiting.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("the kernel takes it");
    drop(kept);
    assert_eq!(waiting.response().expect("an answer once there is room").status, 200);
}
