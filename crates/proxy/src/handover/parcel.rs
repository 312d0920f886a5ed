//! A connection on its way to another process: descriptors, the bytes that were read and not yet passed on, and what is known
//! of it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// A connection between two processes.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) travelling: Box<Travelling>,
    /// The client's socket; the upstream's behind it for a TCP connection.
    pub(crate) fds: Vec<OwnedFd>,
    /// Read from the client and not yet used, and behind it what was read from the upstream.
    pub(crate) bytes: Vec<u8>,
}

/// What is known of a connection that travels.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Travelling {
    /// The listener that accepted it, by its configured address.
    pub(crate) listener: SocketAddr,
    /// Its name, where the address says port 0.
    pub(crate) listener_name: Option<String>,
    /// The socket's peer.
    pub(crate) direct_remote: SocketAddr,
    /// The client.
    pub(crate) remote: SocketAddr,
    /// What the client dialled.
    pub(crate) local: SocketAddr,
    /// How long ago it was accepted, in milliseconds.
    pub(crate) age_ms: u64,
    /// Requests served on it.
    pub(crate) requests: u32,
    /// `http/1.1` where the listener had to find that out; empty where it needed nothing.
    pub(crate) detected: Option<String>,
    /// The rest of a TCP connection; `None`: it speaks HTTP/1 and is between two requests.
    pub(crate) tcp: Option<TcpPart>,
}

/// What else there is to a TCP connection.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct TcpPart {
    pub(crate) cluster: Option<String>,
    pub(crate) host: Option<String>,
    pub(crate) upstream_local: Option<SocketAddr>,
    pub(crate) started_at: SystemTime,
    pub(crate) attempts: u32,
    pub(crate) to_upstream: Half,
    pub(crate) to_downstream: Half,
}

/// One direction of a TCP connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Half {
    /// Bytes that were passed on.
    pub(crate) passed: u64,
    /// Bytes that were read and not passed on yet.
    pub(crate) held: usize,
    /// The source has ended.
    pub(crate) ended: bool,
    /// The end was passed on, too.
    pub(crate) closed: bool,
}

impl Travelling {
    /// How long ago it was accepted.
    pub(crate) fn age(&self) -> Duration {
        Duration::from_millis(self.age_ms)
    }
}
