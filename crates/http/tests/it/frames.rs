//! Tables of frames: input, events, and output.

use evenkeel_http::h2::{Connection, ConnectionError, Counter, Fault, Options, PREFACE, Reason, StreamKey, Violation};
use evenkeel_http::{Framing, RequestHead, ResponseHead, Underscores};

use crate::script::{Event, Script};
use crate::wire::*;

const NO_PADDING_PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

fn small() -> Options {
    Options {
        initial_stream_window_size: 65_535,
        initial_connection_window_size: 65_535,
        max_concurrent_streams: 4,
        max_header_list_bytes: 2_000,
        enable_connect_protocol: true,
        ..Options::default()
    }
}

fn forget_output(connection: &mut Connection) {
    connection.written(connection.output().len());
}

/// A server that has seen the client's preface and settings.
fn server(options: Options) -> Connection {
    let mut connection = Connection::server(options);
    let input = [PREFACE.as_slice(), &settings(&[])].concat();
    assert_eq!(connection.receive(&input, &mut Script::default()), Ok(input.len()));
    forget_output(&mut connection);
    connection
}

/// A client that has seen the server's settings and opened streams with these methods.
fn client(methods: &[&str]) -> (Connection, Vec<StreamKey>) {
    let mut connection = Connection::client(small());
    connection.receive(&settings(&[]), &mut Script::default()).expect("settings");
    let mut open = |method: &&str| {
        let mut head = RequestHead::default();
        head.set_method(method.as_bytes());
        head.set_path(if *method == "CONNECT" { b"" } else { b"/" });
        head.set_authority(b"h:1");
        connection.open(&head, false, Framing::None, true).expect("opened")
    };
    let streams = methods.iter().map(&mut open).collect();
    forget_output(&mut connection);
    (connection, streams)
}

/// Events and output for an input in pieces of so many bytes.
fn run(connection: &mut Connection, input: &[u8], step: usize) -> (Script, Result<(), ConnectionError>) {
    let mut script = Script::default();
    let (mut buffer, mut result) = (Vec::new(), Ok(()));
    for piece in input.chunks(step) {
        buffer.extend_from_slice(piece);
        match connection.receive(&buffer, &mut script) {
            Ok(consumed) => drop(buffer.drain(..consumed)),
            Err(error) => {
                result = Err(error);
                break;
            }
        }
    }
    (script, result)
}

/// Whatever the pieces in which `input` comes, these are the events and the output.
fn check(make: impl Fn() -> Connection, frames: &[Vec<u8>], events: &str, output: &str) {
    let input = frames.concat();
    for step in [input.len(), 1, 2, 7, 10] {
        let mut connection = make();
        let (script, _) = run(&mut connection, &input, step);
        let unindent = |text: &str| text.lines().map(str::trim_start).collect::<Vec<_>>().join("\n");
        assert_eq!(script.describe().trim_end(), unindent(events).trim(), "events, {step} bytes at once");
        assert_eq!(describe(connection.output()).trim_end(), unindent(output).trim(), "output, {step} bytes at once");
    }
}

fn check_server(frames: &[Vec<u8>], events: &str, output: &str) {
    check(|| server(small()), frames, events, output);
}

#[test]
fn requests() {
    check_server(&[get(1, ALL, &[("a", "b")])], "request 1 GET http://h / None end a=b", "");
    check_server(
        &[
            headers(
                1,
                END_HEADERS,
                &[
                    (":method", "POST"),
                    (":path", "/p?q"),
                    (":scheme", "https"),
                    ("host", "x:1"),
                    ("content-length", "5"),
                ],
            ),
            data(1, 0, b"hel"),
            data(1, END_STREAM, b"lo"),
        ],
        "request 1 POST https://x:1 /p?q Length(5) content-length=5
         data 1 hello end",
        "",
    );
    check_server(
        &[
            get(1, END_HEADERS, &[]),
            data(1, 0, b"ab"),
            headers(1, ALL, &[("x-t", "1"), ("grpc-status", "0"), ("content-length", "2")]),
        ],
        "request 1 GET http://h / Chunked
         data 1 ab
         trailers 1 x-t=1 grpc-status=0",
        "",
    );
    check_server(
        &[get(1, ALL, &[("cookie", "a=1"), ("x", "y"), ("cookie", "b=2"), ("cookie", "c=3"), ("te", "trailers")])],
        "request 1 GET http://h / None end cookie=a=1; b=2; c=3 x=y te=trailers",
        "",
    );
    check_server(
        &[headers(1, END_HEADERS, &[(":method", "CONNECT"), (":authority", "h:443")]), data(1, END_STREAM, b"x")],
        "request 1 CONNECT http://h:443  Chunked
         data 1 x end",
        "",
    );
    check_server(
        &[headers(
            1,
            END_HEADERS,
            &[
                (":method", "CONNECT"),
                (":protocol", "websocket"),
                (":scheme", "https"),
                (":path", "/chat"),
                (":authority", "h"),
            ],
        )],
        "request 1 CONNECT https://h /chat websocketChunked",
        "",
    );
    check_server(
        &[headers(1, ALL, &[(":method", "OPTIONS"), (":scheme", "http"), (":path", "*"), (":authority", "h")])],
        "request 1 OPTIONS http://h * None end",
        "",
    );
}

