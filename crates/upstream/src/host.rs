//! One endpoint as one worker sees it.

use std::cell::{Cell, Ref, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::alpn::AlpnOverrides;
use evenkeel_runtime_config::bind::ClientSource;
use evenkeel_runtime_config::cluster::{Cluster, Endpoint, Health, Transport};
use tokio::time::Instant;

use super::breaker::Permit;
use super::health::host::{HealthFlags, HostHealth, Tally};
use super::keep_alive::KeepAlive;
use super::open::Idle;
use super::shared_pools::Pools;
use crate::turn;

/// An endpoint with this worker's connections and counters.
#[derive(Debug)]
pub struct Host {
    /// Its address.
    pub address: EndpointAddress,
    /// `ADDRESS:PORT`, for logs.
    pub label: Arc<str>,
    /// Host name, for `auto_host_rewrite`.
    pub hostname: Arc<str>,
    /// Transport socket for connections to it.
    pub transport: Transport,
    /// Its current configuration, which may change without making it another host.
    endpoint: RefCell<Arc<Endpoint>>,
    /// When it joined the cluster, or last recovered by its health checks.
    joined: Cell<Instant>,
    was_healthy: Cell<bool>,
    /// Its process-wide health state.
    pub(super) shared: Arc<HostHealth>,
    /// This worker's counters for outlier detection.
    pub(super) tally: Arc<Tally>,
    /// Requests in flight from this worker.
    pub(super) active: Cell<u32>,
    /// Shared with the hosts that are the same endpoint for one client.
    pub(super) counts: Rc<HostCounts>,
    /// Idle HTTP/1.1 connections; the most recently used one is last.
    pub(super) idle: RefCell<Vec<Idle>>,
    /// Connections that carry many requests at once.
    pub(super) multiplexed: Pools,
    /// The permit of this worker's pool (`max_connection_pools`), while the pool is in use.
    pub(super) pool: RefCell<Option<Permit>>,
    /// Whether it was removed from the cluster: its connections are not kept.
    pub(super) removed: Cell<bool>,
    /// What the requests on its connections have in common, where TLS depends on it.
    purpose: RefCell<Purpose>,
    /// The client that its connections are made for, with the client's address.
    pub(super) source: Option<ClientSource>,
    /// Its weight by load reports, where they decide; 0: its endpoint's weight.
    reported_weight: Cell<u32>,
}

/// What the requests on a host's connections have in common.
#[derive(Debug, Clone, Default)]
struct Purpose {
    /// The server that they call (`auto_sni`).
    called: Option<Arc<str>>,
    /// What they offer by ALPN instead of what the TLS context says.
    alpn: Option<Arc<AlpnOverrides>>,
}

impl Purpose {
    fn is(&self, called: Option<&str>, alpn: Option<&Arc<AlpnOverrides>>) -> bool {
        let same_server = match (&self.called, called) {
            (Some(known), Some(name)) => known.eq_ignore_ascii_case(name),
            (None, None) => true,
            _ => false,
        };
        same_server && self.alpn.as_deref() == alpn.map(|alpn| &**alpn)
    }
}

/// The counters that `/clusters` shows for a host.
#[derive(Debug, Default)]
#[allow(missing_docs)]
pub struct HostCounts {
    pub cx_total: Cell<u64>,
    /// Shared with each open connection, which it may outlive.
    pub cx_active: Rc<Cell<u64>>,
    pub cx_connect_fail: Cell<u64>,
    pub rq_total: Cell<u64>,
    pub rq_success: Cell<u64>,
    pub rq_error: Cell<u64>,
    pub rq_timeout: Cell<u64>,
}

/// Increments a counter.
pub(super) fn bump(cell: &Cell<u64>) {
    cell.set(cell.get() + 1);
}

impl Host {
    /// A host without connections, whose health is not watched.
    pub fn new(endpoint: &Arc<Endpoint>, transport: Transport) -> Rc<Self> {
        Self::watched(endpoint, transport, Arc::default())
    }

    /// A host without connections.
    pub(super) fn watched(endpoint: &Arc<Endpoint>, transport: Transport, shared: Arc<HostHealth>) -> Rc<Self> {
        Rc::new(Self::unshared(endpoint, transport, shared))
    }

    /// Returns the same endpoint for one client: its connections have the client's address, and serve no other client.
    pub(super) fn on_behalf_of(self: &Rc<Self>, client: ClientSource) -> Self {
        let own = Self::unshared(&self.endpoint.borrow(), self.transport.clone(), self.shared.clone());
        let removed = Cell::new(self.removed.get());
        Self { source: Some(client), counts: Rc::clone(&self.counts), purpose: self.purpose.clone(), removed, ..own }
    }

    fn unshared(endpoint: &Arc<Endpoint>, transport: Transport, shared: Arc<HostHealth>) -> Self {
        Self {
            address: endpoint.address.clone(),
            label: endpoint.address.to_string().into(),
            hostname: endpoint.hostname.clone(),
            transport,
            endpoint: RefCell::new(endpoint.clone()),
            joined: Cell::new(turn::now()),
            was_healthy: Cell::new(true),
            tally: shared.tally(),
            shared,
            active: Cell::default(),
            counts: Rc::default(),
            idle: RefCell::default(),
            multiplexed: Pools::default(),
            pool: RefCell::default(),
            removed: Cell::default(),
            purpose: RefCell::default(),
            source: None,
            reported_weight: Cell::default(),
        }
    }

    /// The host with the connections for requests of this kind. Nearly all requests to an endpoint are of the same, and its connections
    /// are kept. Others get connections of their own, which are not.
    pub(super) fn for_requests(self: &Rc<Self>, called: Option<&str>, alpn: Option<&Arc<AlpnOverrides>>) -> Rc<Self> {
        if self.purpose.borrow().is(called, alpn) {
            return self.clone();
        }
        let purpose = Purpose { called: called.map(|name| name.to_ascii_lowercase().into()), alpn: alpn.cloned() };
        if self.counts.cx_active.get() > 0 || self.multiplexed.in_use() {
            let other = Self::watched(&self.endpoint.borrow(), self.transport.clone(), self.shared.clone());
            other.removed.set(true);
            other.purpose.replace(purpose);
            return other;
        }
        // It has no connections of another kind.
        self.purpose.replace(purpose);
        self.clone()
    }

    /// Whether its connections are for any request.
    pub(super) fn is_for_any(&self) -> bool {
        let purpose = self.purpose.borrow();
        purpose.called.is_none() && purpose.alpn.is_none()
    }

    /// The ALPN protocols that filters offer for its requests.
    pub(super) fn alpn(&self) -> Option<Arc<AlpnOverrides>> {
        self.purpose.borrow().alpn.clone()
    }

    /// Its further addresses, which are tried if the first does not answer.
    pub(super) fn further_addresses(&self) -> Vec<SocketAddr> {
        self.endpoint.borrow().further.clone()
    }

    /// The server that requests on its connections call.
    pub(super) fn called(&self) -> Option<Arc<str>> {
        self.purpose.borrow().called.clone()
    }

    /// It is no longer a host of its cluster: connections are not kept.
    pub(super) fn retire(&self) {
        self.removed.set(true);
        self.close_idle();
    }

    /// Closes idle connections; shared connections in use accept no more requests.
    pub(super) fn close_idle(&self) {
        self.idle.borrow_mut().clear();
        self.multiplexed.close();
    }

    /// Whether it has a connection, or a pool permit.
    pub(super) fn is_busy(&self) -> bool {
        self.counts.cx_active.get() > 0 || self.pool.borrow().is_some() || self.multiplexed.in_use()
    }

    /// Whether connections to it begin with a PROXY protocol header, which names one client.
    pub fn names_clients(&self) -> bool {
        matches!(self.transport, Transport::ProxyProtocol(_))
    }

    /// Its socket address; `None` for Unix sockets.
    pub fn socket_addr(&self) -> Option<SocketAddr> {
        match self.address {
            EndpointAddress::Socket(address) => Some(address),
            EndpointAddress::Pipe(_) => None,
        }
    }

    /// How long the host keeps idle connections, as far as any worker has learned.
    pub fn keep_alive(&self) -> &KeepAlive {
        &self.shared.keep_alive
    }

    /// Counts a response; a 5xx counts as an error.
    pub fn count_response(&self, status: u16) {
        bump(if status >= 500 { &self.counts.rq_error } else { &self.counts.rq_success });
    }

    /// Counts a request without a response.
    pub fn count_failure(&self, timeout: bool) {
        bump(&self.counts.rq_error);
        if timeout {
            bump(&self.counts.rq_timeout);
        }
    }

    /// Its health from all sources: service discovery, active health checks, outlier detection.
    pub fn health(&self) -> Health {
        let flags = self.shared.flags();
        match self.endpoint.borrow().health {
            Health::Draining => Health::Draining,
            Health::Unhealthy => Health::Unhealthy,
            _ if flags.has(HealthFlags::FAILED_ACTIVE_HC.and(HealthFlags::FAILED_OUTLIER_CHECK)) => Health::Unhealthy,
            _ if flags.has(HealthFlags::DEGRADED_ACTIVE_HC) => Health::Degraded,
            health => health,
        }
    }

    /// Its current configuration.
    pub fn endpoint(&self) -> Ref<'_, Arc<Endpoint>> {
        self.endpoint.borrow()
    }

    /// Replaces the configuration; it remains the same host.
    pub(super) fn reconfigure(&self, endpoint: &Arc<Endpoint>) {
        self.endpoint.replace(endpoint.clone());
    }

    pub(super) fn weight(&self) -> u32 {
        match self.reported_weight.get() {
            0 => self.endpoint.borrow().weight.max(1),
            weight => weight,
        }
    }

    /// Sets the weight that load reports give it; 0: none. True if it changes.
    pub(super) fn set_reported_weight(&self, weight: u32) -> bool {
        self.reported_weight.replace(weight) != weight
    }

    /// When it joined the cluster.
    pub(super) fn joined(&self) -> Instant {
        self.joined.get()
    }

    /// Updates the join time: a host that recovered by its health checks joins again, so that slow start begins anew.
    pub(super) fn note_health(&self, cluster: &Cluster) {
        let healthy = self.health() == Health::Healthy;
        let recovered = healthy && !self.was_healthy.replace(healthy);
        if recovered && cluster.health_checks.is_some() {
            self.joined.set(turn::now());
        }
    }

    /// Whether it is left out of its priority's host count: it was never checked, or it asked to be excluded.
    pub(super) fn is_excluded(&self, cluster: &Cluster) -> bool {
        let flags = self.shared.flags();
        flags.has(HealthFlags::EXCLUDED_VIA_IMMEDIATE_HC_FAIL)
            || (cluster.ignore_unchecked_hosts && flags.has(HealthFlags::PENDING_ACTIVE_HC))
    }

    #[cfg(test)]
    pub(super) fn set_joined(&self, joined: Instant) {
        self.joined.set(joined);
    }

    /// Requests in flight from all workers. Counted only in clusters whose load balancer depends on it.
    pub(super) fn active_everywhere(&self) -> u32 {
        self.shared.active()
    }

    /// Requests in flight from all workers to all hosts of the cluster.
    pub(super) fn cluster_active(&self) -> u32 {
        self.shared.cluster_active()
    }

    #[cfg(test)]
    pub(super) fn set_active(&self, active: u32) {
        let before = self.shared.active();
        (before..active).for_each(|_| self.shared.begin_request());
        (active..before).for_each(|_| self.shared.end_request());
    }
}

/// Whether two transports are the same, so that connections made by one may be used for the other.
pub(super) fn same_transport(one: &Transport, other: &Transport) -> bool {
    match (one, other) {
        (Transport::Raw, Transport::Raw) => true,
        (Transport::Tls(one), Transport::Tls(other)) => Arc::ptr_eq(one, other),
        (Transport::ProxyProtocol(one), Transport::ProxyProtocol(other)) => Arc::ptr_eq(one, other),
        _ => false,
    }
}
