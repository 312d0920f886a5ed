//! `h2spec`, the conformance suite, and nghttp2's `h2load` against a server that consists of the codec and a socket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;

use evenkeel_http::h2::{Connection, Options, StreamKey};
use evenkeel_http::{Framing, HeaderId, ResponseHead};
use evenkeel_testkit::assert_h2spec_passes;

use crate::script::{Event, Script};

#[test]
fn passes_h2spec() {
    assert_h2spec_passes(start(), false);
}

/// Requests with and without a body, many at a time, of another implementation's HPACK and windows.
#[test]
fn answers_nghttp2() {
    let url = format!("http://127.0.0.1:{}/a/path?with=a&query", start());
    let body = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(body.path(), vec![b'x'; 100_000]).expect("a writable file");
    for (requests, more) in [("3000", vec!["-H", "x-repeated: value"]), ("300", vec!["-d"])] {
        let mut command = Command::new("h2load");
        command.args(["-n", requests, "-c", "3", "-m", "40"]).args(&more);
        if more.last() == Some(&"-d") {
            command.arg(body.path());
        }
        let output = command.arg(&url).output().expect("h2load starts: scripts/setup.sh test installs it");
        let text = String::from_utf8_lossy(&output.stdout);
        let expected = format!("{requests} succeeded, 0 failed, 0 errored, 0 timeout");
        assert!(text.contains(&expected), "{text}{}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Starts a server and returns its port.
fn start() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream));
        }
    });
    port
}

/// Answers every request with a short body. Ends with the connection, or with the first error on it.
fn serve(mut socket: TcpStream) {
    let mut connection = Connection::server(Options::default());
    let (mut input, mut buffer) = (Vec::new(), [0; 64 * 1024]);
    let mut pending: Vec<(StreamKey, &[u8])> = Vec::new();
    loop {
        let mut script = Script::default();
        let received = connection.receive(&input, &mut script);
        if let Ok(consumed) = received {
            input.drain(..consumed);
        }
        for event in script.events {
            act(&mut connection, event, &mut pending);
        }
        while let Some(stream) = connection.next_writable() {
            if let Some((_, body)) = pending.iter_mut().find(|(other, _)| *other == stream) {
                *body = &body[connection.send_data(stream, body, true).unwrap_or(body.len())..];
            }
        }
        pending.retain(|(stream, body)| !body.is_empty() && connection.is_open(*stream));
        let written = socket.write_all(connection.output());
        connection.written(connection.output().len());
        if written.is_err() || received.is_err() || connection.is_finished() {
            // What the peer still sends is read, or its kernel would drop what was just written.
            let _ = socket.shutdown(std::net::Shutdown::Write);
            while socket.read(&mut buffer).is_ok_and(|bytes| bytes > 0) {}
            return;
        }
        match socket.read(&mut buffer) {
            Ok(bytes) if bytes > 0 => input.extend_from_slice(&buffer[..bytes]),
            _ => return,
        }
    }
}

fn act(connection: &mut Connection, event: Event, pending: &mut Vec<(StreamKey, &'static [u8])>) {
    let (stream, end) = match event {
        Event::Request(stream, _, meta) => (stream, meta.end),
        Event::Data(stream, data, end) => {
            connection.release_stream(stream, data.len());
            connection.release_connection(data.len());
            (stream, end)
        }
        Event::Trailers(stream, _) => (stream, true),
        _ => return,
    };
    if end {
        let mut head = ResponseHead { status: 200, ..ResponseHead::default() };
        head.headers.append_id(HeaderId::ContentType, b"text/plain");
        let body = b"hello\n";
        if connection.respond(stream, &head, Framing::Length(body.len() as u64), false).is_ok() {
            let sent = connection.send_data(stream, body, true).unwrap_or(body.len());
            pending.push((stream, &body[sent..]));
        }
    }
}
