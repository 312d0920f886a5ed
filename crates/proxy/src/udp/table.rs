//! The sessions of one socket: which host a datagram goes to, and when a session ends.

use std::cell::{Cell, RefCell, RefMut};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::cluster::Health;
use evenkeel_runtime_config::udp_proxy::{UdpHash, UdpProxy};
use evenkeel_runtime_config::{FastMap, Listener};
use evenkeel_stats::Writer;
use evenkeel_upstream::{Cluster, Host};

use super::datagrams::{Arrived, ClientSocket};
use super::order::{Occupant as _, Order};
use super::session::{Session, SessionKey};
use super::share::Share;
use crate::http::affinity::address_hash;
use crate::listener::socket::ListenerKey;
use crate::stats::udp::{self, Counter};
use crate::worker::{Generation, Worker};

/// The sessions of one socket of a listener.
pub(super) struct Sessions {
    worker: Rc<Worker>,
    key: ListenerKey,
    socket: ClientSocket,
    serving: RefCell<Rc<Serving>>,
    sessions: RefCell<FastMap<SessionKey, Rc<Session>>>,
    /// Which of them give their places to new ones.
    order: RefCell<Order<Session>>,
    /// How many there may be.
    share: Share,
    /// What hosts send is read into it.
    upstream_buffer: RefCell<Box<[u8]>>,
    /// A refused session was logged; the next ones only count.
    warned: Cell<bool>,
}

/// The configuration that datagrams are served by.
struct Serving {
    generation: Arc<Generation>,
    listener: Arc<Listener>,
    proxy: Arc<UdpProxy>,
    cluster: Option<Rc<Cluster>>,
    stats: Rc<Writer<udp::Stats>>,
}

impl Serving {
    /// The configuration as it is now; `None` if the listener is removed, or no longer one of UDP.
    fn now(worker: &Worker, key: &ListenerKey, before: Option<&Self>) -> Option<Self> {
        let local = worker.generation();
        let listener = Arc::clone(local.shared.bound.get(key)?);
        let proxy = Arc::clone(listener.udp.as_ref()?);
        let known = before.filter(|before| before.proxy.stat_prefix == proxy.stat_prefix);
        let stats = known.map_or_else(|| local.udp_stats(&proxy.stat_prefix), |before| Rc::clone(&before.stats));
        let cluster = proxy.cluster.as_ref().and_then(|name| worker.upstreams.cluster(name));
        Some(Self { generation: Arc::clone(&local.shared), listener, proxy, cluster, stats })
    }
}

impl Sessions {
    /// No sessions yet. `None` if the listener has been removed.
    pub(super) fn new(worker: &Rc<Worker>, key: ListenerKey, socket: ClientSocket) -> Option<Rc<Self>> {
        let serving = Serving::now(worker, &key, None)?;
        let buffer = buffer_for(&serving.proxy);
        Some(Rc::new(Self {
            worker: Rc::clone(worker),
            key,
            socket,
            serving: RefCell::new(Rc::new(serving)),
            sessions: RefCell::default(),
            order: RefCell::default(),
            share: Share::new(),
            upstream_buffer: RefCell::new(buffer),
            warned: Cell::new(false),
        }))
    }

    pub(super) fn socket(&self) -> &ClientSocket {
        &self.socket
    }

    pub(super) fn is_empty(&self) -> bool {
        self.sessions.borrow().is_empty()
    }

