//! The protective limits of an HTTP/2 connection are configurable: each applies exactly at its configured number, which is
//! not the default here.

use std::net::TcpListener;
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Connection, Http2Frames as H2, eventually};

use crate::harness::{Proxy, answering, http_listener, protocol, stat, static_bootstrap, static_cluster};

/// ENHANCE_YOUR_CALM and REFUSED_STREAM (RFC 9113 section 7).
const CALM: u32 = 11;
const REFUSED: u32 = 7;

struct Limit {
    what: &'static str,
    /// What the connection manager says.
    manager: &'static str,
    /// What the bootstrap's runtime layer says.
    runtime: &'static str,
    /// Goes up by one.
    counter: &'static str,
    /// A client's frames, of which so many are just allowed.
    frames: fn(u32) -> Vec<u8>,
    most: u32,
}

/// HEADERS of a request that goes on.
fn open(stream: u32) -> Vec<u8> {
    H2::bytes(H2::HEADERS, H2::END_HEADERS, stream, &[0x83, 0x84, 0x86, 0x01, 1, b'a'])
}

fn many(count: u32, frame: impl Fn(u32) -> Vec<u8>) -> Vec<u8> {
    (0..count).flat_map(frame).collect()
}

fn pings(count: u32) -> Vec<u8> {
    many(count, |_| H2::bytes(H2::PING, 0, 0, &[7; 8]))
}

