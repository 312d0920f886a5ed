//! One endpoint as one worker sees it, and the set of them by priority and health.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::cluster::{Endpoint, EndpointAddress, Health, Transport};

use super::cluster::Idle;
use super::health::{HealthFlags, HostHealth, Tally};
use super::multiplexed::Pools;
use super::schedule::Schedule;
use crate::random::Random;

/// An endpoint with this worker's connections and counts.
#[derive(Debug)]
pub struct Host {
    /// Where it listens.
    pub address: EndpointAddress,
    /// `ADDRESS:PORT`, for logs.
    pub label: Arc<str>,
    /// Host name, for `auto_host_rewrite`.
    pub hostname: Arc<str>,
    /// How bytes travel to it.
    pub transport: Transport,
    pub(super) weight: Cell<u32>,
    /// What discovery says of its health.
    pub(super) health: Cell<Health>,
    /// What the whole process knows of its health.
    pub(super) shared: Arc<HostHealth>,
    /// What this worker counts for outlier detection.
    pub(super) tally: Arc<Tally>,
    /// Requests in flight from this worker.
    pub(super) active: Cell<u32>,
    pub(super) counts: HostCounts,
    /// Connections to reuse; the last one used is at the end.
    pub(super) idle: RefCell<Vec<Idle>>,
    /// Connections that carry many requests.
    pub(super) multiplexed: Pools,
    /// The cluster no longer has it: its connections are not kept.
    pub(super) removed: Cell<bool>,
}

/// What `/clusters` shows for a host.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct HostCounts {
    pub cx_total: Cell<u64>,
    pub cx_active: Cell<u64>,
    pub cx_connect_fail: Cell<u64>,
    pub rq_total: Cell<u64>,
    pub rq_success: Cell<u64>,
    pub rq_error: Cell<u64>,
    pub rq_timeout: Cell<u64>,
}

/// Counts one up.
pub(super) fn bump(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

impl Host {
    /// A host with no connections, whose health nobody watches.
    pub fn new(endpoint: &Endpoint, transport: Transport) -> Rc<Self> {
        Self::watched(endpoint, transport, Arc::default())
    }

    /// A host with no connections.
    pub(super) fn watched(endpoint: &Endpoint, transport: Transport, shared: Arc<HostHealth>) -> Rc<Self> {
        let label = match &endpoint.address {
            EndpointAddress::Socket(address) => address.to_string(),
            EndpointAddress::Pipe(path) => path.display().to_string(),
        };
        Rc::new(Self {
            address: endpoint.address.clone(),
            label: label.into(),
            hostname: endpoint.hostname.clone(),
            transport,
            weight: Cell::new(endpoint.weight.max(1)),
            health: Cell::new(endpoint.health),
            tally: shared.tally(),
            shared,
            active: Cell::default(),
            counts: HostCounts::default(),
            idle: RefCell::default(),
            multiplexed: Pools::default(),
            removed: Cell::default(),
        })
    }

    /// Closes what no request uses; connections that carry requests take no more.
    pub(super) fn close_idle(&self) {
        self.idle.borrow_mut().clear();
        self.multiplexed.close();
    }

    /// Its socket address; `None` for Unix sockets.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.address {
            EndpointAddress::Socket(address) => Some(address),
            EndpointAddress::Pipe(_) => None,
        }
    }

    /// Requests in flight from this worker.
    pub fn active_requests(&self) -> u32 {
        self.active.get()
    }

    /// An answer came: a 5xx counts as an error.
    pub fn count_response(&self, status: u16) {
        bump(if status >= 500 { &self.counts.rq_error } else { &self.counts.rq_success });
    }

    /// No answer came.
    pub fn count_failure(&self, timeout: bool) {
        bump(&self.counts.rq_error);
        if timeout {
            bump(&self.counts.rq_timeout);
        }
    }

    /// Its health by all that is known: discovery, active checks, outlier detection.
    pub fn health(&self) -> Health {
        let flags = self.shared.flags();
        match self.health.get() {
            Health::Draining => Health::Draining,
            Health::Unhealthy => Health::Unhealthy,
            _ if flags.has(HealthFlags::FAILED_ACTIVE_HC.and(HealthFlags::FAILED_OUTLIER_CHECK)) => Health::Unhealthy,
            _ if flags.has(HealthFlags::DEGRADED_ACTIVE_HC) => Health::Degraded,
            health => health,
        }
    }

    pub(super) fn weight(&self) -> u32 {
        self.weight.get()
    }
}

