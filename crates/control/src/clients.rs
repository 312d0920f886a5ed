//! Limits on the clients of the TLS port: during the handshake, without a certificate, and with an identity.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_xds::server::grpc::Budget;

use crate::quota::{Quota, Share, host};

/// Maximum number of connections per port; more wait in the kernel's backlog.
pub(crate) const MAX_CONNECTIONS: usize = 20_000;
/// Maximum number of concurrent handshakes. Each buffers at most the size of a TLS handshake message, 64 KiB.
const MAX_HANDSHAKES: usize = 1024;
/// Maximum number of concurrent handshakes of one address.
const MAX_HANDSHAKES_PER_ADDRESS: usize = 256;
/// Maximum number of connected clients without a certificate: they come to get one, which takes milliseconds.
const MAX_ANONYMOUS: usize = 512;
/// Maximum number of connected clients without a certificate of one address.
const MAX_ANONYMOUS_PER_ADDRESS: usize = 128;
/// Maximum number of connections of one identity, that is, of all replicas that run as one service account.
const MAX_CONNECTIONS_PER_IDENTITY: usize = MAX_CONNECTIONS / 4;
/// Memory for incomplete messages of all clients of a port, in bytes.
const MAX_MESSAGE_BYTES: usize = 256 * 1024 * 1024;
/// Memory for incomplete messages of one identity, in bytes.
const MAX_MESSAGE_BYTES_PER_IDENTITY: usize = MAX_MESSAGE_BYTES / 4;

/// The clients of one port.
#[derive(Debug)]
pub struct Clients {
    handshakes: Arc<Quota<IpAddr>>,
    anonymous: Arc<Quota<IpAddr>>,
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
    _share: AdmissionShare,
}

#[derive(Debug)]
#[expect(dead_code, reason = "held, not read")]
enum AdmissionShare {
    Plain,
    Anonymous(Share<IpAddr>),
    Known(Share<SpiffeId>),
}

impl Clients {
    /// Creates the limits of a port without clients.
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            handshakes: Quota::new(MAX_HANDSHAKES, MAX_HANDSHAKES_PER_ADDRESS),
            anonymous: Quota::new(MAX_ANONYMOUS, MAX_ANONYMOUS_PER_ADDRESS),
            known: Quota::new(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_IDENTITY),
            messages: Budget::new(MAX_MESSAGE_BYTES),
            parts: Mutex::default(),
        })
    }

    /// Grants a handshake to `address`, until the share is dropped; `None` at a limit.
    pub fn shake_hands(&self, address: IpAddr) -> Option<Share<IpAddr>> {
        self.handshakes.take(host(address))
    }

    /// Returns the admission of an authenticated client, or of any client of a port without authentication.
    pub fn plain(&self) -> Admission {
        Admission { messages: self.messages.clone(), _share: AdmissionShare::Plain }
    }

    /// Returns the admission of a client without an identity; `None` at a limit.
    pub fn anonymous(&self, address: IpAddr) -> Option<Admission> {
        let share = self.anonymous.take(host(address))?;
        Some(Admission { messages: self.messages.clone(), _share: AdmissionShare::Anonymous(share) })
    }

    /// Returns the admission of a client that has authenticated as `identity`; `None` at its limit.
    pub fn known(&self, identity: &SpiffeId) -> Option<Admission> {
        let share = self.known.take(identity.clone())?;
        Some(Admission { messages: self.part(identity), _share: AdmissionShare::Known(share) })
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
        let held: Vec<_> = std::iter::from_fn(|| clients.anonymous(a)).collect();
        assert_eq!(held.len(), MAX_ANONYMOUS_PER_ADDRESS);
        assert!(clients.anonymous(b).is_some());
        let shaking: Vec<_> = std::iter::from_fn(|| clients.shake_hands(a)).collect();
        assert_eq!(shaking.len(), MAX_HANDSHAKES_PER_ADDRESS);
        assert!(clients.shake_hands(b).is_some());

        let id = |account: &str| SpiffeId::new("cluster.local", "shop", account).expect("an identity");
        let web: Vec<_> = std::iter::from_fn(|| clients.known(&id("web"))).collect();
        assert_eq!(web.len(), MAX_CONNECTIONS_PER_IDENTITY);
        let other = clients.known(&id("other")).expect("an admission");
        let [first, second, ..] = web.as_slice() else { panic!("two places") };
        assert!(Arc::ptr_eq(&first.messages, &second.messages), "replicas share");
        assert!(!Arc::ptr_eq(&first.messages, &other.messages));
        drop(web);
        drop(clients.known(&id("third")));
        assert_eq!(clients.parts.lock().expect("the parts").len(), 2, "who is gone is forgotten");
    }
}
