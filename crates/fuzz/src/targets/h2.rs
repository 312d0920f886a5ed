//! The HTTP/2 codec.

use evenkeel_http::h2::{Connection, Options, PREFACE, Reason, RequestMeta, Reset, ResponseMeta, Sink, StreamKey};
use evenkeel_http::{Framing, Headers, RequestHead, ResponseHead};

use super::Target;

/// Streams a server may have at once here.
const STREAMS: u32 = 5;

/// SETTINGS without settings.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

pub const SERVER: Target = Target {
    name: "h2_server",
    run: server,
    seeds: &[
        // GET, then POST with padding, body and trailers, then PING and RST_STREAM.
        b"\x00\x00\x04\x01\x05\0\0\0\x01\x82\x86\x84\xbe\x00\x00\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01h",
        b"\x00\x00\x06\x01\x04\0\0\0\x01\x83\x86\x84\x41\x01h\x00\x00\x05\x00\x08\0\0\0\x01\x02ab\0\0\x00\x00\x05\x01\x05\0\0\0\x01\x40\x01a\x01b",
        b"\x00\x00\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01h\x00\x00\x04\x08\0\0\0\0\x01\0\0\0\x09\x00\x00\x04\x03\0\0\0\0\x01\0\0\0\x08",
        b"\x00\x00\x03\x01\x00\0\0\0\x03\x82\x86\x84\x00\x00\x03\x09\x04\0\0\0\x03\x41\x01h\x00\x00\x08\x06\0\0\0\0\0abcdefgh",
        b"\x00\x00\x0c\x04\0\0\0\0\0\0\x04\0\0\0\x0a\0\x01\0\0\0\0\x00\x00\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01h\x00\x00\x08\x07\0\0\0\0\0\0\0\0\0\0\0\0\0",
    ],
    mutations: 30_000,
};

pub const CLIENT: Target = Target {
    name: "h2_client",
    run: client,
    seeds: &[
        b"\x00\x00\x01\x01\x04\0\0\0\x01\x88\x00\x00\x03\x00\x01\0\0\0\x01abc",
        b"\x00\x00\x04\x01\x04\0\0\0\x01\x08\x03103\x00\x00\x01\x01\x04\0\0\0\x01\x88\x00\x00\x05\x01\x05\0\0\0\x01\x40\x01a\x01b",
        b"\x00\x00\x08\x07\0\0\0\0\0\0\0\0\x01\0\0\0\0\x00\x00\x05\x01\x05\0\0\0\x03\x88\x0f\x0d\x011\x00\x00\x04\x03\0\0\0\0\x01\0\0\0\x07",
    ],
    mutations: 30_000,
};

pub const HEADERS: Target = Target {
    name: "h2_headers",
    run: headers,
    seeds: &[
        b"\x82\x86\x84\x41\x0fwww.example.com\x58\x08no-cache",
        b"\x82\x86\x84\x41\x8c\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff\x40\x88\x25\xa8\x49\xe9\x5b\xa9\x7d\x7f\x89\x25\xa8\x49\xe9\x5b\xb8\xe8\xb4\xbf",
        b"\x3f\xe1\x1f\x83\x87\x85\x41\x01h\x60\x03a=b\x60\x03c=d\x10\x01x\x01y\xbe\xbf",
    ],
    mutations: 30_000,
};

/// Records the events of each stream.
#[derive(Default)]
struct Notes {
    text: Vec<String>,
    streams: Vec<StreamKey>,
    bytes: usize,
    head: Option<RequestHead>,
}

impl Sink for Notes {
    fn request(&mut self, stream: StreamKey, head: &mut RequestHead, meta: RequestMeta) {
        assert!(head.method().iter().chain(head.path()).all(u8::is_ascii_graphic), "what another hop could misread");
        check_fields(&head.headers);
        self.text.push(format!("{} {head:?} {meta:?}", stream.id()));
        self.streams.push(stream);
        self.head = Some(std::mem::take(head));
    }

    fn response(&mut self, stream: StreamKey, head: &mut ResponseHead, meta: ResponseMeta) {
        check_fields(&head.headers);
        self.text.push(format!("{} {} {meta:?}", stream.id(), head.status));
    }

    fn trailers(&mut self, stream: StreamKey, trailers: &mut Headers) {
        check_fields(trailers);
        self.text.push(format!("{} trailers", stream.id()));
    }

    fn data(&mut self, stream: StreamKey, data: &[u8], end: bool) {
        self.bytes += data.len();
        // Pieces differ with how the input is cut; their sum and their end do not.
        if end {
            self.text.push(format!("{} ends", stream.id()));
        }
    }

