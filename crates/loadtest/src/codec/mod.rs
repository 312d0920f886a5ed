//! The protocols: requests as bytes, and responses found in bytes.

mod echo;
mod http1;
mod http2;

use std::io;

pub use echo::Echo;
pub use http1::{Http1, Http1Request};
pub use http2::{Http2, Http2Request, Reading};

use crate::outcome::{Answer, Fault};

/// The protocol's state on one connection.
#[derive(Debug)]
pub enum Codec {
    /// HTTP/1.0 and HTTP/1.1.
    Http1(Http1),
    /// HTTP/2 and gRPC.
    Http2(Box<Http2>),
    /// Bytes that come back.
    Echo(Echo),
}

impl Codec {
    /// Appends a request.
    pub fn request(&mut self, call: usize, out: &mut Vec<u8>) {
        match self {
            Self::Http1(http1) => http1.request(call, out),
            Self::Http2(http2) => http2.request(call, out),
            Self::Echo(echo) => echo.request(call, out),
        }
    }

    /// Takes bytes from the server; `answers` gets what is complete, and `out` what has to be sent.
    ///
    /// # Errors
    /// They are not what the protocol allows; the connection is of no use any more.
    pub fn receive(&mut self, bytes: &[u8], events: &mut Events, out: &mut Vec<u8>) -> Result<(), Fault> {
        match self {
            Self::Http1(http1) => http1.receive(bytes, events),
            Self::Http2(http2) => http2.receive(bytes, events, out),
            Self::Echo(echo) => echo.receive(bytes, events),
        }
    }

    /// The server has closed the connection.
    pub fn end(&mut self, events: &mut Events) -> Fault {
        if let Self::Http1(http1) = self {
            http1.end(events);
        }
        Fault::of(&io::ErrorKind::UnexpectedEof.into())
    }

    /// Whether the connection takes no more requests.
    pub fn is_spent(&self) -> bool {
        matches!(self, Self::Http2(http2) if http2.is_spent())
    }

    /// A new connection begins.
    pub fn reset(&mut self) {
        match self {
            Self::Http1(http1) => http1.reset(),
            Self::Http2(http2) => http2.reset(),
            Self::Echo(echo) => echo.reset(),
        }
    }
}

/// What bytes from the server led to.
#[derive(Debug, Default)]
pub struct Events {
    /// Complete responses.
    pub answers: Vec<Answer>,
    /// Calls whose streams were reset.
    pub failed: Vec<usize>,
}
