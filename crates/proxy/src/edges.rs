//! Edges: the workloads that have communicated through this proxy, and how that was secured, for `evenkeel mtls`.
//!
//! They are [`Families`] that only the page `/edges` shows. A connection looks its edge up once and keeps a writer; a request adds to the
//! writer's counters. The number of edges is limited: those without traffic expire, and beyond the limit connections are counted together.

use std::fmt;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_filters::ConnectionInfo;
use evenkeel_filters::edges::{self, Edge, EdgeTls};
use evenkeel_filters::format::Record;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_stats::{Families, FamiliesOptions, LabelValues, OTHER, Registry, Reported, Scope, SeriesHandles, Writer};
use evenkeel_tls::{PeerCertificate, Session};
use evenkeel_upstream::edge::{self, Counter};
use evenkeel_upstream::{ConnectTimes, Host, turn};

use crate::observers::Observer;

/// Maximum number of edges; each takes less than 1 KiB.
const MAX_EDGES: usize = 4096;
/// An edge without traffic for so long is forgotten.
const LIFETIME: Duration = Duration::from_secs(3600);

const OPTIONS: FamiliesOptions = FamiliesOptions {
    name: "edges",
    prefix: "",
    labels: &["direction", "local", "peer", "address", "port", "security", "version", "cipher", "group"],
    max_series: MAX_EDGES,
    expire_after: Some(LIFETIME),
    reported: Reported::InView,
};

/// The edges of all workers.
#[derive(Debug, Clone)]
pub(crate) struct EdgeTable {
    families: Families<edge::Stats>,
    /// Times are measured from here.
    start: Instant,
}

/// The edges of one worker.
pub(crate) struct Edges {
    /// Names of listeners that serve the proxy itself: probes, metrics.
    except: Vec<String>,
    series: SeriesHandles<Key, edge::Stats>,
    start: Instant,
}

impl fmt::Debug for Edges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Edges")
    }
}

/// Identifies an edge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    outbound: bool,
    /// The certificates' SPIFFE ids: this proxy's, the peer's.
    local: Option<Arc<str>>,
    peer: Option<Arc<str>>,
    /// Clients of gateways may be anybody: their addresses are not kept.
    address: Option<IpAddr>,
    port: u16,
    /// `None`: plain text.
    tls: Option<Tls>,
}

/// What was negotiated in a handshake; empty if none has succeeded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Tls {
    version: &'static str,
    cipher: &'static str,
    group: &'static str,
}

const OUTBOUND: &str = "outbound";
const INBOUND: &str = "inbound";
const PLAIN: &str = "plain";
const SECURED: &str = "tls";

impl Key {
    /// Adds the values of the labels in [`OPTIONS`]. What is unknown is empty.
    fn write(&self, labels: &mut LabelValues) {
        labels.push(if self.outbound { OUTBOUND } else { INBOUND });
        labels.push(self.local.as_deref().unwrap_or_default());
        labels.push(self.peer.as_deref().unwrap_or_default());
        labels.push(&self.address.map(|address| address.to_string()).unwrap_or_default());
        labels.push(&self.port.to_string());
        labels.push(if self.tls.is_some() { SECURED } else { PLAIN });
        let tls = self.tls.unwrap_or_default();
        [tls.version, tls.cipher, tls.group].into_iter().for_each(|value| labels.push(value));
    }
}

impl EdgeTable {
    pub(crate) fn new(registry: &Registry) -> Self {
        Self { families: registry.families(OPTIONS), start: turn::now().into_std() }
    }

    /// The edges as one worker sees them. `except`: the listeners whose connections are no edges.
    pub(crate) fn for_worker(&self, except: Vec<String>) -> Edges {
        Edges { except, series: self.families.handles(), start: self.start }
    }