#[test]
fn padding_and_priority_are_taken_off() {
    let block = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")]);
    let padded = [&[3, 0, 0, 0, 9, 200][..], &block, &[0; 3]].concat();
    check_server(
        &[
            frame(HEADERS, END_HEADERS | PADDED | 0x20, 1, &padded),
            frame(DATA, PADDED, 1, &[2, b'a', b'b', 0, 0]),
            frame(PRIORITY, 0, 7, &[0, 0, 0, 1, 5]),
            frame(DATA, PADDED | END_STREAM, 1, &[3, 0, 0, 0]),
            frame(0x77, 0xff, 9, b"an extension"),
        ],
        "request 1 GET http://h / Chunked
         data 1 ab end",
        "",
    );
}

#[test]
fn header_blocks_in_pieces() {
    let block = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"), ("a", "b")]);
    let (first, rest) = block.split_at(9);
    let (second, third) = rest.split_at(30);
    let pieces = [
        frame(HEADERS, END_STREAM, 1, first),
        frame(CONTINUATION, 0, 1, second),
        frame(CONTINUATION, END_HEADERS, 1, third),
    ];
    check_server(&pieces, "request 1 GET http://h / None end a=b", "");
    check_server(&[pieces[0].clone(), data(1, 0, b"x")], "", "GOAWAY 0 PROTOCOL_ERROR a frame inside a header block");
    check_server(
        &[frame(CONTINUATION, 0, 1, first)],
        "",
        "GOAWAY 0 PROTOCOL_ERROR CONTINUATION without a header block",
    );
}

#[test]
fn malformed_requests_reset_their_stream_only() {
    let pseudo = |fields: &[(&str, &str)]| headers(1, ALL, fields);
    let (m, s, p, a) = ((":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h"));
    let connect = (":method", "CONNECT");
    let with = |name: &'static str, value: &'static str| get(1, ALL, &[(name, value)]);
    let cases = [
        pseudo(&[s, p, a]),
        pseudo(&[m, p, a]),
        pseudo(&[m, s, a]),
        pseudo(&[m, m, s, p, a]),
        pseudo(&[m, s, s, p, a]),
        pseudo(&[m, s, p, p, a]),
        pseudo(&[m, s, p, a, a]),
        pseudo(&[m, s, ("x", "y"), p, a]),
        pseudo(&[m, s, p, a, (":status", "200")]),
        pseudo(&[m, s, p, a, (":other", "1")]),
        pseudo(&[m, s, p, a, (":protocol", "websocket")]),
        pseudo(&[connect, s, p, a]),
        pseudo(&[connect]),
        pseudo(&[connect, (":authority", "")]),
        pseudo(&[connect, a, ("content-length", "0")]),
        pseudo(&[connect, (":protocol", "websocket"), s, p]),
        pseudo(&[(":method", "G T"), s, p, a]),
        pseudo(&[(":method", ""), s, p, a]),
        pseudo(&[m, (":scheme", "1"), p, a]),
        pseudo(&[m, s, (":path", ""), a]),
        pseudo(&[m, s, (":path", "a"), a]),
        pseudo(&[m, s, (":path", "*"), a]),
        pseudo(&[m, s, (":path", "/a b"), a]),
        pseudo(&[m, s, (":path", "/a#b"), a]),
        pseudo(&[m, s, (":path", "/\u{e9}"), a]),
        pseudo(&[m, s, (":path", "/ HTTP/1.1\r\nx: y"), a]),
        pseudo(&[m, s, p, (":authority", "u@h")]),
        pseudo(&[m, s, p, (":authority", "h/x")]),
        pseudo(&[m, s, p, (":authority", "h\r\nx: y")]),
        with("host", "other"),
        get(1, ALL, &[("host", "h"), ("host", "h")]),
        with("A", "b"),
        with("a b", "c"),
        with("a:b", "c"),
        with("", "c"),
        with("a", "b\r\nc: d"),
        with("a", "b\nc"),
        with("a", "b\0c"),
        with("a", " b"),
        with("a", "b\t"),
        with("connection", "close"),
        with("keep-alive", "5"),
        with("proxy-connection", "x"),
        with("transfer-encoding", "chunked"),
        with("upgrade", "h2c"),
        with("te", "gzip"),
        with("content-length", "1"),
        with("content-length", "+0"),
        with("content-length", "0, 0"),
        get(1, ALL, &[("content-length", "0"), ("content-length", "0")]),
    ];
    for case in cases {
        check_server(&[case, get(3, ALL, &[])], "request 3 GET http://h / None end", "RST_STREAM 1 PROTOCOL_ERROR");
    }
    let strict = || server(Options { stream_error_on_invalid_http_message: false, ..small() });
    let error = "GOAWAY 1 PROTOCOL_ERROR connection-specific header field";
    check(strict, &[with("connection", "close"), get(3, ALL, &[])], "", error);
}

