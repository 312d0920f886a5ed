//! One worker: its thread, its inbox, and what its connections share.

use std::cell::{Cell, OnceCell, RefCell};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_filters::{HttpFilters, NetworkFilters, Setup, network};
use evenkeel_runtime_config::listener::{FilterChain, ProxyProtocolVersion};
use evenkeel_runtime_config::{Demand, FastMap, HttpConnectionManager};
use evenkeel_stats::{Registry, Scope, ScopeName, Writer};
use evenkeel_upstream::conn::{burst, deadline, hangup};
use evenkeel_upstream::h2::stats as h2;
use evenkeel_upstream::random::Random;
use evenkeel_upstream::{self, SharedClusters, Upstreams};
use tokio::runtime::LocalOptions;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, MissedTickBehavior};

use crate::access_log::{LogHandle, WorkerLog};
use crate::balance::{Balance, Seat};
use crate::callouts::WorkerCallouts;
use crate::handover::Parcel;
use crate::http::LentStream;
use crate::listener;
use crate::listener::moving::Moved;
use crate::listener::socket::ListenerKey;
use crate::memory;
use crate::overload::{MemoryLimit, Overload};
use crate::stats::{self, http, http1, listener_ssl, listener_ssl_factory, listener_worker, tcp, worker};
use crate::worker::drains::{DrainScope, Drains};
use crate::worker::hold::Held;
use crate::worker::rest::Rest;
use crate::worker::roster::{Registration, Roster};
use crate::worker::{Accepted, Generation, Message};

/// Between two rounds of housekeeping: logs handed over, idle upstream connections swept, drained connections cut.
const HOUSEKEEPING: Duration = evenkeel_upstream::SWEEP_INTERVAL;

/// Most that is waited for a client of a draining connection to say something; a tenth of a shorter drain time.
const MAX_DRAIN_QUIET: Duration = Duration::from_secs(1);

/// How long a worker that ends waits for its connections' last log lines.
const LAST_LINES: Duration = Duration::from_secs(1);

/// What a worker is made of.
pub(super) struct Seed {
    pub(super) index: usize,
    pub(super) balance: Arc<Balance>,
    pub(super) peers: Vec<mpsc::Sender<Message>>,
    pub(super) registry: Arc<Registry>,
    pub(super) breakers: Arc<SharedClusters>,
    pub(super) overload: Arc<Overload>,
    pub(super) log: LogHandle,
    pub(super) stats: Writer<worker::Stats>,
    pub(super) drain_time: Duration,
    pub(super) demands: mpsc::Sender<Demand>,
}

/// What the connections of one worker share. Everything here is of one thread.
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) balance: Arc<Balance>,
    pub(crate) peers: Vec<mpsc::Sender<Message>>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) log: RefCell<WorkerLog>,
    pub(crate) stats: Writer<worker::Stats>,
    pub(crate) upstreams: Rc<Upstreams>,
    /// Calls of the proxy's own.
    pub(crate) callouts: WorkerCallouts,
    pub(crate) random: Random,
    pub(super) roster: Roster,
    pub(super) drains: Drains,
    /// Where connections go once a successor has taken over.
    pub(crate) successor: RefCell<Option<mpsc::Sender<Parcel>>>,
    drain_time: Duration,
    /// For how long nothing must have come on a connection that drains before it is closed: its client could be sending.
    pub(crate) drain_quiet: Duration,
    /// Told when another configuration is in force.
    pub(super) configured: Notify,
    /// What the control plane is asked for.
    pub(super) demands: mpsc::Sender<Demand>,
    pub(super) held: Held,
    rest: Rest,
    registry: Arc<Registry>,
    local: RefCell<Rc<LocalGeneration>>,
    next_connection: Cell<u64>,
}

/// What was made for a piece of configuration, by that piece's address in memory. The entry keeps the address taken, not the
/// piece: every worker has such an entry, and none would be the last to let go.
type ByAddress<C, M> = RefCell<FastMap<usize, (Weak<C>, Rc<M>)>>;

