//! A sink that records events.

use std::fmt::Write;

use evenkeel_http::h2::{Counter, Fault, PeerSettings, Reason, RequestMeta, Reset, ResponseMeta, Sink, StreamKey};
use evenkeel_http::{Headers, RequestHead, ResponseHead};

/// What the sink was told, with everything copied.
#[derive(Debug, Clone)]
pub enum Event {
    Request(StreamKey, Box<RequestHead>, RequestMeta),
    Interim(StreamKey, ResponseHead),
    Response(StreamKey, ResponseHead, ResponseMeta),
    Data(StreamKey, Vec<u8>, bool),
    Trailers(StreamKey, Headers),
    Reset(StreamKey, Reset),
    Goaway(u32, Reason),
    Pong([u8; 8]),
}

#[derive(Debug, Default)]
pub struct Script {
    pub events: Vec<Event>,
    pub counts: Vec<Counter>,
    /// What was wrong with heads that were no requests, and with messages whose streams were reset for it.
    pub faults: Vec<Fault>,
    /// The peer's settings have come.
    pub settled: bool,
}

impl Script {
    /// One line for each event; pieces of data behind one another are one.
    pub fn describe(&self) -> String {
        let mut text = String::new();
        let mut body: Option<(StreamKey, Vec<u8>)> = None;
        let flush = |text: &mut String, body: &mut Option<(StreamKey, Vec<u8>)>, end: &str| {
            if let Some((stream, bytes)) = body.take() {
                let _ = writeln!(text, "data {} {}{end}", stream.id(), bytes.escape_ascii());
            }
        };
        for event in &self.events {
            if let Event::Data(stream, bytes, end) = event {
                if body.as_ref().is_some_and(|(other, _)| other != stream) {
                    flush(&mut text, &mut body, "");
                }
                body.get_or_insert_with(|| (*stream, Vec::new())).1.extend(bytes);
                if *end {
                    flush(&mut text, &mut body, " end");
                }
                continue;
            }
            flush(&mut text, &mut body, "");
            let _ = match event {
                Event::Request(stream, head, meta) => {
                    let protocol = head.protocol().escape_ascii().to_string();
                    let scheme = if meta.https { "https" } else { "http" };
                    let (id, framing, end) = (stream.id(), meta.framing, if meta.end { " end" } else { "" });
                    let (method, path) = (head.method().escape_ascii(), head.path().escape_ascii());
                    let authority = head.authority().escape_ascii();
                    write!(text, "request {id} {method} {scheme}://{authority} {path} {protocol}{framing:?}{end}")
                        .and_then(|()| describe_fields(&mut text, &head.headers))
                }
                Event::Interim(stream, head) => write!(text, "interim {} {}", stream.id(), head.status)
                    .and_then(|()| describe_fields(&mut text, &head.headers)),
                Event::Response(stream, head, meta) => {
                    let end = if meta.end { " end" } else { "" };
                    write!(text, "response {} {} {:?}{end}", stream.id(), head.status, meta.framing)
                        .and_then(|()| describe_fields(&mut text, &head.headers))
                }
                Event::Trailers(stream, trailers) => {
                    write!(text, "trailers {}", stream.id()).and_then(|()| describe_fields(&mut text, trailers))
                }
                Event::Reset(stream, reset) => {
                    let by = if reset.by_peer { "peer" } else { "self" };
                    let unprocessed = if reset.unprocessed { " unprocessed" } else { "" };
                    writeln!(text, "reset {} {} by {by}{unprocessed}", stream.id(), reset.reason)
                }
                Event::Goaway(last, reason) => writeln!(text, "goaway {last} {reason}"),
                Event::Pong(payload) => writeln!(text, "pong {}", payload.escape_ascii()),
                Event::Data(..) => Ok(()),
            };
        }
        flush(&mut text, &mut body, "");
        text
    }
}

fn describe_fields(text: &mut String, headers: &Headers) -> std::fmt::Result {
    for (_, name, value) in headers.iter() {
        write!(text, " {}={}", name.escape_ascii(), value.escape_ascii())?;
    }
    writeln!(text)
}

impl Sink for Script {
    fn request(&mut self, stream: StreamKey, head: &mut RequestHead, meta: RequestMeta) {
        self.events.push(Event::Request(stream, Box::new(std::mem::take(head)), meta));
    }

    fn interim(&mut self, stream: StreamKey, head: &mut ResponseHead) {
        self.events.push(Event::Interim(stream, std::mem::take(head)));
    }

    fn response(&mut self, stream: StreamKey, head: &mut ResponseHead, meta: ResponseMeta) {
        self.events.push(Event::Response(stream, std::mem::take(head), meta));
    }

    fn data(&mut self, stream: StreamKey, data: &[u8], end: bool) {
        self.events.push(Event::Data(stream, data.to_vec(), end));
    }

    fn trailers(&mut self, stream: StreamKey, trailers: &mut Headers) {
        self.events.push(Event::Trailers(stream, std::mem::take(trailers)));
    }

    fn refused(&mut self, fault: Fault) {
        self.faults.push(fault);
    }

    fn reset(&mut self, stream: StreamKey, reset: Reset) {
        self.faults.extend(reset.fault);
        self.events.push(Event::Reset(stream, reset));
    }

    fn goaway(&mut self, last: u32, reason: Reason, _debug: &[u8]) {
        self.events.push(Event::Goaway(last, reason));
    }

    fn pong(&mut self, payload: [u8; 8]) {
        self.events.push(Event::Pong(payload));
    }

    fn settings(&mut self, _settings: PeerSettings) {
        self.settled = true;
    }

    fn count(&mut self, counter: Counter) {
        self.counts.push(counter);
    }
}
