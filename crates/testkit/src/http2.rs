//! A raw HTTP/2 client, or server: sends any given frames, valid or not.

use std::io;
use std::net::{SocketAddr, TcpStream};

use crate::http::{Connection, READ_TIMEOUT};

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// `:method: GET`, `:path: /`, `:scheme: http` and `:authority: a`, without the dynamic table (RFC 7541 appendix A).
const GET: &[u8] = &[0x82, 0x84, 0x86, 0x01, 1, b'a'];

/// One connection.
pub struct Http2Frames {
    connection: Connection,
    next_stream: u32,
}

/// A frame the peer sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Its type (RFC 9113 section 6).
    pub kind: u8,
    /// Its flags.
    pub flags: u8,
    /// Its stream; 0 for the connection's.
    pub stream: u32,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Http2Frames {
    /// Frame types (RFC 9113 section 6).
    pub const DATA: u8 = 0;
    /// HEADERS.
    pub const HEADERS: u8 = 1;
    /// PRIORITY.
    pub const PRIORITY: u8 = 2;
    /// RST_STREAM.
    pub const RST_STREAM: u8 = 3;
    /// SETTINGS.
    pub const SETTINGS: u8 = 4;
    /// PING.
    pub const PING: u8 = 6;
    /// GOAWAY.
    pub const GOAWAY: u8 = 7;
    /// WINDOW_UPDATE.
    pub const WINDOW_UPDATE: u8 = 8;
    /// CONTINUATION.
    pub const CONTINUATION: u8 = 9;
    /// The flag END_STREAM.
    pub const END_STREAM: u8 = 1;
    /// The flag END_HEADERS.
    pub const END_HEADERS: u8 = 4;

    /// Connects and sends the preface. SETTINGS are the caller's to send.
    ///
    /// # Errors
    /// The socket's.
    pub fn open(address: SocketAddr) -> io::Result<Self> {
        Self::over(Connection::open(address)?)
    }

    /// Like `open`, on an existing connection, for example with TLS.
    ///
    /// # Errors
    /// The socket's.
    pub fn over(mut connection: Connection) -> io::Result<Self> {
        connection.send(PREFACE)?;
        Ok(Self { connection, next_stream: 1 })
    }

    /// Is the server on an accepted connection, whose preface it reads. SETTINGS are the caller's to send.
    ///
    /// # Errors
    /// The socket's, and when the client begins with something else.
    pub fn accept(socket: TcpStream) -> io::Result<Self> {
        socket.set_read_timeout(Some(READ_TIMEOUT))?;
        let mut connection = Connection::over(socket.try_clone()?, socket);
        if connection.read_exact(PREFACE.len())? != PREFACE {
            return Err(io::ErrorKind::InvalidData.into());
        }
        Ok(Self { connection, next_stream: 2 })
    }

    /// This side's address.
    ///
    /// # Errors
    /// When the socket is no longer connected.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.connection.local_addr()
    }

    /// A field of a header block, without the tables (RFC 7541 section 6.2.2).
    ///
    /// # Panics
    /// When name or value has 127 bytes or more.
    pub fn field(name: &str, value: &str) -> Vec<u8> {
        let text = |text: &str| {
            let length = u8::try_from(text.len()).ok().filter(|length| *length < 127).expect("a short text");
            [&[length], text.as_bytes()].concat()
        };
        [vec![0], text(name), text(value)].concat()
    }

    /// A frame's bytes.
    ///
    /// # Panics
    /// When the payload is longer than a frame can be.
    pub fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).ok().filter(|length| *length < 1 << 24).expect("a frame's length");
        [&length.to_be_bytes()[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
    }

    /// Sends a frame.
    ///
    /// # Errors
    /// The socket's.
    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> io::Result<()> {
        self.send(&Self::bytes(kind, flags, stream, payload))
    }

    /// Sends these bytes.
    ///
    /// # Errors
    /// The socket's.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.connection.send(bytes)
    }

    /// The bytes of a whole GET on a stream.
    pub fn get_bytes(stream: u32) -> Vec<u8> {
        Self::bytes(Self::HEADERS, Self::END_STREAM | Self::END_HEADERS, stream, GET)
    }

    /// Sends a GET on the next stream, and says which that is.
    ///
    /// # Errors
    /// The socket's.
    pub fn get(&mut self) -> io::Result<u32> {
        let stream = self.next_stream;
        self.next_stream += 2;
        self.send(&Self::get_bytes(stream))?;
        Ok(stream)
    }

    /// The response on a stream: the first byte of its head, which is that of `:status`, and its body. `None` if the peer ends
    /// the stream or the connection without one.
    ///
    /// # Errors
    /// The socket's.
    pub fn response(&mut self, stream: u32) -> io::Result<Option<(Option<u8>, Vec<u8>)>> {
        let (mut status, mut body) = (None, Vec::new());
        while let Some(frame) = self.next_frame()? {
            match frame.kind {
                Self::GOAWAY => return Ok(None),
                _ if frame.stream != stream => continue,
                Self::RST_STREAM => return Ok(None),
                Self::HEADERS => status = frame.payload.first().copied(),
                Self::DATA => body.extend_from_slice(&frame.payload),
                _ => continue,
            }
            if frame.flags & Self::END_STREAM != 0 {
                return Ok(Some((status, body)));
            }
        }
        Ok(None)
    }

    /// The next frame; `None` at the end of the connection.
    ///
    /// # Errors
    /// The socket's.
    pub fn next_frame(&mut self) -> io::Result<Option<Frame>> {
        let head = match self.connection.read_exact(9) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            head => <[u8; 9]>::try_from(head?).unwrap_or_default(),
        };
        let [a, b, c, kind, flags, w, x, y, z] = head;
        let payload = self.connection.read_exact(u32::from_be_bytes([0, a, b, c]) as usize)?;
        Ok(Some(Frame { kind, flags, stream: u32::from_be_bytes([w, x, y, z]) & (u32::MAX >> 1), payload }))
    }

    /// Reads until the peer ends the connection; the error codes of its GOAWAYs. A reset is an end, too.
    ///
    /// # Errors
    /// When it does not end in time.
    pub fn end(&mut self) -> io::Result<Vec<u32>> {
        let mut codes = Vec::new();
        loop {
            match self.next_frame() {
                Ok(Some(Frame { kind: Self::GOAWAY, payload, .. })) => {
                    let code = payload.get(4..8).and_then(|code| code.try_into().ok());
                    codes.extend(code.map(u32::from_be_bytes));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(codes),
                Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                    return Err(error);
                }
                Err(_) => return Ok(codes),
            }
        }
    }
}
