//! One worker: its thread, its inbox, and what its connections share.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;
use std::time::Duration;

use evenkeel_filters::{HttpFilters, NetworkFilters};
use evenkeel_runtime_config::listener::{FilterChain, ProxyProtocolVersion};
use evenkeel_runtime_config::{FastMap, HttpConnectionManager};
use evenkeel_stats::{Registry, Scope, Writer};
use slab::Slab;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{Instant, MissedTickBehavior};

use crate::access_log::{LogHandle, WorkerLog};
use crate::balance::Balance;
use crate::listener;
use crate::random::Random;
use crate::stats::{self, http, listener_worker, tcp, worker};
use crate::upstream::{self, SharedClusters, Upstreams};
use crate::worker::{Accepted, Generation, Message};

/// Between two rounds of housekeeping: logs handed over, idle upstream connections swept, busy time published.
const HOUSEKEEPING: Duration = upstream::SWEEP_INTERVAL;

/// What a worker is made of.
pub(super) struct Seed {
    pub(super) index: usize,
    pub(super) balance: Arc<Balance>,
    pub(super) peers: Vec<mpsc::Sender<Message>>,
    pub(super) registry: Arc<Registry>,
    pub(super) breakers: Arc<SharedClusters>,
    pub(super) log: LogHandle,
    pub(super) stats: Writer<worker::Stats>,
    pub(super) busy_ppm: Arc<AtomicU64>,
}

/// What the connections of one worker share. Everything here is of one thread.
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) balance: Arc<Balance>,
    pub(crate) peers: Vec<mpsc::Sender<Message>>,
    pub(crate) log: RefCell<WorkerLog>,
    pub(crate) stats: Writer<worker::Stats>,
    pub(crate) draining: Cell<bool>,
    pub(crate) upstreams: Upstreams,
    pub(crate) random: Random,
    registry: Arc<Registry>,
    local: RefCell<Rc<LocalGeneration>>,
    /// Tasks of open connections, to be woken when draining begins.
    connections: RefCell<Slab<Option<Waker>>>,
    next_connection: Cell<u64>,
}

/// What was made for a piece of configuration, by that piece's address in memory; the entry keeps it alive.
type ByAddress<C, M> = RefCell<FastMap<usize, (Arc<C>, Rc<M>)>>;

/// A [`Generation`] as one worker uses it.
pub(crate) struct LocalGeneration {
    pub(crate) shared: Arc<Generation>,
    connection_stats: RefCell<FastMap<SocketAddr, Rc<ConnectionStats>>>,
    managers: ByAddress<HttpConnectionManager, HttpManager>,
    chains: ByAddress<FilterChain, NetworkFilters>,
    tcp_stats: RefCell<FastMap<Arc<str>, Rc<TcpStats>>>,
    proxy_protocol_stats: RefCell<FastMap<Box<str>, Rc<ProxyProtocolStats>>>,
}

/// Statistics of a listener: all workers', and this worker's own.
pub(crate) struct ConnectionStats {
    pub(crate) listener: Writer<stats::listener::Stats>,
    pub(crate) worker: Writer<listener_worker::Stats>,
}

/// This worker's side of a connection manager: statistics and filters.
pub(crate) struct HttpManager {
    pub(crate) http: Writer<http::Stats>,
    pub(crate) filters: HttpFilters,
}

/// Statistics of the `proxy_protocol` listener filter.
pub(crate) struct ProxyProtocolStats {
    pub(crate) any: Writer<stats::proxy_protocol::Stats>,
    v1: Writer<stats::proxy_protocol_version::Stats>,
    v2: Writer<stats::proxy_protocol_version::Stats>,
}

impl ProxyProtocolStats {
    fn new(registry: &Registry, prefix: &str) -> Self {
        let version = |number| registry.scope(stats::proxy_protocol_version_name(prefix, number)).writer();
        Self { any: registry.scope(stats::proxy_protocol_name(prefix)).writer(), v1: version(1), v2: version(2) }
    }

    /// Those of one version.
    pub(crate) fn of(&self, version: ProxyProtocolVersion) -> &Writer<stats::proxy_protocol_version::Stats> {
        match version {
            ProxyProtocolVersion::V1 => &self.v1,
            ProxyProtocolVersion::V2 => &self.v2,
        }
    }
}

/// Statistics of a TCP proxy.
pub(crate) type TcpStats = Writer<tcp::Stats>;

/// Starts a worker's thread.
pub(super) fn spawn(seed: Seed, inbox: mpsc::Receiver<Message>) -> io::Result<std::thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    std::thread::Builder::new().name(format!("worker-{}", seed.index)).spawn(move || {
        let local = LocalSet::new();
        local.block_on(&runtime, run(seed, inbox));
    })
}

