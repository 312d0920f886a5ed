//! How a request ended.

use std::io;

/// Why a request failed before its response was complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Fault {
    /// Nobody listens there.
    Refused,
    /// No connection was made in time.
    ConnectTimeout,
    /// Any other failure to connect.
    Connect,
    /// The TLS handshake failed, or its records are wrong.
    Tls,
    /// The response did not come in time.
    Timeout,
    /// The peer closed the connection before the end of the response.
    Closed,
    /// The peer reset the connection.
    Reset,
    /// The peer reset the stream, or takes no more streams on the connection.
    StreamReset,
    /// The response is not one of the protocol, or not the one that was expected.
    Protocol,
    /// Any other error of the socket.
    Socket,
}

impl Fault {
    /// Its name in results.
    pub fn name(self) -> &'static str {
        match self {
            Self::Refused => "connection refused",
            Self::ConnectTimeout => "connect timeout",
            Self::Connect => "connect",
            Self::Tls => "tls",
            Self::Timeout => "timeout",
            Self::Closed => "closed by peer",
            Self::Reset => "reset by peer",
            Self::StreamReset => "stream reset",
            Self::Protocol => "protocol",
            Self::Socket => "socket",
        }
    }

    /// The fault of an error of a connection that is established.
    pub fn of(error: &io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => Self::Reset,
            io::ErrorKind::ConnectionRefused => Self::Refused,
            io::ErrorKind::UnexpectedEof => Self::Closed,
            io::ErrorKind::InvalidData => Self::Tls,
            io::ErrorKind::TimedOut => Self::ConnectTimeout,
            _ => Self::Socket,
        }
    }
}

/// What a response says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// An HTTP status.
    Http(u16),
    /// A result with a name: `SERVING`, `OK`.
    Named(&'static str),
}

impl Code {
    /// Whether the request counts as a success. Fortio takes 418 for one.
    pub fn is_ok(self) -> bool {
        match self {
            Self::Http(status) => (200..300).contains(&status) || status == 418,
            Self::Named(name) => matches!(name, "OK" | "SERVING"),
        }
    }
}

/// A complete response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Which of the connection's calls it answers.
    pub call: usize,
    /// What it says.
    pub code: Code,
    /// Bytes of its head.
    pub header_bytes: u64,
    /// Bytes of head and body, as they came.
    pub total_bytes: u64,
    /// Whether the connection cannot be used again.
    pub closes: bool,
}
