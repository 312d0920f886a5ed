//! Clients that hold a connection by doing little or nothing: each is disconnected, whatever it leaves undone.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Backend, Connection, Http2Frames as H2, Reply, eventually};

use crate::harness::{Proxy, answering, http_listener, stat, static_bootstrap, static_cluster};

/// How long what ends after [`LIMITS`] may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const LIMITS: &str = "request_headers_timeout: 0.2s\n      stream_idle_timeout: 0.2s";

fn start(body: &str, listener: &str) -> Proxy {
    start_with(body, listener, "")
}

/// `manager` are more fields of the connection manager.
fn start_with(body: &str, listener: &str, manager: &str) -> Proxy {
    let routes = format!("{}\n      {LIMITS}\n      {manager}", answering(body))
        .replace("name: local,", "name: local, max_direct_response_body_size_bytes: 65536,");
    let proxy = Proxy::start(&static_bootstrap(&http_listener("web", &routes, listener), &[]));
    proxy.wait_live();
    proxy
}

#[test]
fn a_beginning_is_not_waited_for() {
    let proxy = start("hello", "");
    for beginning in ["P", "PRI", "PRI * HTTP/2.0\r\n\r\nSM", "POST", "GET / HTTP/1.1\r\nhost: a\r\nx"] {
        let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
        client.send(beginning).expect("it reads");
        let end = client.read_to_end().map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        // What may be a request's is answered as one.
        let end = end.unwrap_or_else(|error| panic!("{beginning:?}: {error}"));
        assert!(end.is_empty() || end.starts_with("HTTP/1.1 408 "), "{beginning:?}: {end}");
    }
}

/// What may be the beginning of a head has the limits of a head, and those of a connection that has made no request.
#[test]
fn a_beginning_has_the_limits_of_a_head() {
    let check = |limits: &str, listener: &str| {
        let manager = format!("{}\n      {limits}", answering("hello"));
        let proxy = Proxy::start(&static_bootstrap(&http_listener("web", &manager, listener), &[]));
        proxy.wait_live();
        for beginning in ["P", "PRI", "PRI * HTTP/2.0\r\n\r\nSM"] {
            let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
            client.send(beginning).expect("it reads");
            let end = client.read_to_end().unwrap_or_else(|error| panic!("{limits}, {beginning:?}: {error}"));
            assert!(end.is_empty() || end.starts_with(b"HTTP/1.1 408 "), "{limits}, {beginning:?}");
        }
    };
    let inspector = "listener_filters: [{name: http, typed_config: {\"@type\": \
                     type.googleapis.com/envoy.extensions.filters.listener.http_inspector.v3.HttpInspector}}]\n\
                     listener_filters_timeout: 0s\ncontinue_on_listener_filters_timeout: true";
    for listener in ["", inspector] {
        check("request_headers_timeout: 0.2s", listener);
        check("request_timeout: 0.2s", listener);
        check("stream_idle_timeout: 0.2s", listener);
    }
    check("common_http_protocol_options: {idle_timeout: 0.2s}\n      request_headers_timeout: 30s", "");
}

/// The beginning of an HTTP/2 connection, or of a head on it: GOAWAY says which request there was, if it was one.
#[test]
fn an_http2_beginning_is_not_waited_for() {
    let listener = start("hello", "");
    let known = start_with("hello", "", "codec_type: HTTP2");
    let settings = H2::bytes(H2::SETTINGS, 0, 0, b"");
    let get = H2::get_bytes(1);
    let part = |flags| [settings.clone(), H2::bytes(H2::HEADERS, flags, 1, &[0x82, 0x84])].concat();
    let continued = [part(H2::END_STREAM), H2::bytes(H2::CONTINUATION, 0, 1, &[0x86])].concat();
    let cut = [&settings[..], &get[..get.len() - 1]].concat();
    let open = H2::bytes(H2::HEADERS, H2::END_HEADERS, 1, &[0x83, 0x84, 0x86, 0x01, 1, b'a']);
    let trailers = [settings.clone(), open, H2::bytes(H2::HEADERS, H2::END_STREAM, 1, b"")].concat();
    let mut late = 0;
    for (what, proxy, frames, is_request) in [
        ("no SETTINGS", &listener, Vec::new(), false),
        ("half of SETTINGS", &listener, settings[..5].to_vec(), false),
        ("no END_HEADERS", &listener, part(H2::END_STREAM), true),
        ("no last CONTINUATION", &listener, continued, true),
        ("half of a HEADERS frame", &listener, cut, true),
        ("trailers without END_HEADERS", &listener, trailers, false),
    ] {
        let mut client = H2::open(proxy.listener("web")).expect("it accepts");
        client.send(&frames).expect("it reads");
        let (mut statuses, mut last) = (0, None);
        while let Ok(Some(frame)) = client.next_frame() {
            statuses += u32::from(frame.kind == H2::HEADERS && frame.payload.ends_with(b"408"));
            if frame.kind == H2::GOAWAY {
                last = frame.payload.first_chunk().copied().map(u32::from_be_bytes);
            }
        }
        assert_eq!(statuses, u32::from(is_request), "{what}");
        assert_eq!(last, Some(u32::from(what.starts_with("trailers") || is_request)), "{what}");
        late += u64::from(is_request);
        eventually(&format!("{what} to be counted"), || {
            (stat(proxy, "http.web.downstream_rq_header_timeout") == [late]).then_some(())
        });
    }
    let mut client = Connection::open(known.listener("web")).expect("it accepts");
    client.send("PRI * HTTP/2.0\r\n").expect("it reads");
    let end = client.read_to_end().expect("it ends");
    assert!(end.len() > 17 && end[end.len() - 17 + 3] == H2::GOAWAY, "half a preface: {end:?}");
}

