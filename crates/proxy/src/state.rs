//! The control thread's state: every resource received and its status, and the configuration of the workers.
//!
//! Streams and resolvers change the state and mark it dirty; [`Shared::settle`] then does everything else once for all
//! changes made in the meantime ([`crate::settle`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_runtime_config::builder::{Builder, SubscriptionChange};
use evenkeel_runtime_config::{Config, Reference, Source};
use evenkeel_stats::Registry;
use evenkeel_upstream::HealthManager;
use evenkeel_xds::client::{Rejected, Update};
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, data_source::Specifier};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{Secret, secret::Type};
use evenkeel_xds::{Any, ResourceType, Schema, unpack};
use tokio::sync::Notify;

use crate::control_stats::{ControlStats, cluster_manager, control_plane, discovery, listener_manager, server};
use crate::listener::socket::BindError;
use crate::pool::WorkerPool;
use crate::scope::usage::Scope;
use crate::subscribe::key::StreamKey;

/// Interval of attempts to bind listeners whose address is taken.
const BIND_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// The server state, as reported by `/ready` and `/server_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The first clusters are awaited.
    PreInitializing,
    /// The clusters are there; listeners, routes or certificates are awaited.
    Initializing,
    /// The process serves.
    Live,
    /// The process is draining.
    Draining,
}

impl Phase {
    /// Envoy's name of the state.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::PreInitializing => "PRE_INITIALIZING",
            Self::Initializing => "INITIALIZING",
            Self::Live => "LIVE",
            Self::Draining => "DRAINING",
        }
    }

    /// Envoy's number in `server.state`.
    fn number(self) -> i64 {
        match self {
            Self::Live => 0,
            Self::Draining => 1,
            Self::PreInitializing => 2,
            Self::Initializing => 3,
        }
    }
}

/// The status of a resource, without its content.
#[derive(Debug, Default)]
pub(crate) struct Record {
    /// The version accepted last; empty before the first.
    pub version: String,
    /// When it was accepted.
    pub updated: Option<SystemTime>,
    /// The last rejection, if nothing has been accepted since.
    pub refused: Option<Refusal>,
    /// A secret as it may be shown: without its private key.
    pub public_secret: Option<Secret>,
}

#[derive(Debug)]
pub(crate) struct Refusal {
    pub resource: Option<Any>,
    pub version: String,
    pub reason: String,
    pub time: SystemTime,
}

/// An xDS stream, for the admin pages.
#[derive(Debug, Default)]
pub(crate) struct StreamState {
    pub connected: bool,
    pub last_error: Option<String>,
}

/// The state of the control thread.
pub(crate) struct State {
    pub builder: Builder,
    pub config: Arc<Config>,
    pub pool: Arc<WorkerPool>,
    pub registry: Arc<Registry>,
    pub bootstrap: pb::Bootstrap,
    pub records: BTreeMap<(ResourceType, String), Record>,
    /// Resources received since the last build, whose records are dropped if they are not subscribed.
    received: Vec<(ResourceType, String)>,
    pub streams: BTreeMap<StreamKey, StreamState>,
    pub phase: Phase,
    pub started: Instant,
    pub started_at: SystemTime,
    pub(crate) stats: ControlStats,
    /// The first answer for the name of any DNS cluster is awaited.
    pub resolving: bool,
    pub health: HealthManager,
    /// First answers of LDS and CDS that are still awaited.
    pub awaits: Awaits,
    bind_failures: BTreeMap<Arc<str>, String>,
    /// When each name was last used, if the scope is on demand.
    pub scope: Scope,
}

/// First answers of LDS and CDS that are still awaited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Awaits {
    pub clusters: bool,
    pub listeners: bool,
}

/// The control thread's handle of its state.
#[derive(Clone)]
pub(crate) struct Shared {
    pub state: Rc<RefCell<State>>,
    /// Notified when something was received: `settle` is due.
    pub dirty: Rc<Notify>,
    /// Notified when the configuration or a certificate has changed, to wake those that wait for a cluster.
    pub settled: Rc<Notify>,
    settler: Rc<dyn Settle>,
}

/// Brings everything in line with the resources held. A trait, since its implementation starts streams and resolvers,
/// which in turn call it.
pub(crate) trait Settle {
    /// Brings everything in line.
    fn settle(&self, shared: &Shared);
}

