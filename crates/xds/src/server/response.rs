//! A response as it goes out: resources are written from the bytes they share with every other stream.
//!
//! Only what is special to this response (nonce, names of what is gone) is encoded for it. The bytes are made piece by
//! piece as the connection takes them, so a client that does not read costs a list of pointers and no copy.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::state::Push;
use super::subscription::Offer;
use crate::evenkeel::ListingRequest;
use crate::pb::envoy::config::core::v3::ControlPlane;
use crate::pb::envoy::service::discovery::v3::{self as discovery, DeltaDiscoveryResponse, DiscoveryResponse};
use crate::{Resource, ResourceType, Version};

/// Bytes of one piece: resources up to half of it are copied together, so that small ones do not become frames of their
/// own; larger ones are passed on as they are.
const PIECE_BYTES: usize = 16 * 1024;
/// Bytes of a gRPC message's prefix: a flag and the length.
const PREFIX_BYTES: usize = 5;
/// Field number of the resources in both responses.
const RESOURCES: u32 = 2;
/// Field number of the name in the delta protocol's `Resource`.
const NAME: u32 = 3;

/// What a server says about itself in each response, and how much it says of resources.
#[derive(Clone, Debug, Default)]
pub struct Announcement {
    /// `control_plane.identifier`; empty to say nothing.
    pub identifier: Arc<str>,
    /// Whether resources carry their cause: only clients that measure ages want to know.
    pub causes: bool,
}

/// Which of the two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wire {
    Delta,
    Sotw,
}

/// One response, to be encoded.
#[derive(Debug)]
pub struct Response {
    wire: Wire,
    resources: Vec<Offer>,
    /// All fields but the resources, encoded.
    head: Vec<u8>,
    causes: bool,
}

impl Response {
    pub(super) fn new(wire: Wire, push: Push, announcement: &Announcement) -> Self {
        let kind = push.change.kind;
        let control_plane = (!announcement.identifier.is_empty())
            .then(|| ControlPlane { identifier: announcement.identifier.to_string() });
        let nonce = push.nonce.to_string();
        let type_url = kind.type_url().to_owned();
        let (head, resources) = match wire {
            Wire::Delta => (delta_head(&push, nonce, type_url, control_plane), push.change.added),
            Wire::Sotw => {
                let listed = |listing: crate::resource_set::TypeSet| {
                    let offer =
                        |resource: &Arc<Resource>| Offer { asked: resource.name.clone(), resource: resource.clone() };
                    listing.resources.values().map(offer).collect()
                };
                let resources: Vec<Offer> = push.listing.map_or(push.change.added, listed);
                // Equal content has an equal version, from whichever server it comes.
                let held = resources.iter().map(|offer| (&*offer.asked, offer.resource.version.to_string()));
                let version_info = format!("{:016x}", crate::digest::of(held));
                let head = DiscoveryResponse { version_info, type_url, nonce, control_plane, ..Default::default() };
                (head.encode_to_vec(), resources)
            }
        };
        Self { wire, resources, head, causes: announcement.causes }
    }

    /// A request for a listing of all that is held of these types, to a client that sends reports.
    pub(super) fn listing_request(kinds: impl Iterator<Item = ResourceType>) -> Self {
        let request = ListingRequest { type_urls: kinds.map(|kind| kind.type_url().to_owned()).collect() };
        let resource = discovery::Resource { resource: Some(crate::pack(&request)), ..Default::default() };
        let type_url = crate::type_url::REPORT.to_owned();
        let head = DeltaDiscoveryResponse { resources: vec![resource], type_url, ..Default::default() };
        Self { wire: Wire::Delta, resources: Vec::new(), head: head.encode_to_vec(), causes: false }
    }

    /// Its bytes, with gRPC's prefix, piece by piece.
    pub(super) fn into_pieces(self) -> Pieces {
        let length = self.head.len() + self.resources.iter().map(|offer| self.field_len(offer)).sum::<usize>();
        let mut first = BytesMut::with_capacity(PREFIX_BYTES + self.head.len());
        first.extend_from_slice(&[0]);
        first.extend_from_slice(&u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes());
        first.extend_from_slice(&self.head);
        Pieces { response: self, next: 0, pending: first, ready: None }
    }

    /// The message it is, whole.
    pub fn encode_to_vec(self) -> Vec<u8> {
        let bytes: Vec<u8> = self.into_pieces().flatten().collect();
        bytes.get(PREFIX_BYTES..).unwrap_or_default().to_vec()
    }

    /// The name, if it is not the resource's own, and the cause: what follows a resource's own bytes.
    fn trailer(&self, offer: &Offer) -> (Option<Arc<str>>, Bytes) {
        if self.wire == Wire::Sotw {
            return (None, Bytes::new());
        }
        let asked = (offer.asked != offer.resource.name).then(|| offer.asked.clone());
        let cause = if self.causes { offer.resource.encoded_metadata() } else { Bytes::new() };
        (asked, cause)
    }

    fn body(&self, offer: &Offer) -> Bytes {
        match self.wire {
            Wire::Delta => offer.resource.encoded(),
            Wire::Sotw => offer.resource.encoded_any(),
        }
    }

    fn message_len(&self, offer: &Offer) -> usize {
        let (asked, cause) = self.trailer(offer);
        let name = asked.map_or(0, |name| key_len(NAME) + encoded_len_varint(name.len() as u64) + name.len());
        self.body(offer).len() + name + cause.len()
    }

    fn field_len(&self, offer: &Offer) -> usize {
        let length = self.message_len(offer);
        key_len(RESOURCES) + encoded_len_varint(length as u64) + length
    }
}

