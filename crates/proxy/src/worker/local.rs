//! One worker's objects for a configuration: statistics writers and filters.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use evenkeel_filters::tracing::Tracer;
use evenkeel_filters::{HttpFilters, NetworkFilters, Setup, network};
use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::listener::{FilterChain, Terminal};
use evenkeel_runtime_config::proxy_protocol::{ProxyProtocol, ProxyProtocolVersion};
use evenkeel_runtime_config::{FastMap, HttpConnectionManager, Listener};
use evenkeel_stats::{Registry, Scope, ScopeHandles, ScopeName, Writer};
use evenkeel_upstream::h2::stats as h2;
use evenkeel_upstream::turn;

use super::generation::{self, Generation};
use crate::reporters::Reporters;
use crate::stats::{self, http, http1, listener_ssl, listener_ssl_factory, listener_worker, tcp, udp};

/// Objects made for a piece of configuration, keyed by that piece's address. The `Weak` keeps the address from being
/// reused but not the piece alive: every worker has such an entry, and none of them would be the last to let go.
type ByAddress<C, M> = RefCell<FastMap<usize, (Weak<C>, Rc<M>)>>;

/// One worker's view of a [`Generation`].
pub(crate) struct LocalGeneration {
    pub(crate) shared: Arc<Generation>,
    made: Rc<WorkerObjects>,
}

/// Objects this worker has made for listeners. Each generation inherits them from the previous one.
struct WorkerObjects {
    /// The worker's index.
    worker: usize,
    registry: Arc<Registry>,
    connection_stats: ScopeHandles<ListenAddress, ConnectionStats>,
    managers: ByAddress<HttpConnectionManager, HttpManager>,
    chains: ByAddress<FilterChain, NetworkFilters>,
    tcp_stats: ScopeHandles<Arc<str>, TcpStats>,
    proxy_protocol_stats: ScopeHandles<Box<str>, ProxyProtocolStats>,
    /// Keys of `managers` and `chains` whose configuration is removed, and was still in use when that was last looked at.
    removed: RefCell<Vec<usize>>,
}

/// Statistics of a listener: those over all workers, and this worker's own.
pub(crate) struct ConnectionStats {
    pub(crate) listener: Writer<stats::listener::Stats>,
    pub(crate) worker: Writer<listener_worker::Stats>,
    registry: Arc<Registry>,
    tls: OnceCell<Writer<listener_ssl::Stats>>,
    tls_factory: OnceCell<Writer<listener_ssl_factory::Stats>>,
}

impl ConnectionStats {
    /// Statistics of TLS handshakes, made on demand: most listeners of a sidecar never see TLS. `address` is the
    /// listener's.
    pub(crate) fn tls(&self, address: &ListenAddress) -> &Writer<listener_ssl::Stats> {
        self.tls.get_or_init(|| self.registry.scope(stats::listener_ssl_name(address)).writer())
    }

    /// Statistics of handshakes that failed because the listener had no certificate yet.
    pub(crate) fn tls_factory(&self, address: &ListenAddress) -> &Writer<listener_ssl_factory::Stats> {
        self.tls_factory.get_or_init(|| self.registry.scope(stats::listener_ssl_factory_name(address)).writer())
    }
}

/// This worker's side of a connection manager: statistics and filters.
pub(crate) struct HttpManager {
    pub(crate) http: Writer<http::Stats>,
    pub(crate) filters: HttpFilters,
    /// Traces its requests, if it does.
    pub(crate) tracer: Option<Rc<Tracer>>,
    /// HTTP/1 codec statistics, over all connection managers.
    pub(crate) http1: Writer<http1::Stats>,
    /// HTTP/2 codec statistics, over all connection managers.
    pub(crate) http2: Rc<Writer<h2::Stats>>,
}

/// Statistics of the `proxy_protocol` listener filter.
pub(crate) struct ProxyProtocolStats {
    pub(crate) any: Writer<stats::proxy_protocol::Stats>,
    v1: Writer<stats::proxy_protocol_version::Stats>,
    v2: Writer<stats::proxy_protocol_version::Stats>,
}

