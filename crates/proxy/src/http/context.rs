//! A client's connection in the HTTP connection manager: the state shared by its requests.

use std::borrow::Cow;
use std::cell::{Cell, OnceCell};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::ConnectionInfo;
use evenkeel_http::Version;
use evenkeel_runtime_config::HttpConnectionManager;
use evenkeel_runtime_config::overload::Action;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_stats::Writer;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::{alpn, edge, turn};
use tokio::time::Instant;

use super::downstream::Http1;
use crate::listener;
use crate::listener::filtered::{self, Filtered};
use crate::stats::http::{Counter, Gauge, Histogram};
use crate::worker::{HttpManager, Registration, Worker};

/// A client's connection as its requests see it. Counted as open for as long as this lives.
pub(super) struct ConnectionContext {
    pub(super) worker: Rc<Worker>,
    pub(super) manager: Rc<HttpManager>,
    pub(super) hcm: Arc<HttpConnectionManager>,
    /// The facts about the connection.
    pub(super) info: Arc<ConnectionInfo>,
    /// The network filters that see the connection's bytes.
    filtered: Option<Rc<filtered::Connection>>,
    /// The client's address as text, once a request needs it.
    remote_text: OnceCell<Box<str>>,
    /// Counters of the traffic with this client.
    pub(super) edge: Option<Rc<Writer<edge::Stats>>>,
    /// Its entry in the worker's table of connections.
    pub(super) registration: Rc<Registration>,
    /// Whether another worker or process has served it before, and has counted it in the totals.
    pub(super) resumed: bool,
    /// Whether it belongs to another worker, which counts it; this worker has borrowed a stream of it.
    lent: bool,
    /// Whether it is being handed over: dropping this does not mean that it closes.
    pub(super) leaves: bool,
    /// Its protocol, once known.
    protocol: Cell<Option<Protocol>>,
}

/// The protocol of a downstream connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    /// HTTP/2 frames, which carry messages of this version.
    Http2(Version),
}

impl ConnectionContext {
    /// Counts the connection as open until this is dropped. Also returns its stream and buffers, in the form HTTP/1 uses.
    pub(super) fn new(
        worker: &Rc<Worker>,
        manager: Rc<HttpManager>,
        hcm: Arc<HttpConnectionManager>,
        downstream: listener::Downstream,
        registration: &Rc<Registration>,
    ) -> (Http1, Self) {
        let listener::Downstream { stream, input, info, requests, resumed, .. } = downstream;
        let side = Http1::new(stream, input, requests, &hcm);
        let context = Self {
            worker: Rc::clone(worker),
            manager,
            filtered: side.stream.layer::<Filtered>().map(|filtered| Rc::clone(filtered.connection())),
            remote_text: OnceCell::new(),
            edge: worker.edges.of_client(&info),
            info,
            hcm,
            registration: Rc::clone(registration),
            resumed,
            lent: false,
            leaves: false,
            protocol: Cell::new(None),
        };
        if !resumed {
            let stats = &context.manager.http;
            stats.inc(Counter::downstream_cx_total);
            if context.info.view.tls {
                stats.inc(Counter::downstream_cx_ssl_total);
            }
        }
        context.shift(1);
        (side, context)
    }

    /// The client is a sidecar or a gateway, which can retry on another host.
    pub(super) fn client_is_proxy(&self) -> bool {
        let Some(session) = &self.info.session else { return false };
        match session.alpn.as_deref() {
            Some(alpn::MULTIPLEXED_HTTP1) => true,
            Some(alpn::HTTP2 | alpn::MESH_HTTP2) => {
                session.peer.as_ref().is_some_and(|peer| peer.spiffe_id().is_some())
            }
            _ => false,
        }
    }

    /// How often the connection has come back to this proxy; 0: it is not its own.
    #[inline]
    pub(super) fn own_hops(&self) -> u8 {
        match self.info.view.own_hops.get() {
            Some(hops) => *hops,
            None => self.worker.upstreams.own().hops(&self.info.view),
        }
    }

    /// The connection's properties, with what network filters have learnt so far.
    pub(super) fn view(&self) -> Cow<'_, ConnectionView> {
        let mut view = Cow::Borrowed(&self.info.view);
        if let Some(filtered) = &self.filtered {
            filtered.leave_facts(view.to_mut());
        }
        view
    }

    /// Why a network filter closed the connection, if one did.
    pub(super) fn closed_by_filter(&self) -> Cow<'static, str> {
        self.filtered.as_ref().and_then(|filtered| filtered.closed()).map_or("".into(), |close| close.details.clone())
    }

    /// The context of a borrowed stream, whose connection is counted by its own worker.
    pub(super) fn lent(
        worker: &Rc<Worker>,
        hcm: Arc<HttpConnectionManager>,
        (info, protocol): (Arc<ConnectionInfo>, Protocol),
        registration: &Rc<Registration>,
    ) -> Self {
        Self {
            worker: Rc::clone(worker),
            manager: worker.generation().manager(&worker.reporters, &hcm),
            hcm,
            filtered: None,
            remote_text: OnceCell::new(),
            edge: worker.edges.of_client(&info),
            info,
            registration: Rc::clone(registration),
            resumed: true,
            lent: true,
            leaves: true,
            protocol: Cell::new(Some(protocol)),
        }
    }

    /// Returns the protocol; HTTP/1 as long as it is not known.
    pub(super) fn protocol(&self) -> Protocol {
        self.protocol.get().unwrap_or(Protocol::Http1)
    }

    /// Sets the protocol, and counts the connection under it.
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
        stats.inc(match self.protocol() {
            Protocol::Http2(_) => Counter::downstream_rq_http2_total,
            Protocol::Http1 => Counter::downstream_rq_http1_total,
        });
        stats.shift(Gauge::downstream_rq_active, 1);
        self.worker.stats.inc(crate::stats::worker::Counter::downstream_rq_total);
    }

    /// Returns when the connection has to end, at its next message boundary (`max_connection_duration`).
    pub(super) fn until(&self) -> Option<Instant> {
        let limit = self.hcm.max_connection_duration.filter(|_| !self.lent);
        after(Instant::from_std(self.info.accepted), limit)
    }

    /// The client's address as text, if the connection manager appends it to `x-forwarded-for`; else empty.
    pub(super) fn peer_text(&self) -> &str {
        if self.hcm.use_remote_address {
            self.remote_text.get_or_init(|| self.info.view.remote.ip().to_canonical().to_string().into())
        } else {
            ""
        }
    }

    /// The connection has reached `max_connection_duration`.
    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.until().is_some_and(|until| until <= now)
    }

    /// Whether the connection ends with the current response, because it drains or because of overload. Counts the reason.
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
        if self.info.view.tls {
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

impl Drop for ConnectionContext {
    fn drop(&mut self) {
        if self.lent {
            return;
        }
        self.shift(-1);
        self.shift_protocol(-1);
        if !self.leaves {
            let stats = &self.manager.http;
            let length = turn::now().saturating_duration_since(Instant::from_std(self.info.accepted));
            stats.inc(Counter::downstream_cx_destroy);
            stats.record(Histogram::downstream_cx_length_ms, length.as_millis() as u64);
        }
    }
}
