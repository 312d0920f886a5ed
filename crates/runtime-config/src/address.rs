//! Addresses of endpoints and listeners.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

impl std::fmt::Display for EndpointAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(address) => address.fmt(f),
            Self::Pipe(path) => path.display().fmt(f),
        }
    }
}

/// The address of an endpoint.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum EndpointAddress {
    /// TCP.
    Socket(SocketAddr),
    /// Unix domain socket.
    Pipe(PathBuf),
}

/// The address of a listener.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ListenAddress {
    /// TCP.
    Socket(SocketAddr),
    /// UDP.
    Datagram(SocketAddr),
    /// A Unix domain socket; `@NAME` is an abstract one.
    Pipe(Arc<str>),
}

impl ListenAddress {
    /// The address, if it is one of TCP.
    pub fn socket(&self) -> Option<SocketAddr> {
        match self {
            Self::Socket(address) => Some(*address),
            Self::Datagram(_) | Self::Pipe(_) => None,
        }
    }

    /// The port, if it has one.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Socket(address) | Self::Datagram(address) => Some(address.port()),
            Self::Pipe(_) => None,
        }
    }
}

impl std::fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Socket(address) | Self::Datagram(address) => address.fmt(f),
            Self::Pipe(path) => path.fmt(f),
        }
    }
}