impl ProxyProtocolStats {
    fn new(registry: &Registry, any: &Scope<stats::proxy_protocol::Stats>, prefix: &str) -> Self {
        let version = |number| registry.scope(stats::proxy_protocol_version_name(prefix, number)).writer();
        Self { any: any.writer(), v1: version(1), v2: version(2) }
    }

    /// Statistics of one protocol version.
    pub(crate) fn of(&self, version: ProxyProtocolVersion) -> &Writer<stats::proxy_protocol_version::Stats> {
        match version {
            ProxyProtocolVersion::V1 => &self.v1,
            ProxyProtocolVersion::V2 => &self.v2,
        }
    }
}

/// Statistics of a TCP proxy.
pub(crate) type TcpStats = Writer<tcp::Stats>;

impl LocalGeneration {
    /// The view of the worker of this index before its first configuration.
    pub(super) fn empty(worker: usize, registry: Arc<Registry>) -> Self {
        Self { shared: Arc::default(), made: Rc::new(WorkerObjects::new(worker, registry)) }
    }

    /// The next generation's view, which keeps the objects that are still in use. `removed`: the filter chains that it does not have.
    pub(super) fn next(shared: Arc<Generation>, before: &Self, removed: &[&Arc<FilterChain>]) -> Self {
        if !removed.is_empty() {
            // Otherwise listeners that change often would have many filters, and shards of statistics, at a time.
            before.made.forget_removed();
            before.made.removed.borrow_mut().extend(removed.iter().copied().flat_map(keys));
        }
        for listener in shared.removed_listeners(&before.shared) {
            before.made.forget(listener, &shared);
        }
        Self { shared, made: Rc::clone(&before.made) }
    }

    /// Drops objects of removed configuration that no connection uses any more.
    pub(crate) fn forget_unused(&self) {
        self.made.forget_unused();
    }

    /// Of how many listeners there are statistics.
    #[cfg(test)]
    pub(crate) fn listener_count(&self) -> usize {
        self.made.connection_stats.len()
    }

    /// Statistics of the listener at `address`.
    pub(crate) fn connection_stats(&self, address: &ListenAddress) -> Rc<ConnectionStats> {
        let made = &self.made;
        let with = |scope: Scope<stats::listener::Stats>| ConnectionStats {
            listener: scope.writer(),
            worker: made
                .registry
                .scope::<listener_worker::Stats>(stats::listener_worker_name(address, made.worker))
                .writer(),
            registry: Arc::clone(&made.registry),
            tls: OnceCell::new(),
            tls_factory: OnceCell::new(),
        };
        let configured = || self.shared.listener_scopes.get(address).cloned().map(with);
        made.connection_stats.get(address, configured, || with(Scope::detached()))
    }

    /// This worker's side of a connection manager; one of `reporters` gets its spans.
    pub(crate) fn manager(&self, reporters: &Reporters, config: &Arc<HttpConnectionManager>) -> Rc<HttpManager> {
        let registry = &self.made.registry;
        let mut known = self.made.managers.borrow_mut();
        let (_, manager) = known.entry(Arc::as_ptr(config).addr()).or_insert_with(|| {
            let scope = self.shared.http_scopes.get(&config.stat_prefix).cloned().unwrap_or_else(Scope::detached);
            let name = stats::http_name(&config.stat_prefix);
            let filters = HttpFilters::new(&config.filters, &Setup { registry, outer: &name });
            let http2 = Rc::new(registry.scope(h2::downstream_name()).writer());
            let http1 = registry.scope(ScopeName::plain("http1.")).writer();
            let now = turn::now().into_std();
            let tracer = reporters.tracer(config, registry, &name, now);
            (Arc::downgrade(config), Rc::new(HttpManager { http: scope.writer(), filters, tracer, http1, http2 }))
        });
        Rc::clone(manager)
    }

    /// This worker's network filters of a filter chain.
    pub(crate) fn network_filters(&self, chain: &Arc<FilterChain>) -> Rc<NetworkFilters> {
        let mut known = self.made.chains.borrow_mut();
        let (_, filters) = known.entry(Arc::as_ptr(chain).addr()).or_insert_with(|| {
            let setup = network::Setup { registry: &self.made.registry };
            (Arc::downgrade(chain), Rc::new(NetworkFilters::new(&chain.network_filters, &setup)))
        });
        Rc::clone(filters)
    }