#[test]
fn bodies_are_as_long_as_they_say() {
    let post = |length: &'static str| get(1, END_HEADERS, &[("content-length", length)]);
    let head = |length: u32| format!("request 1 GET http://h / Length({length}) content-length={length}\n");
    let reset = "reset 1 PROTOCOL_ERROR by self";
    let out = "RST_STREAM 1 PROTOCOL_ERROR";
    check_server(&[post("3"), data(1, 0, b"abcd")], &(head(3) + reset), out);
    // Other streams of the connection have nothing to do with it, whatever becomes of them for a malformed head.
    let strict = || server(Options { stream_error_on_invalid_http_message: false, ..small() });
    check(strict, &[post("3"), data(1, 0, b"abcd")], &(head(3) + reset), out);
    check(strict, &[post("3"), data(1, END_STREAM, b"ab")], &(head(3) + reset), out);
    let trailers = headers(1, ALL, &[("t", "1")]);
    check(strict, &[post("3"), data(1, 0, b"ab"), trailers], &(head(3) + "data 1 ab\n" + reset), out);
    check_server(&[post("3"), data(1, END_STREAM, b"ab")], &(head(3) + reset), out);
    check_server(
        &[post("3"), data(1, 0, b"ab"), headers(1, ALL, &[("t", "1")])],
        &(head(3) + "data 1 ab\n" + reset),
        out,
    );
    check_server(&[post("0"), data(1, END_STREAM, b"")], &(head(0) + "data 1  end"), "");
}

#[test]
fn trailers_are_checked() {
    let body = [get(1, END_HEADERS, &[]), data(1, 0, b"a")].concat();
    let before = "request 1 GET http://h / Chunked\ndata 1 a\nreset 1 PROTOCOL_ERROR by self";
    let out = "RST_STREAM 1 PROTOCOL_ERROR";
    check_server(&[body.clone(), headers(1, END_HEADERS, &[("t", "1")])], before, out);
    check_server(&[body.clone(), headers(1, ALL, &[(":path", "/")])], before, out);
    check_server(&[body.clone(), headers(1, ALL, &[("T", "1")])], before, out);
    check_server(&[body, headers(1, ALL, &[("connection", "close")])], before, out);
}

#[test]
fn names_with_underscores_are_dropped_or_refused() {
    let options = |underscores| Options { underscores, ..small() };
    let head = get(1, END_HEADERS, &[("x_a", "1"), ("a", "2"), ("_", "3")]);
    let trailers = headers(1, ALL, &[("t_", "4"), ("t", "5")]);
    let exchange = [head, data(1, 0, b"b"), trailers];
    let allowed = "request 1 GET http://h / Chunked x_a=1 a=2 _=3\ndata 1 b\ntrailers 1 t_=4 t=5";
    check(|| server(options(Underscores::Allow)), &exchange, allowed, "");
    let dropped = "request 1 GET http://h / Chunked a=2\ndata 1 b\ntrailers 1 t=5";
    check(|| server(options(Underscores::Drop)), &exchange, dropped, "");
    let refused = "RST_STREAM 1 INTERNAL_ERROR";
    check(|| server(options(Underscores::Reject)), &exchange, "", refused);
    let late = [get(1, END_HEADERS, &[]), headers(1, ALL, &[("t_", "4")]), get(3, ALL, &[])];
    let cut = "request 1 GET http://h / Chunked\nreset 1 INTERNAL_ERROR by self\nrequest 3 GET http://h / None end";
    check(|| server(options(Underscores::Reject)), &late, cut, refused);
    // What is left out counts against no limit.
    let long = "x".repeat(1_900);
    let large = [get(1, ALL, &[("x_a", &long), ("y_a", &long), ("a", "1")])];
    check(|| server(options(Underscores::Drop)), &large, "request 1 GET http://h / None end a=1", "");
    // It is no reason to take what is malformed.
    let malformed = [get(1, ALL, &[("x_a", "a\0b")])];
    check(|| server(options(Underscores::Drop)), &malformed, "", "RST_STREAM 1 PROTOCOL_ERROR");

    let told = |underscores| {
        let (script, _) = run(&mut server(options(underscores)), &exchange.concat(), 1_000);
        (script.counts, script.faults)
    };
    assert_eq!(told(Underscores::Allow), (vec![Counter::Trailers], vec![]));
    assert_eq!(
        told(Underscores::Drop),
        ([vec![Counter::DroppedUnderscore; 3], vec![Counter::Trailers]].concat(), vec![])
    );
    let (counts, faults) = told(Underscores::Reject);
    assert_eq!((counts, faults), (vec![Counter::RejectedUnderscore, Counter::TxReset], vec![Fault::Underscore]));
}