/// The arguments of [`State::new`].
pub(crate) struct Parts {
    pub builder: Builder,
    pub pool: Arc<WorkerPool>,
    pub registry: Arc<Registry>,
    pub bootstrap: pb::Bootstrap,
    pub awaits: Awaits,
    pub scope: Scope,
}

impl State {
    pub fn new(parts: Parts) -> Self {
        let stats = ControlStats::new(&parts.registry, parts.bootstrap.node.as_ref());
        stats.server.set(server::Gauge::concurrency, i64::try_from(parts.pool.concurrency()).unwrap_or(i64::MAX));
        stats.listeners.set(listener_manager::Gauge::workers_started, 1);
        Self {
            builder: parts.builder,
            config: Arc::default(),
            health: HealthManager::new(parts.pool.shared_clusters().clone(), parts.registry.clone()),
            pool: parts.pool,
            registry: parts.registry,
            bootstrap: parts.bootstrap,
            records: BTreeMap::new(),
            received: Vec::new(),
            streams: BTreeMap::new(),
            phase: Phase::PreInitializing,
            started: Instant::now(),
            started_at: SystemTime::now(),
            stats,
            resolving: false,
            awaits: parts.awaits,
            bind_failures: BTreeMap::new(),
            scope: parts.scope,
        }
    }

    /// Applies an update resource by resource; invalid ones are rejected with a reason, the rest takes effect.
    pub fn apply(&mut self, source: &Source, update: &Update) -> Vec<Rejected> {
        let kind = update.kind;
        // Descriptors are only needed to dump rejected resources: acquired at the first rejection, and held for the
        // whole update.
        let mut schema = None;
        self.stats.discovery(kind).inc(discovery::Counter::update_attempt);
        // Removals come first: a listener with a new name may take the address of one removed by the same update.
        for name in &update.removed {
            self.remove(kind, name, source);
            self.records.remove(&(kind, name.clone()));
        }
        let mut rejected = Vec::new();
        for received in &update.added {
            let result = if received.any.type_url == kind.type_url() {
                self.set(kind, &received.name, &received.any, source)
            } else {
                Err(format!("expected a {}, found {:?}", kind.type_url(), received.any.type_url))
            };
            self.received.push((kind, received.name.clone()));
            let record = self.records.entry((kind, received.name.clone())).or_default();
            match result {
                Ok(()) => {
                    record.version.clone_from(&received.version);
                    record.updated = Some(SystemTime::now());
                    record.refused = None;
                    if kind == ResourceType::Secret {
                        record.public_secret = unpack::<Secret>(&received.any).ok().map(without_key);
                    }
                }
                Err(reason) => {
                    schema.get_or_insert_with(Schema::acquire);
                    tracing::warn!(kind = kind.short_name(), name = received.name, reason, "resource refused");
                    record.refused = Some(Refusal {
                        // A secret's content must not appear in dumps.
                        resource: (kind != ResourceType::Secret).then(|| received.any.clone()),
                        version: received.version.clone(),
                        reason: reason.clone(),
                        time: SystemTime::now(),
                    });
                    rejected.push(Rejected { name: received.name.clone(), reason });
                }
            }
        }
        match kind {
            ResourceType::Cluster => self.awaits.clusters = false,
            ResourceType::Listener => self.awaits.listeners = false,
            _ => {}
        }
        let counter =
            if rejected.is_empty() { discovery::Counter::update_success } else { discovery::Counter::update_rejected };
        self.stats.discovery(kind).inc(counter);
        rejected
    }

    fn set(&mut self, kind: ResourceType, name: &str, any: &Any, source: &Source) -> Result<(), String> {
        let awaited = self.is_awaited(kind, name);
        let result = match kind {
            ResourceType::Cluster => self.builder.set_cluster(any),
            ResourceType::Endpoint => self.builder.set_endpoints(any),
            ResourceType::Listener => self.builder.set_listener(any),
            ResourceType::Route => self.builder.set_route(any),
            ResourceType::VirtualHost => self.builder.set_virtual_host(name, any),
            ResourceType::Secret => self.builder.set_secret(any, source),
            ResourceType::ExtensionConfig => self.builder.set_extension(any),
            ResourceType::NameTable | ResourceType::ProxyConfig => Ok(()),
        };
        if awaited && result.is_ok() {
            self.scope.note_arrival();
        }
        result.map_err(|rejection| rejection.to_string())
    }