fn delta_head(push: &Push, nonce: String, type_url: String, control_plane: Option<ControlPlane>) -> Vec<u8> {
    let change = &push.change;
    let mut removed: Vec<String> = change.removed.iter().map(|name| name.to_string()).collect();
    let mut resources = Vec::new();
    for name in &change.absent {
        match change.kind {
            // A resource without a body is how VHDS says that there is no such host (Envoy, "on-demand VHDS").
            ResourceType::VirtualHost => resources.push(discovery::Resource {
                name: name.to_string(),
                version: Version::of(&[]).to_string(),
                aliases: vec![name.to_string()],
                ..Default::default()
            }),
            _ => removed.push(name.to_string()),
        }
    }
    let head = DeltaDiscoveryResponse {
        system_version_info: push.generation.to_string(),
        resources,
        type_url,
        removed_resources: removed,
        nonce,
        control_plane,
        ..Default::default()
    };
    head.encode_to_vec()
}

/// A response's bytes in pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    response: Response,
    next: usize,
    pending: BytesMut,
    /// A large resource, to follow what is pending.
    ready: Option<(Bytes, Bytes)>,
}

impl Pieces {
    /// What is pending, if it is enough for a piece, or all there will be.
    fn piece(&mut self, last: bool) -> Option<Bytes> {
        let length = self.pending.len();
        (length >= PIECE_BYTES || (last && length > 0)).then(|| self.pending.split().freeze())
    }
}

impl Iterator for Pieces {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        loop {
            if let Some((body, trailer)) = self.ready.take() {
                if !self.pending.is_empty() {
                    self.ready = Some((body, trailer));
                    return Some(self.pending.split().freeze());
                }
                self.pending.extend_from_slice(&trailer);
                return Some(body);
            }
            if let Some(piece) = self.piece(false) {
                return Some(piece);
            }
            let Some(offer) = self.response.resources.get(self.next) else { return self.piece(true) };
            self.next += 1;
            let (asked, cause) = self.response.trailer(offer);
            let body = self.response.body(offer);
            let length = self.response.message_len(offer);
            encode_key(RESOURCES, WireType::LengthDelimited, &mut self.pending);
            encode_varint(length as u64, &mut self.pending);
            let mut trailer = BytesMut::new();
            if let Some(name) = asked {
                // Of a field given twice the last counts.
                prost::encoding::string::encode(NAME, &name.to_string(), &mut trailer);
            }
            trailer.extend_from_slice(&cause);
            if body.len() > PIECE_BYTES / 2 {
                self.ready = Some((body, trailer.freeze()));
                continue;
            }
            self.pending.extend_from_slice(&body);
            self.pending.extend_from_slice(&trailer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::subscription::Change;
    use crate::{Any, Cause};

    fn offer(asked: &str, name: &str, bytes: usize) -> Offer {
        let any = Any { type_url: ResourceType::Route.type_url().into(), value: vec![7; bytes] };
        let resource = Resource::new(name, &any).with_cause(Cause { generation: 3, time_us: 4 });
        Offer { asked: asked.into(), resource: Arc::new(resource) }
    }

    fn push(added: Vec<Offer>) -> Push {
        let (removed, absent) = (vec!["gone".into()], vec!["ghost".into()]);
        let change = Change { kind: ResourceType::VirtualHost, added, removed, absent };
        Push { change, nonce: 5, generation: 3, listing: None }
    }

    #[test]
    fn is_what_the_protocol_has_and_shares_large_resources() {
        let announcement = Announcement { identifier: "evenkeel/test".into(), causes: true };
        let offers = || vec![offer("r/a", "r/a", 10), offer("r/alias", "r/big", 100_000), offer("r/z", "r/z", 0)];
        let sent = offers();
        let shared = sent[1].resource.encoded();
        let response = Response::new(Wire::Delta, push(sent), &announcement);
        let pieces: Vec<Bytes> = response.into_pieces().collect();
        assert!(pieces.iter().any(|piece| piece.as_ptr() == shared.as_ptr() && piece.len() == shared.len()));
        let all = pieces.concat();
        assert_eq!(all[..5], [&[0][..], &u32::try_from(all.len() - 5).unwrap().to_be_bytes()].concat());
        let read = DeltaDiscoveryResponse::decode(&all[5..]).unwrap();
        let names: Vec<&str> = read.resources.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["ghost", "r/a", "r/alias", "r/z"]);
        assert_eq!(read.resources[0].resource, None);
        assert_eq!(read.resources[2].resource, Some(offers()[1].resource.any()));
        let cause = |r: &discovery::Resource| crate::metadata::read(r.metadata.as_ref()).0;
        assert_eq!(cause(&read.resources[2]), Cause { generation: 3, time_us: 4 });
        assert_eq!(
            (read.removed_resources, read.nonce, read.control_plane.unwrap().identifier),
            (vec!["gone".into()], "5".into(), "evenkeel/test".into())
        );

        let response = Response::new(Wire::Sotw, push(offers()), &Announcement::default());
        let read = DiscoveryResponse::decode(&*response.encode_to_vec()).unwrap();
        assert_eq!(read.resources.len(), 3);
        assert_eq!(read.resources[1], offers()[1].resource.any());
        assert_eq!((read.control_plane, &*read.nonce), (None, "5"));
    }

    #[test]
    fn small_resources_travel_together() {
        let offers = (0..1000).map(|index| offer(&format!("r/{index}"), &format!("r/{index}"), 100)).collect();
        let response = Response::new(Wire::Delta, push(offers), &Announcement::default());
        let pieces: Vec<Bytes> = response.into_pieces().collect();
        assert!(pieces.len() < 20, "{}", pieces.len());
    }
}
