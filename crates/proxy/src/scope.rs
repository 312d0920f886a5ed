//! The scope of a proxy that asks for what its workload uses: what is asked for, when it was used last, and what goes again.
//!
//! Workers say what they need ([`Shared::take_demands`]); the names are subscribed to with everything else, and their
//! answers are part of the next configuration. What was not used for long is dropped ([`Shared::keep_scope`]). What the
//! control plane knows of the workload's other replicas is there from the start ([`memory`]).

pub(crate) mod memory;
pub(crate) mod usage;

use std::time::Duration;

use evenkeel_runtime_config::Demand;
use evenkeel_xds::ResourceType;
use tokio::sync::mpsc;
use tokio::time::Instant;

use self::usage::Use;
use crate::control_stats::on_demand::{Counter, Gauge};
use crate::state::{Phase, Shared, State};

/// How often it is looked at what was used.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// What does not exist is forgotten after this long without use; it costs one question to ask again.
const ABSENT_AFTER: Duration = Duration::from_secs(600);
/// Names held at a time, those of which there is nothing included; the longest unused go first.
const MAX_NAMES: usize = 20_000;
/// Hosts that nobody answered for are named in the log this often at most.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// One name of the scope, for the admin page.
#[derive(Debug)]
pub(crate) struct ScopeEntry {
    pub demand: Demand,
    /// What became of it.
    pub state: &'static str,
    /// Since it was used, or remembered.
    pub idle: Duration,
    /// The workload has used it; otherwise it is only remembered.
    pub used: bool,
}

impl State {
    /// Takes a demand in; true when it is new.
    fn demand(&mut self, demand: Demand, now: Instant) -> bool {
        self.scope.note(demand.clone(), now);
        let new = self.builder.demand(demand.clone());
        if new {
            self.stats.on_demand.inc(Counter::demanded);
        }
        let away = self.phase == Phase::Live && !self.is_connected();
        if away && !self.builder.is_answered(&demand) {
            self.builder.give_up(&demand);
            self.note_given_up(1);
            self.log_unanswerable(&demand, now);
            return true;
        }
        new
    }

    /// Whether this is a name in use of which there is nothing yet.
    pub fn is_awaited(&self, kind: ResourceType, name: &str) -> bool {
        let demand = self.scope.is_learned().then(|| Demand::of(kind, name)).flatten();
        demand.is_some_and(|demand| self.scope.last_used.contains_key(&demand) && !self.builder.is_present(&demand))
    }

    /// Names that the workload's replicas have used: asked for before the first of them is needed.
    pub fn recall(&mut self, demands: Vec<Demand>) {
        let now = Instant::now();
        self.scope.recalled = Some(now);
        for demand in demands {
            self.scope.last_used.entry(demand.clone()).or_insert(Use { last: now, own: false });
            if self.builder.demand(demand) {
                self.stats.on_demand.inc(Counter::recalled);
            }
        }
    }

    /// Whoever waits goes on with what is known: the control plane is away. True when somebody may have waited.
    pub fn give_up_demands(&mut self) -> bool {
        let is_awaited = |demand: &&Demand| !self.builder.is_answered(demand) && !self.builder.is_given_up(demand);
        let waiting: Vec<Demand> = self.builder.demanded().iter().filter(is_awaited).cloned().collect();
        self.note_given_up(waiting.len());
        let now = Instant::now();
        for demand in &waiting {
            self.builder.give_up(demand);
            self.log_unanswerable(demand, now);
        }
        !waiting.is_empty()
    }

    pub fn note_given_up(&self, count: usize) {
        self.stats.on_demand.add(Counter::given_up, u64::try_from(count).unwrap_or(u64::MAX));
    }

    fn log_unanswerable(&mut self, demand: &Demand, now: Instant) {
        if self.scope.logged.is_none_or(|logged| now.duration_since(logged) >= LOG_INTERVAL) {
            self.scope.logged = Some(now);
            tracing::warn!("the control plane is away and cannot be asked for {demand}; the outbound policy decides");
        }
    }

    /// Whether the aggregated stream is up.
    fn is_connected(&self) -> bool {
        self.streams.iter().any(|(key, stream)| key.is_aggregated() && stream.connected)
    }

    /// What is used, for the control plane to remember.
    pub fn used(&self) -> Vec<Demand> {
        let own = self.scope.last_used.iter().filter(|(_, used)| used.own).map(|(demand, _)| demand);
        own.filter(|demand| self.builder.is_present(demand)).cloned().collect()
    }

