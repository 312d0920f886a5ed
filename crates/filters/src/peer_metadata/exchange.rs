//! One side of Istio's exchange over TCP, without I/O: what to send first, and what the peer sends first.
//!
//! Whoever agreed on the protocol by ALPN sends a prefix with the length, and then who it is. Bytes that are something else belong to the
//! application and pass unchanged, as in Istio's proxy: nothing that a peer sends here ends a connection.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::metadata_exchange::{MetadataExchange, PREFIX_BYTES, length_after, peer_in};
use evenkeel_runtime_config::peer::Peer;

use super::known::{PeerObject, namespace_of};
use crate::info::{Form, StateObject};

/// The longest message about a peer that is read, in bytes. Istio's have about 1,000; a workload's labels may have some 100,000.
const MAX_BYTES: usize = 256 * 1024;

/// One side of an exchange.
#[derive(Debug)]
pub struct Exchange {
    config: Arc<MetadataExchange>,
    /// The namespace of the peer's certificate; `None`: it has proved no identity, and is not believed.
    proved: Option<Proved>,
    greeted: bool,
    progress: Progress,
    /// Received bytes that are not complete.
    held: Vec<u8>,
    peer: Rc<PeerSlot>,
}

/// What the peer's certificate says of its namespace.
#[derive(Debug)]
enum Proved {
    Namespace(Box<str>),
    /// The identity names none.
    Any,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    Prefix,
    /// So many bytes are to come.
    Message(usize),
    Done,
}

/// The peer, once it is known: an object of the filter state.
#[derive(Debug, Default)]
pub struct PeerSlot(OnceCell<Option<PeerObject>>);

impl PeerSlot {
    fn settle(&self, peer: Option<Peer>) {
        // The first value counts.
        _ = self.0.set(peer.map(PeerObject));
    }

    fn known(&self) -> Option<&PeerObject> {
        self.0.get()?.as_ref()
    }
}

impl StateObject for PeerSlot {
    fn write(&self, form: Form, out: &mut Vec<u8>) -> bool {
        self.known().is_some_and(|peer| peer.write(form, out))
    }

    fn field(&self, name: &str, out: &mut Vec<u8>) -> bool {
        self.known().is_some_and(|peer| peer.field(name, out))
    }

    /// Whether all that the peer says of itself has come.
    fn is_settled(&self) -> bool {
        self.0.get().is_some()
    }

    fn peer(&self) -> Option<&Peer> {
        self.known().map(|peer| &peer.0)
    }
}

impl Exchange {
    /// Begins an exchange on a connection whose ends agreed on `protocol`; `None`: they agreed on something else. `identity`: that of the
    /// peer's certificate.
    pub fn begin(config: &Arc<MetadataExchange>, protocol: Option<&[u8]>, identity: Option<&str>) -> Option<Self> {
        if protocol != Some(&*config.protocol) {
            return None;
        }
        let proved =
            identity.map(|identity| namespace_of(identity).map_or(Proved::Any, |name| Proved::Namespace(name.into())));
        let (config, peer) = (Arc::clone(config), Rc::default());
        Some(Self { config, proved, greeted: false, progress: Progress::Prefix, held: Vec::new(), peer })
    }

    /// The peer, once it is known.
    pub fn peer(&self) -> &Rc<PeerSlot> {
        &self.peer
    }

    /// What has to be sent before everything else; `None`: it was returned before.
    pub fn take_greeting(&mut self) -> Option<Arc<[u8]>> {
        let first = !std::mem::replace(&mut self.greeted, true);
        first.then(|| Arc::clone(&self.config.own))
    }

    /// Whether everything that follows, in both directions, is the application's.
    pub fn is_done(&self) -> bool {
        self.greeted && self.has_received()
    }

    /// Whether everything else that the peer sends is the application's.
    pub fn has_received(&self) -> bool {
        self.progress == Progress::Done
    }

    /// Takes bytes that were received, and leaves in `bytes` those of the application. `ends`: no more come.
    pub fn receive(&mut self, bytes: &mut Vec<u8>, ends: bool) {
        if self.has_received() {
            return;
        }
        self.held.append(bytes);
        while let Some(wanted) = self.wanted()
            && self.held.len() >= wanted
        {
            self.advance(wanted);
        }
        if ends {
            self.finish(None);
        }
        if self.has_received() {
            *bytes = std::mem::take(&mut self.held);
        }
    }

    /// How many bytes the next step needs.
    fn wanted(&self) -> Option<usize> {
        match self.progress {
            Progress::Prefix => Some(PREFIX_BYTES),
            Progress::Message(length) => Some(length),
            Progress::Done => None,
        }
    }

