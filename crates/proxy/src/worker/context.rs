//! A worker: the state shared by its connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::listener::FilterChain;
use evenkeel_runtime_config::{Config, Demand};
use evenkeel_stats::{Registry, Writer};
use evenkeel_upstream::random::Random;
use evenkeel_upstream::{SharedClusters, Upstreams};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::drains::{DrainScope, Drains};
use super::generation::Generation;
use super::hold::{HoldError, Holds};
use super::idle_meter::IdleMeter;
use super::inbox::Message;
use super::local::LocalGeneration;
use super::roster::Roster;
use crate::access_log::{Collectors, LogHandle, WorkerLog};
use crate::balance::{Balance, Level, LoadTransfer};
use crate::callouts::WorkerCallouts;
use crate::dns_cache::Lookup;
use crate::edges::{EdgeTable, Edges};
use crate::handover::Parcel;
use crate::overload::{MemoryLimit, Overload};
use crate::recent::{self, Recent};
use crate::reporters::Reporters;
use crate::stats::{self, worker};
use crate::tap::Tap;
use evenkeel_upstream::turn;

/// Upper bound of `drain_quiet`, which is otherwise a tenth of the drain time.
const MAX_DRAIN_QUIET: Duration = Duration::from_secs(1);

/// How long a worker that ends waits for the last log lines of its connections.
const LAST_LINES: Duration = Duration::from_secs(1);

/// The inputs for making a worker.
pub(crate) struct Seed {
    pub(crate) index: usize,
    pub(crate) balance: Arc<Balance>,
    pub(crate) peers: Vec<mpsc::Sender<Message>>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) breakers: Arc<SharedClusters>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) log: LogHandle,
    pub(crate) node: Arc<Node>,
    pub(crate) stats: Writer<worker::Stats>,
    pub(crate) drain_time: Duration,
    pub(crate) listener_drain_time: Duration,
    pub(crate) demands: mpsc::Sender<Demand>,
    pub(crate) lookups: mpsc::Sender<Lookup>,
    pub(crate) recent: recent::Options,
    pub(crate) edges: EdgeTable,
    pub(crate) tap: Arc<Tap>,
}

/// State shared by the connections of one worker. It is only used on the worker's thread.
pub(crate) struct Worker {
    pub(crate) index: usize,
    pub(crate) balance: Arc<Balance>,
    pub(crate) peers: Vec<mpsc::Sender<Message>>,
    pub(crate) overload: Arc<Overload>,
    pub(crate) log: RefCell<WorkerLog>,
    pub(crate) stats: Writer<worker::Stats>,
    pub(crate) upstreams: Rc<Upstreams>,
    /// Callouts of the proxy itself, such as those of filters.
    pub(crate) callouts: WorkerCallouts,
    /// Where spans go.
    pub(crate) reporters: Reporters,
    pub(crate) random: Random,
    /// Recent requests, for those who ask about them.
    pub(crate) recent: Recent,
    /// Who has talked to whom, for those who ask.
    pub(crate) edges: Edges,
    /// Requests as they end, for those who read them.
    pub(crate) tap: Arc<Tap>,
    pub(super) roster: Roster,
    pub(super) drains: Drains,
    /// Where connections are handed over to once a successor has taken over.
    pub(crate) successor: RefCell<Option<mpsc::Sender<Parcel>>>,
    /// How long connections may continue whose filter chain was changed or removed.
    listener_drain_time: Duration,
    /// How long a draining connection must have received nothing before it is closed: its client could be sending.
    pub(crate) drain_quiet: Duration,
    /// Host names to resolve, to the control thread.
    pub(crate) lookups: mpsc::Sender<Lookup>,
    holds: Holds,
    idle_meter: IdleMeter,
    local: RefCell<Rc<LocalGeneration>>,
    next_connection: Cell<u64>,
}

impl Worker {
    /// A worker without connections or configuration.
    pub(crate) fn new(seed: Seed) -> Rc<Self> {
        let upstreams = Upstreams::new(seed.breakers, Arc::clone(&seed.registry), seed.index == 0);
        let upstreams = Rc::new(upstreams);
        let callouts = WorkerCallouts::new(Rc::clone(&upstreams));
        let collectors = Collectors::new(callouts.clone(), seed.node, Arc::clone(&seed.registry));
        Rc::new(Self {
            index: seed.index,
            balance: seed.balance,
            peers: seed.peers,
            overload: seed.overload,
            log: RefCell::new(WorkerLog::with_collectors(seed.log, collectors)),
            stats: seed.stats,
            callouts,
            reporters: Reporters::default(),
            upstreams,
            random: Random::from_system(),
            edges: seed.edges.for_worker(seed.recent.except.clone()),
            tap: seed.tap,
            recent: Recent::new(seed.index, seed.recent, turn::now()),
            roster: Roster::default(),
            drains: Drains::default(),
            successor: RefCell::default(),
            listener_drain_time: seed.listener_drain_time,
            drain_quiet: MAX_DRAIN_QUIET.min(seed.drain_time.min(seed.listener_drain_time) / 10),
            lookups: seed.lookups,
            holds: Holds::new(seed.demands),
            idle_meter: IdleMeter::new(),
            local: RefCell::new(Rc::new(LocalGeneration::empty(seed.index, seed.registry))),
            next_connection: Cell::new(0),
        })
    }