    /// The content of the page `/edges`.
    pub(crate) fn view(&self, now: Instant) -> edges::Edges {
        let now_ms = millis(now.saturating_duration_since(self.start));
        let mut view = edges::Edges { limit: MAX_EDGES, lifetime_s: LIFETIME.as_secs(), ..edges::Edges::default() };
        self.families.for_each(|labels, series| {
            let value = |at: usize| labels.get(at).map_or("", |(_, value)| value.as_str());
            if value(0) == OTHER {
                view.left_out = series.counter(Counter::connections) + series.counter(Counter::refused);
            } else {
                view.edges.push(edge_of(value, series, now_ms));
            }
        });
        view.edges.sort_by_cached_key(|edge| {
            (
                edge.direction.clone(),
                edge.port,
                edge.peer_identity.clone(),
                edge.peer_address.clone(),
                edge.tls.clone(),
                edge.local_identity.clone(),
            )
        });
        view
    }
}

/// An edge as the page shows it. `value`: the value of a label by its place in [`OPTIONS`].
fn edge_of<'l>(value: impl Fn(usize) -> &'l str, series: &Scope<edge::Stats>, now_ms: u64) -> Edge {
    let known = |at: usize| Some(value(at)).filter(|value| !value.is_empty()).map(ToOwned::to_owned);
    Edge {
        direction: value(0).to_owned(),
        local_identity: known(1),
        peer_identity: known(2),
        peer_address: known(3),
        port: value(4).parse().unwrap_or_default(),
        tls: (value(5) == SECURED).then(|| EdgeTls {
            version: value(6).to_owned(),
            cipher: value(7).to_owned(),
            group: value(8).to_owned(),
        }),
        connections: series.counter(Counter::connections),
        refused: series.counter(Counter::refused),
        requests: series.counter(Counter::requests),
        bytes_received: series.counter(Counter::bytes_received),
        bytes_sent: series.counter(Counter::bytes_sent),
        idle_ms: now_ms.saturating_sub(series.latest(Counter::last_used_ms)),
    }
}

fn millis(duration: Duration) -> u64 {
    duration.as_secs() * 1000 + u64::from(duration.subsec_millis())
}

impl Edges {
    /// Whether a client's connection leads from one workload to another: those of the proxy's own workload do not.
    fn is_edge(&self, info: &ConnectionInfo) -> bool {
        let listener = info.listener.as_ref();
        listener.is_some_and(|listener| listener.direction != TrafficDirection::Outbound && self.is_for(&listener.name))
    }

    fn is_for(&self, listener: &str) -> bool {
        !self.except.iter().any(|except| except == listener)
    }

    /// Counts a connection that a client has made.
    pub(crate) fn accepted(&self, info: &ConnectionInfo, now: tokio::time::Instant) {
        if let Some(edge) = self.of_client(info) {
            self.count(&edge, Counter::connections, now.into_std());
        }
    }

    /// Counts a client's connection that is refused: `tls` if the client speaks TLS.
    pub(crate) fn refused(&self, info: &ConnectionInfo, tls: bool, now: tokio::time::Instant) {
        let is_inbound = info.listener.as_ref().is_some_and(|own| own.direction == TrafficDirection::Inbound);
        // Clients of gateways may be anybody.
        if !is_inbound || !self.is_edge(info) {
            return;
        }
        self.refusal((info.view.direct_remote.ip(), info.view.local.port()), tls, now.into_std());
    }

    fn refusal(&self, (client, port): (IpAddr, u16), tls: bool, now: Instant) {
        let (address, tls) = (Some(client.to_canonical()), tls.then(Tls::default));
        let edge = self.find(&Key { outbound: false, local: None, peer: None, address, port, tls });
        self.count(&edge, Counter::refused, now);
    }

    fn count(&self, edge: &Writer<edge::Stats>, counter: Counter, now: Instant) {
        edge.inc(counter);
        edge.set_time(Counter::last_used_ms, self.since_start(now));
    }

    fn since_start(&self, now: Instant) -> u64 {
        millis(now.saturating_duration_since(self.start))
    }

