//! The cheapest HTTP/2 server: prior knowledge, one prepared answer per request, header blocks that need no table. It does not
//! look into requests' header blocks: a request without a body is answered as HTTP, one with a body as gRPC.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

use crate::epoll::{self, Epoll, Interest};
use crate::frames::{
    DATA, FLAG_ACK, FLAG_END_HEADERS, FLAG_END_STREAM, Frames, HEADERS, PING, PREFACE, SETTINGS, WINDOW_UPDATE, put,
    put_field,
};

const LISTENER: usize = usize::MAX;
const READ_BYTES: usize = 64 << 10;
/// Body bytes after which their credit is given back.
const CREDIT_BYTES: u32 = 32 << 10;
/// RFC 9113 section 6.9.2.
const INITIAL_WINDOW_BYTES: i64 = 65_535;
const GRPC_MESSAGE_BYTES: u8 = 32;

/// The prepared answers.
struct Answers {
    head: Vec<u8>,
    body: Vec<u8>,
    grpc_head: Vec<u8>,
    grpc_body: Vec<u8>,
    grpc_trailers: Vec<u8>,
    /// Responses begin and do not end.
    hold: bool,
}

struct Client {
    stream: TcpStream,
    frames: Frames,
    greeted: bool,
    out: Vec<u8>,
    /// Bytes we may send on the connection.
    window: i64,
    /// Streams whose bodies wait for it, with what is to be sent.
    waiting: Vec<(u32, bool)>,
    /// Body bytes taken for which no credit was given back yet.
    taken: u32,
}

/// Serves `listen` until the process ends; bodies have `bytes` bytes. With `hold`, responses begin and never end.
pub fn run(listen: SocketAddr, bytes: usize, hold: bool) -> io::Result<()> {
    let listener = epoll::listen(listen)?;
    let mut epoll = Epoll::new()?;
    epoll.add(&listener, LISTENER, Interest::Read)?;
    let answers = Answers::new(bytes, hold);
    let mut clients: Vec<Option<Client>> = Vec::new();
    let (mut ready, mut buffer) = (Vec::new(), vec![0; READ_BYTES]);
    loop {
        epoll.wait(&mut ready)?;
        for slot in ready.drain(..) {
            if slot == LISTENER {
                let Ok((stream, _)) = listener.accept() else { continue };
                stream.set_nodelay(true)?;
                stream.set_nonblocking(true)?;
                let free = clients.iter().position(Option::is_none).unwrap_or(clients.len());
                epoll.add(&stream, free, Interest::Read)?;
                if free == clients.len() {
                    clients.push(None);
                }
                clients[free] = Some(Client::new(stream));
            } else if let Some(client) = clients[slot].as_mut()
                && client.turn(&mut buffer, &answers).is_err()
            {
                clients[slot] = None;
            }
        }
    }
}

impl Client {
    fn new(stream: TcpStream) -> Self {
        let mut out = Vec::new();
        // SETTINGS_MAX_CONCURRENT_STREAMS (3): 1000. SETTINGS_INITIAL_WINDOW_SIZE (4): 1 MiB.
        put(&mut out, SETTINGS, 0, 0, &[0, 3, 0, 0, 3, 232, 0, 4, 0, 16, 0, 0]);
        put(&mut out, WINDOW_UPDATE, 0, 0, &(1u32 << 24).to_be_bytes());
        Self {
            stream,
            frames: Frames::default(),
            greeted: false,
            out,
            window: INITIAL_WINDOW_BYTES,
            waiting: Vec::new(),
            taken: 0,
        }
    }