    fn reset(&mut self, stream: StreamKey, reset: Reset) {
        self.text.push(format!("{} {reset:?}", stream.id()));
    }
}

fn check_fields(headers: &Headers) {
    for (_, name, value) in headers.iter() {
        assert!(!name.is_empty() && name.iter().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()));
        assert!(!value.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')));
    }
}

/// Feeds everything in pieces of `step` bytes; then does what an application does.
fn drive(mut connection: Connection, input: &[u8], step: usize) -> (Vec<String>, usize, Vec<u8>) {
    let (mut notes, mut buffer) = (Notes::default(), Vec::new());
    for piece in input.chunks(step) {
        buffer.extend_from_slice(piece);
        match connection.receive(&buffer, &mut notes) {
            Ok(consumed) => drop(buffer.drain(..consumed)),
            Err(error) => {
                notes.text.push(format!("{error:?}"));
                break;
            }
        }
        assert!(buffer.len() <= 16 * 1024 + 9, "what stays is less than a frame");
        assert!(connection.open_streams() <= STREAMS as usize);
    }
    let output = connection.output().to_vec();
    for stream in std::mem::take(&mut notes.streams) {
        let head = ResponseHead { status: 200, ..ResponseHead::default() };
        let _ = connection.respond(stream, &head, Framing::Chunked, false);
        let _ = connection.send_data(stream, &[0; 40_000], true);
        connection.release_stream(stream, notes.bytes);
    }
    connection.release_connection(notes.bytes);
    while let Some(stream) = connection.next_writable() {
        let _ = connection.send_data(stream, &[0; 40_000], true);
        connection.reset(stream, Reason::CANCEL);
    }
    check_frames(connection.output());
    (notes.text, notes.bytes, output)
}

/// The output is whole frames.
fn check_frames(mut output: &[u8]) {
    output = output.strip_prefix(PREFACE.as_slice()).unwrap_or(output);
    while !output.is_empty() {
        let length = u32::from_be_bytes([0, output[0], output[1], output[2]]) as usize;
        assert!(length <= 16 * 1024, "a frame the peer takes");
        output = &output[9 + length..];
    }
}

fn small() -> Options {
    Options {
        initial_stream_window_size: 65_535,
        initial_connection_window_size: 65_535,
        max_concurrent_streams: STREAMS,
        enable_connect_protocol: true,
        max_header_list_bytes: 4096,
        ..Options::default()
    }
}

fn server(data: &[u8]) {
    let input = [PREFACE.as_slice(), SETTINGS, data].concat();
    let whole = drive(Connection::server(small()), &input, input.len());
    assert_eq!(drive(Connection::server(small()), &input, 13), whole, "cut in pieces");
}

fn client(data: &[u8]) {
    let input = [SETTINGS, data].concat();
    let make = || {
        let mut connection = Connection::client(small());
        for method in [&b"GET"[..], b"HEAD", b"CONNECT"] {
            let mut head = RequestHead::default();
            head.set_method(method);
            head.set_path(b"/");
            head.set_authority(b"h:1");
            connection.open(&head, true, Framing::None, method != b"CONNECT").expect("a new connection");
        }
        connection
    };
    let whole = drive(make(), &input, input.len());
    assert_eq!(drive(make(), &input, 13), whole, "cut in pieces");
}

/// A header block that is taken is, sent on, the same request.
fn headers(data: &[u8]) {
    if data.len() > 16 * 1024 {
        return;
    }
    let mut frame = vec![0, (data.len() >> 8) as u8, data.len() as u8, 1, 5, 0, 0, 0, 1];
    frame.extend_from_slice(data);
    let receive = |input: &[u8]| {
        let mut notes = Notes::default();
        let result = Connection::server(small()).receive(input, &mut notes);
        result.is_ok().then_some(notes).and_then(|notes| notes.head)
    };
    let Some(head) = receive(&[PREFACE.as_slice(), SETTINGS, &frame].concat()) else { return };
    if !head.protocol().is_empty() {
        return;
    }
    let mut next = Connection::client(small());
    next.receive(SETTINGS, &mut Notes::default()).expect("settings");
    next.open(&head, true, Framing::None, true).expect("a new connection");
    let back = receive(next.output()).expect("what is sent is valid");
    assert_eq!((back.method(), back.path(), back.authority()), (head.method(), head.path(), head.authority()));
    let fields = |head: &RequestHead| {
        let all = head.headers.iter().map(|(_, name, value)| (name.to_vec(), value.to_vec()));
        all.filter(|(name, _)| name != b"content-length").collect::<Vec<_>>()
    };
    assert_eq!(fields(&back), fields(&head));
}
