//! Clients that hold a connection by doing nothing, or next to nothing: whatever they leave undone, they are left.

use std::io::{ErrorKind, Write as _};
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Connection, Http2Frames as H2, eventually};

use crate::harness::{Proxy, answering, http_listener, stat, static_bootstrap};

/// How long what ends after [`LIMITS`] may take on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
const LIMITS: &str = "request_headers_timeout: 0.2s\n      stream_idle_timeout: 0.2s";

fn start(body: &str, listener: &str) -> Proxy {
    let routes = format!("{}\n      {LIMITS}", answering(body))
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