    /// Statistics of the `proxy_protocol` listener filter.
    pub(crate) fn proxy_protocol_stats(&self, prefix: &str) -> Rc<ProxyProtocolStats> {
        let with = |scope: &Scope<_>| ProxyProtocolStats::new(&self.made.registry, scope, prefix);
        let key = Box::from(prefix);
        let configured = || self.shared.proxy_protocol_scopes.get(&key).map(with);
        self.made.proxy_protocol_stats.get(&key, configured, || with(&Scope::detached()))
    }

    /// This worker's statistics of a UDP proxy.
    pub(crate) fn udp_stats(&self, prefix: &str) -> Rc<Writer<udp::Stats>> {
        Rc::new(self.made.registry.scope(stats::udp_name(prefix)).writer())
    }

    /// Statistics of a TCP proxy.
    pub(crate) fn tcp_stats(&self, prefix: &Arc<str>) -> Rc<TcpStats> {
        let configured = || self.shared.tcp_scopes.get(prefix).map(Scope::writer);
        self.made.tcp_stats.get(prefix, configured, || Scope::detached().writer())
    }
}

impl WorkerObjects {
    fn new(worker: usize, registry: Arc<Registry>) -> Self {
        Self {
            worker,
            registry,
            connection_stats: ScopeHandles::default(),
            managers: RefCell::default(),
            chains: RefCell::default(),
            tcp_stats: ScopeHandles::default(),
            proxy_protocol_stats: ScopeHandles::default(),
            removed: RefCell::default(),
        }
    }

    /// Drops what was made for a removed listener and `generation` has no use for. What its chains' connections may still
    /// use is dropped when they no longer do.
    fn forget(&self, listener: &Listener, generation: &Generation) {
        if generation.listener_scopes.get(&listener.address).is_none() {
            self.connection_stats.remove(&listener.address);
        }
        for chain in generation::chains(listener) {
            if let Terminal::Tcp(proxy) = &chain.terminal
                && generation.tcp_scopes.get(&proxy.stat_prefix).is_none()
            {
                self.tcp_stats.remove(&proxy.stat_prefix);
            }
        }
        if let Some(ProxyProtocol { stat_prefix, .. }) = &listener.listener_filters.proxy_protocol
            && generation.proxy_protocol_scopes.get(stat_prefix).is_none()
        {
            self.proxy_protocol_stats.remove(stat_prefix);
        }
    }

    /// Drops what is no longer used of removed listeners.
    fn forget_removed(&self) {
        let (mut managers, mut chains) = (self.managers.borrow_mut(), self.chains.borrow_mut());
        self.removed.borrow_mut().retain(|key| !(drop_unused(&mut managers, *key) & drop_unused(&mut chains, *key)));
    }

    /// Drops all that is no longer used, also what a removed listener's last connections have made after its removal.
    fn forget_unused(&self) {
        self.managers.borrow_mut().retain(|_, (config, _)| config.strong_count() > 0);
        self.chains.borrow_mut().retain(|_, (config, _)| config.strong_count() > 0);
        self.removed.borrow_mut().clear();
    }
}

/// The keys of what is made for a filter chain.
fn keys(chain: &Arc<FilterChain>) -> impl Iterator<Item = usize> {
    let manager = match &chain.terminal {
        Terminal::Http(manager) => Some(Arc::as_ptr(manager).addr()),
        Terminal::Tcp(_) => None,
    };
    [Arc::as_ptr(chain).addr()].into_iter().chain(manager)
}

/// Drops an entry whose configuration nothing uses. Whether there is none then.
fn drop_unused<C, M>(made: &mut FastMap<usize, (Weak<C>, Rc<M>)>, key: usize) -> bool {
    let is_used = made.get(&key).is_some_and(|(config, _)| config.strong_count() > 0);
    if !is_used {
        made.remove(&key);
    }
    !is_used
}
