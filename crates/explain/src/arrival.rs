//! A call as it arrives at a proxy, and the side of the call that the proxy is on.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_runtime_config::view::PlainRequest;

/// A client outside the mesh (RFC 5737).
pub const OUTSIDE: [u8; 4] = [203, 0, 113, 1];
/// The source port of clients; no decision depends on it.
pub const CLIENT_PORT: u16 = 40_000;

/// The side of a call that a proxy is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The client's sidecar.
    Outbound,
    /// The server's sidecar.
    Inbound,
    /// A gateway.
    Gateway,
}

/// A call as it arrives at a proxy.
#[derive(Debug, Clone)]
pub struct Arrival {
    /// The client's address.
    pub source: SocketAddr,
    /// The address that it called.
    pub destination: SocketAddr,
    /// The Unix socket that it has connected to instead.
    pub socket: Option<Arc<str>>,
    /// TLS, if the client speaks it.
    pub tls: Option<TlsClient>,
    /// The request, if there is one.
    pub request: Option<PlainRequest>,
    /// The service that is called, if it is known.
    pub host: Option<Hostname>,
    /// The result of every random draw.
    pub random: u64,
}

impl Side {
    /// The name in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Outbound => "outbound",
            Self::Inbound => "inbound",
            Self::Gateway => "gateway",
        }
    }
}

impl Arrival {
    /// The address or the socket that was called, as text.
    pub fn called(&self) -> String {
        self.socket.as_deref().map_or_else(|| self.destination.to_string(), ToOwned::to_owned)
    }
}

/// A client that speaks TLS.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TlsClient {
    /// The name in its ClientHello.
    pub server_name: Option<String>,
    /// The protocols it offers.
    pub alpn: Vec<String>,
    /// Its SPIFFE id, if it presents a certificate of the mesh.
    pub identity: Option<String>,
}