    fn remove(&mut self, kind: ResourceType, name: &str, source: &Source) {
        let reference = || Reference { name: name.into(), source: source.clone(), initial_fetch_timeout: None };
        match kind {
            ResourceType::Cluster => self.builder.remove_cluster(name),
            ResourceType::Listener => self.builder.remove_listener(name),
            ResourceType::Endpoint => {
                self.builder.remove_endpoints(name);
                self.builder.give_up_endpoints(&reference());
            }
            // A route configuration in use stays until nothing refers to it; one never received is no longer waited
            // for.
            ResourceType::Route => self.builder.give_up_route(&reference()),
            ResourceType::VirtualHost => self.builder.remove_virtual_host(name),
            // A certificate in use stays: without one, connections would only fail. One never received is no longer
            // waited for.
            ResourceType::Secret => self.builder.give_up_secret(&reference()),
            ResourceType::ExtensionConfig => self.builder.remove_extension(&reference()),
            ResourceType::NameTable | ResourceType::ProxyConfig => {}
        }
    }

    /// Updates the gauges that are computed on demand.
    pub fn publish_gauges(&self) {
        let count = |number: usize| i64::try_from(number).unwrap_or(i64::MAX);
        let uptime = i64::try_from(self.started.elapsed().as_secs()).unwrap_or(i64::MAX);
        self.health.publish_gauges(&self.config);
        self.stats.server.set(server::Gauge::uptime, uptime);
        self.stats.server.set(server::Gauge::state, self.phase.number());
        self.stats.server.set(server::Gauge::live, i64::from(self.phase == Phase::Live));
        self.stats.server.set(server::Gauge::total_connections, i64::from(self.pool.active_connections()));
        let warming = self.builder.listeners().filter(|held| !held.active).count();
        self.stats.listeners.set(listener_manager::Gauge::total_listeners_active, count(self.config.listeners.len()));
        self.stats.listeners.set(listener_manager::Gauge::total_listeners_warming, count(warming));
        let warming = self.builder.clusters().filter(|held| !held.active).count();
        self.stats.clusters.set(cluster_manager::Gauge::active_clusters, count(self.config.clusters.len()));
        self.stats.clusters.set(cluster_manager::Gauge::warming_clusters, count(warming));
        self.publish_scope();
        let connected = self.streams.iter().any(|(key, stream)| key.is_aggregated() && stream.connected);
        self.stats.control_plane.set(control_plane::Gauge::connected_state, i64::from(connected));
    }

    /// Records that a stream is connected.
    pub fn stream_connected(&mut self, key: &StreamKey) {
        let stream = self.streams.entry(key.clone()).or_default();
        stream.connected = true;
        stream.last_error = None;
    }

    /// Records that a stream broke, or could not be opened; true when waiting for something was given up.
    pub fn stream_failed(&mut self, key: &StreamKey, error: String) -> bool {
        let stream = self.streams.entry(key.clone()).or_default();
        if stream.connected {
            self.stats.control_plane.inc(control_plane::Counter::disconnects);
        }
        stream.connected = false;
        stream.last_error = Some(error);
        key.is_aggregated() && self.give_up_demands()
    }

    /// The cluster with this name, for the control thread's own streams.
    pub fn cluster(&self, name: &str) -> Option<Arc<evenkeel_runtime_config::Cluster>> {
        self.config.clusters.get(name).cloned()
    }

    /// Drops the records of resources that nothing refers to any more; servers do not announce their removal.
    pub fn forget_records(&mut self, asked: &[SubscriptionChange]) {
        let by_name = self.scope.is_learned();
        let dropped = asked.iter().filter(|asked| !asked.wanted).map(|asked| (asked.kind, asked.name.to_string()));
        for key in dropped.chain(std::mem::take(&mut self.received)) {
            let is_asked_for = match key.0 {
                ResourceType::Cluster | ResourceType::Listener => !by_name || self.builder.asks_for(key.0, &key.1),
                ResourceType::Endpoint | ResourceType::Route | ResourceType::Secret | ResourceType::ExtensionConfig => {
                    self.builder.asks_for(key.0, &key.1)
                }
                ResourceType::VirtualHost | ResourceType::NameTable | ResourceType::ProxyConfig => true,
            };
            if !is_asked_for {
                self.records.remove(&key);
            }
        }
    }