/// Two transports that connections may be shared between.
pub(super) fn same_transport(one: &Transport, other: &Transport) -> bool {
    match (one, other) {
        (Transport::Raw, Transport::Raw) => true,
        (Transport::Tls(one), Transport::Tls(other)) => Arc::ptr_eq(one, other),
        (Transport::ProxyProtocol(one), Transport::ProxyProtocol(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}

/// Healthy hosts count for 140 % of themselves before traffic spills over to the next priority
/// (`overprovisioning_factor` of Envoy's `ClusterLoadAssignment.Policy`).
const OVERPROVISIONING_PERCENT: usize = 140;

/// A cluster's hosts, arranged for picking.
#[derive(Debug, Default)]
pub struct HostSet {
    /// All hosts, in the order of the configuration.
    pub hosts: Vec<Rc<Host>>,
    levels: Vec<Level>,
}

#[derive(Debug)]
struct Level {
    schedule: Schedule,
    /// Share of requests, in percent.
    load: usize,
    /// So few hosts are healthy that all are used.
    panic: bool,
}

impl HostSet {
    /// Arranges hosts, each with its priority, by Envoy's rules for priorities, health and panic.
    pub fn new(hosts: Vec<(Rc<Host>, u32)>, panic_threshold_percent: f64, random: &Random) -> Self {
        let mut priorities: Vec<u32> = hosts.iter().map(|(_, priority)| *priority).collect();
        priorities.sort_unstable();
        priorities.dedup();
        let members: Vec<Vec<Rc<Host>>> = priorities
            .iter()
            .map(|wanted| {
                hosts.iter().filter(|(_, priority)| priority == wanted).map(|(host, _)| host.clone()).collect()
            })
            .collect();
        let loads = loads(&members.iter().map(|level| availability(level)).collect::<Vec<_>>());
        let level = |(members, load): (&Vec<Rc<Host>>, usize)| {
            let healthy = of_health(members, Health::Healthy);
            let panic = (healthy.len() * 100) as f64 / (members.len().max(1) as f64) < panic_threshold_percent;
            let usable = match (panic, healthy.is_empty()) {
                (true, _) => members.clone(),
                (false, true) => of_health(members, Health::Degraded),
                (false, false) => healthy,
            };
            Level { schedule: Schedule::new(usable, random), load, panic }
        };
        let levels = members.iter().zip(loads).map(level).collect();
        Self { hosts: hosts.into_iter().map(|(host, _)| host).collect(), levels }
    }

    /// The hosts to pick from for one request, and whether panic made them all eligible.
    pub fn choose_level(&self, random: &Random) -> Option<(&Schedule, bool)> {
        let chosen = match self.levels.as_slice() {
            [] => return None,
            [only] => only,
            levels => {
                let mut draw = random.below(levels.iter().map(|level| level.load).sum::<usize>().max(1));
                let spread = levels.iter().find(|level| {
                    let hit = draw < level.load;
                    draw = draw.saturating_sub(level.load);
                    hit
                });
                spread.or_else(|| levels.first())?
            }
        };
        Some((&chosen.schedule, chosen.panic))
    }

    /// Hosts with that health.
    pub fn count(&self, health: Health) -> usize {
        self.hosts.iter().filter(|host| host.health() == health).count()
    }
}

fn of_health(hosts: &[Rc<Host>], health: Health) -> Vec<Rc<Host>> {
    hosts.iter().filter(|host| host.health() == health).cloned().collect()
}

/// Percentage of a level's capacity that is there, overprovisioned, 100 at most.
fn availability(members: &[Rc<Host>]) -> usize {
    let there = members.iter().filter(|host| matches!(host.health(), Health::Healthy | Health::Degraded)).count();
    (there * OVERPROVISIONING_PERCENT / members.len().max(1)).min(100)
}

/// Percentage of requests per level: the first takes what it can, the rest spills over. With less than 100 % there in all,
/// the shares are scaled up to it.
fn loads(availability: &[usize]) -> Vec<usize> {
    let total = availability.iter().sum::<usize>().min(100);
    if total == 0 {
        return availability.iter().enumerate().map(|(index, _)| if index == 0 { 100 } else { 0 }).collect();
    }
    let mut left = 100;
    let mut loads = Vec::with_capacity(availability.len());
    for available in availability {
        let load = (available * 100 / total).min(left);
        left -= load;
        loads.push(load);
    }
    if let Some(first) = loads.iter_mut().find(|load| **load > 0) {
        *first += left;
    }
    loads
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_spill_over_as_envoys_documentation_shows() {
        let check = |percent_healthy: &[usize], expected: &[usize]| {
            let available: Vec<_> =
                percent_healthy.iter().map(|percent| (percent * OVERPROVISIONING_PERCENT / 100).min(100)).collect();
            assert_eq!(loads(&available), expected, "{percent_healthy:?}");
        };
        check(&[100, 100], &[100, 0]);
        check(&[72, 100], &[100, 0]);
        check(&[71, 71], &[99, 1]);
        check(&[50, 50], &[70, 30]);
        check(&[25, 100], &[35, 65]);
        check(&[0, 100], &[0, 100]);
        check(&[0, 0], &[100, 0]);
    }
}