const LIMITS: &[Limit] = &[
    Limit {
        what: "frames without payload",
        manager: "http2_protocol_options: {max_consecutive_inbound_frames_with_empty_payload: 3}",
        runtime: "",
        counter: "http2.inbound_empty_frames_flood",
        frames: |count| [open(1), many(count, |_| H2::bytes(H2::DATA, 0, 1, b""))].concat(),
        most: 3,
    },
    Limit {
        what: "priorities, before any stream",
        manager: "http2_protocol_options: {max_inbound_priority_frames_per_stream: 4}",
        runtime: "",
        counter: "http2.inbound_priority_frames_flood",
        frames: |count| many(count, |number| H2::bytes(H2::PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 7])),
        most: 4,
    },
    Limit {
        what: "windows: five, two for a stream, and none for DATA that was not sent",
        manager: "http2_protocol_options: {max_inbound_window_update_frames_per_data_frame_sent: 2}",
        runtime: "",
        counter: "http2.inbound_window_update_frames_flood",
        frames: |count| [open(1), many(count, |_| H2::bytes(H2::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]))].concat(),
        most: 7,
    },
    Limit {
        what: "answers that wait to be sent",
        manager: "http2_protocol_options: {max_outbound_control_frames: 8}",
        runtime: "",
        counter: "http2.outbound_control_flood",
        frames: pings,
        most: 8,
    },
    Limit {
        what: "frames that wait to be sent",
        manager: "http2_protocol_options: {max_outbound_frames: 9}",
        runtime: "",
        counter: "http2.outbound_flood",
        frames: pings,
        most: 9,
    },
    Limit {
        what: "streams that are reset at once: half of 8",
        manager: "",
        runtime: "overload.premature_reset_total_stream_count: 8",
        counter: "http.web.downstream_rq_too_many_premature_resets",
        frames: |count| {
            many(count, |number| {
                let stream = 2 * number + 1;
                [open(stream), H2::bytes(H2::RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
            })
        },
        most: 3,
    },
];

fn start(manager: &str, runtime: &str) -> Proxy {
    let listener = http_listener("web", &format!("{}\n      {manager}", answering("hello")), "");
    let mut bootstrap = static_bootstrap(&listener, &[]);
    if !runtime.is_empty() {
        bootstrap += &format!("\nlayered_runtime: {{layers: [{{name: static, static_layer: {{{runtime}}}}}]}}\n");
    }
    let proxy = Proxy::start(&bootstrap);
    proxy.wait_live();
    proxy
}

fn connect(proxy: &Proxy) -> H2 {
    let mut client = H2::open(proxy.listener("web")).expect("it accepts");
    client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    // What a connection begins with has left before its limits are tried.
    while client.next_frame().expect("a frame").expect("the connection lives").flags & 1 == 0 {}
    client
}

fn wait_for_pongs(client: &mut H2, count: u32, what: &str) {
    let mut pongs = 0;
    while pongs < count {
        let frame = client.next_frame().expect("a frame").unwrap_or_else(|| panic!("{what}: ended within its limit"));
        pongs += u32::from(frame.kind == H2::PING);
    }
}

#[test]
fn each_limit_holds_at_its_number() {
    for limit in LIMITS {
        let proxy = start(limit.manager, limit.runtime);
        let mut within = connect(&proxy);
        within.send(&(limit.frames)(limit.most)).expect("it reads");
        // One more at the same time would be one too many where it is answers that are counted.
        if limit.counter.starts_with("http2.outbound") {
            wait_for_pongs(&mut within, limit.most, limit.what);
        }
        within.frame(H2::PING, 0, 0, b"and then").expect("it reads");
        wait_for_pongs(&mut within, 1, limit.what);
        assert_eq!(stat(&proxy, limit.counter), [0], "{}", limit.what);
        let mut beyond = connect(&proxy);
        beyond.send(&(limit.frames)(limit.most + 1)).expect("it reads");
        assert_eq!(beyond.end().expect("it ends"), [CALM], "{}", limit.what);
        // The end may be seen before it is counted.
        eventually(limit.what, || (stat(&proxy, limit.counter) == [1]).then_some(()));
    }
}

/// Frames of stream `stream` that end a request: its status or its reset.
fn outcomes(client: &mut H2, streams: usize) -> Vec<(u32, Result<u8, u32>)> {
    let mut outcomes = Vec::new();
    while outcomes.len() < streams {
        let frame = client.next_frame().expect("a frame").expect("the connection lives");
        match frame.kind {
            H2::HEADERS => outcomes.push((frame.stream, Ok(frame.payload.first().copied().unwrap_or(0)))),
            H2::RST_STREAM if outcomes.iter().all(|(stream, _)| *stream != frame.stream) => {
                let code = frame.payload.try_into().map_or(u32::MAX, u32::from_be_bytes);
                outcomes.push((frame.stream, Err(code)));
            }
            _ => {}
        }
    }
    outcomes.sort_unstable();
    outcomes
}

/// `:status: 200` in a header block (RFC 7541 appendix A).
const OK: u8 = 0x88;

#[test]
fn streams_beyond_the_limit_are_refused_and_told_so() {
    let proxy = start("http2_protocol_options: {max_concurrent_streams: 2}", "");
    let mut client = connect(&proxy);
    client.send(&many(3, |number| open(2 * number + 1))).expect("it reads");
    assert_eq!(outcomes(&mut client, 3), [(1, Ok(OK)), (3, Ok(OK)), (5, Err(REFUSED))]);
}

#[test]
fn heads_beyond_the_limits_are_answered_and_their_connection_lives() {
    let fields = |count: u32, length: u8| -> Vec<u8> {
        let field = [&[0, 1, b'x', length][..], &vec![b'y'; usize::from(length)]].concat();
        [vec![0x82, 0x84, 0x86, 0x01, 1, b'a'], field.repeat(count as usize)].concat()
    };
    let ask = |stream: u32, block: &[u8]| H2::bytes(H2::HEADERS, H2::END_STREAM | H2::END_HEADERS, stream, block);
    // Four fields there are in any case, of about 42 bytes each as they are counted; one of 100 bytes counts 133.
    for (manager, within, beyond) in [
        ("max_request_headers_kb: 1", fields(6, 100), fields(7, 100)),
        ("common_http_protocol_options: {max_headers_count: 20}", fields(16, 1), fields(17, 1)),
    ] {
        let proxy = start(manager, "");
        let mut client = connect(&proxy);
        client.send(&[ask(1, &within), ask(3, &beyond), ask(5, &within)].concat()).expect("it reads");
        let statuses: Vec<_> = outcomes(&mut client, 3).into_iter().map(|(_, outcome)| outcome == Ok(OK)).collect();
        assert_eq!(statuses, [true, false, true], "{manager}");
        assert_eq!(stat(&proxy, "http2.header_overflow"), [1], "{manager}");
    }
}

const KEEPALIVE: &str = "connection_keepalive: {interval: 0.05s, timeout: 0.2s}";

#[test]
fn a_client_that_answers_pings_stays_and_one_that_does_not_is_gone() {
    let proxy = start(&format!("http2_protocol_options: {{{KEEPALIVE}}}"), "");
    let mut answers = connect(&proxy);
    let mut silent = connect(&proxy);
    let web = "http.web.downstream_cx_http2_active";
    // The one that is silent reads, and yet is not there.
    std::thread::scope(|scope| {
        let silent = scope.spawn(move || silent.end().expect("it ends"));
        while !silent.is_finished() {
            let ping = answers.next_frame().expect("a frame").expect("the connection lives");
            if ping.kind == H2::PING {
                answers.frame(H2::PING, 1, 0, &ping.payload).expect("it reads");
            }
        }
    });
    assert_eq!(stat(&proxy, "http2.keepalive_timeout"), [1]);
    assert_eq!(stat(&proxy, web), [1]);
    let stream = answers.get().expect("it reads");
    while answers.next_frame().expect("a frame").expect("the connection lives").stream != stream {}
}

#[test]
fn a_host_that_does_not_answer_pings_is_given_up_before_the_requests_time_is_over() {
    let host = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = host.local_addr().expect("bound");
    let routes = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                  route: {cluster: backend, timeout: 0s}}]}]}";
    let http2 = protocol(&format!("explicit_http_config: {{http2_protocol_options: {{{KEEPALIVE}}}}}"));
    let proxy = Proxy::start(&static_bootstrap(
        &http_listener("web", routes, ""),
        &[static_cluster("backend", address, &http2)],
    ));
    proxy.wait_live();
    let mut client = Connection::open(proxy.listener("web")).expect("it accepts");
    client.send("GET / HTTP/1.1\r\nhost: test\r\n\r\n").expect("it reads");
    // Its kernel takes all that is sent; nobody reads it.
    let (_host, _) = host.accept().expect("the proxy connects");
    let response = client.response().expect("an answer");
    assert_eq!(response.status, 503, "{}", response.text());
    assert!(response.text().contains("connection termination"), "{}", response.text());
    assert_eq!(client.ending(Duration::from_millis(100)).expect("a timeout can be set"), Ending::Open);
    eventually("it to be counted", || (stat(&proxy, "cluster.backend.http2.keepalive_timeout") == [1]).then_some(()));
}
