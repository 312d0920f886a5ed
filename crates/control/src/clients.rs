//! Limits on the clients of the TLS port: during the handshake, without a certificate, and with an identity.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::task::{Context, Poll};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_xds::server::grpc::Budget;

use crate::places::{Acquaintances, Place, Places};
use crate::quota::{Quota, Share, host};

/// Maximum number of connections per port; more wait in the kernel's backlog.
pub(crate) const MAX_CONNECTIONS: usize = 20_000;
/// Maximum number of concurrent handshakes. Each buffers at most the size of a TLS handshake message, 64 KiB.
const MAX_HANDSHAKES: usize = 1024;
/// Maximum number of concurrent handshakes of one address.
const MAX_HANDSHAKES_PER_ADDRESS: usize = 256;
/// Handshakes that only addresses from which clients with a certificate have come get.
const HANDSHAKES_OF_ACQUAINTANCES: usize = MAX_HANDSHAKES / 2;
/// Maximum number of connected clients without a certificate: they come to get one, which takes milliseconds.
const MAX_ANONYMOUS: usize = 512;
/// Maximum number of connected clients without a certificate of one address.
const MAX_ANONYMOUS_PER_ADDRESS: usize = 128;
/// Places for clients without a certificate that only addresses from which clients with one have come get: after an outage
/// their certificates may have expired.
const ANONYMOUS_OF_ACQUAINTANCES: usize = MAX_ANONYMOUS / 2;
/// Maximum number of connections of one identity, that is, of all replicas that run as one service account.
const MAX_CONNECTIONS_PER_IDENTITY: usize = MAX_CONNECTIONS / 4;
/// Memory for incomplete messages of all clients of a port, in bytes.
const MAX_MESSAGE_BYTES: usize = 256 * 1024 * 1024;
/// Memory for incomplete messages of one identity, in bytes.
const MAX_MESSAGE_BYTES_PER_IDENTITY: usize = MAX_MESSAGE_BYTES / 4;

/// The clients of one port.
#[derive(Debug)]
pub struct Clients {
    handshakes: Arc<Places>,
    anonymous: Arc<Places>,
    acquaintances: Acquaintances,
    known: Arc<Quota<SpiffeId>>,
    messages: Arc<Budget>,
    /// The budget of each identity, a part of `messages`.
    parts: Mutex<HashMap<SpiffeId, Weak<Budget>>>,
}

/// The resources granted to a client while it is connected.
#[derive(Debug)]
pub struct Admission {
    /// Memory for the client's incomplete messages.
    pub messages: Arc<Budget>,
    share: AdmissionShare,
}

#[derive(Debug)]
enum AdmissionShare {
    Plain,
    Anonymous(Place),
    Known(#[expect(dead_code, reason = "held, not read")] Share<SpiffeId>),
}

impl Admission {
    /// Whether the client has lost its place to another one.
    pub fn poll_evicted(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        match &mut self.share {
            AdmissionShare::Anonymous(place) => place.poll_evicted(cx),
            AdmissionShare::Plain | AdmissionShare::Known(_) => Poll::Pending,
        }
    }
}

impl Clients {
    /// Creates the limits of a port without clients.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            handshakes: Places::new(MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS, HANDSHAKES_OF_ACQUAINTANCES),
            anonymous: Places::new(MAX_ANONYMOUS, MAX_ANONYMOUS_PER_ADDRESS, ANONYMOUS_OF_ACQUAINTANCES),
            acquaintances: Acquaintances::default(),
            known: Quota::new(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IDENTITY),
            messages: Budget::new(MAX_MESSAGE_BYTES),
            parts: Mutex::default(),
        })
    }

    /// Grants a handshake to `address`, until the place is dropped or given to another client.
    pub fn shake_hands(&self, address: IpAddr) -> Place {
        let address = host(address);
        self.handshakes.take(address, self.acquaintances.knows(&address))
    }

    /// Returns the admission of an authenticated client, or of any client of a port without authentication.
    pub fn plain(&self) -> Admission {
        Admission { messages: self.messages.clone(), share: AdmissionShare::Plain }
    }

    /// Returns the admission of a client without an identity, until it is given to another one.
    pub fn anonymous(&self, address: IpAddr) -> Admission {
        let address = host(address);
        let place = self.anonymous.take(address, self.acquaintances.knows(&address));
        Admission { messages: self.messages.clone(), share: AdmissionShare::Anonymous(place) }
    }

    /// Returns the admission of a client that has authenticated as `identity`; `None` at its limit.
    pub fn known(&self, identity: &SpiffeId, address: IpAddr) -> Option<Admission> {
        self.acquaintances.note(host(address));
        let share = self.known.take(identity.clone())?;
        Some(Admission { messages: self.part(identity), share: AdmissionShare::Known(share) })
    }

    fn part(&self, identity: &SpiffeId) -> Arc<Budget> {
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(part) = parts.get(identity).and_then(Weak::upgrade) {
            return part;
        }
        parts.retain(|_, part| part.strong_count() > 0);
        let part = self.messages.part(MAX_MESSAGE_BYTES_PER_IDENTITY);
        parts.insert(identity.clone(), Arc::downgrade(&part));
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_client_takes_is_not_taken_from_others() {
        let clients = Clients::new();
        let (a, b) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut held: Vec<_> = (0..MAX_ANONYMOUS).map(|_| clients.anonymous(a)).collect();
        let mut cx = Context::from_waker(std::task::Waker::noop());
        let kept: usize = held.iter_mut().map(|one| usize::from(one.poll_evicted(&mut cx).is_pending())).sum();
        assert_eq!(kept, MAX_ANONYMOUS_PER_ADDRESS);
        assert!(clients.anonymous(b).poll_evicted(&mut cx).is_pending());
        let shaking: Vec<_> = (0..MAX_HANDSHAKES).map(|_| clients.shake_hands(a)).collect();
        assert_eq!(clients.handshakes.count(), MAX_HANDSHAKES_PER_ADDRESS);
        drop(shaking);

        let id = |account: &str| SpiffeId::new("cluster.local", "shop", account).expect("an identity");
        let web: Vec<_> = std::iter::from_fn(|| clients.known(&id("web"), a)).collect();
        assert_eq!(web.len(), MAX_CONNECTIONS_PER_IDENTITY);
        let other = clients.known(&id("other"), b).expect("an admission");
        let [first, second, ..] = web.as_slice() else { panic!("two places") };
        assert!(Arc::ptr_eq(&first.messages, &second.messages), "replicas share");
        assert!(!Arc::ptr_eq(&first.messages, &other.messages));
        drop(web);
        drop(clients.known(&id("third"), b));
        assert_eq!(clients.parts.lock().expect("the parts").len(), 2, "who is gone is forgotten");
    }
}