#[test]
fn it_is_told_what_is_wrong_with_a_message() {
    let check = |frames: &[Vec<u8>], expected: Fault| {
        let (script, _) = run(&mut server(small()), &frames.concat(), 1_000);
        assert_eq!(script.faults, [expected], "{}", script.describe());
    };
    check(&[get(1, ALL, &[("X", "1")])], Fault::Field);
    check(&[get(1, ALL, &[("connection", "close")])], Fault::Field);
    check(&[get(1, ALL, &[("content-length", "1")])], Fault::Message);
    check(&[headers(1, ALL, &[(":method", "GET"), (":scheme", "http")])], Fault::Message);
    check(&[get(1, ALL, &[("a", &"x".repeat(2_000))])], Fault::TooLarge);
    check(&[frame(HEADERS, ALL, 1, &[0xff, 0xff, 3])], Fault::Block);
    check(&[get(1, END_HEADERS, &[]), headers(1, ALL, &[("T", "1")])], Fault::Field);
    check(&[get(1, END_HEADERS, &[]), headers(1, END_HEADERS, &[("t", "1")])], Fault::Message);
    check(&[depending_on(1, 1)], Fault::Message);
}

/// A request with a priority of RFC 7540, which RFC 9113 section 5.3 has done away with.
fn depending_on(stream: u32, other: u8) -> Vec<u8> {
    let block = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")]);
    frame(HEADERS, ALL | 0x20, stream, &[&[0, 0, 0, other, 5][..], &block].concat())
}

#[test]
fn a_stream_that_depends_on_itself_is_reset_and_no_other() {
    check_server(
        &[depending_on(1, 7), depending_on(3, 3), get(5, ALL, &[]), frame(PRIORITY, 0, 5, &[0, 0, 0, 5, 1])],
        "request 1 GET http://h / None end
         request 5 GET http://h / None end
         reset 5 PROTOCOL_ERROR by self",
        "RST_STREAM 3 PROTOCOL_ERROR\nRST_STREAM 5 PROTOCOL_ERROR",
    );
}

#[test]
fn too_large_heads_are_answered() {
    let long = "x".repeat(1_900);
    check_server(
        &[get(1, ALL, &[("a", &long)]), get(3, ALL, &[])],
        "request 3 GET http://h / None end",
        "HEADERS 1 end\nRST_STREAM 1 NO_ERROR",
    );
    let many: Vec<(&str, &str)> = (0..101).map(|_| ("a", "b")).collect();
    let lenient = || server(Options { max_header_list_bytes: 60_000, ..small() });
    check(lenient, &[get(1, END_HEADERS, &many), data(1, 0, b"abc")], "", "HEADERS 1 end\nRST_STREAM 1 NO_ERROR");
}

#[test]
fn streams_in_wrong_states() {
    let bare = "request 1 GET http://h / None end\n";
    // Half-closed.
    check_server(
        &[get(1, ALL, &[]), data(1, 0, b"x")],
        &(bare.to_owned() + "reset 1 STREAM_CLOSED by self"),
        "RST_STREAM 1 STREAM_CLOSED",
    );
    check_server(
        &[get(1, ALL, &[]), get(1, ALL, &[])],
        &(bare.to_owned() + "reset 1 STREAM_CLOSED by self"),
        "RST_STREAM 1 STREAM_CLOSED",
    );
    // Idle.
    for (frame, text) in [
        (data(5, 0, b"x"), "DATA on a stream that is not open"),
        (data(0, 0, b"x"), "DATA on a stream that is not open"),
        (window_update(5, 1), "WINDOW_UPDATE on an idle stream"),
        (reset(5, Reason::CANCEL), "RST_STREAM on an idle stream"),
        (get(2, ALL, &[]), "HEADERS on a stream that cannot be opened"),
        (frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2]), "PUSH_PROMISE, which was not allowed"),
    ] {
        check_server(&[frame], "", &format!("GOAWAY 0 PROTOCOL_ERROR {text}"));
    }
    // Passed over.
    check_server(
        &[get(5, ALL, &[]), get(3, ALL, &[])],
        "request 5 GET http://h / None end",
        "GOAWAY 5 PROTOCOL_ERROR HEADERS on a stream with a lower number than another",
    );
    // Reset by the peer.
    check_server(
        &[get(1, END_HEADERS, &[]), reset(1, Reason::CANCEL), data(1, 0, b"x"), get(1, ALL, &[])],
        "request 1 GET http://h / Chunked\nreset 1 CANCEL by peer",
        "RST_STREAM 1 STREAM_CLOSED\nRST_STREAM 1 STREAM_CLOSED",
    );
    // Beyond the announced number of streams.
    let four: Vec<_> = [1, 3, 5, 7, 9].map(|id| get(id, ALL, &[])).to_vec();
    let opened: String = [1, 3, 5, 7].map(|id| format!("request {id} GET http://h / None end\n")).concat();
    check_server(&four, &opened, "RST_STREAM 9 REFUSED_STREAM");
}

