//! What the requests of one downstream connection share.

use std::borrow::Cow;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_http::Version;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::listener::FilterChain;
use evenkeel_runtime_config::overload::Action;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_tls::Session;
use evenkeel_upstream::alpn;
use evenkeel_upstream::conn::deadline::after;
use tokio::time::Instant;

use super::downstream::Http1;
use super::lending::Parts;
use crate::listener::filtered::{self, Filtered};
use crate::listener;
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
    /// Network filters that look at the connection.
    filtered: Option<Rc<filtered::Connection>>,
    /// The peer's address as text, for `x-forwarded-for`.
    pub(super) peer_text: Box<str>,
    pub(super) id: u64,
    pub(super) opened: Instant,
    /// It is to end at its next message boundary after this (`max_connection_duration`).
    pub(super) until: Option<Instant>,
    /// Its entry among the worker's connections.
    pub(super) registration: Rc<Registration>,
    /// It came from elsewhere, where it was counted in the totals.
    pub(super) resumed: bool,
    /// It is another worker's connection, of which this one has borrowed a stream: it is counted there.
    lent: bool,
    /// It goes on elsewhere: it is not closed when this is dropped.
    pub(super) leaves: bool,
    /// What it speaks, once that is known.
    protocol: Cell<Option<Protocol>>,
}

/// What a downstream connection speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/2 frames, which carry messages of this version.
    Http2(Version),
}

impl Origin {
    /// Counts the connection as open, from now to when this is dropped. Beside it the connection's bytes, as HTTP/1 has them.
    pub(super) fn new(
        worker: &Rc<Worker>,
        manager: Rc<HttpManager>,
        hcm: Arc<HttpConnectionManager>,
        downstream: listener::Downstream,
        registration: &Rc<Registration>,
    ) -> (Http1, Self) {
        let listener::Downstream { stream, input, view, chain, id, peer_text, since, requests, resumed, .. } =
            downstream;
        let side = Http1::new(stream, input, requests, &hcm);
        let origin = Self {
            worker: Rc::clone(worker),
            manager,
            view,
            chain,
            session: side.stream.session().cloned(),
            filtered: side.stream.layer::<Filtered>().map(|filtered| Rc::clone(filtered.connection())),
            peer_text,
            id,
            opened: since,
            until: after(since, hcm.max_connection_duration),
            hcm,
            registration: Rc::clone(registration),
            resumed,
            lent: false,
            leaves: false,
            protocol: Cell::new(None),
        };
        if !resumed {
            let stats = &origin.manager.http;
            stats.inc(Counter::downstream_cx_total);
            if origin.view.tls {
                stats.inc(Counter::downstream_cx_ssl_total);
            }
        }
        origin.shift(1);
        (side, origin)
    }

    /// The client is a sidecar or a gateway, which knows other hosts than this one.
    pub(super) fn client_is_proxy(&self) -> bool {
        let Some(session) = &self.session else { return false };
        match session.alpn.as_deref() {
            Some(alpn::MULTIPLEXED_HTTP1) => true,
            Some(alpn::HTTP2 | alpn::MESH_HTTP2) => {
                session.peer.as_ref().is_some_and(|peer| peer.spiffe_id().is_some())
            }
            _ => false,
        }
    }

    /// What network filters have found out so far of the client and its bytes.
    pub(super) fn view(&self) -> Cow<'_, ConnectionView> {
        let mut view = Cow::Borrowed(&self.view);
        if let Some(filtered) = &self.filtered {
            filtered.leave_facts(view.to_mut());
        }
        view
    }

    /// Why a network filter has closed the connection, if one has.
    pub(super) fn closed_by_filter(&self) -> &str {
        self.filtered.as_ref().and_then(|filtered| filtered.closed()).map_or("", |close| &close.details)
    }

    /// What another worker needs to know to serve one of its streams.
    pub(super) fn parts(&self) -> Parts {
        Parts {
            hcm: Arc::clone(&self.hcm),
            view: self.view.clone(),
            chain: Arc::clone(&self.chain),
            session: self.session.clone(),
            peer_text: self.peer_text.clone(),
            id: self.id,
            opened: self.opened,
            protocol: self.protocol.get().unwrap_or(Protocol::Http2(Version::Http2)),
            requests: self.registration.request_limit(),
            memory: self.registration.memory_limit(),
        }
    }

    /// The connection of a borrowed stream; its own worker counts it.
    pub(super) fn lent(
        worker: &Rc<Worker>,
        manager: Rc<HttpManager>,
        parts: Parts,
        registration: &Rc<Registration>,
    ) -> Self {
        let Parts { hcm, view, chain, session, peer_text, id, opened, protocol, .. } = parts;
        Self {
            worker: Rc::clone(worker),
            manager,
            hcm,
            view,
            chain,
            session,
            filtered: None,
            peer_text,
            id,
            opened,
            until: None,
            registration: Rc::clone(registration),
            resumed: true,
            lent: true,
            leaves: true,
            protocol: Cell::new(Some(protocol)),
        }
    }

    /// Counts the connection as one of this protocol.
    pub(super) fn speaks(&self, protocol: Protocol) {
        self.protocol.set(Some(protocol));
        if !self.resumed {
            self.manager.http.inc(match protocol {
                Protocol::Http1 => Counter::downstream_cx_http1_total,
                Protocol::Http2(_) => Counter::downstream_cx_http2_total,
            });
        }
        self.shift_protocol(1);
    }

    /// Counts a request.
    pub(super) fn begin_request(&self) {
        let stats = &self.manager.http;
        stats.inc(Counter::downstream_rq_total);
        stats.inc(match self.protocol.get() {
            Some(Protocol::Http2(_)) => Counter::downstream_rq_http2_total,
            Some(Protocol::Http1) | None => Counter::downstream_rq_http1_total,
        });
        stats.shift(Gauge::downstream_rq_active, 1);
        self.worker.stats.inc(crate::stats::worker::Counter::downstream_rq_total);
    }

    /// The connection has been open for as long as it may.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    /// The connection is to end with the response at hand: it drains, or the process runs short.
    pub(super) fn is_to_end(&self) -> bool {
        let stats = &self.manager.http;
        if self.registration.drains() {
            stats.inc(Counter::downstream_cx_drain_close);
            return true;
        }
        let short = self.worker.overload.is_on(Action::DisableHttpKeepalive, &self.worker.random);
        if short {
            stats.inc(Counter::downstream_cx_overload_disable_keepalive);
        }
        short
    }

    fn shift(&self, by: i64) {
        let stats = &self.manager.http;
        stats.shift(Gauge::downstream_cx_active, by);
        if self.view.tls {
            stats.shift(Gauge::downstream_cx_ssl_active, by);
        }
    }

    fn shift_protocol(&self, by: i64) {
        let stats = &self.manager.http;
        match self.protocol.get() {
            Some(Protocol::Http1) => stats.shift(Gauge::downstream_cx_http1_active, by),
            Some(Protocol::Http2(_)) => stats.shift(Gauge::downstream_cx_http2_active, by),
            None => {}
        }
    }
}

impl Drop for Origin {
    fn drop(&mut self) {
        if self.lent {
            return;
        }
        self.shift(-1);
        self.shift_protocol(-1);
        if !self.leaves {
            let stats = &self.manager.http;
            stats.inc(Counter::downstream_cx_destroy);
            stats.record(Histogram::downstream_cx_length_ms, self.opened.elapsed().as_millis() as u64);
        }
    }
}
