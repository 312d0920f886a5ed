//! Peers that a worker has heard of: each value of the header is read once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

use base64::Engine as _;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use evenkeel_runtime_config::peer::Peer;

use crate::info::{Form, StateObject};

/// The object in the filter state about the client's workload.
pub const DOWNSTREAM: &str = "downstream_peer";
/// The object about the server's workload.
pub const UPSTREAM: &str = "upstream_peer";

/// Most values that a worker remembers; then it begins anew.
const MAX_KNOWN: usize = 500;
/// The longest value that is read, in bytes. Istio's have some 400.
const MAX_BYTES: usize = 16 * 1024;

/// Istio pads, others need not.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The workload at the other end, as an object of the filter state.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PeerObject(pub(crate) Peer);

impl PeerObject {
    /// Its fields, under Istio's names.
    fn fields(&self) -> [(&'static str, &str); 7] {
        let Peer { workload, namespace, canonical_service, canonical_revision, cluster, app, version } = &self.0;
        [
            ("workload", workload),
            ("namespace", namespace),
            ("cluster", cluster),
            ("service", canonical_service),
            ("revision", canonical_revision),
            ("app", app),
            ("version", version),
        ]
    }
}

impl StateObject for PeerObject {
    fn write(&self, _: Form, out: &mut Vec<u8>) -> bool {
        let fields = self.fields().into_iter().filter(|(_, value)| !value.is_empty());
        let fields: serde_json::Map<String, serde_json::Value> =
            fields.map(|(name, value)| (name.to_owned(), value.into())).collect();
        // A map of texts can be written.
        serde_json::to_writer(out, &fields).is_ok()
    }

    fn field(&self, name: &str, out: &mut Vec<u8>) -> bool {
        let field = self.fields().into_iter().find(|(known, _)| *known == name);
        field.map(|(_, value)| out.extend_from_slice(value.as_bytes())).is_some()
    }

    fn peer(&self) -> Option<&Peer> {
        Some(&self.0)
    }
}

/// The peers of one worker, by the value of the header.
#[derive(Debug, Default)]
pub(super) struct KnownPeers(RefCell<HashMap<Box<[u8]>, Rc<PeerObject>>>);

impl KnownPeers {
    /// The workload that this value describes; `None` if it describes none.
    pub(super) fn read(&self, value: &[u8]) -> Option<Rc<PeerObject>> {
        if let Some(peer) = self.0.borrow().get(value) {
            return Some(Rc::clone(peer));
        }
        if value.len() > MAX_BYTES {
            return None;
        }
        let bytes = BASE64.decode(value).ok()?;
        let peer = Rc::new(PeerObject(Peer::of_metadata(&bytes)?));
        let mut known = self.0.borrow_mut();
        if known.len() >= MAX_KNOWN {
            known.clear();
        }
        known.insert(value.into(), Rc::clone(&peer));
        Some(peer)
    }
}

/// `spiffe://DOMAIN/ns/NAMESPACE/sa/…`.
pub(crate) fn namespace_of(principal: &str) -> Option<&str> {
    let (_, rest) = principal.split_once("/ns/")?;
    rest.split('/').next().filter(|namespace| !namespace.is_empty())
}