/// A [`Generation`] as one worker uses it.
pub(crate) struct LocalGeneration {
    pub(crate) shared: Arc<Generation>,
    made: Rc<Made>,
}

/// What one worker has made for listeners. A generation goes on with that of the one before.
#[derive(Default)]
struct Made {
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
    tls: OnceCell<Writer<listener_ssl::Stats>>,
    tls_factory: OnceCell<Writer<listener_ssl_factory::Stats>>,
}

impl ConnectionStats {
    /// Those of TLS handshakes; most listeners of a sidecar never see one. `address` is the listener's.
    pub(crate) fn tls(&self, worker: &Worker, address: SocketAddr) -> &Writer<listener_ssl::Stats> {
        self.tls.get_or_init(|| worker.registry.scope(stats::listener_ssl_name(address)).writer())
    }

    /// Those of handshakes that had no certificate to begin with.
    pub(crate) fn tls_factory(&self, worker: &Worker, address: SocketAddr) -> &Writer<listener_ssl_factory::Stats> {
        self.tls_factory.get_or_init(|| worker.registry.scope(stats::listener_ssl_factory_name(address)).writer())
    }
}

/// This worker's side of a connection manager: statistics and filters.
pub(crate) struct HttpManager {
    pub(crate) http: Writer<http::Stats>,
    pub(crate) filters: HttpFilters,
    /// HTTP/1's own, over all connection managers.
    pub(crate) http1: Writer<http1::Stats>,
    /// HTTP/2's own, over all connection managers.
    pub(crate) http2: Rc<Writer<h2::Stats>>,
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
    let (started, start) = std::sync::mpsc::sync_channel(1);
    let thread = std::thread::Builder::new().name(format!("worker-{}", seed.index)).spawn(move || {
        // A runtime whose tasks never leave the thread has to be made on it.
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.on_thread_unpark(burst::worker_woke);
        match builder.enable_io().enable_time().build_local(LocalOptions::default()) {
            Ok(runtime) => {
                _ = started.send(Ok(()));
                runtime.block_on(run(seed, inbox));
            }
            Err(error) => _ = started.send(Err(error)),
        }
    })?;
    start.recv().unwrap_or_else(|_| Err(io::Error::other("the worker's thread ended at once")))?;
    Ok(thread)
}

async fn run(seed: Seed, mut inbox: mpsc::Receiver<Message>) {
    let worker = Worker::new(seed);
    let housekeeping = spawn_local(housekeeping(Rc::clone(&worker)));
    spawn_local(burst::run());
    spawn_local(hangup::run());
    let mut accepting: FastMap<ListenerKey, Vec<oneshot::Sender<()>>> = FastMap::default();
    while let Some(message) = inbox.recv().await {
        match message {
            Message::Configure(generation) => worker.configure(generation),
            Message::Listen(listener, socket) => {
                let (stop, stopped) = oneshot::channel();
                accepting.entry(listener.clone()).or_default().push(stop);
                spawn_local(listener::accept::accept(Rc::clone(&worker), listener, socket, stopped));
            }
            Message::Unlisten(listener) => {
                accepting.remove(&listener).into_iter().flatten().for_each(|stop| _ = stop.send(()));
            }
            Message::Release(listener) => _ = accepting.remove(&listener),
            Message::Adopted(parcel, seat) => worker.adopt(*parcel, seat),
            Message::GiveAway(to) => worker.give_away(to),
            Message::Clusters(answer) => _ = answer.send(worker.upstreams.snapshot()),
            Message::Connection(accepted) => worker.serve(accepted),
            Message::Stream(stream) => worker.borrow(stream),
            Message::Moved(moved) => worker.resume(*moved),
            Message::Shed(shed) => worker.roster.shed(&shed, worker.balance.epoch()),
            Message::Level(level) => worker.roster.level(&level, worker.balance.epoch()),
            Message::Drain(scope) => worker.drain(scope),
            Message::Stop => break,
        }
    }
    housekeeping.abort();
    worker.end_connections().await;
    worker.upstreams.close_idle();
    worker.log.borrow_mut().flush();
}