    /// Names, how long ago each was used (or, if that has not come to pass, remembered), and what became of it, for the
    /// admin page.
    pub fn scope_entries(&self) -> Vec<ScopeEntry> {
        let state = |demand: &Demand| match demand {
            _ if self.builder.is_given_up(demand) => "given up",
            _ if !self.builder.is_answered(demand) => "asked for",
            _ if self.builder.is_present(demand) => "present",
            _ => "absent",
        };
        let entry = |(demand, used): (&Demand, &Use)| ScopeEntry {
            demand: demand.clone(),
            state: state(demand),
            idle: used.last.elapsed(),
            used: used.own,
        };
        let mut entries: Vec<_> = self.scope.last_used.iter().map(entry).collect();
        entries.sort_by(|a, b| a.demand.cmp(&b.demand));
        entries
    }

    pub(crate) fn publish_scope(&self) {
        let (mut hosts, mut listeners, mut clusters, mut absent) = (0, 0, 0, 0);
        for demand in self.scope.last_used.keys() {
            match demand {
                _ if !self.builder.is_present(demand) => absent += 1,
                Demand::VirtualHost { .. } => hosts += 1,
                Demand::Listener(_) => listeners += 1,
                Demand::Cluster(_) => clusters += 1,
            }
        }
        let stats = &self.stats.on_demand;
        stats.set(Gauge::virtual_hosts, hosts);
        stats.set(Gauge::listeners, listeners);
        stats.set(Gauge::clusters, clusters);
        stats.set(Gauge::absent, absent);
    }

    /// Drops what was not used for long; true when there was something.
    fn sweep(&mut self, now: Instant) -> bool {
        let Some(unused_after) = self.scope.unused_after else { return false };
        for used in self.builder.take_used() {
            if self.scope.last_used.contains_key(&used) {
                self.scope.note(used, now);
            }
        }
        let mut idle: Vec<(Duration, Demand)> = self
            .scope
            .last_used
            .iter()
            // Clusters of TCP proxies are used as long as a listener leads to them.
            .filter(|(demand, _)| !matches!(demand, Demand::Cluster(_)))
            .map(|(demand, used)| (now.duration_since(used.last), demand.clone()))
            .collect();
        idle.sort_by_key(|(last_used, ..)| std::cmp::Reverse(*last_used));
        let too_many = self.scope.last_used.len().saturating_sub(MAX_NAMES);
        let limit = |demand: &Demand| match self.builder.is_present(demand) {
            true => unused_after,
            false => ABSENT_AFTER.min(unused_after),
        };
        let expired: Vec<Demand> = idle
            .into_iter()
            .enumerate()
            .filter(|(index, (idle, demand))| *index < too_many || *idle >= limit(demand))
            .map(|(_, (_, demand))| demand)
            .collect();
        for demand in &expired {
            self.builder.withdraw(demand);
            self.scope.forget(demand);
        }
        let led_to = self.builder.tcp_clusters();
        let stray: Vec<Demand> = self
            .scope
            .last_used
            .keys()
            .filter(|demand| matches!(demand, Demand::Cluster(name) if !led_to.contains(name)))
            .cloned()
            .collect();
        for demand in &stray {
            self.builder.withdraw(demand);
            self.scope.forget(demand);
        }
        let forgotten = expired.len() + stray.len();
        self.stats.on_demand.add(Counter::forgotten, u64::try_from(forgotten).unwrap_or(u64::MAX));
        forgotten > 0
    }
}

impl Shared {
    /// Asks for what workers need, for the life of the process.
    pub async fn take_demands(&self, mut demands: mpsc::Receiver<Demand>) {
        while let Some(first) = demands.recv().await {
            let now = Instant::now();
            let mut state = self.state.borrow_mut();
            let mut new = state.demand(first, now);
            while let Ok(next) = demands.try_recv() {
                new |= state.demand(next, now);
            }
            drop(state);
            if new {
                self.dirty.notify_one();
            }
        }
    }

    /// Forgets what is not used any more, for the life of the process.
    pub async fn keep_scope(&self) {
        if !self.state.borrow().scope.is_learned() {
            return;
        }
        loop {
            tokio::time::sleep(SWEEP_INTERVAL).await;
            if self.state.borrow_mut().sweep(Instant::now()) {
                self.dirty.notify_one();
            }
        }
    }
}