    /// Handles one event: reads once, and answers all complete requests with one write.
    fn turn(&mut self, buffer: &mut [u8], answers: &Answers) -> io::Result<()> {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        self.frames.add(&buffer[..count]);
        self.greeted = self.greeted || self.frames.skip(PREFACE.len());
        if !self.greeted {
            return Ok(());
        }
        let mut frames = std::mem::take(&mut self.frames);
        while let Some(frame) = frames.next_frame() {
            match frame.kind {
                HEADERS if frame.ends_stream() => self.waiting.push((frame.stream, false)),
                DATA => {
                    self.taken += frame.payload.len() as u32;
                    if frame.ends_stream() {
                        self.waiting.push((frame.stream, true));
                    }
                }
                SETTINGS if !frame.is_ack() => put(&mut self.out, SETTINGS, FLAG_ACK, 0, &[]),
                PING if !frame.is_ack() => put(&mut self.out, PING, FLAG_ACK, 0, frame.payload),
                WINDOW_UPDATE if frame.stream == 0 => {
                    let credit = frame.payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes));
                    self.window += i64::from(credit);
                }
                _ => {}
            }
        }
        self.frames = frames;
        if self.taken >= CREDIT_BYTES {
            put(&mut self.out, WINDOW_UPDATE, 0, 0, &self.taken.to_be_bytes());
            self.taken = 0;
        }
        self.answer(answers);
        // The answers in flight fit into the send buffer; a client that does not read is disconnected.
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Answers those waiting, in their order, as far as the connection's window reaches. A stream's own window always does: it is
    /// 65,535 bytes at least for a body of one answer.
    fn answer(&mut self, answers: &Answers) {
        let (window, out) = (&mut self.window, &mut self.out);
        let affordable = self.waiting.iter().position(|(_, grpc)| {
            let bytes = if *grpc { answers.grpc_body.len() } else { answers.body.len() } as i64;
            let affordable = answers.hold || *window >= bytes;
            *window -= if affordable && !answers.hold { bytes } else { 0 };
            !affordable
        });
        for (stream, grpc) in self.waiting.drain(..affordable.unwrap_or(self.waiting.len())) {
            let head = if grpc { &answers.grpc_head } else { &answers.head };
            put(out, HEADERS, FLAG_END_HEADERS, stream, head);
            if answers.hold {
                continue;
            }
            if grpc {
                put(out, DATA, 0, stream, &answers.grpc_body);
                put(out, HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, stream, &answers.grpc_trailers);
            } else {
                put(out, DATA, FLAG_END_STREAM, stream, &answers.body);
            }
        }
    }
}

impl Answers {
    fn new(bytes: usize, hold: bool) -> Self {
        let block = |fields: &[(&str, &str)]| {
            let mut block = Vec::new();
            fields.iter().for_each(|(name, value)| put_field(&mut block, name, value));
            block
        };
        let mut grpc_body = vec![0, 0, 0, 0, GRPC_MESSAGE_BYTES];
        grpc_body.resize(5 + usize::from(GRPC_MESSAGE_BYTES), b'm');
        // A response that does not end has no length.
        let length = bytes.to_string();
        let mut head = vec![(":status", "200"), ("server", "backend"), ("content-type", "application/json")];
        head.extend([("date", "Sat, 21 Nov 2026 00:00:00 GMT"), ("cache-control", "no-store")]);
        head.extend((!hold).then_some(("content-length", length.as_str())));
        Self {
            head: block(&head),
            body: vec![b'x'; bytes],
            grpc_head: block(&[(":status", "200"), ("content-type", "application/grpc")]),
            grpc_body,
            grpc_trailers: block(&[("grpc-status", "0")]),
            hold,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Answers, Client};
    use crate::frames::{DATA, Frames};
    use std::net::{Ipv4Addr, TcpListener, TcpStream};

    #[test]
    fn answers_only_what_the_connections_window_allows() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut client, answers) = (Client::new(stream), Answers::new(1000, false));
        client.out.clear();
        client.window = 2500;
        client.waiting = vec![(1, false), (3, false), (5, false)];
        let mut check = |credit, streams: &[u32]| {
            client.window += credit;
            client.answer(&answers);
            let mut frames = Frames::default();
            frames.add(&std::mem::take(&mut client.out));
            let mut sent = Vec::new();
            while let Some(frame) = frames.next_frame() {
                if frame.kind == DATA {
                    sent.push(frame.stream);
                }
            }
            assert_eq!(sent, streams);
        };
        check(0, &[1, 3]);
        check(0, &[]);
        check(500, &[5]);
    }
}
