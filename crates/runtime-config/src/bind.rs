//! Binding of sockets (`BindConfig`, `SocketOption`).

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

/// When an option of a listening socket is set (`core.v3.SocketOption.SocketState`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SocketState {
    /// Before it is bound.
    Prebind,
    /// Once it is bound.
    Bound,
    /// Once it listens.
    Listening,
}

/// `core.v3.SocketOption` of a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenOption {
    /// Level, e.g. 6 (`IPPROTO_TCP`).
    pub level: i32,
    /// Name, e.g. 9 (`TCP_DEFER_ACCEPT`).
    pub name: i32,
    /// Value, as the kernel reads it.
    pub value: Box<[u8]>,
    /// When it is set.
    pub state: SocketState,
}

/// `core.v3.SocketOption` of a socket to an upstream, with an integer value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketOption {
    /// Level, e.g. 1 (`SOL_SOCKET`).
    pub level: i32,
    /// Name, e.g. 36 (`SO_MARK`).
    pub name: i32,
    /// Value.
    pub value: i32,
}