    /// Retries binding the listeners whose bind failed: their addresses may be free by now.
    fn retry_binds(&mut self) {
        if !self.bind_failures.is_empty() {
            let errors = self.pool.retry_listeners();
            self.note_bind_errors(errors);
        }
    }

    /// Updates the records of listeners that now serve after having been rejected while another one had their address.
    pub fn note_admitted(&mut self) {
        for listener in self.builder.take_admitted() {
            tracing::info!(listener = &*listener, "its address is free: no longer refused");
            if let Some(record) = self.records.get_mut(&(ResourceType::Listener, listener.to_string()))
                && let Some(refused) = record.refused.take()
            {
                record.version = refused.version;
                record.updated = Some(SystemTime::now());
            }
        }
    }

    pub fn note_bind_errors(&mut self, errors: Vec<BindError>) {
        let failures: BTreeMap<Arc<str>, String> =
            errors.into_iter().map(|error| (error.listener.clone(), error.to_string())).collect();
        let before = std::mem::take(&mut self.bind_failures);
        for (listener, reason) in &before {
            if failures.get(listener) == Some(reason) {
                continue;
            }
            let record = self.records.get_mut(&(ResourceType::Listener, listener.to_string()));
            if let Some(record) = record.filter(|record| record.refused.as_ref().is_some_and(|r| r.reason == *reason)) {
                record.refused = None;
            }
        }
        for (listener, reason) in failures.iter().filter(|(listener, reason)| before.get(*listener) != Some(reason)) {
            self.stats.listeners.inc(listener_manager::Counter::listener_create_failure);
            tracing::error!("{reason}");
            let record = self.records.entry((ResourceType::Listener, listener.to_string())).or_default();
            let version = record.version.clone();
            record.refused = Some(Refusal { resource: None, version, reason: reason.clone(), time: SystemTime::now() });
        }
        self.bind_failures = failures;
    }

    /// Listeners that could not be bound, and why.
    pub fn bind_failures(&self) -> impl Iterator<Item = (&Arc<str>, &String)> {
        self.bind_failures.iter()
    }

    /// The listeners of an update that could not be bound, or could not be if they were complete now: rejected like any
    /// other that cannot serve. Once a listener's routes have arrived, it would be too late to NACK it.
    pub fn unbound(&self, update: &Update) -> Vec<Rejected> {
        let failed = |name: &String| {
            let obstacle = || self.pool.obstacle(self.builder.warming_listener(name)?).map(|error| error.to_string());
            let reason = self.bind_failures.get(name.as_str()).cloned().or_else(obstacle)?;
            Some(Rejected { name: name.clone(), reason })
        };
        match update.kind {
            ResourceType::Listener => update.added.iter().filter_map(|received| failed(&received.name)).collect(),
            _ => Vec::new(),
        }
    }
}

impl Shared {
    pub fn new(state: State, settler: Rc<dyn Settle>) -> Self {
        Self { state: Rc::new(RefCell::new(state)), dirty: Rc::default(), settled: Rc::default(), settler }
    }

    /// Settles whenever something was received, for the life of the process.
    pub async fn keep_settled(&self) {
        loop {
            self.dirty.notified().await;
            // Tasks that are ready to run go first: one build then covers all their changes.
            tokio::task::yield_now().await;
            self.settle();
        }
    }

    /// Retries failed binds once a second, for the life of the process.
    pub async fn retry_binds(&self) {
        loop {
            tokio::time::sleep(BIND_RETRY_INTERVAL).await;
            self.state.borrow_mut().retry_binds();
        }
    }

    /// Brings everything in line with the resources held.
    pub fn settle(&self) {
        self.settler.settle(self);
    }
}

/// Redacts a secret's private key and password.
fn without_key(mut secret: Secret) -> Secret {
    let redacted =
        || DataSource { specifier: Some(Specifier::InlineBytes(b"[redacted]".into())), ..Default::default() };
    match &mut secret.r#type {
        Some(Type::TlsCertificate(certificate)) => {
            certificate.private_key = Some(redacted());
            certificate.password = None;
            certificate.private_key_provider = None;
        }
        Some(Type::ValidationContext(_)) => {}
        // Types that are not used here are not shown at all.
        _ => secret.r#type = None,
    }
    secret
}
