//! Addresses of endpoints.

use std::net::SocketAddr;
use std::path::PathBuf;

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