async fn run(seed: Seed, mut inbox: mpsc::Receiver<Message>) {
    let busy_ppm = Arc::clone(&seed.busy_ppm);
    let worker = Worker::new(seed);
    let housekeeping = spawn_local(housekeeping(Rc::clone(&worker), busy_ppm));
    let mut accepting: FastMap<SocketAddr, JoinHandle<()>> = FastMap::default();
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Configure(generation) => worker.configure(generation),
            Message::Listen(address, socket) => {
                let task = spawn_local(listener::accept::accept(Rc::clone(&worker), address, socket));
                if let Some(before) = accepting.insert(address, task) {
                    before.abort();
                }
            }
            Message::Unlisten(address) => {
                if let Some(task) = accepting.remove(&address) {
                    task.abort();
                }
            }
            Message::Clusters(answer) => _ = answer.send(worker.upstreams.snapshot()),
            Message::Connection(accepted) => worker.serve(accepted),
            Message::Drain => worker.drain(),
            Message::Stop => break,
        }
    }
    housekeeping.abort();
    worker.upstreams.close_idle();
    worker.log.borrow_mut().flush();
}

/// Work done once a second.
async fn housekeeping(worker: Rc<Worker>, busy_ppm: Arc<AtomicU64>) {
    let metrics = tokio::runtime::Handle::current().metrics();
    let mut ticks = tokio::time::interval(HOUSEKEEPING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut last_tick, mut last_busy) = (Instant::now(), Duration::ZERO);
    loop {
        ticks.tick().await;
        let (now, busy) = (Instant::now(), metrics.worker_total_busy_duration(0));
        let elapsed = now.duration_since(last_tick).as_micros().max(1);
        let share = busy.saturating_sub(last_busy).as_micros() * 1_000_000 / elapsed;
        busy_ppm.store(u64::try_from(share).unwrap_or(1_000_000).min(1_000_000), Ordering::Relaxed);
        worker.balance.publish_busy(worker.index, u64::try_from(busy.as_micros()).unwrap_or(u64::MAX));
        (last_tick, last_busy) = (now, busy);
        worker.log.borrow_mut().flush();
        worker.upstreams.sweep(now);
    }
}

impl Worker {
    fn new(seed: Seed) -> Rc<Self> {
        Rc::new(Self {
            index: seed.index,
            balance: seed.balance,
            peers: seed.peers,
            log: RefCell::new(WorkerLog::new(seed.log)),
            stats: seed.stats,
            draining: Cell::new(false),
            upstreams: Upstreams::new(seed.breakers, Arc::clone(&seed.registry), seed.index == 0),
            random: Random::from_system(),
            registry: seed.registry,
            local: RefCell::new(Rc::new(LocalGeneration::empty())),
            connections: RefCell::default(),
            next_connection: Cell::new(0),
        })
    }

    /// The current configuration; hold it for as long as one request takes.
    #[inline]
    pub(crate) fn generation(&self) -> Rc<LocalGeneration> {
        Rc::clone(&self.local.borrow())
    }

    /// Serves a connection on a task of its own.
    pub(crate) fn serve(self: &Rc<Self>, accepted: Accepted) {
        let worker = Rc::clone(self);
        self.stats.inc(worker::Counter::connections_total);
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        // Ids of all workers are distinct without a shared counter.
        let id = id * self.peers.len() as u64 + self.index as u64;
        spawn_local(async move {
            let key = worker.connections.borrow_mut().insert(None);
            let registration = Registration { worker: Rc::clone(&worker), key };
            Box::pin(listener::serve(&worker, accepted, id, &registration)).await;
        });
    }

    fn configure(&self, generation: Arc<Generation>) {
        self.upstreams.apply(&generation.config);
        let next = LocalGeneration::next(generation, &self.generation());
        self.local.replace(Rc::new(next));
    }

    fn drain(&self) {
        self.draining.set(true);
        let connections = self.connections.borrow();
        connections.iter().filter_map(|(_, waker)| waker.as_ref()).for_each(Waker::wake_by_ref);
    }
}

/// A connection's entry among those woken when draining begins.
pub(crate) struct Registration {
    worker: Rc<Worker>,
    key: usize,
}

impl Registration {
    /// Wakes this task when draining begins. Cheap to call at every poll: a task's waker stays the same.
    #[inline]
    pub(crate) fn watch(&self, waker: &Waker) {
        if let Some(slot) = self.worker.connections.borrow_mut().get_mut(self.key)
            && !slot.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            *slot = Some(waker.clone());
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.worker.connections.borrow_mut().try_remove(self.key);
    }
}

impl LocalGeneration {
    fn empty() -> Self {
        Self {
            shared: Arc::default(),
            connection_stats: RefCell::default(),
            managers: RefCell::default(),
            chains: RefCell::default(),
            tcp_stats: RefCell::default(),
            proxy_protocol_stats: RefCell::default(),
        }
    }

