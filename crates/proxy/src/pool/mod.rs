//! The pool of worker threads. Each worker has its own reactor, connections, upstream pools, statistics shard and
//! inbox, and shares nothing that a request would have to wait for. Start here to see how a configuration reaches the
//! workers.

mod parked;
mod rebalance;
#[cfg(test)]
mod tests;
mod thread;

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use evenkeel_filters::edges;
use evenkeel_filters::explain::query::RecentRequest;
use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::{Config, Demand, Listener};
use evenkeel_stats::{Registry, Scope};
use evenkeel_upstream::{ClusterSnapshot, SharedClusters};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::sync::{mpsc, oneshot};

use crate::access_log::LogHandle;
use crate::balance::Balance;
use crate::dns_cache::{Lookup, MAX_LOOKUPS};
use crate::edges::EdgeTable;
use crate::handover::Parcel;
use crate::inherit::InheritedSocket;
use crate::listener::adopt::Adopted;
use crate::listener::socket::{
    BindError, HandedSockets, InheritedSockets, ListenerKey, ListenerSockets, Opened, SocketChange,
};
use crate::overload::Overload;
use crate::recent;
use crate::stats::{self, worker};
use crate::tap::Tap;
use crate::worker::{DrainScope, Generation, MAX_DEMANDS, MAX_INBOX_MESSAGES, Message, Seed, available_cores};

/// How long workers may take to answer a question about their state.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// Options for starting workers.
#[derive(Debug)]
pub struct WorkerOptions {
    /// Number of worker threads; 0: as many as [`available_cores`] returns.
    pub concurrency: usize,
    /// Listening sockets taken over from the parent process.
    pub inherited: Vec<InheritedSocket>,
    /// Overload actions: what is refused when the process runs short of memory or connections.
    pub overload: Arc<Overload>,
    /// Listening sockets taken over from the predecessor in a hot restart.
    pub(crate) handed: Vec<HandedSockets>,
    /// Where access logs go.
    pub log: LogHandle,
    /// Who the proxy says it is, to access log services.
    pub node: Arc<Node>,
    /// How long connections may take to finish once draining has begun; the rest are closed by [`WorkerPool::stop`].
    pub drain_time: Duration,
    /// The same for connections whose filter chain was changed or removed.
    pub listener_drain_time: Duration,
    /// Which recent requests the workers keep.
    pub recent: recent::Options,
}

/// A bound listener.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BoundListener {
    /// Listener name.
    pub name: Arc<str>,
    /// Address it listens on; the real port when the configuration said 0.
    pub address: ListenAddress,
}

/// One worker's load.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerSnapshot {
    /// Worker index, from 0.
    pub worker: usize,
    /// Open downstream connections.
    pub connections_active: u32,
    /// Downstream connections since start.
    pub connections_total: u64,
    /// Requests since start.
    pub requests_total: u64,
    /// Connections moved here from other workers.
    pub moved_in: u64,
    /// Connections moved from here to other workers.
    pub moved_out: u64,
    /// CPU time used since start.
    pub busy: Duration,
    /// Share of a core used in the last second, 0–1.
    pub busy_share: f64,
}

/// All workers.
#[derive(Debug)]
pub struct WorkerPool {
    workers: Vec<Handle>,
    balance: Arc<Balance>,
    registry: Arc<Registry>,
    upstreams: Arc<SharedClusters>,
    edges: EdgeTable,
    tap: Arc<Tap>,
    drain_time: Duration,
    /// Resources that workers need and that the configuration lacks.
    demands: Mutex<Option<mpsc::Receiver<Demand>>>,
    /// Host names that workers want resolved.
    lookups: Mutex<Option<mpsc::Receiver<Lookup>>>,
    state: Mutex<PoolState>,
}

#[derive(Debug)]
struct PoolState {
    sockets: ListenerSockets,
    current: Arc<Generation>,
    /// Listeners that have stopped accepting for good.
    stopped: DrainScope,
}

#[derive(Debug)]
struct Handle {
    inbox: mpsc::Sender<Message>,
    thread: Mutex<Option<JoinHandle<()>>>,
    stats: Scope<worker::Stats>,
}

