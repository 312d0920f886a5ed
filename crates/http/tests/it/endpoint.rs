//! The codec as a client that sends messages, and as a server that echoes them; one turn at a time, over any transport.

use std::collections::HashMap;

use evenkeel_http::h2::{Connection, Options, Reset, StreamKey};

use crate::messages::{Message, fields_of};
use crate::script::{Event, Script};

/// Options under which everything has to be done in pieces.
pub fn narrow() -> Options {
    Options {
        initial_stream_window_size: 65_535,
        initial_connection_window_size: 100_000,
        max_output_bytes: 40_000,
        quantum_bytes: 5_000,
        max_concurrent_streams: 20,
        hpack_table_size: 1_000,
        ..Options::default()
    }
}

#[derive(Debug)]
struct Transfer {
    message: Message,
    sent: usize,
    received: Message,
    /// All of the peer's message is there.
    complete: bool,
    /// All of this side's was handed to the codec.
    done: bool,
    responding: bool,
}

/// One end of a connection, with the messages under way on it.
pub struct Endpoint {
    pub connection: Connection,
    input: Vec<u8>,
    transfers: HashMap<StreamKey, Transfer>,
    /// What a client has still to ask.
    waiting: Vec<Message>,
    /// A client asks nothing before it knows the server's settings.
    pub patient: bool,
    /// What a client asked and was answered.
    pub answered: Vec<(Message, Message)>,
}

fn empty() -> Message {
    Message { method: "", path: String::new(), fields: vec![], body: vec![], trailers: vec![] }
}

impl Endpoint {
    pub fn server(options: Options) -> Self {
        Self::new(Connection::server(options), Vec::new())
    }

    pub fn client(options: Options, messages: Vec<Message>) -> Self {
        Self::new(Connection::client(options), messages)
    }

    fn new(connection: Connection, waiting: Vec<Message>) -> Self {
        Self { connection, input: Vec::new(), transfers: HashMap::new(), waiting, patient: false, answered: Vec::new() }
    }

    /// A client has all its answers.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.transfers.is_empty()
    }

    /// Takes bytes and does what they allow; what is to be sent is then in the connection's output.
    pub fn turn(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let mut script = Script::default();
        let consumed = self.connection.receive(&self.input, &mut script).expect("no error");
        self.input.drain(..consumed);
        self.patient &= !script.settled;
        script.events.into_iter().for_each(|event| self.act(event));
        self.pump();
    }

    /// Opens what can be opened and gives their turn to streams that wait.
    pub fn pump(&mut self) {
        while !self.patient
            && self.connection.can_open().is_ok()
            && let Some(message) = self.waiting.pop()
        {
            let (head, bare) = (message.request_head(), message.is_bare());
            let stream = self.connection.open(&head, true, message.framing(), bare).expect("can open");
            let transfer =
                Transfer { message, sent: 0, received: empty(), complete: false, done: bare, responding: true };
            self.transfers.insert(stream, transfer);
            self.send(stream);
        }
        while let Some(stream) = self.connection.next_writable() {
            self.send(stream);
        }
    }

    fn send(&mut self, stream: StreamKey) {
        let Some(transfer) = self.transfers.get_mut(&stream).filter(|transfer| !transfer.done) else { return };
        let (message, trailers) = (&transfer.message, !transfer.message.trailers.is_empty());
        let rest = &message.body[transfer.sent..];
        transfer.sent += self.connection.send_data(stream, rest, !trailers).expect("open");
        if transfer.sent == message.body.len() {
            if trailers {
                self.connection.send_trailers(stream, &message.trailer_fields()).expect("open");
            }
            transfer.done = true;
        }
        self.finish(stream);
    }

    fn act(&mut self, event: Event) {
        let (stream, end) = match event {
            Event::Request(stream, head, meta) => {
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let methods = ["GET", "POST", "PUT", "DELETE"];
                let method =
                    methods.into_iter().find(|method| method.as_bytes() == head.method()).expect("one of them");
                let received = Message { method, path: text(head.path()), fields: fields_of(&head.headers), ..empty() };
                let transfer =
                    Transfer { message: empty(), sent: 0, received, complete: false, done: false, responding: false };
                self.transfers.insert(stream, transfer);
                (stream, meta.end)
            }
            Event::Response(stream, head, meta) => {
                self.received(stream).fields = fields_of(&head.headers);
                (stream, meta.end)
            }
            Event::Data(stream, bytes, end) => {
                self.received(stream).body.extend(&bytes);
                self.connection.release_and_widen(stream, bytes.len(), 1 << 20);
                self.connection.release_connection(bytes.len());
                (stream, end)
            }
            Event::Trailers(stream, trailers) => {
                self.received(stream).trailers = fields_of(&trailers);
                (stream, true)
            }
            // Opened before the server had said how many it takes.
            Event::Reset(stream, Reset { unprocessed: true, .. }) => {
                let transfer = self.transfers.remove(&stream).expect("a stream that is known");
                return self.waiting.push(transfer.message);
            }
            Event::Reset(stream, reset) => panic!("stream {} was reset: {reset:?}", stream.id()),
            _ => return,
        };
        if end && let Some(transfer) = self.transfers.get_mut(&stream) {
            transfer.complete = true;
            if !transfer.responding {
                transfer.responding = true;
                transfer.message = transfer.received.clone();
                let message = &transfer.message;
                transfer.done = message.is_bare();
                self.connection
                    .respond(stream, &message.response_head(), message.framing(), transfer.done)
                    .expect("open");
                self.send(stream);
            }
            self.finish(stream);
        }
    }

    fn received(&mut self, stream: StreamKey) -> &mut Message {
        &mut self.transfers.get_mut(&stream).expect("a stream that is known").received
    }

    fn finish(&mut self, stream: StreamKey) {
        if self.transfers.get(&stream).is_some_and(|transfer| transfer.done && transfer.complete)
            && let Some(transfer) = self.transfers.remove(&stream)
        {
            assert!(!self.connection.is_open(stream), "both ends have ended it");
            self.answered.push((transfer.message, transfer.received));
        }
    }
}

/// Answers are what was asked, and all are there.
pub fn assert_repeated(answered: &[(Message, Message)], count: usize) {
    assert_eq!(answered.len(), count);
    for (asked, answer) in answered {
        assert_eq!(asked.fields, answer.fields);
        assert_eq!(asked.trailers, answer.trailers);
        assert!(asked.body == answer.body, "bodies of {} and {} bytes", asked.body.len(), answer.body.len());
    }
}
