//! Edges: the workloads that have communicated through this proxy, and how that was secured, for `evenkeel mtls`.
//!
//! Each worker has its own table, which no other thread reads. A connection looks its edge up once and keeps a handle; a
//! request adds to the handle's counts. The number of edges is bounded: those without traffic are forgotten, and beyond the
//! limit connections are only counted.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_filters::ConnectionInfo;
use evenkeel_filters::edges::{Edge, EdgeTls};
use evenkeel_filters::format::Record;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_tls::{PeerCertificate, Session};
use evenkeel_upstream::{ConnectTimes, EdgeCounts, Host};
use tokio::time::Instant;

use crate::observers::Observer;

/// Maximum number of edges per worker; each takes about 300 bytes.
pub(crate) const MAX_EDGES: usize = 1024;
/// An edge without traffic for so long is forgotten.
pub(crate) const LIFETIME: Duration = Duration::from_secs(3600);

/// The edges of one worker.
#[derive(Debug, Default)]
pub(crate) struct Edges {
    /// Names of listeners that serve the proxy itself: probes, metrics.
    except: Vec<String>,
    table: RefCell<HashMap<Key, Rc<EdgeCounts>>>,
    left_out: Cell<u64>,
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
    /// Version, cipher suite, group of the key exchange.
    tls: Option<(&'static str, &'static str, &'static str)>,
}

impl Edges {
    /// Creates an empty table. `except`: the listeners whose connections are no edges.
    pub(crate) fn new(except: Vec<String>) -> Self {
        Self { except, ..Self::default() }
    }

    /// Whether a client's connection leads from one workload to another: those of the proxy's own workload do not.
    fn is_edge(&self, info: &ConnectionInfo) -> bool {
        let listener = info.listener.as_ref();
        listener.is_some_and(|listener| listener.direction != TrafficDirection::Outbound && self.is_for(&listener.name))
    }

    fn is_for(&self, listener: &str) -> bool {
        !self.except.iter().any(|except| except == listener)
    }

    /// Counts a connection that a client has made.
    pub(crate) fn accepted(&self, info: &ConnectionInfo, now: Instant) {
        match self.of_client(info, now) {
            Some(edge) => edge.connection(now),
            None if self.is_edge(info) => self.left_out.set(self.left_out.get() + 1),
            None => {}
        }
    }

    /// Counts a client's connection that is refused: `tls` if the client speaks TLS.
    pub(crate) fn refused(&self, info: &ConnectionInfo, tls: bool, now: Instant) {
        let is_inbound = info.listener.as_ref().is_some_and(|own| own.direction == TrafficDirection::Inbound);
        // Clients of gateways may be anybody.
        if !is_inbound || !self.is_edge(info) {
            return;
        }
        self.refusal((info.view.direct_remote.ip(), info.view.local.port()), tls, now);
    }

    fn refusal(&self, (client, port): (IpAddr, u16), tls: bool, now: Instant) {
        let (address, tls) = (Some(client.to_canonical()), tls.then_some(("", "", "")));
        match self.find(Key { outbound: false, local: None, peer: None, address, port, tls }, now) {
            Some(edge) => edge.refusal(now),
            None => self.left_out.set(self.left_out.get() + 1),
        }
    }

    /// The edge of a client's connection; `None`: it comes from the proxy's own workload, or there are too many.
    pub(crate) fn of_client(&self, info: &ConnectionInfo, now: Instant) -> Option<Rc<EdgeCounts>> {
        if !self.is_edge(info) {
            return None;
        }
        let session = info.session.as_deref().filter(|_| info.view.tls);
        let direction = info.listener.as_ref().map(|listener| listener.direction);
        let peer = session.and_then(|session| identity(session.peer.as_ref()));
        let keeps_address = direction == Some(TrafficDirection::Inbound) || peer.is_some();
        self.find(
            Key {
                outbound: false,
                local: session.and_then(|session| identity(session.local.as_ref())),
                peer,
                address: keeps_address.then(|| info.view.direct_remote.ip().to_canonical()),
                port: info.view.local.port(),
                tls: session.map(agreed),
            },
            now,
        )
    }

    /// The edge of a connection to a server, which counts the connection when it is first asked for. `info`: the
    /// client's connection.
    #[inline]
    pub(crate) fn of_server<'t>(
        &self,
        info: &ConnectionInfo,
        (host, times): (&Host, &'t ConnectTimes),
        now: Instant,
    ) -> Option<&'t Rc<EdgeCounts>> {
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
        now: Instant,
    ) -> Option<&'t Rc<EdgeCounts>> {
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
        let Some(edge) = self.find(key, now) else {
            self.left_out.set(self.left_out.get() + 1);
            return None;
        };
        edge.connection(now);
        Some(times.edge.get_or_init(|| edge))
    }

    fn find(&self, key: Key, now: Instant) -> Option<Rc<EdgeCounts>> {
        let mut table = self.table.borrow_mut();
        if let Some(edge) = table.get(&key) {
            return Some(Rc::clone(edge));
        }
        if table.len() >= MAX_EDGES {
            forget_idle(&mut table, now);
        }
        if table.len() >= MAX_EDGES {
            return None;
        }
        let edge = Rc::new(EdgeCounts::default());
        edge.last.set(Some(now));
        table.insert(key, Rc::clone(&edge));
        Some(edge)
    }

    /// Returns the edges, and the number of connections beyond the limit.
    pub(crate) fn kept(&self, now: Instant) -> (Vec<Edge>, u64) {
        let mut table = self.table.borrow_mut();
        forget_idle(&mut table, now);
        (table.iter().map(|(key, counts)| told(key, counts, now)).collect(), self.left_out.get())
    }
}