#[test]
fn what_comes_for_a_stream_reset_here_is_ignored_and_its_bytes_given_back() {
    let mut connection = server(small());
    let mut script = Script::default();
    let mut receive = |connection: &mut Connection, bytes: Vec<u8>| {
        assert_eq!(connection.receive(&bytes, &mut script), Ok(bytes.len()));
        std::mem::take(&mut script.events)
    };
    let events = receive(&mut connection, [get(1, END_HEADERS, &[]), data(1, 0, b"ab")].concat());
    let Event::Request(stream, ..) = events[0] else { panic!("{events:?}") };
    connection.reset(stream, Reason::CANCEL);
    for _ in 0..3 {
        let late = receive(&mut connection, data(1, 0, &[0; 16_000]));
        assert!(late.is_empty(), "{late:?}");
    }
    assert!(receive(&mut connection, headers(1, ALL, &[("t", "1")])).is_empty());
    assert_eq!(connection.send_data(stream, b"x", true), Err(evenkeel_http::h2::StreamGone));
    connection.release_stream(stream, 2);
    connection.release_connection(2);
    assert_eq!(describe(connection.output()), "RST_STREAM 1 CANCEL\nWINDOW_UPDATE 0 48000\n");
}

#[test]
fn a_stream_reset_in_the_middle_of_a_frame_gives_its_bytes_back() {
    let mut connection = server(small());
    let mut script = Script::default();
    let input = [get(1, END_HEADERS, &[]), data(1, END_STREAM, &[7; 16_384])].concat();
    let cut = input.len() - 10_000;
    assert_eq!(connection.receive(&input[..cut], &mut script), Ok(cut));
    let Event::Request(stream, ..) = script.events[0] else { panic!("{script:?}") };
    connection.reset(stream, Reason::CANCEL);
    assert_eq!(connection.receive(&input[cut..], &mut script), Ok(10_000));
    assert_eq!(script.events.len(), 2, "the head and the first piece");
    connection.release_connection(6_384);
    let next = [get(3, END_HEADERS, &[]), data(3, 0, &[0; 16_384])].concat();
    connection.receive(&next, &mut script).expect("valid");
    connection.release_connection(16_384);
    assert_eq!(describe(connection.output()), "RST_STREAM 1 CANCEL\nWINDOW_UPDATE 0 32768\n");
}

#[test]
fn windows_are_kept() {
    let many = |bytes: usize| data(1, 0, &vec![0; bytes]);
    let body = [many(16_000), many(16_000), many(16_000), many(16_000), many(1_536)].concat();
    let (_, result) = run(&mut server(small()), &[get(1, END_HEADERS, &[]), body.clone()].concat(), 9_999);
    assert_eq!(result.map_err(|error| error.reason), Err(Reason::FLOW_CONTROL_ERROR), "the connection's window");
    let wide = || server(Options { initial_connection_window_size: 1 << 20, ..small() });
    let (script, result) = run(&mut wide(), &[get(1, END_HEADERS, &[]), body].concat(), 9_999);
    assert_eq!(result, Ok(()));
    assert!(script.describe().ends_with("reset 1 FLOW_CONTROL_ERROR by self\n"), "the stream's window");
    let overflow = "GOAWAY 0 FLOW_CONTROL_ERROR the connection's window is over 2^31-1";
    check_server(&[window_update(0, 0x7fff_ffff)], "", overflow);
    check_server(&[window_update(0, 0)], "", "GOAWAY 0 PROTOCOL_ERROR WINDOW_UPDATE by 0");
    let opened = "request 1 GET http://h / None end\n";
    check_server(
        &[get(1, ALL, &[]), window_update(1, 0x7fff_ffff)],
        &(opened.to_owned() + "reset 1 FLOW_CONTROL_ERROR by self"),
        "RST_STREAM 1 FLOW_CONTROL_ERROR",
    );
    check_server(
        &[get(1, ALL, &[]), window_update(1, 0)],
        &(opened.to_owned() + "reset 1 PROTOCOL_ERROR by self"),
        "RST_STREAM 1 PROTOCOL_ERROR",
    );
    check_server(
        &[get(1, ALL, &[]), window_update(1, 0x7000_0000), settings(&[(4, 0x7fff_ffff)])],
        opened,
        "GOAWAY 1 FLOW_CONTROL_ERROR a window over 2^31-1 after SETTINGS",
    );
}

