//! One configuration with the run-time state that outlives it: what [`super::WorkerPool::apply`] hands to every worker.

use std::collections::HashSet;
use std::hash::Hash;
use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::listener::{FilterChain, Terminal};
use evenkeel_runtime_config::proxy_protocol::ProxyProtocol;
use evenkeel_runtime_config::{Config, Listener, PersistentMap};
use evenkeel_stats::{Registry, Scope};

use crate::listener::socket::ListenerKey;
use crate::stats::{self, http, listener, proxy_protocol, tcp};

/// A configuration and its statistics. Its maps share everything unchanged with those of the previous generation.
#[derive(Debug, Default)]
pub struct Generation {
    /// The configuration.
    pub config: Arc<Config>,
    /// Listeners that own a socket.
    pub(crate) bound: PersistentMap<ListenerKey, Arc<Listener>>,
    /// Listeners without a socket, which only get connections handed over by others, by address.
    pub(crate) handed_over: PersistentMap<SocketAddr, Arc<Listener>>,
    /// Statistics by listener address.
    pub(super) listener_scopes: Scopes<ListenAddress, listener::Stats>,
    /// HTTP statistics by `stat_prefix`.
    pub(super) http_scopes: Scopes<Arc<str>, http::Stats>,
    /// TCP statistics by `stat_prefix`.
    pub(super) tcp_scopes: Scopes<Arc<str>, tcp::Stats>,
    /// Statistics of the `proxy_protocol` listener filter by `stat_prefix`.
    pub(super) proxy_protocol_scopes: Scopes<Box<str>, proxy_protocol::Stats>,
}

/// Statistics scopes with reference counts: each is kept for as long as it is used.
#[derive(Debug)]
pub(super) struct Scopes<K, S>(PersistentMap<K, (Scope<S>, usize)>);

impl Generation {
    pub(crate) fn next(config: &Arc<Config>, before: &Self, registry: &Registry) -> Self {
        let mut next = Self {
            config: Arc::clone(config),
            bound: before.bound.clone(),
            handed_over: before.handed_over.clone(),
            listener_scopes: before.listener_scopes.clone(),
            http_scopes: before.http_scopes.clone(),
            tcp_scopes: before.tcp_scopes.clone(),
            proxy_protocol_scopes: before.proxy_protocol_scopes.clone(),
        };
        let changed = config.changed_listeners(&before.config);
        let (gone, new) = (
            || changed.iter().filter_map(|name| before.config.listeners.get(name)),
            || changed.iter().filter_map(|name| config.listeners.get(name)),
        );
        // Order matters: a new listener may take the address of a removed one, and then continues its statistics.
        gone().for_each(|listener| next.remove(listener));
        new().for_each(|listener| next.add(listener));
        new().for_each(|listener| next.use_scopes(listener, registry));
        gone().for_each(|listener| next.release_scopes(listener));
        next
    }

    fn add(&mut self, listener: &Arc<Listener>) {
        if listener.bind_to_port {
            for key in ListenerKey::all_of(listener) {
                self.bound.insert(key, Arc::clone(listener));
            }
        } else {
            for address in listener.addresses().filter_map(ListenAddress::socket) {
                self.handed_over.insert(address, Arc::clone(listener));
            }
        }
    }

    fn remove(&mut self, listener: &Arc<Listener>) {
        let is_it = |held: Option<&Arc<Listener>>| held.is_some_and(|held| Arc::ptr_eq(held, listener));
        for key in ListenerKey::all_of(listener) {
            if is_it(self.bound.get(&key)) {
                self.bound.remove(&key);
            }
        }
        for address in listener.addresses().filter_map(ListenAddress::socket) {
            if is_it(self.handed_over.get(&address)) {
                self.handed_over.remove(&address);
            }
        }
    }

