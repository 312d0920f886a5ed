//! What the requests of one downstream connection share.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::listener::FilterChain;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::Session;
use tokio::time::Instant;

use crate::stats::http::{Counter, Gauge, Histogram};
use crate::worker::{HttpManager, Worker};

/// A downstream connection as its requests see it. It counts as open for as long as it lives.
pub(super) struct Origin {
    pub(super) worker: Rc<Worker>,
    pub(super) manager: Rc<HttpManager>,
    pub(super) hcm: Arc<HttpConnectionManager>,
    pub(super) view: ConnectionView,
    pub(super) chain: Arc<FilterChain>,
    /// What the TLS handshake agreed on.
    pub(super) session: Option<Arc<Session>>,
    /// The peer's address as text, for `x-forwarded-for`.
    pub(super) peer_text: Box<str>,
    pub(super) id: u64,
    pub(super) protocol: Protocol,
    pub(super) opened: Instant,
}

/// What a downstream connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
}

impl Origin {
    /// Counts the connection, from now to when this is dropped.
    pub(super) fn count(&self) {
        let stats = &self.manager.http;
        stats.inc(Counter::downstream_cx_total);
        stats.shift(Gauge::downstream_cx_active, 1);
        match self.protocol {
            Protocol::Http1 => {
                stats.inc(Counter::downstream_cx_http1_total);
                stats.shift(Gauge::downstream_cx_http1_active, 1);
            }
        }
        if self.view.tls {
            stats.inc(Counter::downstream_cx_ssl_total);
            stats.shift(Gauge::downstream_cx_ssl_active, 1);
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        let stats = &self.manager.http;
        stats.inc(Counter::downstream_cx_destroy);
        stats.shift(Gauge::downstream_cx_active, -1);
        match self.protocol {
            Protocol::Http1 => stats.shift(Gauge::downstream_cx_http1_active, -1),
        }
        if self.view.tls {
            stats.shift(Gauge::downstream_cx_ssl_active, -1);
        }
        stats.record(Histogram::downstream_cx_length_ms, self.opened.elapsed().as_millis() as u64);
    }
}
