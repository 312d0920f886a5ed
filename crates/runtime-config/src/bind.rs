//! Binding of sockets to upstreams (`BindConfig`, `SocketOption`).

use std::net::IpAddr;

/// `BindConfig`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BindConfig {
    /// Source address.
    pub source: Option<IpAddr>,
    /// Source port, 0: any.
    pub source_port: u16,
    /// `setsockopt` calls before connecting.
    pub socket_options: Vec<SocketOption>,
}

/// The source address of connections on behalf of one client (`OriginalSrc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClientSource {
    /// The client's address.
    pub address: IpAddr,
    /// The socket's mark (`SO_MARK`), by which answers find their way back; 0: that of the cluster.
    pub mark: u32,
}

/// `core.v3.SocketOption` with an integer value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOption {
    /// Level, e.g. 1 (`SOL_SOCKET`).
    pub level: i32,
    /// Name, e.g. 36 (`SO_MARK`).
    pub name: i32,
    /// Value.
    pub value: i32,
}
