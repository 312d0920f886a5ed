//! The peers' configurations: the same work for each, one worker, keep-alive on both sides, an access log line per request.
//! Evenkeel and Envoy are started from the very same file.

pub mod authorization;
mod bootstrap;
pub mod jwt;
mod others;
pub mod policy;

pub use authorization::Asks;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The name in the server's certificate.
pub const SERVER_NAME: &str = "backend.local";

/// Time limit of any wait for proxies that work: under callgrind on a busy machine both sides' handshakes take more than the
/// 5 s that a connection has by default, TLS included.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// TLS of one side of a listener or a cluster: this certificate, and peers' certificates have to be from this root.
pub struct MutualTls {
    /// Own certificate chain.
    pub cert: PathBuf,
    /// Its key.
    pub key: PathBuf,
    /// Root that the peer's certificate is verified with.
    pub root: PathBuf,
}

/// The protocol to the upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1; clients may speak HTTP/1.1 or HTTP/2.
    Http1,
    /// HTTP/1.1 with the protocols that Istio's sidecars offer each other: Evenkeel's then share connections.
    Mesh,
    /// HTTP/2; clients may speak HTTP/1.1 or HTTP/2.
    Http2,
    /// Bytes both ways.
    Tcp,
}

/// One proxy with one listener and one cluster.
pub struct Proxy<'a> {
    /// Node id.
    pub id: &'a str,
    /// The address of the listener.
    pub listen: SocketAddr,
    /// The address of `/ready`.
    pub admin: SocketAddr,
    /// The address of the upstream.
    pub upstream: SocketAddr,
    /// The protocol to the upstream.
    pub protocol: Protocol,
    /// TLS of the listener.
    pub downstream_tls: Option<&'a MutualTls>,
    /// TLS of the cluster.
    pub upstream_tls: Option<&'a MutualTls>,
    /// Number of rules of the authorization policy, the last of which allows the load's requests; 0: no policy.
    pub rules: usize,
    /// The protocol and address of the authorization server that decides about every request.
    pub authorization: Option<(Asks, SocketAddr)>,
    /// The issuer whose tokens it checks; `None`: it checks none.
    pub issuer: Option<&'a jwt::Issuer>,
    /// The access log's file.
    pub log: PathBuf,
}
