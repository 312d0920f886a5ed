//! The on-demand scope: a proxy that subscribes only to what its workload uses. This tracks the subscribed names and when
//! each was last used, and drops unused ones.
//!
//! Workers report what they need ([`Shared::take_demands`]); these names are subscribed along with everything else, and the
//! answers become part of the next configuration. Resources that have not been used for long are dropped
//! ([`Shared::keep_scope`]). The control plane knows the names that the workload's other replicas use, and these are
//! subscribed from the start ([`memory`]).

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

/// Interval of sweeping unused names.
const SWEEP_INTERVAL: Duration = Duration::from_secs(30);
/// A name that does not exist is dropped after this long without use; asking again costs one request.
const ABSENT_AFTER: Duration = Duration::from_secs(600);
/// Maximum number of names held, including those that do not exist; the longest unused are dropped first.
const MAX_NAMES: usize = 20_000;
/// Minimum interval between log lines about names that could not be requested.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// One name of the scope, for the admin page.
#[derive(Debug)]
pub(crate) struct ScopeEntry {
    pub demand: Demand,
    /// Its state: `given up`, `asked for`, `present` or `absent`.
    pub state: &'static str,
    /// Time since it was last used, or remembered.
    pub idle: Duration,
    /// Whether the workload has used it; otherwise it is only remembered.
    pub used: bool,
}

impl State {
    /// Records a demand; true when it is new.
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

    /// Whether this name is in use and has no resource yet.
    pub fn is_awaited(&self, kind: ResourceType, name: &str) -> bool {
        let demand = self.scope.is_learned().then(|| Demand::of(kind, name)).flatten();
        demand.is_some_and(|demand| self.scope.last_used.contains_key(&demand) && !self.builder.is_present(&demand))
    }

    /// Subscribes to names that the workload's replicas have used, before the first of them is needed.
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

    /// Gives up waiting for unanswered names because the control plane is disconnected. True when requests may have
    /// been waiting.
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

    /// Whether the ADS stream is connected.
    fn is_connected(&self) -> bool {
        self.streams.iter().any(|(key, stream)| key.is_aggregated() && stream.connected)
    }

    /// The names in use, for the control plane to remember.
    pub fn used(&self) -> Vec<Demand> {
        let own = self.scope.last_used.iter().filter(|(_, used)| used.own).map(|(demand, _)| demand);
        own.filter(|demand| self.builder.is_present(demand)).cloned().collect()
    }

    /// The names, their states, and when each was last used (or else remembered), for the admin page.
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

    /// Drops names that have not been used for long; true when there were any.
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
            // Clusters of TCP proxies are in use for as long as a listener refers to them.
            .filter(|(demand, _)| !matches!(demand, Demand::Cluster(_)))
            .map(|(demand, used)| (now.duration_since(used.last), demand.clone()))
            .collect();
        idle.sort_by_key(|(last_used, ..)| std::cmp::Reverse(*last_used));
        let too_many = self.scope.last_used.len().saturating_sub(MAX_NAMES);
        let limit = |demand: &Demand| {
            if self.builder.is_present(demand) { unused_after } else { ABSENT_AFTER.min(unused_after) }
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
    /// Requests what workers need, for the life of the process.
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

    /// Drops names that are no longer used, for the life of the process.
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
