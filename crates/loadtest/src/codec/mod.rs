//! The protocols: requests as bytes, and responses found in bytes.

mod echo;
mod http1;

use std::io;

pub use echo::Echo;
pub use http1::{Http1, Http1Request};

use crate::outcome::{Answer, Fault};

/// The protocol's state on one connection.
#[derive(Debug)]
pub enum Codec {
    /// HTTP/1.0 and HTTP/1.1.
    Http1(Http1),
    /// Bytes that come back.
    Echo(Echo),
}

impl Codec {
    /// Appends a request.
    pub fn request(&mut self, call: usize, out: &mut Vec<u8>) {
        match self {
            Self::Http1(http1) => http1.request(call, out),
            Self::Echo(echo) => echo.request(call, out),
        }
    }

    /// Takes bytes from the server; `answers` gets what is complete, and `out` what has to be sent.
    ///
    /// # Errors
    /// They are not what the protocol allows; the connection is of no use any more.
    pub fn receive(&mut self, bytes: &[u8], events: &mut Events) -> Result<(), Fault> {
        match self {
            Self::Http1(http1) => http1.receive(bytes, events),
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

    /// A new connection begins.
    pub fn reset(&mut self) {
        match self {
            Self::Http1(http1) => http1.reset(),
            Self::Echo(echo) => echo.reset(),
        }
    }
}

/// What bytes from the server led to.
#[derive(Debug, Default)]
pub struct Events {
    /// Complete responses.
    pub answers: Vec<Answer>,
}
