//! What the requests of one downstream connection share.

use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::listener::FilterChain;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::Session;
use tokio::time::Instant;

use crate::stats::http::{Counter, Gauge, Histogram};
use crate::worker::{HttpManager, Registration, Worker};

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
    /// Its entry among the worker's connections.
    pub(super) registration: Rc<Registration>,
    /// It goes on elsewhere: it is not closed when this is dropped.
    pub(super) leaves: bool,
}

/// What a downstream connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
}

impl Origin {
    /// Counts the connection as open, from now to when this is dropped; in the totals it is already when it is `resumed`.
    pub(super) fn count(&self, resumed: bool) {
        let stats = &self.manager.http;
        if !resumed {
            stats.inc(Counter::downstream_cx_total);
            match self.protocol {
                Protocol::Http1 => stats.inc(Counter::downstream_cx_http1_total),
            }
            if self.view.tls {
                stats.inc(Counter::downstream_cx_ssl_total);
            }
        }
        self.shift(1);
    }

    fn shift(&self, by: i64) {
        let stats = &self.manager.http;
        stats.shift(Gauge::downstream_cx_active, by);
        match self.protocol {
            Protocol::Http1 => stats.shift(Gauge::downstream_cx_http1_active, by),
        }
        if self.view.tls {
            stats.shift(Gauge::downstream_cx_ssl_active, by);
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        self.shift(-1);
        if !self.leaves {
            let stats = &self.manager.http;
            stats.inc(Counter::downstream_cx_destroy);
            stats.record(Histogram::downstream_cx_length_ms, self.opened.elapsed().as_millis() as u64);
        }
    }
}
