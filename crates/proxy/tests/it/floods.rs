//! HTTP/2 floods: cheap actions of a client, repeated many times. Its connection is closed and counted, and no other client
//! is affected.

use evenkeel_testkit::{Connection, Http2Frames as H2, eventually};

use crate::harness::{Proxy, answering, http_listener, stat, static_bootstrap};

/// Blocks of frames after which a client that is still served has not been noticed. The kernel's buffers take some of what is
/// answered to a client that does not read.
const MOST_BLOCKS: u32 = 4_000;
/// Frames in a block.
const FRAMES: u32 = 1_000;

/// ENHANCE_YOUR_CALM (RFC 9113 section 7).
const CALM: u32 = 11;

struct Flood {
    what: &'static str,
    /// Goes up by one.
    counter: &'static str,
    /// What it begins with.
    first: fn() -> Vec<u8>,
    /// The frame of this number.
    frame: fn(u32) -> Vec<u8>,
}

/// HEADERS without END_HEADERS: more of the block is to follow.
fn half_a_head() -> Vec<u8> {
    H2::bytes(H2::HEADERS, H2::END_STREAM, 1, &[0x82])
}

/// A literal field with a name of one byte and so long a value, not entered in the table (RFC 7541 section 6.2.2).
fn literal(length: u8) -> Vec<u8> {
    [&[0, 1, b'x', length][..], &vec![b'y'; usize::from(length)]].concat()
}

/// A block that enters one field of 4 KB in the table and names it hundreds of times, one byte each.
fn bomb() -> Vec<u8> {
    // The value's length, 3900, as an integer with a prefix of seven bits (RFC 7541 section 5.1): 127 + 0x3d + 29 * 128.
    let value = [&[0x7f, 0xbd, 0x1d][..], &[b'y'; 3900]].concat();
    let block = [&[0x82, 0x84, 0x86, 0x40, 1, b'x'][..], &value, &[0xbe; 2000]].concat();
    H2::bytes(H2::HEADERS, H2::END_STREAM | H2::END_HEADERS, 1, &block)
}

const FLOODS: &[Flood] = &[
    Flood {
        what: "streams that are reset at once",
        counter: "http.web.downstream_rq_too_many_premature_resets",
        first: Vec::new,
        frame: |number| {
            let stream = 2 * number + 1;
            [H2::get_bytes(stream), H2::bytes(H2::RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        },
    },
    Flood {
        what: "a head without an end",
        counter: "http2.header_overflow",
        first: half_a_head,
        frame: |_| H2::bytes(H2::CONTINUATION, 0, 1, &literal(100)),
    },
    Flood {
        what: "a head in frames without payload",
        counter: "http2.inbound_empty_frames_flood",
        first: half_a_head,
        frame: |_| H2::bytes(H2::CONTINUATION, 0, 1, b""),
    },
    Flood {
        what: "a body in frames without payload",
        counter: "http2.inbound_empty_frames_flood",
        first: || H2::bytes(H2::HEADERS, H2::END_HEADERS, 1, &[0x83, 0x84, 0x86, 0x01, 1, b'a']),
        frame: |_| H2::bytes(H2::DATA, 0, 1, b""),
    },
    Flood {
        what: "SETTINGS whose answers are not read",
        counter: "http2.outbound_control_flood",
        first: Vec::new,
        frame: |_| H2::bytes(H2::SETTINGS, 0, 0, b""),
    },
    Flood {
        what: "PINGs whose answers are not read",
        counter: "http2.outbound_control_flood",
        first: Vec::new,
        frame: |_| H2::bytes(H2::PING, 0, 0, &[7; 8]),
    },
    Flood {
        what: "priorities",
        counter: "http2.inbound_priority_frames_flood",
        first: Vec::new,
        frame: |number| H2::bytes(H2::PRIORITY, 0, 2 * number + 1, &[0, 0, 0, 0, 7]),
    },
    Flood {
        what: "windows",
        counter: "http2.inbound_window_update_frames_flood",
        first: Vec::new,
        frame: |_| H2::bytes(H2::WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1]),
    },
];

fn start() -> Proxy {
    let proxy = Proxy::start(&static_bootstrap(&http_listener("web", &answering("hello"), ""), &[]));
    proxy.wait_live();
    proxy
}

fn hello(connection: &mut Connection) {
    let response = connection.get("test", "/", "").expect("an answer");
    assert_eq!((response.status, response.text().as_str()), (200, "hello"));
}

#[test]
fn floods_end_their_connection_and_no_other() {
    for flood in FLOODS {
        let proxy = start();
        let web = proxy.listener("web");
        let mut bystander = Connection::open(web).expect("it accepts");
        hello(&mut bystander);
        let mut client = H2::open(web).expect("it accepts");
        client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
        client.send(&(flood.first)()).expect("it reads");
        // Written until the proxy takes no more.
        let block = |number: u32| (number * FRAMES..(number + 1) * FRAMES).flat_map(flood.frame).collect::<Vec<u8>>();
        let ended = (0..MOST_BLOCKS).any(|number| client.send(&block(number)).is_err());
        let codes = client.end().unwrap_or_else(|error| panic!("{}: {error}", flood.what));
        assert!(ended || codes.contains(&CALM), "{}: {codes:?}", flood.what);
        assert_eq!(stat(&proxy, flood.counter), [1], "{}", flood.what);
        hello(&mut bystander);
        hello(&mut Connection::open(web).expect("it accepts"));
        for gauge in ["http.web.downstream_cx_http2_active", "http.web.downstream_rq_active"] {
            eventually("nothing to be left", || (stat(&proxy, gauge) == [0]).then_some(()));
        }
    }
}

#[test]
fn a_head_that_unpacks_to_megabytes_is_refused_and_its_connection_lives() {
    let proxy = start();
    let web = proxy.listener("web");
    let mut client = H2::open(web).expect("it accepts");
    client.frame(H2::SETTINGS, 0, 0, b"").expect("it reads");
    client.send(&bomb()).expect("it reads");
    client.send(&H2::get_bytes(3)).expect("it reads");
    let (mut bombed, mut served) = (false, false);
    while !(bombed && served) {
        let frame = client.next_frame().expect("a frame").expect("the connection lives");
        let answers = [H2::HEADERS, H2::RST_STREAM].contains(&frame.kind);
        bombed |= answers && frame.stream == 1;
        served |= frame.kind == H2::DATA && frame.stream == 3 && frame.payload == b"hello";
    }
    assert_eq!(stat(&proxy, "http2.header_overflow"), [1]);
    assert_eq!(stat(&proxy, "http.web.downstream_rq_total"), [2]);
    assert_eq!(stat(&proxy, "http.web.downstream_rq_4xx"), [1], "the bomb was answered");
}