/// Work done once a second.
async fn housekeeping(worker: Rc<Worker>) {
    let mut ticks = tokio::time::interval(HOUSEKEEPING);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut shrinks = worker.overload.shrinks();
    loop {
        let now = ticks.tick().await;
        deadline::tick(now);
        hangup::tick();
        worker.log.borrow_mut().flush();
        worker.upstreams.sweep(now);
        worker.publish_memory();
        evenkeel_upstream::h2::trim();
        memory::collect_if_asked();
        if std::mem::replace(&mut shrinks, worker.overload.shrinks()) != worker.overload.shrinks() {
            worker.upstreams.close_idle();
            memory::collect();
        }
        worker.generation().forget_unused();
        let expired = worker.drains.expired(now);
        if !expired.is_empty() {
            worker.roster.cut(&expired);
        }
    }
}

impl Worker {
    fn new(seed: Seed) -> Rc<Self> {
        let upstreams = Upstreams::new(seed.breakers, Arc::clone(&seed.registry), seed.index == 0);
        let upstreams = Rc::new(upstreams);
        Rc::new(Self {
            index: seed.index,
            balance: seed.balance,
            peers: seed.peers,
            overload: seed.overload,
            log: RefCell::new(WorkerLog::new(seed.log)),
            stats: seed.stats,
            callouts: WorkerCallouts::new(Rc::clone(&upstreams)),
            upstreams,
            random: Random::from_system(),
            roster: Roster::default(),
            drains: Drains::default(),
            successor: RefCell::default(),
            drain_time: seed.drain_time,
            drain_quiet: MAX_DRAIN_QUIET.min(seed.drain_time / 10),
            configured: Notify::new(),
            demands: seed.demands,
            held: Held::default(),
            rest: Rest::new(),
            registry: seed.registry,
            local: RefCell::new(Rc::new(LocalGeneration::empty())),
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
        self.stats.inc(worker::Counter::downstream_cx_total);
        let id = self.next_id();
        let (worker, registration) = (Rc::clone(self), self.register(&accepted.bound.name));
        let entry = Rc::clone(&registration);
        let task = super::spawn(&entry, async move {
            if let Some(mut served) = Box::pin(listener::accepted(&worker, accepted, id, &registration)).await {
                served.serve_to_end(&worker, &registration).await;
            }
        });
        self.roster.set_task(entry.key(), task.abort_handle());
    }

    /// An entry for a connection that this listener accepted.
    fn register(self: &Rc<Self>, listener: &str) -> Rc<Registration> {
        let registration = Registration::new(self);
        if let Some(limit) = self.overload.memory_limit(listener) {
            registration.limit_memory(limit);
        }
        Rc::new(registration)
    }

    /// Goes on with a connection that another worker served so far.
    fn resume(self: &Rc<Self>, moved: Moved) {
        self.stats.inc(worker::Counter::downstream_cx_moved_in);
        let registration = self.register(moved.accepted_by());
        self.spawn(registration, move |worker, registration| listener::moving::resumed(worker, moved, registration));
    }

    /// Goes on with a connection that another process served so far.
    fn adopt(self: &Rc<Self>, parcel: Parcel, seat: Seat) {
        let id = self.next_id();
        let listener = listener::adopt::taken_by(self, &parcel).unwrap_or_default();
        self.spawn(self.register(&listener), move |worker, registration| {
            listener::adopt::adopted(worker, parcel, seat, id, registration)
        });
    }

    /// Gives connections to a successor from now on, or no longer.
    pub(crate) fn give_away(&self, to: Option<mpsc::Sender<Parcel>>) {
        self.drains.set_giving_away(to.is_some());
        self.successor.replace(to);
        self.roster.wake_all();
    }

    fn next_id(&self) -> u64 {
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        // Ids of all workers are distinct without a shared counter.
        id * self.peers.len() as u64 + self.index as u64
    }

    /// Serves a connection whose filter chain is known on a task of its own.
    fn spawn<F>(self: &Rc<Self>, registration: Rc<Registration>, begin: F)
    where
        F: for<'w> FnOnce(&'w Rc<Worker>, &'w Rc<Registration>) -> Option<listener::Served<'w>> + 'static,
    {
        let (worker, entry) = (Rc::clone(self), Rc::clone(&registration));
        let task = super::spawn(&entry, async move {
            if let Some(mut served) = begin(&worker, &registration) {
                served.serve_to_end(&worker, &registration).await;
            }
        });
        self.roster.set_task(entry.key(), task.abort_handle());
    }

    /// Ends what is left, where it stands; each has its log line.
    async fn end_connections(&self) {
        let ending = async {
            while self.roster.cut_all() {
                tokio::task::yield_now().await;
            }
        };
        _ = tokio::time::timeout(LAST_LINES, ending).await;
    }

    /// This worker hardly waits for anything any more: what comes in waits for it.
    pub(crate) fn never_rests(&self) -> bool {
        self.rest.is_none()
    }

    /// Serves a stream of a connection that another worker holds.
    fn borrow(self: &Rc<Self>, stream: Box<LentStream>) {
        let registration = Registration::new(self);
        if let Some(limit) = stream.memory_limit() {
            registration.limit_memory(limit);
        }
        let registration = Rc::new(registration);
        let task =
            super::spawn(&registration, crate::http::serve_lent(Rc::clone(self), stream, Rc::clone(&registration)));
        self.roster.set_task(registration.key(), task.abort_handle());
    }

    /// Says how much memory the connections of limited listeners hold. One worker does, for all.
    fn publish_memory(&self) {
        if self.index != 0 || !self.overload.limits_memory() {
            return;
        }
        let generation = self.generation();
        for listener in generation.shared.bound.values() {
            if let Some(limit) = self.overload.memory_limit(&listener.name) {
                let stats = generation.connection_stats(self, listener.address);
                stats.listener.set(stats::listener::Gauge::downstream_memory_bytes, limit.held());
            }
        }
    }

    /// Counts what was done to connections because those of their listener hold much.
    pub(super) fn count_for_memory(&self, limit: &Arc<MemoryLimit>, counter: stats::listener::Counter, count: u64) {
        let generation = self.generation();
        let is_theirs = |limits: Option<Arc<MemoryLimit>>| limits.is_some_and(|theirs| Arc::ptr_eq(&theirs, limit));
        let mut listeners = generation.shared.bound.values();
        if let Some(listener) = listeners.find(|listener| is_theirs(self.overload.memory_limit(&listener.name))) {
            generation.connection_stats(self, listener.address).listener.add(counter, count);
        }
    }

    fn configure(&self, generation: Arc<Generation>) {
        let before = self.generation();
        self.upstreams.apply(&generation.config, &before.shared.config);
        let next = LocalGeneration::next(generation, &before);
        self.drain_removed(&before.shared, &next.shared);
        self.local.replace(Rc::new(next));
        self.configured.notify_waiters();
    }

    /// Connections of filter chains that the new configuration does not have any more end, as Envoy's do.
    fn drain_removed(&self, before: &Generation, now: &Generation) {
        let removed = now.removed_chains(before);
        if !removed.is_empty() {
            self.drains.add(removed.into_iter(), Instant::now() + self.drain_time);
            self.roster.wake_all();
        }
    }

    fn drain(&self, scope: DrainScope) {
        self.drains.set_scope(scope);
        self.roster.wake_all();
    }
}

impl LocalGeneration {
    fn empty() -> Self {
        Self { shared: Arc::default(), made: Rc::default() }
    }

    /// Takes over this worker's statistics writers where the new generation still has them.
    fn next(shared: Arc<Generation>, before: &Self) -> Self {
        if !shared.config.changed_listeners(&before.shared.config).is_empty() {
            before.made.forget_others(&shared);
        }
        Self { shared, made: Rc::clone(&before.made) }
    }

    /// Drops what was made for configuration that is gone, and that no connection uses any more.
    fn forget_unused(&self) {
        self.made.forget_unused();
    }

    /// Statistics of the listener at `address`.
    pub(crate) fn connection_stats(&self, worker: &Worker, address: SocketAddr) -> Rc<ConnectionStats> {
        let mut known = self.made.connection_stats.borrow_mut();
        let stats = known.entry(address).or_insert_with(|| {
            let scope = self.shared.listener_scopes.get(&address).cloned();
            let scope = scope.unwrap_or_else(Scope::detached);
            let own =
                worker.registry.scope::<listener_worker::Stats>(stats::listener_worker_name(address, worker.index));
            Rc::new(ConnectionStats {
                listener: scope.writer(),
                worker: own.writer(),
                tls: OnceCell::new(),
                tls_factory: OnceCell::new(),
            })
        });
        Rc::clone(stats)
    }

    /// This worker's side of a connection manager.
    pub(crate) fn manager(&self, worker: &Worker, config: &Arc<HttpConnectionManager>) -> Rc<HttpManager> {
        let mut known = self.made.managers.borrow_mut();
        let (_, manager) = known.entry(Arc::as_ptr(config).addr()).or_insert_with(|| {
            let scope = self.shared.http_scopes.get(&config.stat_prefix).cloned().unwrap_or_else(Scope::detached);
            let name = stats::http_name(&config.stat_prefix);
            let filters = HttpFilters::new(&config.filters, &Setup { registry: &worker.registry, outer: &name });
            let http2 = Rc::new(worker.registry.scope(h2::downstream_name()).writer());
            let http1 = worker.registry.scope(ScopeName::plain("http1.")).writer();
            (Arc::downgrade(config), Rc::new(HttpManager { http: scope.writer(), filters, http1, http2 }))
        });
        Rc::clone(manager)
    }

    /// This worker's network filters of a filter chain.
    pub(crate) fn network_filters(&self, worker: &Worker, chain: &Arc<FilterChain>) -> Rc<NetworkFilters> {
        let mut known = self.made.chains.borrow_mut();
        let (_, filters) = known.entry(Arc::as_ptr(chain).addr()).or_insert_with(|| {
            let setup = network::Setup { registry: &worker.registry };
            (Arc::downgrade(chain), Rc::new(NetworkFilters::new(&chain.network_filters, &setup)))
        });
        Rc::clone(filters)
    }

    /// Statistics of the `proxy_protocol` listener filter.
    pub(crate) fn proxy_protocol_stats(&self, worker: &Worker, prefix: &str) -> Rc<ProxyProtocolStats> {
        let mut known = self.made.proxy_protocol_stats.borrow_mut();
        let stats = known.entry(prefix.into());
        Rc::clone(stats.or_insert_with(|| Rc::new(ProxyProtocolStats::new(&worker.registry, prefix))))
    }

    /// Statistics of a TCP proxy.
    pub(crate) fn tcp_stats(&self, prefix: &Arc<str>) -> Rc<TcpStats> {
        let mut known = self.made.tcp_stats.borrow_mut();
        let stats = known.entry(Arc::clone(prefix)).or_insert_with(|| {
            Rc::new(self.shared.tcp_scopes.get(prefix).cloned().unwrap_or_else(Scope::detached).writer())
        });
        Rc::clone(stats)
    }
}

impl Made {
    /// Drops what was made for listeners that `generation` does not have.
    fn forget_others(&self, generation: &Generation) {
        let scopes = &generation.listener_scopes;
        self.connection_stats.borrow_mut().retain(|address, _| scopes.get(address).is_some());
        self.tcp_stats.borrow_mut().retain(|prefix, _| generation.tcp_scopes.get(prefix).is_some());
        let filters = || generation.bound.values().filter_map(|bound| bound.listener_filters.proxy_protocol.as_ref());
        let is_wanted = |prefix: &str| filters().any(|filter| *filter.stat_prefix == *prefix);
        self.proxy_protocol_stats.borrow_mut().retain(|prefix, _| is_wanted(prefix));
        self.forget_unused();
    }

    fn forget_unused(&self) {
        self.managers.borrow_mut().retain(|_, (config, _)| config.strong_count() > 0);
        self.chains.borrow_mut().retain(|_, (config, _)| config.strong_count() > 0);
    }
}