impl WorkerPool {
    /// Starts the threads; they serve nothing until [`WorkerPool::apply`] is called.
    ///
    /// # Errors
    /// When a thread or its reactor cannot be made.
    pub fn start(options: WorkerOptions, registry: Arc<Registry>) -> io::Result<Self> {
        let count = if options.concurrency == 0 { available_cores() } else { options.concurrency };
        let balance = Balance::new(count);
        let (inboxes, receivers): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::channel(MAX_INBOX_MESSAGES)).unzip();
        let (demands, demanded) = mpsc::channel(MAX_DEMANDS);
        let (lookups, looked_up) = mpsc::channel(MAX_LOOKUPS);
        let breakers = Arc::new(SharedClusters::default());
        let (edges, tap) = (EdgeTable::new(&registry), Arc::<Tap>::default());
        let mut workers = Vec::with_capacity(count);
        for (index, receiver) in receivers.into_iter().enumerate() {
            let stats: Scope<worker::Stats> = registry.scope(stats::worker_name(index));
            let seed = Seed {
                index,
                balance: Arc::clone(&balance),
                peers: inboxes.clone(),
                registry: Arc::clone(&registry),
                breakers: Arc::clone(&breakers),
                overload: Arc::clone(&options.overload),
                log: options.log.clone(),
                node: Arc::clone(&options.node),
                stats: stats.writer(),
                drain_time: options.drain_time,
                listener_drain_time: options.listener_drain_time,
                recent: options.recent.clone(),
                edges: edges.clone(),
                tap: Arc::clone(&tap),
                demands: demands.clone(),
                lookups: lookups.clone(),
            };
            let thread = thread::spawn(seed, receiver)?;
            workers.push(Handle { inbox: inboxes[index].clone(), thread: Mutex::new(Some(thread)), stats });
        }
        let sockets = ListenerSockets::new(count, InheritedSockets::new(options.inherited, options.handed));
        let state = PoolState { sockets, current: Arc::default(), stopped: DrainScope::None };
        Ok(Self {
            workers,
            balance,
            registry,
            edges,
            tap,
            upstreams: breakers,
            drain_time: options.drain_time,
            demands: Mutex::new(Some(demanded)),
            lookups: Mutex::new(Some(looked_up)),
            state: Mutex::new(state),
        })
    }

    /// Receiver of the host names that workers want resolved; `None` after the first call.
    pub(crate) fn take_lookups(&self) -> Option<mpsc::Receiver<Lookup>> {
        self.lookups.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Receiver of the resources that workers need and that the configuration lacks; `None` after the first call.
    pub fn take_demands(&self) -> Option<mpsc::Receiver<Demand>> {
        self.demands.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Makes `config` the configuration of all workers: binds and unbinds listeners, and carries statistics, limits and
    /// idle upstream connections over for everything that stays. Open connections and requests in flight keep the
    /// configuration they began with; connections of removed filter chains are closed at their next message boundary.
    ///
    /// The errors of all listeners that are not bound; `None` when no listener has changed, and so no socket.
    pub fn apply(&self, config: &Arc<Config>) -> Option<Vec<BindError>> {
        let mut state = self.lock();
        let same_listeners = config.changed_listeners(&state.current.config).is_empty();
        let generation = Arc::new(Generation::next(config, &state.current, &self.registry));
        state.current = Arc::clone(&generation);
        if same_listeners {
            self.tell_all(|| Message::Configure(Arc::clone(&generation)));
            return None;
        }
        let change = state.change_sockets();
        // Accepting ends before the listener's configuration is removed: connections the kernel has accepted already
        // are still served.
        for listener in change.closed {
            self.tell_all(|| Message::Unlisten(listener.clone()));
        }
        self.tell_all(|| Message::Configure(Arc::clone(&generation)));
        self.listen(change.opened);
        Some(change.errors)
    }

    /// Retries binding the listeners whose bind failed.
    pub fn retry_listeners(&self) -> Vec<BindError> {
        let change = self.lock().change_sockets();
        self.listen(change.opened);
        change.errors
    }

    /// The bind error that a listener still warming would get now, if any.
    pub fn obstacle(&self, listener: &Listener) -> Option<BindError> {
        self.lock().sockets.obstacle(listener)
    }

    fn listen(&self, opened: Vec<Opened>) {
        for opened in opened {
            for (worker, socket) in opened.sockets {
                let address = socket.local_addr().ok().and_then(|address| address.as_socket());
                if let Some(address) = address.filter(|_| opened.listener.address.socket().is_some()) {
                    self.upstreams.own().listens(address.port());
                }
                if let Some(worker) = self.workers.get(worker) {
                    worker.tell(Message::Listen(opened.listener.clone(), socket));
                }
            }
        }
    }

    /// Drains: closes existing and new connections at their next message boundary (`Connection: close`), until `drain`
    /// is called again.
    pub fn drain(&self, scope: DrainScope) {
        self.tell_all(|| Message::Drain(scope));
    }

    /// Stops accepting connections on the listeners in `scope`, for good.
    pub fn stop_listening(&self, scope: DrainScope) {
        let mut state = self.lock();
        state.stopped = state.stopped.max(scope);
        let current = Arc::clone(&state.current);
        let of_scope = |listener: &ListenerKey| scope.covers(current.bound.get(listener).map(|bound| bound.direction));
        for listener in state.sockets.close(of_scope) {
            self.tell_all(|| Message::Unlisten(listener.clone()));
        }
    }

    /// Stops accepting and hands each connection to `to` at its next message boundary; connections that cannot be
    /// handed over are drained. With `None`, resumes accepting and serving.
    pub(crate) fn hand_over_connections(&self, to: Option<mpsc::Sender<Parcel>>) -> io::Result<()> {
        let state = self.lock();
        match to {
            Some(_) => {
                for listener in state.sockets.keys() {
                    self.tell_all(|| Message::Release(listener.clone()));
                }
            }
            None => self.listen(state.sockets.reopen()?),
        }
        self.tell_all(|| Message::GiveAway(to.clone()));
        Ok(())
    }

    /// Duplicates of the listening sockets, for a successor.
    pub(crate) fn handed_sockets(&self) -> io::Result<Vec<HandedSockets>> {
        self.lock().sockets.hand()
    }

    /// Continues a connection that the predecessor has served so far.
    pub(crate) fn adopt(&self, parcel: Parcel) {
        let slot = self.balance.choose();
        if let Some(worker) = self.workers.get(slot.worker()) {
            worker.tell(Message::Deliver(Box::new(Adopted::new(parcel, slot))));
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, PoolState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Downstream connections still open on all workers.
    pub fn active_connections(&self) -> u32 {
        self.balance.active().iter().sum()
    }

    /// Waits until all connections have ended, but at most for the drain time; true when all have ended.
    pub async fn drained(&self) -> bool {
        let deadline = Instant::now() + self.drain_time;
        while self.active_connections() > 0 {
            if Instant::now() >= deadline {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        true
    }

    /// Closes the remaining connections and joins the threads.
    pub fn stop(&self) {
        self.tell_all(|| Message::Stop);
        for worker in &self.workers {
            let thread = worker.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(thread) = thread {
                // A panic was reported by the panic hook already.
                let _ = thread.join();
            }
        }
    }

    /// State shared by the clusters of all workers.
    pub fn shared_clusters(&self) -> &Arc<SharedClusters> {
        &self.upstreams
    }

    /// Worker threads.
    pub fn concurrency(&self) -> usize {
        self.workers.len()
    }

    /// Load per worker.
    pub fn workers(&self) -> Vec<WorkerSnapshot> {
        let active = self.balance.active();
        let snapshot = |(index, worker): (usize, &Handle)| WorkerSnapshot {
            worker: index,
            connections_active: active.get(index).copied().unwrap_or_default(),
            connections_total: worker.stats.counter(worker::Counter::downstream_cx_total),
            requests_total: worker.stats.counter(worker::Counter::downstream_rq_total),
            moved_in: worker.stats.counter(worker::Counter::downstream_cx_moved_in),
            moved_out: worker.stats.counter(worker::Counter::downstream_cx_moved_out),
            busy: worker.cpu_time(),
            busy_share: worker.stats.gauge(worker::Gauge::busy_permille) as f64 / 1e3,
        };
        self.workers.iter().enumerate().map(snapshot).collect()
    }

    /// Number of load samples since start, ten a second; wraps at 2³².
    pub fn samples(&self) -> u32 {
        self.balance.epoch()
    }

    /// Snapshots of every worker's clusters and endpoints, one list per worker; a worker that does not answer is left
    /// out.
    pub async fn clusters(&self) -> Vec<Vec<ClusterSnapshot>> {
        let answers = self.workers.iter().map(|worker| {
            let (sender, answer) = oneshot::channel();
            worker.tell(Message::Clusters(sender));
            answer
        });
        let mut snapshots = Vec::new();
        for answer in answers.collect::<Vec<_>>() {
            snapshots.extend(answer.await);
        }
        snapshots
    }

    /// Snapshots of one cluster, one for each worker that has it and answers in time; and how many did not answer.
    pub(crate) async fn cluster(&self, name: Arc<str>) -> (Vec<ClusterSnapshot>, usize) {
        let (answers, silent) = self.ask(|sender| Message::Cluster(name.clone(), sender)).await;
        (answers.into_iter().flatten().collect(), silent)
    }

    /// The requests that each worker keeps, and how many workers did not answer in time.
    pub(crate) async fn recent_requests(&self) -> (Vec<Arc<RecentRequest>>, usize) {
        let (answers, silent) = self.ask(Message::RecentRequests).await;
        (answers.into_iter().flatten().collect(), silent)
    }

    /// Who has talked to whom.
    pub(crate) fn edges(&self) -> edges::Edges {
        self.edges.view(Instant::now())
    }

    /// The requests that end, for those who read them.
    pub(crate) fn tap(&self) -> &Tap {
        &self.tap
    }

    /// Asks every worker, and waits for a moment: one that is stuck does not hold up the answer.
    async fn ask<T>(&self, message: impl Fn(oneshot::Sender<T>) -> Message) -> (Vec<T>, usize) {
        let asked = self.workers.iter().map(|worker| {
            let (sender, answer) = oneshot::channel();
            worker.tell(message(sender));
            answer
        });
        let (asked, deadline) = (asked.collect::<Vec<_>>(), tokio::time::Instant::now() + ANSWER_LIMIT);
        let mut answers = Vec::new();
        for answer in asked {
            if let Ok(Ok(answer)) = tokio::time::timeout_at(deadline, answer).await {
                answers.push(answer);
            }
        }
        let silent = self.workers.len() - answers.len();
        (answers, silent)
    }

    /// Bound listeners, by name.
    pub fn listeners(&self) -> Vec<BoundListener> {
        let mut listeners = self.bound();
        listeners.sort_by(|a, b| a.name.cmp(&b.name));
        listeners
    }

    /// Bound listeners, unsorted.
    pub(crate) fn bound(&self) -> Vec<BoundListener> {
        let state = self.lock();
        let mut listeners = Vec::new();
        for listener in state.current.config.listeners.values() {
            let addresses = state.sockets.bound_addresses(listener);
            listeners.extend(addresses.map(|address| BoundListener { name: Arc::clone(&listener.name), address }));
        }
        listeners
    }

    fn tell_all(&self, message: impl Fn() -> Message) {
        self.workers.iter().for_each(|worker| worker.tell(message()));
    }
}

impl PoolState {
    fn change_sockets(&mut self) -> SocketChange {
        let stopped = self.stopped;
        let open = self.current.bound.values().filter(|listener| !stopped.covers(Some(listener.direction)));
        self.sockets.change(open)
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Handle {
    /// Waits for room rather than drop a message: the control thread may be delayed, but a worker must not miss
    /// anything.
    fn tell(&self, message: Message) {
        _ = parked::send(&self.inbox, message);
    }
}