#[test]
fn settings_and_other_frames_of_the_connection() {
    let error = |reason: &str, text: &str| format!("GOAWAY 0 {reason} {text}");
    check_server(&[frame(PING, 0, 0, b"01234567")], "", "PING 1 01234567");
    check_server(&[frame(PING, ACK, 0, b"01234567")], "pong 01234567", "");
    check_server(&[frame(PING, 0, 0, b"0")], "", &error("FRAME_SIZE_ERROR", "PING of a length other than 8"));
    check_server(&[frame(PING, 0, 1, b"01234567")], "", &error("PROTOCOL_ERROR", "PING on a stream"));
    check_server(&[settings(&[(2, 2)])], "", &error("PROTOCOL_ERROR", "invalid ENABLE_PUSH"));
    check_server(&[settings(&[(4, 1 << 31)])], "", &error("FLOW_CONTROL_ERROR", "INITIAL_WINDOW_SIZE over 2^31-1"));
    check_server(&[settings(&[(5, 1)])], "", &error("PROTOCOL_ERROR", "invalid MAX_FRAME_SIZE"));
    check_server(&[settings(&[(8, 1), (8, 0)])], "", &error("PROTOCOL_ERROR", "invalid ENABLE_CONNECT_PROTOCOL"));
    check_server(
        &[frame(SETTINGS, 0, 0, &[0; 5])],
        "",
        &error("FRAME_SIZE_ERROR", "SETTINGS of a length that is no multiple of 6"),
    );
    check_server(
        &[frame(SETTINGS, ACK, 0, &[0; 6])],
        "",
        &error("FRAME_SIZE_ERROR", "SETTINGS acknowledgement with a payload"),
    );
    check_server(
        &[frame(SETTINGS, ACK, 0, &[]), frame(SETTINGS, ACK, 0, &[])],
        "",
        &error("PROTOCOL_ERROR", "SETTINGS acknowledgement for nothing"),
    );
    check_server(&[frame(DATA, 0, 1, &[0; 16_385])], "", &error("FRAME_SIZE_ERROR", "frame over MAX_FRAME_SIZE"));
    check_server(&[frame(GOAWAY, 0, 0, &[0, 0, 0, 0, 0, 0, 0, 2, b'x'])], "goaway 0 INTERNAL_ERROR", "");
    check_server(
        &[get(1, ALL, &[]), frame(PRIORITY, 0, 1, &[0, 0, 0, 1, 5])],
        "request 1 GET http://h / None end\nreset 1 PROTOCOL_ERROR by self",
        "RST_STREAM 1 PROTOCOL_ERROR",
    );
}

#[test]
fn prefaces() {
    let output = |input: &[u8]| {
        let mut connection = Connection::server(small());
        forget_output(&mut connection);
        let _ = connection.receive(input, &mut Script::default());
        describe(connection.output())
    };
    assert_eq!(output(b"GET / HTTP/1.1\r\n"), "GOAWAY 0 PROTOCOL_ERROR no HTTP/2 preface\n");
    assert_eq!(
        output(&[NO_PADDING_PREFACE, &get(1, ALL, &[])].concat()),
        "GOAWAY 0 PROTOCOL_ERROR the first frame is not SETTINGS\n"
    );
    assert_eq!(output(b"PRI * HT"), "");
}

#[test]
fn responses() {
    let requests = |methods: &'static [&str]| move || client(methods).0;
    let status = |id: u32, flags: u8, status: &str, more: &[(&str, &str)]| {
        headers(id, flags, &[&[(":status", status)][..], more].concat())
    };
    check(
        requests(&["GET"]),
        &[
            status(1, END_HEADERS, "103", &[("link", "x")]),
            status(1, END_HEADERS, "200", &[("content-length", "2")]),
            data(1, END_STREAM, b"ok"),
        ],
        "interim 1 103 link=x
         response 1 200 Length(2) content-length=2
         data 1 ok end",
        "",
    );
    check(
        requests(&["HEAD"]),
        &[status(1, ALL, "200", &[("content-length", "9")])],
        "response 1 200 None end content-length=9",
        "",
    );
    check(
        requests(&["CONNECT"]),
        &[status(1, END_HEADERS, "200", &[]), data(1, 0, b"x")],
        "response 1 200 Chunked\ndata 1 x",
        "",
    );
    check(
        requests(&["GET"]),
        &[status(1, END_HEADERS, "200", &[]), data(1, 0, b"a"), headers(1, ALL, &[("grpc-status", "0")])],
        "response 1 200 Chunked
         data 1 a
         trailers 1 grpc-status=0",
        "",
    );
    let malformed: &[Vec<u8>] = &[
        status(1, END_HEADERS, "101", &[]),
        status(1, ALL, "100", &[]),
        status(1, ALL, "20", &[]),
        status(1, ALL, "2000", &[]),
        status(1, ALL, "099", &[]),
        headers(1, ALL, &[("a", "b")]),
        status(1, ALL, "200", &[(":status", "200")]),
        status(1, ALL, "200", &[("content-length", "1")]),
        status(1, ALL, "200", &[("connection", "close")]),
        status(1, ALL, "204", &[("content-length", "1")]),
        status(1, END_HEADERS, "103", &[("content-length", "1")]),
        data(1, 0, b"x"),
    ];
    for case in malformed {
        check(
            requests(&["GET"]),
            std::slice::from_ref(case),
            "reset 1 PROTOCOL_ERROR by self",
            "RST_STREAM 1 PROTOCOL_ERROR",
        );
    }
    let bodiless = |code: &str| [status(1, END_HEADERS, code, &[]), data(1, END_STREAM, b"x")].concat();
    for (method, code) in [(&["HEAD"], "200"), (&["GET"], "204"), (&["GET"], "304")] {
        let events = format!("response 1 {code} None\nreset 1 PROTOCOL_ERROR by self");
        check(requests(method), &[bodiless(code)], &events, "RST_STREAM 1 PROTOCOL_ERROR");
    }
    check(
        requests(&["GET"]),
        &[frame(PUSH_PROMISE, END_HEADERS, 1, &[0, 0, 0, 2])],
        "",
        "GOAWAY 0 PROTOCOL_ERROR PUSH_PROMISE, which was not allowed",
    );
    check(
        requests(&["GET"]),
        &[status(3, ALL, "200", &[])],
        "",
        "GOAWAY 0 PROTOCOL_ERROR HEADERS on a stream that cannot be opened",
    );
}