    /// The edge of a client's connection; `None`: it comes from the proxy's own workload.
    pub(crate) fn of_client(&self, info: &ConnectionInfo) -> Option<Rc<Writer<edge::Stats>>> {
        if !self.is_edge(info) {
            return None;
        }
        let session = info.session.as_deref().filter(|_| info.view.tls);
        let direction = info.listener.as_ref().map(|listener| listener.direction);
        let peer = session.and_then(|session| identity(session.peer.as_ref()));
        let keeps_address = direction == Some(TrafficDirection::Inbound) || peer.is_some();
        Some(self.find(&Key {
            outbound: false,
            local: session.and_then(|session| identity(session.local.as_ref())),
            peer,
            address: keeps_address.then(|| info.view.direct_remote.ip().to_canonical()),
            port: info.view.local.port(),
            tls: session.map(agreed),
        }))
    }

    /// The edge of a connection to a server, which counts the connection when it is first asked for. `info`: the
    /// client's connection.
    #[inline]
    pub(crate) fn of_server<'t>(
        &self,
        info: &ConnectionInfo,
        (host, times): (&Host, &'t ConnectTimes),
        now: tokio::time::Instant,
    ) -> Option<&'t Rc<Writer<edge::Stats>>> {
        if let Some(edge) = times.edge.get() {
            return Some(edge);
        }
        self.begin(info, (host, times), now)
    }

    #[cold]
    fn begin<'t>(
        &self,
        info: &ConnectionInfo,
        (host, times): (&Host, &'t ConnectTimes),
        now: tokio::time::Instant,
    ) -> Option<&'t Rc<Writer<edge::Stats>>> {
        let listener = info.listener.as_ref()?;
        // Behind an inbound listener there is only the proxy's own workload.
        if listener.direction == TrafficDirection::Inbound || !self.is_for(&listener.name) {
            return None;
        }
        let EndpointAddress::Socket(address) = &host.address else { return None };
        let session = times.session.as_deref();
        let key = Key {
            outbound: true,
            local: session.and_then(|session| identity(session.local.as_ref())),
            peer: session.and_then(|session| identity(session.peer.as_ref())),
            address: Some(address.ip().to_canonical()),
            port: address.port(),
            tls: session.map(agreed),
        };
        let edge = self.find(&key);
        self.count(&edge, Counter::connections, now.into_std());
        Some(times.edge.get_or_init(|| edge))
    }

    fn find(&self, key: &Key) -> Rc<Writer<edge::Stats>> {
        self.series.get(key, |labels| key.write(labels))
    }
}

/// The edges of a request, or of a connection: with its client and its server.
pub(crate) struct Traffic<'e> {
    pub(crate) edges: &'e Edges,
    pub(crate) client: Option<&'e Writer<edge::Stats>>,
    pub(crate) server: Option<&'e Writer<edge::Stats>>,
    pub(crate) is_request: bool,
}

impl Observer for Traffic<'_> {
    #[inline]
    fn ended(&mut self, end: &Record<'_>) {
        if let Some(edge) = self.client {
            self.count(edge, end);
        }
        if let Some(edge) = self.server {
            self.count(edge, end);
        }
    }
}

impl Traffic<'_> {
    fn count(&self, edge: &Writer<edge::Stats>, end: &Record<'_>) {
        if self.is_request {
            edge.inc(Counter::requests);
        }
        edge.add(Counter::bytes_received, end.stream.bytes_received);
        edge.add(Counter::bytes_sent, end.stream.bytes_sent);
        edge.set_time(Counter::last_used_ms, self.edges.since_start(end.now));
    }
}

fn identity(certificate: Option<&Arc<PeerCertificate>>) -> Option<Arc<str>> {
    certificate?.uri_sans.first().map(|uri| uri.as_str().into())
}