/// Those that have all they owe may do nothing for as long as others.
#[test]
fn whole_heads_are_not_late() {
    let proxy = start("hello", "");
    let mut client = H2::open(proxy.listener("web")).expect("it accepts");
    client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    let mut others = H2::open(proxy.listener("web")).expect("it accepts");
    // Longer than its head might take.
    others.end().expect("it ends");
    client.frame(H2::PING, 0, 0, b"and then").expect("it reads");
    while client.next_frame().expect("a frame").expect("the connection lives").kind != H2::PING {}
}

/// Answers of an upstream that are not read, however much of them there is, where streams may be idle for ever; the last bytes of an
/// answer are left to themselves over HTTP/1.
#[test]
fn an_answer_of_an_upstream_that_is_not_read_is_given_up() {
    const CLIENTS: usize = 10;
    let backend = Backend::start(|request| {
        let size = request.target.trim_start_matches('/').parse().expect("a number");
        Reply::text("x".repeat(size))
    });
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
         route: {{cluster: backend, idle_timeout: 0s, timeout: 0s}}}}]}}]}}\n      {LIMITS}"
    );
    let clusters = [static_cluster("backend", backend.address(), "")];
    let bootstrap = static_bootstrap(&http_listener("web", &routes, ""), &clusters);
    for size in [30 << 20, 12 << 10] {
        let proxy = Proxy::start_with(&bootstrap, 1);
        proxy.wait_live();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| {
                let mut client = Connection::socket(proxy.listener("web")).expect("it accepts");
                client.set_write_timeout(Some(Duration::from_secs(1))).expect("an option");
                // As many as it takes to fill what lies between.
                let requests = format!("GET /{size} HTTP/1.1\r\nhost: a\r\n\r\n").repeat(1000);
                let _ = client.write_all(requests.as_bytes());
                client
            })
            .collect();
        eventually(&format!("HTTP/1 clients to be given up on {size} bytes"), || {
            let given_up = stat(&proxy, "http.web.downstream_rq_idle_timeout") == [CLIENTS as u64];
            (given_up && stat(&proxy, "http.web.downstream_cx_active") == [0]).then_some(())
        });
        drop(clients);

        let mut client = H2::open(proxy.listener("web")).expect("it accepts");
        client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
        let path = H2::field(":path", &format!("/{size}"));
        let head = [&[0x82, 0x86, 0x01, 1, b'a'][..], &path[..]].concat();
        let whole = H2::END_STREAM | H2::END_HEADERS;
        (0..100).for_each(|number| client.frame(H2::HEADERS, whole, 2 * number + 1, &head).expect("it reads"));
        eventually("HTTP/2 streams to be reset", || (stat(&proxy, "http2.tx_flush_timeout") != [0]).then_some(()));
        eventually("no stream to be left", || (stat(&proxy, "http2.streams_active") == [0]).then_some(()));
    }
}

/// Answers of the proxy's own that are not read, from a client that goes on asking.
#[test]
fn an_answer_that_is_not_read_is_given_up() {
    let proxy = start(&"x".repeat(60_000), "");
    let mut socket = Connection::socket(proxy.listener("web")).expect("it accepts");
    socket.set_write_timeout(Some(PATIENCE)).expect("a timeout can be set");
    let requests = "GET / HTTP/1.1\r\nhost: a\r\n\r\n".repeat(100);
    let stuck = loop {
        if let Err(error) = socket.write_all(requests.as_bytes()) {
            break error.kind();
        }
    };
    assert!(matches!(stuck, ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{stuck}");
    eventually("the connection to be gone", || (stat(&proxy, "http.web.downstream_cx_active") == [0]).then_some(()));
}

#[test]
fn an_answer_without_a_window_is_given_up() {
    let proxy = start("hello", "");
    let mut client = H2::open(proxy.listener("web")).expect("it accepts");
    // INITIAL_WINDOW_SIZE 0.
    client.frame(H2::SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]).expect("it reads");
    let stream = client.get().expect("it reads");
    let reset = loop {
        let frame = client.next_frame().expect("a frame").expect("the connection lives");
        if frame.kind == H2::RST_STREAM {
            break frame.stream;
        }
    };
    assert_eq!(reset, stream);
}

#[test]
fn a_proxy_protocol_header_is_not_waited_for() {
    let filters = "listener_filters_timeout: 0.2s\nlistener_filters:\n- name: pp\n  typed_config: {\"@type\": \
                   type.googleapis.com/envoy.extensions.filters.listener.proxy_protocol.v3.ProxyProtocol}\n";
    let proxy = start("hello", filters);
    for beginning in ["", "PROXY TCP4 1.1.1.1", "\r\n\r\n\0\r\nQUIT\n"] {
        let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
        client.send(beginning).expect("it reads");
        let end = client.ending(PATIENCE).expect("a timeout can be set");
        assert!(matches!(end, Ending::Closed | Ending::Reset), "{beginning:?}: {end:?}");
    }
}
