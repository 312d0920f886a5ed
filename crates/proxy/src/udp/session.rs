//! One UDP session: a client and the host that it talks to.

use std::cell::Cell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_runtime_config::Listener;
use evenkeel_runtime_config::udp_proxy::UdpProxy;
use evenkeel_stats::Writer;
use evenkeel_upstream::turn;
use evenkeel_upstream::udp::UdpUpstream;
use tokio::task::AbortHandle;
use tokio::time::Instant;

use super::order::Occupant;
use crate::access_log::Lines;
use crate::connection_record::record_of_connection;
use crate::observers;
use crate::stats::udp::{self, Counter, Gauge};
use crate::worker::Worker;

/// What identifies a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SessionKey {
    /// The client.
    pub(super) peer: SocketAddr,
    /// The address that it sends to.
    pub(super) local: SocketAddr,
    /// The host, if a client can have sessions with several (`use_per_packet_load_balancing`).
    pub(super) host: Option<SocketAddr>,
}

/// A session.
pub(super) struct Session {
    pub(super) key: SessionKey,
    pub(super) upstream: UdpUpstream,
    proxy: Arc<UdpProxy>,
    stats: Rc<Writer<udp::Stats>>,
    began: Instant,
    last: Cell<Instant>,
    bytes_received: Cell<u64>,
    bytes_sent: Cell<u64>,
    /// The client has sent again after an answer, so it is there.
    is_known: Cell<bool>,
    /// It has its place among those of such clients.
    queued_as_known: Cell<bool>,
    has_ended: Cell<bool>,
    /// The task that reads what the host sends.
    task: Cell<Option<AbortHandle>>,
}

impl Session {
    /// A session that begins.
    pub(super) fn new(
        key: SessionKey,
        upstream: UdpUpstream,
        proxy: &Arc<UdpProxy>,
        stats: &Rc<Writer<udp::Stats>>,
    ) -> Rc<Self> {
        stats.inc(Counter::downstream_sess_total);
        stats.shift(Gauge::downstream_sess_active, 1);
        let now = turn::now();
        Rc::new(Self {
            key,
            upstream,
            proxy: Arc::clone(proxy),
            stats: Rc::clone(stats),
            began: now,
            last: Cell::new(now),
            bytes_received: Cell::new(0),
            bytes_sent: Cell::new(0),
            is_known: Cell::new(false),
            queued_as_known: Cell::new(false),
            has_ended: Cell::new(false),
            task: Cell::new(None),
        })
    }

    /// Sets the task that its end aborts.
    pub(super) fn served_by(&self, task: AbortHandle) {
        self.task.set(Some(task));
    }

    /// Passes a datagram of the client on.
    pub(super) fn forward(&self, datagram: &[u8]) {
        let bytes = datagram.len() as u64;
        self.last.set(turn::now());
        self.is_known.set(self.is_known.get() || self.bytes_sent.get() > 0);
        self.bytes_received.set(self.bytes_received.get() + bytes);
        self.stats.inc(Counter::downstream_sess_rx_datagrams);
        self.stats.add(Counter::downstream_sess_rx_bytes, bytes);
        self.upstream.send(datagram);
    }

    /// Counts a datagram for the client, which has been sent unless `sent` is an error.
    pub(super) fn returned(&self, bytes: usize, sent: &std::io::Result<()>) {
        self.last.set(turn::now());
        if sent.is_err() {
            self.stats.inc(Counter::downstream_sess_tx_errors);
            return;
        }
        self.bytes_sent.set(self.bytes_sent.get() + bytes as u64);
        self.stats.inc(Counter::downstream_sess_tx_datagrams);
        self.stats.add(Counter::downstream_sess_tx_bytes, bytes as u64);
    }

    /// Whether it has been idle for too long.
    pub(super) fn is_idle(&self) -> bool {
        turn::now().duration_since(self.last.get()) >= self.proxy.idle_timeout
    }

    /// Ends it: nothing is sent in either direction any more.
    pub(super) fn end(&self, worker: &Worker, listener: &Arc<Listener>) {
        self.has_ended.set(true);
        if let Some(task) = self.task.take() {
            task.abort();
            self.stats.shift(Gauge::downstream_sess_active, -1);
            self.log(worker, listener);
        }
    }

    fn log(&self, worker: &Worker, listener: &Arc<Listener>) {
        if self.proxy.access_logs.is_empty() {
            return;
        }
        let SessionKey { peer, local, .. } = self.key;
        let began = self.began.into_std();
        let mut info = ConnectionInfo::new(worker.next_id(), began, peer, local);
        info.listener = Some(Arc::clone(listener));
        let mut stream = StreamInfo::new(began);
        stream.bytes_received = self.bytes_received.get();
        stream.bytes_sent = self.bytes_sent.get();
        stream.cluster_name.clone_from(&self.proxy.cluster);
        stream.host = Some(Arc::clone(&self.upstream.host.label));
        stream.upstream_local = self.upstream.local;
        let end = record_of_connection(&stream, &info);
        observers::show(&end, &mut [&mut Lines { log: &worker.log, logs: self.proxy.access_logs.iter() }]);
    }
}

impl Occupant for Session {
    fn client(&self) -> IpAddr {
        self.key.peer.ip()
    }

    fn last_used(&self) -> Instant {
        self.last.get()
    }

    fn is_known(&self) -> bool {
        self.is_known.get()
    }

    fn is_queued_as_known(&self) -> bool {
        self.queued_as_known.get()
    }

    fn queue_as_known(&self) {
        self.queued_as_known.set(true);
    }

    fn has_ended(&self) -> bool {
        self.has_ended.get()
    }
}