#[test]
fn a_client_learns_which_requests_were_not_processed() {
    let make = || client(&["GET", "GET", "GET"]).0;
    let goaway = frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]);
    check(
        make,
        &[goaway.clone(), headers(1, ALL, &[(":status", "200")])],
        "reset 3 REFUSED_STREAM by peer unprocessed
         reset 5 REFUSED_STREAM by peer unprocessed
         goaway 1 NO_ERROR
         response 1 200 None end",
        "",
    );
    let mut connection = make();
    run(&mut connection, &goaway, 100).1.expect("valid");
    assert!(!connection.is_finished() && connection.can_open().is_err());
    run(&mut connection, &headers(1, ALL, &[(":status", "200")]), 100).1.expect("valid");
    assert!(connection.is_finished());
    check(
        make,
        &[reset(1, Reason::REFUSED_STREAM), reset(3, Reason::CANCEL)],
        "reset 1 REFUSED_STREAM by peer unprocessed\nreset 3 CANCEL by peer",
        "",
    );
}

#[test]
fn a_client_keeps_to_what_the_server_allows() {
    let (mut connection, _) = client(&["GET"]);
    let mut head = RequestHead::default();
    head.set_method(b"CONNECT");
    head.set_protocol(b"websocket");
    let open = |connection: &mut Connection| {
        connection.open(&head, true, Framing::Chunked, false).map_err(|error| error.to_string())
    };
    assert_eq!(open(&mut connection), Err("the peer does not take extended CONNECT".into()));
    run(&mut connection, &settings(&[(8, 1), (3, 1)]), 100).1.expect("valid");
    assert_eq!(open(&mut connection), Err("the peer's limit of concurrent streams is reached".into()));
    run(&mut connection, &headers(1, ALL, &[(":status", "200")]), 100).1.expect("valid");
    assert!(open(&mut connection).is_ok());
}

#[test]
fn a_server_leaves_in_two_steps() {
    let mut connection = server(small());
    run(&mut connection, &get(1, ALL, &[]), 100).1.expect("valid");
    connection.shutdown();
    assert_eq!(describe(connection.output()), "GOAWAY 2147483647 NO_ERROR \nPING 0 shutdown\n");
    forget_output(&mut connection);
    // A request that crossed the first GOAWAY is served, one behind the second is not.
    let crossing = [get(3, ALL, &[]), frame(PING, ACK, 0, b"shutdown"), get(5, ALL, &[])].concat();
    let (script, result) = run(&mut connection, &crossing, crossing.len());
    assert_eq!((script.describe().as_str(), result), ("request 3 GET http://h / None end\n", Ok(())));
    assert_eq!(describe(connection.output()), "GOAWAY 3 NO_ERROR \nRST_STREAM 5 REFUSED_STREAM\n");
    assert!(!connection.is_finished());
}

/// What a peer may do too often, and what it is called.
#[test]
fn floods_end_the_connection() {
    let check = |options: Options, unit: &dyn Fn(u32) -> Vec<u8>, most: u32, expected: Violation| {
        let mut connection = server(options);
        for turn in 0..20_000 {
            let (_, result) = run(&mut connection, &unit(turn), usize::MAX);
            if let Err(error) = result {
                assert_eq!((error.violation, error.reason), (expected, Reason::ENHANCE_YOUR_CALM));
                assert_eq!(turn, most, "{expected:?}");
                return;
            }
        }
        panic!("{expected:?} was let through");
    };
    let next = |turn: u32| 1 + 2 * turn;
    let ping = |_| frame(PING, 0, 0, &[0; 8]);
    check(small(), &ping, 1_000, Violation::OutboundControlFlood);
    check(small(), &|_| settings(&[]), 1_000, Violation::OutboundControlFlood);
    let few_frames = Options { max_outbound_control_frames: u32::MAX, max_outbound_frames: 50, ..small() };
    check(few_frames, &ping, 50, Violation::OutboundFlood);
    let empty = |turn| if turn == 0 { get(1, END_HEADERS, &[]) } else { data(1, 0, b"") };
    check(small(), &empty, 2, Violation::InboundEmptyFramesFlood);
    let padded = |turn| if turn == 0 { get(1, END_HEADERS, &[]) } else { frame(DATA, PADDED, 1, &[1, 0]) };
    check(small(), &padded, 2, Violation::InboundEmptyFramesFlood);
    check(small(), &|_| frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1]), 100, Violation::InboundPriorityFramesFlood);
    check(small(), &|_| window_update(0, 1), 5, Violation::InboundWindowUpdateFramesFlood);
    let rapid = |turn| [get(next(turn), ALL, &[]), reset(next(turn), Reason::CANCEL)].concat();
    check(small(), &rapid, 249, Violation::PrematureResets);
    let provoked = |turn| [get(next(turn), ALL, &[]), window_update(next(turn), 0)].concat();
    check(small(), &provoked, 249, Violation::PrematureResets);
    let malformed = |turn| get(next(turn), ALL, &[("Upper", "case")]);
    check(small(), &malformed, 249, Violation::PrematureResets);
    let continued = |turn| if turn == 0 { frame(HEADERS, 0, 1, &[0x82]) } else { frame(CONTINUATION, 0, 1, &[0x82]) };
    check(small(), &continued, 10, Violation::HeaderOverflow);
    let big = |turn| if turn == 0 { frame(HEADERS, 0, 1, &[0x82]) } else { frame(CONTINUATION, 0, 1, &[0x82; 16_000]) };
    check(small(), &big, 2, Violation::HeaderOverflow);
}

