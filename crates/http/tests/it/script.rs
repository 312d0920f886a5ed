//! A sink that writes down what it is told.

use evenkeel_http::h2::{Counter, PeerSettings, Reason, RequestMeta, Reset, ResponseMeta, Sink, StreamKey};
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
    Settings(PeerSettings),
    Count(Counter),
}

#[derive(Debug, Default)]
pub struct Script {
    pub events: Vec<Event>,
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

    fn reset(&mut self, stream: StreamKey, reset: Reset) {
        self.events.push(Event::Reset(stream, reset));
    }

    fn goaway(&mut self, last: u32, reason: Reason, _debug: &[u8]) {
        self.events.push(Event::Goaway(last, reason));
    }

    fn pong(&mut self, payload: [u8; 8]) {
        self.events.push(Event::Pong(payload));
    }

    fn settings(&mut self, settings: PeerSettings) {
        self.events.push(Event::Settings(settings));
    }

    fn count(&mut self, counter: Counter) {
        self.events.push(Event::Count(counter));
    }
}