fn agreed(session: &Session) -> Tls {
    Tls { version: session.version, cipher: session.cipher, group: session.group }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn key(port: u16) -> Key {
        Key { outbound: false, local: None, peer: None, address: None, port, tls: None }
    }

    fn table() -> (Arc<Registry>, EdgeTable) {
        let registry = Registry::new();
        let table = EdgeTable::new(&registry);
        (registry, table)
    }

    #[test]
    fn what_is_kept_is_bounded_and_ages() {
        let (registry, table) = table();
        let edges = table.for_worker(Vec::new());
        let count = |port: usize| edges.count(&edges.find(&key(port as u16)), Counter::connections, table.start);
        (0..MAX_EDGES + 3).for_each(count);
        let view = table.view(table.start);
        assert_eq!((view.edges.len(), view.left_out, view.limit), (MAX_EDGES, 3, MAX_EDGES));
        // Expiry sees when something was counted last, and begins when it looks first.
        registry.expire(table.start);
        count(7);
        registry.expire(table.start + LIFETIME / 2);
        registry.expire(table.start + LIFETIME);
        let ports: Vec<u16> = table.view(table.start).edges.iter().map(|edge| edge.port).collect();
        assert_eq!(ports, [7]);
        count(9);
        // The worker releases the expired ones with its next look-up, and then there is room.
        registry.expire(table.start + LIFETIME);
        count(MAX_EDGES + 1);
        let ports: Vec<u16> = table.view(table.start).edges.iter().map(|edge| edge.port).collect();
        assert_eq!(ports, [7, 9, MAX_EDGES as u16 + 1]);
        assert!(registry.prometheus_text().lines().all(|line| !line.contains("direction")), "only on its own page");
    }

    #[test]
    fn workers_add_up_and_keep_what_is_secured_differently_apart() {
        let (_registry, table) = table();
        let identity = |text: &str| Some(Arc::from(text));
        let secured = Key {
            outbound: true,
            local: identity("spiffe://a/\"quoted\\"),
            peer: identity("spiffe://b"),
            address: Some(IpAddr::from([10, 0, 0, 1])),
            port: 443,
            tls: Some(Tls { version: "TLSv1.3", cipher: "c", group: "g" }),
        };
        let later = table.start + Duration::from_millis(40);
        for (at, now) in [table.start, later].into_iter().enumerate() {
            let edges = table.for_worker(Vec::new());
            edges.count(&edges.find(&secured), Counter::connections, now);
            let plain = edges.find(&key(80));
            plain.add(Counter::bytes_sent, at as u64 + 1);
            edges.count(&plain, Counter::requests, now);
        }
        let view = table.view(later + Duration::from_millis(7));
        let [plain, tls] = view.edges.as_slice() else { panic!("{view:?}") };
        assert_eq!((plain.direction.as_str(), plain.port, plain.tls.as_ref()), ("inbound", 80, None));
        assert_eq!((plain.requests, plain.bytes_sent, plain.idle_ms), (2, 3, 7));
        assert_eq!((tls.connections, tls.local_identity.as_deref()), (2, secured.local.as_deref()));
        assert_eq!((tls.peer_address.as_deref(), tls.peer_identity.as_deref()), (Some("10.0.0.1"), Some("spiffe://b")));
        let expected = EdgeTls { version: "TLSv1.3".into(), cipher: "c".into(), group: "g".into() };
        assert_eq!((tls.direction.as_str(), tls.tls.as_ref()), ("outbound", Some(&expected)));
    }

    #[test]
    fn what_is_refused_is_counted_apart() {
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let info = ConnectionInfo::new(1, Instant::now(), address, address);
        let (_registry, table) = table();
        let (edges, now) = (table.for_worker(Vec::new()), Instant::now());
        edges.refused(&info, false, now.into());
        assert_eq!(table.view(now).edges.len(), 0, "nobody knows which listener took it");
        [false, false, true].into_iter().for_each(|tls| edges.refusal((address.ip(), 80), tls, now));
        let view = table.view(now).edges.into_iter();
        let mut kept: Vec<_> = view.map(|edge| (edge.tls.is_some(), edge.connections, edge.refused)).collect();
        kept.sort_unstable();
        assert_eq!(kept, [(false, 0, 2), (true, 0, 1)]);
    }

    #[test]
    fn the_workloads_own_connections_are_no_edges() {
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let info = ConnectionInfo::new(1, Instant::now(), address, address);
        let (_registry, table) = table();
        table.for_worker(Vec::new()).accepted(&info, Instant::now().into());
        let view = table.view(Instant::now());
        assert_eq!((view.edges.len(), view.left_out), (0, 0));
    }
}