    fn use_scopes(&mut self, listener: &Listener, registry: &Registry) {
        let address = &listener.address;
        self.listener_scopes.enter(address.clone(), || registry.scope(stats::listener_name(address)));
        if let Some(ProxyProtocol { stat_prefix, .. }) = &listener.listener_filters.proxy_protocol {
            let make = || registry.scope(stats::proxy_protocol_name(stat_prefix));
            self.proxy_protocol_scopes.enter(stat_prefix.clone(), make);
        }
        for chain in chains(listener) {
            match &chain.terminal {
                Terminal::Http(hcm) => {
                    let prefix = &hcm.stat_prefix;
                    self.http_scopes.enter(prefix.clone(), || registry.scope(stats::http_name(prefix)));
                }
                Terminal::Tcp(proxy) => {
                    let prefix = &proxy.stat_prefix;
                    self.tcp_scopes.enter(prefix.clone(), || registry.scope(stats::tcp_name(prefix)));
                }
            }
        }
    }

    fn release_scopes(&mut self, listener: &Listener) {
        self.listener_scopes.leave(&listener.address);
        if let Some(filter) = &listener.listener_filters.proxy_protocol {
            self.proxy_protocol_scopes.leave(&filter.stat_prefix);
        }
        for chain in chains(listener) {
            match &chain.terminal {
                Terminal::Http(hcm) => self.http_scopes.leave(&hcm.stat_prefix),
                Terminal::Tcp(proxy) => self.tcp_scopes.leave(&proxy.stat_prefix),
            }
        }
    }

    /// Listeners of `before` that this generation does not have, or has with other settings.
    pub(super) fn removed_listeners<'g>(&self, before: &'g Self) -> Vec<&'g Arc<Listener>> {
        let changed = self.config.changed_listeners(&before.config);
        changed.iter().filter_map(|name| before.config.listeners.get(name)).collect()
    }

    /// Filter chains that listeners of `before` had and that no longer exist.
    pub(super) fn removed_chains<'g>(&self, before: &'g Self) -> Vec<&'g Arc<FilterChain>> {
        let changed = self.config.changed_listeners(&before.config);
        let removed = changed.iter().filter_map(|name| {
            let kept: HashSet<_> =
                self.config.listeners.get(name).into_iter().flat_map(|l| chains(l).map(Arc::as_ptr)).collect();
            let is_kept = move |chain: &&Arc<FilterChain>| kept.contains(&Arc::as_ptr(chain));
            Some(chains(before.config.listeners.get(name)?).filter(move |chain| !is_kept(chain)))
        });
        removed.flatten().collect()
    }

    /// The listener for a redirected connection: the one at its original destination, or else the one at the wildcard
    /// address with the same port.
    pub(crate) fn listener_of_destination(&self, destination: SocketAddr) -> Option<&Arc<Listener>> {
        let any: SocketAddr = match destination {
            SocketAddr::V4(_) => (std::net::Ipv4Addr::UNSPECIFIED, destination.port()).into(),
            SocketAddr::V6(_) => (std::net::Ipv6Addr::UNSPECIFIED, destination.port()).into(),
        };
        self.handed_over.get(&destination).or_else(|| self.handed_over.get(&any))
    }
}

/// All filter chains of a listener, the default one included.
pub(super) fn chains(listener: &Listener) -> impl Iterator<Item = &Arc<FilterChain>> {
    listener.filter_chains.iter().chain(&listener.default_filter_chain)
}

impl<K: Eq + Hash + Clone, S> Scopes<K, S> {
    pub(super) fn get(&self, key: &K) -> Option<&Scope<S>> {
        self.0.get(key).map(|(scope, _)| scope)
    }

    /// Adds a user.
    fn enter(&mut self, key: K, make: impl FnOnce() -> Scope<S>) {
        match self.0.get_mut(&key) {
            Some((_, users)) => *users += 1,
            None => _ = self.0.insert(key, (make(), 1)),
        }
    }

    /// Removes a user.
    fn leave(&mut self, key: &K) {
        if let Some((_, users)) = self.0.get_mut(key) {
            *users -= 1;
            if *users == 0 {
                self.0.remove(key);
            }
        }
    }
}

impl<K: Clone, S> Clone for Scopes<K, S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K, S> Default for Scopes<K, S> {
    fn default() -> Self {
        Self(PersistentMap::default())
    }
}