/// One entry of 4 KB, named 16,000 times.
#[test]
fn a_header_bomb_costs_its_sender_the_request() {
    let mut connection = server(Options { max_header_list_bytes: 60 * 1024, ..small() });
    let mut bomb = block(&[(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "h")]);
    let value = "v".repeat(3_900);
    let mut entry = block(&[("bomb", &value)]);
    entry[0] = 0x40;
    bomb.extend(entry);
    bomb.resize(16_000, 0xbe);
    let (script, result) = run(&mut connection, &frame(HEADERS, ALL, 1, &bomb), usize::MAX);
    assert_eq!((script.events.len(), result), (0, Ok(())));
    assert_eq!(describe(connection.output()), "HEADERS 1 end\nRST_STREAM 1 NO_ERROR\n");
}

#[test]
fn streams_that_wait_take_turns() {
    let mut connection = server(Options { quantum_bytes: 1_000, ..small() });
    let (script, _) = run(&mut connection, &[1, 3, 5].map(|id| get(id, ALL, &[])).concat(), usize::MAX);
    let streams: Vec<StreamKey> = script
        .events
        .iter()
        .filter_map(|event| match event {
            Event::Request(stream, ..) => Some(*stream),
            _ => None,
        })
        .collect();
    let head = ResponseHead { status: 200, ..ResponseHead::default() };
    let body = vec![b'x'; 100_000];
    let mut sent = [0; 3];
    for (stream, sent) in streams.iter().zip(&mut sent) {
        connection.respond(*stream, &head, Framing::Chunked, false).expect("open");
        *sent += connection.send_data(*stream, &body, true).expect("open");
    }
    assert_eq!(sent, [65_535, 0, 0], "alone, the first had all of the window");
    for turn in 0..30 {
        forget_output(&mut connection);
        run(&mut connection, &[window_update(0, 2_000), window_update(1, 2_000)].concat(), usize::MAX)
            .1
            .expect("valid");
        while let Some(stream) = connection.next_writable() {
            let at = streams.iter().position(|other| *other == stream).expect("one of them");
            sent[at] += connection.send_data(stream, &body[sent[at]..], true).expect("open");
        }
        assert_eq!(sent.iter().sum::<usize>(), 65_535 + 2_000 * (turn + 1), "the window is used");
    }
    let turns = [sent[0] - 65_535, sent[1], sent[2]];
    assert!(turns.iter().all(|bytes| (19_000..=21_000).contains(bytes)), "{turns:?}");
}

#[test]
fn resets_of_streams_that_wait_leave_the_line_in_order() {
    let mut connection = server(Options { max_concurrent_streams: 100, ..small() });
    run(&mut connection, &settings(&[(4, 10)]), usize::MAX).1.expect("valid");
    let requests: Vec<u8> = (0..50).flat_map(|turn| get(1 + 2 * turn, ALL, &[])).collect();
    let (script, _) = run(&mut connection, &requests, usize::MAX);
    let head = ResponseHead { status: 200, ..ResponseHead::default() };
    for event in &script.events {
        let Event::Request(stream, ..) = event else { continue };
        connection.respond(*stream, &head, Framing::Chunked, false).expect("open");
        assert_eq!(connection.send_data(*stream, &[0; 100], true), Ok(10));
        if stream.id() % 4 == 1 {
            connection.reset(*stream, Reason::CANCEL);
        }
    }
    assert_eq!(connection.next_writable(), None, "their windows are closed");
    run(&mut connection, &settings(&[(4, 200)]), usize::MAX).1.expect("valid");
    let mut turns = Vec::new();
    while let Some(stream) = connection.next_writable() {
        turns.push(stream.id());
        assert_eq!(connection.send_data(stream, &[0; 90], true), Ok(90));
    }
    assert_eq!(turns, (0..25).map(|turn| 3 + 4 * turn).collect::<Vec<_>>());
    assert_eq!(connection.open_streams(), 0);
}
