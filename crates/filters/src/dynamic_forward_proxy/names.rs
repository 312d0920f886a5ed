//! The names that one worker's filter knows, and the parsing of authorities.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_runtime_config::dynamic_forward_proxy::{DnsCache, DynamicHost};
use evenkeel_runtime_config::view::ConnectionView;

use crate::http::{Pause, Services};
use crate::resolution::{HostLookup, LookupError, Resolved};

/// Maximum length of a host name, in bytes (RFC 1035 section 2.3.4).
const MAX_NAME_BYTES: usize = 253;
/// How often outdated names are searched for when there is no room.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum wait for the resolver, which has its own limits; this guards against one that hangs.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// The time that the cache's own limit has to answer first.
const GRACE: Duration = Duration::from_secs(1);

/// The host and port that a request calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Called {
    /// Lower case, without brackets.
    pub name: Arc<str>,
    pub port: u16,
}

/// Reads `host`, `host:port`, `[address]` or `[address]:port`. `None`: no such host can exist.
pub(super) fn read_authority(authority: &[u8], default_port: u16) -> Option<Called> {
    // A port and brackets come on top of a name.
    if authority.len() > MAX_NAME_BYTES + 8 {
        return None;
    }
    let text = std::str::from_utf8(authority).ok()?;
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (address, port) = rest.split_once(']')?;
            address.parse::<Ipv6Addr>().ok()?;
            (address, if port.is_empty() { None } else { Some(port.strip_prefix(':')?) })
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = match port {
        None => default_port,
        Some(port) if port.bytes().all(|byte| byte.is_ascii_digit()) => port.parse().ok().filter(|port| *port > 0)?,
        Some(_) => return None,
    };
    is_name(host).then(|| Called { name: host.to_ascii_lowercase().into(), port })
}

/// Whether it may be a name or an address. DNS itself permits any byte; names of hosts consist of these.
fn is_name(host: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    host.parse::<Ipv6Addr>().is_ok()
        || (!host.is_empty()
            && host.len() <= MAX_NAME_BYTES
            && host.bytes().all(allowed)
            && host.trim_end_matches('.').split('.').all(|label| (1..=63).contains(&label.len())))
}

/// The names that one worker's filter knows; there are at most as many as the cache may hold.
#[derive(Debug)]
pub(super) struct Names {
    pub cache: Arc<DnsCache>,
    /// Clients choose the names, so the map is one whose collisions they cannot choose.
    known: RefCell<HashMap<Arc<str>, Resolved>>,
    swept: Cell<Option<Instant>>,
}

/// The state of a host.
pub(super) enum Known {
    Resolved(Arc<DynamicHost>),
    Failed(LookupError),
    Unknown,
}

/// A request or connection that waits for an answer.
#[derive(Debug)]
pub struct Waiting {
    called: Called,
    answer: Rc<RefCell<Option<Result<Resolved, LookupError>>>>,
}

impl Names {
    pub fn new(cache: &Arc<DnsCache>) -> Self {
        Self { cache: Arc::clone(cache), known: RefCell::default(), swept: Cell::new(None) }
    }

    /// Returns the known state of this host without a lookup: an address needs none.
    pub fn look(&self, called: &Called, around: Around<'_>) -> Known {
        if let Ok(address) = called.name.parse::<IpAddr>() {
            return self.host(called, Arc::from([address]), around);
        }
        match self.known.borrow().get(&called.name) {
            Some(resolved) if around.now < resolved.until => self.host(called, Arc::clone(&resolved.addresses), around),
            _ => Known::Unknown,
        }
    }

    /// Starts a lookup of the name; the filter is called again when the answer is there.
    pub fn ask(&self, called: Called, services: &dyn Services) -> (Waiting, Pause) {
        let answer = Rc::new(RefCell::new(None));
        // Where nothing is looked up, the answer never comes.
        let lookup = services.names().map_or_else(
            || Box::pin(std::future::pending()) as HostLookup,
            |names| names.resolve(&self.cache, &called.name),
        );
        let place = Rc::clone(&answer);
        let limit = self.cache.query_timeout.map_or(LONGEST_WAIT, |limit| limit.saturating_add(GRACE));
        let pause = Pause::until(async move { *place.borrow_mut() = Some(lookup.await) }, limit);
        (Waiting { called, answer }, pause)
    }

    /// Takes the answer. None came in time: the resolver hangs.
    pub fn take(&self, waiting: &Waiting, around: Around<'_>) -> Known {
        let answer = waiting.answer.borrow_mut().take();
        match answer.unwrap_or(Err(LookupError::Failed("timeout".into()))) {
            Err(error) => Known::Failed(error),
            Ok(resolved) => {
                let addresses = Arc::clone(&resolved.addresses);
                self.keep(&waiting.called.name, resolved, around.now);
                self.host(&waiting.called, addresses, around)
            }
        }
    }

    fn keep(&self, name: &Arc<str>, resolved: Resolved, now: Instant) {
        let mut known = self.known.borrow_mut();
        let is_full = known.len() >= self.cache.max_hosts;
        if is_full && self.swept.get().is_none_or(|swept| now.saturating_duration_since(swept) >= SWEEP_INTERVAL) {
            self.swept.set(Some(now));
            known.retain(|_, resolved| now < resolved.until);
        }
        if known.len() < self.cache.max_hosts || known.contains_key(name) {
            known.insert(Arc::clone(name), resolved);
        }
    }

    /// The host at these addresses, without those that may not be called: those that the configuration refuses, and this
    /// proxy's own listeners, which would send the request here again without an end.
    fn host(&self, called: &Called, addresses: Arc<[IpAddr]>, around: Around<'_>) -> Known {
        let names = around.services.names();
        let refused = |address: &IpAddr| {
            self.cache.refused_addresses.contains(*address)
                || names.is_some_and(|names| {
                    names.is_own_listener(SocketAddr::new(*address, called.port), around.connection)
                })
        };
        let addresses = if addresses.iter().any(refused) {
            addresses.iter().copied().filter(|address| !refused(address)).collect()
        } else {
            addresses
        };
        if addresses.is_empty() {
            return Known::Failed(LookupError::Failed("address_denied".into()));
        }
        Known::Resolved(Arc::new(DynamicHost { name: Arc::clone(&called.name), port: called.port, addresses }))
    }
}

/// The context of a request or connection.
#[derive(Clone, Copy)]
pub(super) struct Around<'a> {
    pub services: &'a dyn Services,
    pub connection: &'a ConnectionView,
    pub now: Instant,
}
