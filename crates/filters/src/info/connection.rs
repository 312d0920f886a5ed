//! What is known of a client's connection: one record, made when it is accepted.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_runtime_config::listener::FilterChain;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::Session;

/// What is known of a client's connection. It is completed while the listener works on the connection, and shared from the moment a
/// filter chain serves it: by its requests, by filters and logs, and by the other worker where one goes on with it.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// Its number in this process.
    pub id: u64,
    /// When it was accepted, by this process or the one before.
    pub accepted: Instant,
    /// What matchers and filters may ask: its ends, the server's name, the client's certificate.
    pub view: ConnectionView,
    /// What the TLS handshake agreed on, as far as it came.
    pub session: Option<Arc<Session>>,
    /// The filter chain that serves it, once one does.
    pub chain: Option<Arc<FilterChain>>,
}

impl ConnectionInfo {
    /// A connection just accepted, of which no more than its ends is known.
    pub fn new(id: u64, accepted: Instant, remote: SocketAddr, local: SocketAddr) -> Self {
        Self { id, accepted, view: ConnectionView::plaintext(remote, local), session: None, chain: None }
    }

    /// The name of the filter chain that serves it, if that has one.
    pub fn filter_chain_name(&self) -> Option<&str> {
        self.chain.as_ref().map(|chain| &*chain.name).filter(|name| !name.is_empty())
    }
}