    /// The current configuration; hold it for no longer than one request.
    #[inline]
    pub(crate) fn generation(&self) -> Rc<LocalGeneration> {
        Rc::clone(&self.local.borrow())
    }

    /// Asks for what the configuration lacks, and waits until `unanswered` returns nothing.
    pub(crate) async fn hold(&self, unanswered: impl Fn(&Config) -> Vec<Demand>) -> Result<(), HoldError> {
        self.holds.hold(|| unanswered(&self.generation().shared.config)).await
    }

    /// Starts (`Some`) or stops (`None`) handing connections over to a successor.
    pub(crate) fn hand_over_connections(&self, to: Option<mpsc::Sender<Parcel>>) {
        self.drains.set_giving_away(to.is_some());
        self.successor.replace(to);
        self.roster.wake_all();
    }

    /// A new connection id.
    pub(crate) fn next_id(&self) -> u64 {
        let id = self.next_connection.get();
        self.next_connection.set(id + 1);
        // Distinct across all workers without a shared counter.
        id * self.peers.len() as u64 + self.index as u64
    }

    /// Ends the remaining connections at once; each still writes its log line.
    pub(crate) async fn end_connections(&self) {
        let ending = async {
            while self.roster.cut_all() {
                tokio::task::yield_now().await;
            }
        };
        _ = tokio::time::timeout(LAST_LINES, ending).await;
    }

    /// Waits a moment for access log services to have the last entries.
    pub(crate) async fn end_logs(&self) {
        let tasks = self.log.borrow_mut().close_collectors();
        let ending = async {
            for task in tasks {
                // A panic in the task has been reported by the panic hook already.
                _ = task.await;
            }
        };
        _ = tokio::time::timeout(LAST_LINES, ending).await;
    }

    /// Whether this worker is busy most of the time, so that incoming data has to wait for it.
    pub(crate) fn is_never_idle(&self) -> bool {
        self.idle_meter.is_never_idle()
    }

    /// Publishes how much memory the connections of limited listeners hold. Worker 0 does it for all.
    pub(crate) fn publish_memory(&self) {
        if self.index != 0 || !self.overload.limits_memory() {
            return;
        }
        let generation = self.generation();
        for listener in generation.shared.bound.values() {
            if let Some(limit) = self.overload.memory_limit(&listener.name) {
                let stats = generation.connection_stats(&listener.address);
                stats.listener.set(stats::listener::Gauge::downstream_memory_bytes, limit.held());
            }
        }
    }

    /// Counts an action taken on connections because of their listener's memory limit.
    pub(super) fn count_for_memory(&self, limit: &Arc<MemoryLimit>, counter: stats::listener::Counter, count: u64) {
        let generation = self.generation();
        let is_theirs = |limits: Option<Arc<MemoryLimit>>| limits.is_some_and(|theirs| Arc::ptr_eq(&theirs, limit));
        let mut listeners = generation.shared.bound.values();
        if let Some(listener) = listeners.find(|listener| is_theirs(self.overload.memory_limit(&listener.name))) {
            generation.connection_stats(&listener.address).listener.add(counter, count);
        }
    }

    /// Installs a new configuration.
    pub(crate) fn configure(&self, generation: Arc<Generation>) {
        let before = self.generation();
        self.upstreams.apply(&generation.config, &before.shared.config);
        let removed = generation.removed_chains(&before.shared);
        let next = LocalGeneration::next(Arc::clone(&generation), &before, &removed);
        self.drain_removed(&removed);
        self.local.replace(Rc::new(next));
        self.holds.configured();
    }

    /// Drains the connections of filter chains that the new configuration has removed, as Envoy does.
    fn drain_removed(&self, removed: &[&Arc<FilterChain>]) {
        if !removed.is_empty() {
            self.drains.add(removed.iter().copied(), turn::now() + self.listener_drain_time);
            self.roster.wake_all();
        }
    }

    /// Drains the connections of `scope`: each is closed at its next message boundary.
    pub(crate) fn drain(&self, scope: DrainScope) {
        self.drains.set_scope(scope);
        self.roster.wake_all();
    }

    /// Ends the connections of removed filter chains whose drain time is over.
    pub(crate) fn cut_expired(&self, now: Instant) {
        let expired = self.drains.expired(now);
        if !expired.is_empty() {
            self.roster.cut(&expired);
        }
    }

    /// Tells connections to move to workers with less load.
    pub(crate) fn shed(&self, shed: &LoadTransfer) {
        self.roster.shed(shed, self.balance.epoch());
    }

    /// Tells connections to move to workers with fewer connections.
    pub(crate) fn level(&self, level: &Level) {
        self.roster.level(level, self.balance.epoch());
    }
}