    fn advance(&mut self, wanted: usize) {
        if let (Progress::Prefix, Some(prefix)) = (self.progress, self.held.first_chunk()) {
            match length_after(*prefix) {
                None => self.finish(None),
                Some(length) => {
                    self.held.drain(..PREFIX_BYTES);
                    self.progress = Progress::Message(length);
                    if length > MAX_BYTES {
                        self.finish(None);
                    }
                }
            }
            return;
        }
        match peer_in(self.held.get(..wanted).unwrap_or_default()) {
            // Istio's proxy lets such bytes pass, too.
            None => self.finish(None),
            Some(peer) => {
                self.held.drain(..wanted);
                let believed = peer.filter(|peer| self.believes(peer));
                self.finish(believed);
            }
        }
    }

    fn believes(&self, peer: &Peer) -> bool {
        match &self.proved {
            None => false,
            Some(Proved::Any) => true,
            Some(Proved::Namespace(namespace)) => *namespace == peer.namespace,
        }
    }

    fn finish(&mut self, peer: Option<Peer>) {
        self.progress = Progress::Done;
        self.peer.settle(peer);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const ISTIO: &str = "istio-peer-exchange";

    fn config() -> Arc<MetadataExchange> {
        let peer = Peer::new("web-v1", "shop", "Kubernetes", &BTreeMap::new());
        Arc::new(MetadataExchange::new(ISTIO, &peer.headers("sidecar~10.0.0.1~web-0.shop~shop.svc")))
    }

    fn begin(identity: Option<&str>) -> Exchange {
        Exchange::begin(&config(), Some(ISTIO.as_bytes()), identity).expect("the protocol was agreed on")
    }

    #[test]
    fn only_the_agreed_protocol_begins_one() {
        let check = |protocol: Option<&str>, expected: bool| {
            let begun = Exchange::begin(&config(), protocol.map(str::as_bytes), None);
            assert_eq!(begun.is_some(), expected, "{protocol:?}");
        };
        check(None, false);
        check(Some("istio"), false);
        check(Some(ISTIO), true);
    }

    /// Whatever the pieces are in which bytes come.
    #[test]
    fn the_application_gets_what_follows_the_message() {
        let own = config().own.to_vec();
        let check = |sent: &[u8], application: &[u8], workload: Option<&str>| {
            for size in [1, 3, 8, 100, 10_000] {
                let mut exchange = begin(Some("spiffe://cluster.local/ns/shop/sa/web"));
                let mut passed = Vec::new();
                for piece in sent.chunks(size) {
                    let mut bytes = piece.to_vec();
                    exchange.receive(&mut bytes, false);
                    passed.append(&mut bytes);
                }
                let mut rest = Vec::new();
                exchange.receive(&mut rest, true);
                passed.append(&mut rest);
                assert_eq!(passed, application, "{sent:?} by {size}");
                assert!(exchange.has_received() && exchange.peer().is_settled(), "{sent:?} by {size}");
                let found = exchange.peer().peer().map(|peer| &*peer.workload);
                assert_eq!(found, workload, "{sent:?} by {size}");
            }
        };
        check(&own, b"", Some("web-v1"));
        check(&[&own[..], b"hello"].concat(), b"hello", Some("web-v1"));
        check(b"hello, you", b"hello, you", None);
        check(b"hel", b"hel", None);
        check(b"", b"", None);
        // No message, one that ends early, and one that is too long: what follows the prefix passes, as in Istio's proxy.
        check(b"\x3d\x23\x04\x67\0\0\0\x02\xff\xff!", b"\xff\xff!", None);
        check(b"\x3d\x23\x04\x67\0\0\0\x09\x0a", b"\x0a", None);
        check(b"\x3d\x23\x04\x67\xff\xff\xff\xff!", b"!", None);
        check(b"\x3d\x23\x04\x67\0\0\0\0!", b"!", None);
    }

    #[test]
    fn a_peer_is_believed_about_its_own_namespace() {
        let check = |identity: Option<&str>, expected: bool| {
            let mut exchange = begin(identity);
            exchange.receive(&mut config().own.to_vec(), false);
            assert_eq!(exchange.peer().peer().is_some(), expected, "{identity:?}");
        };
        check(None, false);
        check(Some("spiffe://cluster.local/ns/shop/sa/web"), true);
        check(Some("spiffe://cluster.local/ns/other/sa/web"), false);
        check(Some("spiffe://cluster.local/web"), true);
    }

    #[test]
    fn the_greeting_is_sent_once() {
        let mut exchange = begin(None);
        assert_eq!(exchange.take_greeting(), Some(config().own.clone()));
        assert_eq!(exchange.take_greeting(), None);
        assert!(!exchange.is_done());
        exchange.receive(&mut b"something else".to_vec(), false);
        assert!(exchange.is_done());
    }
}
