//! An HTTP/2 client with prior knowledge, for loads that `h2load` cannot make: one stream after the other, and streams that
//! stay open.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::error::{LoadError, io};
use crate::frames::{
    self, DATA, FLAG_ACK, FLAG_END_HEADERS, FLAG_END_STREAM, Frames, GOAWAY, HEADERS, PING, PREFACE, RST_STREAM,
    SETTINGS, WINDOW_UPDATE,
};

const READ_BYTES: usize = 16 << 10;
/// Credit for the connection, given back whenever half of it is used.
const WINDOW_BYTES: u32 = 1 << 20;

/// One connection.
pub struct Http2Client {
    stream: TcpStream,
    frames: Frames,
    next_stream: u32,
    taken: u32,
}

/// The meaning of a frame for a client that waits for responses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Event {
    /// Whether a response begins.
    pub begins: bool,
    /// A response is complete.
    pub ends_stream: bool,
}

impl Http2Client {
    /// Connects and greets. An answer may take as long as `patience`.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub fn connect(target: SocketAddr, patience: Duration) -> Result<Self, LoadError> {
        Self::open(target, patience).map_err(io("connecting"))
    }

    fn open(target: SocketAddr, patience: Duration) -> std::io::Result<Self> {
        let mut stream = TcpStream::connect(target)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(patience))?;
        let mut out = PREFACE.to_vec();
        frames::put(&mut out, SETTINGS, 0, 0, &[]);
        frames::put(&mut out, WINDOW_UPDATE, 0, 0, &WINDOW_BYTES.to_be_bytes());
        stream.write_all(&out)?;
        Ok(Self { stream, frames: Frames::default(), next_stream: 1, taken: 0 })
    }

    /// The frame of a `GET`.
    pub fn request(&mut self, path: &str) -> Vec<u8> {
        let mut head = Vec::new();
        for (name, value) in [(":method", "GET"), (":scheme", "http"), (":authority", "backend.local"), (":path", path)]
        {
            frames::put_field(&mut head, name, value);
        }
        let mut frame = Vec::new();
        frames::put(&mut frame, HEADERS, FLAG_END_HEADERS | FLAG_END_STREAM, self.next_stream, &head);
        // The client's streams have odd numbers.
        self.next_stream += 2;
        frame
    }

    /// Sends frames in one piece.
    ///
    /// # Errors
    /// The server has closed the connection.
    pub fn send(&mut self, frames: &[u8]) -> Result<(), LoadError> {
        self.stream.write_all(frames).map_err(io("sending frames"))
    }

    /// Receives the next frame; answers frames that require it.
    ///
    /// # Errors
    /// The server has ended a stream or the connection, or sends nothing.
    pub fn receive(&mut self) -> Result<Event, LoadError> {
        loop {
            if let Some(frame) = self.frames.next_frame() {
                let mut out = Vec::new();
                let event = Event { begins: frame.kind == HEADERS, ends_stream: false };
                match frame.kind {
                    HEADERS | DATA => {
                        if frame.kind == DATA {
                            // Lengths of frames have 24 bits.
                            self.taken += u32::try_from(frame.payload.len()).unwrap_or(u32::MAX);
                        }
                        if self.taken > WINDOW_BYTES / 2 {
                            frames::put(&mut out, WINDOW_UPDATE, 0, 0, &self.taken.to_be_bytes());
                            self.taken = 0;
                        }
                        let ends_stream = frame.ends_stream();
                        self.stream.write_all(&out).map_err(io("sending frames"))?;
                        return Ok(Event { ends_stream, ..event });
                    }
                    SETTINGS | PING if !frame.is_ack() => {
                        let payload = if frame.kind == PING { frame.payload } else { &[] };
                        frames::put(&mut out, frame.kind, FLAG_ACK, 0, payload);
                        self.stream.write_all(&out).map_err(io("sending frames"))?;
                    }
                    RST_STREAM | GOAWAY => return Err(LoadError::Reset { stream: frame.stream, kind: frame.kind }),
                    _ => {}
                }
                continue;
            }
            let mut buffer = [0; READ_BYTES];
            let count = self.stream.read(&mut buffer).map_err(io("waiting for a response"))?;
            if count == 0 {
                return Err(LoadError::Closed);
            }
            self.frames.add(&buffer[..count]);
        }
    }
}