/// The edges of a request, or of a connection: with its client and its server.
pub(crate) struct Traffic<'e> {
    pub(crate) client: Option<&'e EdgeCounts>,
    pub(crate) server: Option<&'e EdgeCounts>,
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
    fn count(&self, edge: &EdgeCounts, end: &Record<'_>) {
        let (received, sent, now) = (end.stream.bytes_received, end.stream.bytes_sent, Instant::from_std(end.now));
        if self.is_request {
            edge.request(received, sent, now);
        } else {
            edge.bytes(received, sent, now);
        }
    }
}

/// Forgets edges that have been idle for long and that no connection refers to.
fn forget_idle(table: &mut HashMap<Key, Rc<EdgeCounts>>, now: Instant) {
    table.retain(|_, edge| {
        let is_recent = edge.last.get().is_some_and(|last| now.saturating_duration_since(last) < LIFETIME);
        is_recent || Rc::strong_count(edge) > 1
    });
}

fn identity(certificate: Option<&Arc<PeerCertificate>>) -> Option<Arc<str>> {
    certificate?.uri_sans.first().map(|uri| uri.as_str().into())
}

fn agreed(session: &Session) -> (&'static str, &'static str, &'static str) {
    (session.version, session.cipher, session.group)
}

fn told(key: &Key, counts: &EdgeCounts, now: Instant) -> Edge {
    let text = |text: &Option<Arc<str>>| text.as_ref().map(ToString::to_string);
    let idle = counts.last.get().map(|last| now.saturating_duration_since(last)).unwrap_or_default();
    Edge {
        direction: if key.outbound { "outbound" } else { "inbound" }.to_owned(),
        local_identity: text(&key.local),
        peer_identity: text(&key.peer),
        peer_address: key.address.map(|address| address.to_string()),
        port: key.port,
        tls: key.tls.map(|(version, cipher, group)| EdgeTls {
            version: version.to_owned(),
            cipher: cipher.to_owned(),
            group: group.to_owned(),
        }),
        connections: counts.connections.get(),
        refused: counts.refused.get(),
        requests: counts.requests.get(),
        bytes_received: counts.bytes_received.get(),
        bytes_sent: counts.bytes_sent.get(),
        idle_ms: u64::try_from(idle.as_millis()).unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn key(port: u16) -> Key {
        Key { outbound: false, local: None, peer: None, address: None, port, tls: None }
    }

    #[test]
    fn what_is_kept_is_bounded_and_ages() {
        let (edges, start) = (Edges::default(), Instant::now());
        let held: Vec<_> = (0..10).map(|port| edges.find(key(port), start).expect("room")).collect();
        (10..MAX_EDGES as u16).for_each(|port| assert!(edges.find(key(port), start).is_some()));
        assert!(edges.find(key(u16::MAX), start).is_none());
        assert_eq!(edges.kept(start).0.len(), MAX_EDGES);
        let later = start + LIFETIME;
        // Edges of open connections stay.
        assert!(edges.find(key(u16::MAX), later).is_some());
        assert_eq!(edges.kept(later).0.len(), held.len() + 1);
    }

    #[test]
    fn requests_add_up() {
        let (edges, now) = (Edges::default(), Instant::now());
        let edge = edges.find(key(80), now).expect("room");
        edge.connection(now);
        edge.request(3, 5, now);
        edge.request(4, 0, now);
        let (kept, left_out) = edges.kept(now + Duration::from_millis(7));
        let [one] = kept.as_slice() else { panic!("{kept:?}") };
        assert_eq!((one.connections, one.requests, one.bytes_received, one.bytes_sent, one.idle_ms), (1, 2, 7, 5, 7));
        assert_eq!((one.direction.as_str(), one.port, left_out), ("inbound", 80, 0));
    }

    #[test]
    fn what_is_refused_is_counted_apart() {
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let info = ConnectionInfo::new(1, std::time::Instant::now(), address, address);
        let (edges, now) = (Edges::default(), Instant::now());
        edges.refused(&info, false, now);
        assert_eq!(edges.kept(now).0.len(), 0, "nobody knows which listener took it");
        [false, false, true].into_iter().for_each(|tls| edges.refusal((address.ip(), 80), tls, now));
        let mut kept: Vec<_> =
            edges.kept(now).0.into_iter().map(|edge| (edge.tls.is_some(), edge.connections, edge.refused)).collect();
        kept.sort_unstable();
        assert_eq!(kept, [(false, 0, 2), (true, 0, 1)]);
    }

    #[test]
    fn the_workloads_own_connections_are_no_edges() {
        let address = SocketAddr::from(([10, 0, 0, 1], 80));
        let info = ConnectionInfo::new(1, std::time::Instant::now(), address, address);
        let edges = Edges::default();
        edges.accepted(&info, Instant::now());
        assert_eq!(edges.kept(Instant::now()), (Vec::new(), 0));
    }
}
