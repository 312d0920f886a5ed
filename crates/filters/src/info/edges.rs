//! Edges: which workloads have communicated through a proxy, and how that was secured. This is the data of the proxy's page
//! `/edges`.

use serde::{Deserialize, Serialize};

/// The response of a proxy at `/edges`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edges {
    /// Maximum number of edges that the proxy keeps.
    pub limit: usize,
    /// Seconds after which an edge without traffic is forgotten.
    pub lifetime_s: u64,
    /// Connections that were not counted, because there were too many edges.
    pub left_out: u64,
    /// The edges.
    pub edges: Vec<Edge>,
}

/// Traffic between this proxy and one peer over connections that are secured alike.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Edge {
    /// `inbound`: the peer is a client; `outbound`: it is a server.
    pub direction: String,
    /// The SPIFFE id in the certificate that this proxy has shown.
    pub local_identity: Option<String>,
    /// The SPIFFE id in the peer's certificate, which was verified.
    pub peer_identity: Option<String>,
    /// The peer's address; `null`: it is not kept.
    pub peer_address: Option<String>,
    /// The port of the server.
    pub port: u16,
    /// TLS; `null`: plain text.
    pub tls: Option<EdgeTls>,
    /// Connections.
    pub connections: u64,
    /// Connections that the proxy refused: no filter chain takes them, or their TLS handshake failed. Of these, TLS has no version.
    pub refused: u64,
    /// HTTP requests.
    pub requests: u64,
    /// Bytes of bodies, or of TCP connections that have ended, from client to server.
    pub bytes_received: u64,
    /// Bytes from server to client.
    pub bytes_sent: u64,
    /// Milliseconds since it was last used.
    pub idle_ms: u64,
}

/// The parameters negotiated in a handshake.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeTls {
    /// `TLSv1.2` or `TLSv1.3`; empty if no handshake has succeeded.
    pub version: String,
    /// The cipher suite, by OpenSSL's name.
    pub cipher: String,
    /// The group of the key exchange, such as `X25519MLKEM768`; empty if the session was resumed without one.
    pub group: String,
}