    /// Takes over this worker's statistics writers where the new generation still has them.
    fn next(shared: Arc<Generation>, before: &Self) -> Self {
        let next = Self { shared, ..Self::empty() };
        carry(&before.connection_stats, &next.connection_stats, |key| next.shared.listener_scopes.contains_key(key));
        // What only these maps still know of has left the configuration, and has no connection.
        let managers = before.managers.borrow();
        let used = managers.iter().filter(|(_, (config, _))| Arc::strong_count(config) > 1);
        next.managers
            .borrow_mut()
            .extend(used.map(|(key, (config, manager))| (*key, (config.clone(), manager.clone()))));
        let chains = before.chains.borrow();
        let used = chains.iter().filter(|(_, (config, _))| Arc::strong_count(config) > 1);
        next.chains.borrow_mut().extend(used.map(|(key, (config, filters))| (*key, (config.clone(), filters.clone()))));
        carry(&before.tcp_stats, &next.tcp_stats, |key| next.shared.tcp_scopes.contains_key(key));
        let filters = || next.shared.bound.values().filter_map(|bound| bound.listener_filters.proxy_protocol.as_ref());
        carry(&before.proxy_protocol_stats, &next.proxy_protocol_stats, |prefix| {
            filters().any(|filter| filter.stat_prefix == *prefix)
        });
        next
    }

    /// Statistics of the listener at `address`.
    pub(crate) fn connection_stats(&self, worker: &Worker, address: SocketAddr) -> Rc<ConnectionStats> {
        let mut known = self.connection_stats.borrow_mut();
        let stats = known.entry(address).or_insert_with(|| {
            let scope = self.shared.listener_scopes.get(&address).cloned();
            let scope = scope.unwrap_or_else(Scope::detached);
            let own =
                worker.registry.scope::<listener_worker::Stats>(stats::listener_worker_name(address, worker.index));
            Rc::new(ConnectionStats { listener: scope.writer(), worker: own.writer() })
        });
        Rc::clone(stats)
    }

    /// This worker's side of a connection manager.
    pub(crate) fn manager(&self, worker: &Worker, config: &Arc<HttpConnectionManager>) -> Rc<HttpManager> {
        let mut known = self.managers.borrow_mut();
        let (_, manager) = known.entry(Arc::as_ptr(config).addr()).or_insert_with(|| {
            let scope = self.shared.http_scopes.get(&config.stat_prefix).cloned().unwrap_or_else(Scope::detached);
            let name = stats::http_name(&config.stat_prefix);
            let filters = HttpFilters::new(&config.filters, &worker.registry, &name);
            (Arc::clone(config), Rc::new(HttpManager { http: scope.writer(), filters }))
        });
        Rc::clone(manager)
    }

    /// This worker's network filters of a filter chain.
    pub(crate) fn network_filters(&self, worker: &Worker, chain: &Arc<FilterChain>) -> Rc<NetworkFilters> {
        let mut known = self.chains.borrow_mut();
        let (_, filters) = known.entry(Arc::as_ptr(chain).addr()).or_insert_with(|| {
            (Arc::clone(chain), Rc::new(NetworkFilters::new(&chain.network_filters, &worker.registry)))
        });
        Rc::clone(filters)
    }

    /// Statistics of the `proxy_protocol` listener filter.
    pub(crate) fn proxy_protocol_stats(&self, worker: &Worker, prefix: &str) -> Rc<ProxyProtocolStats> {
        let mut known = self.proxy_protocol_stats.borrow_mut();
        let stats = known.entry(prefix.into());
        Rc::clone(stats.or_insert_with(|| Rc::new(ProxyProtocolStats::new(&worker.registry, prefix))))
    }

    /// Statistics of a TCP proxy.
    pub(crate) fn tcp_stats(&self, prefix: &Arc<str>) -> Rc<TcpStats> {
        let mut known = self.tcp_stats.borrow_mut();
        let stats = known.entry(Arc::clone(prefix)).or_insert_with(|| {
            Rc::new(self.shared.tcp_scopes.get(prefix).cloned().unwrap_or_else(Scope::detached).writer())
        });
        Rc::clone(stats)
    }
}

/// Copies the entries that are still wanted.
fn carry<K, V>(from: &RefCell<FastMap<K, Rc<V>>>, to: &RefCell<FastMap<K, Rc<V>>>, wanted: impl Fn(&K) -> bool)
where
    K: Clone + Eq + std::hash::Hash,
{
    let mut to = to.borrow_mut();
    for (key, value) in from.borrow().iter().filter(|(key, _)| wanted(key)) {
        to.insert(key.clone(), Rc::clone(value));
    }
}
