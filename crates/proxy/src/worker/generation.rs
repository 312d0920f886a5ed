//! One configuration with the run-time parts that outlive it: what [`super::WorkerPool::apply`] hands to every worker.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_runtime_config::listener::{FilterChain, Terminal};
use evenkeel_runtime_config::{Config, FastMap, Listener};
use evenkeel_stats::{Registry, Scope};

use crate::listener::socket::ListenerKey;
use crate::stats::{self, http, listener, tcp};

/// A configuration and the statistics that belong to it.
#[derive(Debug, Default)]
pub struct Generation {
    /// The configuration.
    pub config: Arc<Config>,
    /// Listeners that own a socket.
    pub(crate) bound: FastMap<ListenerKey, Arc<Listener>>,
    /// Listeners that only take connections handed over, by address.
    pub(crate) handed_over: FastMap<SocketAddr, Arc<Listener>>,
    /// Statistics by listener address.
    pub(crate) listener_scopes: FastMap<SocketAddr, Scope<listener::Stats>>,
    /// Statistics by prefix.
    pub(crate) http_scopes: FastMap<Arc<str>, Scope<http::Stats>>,
    /// Statistics by prefix.
    pub(crate) tcp_scopes: FastMap<Arc<str>, Scope<tcp::Stats>>,
}

impl Generation {
    pub(crate) fn next(config: &Arc<Config>, before: &Self, registry: &Registry) -> Self {
        let mut next = Self { config: Arc::clone(config), ..Self::default() };
        for listener in config.listeners.values() {
            let address = listener.address;
            if listener.bind_to_port {
                next.bound.insert(ListenerKey::of(listener), Arc::clone(listener));
            } else {
                next.handed_over.insert(address, Arc::clone(listener));
            }
            let scope = before.listener_scopes.get(&address).cloned();
            let scope = scope.unwrap_or_else(|| registry.scope(stats::listener_name(address)));
            next.listener_scopes.insert(address, scope);
            next.add_chain_scopes(listener, registry);
        }
        next
    }

    /// Filter chains of all listeners.
    pub(super) fn chains(&self) -> impl Iterator<Item = &Arc<FilterChain>> {
        let listeners = self.config.listeners.values();
        listeners.flat_map(|listener| listener.filter_chains.iter().chain(&listener.default_filter_chain))
    }

    fn add_chain_scopes(&mut self, listener: &Listener, registry: &Registry) {
        for chain in listener.filter_chains.iter().chain(&listener.default_filter_chain) {
            match &chain.terminal {
                Terminal::Http(hcm) => {
                    self.http_scopes
                        .entry(Arc::clone(&hcm.stat_prefix))
                        .or_insert_with(|| registry.scope(stats::http_name(&hcm.stat_prefix)));
                }
                Terminal::Tcp(proxy) => {
                    self.tcp_scopes
                        .entry(Arc::clone(&proxy.stat_prefix))
                        .or_insert_with(|| registry.scope(stats::tcp_name(&proxy.stat_prefix)));
                }
            }
        }
    }

    /// The listener that serves a redirected connection: that of its original destination, else that of any address with
    /// its port.
    pub(crate) fn listener_of_destination(&self, destination: SocketAddr) -> Option<&Arc<Listener>> {
        let any: SocketAddr = match destination {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, destination.port()).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, destination.port()).into(),
        };
        self.handed_over.get(&destination).or_else(|| self.handed_over.get(&any))
    }
}
