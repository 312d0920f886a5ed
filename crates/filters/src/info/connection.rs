//! Data about a downstream connection, in a record created when it is accepted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::bind::ClientSource;
use evenkeel_runtime_config::listener::{FilterChain, Listener};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::Session;

/// What a client's first bytes show of its protocol.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Hello {
    /// Nothing was looked for, or it is neither TLS nor HTTP.
    #[default]
    Other,
    /// HTTP in plain text: `http/1.0`, `http/1.1` or `h2c`.
    Http(&'static str),
    /// TLS, with the application protocols that the client offers; the session has the one that was agreed on.
    Tls(Arc<[Box<str>]>),
}

/// Data about a downstream connection. The record is completed while the listener handles the connection. From the moment a
/// filter chain serves it, it is shared by its requests, by filters and logs, and by the other worker if the connection moves
/// there.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// The connection's ID in this process.
    pub id: u64,
    /// When it was accepted, by this process or its predecessor.
    pub accepted: Instant,
    /// The data that matchers and filters may inspect: its addresses, the server name, the client's certificate.
    pub view: ConnectionView,
    /// The socket's own address, which differs from `view.local` if the connection was redirected or comes through a proxy that says so.
    pub direct_local: SocketAddr,
    /// What its first bytes show, which filter chains are selected by.
    pub hello: Hello,
    /// The TLS session, as far as the handshake got.
    pub session: Option<Arc<Session>>,
    /// The listener that serves it.
    pub listener: Option<Arc<Listener>>,
    /// The filter chain that serves it, once selected.
    pub chain: Option<Arc<FilterChain>>,
}

impl ConnectionInfo {
    /// A connection just accepted, of which only the addresses are known.
    pub fn new(id: u64, accepted: Instant, remote: SocketAddr, local: SocketAddr) -> Self {
        Self {
            id,
            accepted,
            view: ConnectionView::plaintext(remote, local),
            direct_local: local,
            hello: Hello::default(),
            session: None,
            listener: None,
            chain: None,
        }
    }

    /// Creates a record with only what matchers may inspect.
    pub fn of_view(accepted: Instant, view: ConnectionView) -> Self {
        let direct_local = view.local;
        Self {
            id: 0,
            accepted,
            view,
            direct_local,
            hello: Hello::default(),
            session: None,
            listener: None,
            chain: None,
        }
    }

    /// The path of the Unix socket that it came to, if it did. Its addresses are then unspecified.
    pub fn socket_path(&self) -> Option<&str> {
        match &self.listener.as_ref()?.address {
            ListenAddress::Pipe(path) => Some(path),
            ListenAddress::Socket(_) | ListenAddress::Datagram(_) => None,
        }
    }

    /// Returns the source address of connections made on its behalf, if they use the client's. The client of a Unix socket
    /// has none.
    pub fn source(&self) -> Option<ClientSource> {
        let mark = self.listener.as_ref()?.listener_filters.original_src?;
        let address = self.view.remote.ip().to_canonical();
        (!address.is_unspecified()).then_some(ClientSource { address, mark })
    }

    /// The name of its filter chain, if it has one.
    pub fn filter_chain_name(&self) -> Option<&str> {
        self.chain.as_ref().map(|chain| &*chain.name).filter(|name| !name.is_empty())
    }
}