    /// What hosts send is read into it: one byte more than their datagrams may have.
    pub(super) fn upstream_buffer(&self) -> RefMut<'_, Box<[u8]>> {
        self.upstream_buffer.borrow_mut()
    }

    /// The size of the longest datagram of a client, in bytes.
    pub(super) fn max_datagram(&self) -> usize {
        self.serving().proxy.max_downstream_datagram_bytes
    }

    pub(super) fn idle_timeout(&self) -> Duration {
        self.serving().proxy.idle_timeout
    }

    /// Counts a datagram that is longer than the listener allows.
    pub(super) fn count_too_long(&self) {
        self.serving().stats.inc(Counter::downstream_sess_rx_datagrams_dropped);
    }

    /// Counts a read that has failed.
    pub(super) fn count_error(&self) {
        self.serving().stats.inc(Counter::downstream_sess_rx_errors);
    }

    fn serving(&self) -> Rc<Serving> {
        Rc::clone(&self.serving.borrow())
    }

    /// Takes the newest configuration. Sessions stay if their cluster does; nothing is done unless something has changed.
    pub(super) fn follow_configuration(&self) {
        let before = self.serving();
        if Arc::ptr_eq(&before.generation, &self.worker.generation().shared) {
            return;
        }
        let Some(serving) = Serving::now(&self.worker, &self.key, Some(&before)) else { return };
        if serving.proxy.max_upstream_datagram_bytes != before.proxy.max_upstream_datagram_bytes {
            self.upstream_buffer.replace(buffer_for(&serving.proxy));
        }
        self.serving.replace(Rc::new(serving));
    }

    /// Passes a client's datagram on. `Some`: it began this session, whose host's answers are to be read.
    pub(super) fn datagram(&self, arrived: Arrived, datagram: &[u8]) -> Option<Rc<Session>> {
        let serving = self.serving();
        let Some(cluster) = &serving.cluster else {
            serving.stats.inc(Counter::downstream_sess_no_route);
            return None;
        };
        let hash = serving.proxy.hash.map(|hash| match hash {
            UdpHash::SourceIp => address_hash(arrived.peer.ip()),
            UdpHash::Fixed(hash) => hash,
        });
        let mut key = SessionKey { peer: arrived.peer, local: arrived.local, host: None };
        let mut host = None;
        if serving.proxy.per_packet {
            let picked = cluster.pick_udp(hash).ok()?;
            key.host = picked.socket_addr();
            host = Some(picked);
        }
        let known = self.sessions.borrow().get(&key).cloned();
        if let Some(session) = known {
            host = host.or_else(|| replacement(&session, cluster, hash));
            let moves = host.as_ref().is_some_and(|host| !Rc::ptr_eq(host, &session.upstream.host));
            if !moves && !session.upstream.is_removed() && session.upstream.is_of(cluster) {
                session.forward(datagram);
                return None;
            }
            self.end(&session);
        }
        let host = match host {
            Some(host) => host,
            None => cluster.pick_udp(hash).ok()?,
        };
        self.begin(&serving, key, host, datagram)
    }

    fn begin(&self, serving: &Serving, key: SessionKey, host: Rc<Host>, datagram: &[u8]) -> Option<Rc<Session>> {
        let cluster = serving.cluster.as_ref()?;
        if host.socket_addr().is_some_and(|host| self.is_own(host, key.local)) {
            serving.stats.inc(Counter::downstream_sess_no_route);
            self.warn(&"the host of the cluster is this listener itself");
            return None;
        }
        self.make_room(serving, key.peer.ip());
        let upstream = match cluster.open_udp(host) {
            Ok(upstream) => upstream,
            Err(error) => {
                serving.stats.inc(Counter::downstream_sess_overflow);
                self.warn(&error);
                return None;
            }
        };
        let session = Session::new(key, upstream, &serving.proxy, &serving.stats);
        self.sessions.borrow_mut().insert(key, Rc::clone(&session));
        self.order.borrow_mut().add(&session);
        session.forward(datagram);
        Some(session)
    }

    /// Ends a session if there is no place for another one of this client. What is silent gives its place, and newcomers are served.
    fn make_room(&self, serving: &Serving, client: IpAddr) {
        let silent = self.order.borrow_mut().gives_place(client, self.share.sessions());
        if let Some(session) = silent {
            serving.stats.inc(Counter::downstream_sess_evicted);
            self.warn_of_flood(client);
            self.end(&session);
        }
    }

    fn warn_of_flood(&self, client: IpAddr) {
        if !self.warned.replace(true) {
            let places = self.share.sessions();
            tracing::warn!(
                listener = %self.key, %client, places,
                "UDP sessions end early, because there are too many of all clients or of this one; further ones are only counted"
            );
        }
    }

    /// Whether datagrams to this address come back to the socket.
    fn is_own(&self, host: SocketAddr, local: SocketAddr) -> bool {
        let bound = self.socket.bound();
        host.port() == bound.port()
            && (host.ip() == bound.ip()
                || bound.ip().is_unspecified() && (host.ip().is_loopback() || host.ip() == local.ip()))
    }

    fn warn(&self, reason: &dyn std::fmt::Display) {
        if !self.warned.replace(true) {
            tracing::warn!(listener = %self.key, %reason, "datagrams of a new UDP session are dropped; further ones are only counted");
        }
    }

    /// Ends sessions that are idle, whose host is no longer in the cluster, or whose cluster the listener no longer names.
    pub(super) fn sweep(&self) {
        self.follow_configuration();
        let serving = self.serving();
        let is_current = |session: &Session| {
            !session.upstream.is_removed()
                && serving.cluster.as_ref().is_some_and(|cluster| session.upstream.is_of(cluster))
        };
        let over: Vec<_> = self
            .sessions
            .borrow()
            .values()
            .filter(|session| session.is_idle() || !is_current(session))
            .cloned()
            .collect();
        // Further listeners make the share smaller.
        while self.sessions.borrow().len() > self.share.sessions() {
            let client = IpAddr::from([0, 0, 0, 0]);
            let Some(session) = self.order.borrow_mut().gives_place(client, self.share.sessions()) else { break };
            serving.stats.inc(Counter::downstream_sess_evicted);
            self.end(&session);
        }
        for session in over {
            if session.is_idle() {
                serving.stats.inc(Counter::idle_timeout);
            }
            self.end(&session);
        }
        self.warned.set(false);
    }

    /// Ends all sessions.
    pub(super) fn end_all(&self) {
        let all: Vec<_> = self.sessions.borrow().values().cloned().collect();
        all.iter().for_each(|session| self.end(session));
    }

    fn end(&self, session: &Rc<Session>) {
        if !session.has_ended() {
            self.order.borrow_mut().remove(session);
        }
        self.sessions.borrow_mut().remove(&session.key);
        session.end(&self.worker, &self.serving().listener);
    }
}

/// The healthy host that a session continues with, if its own is unhealthy and there is one.
fn replacement(session: &Session, cluster: &Cluster, hash: Option<u64>) -> Option<Rc<Host>> {
    if session.upstream.host.health() != Health::Unhealthy {
        return None;
    }
    cluster.pick_udp(hash).ok().filter(|host| host.health() != Health::Unhealthy)
}

fn buffer_for(proxy: &UdpProxy) -> Box<[u8]> {
    vec![0; proxy.max_upstream_datagram_bytes + 1].into_boxed_slice()
}
