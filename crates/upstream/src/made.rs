//! Hosts that are created on demand, when a request goes to an address or name that no configuration lists.

use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::rc::{Rc, Weak};
use std::sync::Arc;

use evenkeel_runtime_config::FastMap;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::bind::ClientSource;
use evenkeel_runtime_config::cluster::{Cluster as Config, Endpoint, Transport};
use evenkeel_runtime_config::dynamic_forward_proxy::DynamicHost;

use super::host::{Host, same_transport};

/// Hosts of each kind that one worker remembers; beyond this, a host is used once and dropped.
const MAX_MADE_HOSTS: usize = 10_000;

/// One worker's hosts of a cluster that were made on demand.
#[derive(Debug, Default)]
pub(super) struct MadeHosts {
    /// By original destination (`ORIGINAL_DST`).
    by_address: RefCell<FastMap<SocketAddr, Rc<Host>>>,
    /// By name and port (dynamic forward proxy). Clients choose the names, so the map's hash is randomized, and clients
    /// cannot choose collisions.
    by_name: RefCell<ByName>,
    /// By address and client (`OriginalSrc`), each with the host that it is the same endpoint as. Clients choose their addresses.
    by_client: RefCell<HashMap<(EndpointAddress, ClientSource), ForClient>>,
}

/// A host for one client.
#[derive(Debug)]
struct ForClient {
    endpoint: Weak<Host>,
    host: Rc<Host>,
}

type ByName = HashMap<(Arc<str>, u16), Rc<Host>>;

impl MadeHosts {
    /// The host at an original destination, and whether it is remembered as new.
    pub(super) fn at(&self, address: SocketAddr, config: &Config) -> (Rc<Host>, bool) {
        let mut hosts = self.by_address.borrow_mut();
        if let Some(host) = hosts.get(&address) {
            return (host.clone(), false);
        }
        let endpoint = Arc::new(Endpoint::at(EndpointAddress::Socket(address)));
        let host = Host::new(&endpoint, config.transport_to(address).clone());
        let has_room = hosts.len() < MAX_MADE_HOSTS;
        if has_room {
            hosts.insert(address, host.clone());
        } else {
            host.removed.set(true);
        }
        (host, has_room)
    }

    /// The host of a name. It stays the same while its address is among those that DNS has for the name; `None` if there is
    /// none.
    pub(super) fn named(&self, called: &DynamicHost, config: &Config) -> Option<Rc<Host>> {
        let address = called.address()?;
        let mut hosts = self.by_name.borrow_mut();
        let key = (Arc::clone(&called.name), called.port);
        if let Some(host) = hosts.get(&key) {
            if host.socket_addr().is_some_and(|known| called.is_at(known)) {
                return Some(host.clone());
            }
            host.retire();
        }
        let endpoint =
            Endpoint { hostname: Arc::clone(&called.name), ..Endpoint::at(EndpointAddress::Socket(address)) };
        let host = Host::new(&Arc::new(endpoint), config.transport.clone());
        if hosts.len() < MAX_MADE_HOSTS || hosts.contains_key(&key) {
            hosts.insert(key, host.clone());
        } else {
            host.removed.set(true);
        }
        Some(host)
    }

    /// The host with the connections to `endpoint` that are made for one client.
    pub(super) fn for_client(&self, endpoint: &Rc<Host>, client: ClientSource) -> Rc<Host> {
        let mut hosts = self.by_client.borrow_mut();
        let key = (endpoint.address.clone(), client);
        if let Some(known) = hosts.get(&key) {
            if known.endpoint.ptr_eq(&Rc::downgrade(endpoint)) {
                return known.host.clone();
            }
            // The endpoint has been replaced, perhaps by one with other TLS.
            known.host.retire();
        }
        let host = Rc::new(endpoint.on_behalf_of(client));
        if !endpoint.removed.get() && (hosts.len() < MAX_MADE_HOSTS || hosts.contains_key(&key)) {
            hosts.insert(key, ForClient { endpoint: Rc::downgrade(endpoint), host: host.clone() });
        } else {
            host.removed.set(true);
        }
        host
    }

    /// Forgets hosts that are reached in another way now: an original destination with mutual TLS or without, a name with
    /// other TLS.
    pub(super) fn follow(&self, config: &Config) {
        let is_secure = |transport: &Transport| !matches!(transport, Transport::Raw);
        let keep = |host: &Rc<Host>, same: bool| {
            if !same {
                host.retire();
            }
            same
        };
        self.by_address
            .borrow_mut()
            .retain(|address, host| keep(host, is_secure(&host.transport) == is_secure(config.transport_to(*address))));
        self.by_name.borrow_mut().retain(|_, host| keep(host, same_transport(&host.transport, &config.transport)));
    }

    /// Forgets the hosts that are not to be kept.
    pub(super) fn retain(&self, mut keep: impl FnMut(&Rc<Host>) -> bool) {
        self.by_address.borrow_mut().retain(|_, host| keep(host));
        self.by_name.borrow_mut().retain(|_, host| keep(host));
        self.by_client.borrow_mut().retain(|_, known| keep(&known.host));
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.by_address.borrow().is_empty() && self.by_name.borrow().is_empty() && self.by_client.borrow().is_empty()
    }

    /// Calls `f` with each.
    pub(super) fn for_each(&self, mut f: impl FnMut(&Rc<Host>)) {
        self.for_each_endpoint(&mut f);
        self.by_client.borrow().values().for_each(|known| f(&known.host));
    }

    /// Calls `f` with each that is a separate endpoint.
    pub(super) fn for_each_endpoint(&self, mut f: impl FnMut(&Rc<Host>)) {
        self.by_address.borrow().values().for_each(&mut f);
        self.by_name.borrow().values().for_each(f);
    }

    /// Calls `f` with one after the other until it returns true; whether it did.
    pub(super) fn any(&self, mut f: impl FnMut(&Rc<Host>) -> bool) -> bool {
        self.by_address.borrow().values().any(&mut f)
            || self.by_name.borrow().values().any(&mut f)
            || self.by_client.borrow().values().any(|known| f(&known.host))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_client_has_connections_of_its_own() {
        let made = MadeHosts::default();
        let endpoint = || {
            let address = EndpointAddress::Socket(([10, 0, 0, 1], 80).into());
            Host::new(&Arc::new(Endpoint::at(address)), Transport::Raw)
        };
        let client = |last: u8| ClientSource { address: [10, 0, 1, last].into(), mark: 7 };
        let host = endpoint();
        let one = made.for_client(&host, client(1));
        assert!(Rc::ptr_eq(&one, &made.for_client(&host, client(1))));
        assert_eq!(one.source, Some(client(1)));
        for other in [client(2), ClientSource { mark: 8, ..client(1) }] {
            assert!(!Rc::ptr_eq(&one, &made.for_client(&host, other)), "{other:?}");
        }
        // The counters are the endpoint's.
        assert!(Rc::ptr_eq(&one.counts, &host.counts));
        // Connections to an endpoint that has been replaced serve no request any more.
        let replaced = endpoint();
        assert!(!Rc::ptr_eq(&one, &made.for_client(&replaced, client(1))));
        assert!(one.removed.get());
        replaced.removed.set(true);
        assert!(made.for_client(&replaced, client(3)).removed.get());
    }
}
