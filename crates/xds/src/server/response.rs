//! Encoding of responses: resources are written from bytes that all streams share.
//!
//! Only what is specific to a response (nonce, names that are gone) is encoded for it. The bytes are made piece by
//! piece as the connection takes them, so a client that does not read costs a list of pointers and no copy.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use prost::Message as _;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

use super::state::Push;
use super::subscription::{Change, OfferedResource};
use crate::evenkeel::ListingRequest;
use crate::pb::envoy::config::core::v3::ControlPlane;
use crate::pb::envoy::service::discovery::v3::{self as discovery, DeltaDiscoveryResponse, DiscoveryResponse};
use crate::{Resource, ResourceType, Version};

/// Size of a piece, in bytes. Resources up to half of it are copied together, so that small ones do not become frames
/// of their own; larger ones are passed on without a copy.
const PIECE_BYTES: usize = 16 * 1024;
/// Bytes of a gRPC message's prefix: a flag and the length.
const PREFIX_BYTES: usize = 5;
/// Field number of the resources in both responses.
const RESOURCES: u32 = 2;
/// Field number of removed names in the delta protocol's response.
const REMOVED: u32 = 6;
/// Field number of the name in the delta protocol's `Resource`.
const NAME: u32 = 3;

/// The server's description of itself in each response, and whether it sends metadata of resources.
#[derive(Clone, Debug, Default)]
pub struct Announcement {
    /// `control_plane.identifier`; empty to say nothing.
    pub identifier: Arc<str>,
    /// Whether resources carry their cause, which only clients that measure ages need.
    pub causes: bool,
}

/// Which of the two protocols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WireProtocol {
    Delta,
    Sotw,
}

/// One response, to be encoded.
#[derive(Debug)]
pub struct Response {
    form: ResponseFormat,
    resources: Vec<OfferedResource>,
    head: ResponseHead,
}

/// How resources are encoded.
#[derive(Clone, Copy, Debug)]
struct ResponseFormat {
    wire: WireProtocol,
    causes: bool,
}

/// All fields of a response except the resources.
#[derive(Debug)]
enum ResponseHead {
    Encoded(Vec<u8>),
    /// Encoded when the response is sent: it may have many removed names, and many streams' responses may wait.
    Delta(DeltaHead),
}

#[derive(Debug)]
struct DeltaHead {
    kind: ResourceType,
    generation: u64,
    nonce: u64,
    removed: Vec<Arc<str>>,
    absent: Vec<Arc<str>>,
    identifier: Arc<str>,
}

impl Response {
    pub(super) fn new(wire: WireProtocol, push: Push, announcement: &Announcement) -> Self {
        let Push { change, nonce, generation, listing } = push;
        let Change { kind, added, removed, absent } = change;
        let identifier = announcement.identifier.clone();
        let (head, resources) = match wire {
            WireProtocol::Delta => {
                let head = DeltaHead { kind, generation, nonce, removed, absent, identifier };
                (ResponseHead::Delta(head), added)
            }
            WireProtocol::Sotw => {
                let listed = |listing: crate::resource_set::TypeSet| {
                    let offer = |resource: &Arc<Resource>| OfferedResource {
                        asked: resource.name.clone(),
                        resource: resource.clone(),
                    };
                    listing.resources.values().map(offer).collect()
                };
                let resources: Vec<OfferedResource> = listing.map_or(added, listed);
                // Equal content has an equal version, whichever server sends it.
                let held = resources.iter().map(|offer| (&*offer.asked, offer.resource.version.to_string()));
                let version_info = format!("{:016x}", crate::digest::of(held));
                let (type_url, nonce) = (kind.type_url().to_owned(), nonce.to_string());
                let control_plane = control_plane(&identifier);
                let head = DiscoveryResponse { version_info, type_url, nonce, control_plane, ..Default::default() };
                (ResponseHead::Encoded(head.encode_to_vec()), resources)
            }
        };
        Self { form: ResponseFormat { wire, causes: announcement.causes }, resources, head }
    }

    /// A request to a client that sends reports to list everything it holds of these types.
    pub(super) fn listing_request(kinds: impl Iterator<Item = ResourceType>) -> Self {
        let request = ListingRequest { type_urls: kinds.map(|kind| kind.type_url().to_owned()).collect() };
        let resource = discovery::Resource { resource: Some(crate::pack(&request)), ..Default::default() };
        let type_url = crate::type_url::REPORT.to_owned();
        let head = DeltaDiscoveryResponse { resources: vec![resource], type_url, ..Default::default() };
        let form = ResponseFormat { wire: WireProtocol::Delta, causes: false };
        Self { form, resources: Vec::new(), head: ResponseHead::Encoded(head.encode_to_vec()) }
    }

    /// Its bytes with gRPC's prefix, piece by piece.
    pub(super) fn into_pieces(self) -> Pieces {
        let Self { form, resources, head } = self;
        let body = resources.iter().map(|offer| form.field_len(offer)).sum::<usize>();
        let begin = |head_len: usize| {
            let mut pending = BytesMut::with_capacity(PREFIX_BYTES + head_len);
            pending.extend_from_slice(&[0]);
            pending.extend_from_slice(&u32::try_from(head_len + body).unwrap_or(u32::MAX).to_be_bytes());
            pending
        };
        let pending = match head {
            ResponseHead::Encoded(bytes) => {
                let mut pending = begin(bytes.len());
                pending.extend_from_slice(&bytes);
                pending
            }
            ResponseHead::Delta(head) => {
                let message = head.message();
                let gone_len = |name: &Arc<str>| string_len(REMOVED, name.len());
                let mut pending = begin(message.encoded_len() + head.gone().map(gone_len).sum::<usize>());
                message.encode_raw(&mut pending);
                head.gone().for_each(|name| put_string(REMOVED, name, &mut pending));
                pending
            }
        };
        Pieces { form, resources, next: 0, pending, ready: None }
    }

    /// The whole encoded message.
    pub fn encode_to_vec(self) -> Vec<u8> {
        let bytes: Vec<u8> = self.into_pieces().flatten().collect();
        bytes.get(PREFIX_BYTES..).unwrap_or_default().to_vec()
    }
}

impl ResponseFormat {
    /// The requested name, if it is not the resource's own: it is appended to the resource's bytes, before the cause.
    fn other_name(self, offer: &OfferedResource) -> Option<&str> {
        (self.wire == WireProtocol::Delta && offer.asked != offer.resource.name).then_some(&*offer.asked)
    }

    fn tells_cause(self) -> bool {
        self.wire == WireProtocol::Delta && self.causes
    }

    fn body(self, offer: &OfferedResource) -> Bytes {
        match self.wire {
            WireProtocol::Delta => offer.resource.encoded(),
            WireProtocol::Sotw => offer.resource.encoded_any(),
        }
    }

    fn trailer(self, offer: &OfferedResource) -> Bytes {
        let mut trailer = BytesMut::new();
        if let Some(name) = self.other_name(offer) {
            // If a field appears twice, the last one counts.
            put_string(NAME, name, &mut trailer);
        } else if self.tells_cause() {
            return offer.resource.encoded_metadata();
        }
        if self.tells_cause() {
            trailer.extend_from_slice(&offer.resource.encoded_metadata());
        }
        trailer.freeze()
    }

    fn message_len(self, offer: &OfferedResource) -> usize {
        let body = match self.wire {
            WireProtocol::Delta => offer.resource.encoded_len(),
            WireProtocol::Sotw => offer.resource.encoded_any_len(),
        };
        let name = self.other_name(offer).map_or(0, |name| string_len(NAME, name.len()));
        let cause = if self.tells_cause() { offer.resource.metadata_len() } else { 0 };
        body + name + cause
    }

    fn field_len(self, offer: &OfferedResource) -> usize {
        string_len(RESOURCES, self.message_len(offer))
    }
}

impl DeltaHead {
    /// The message without the removed names.
    fn message(&self) -> DeltaDiscoveryResponse {
        let hosts: &[Arc<str>] = if self.kind == ResourceType::VirtualHost { &self.absent } else { &[] };
        // A resource without a body is how VHDS says that there is no such host (Envoy, "on-demand VHDS").
        let no_such_host = |name: &Arc<str>| discovery::Resource {
            name: name.to_string(),
            version: Version::of(&[]).to_string(),
            aliases: vec![name.to_string()],
            ..Default::default()
        };
        DeltaDiscoveryResponse {
            system_version_info: self.generation.to_string(),
            resources: hosts.iter().map(no_such_host).collect(),
            type_url: self.kind.type_url().to_owned(),
            nonce: self.nonce.to_string(),
            control_plane: control_plane(&self.identifier),
            ..Default::default()
        }
    }

    fn gone(&self) -> impl Iterator<Item = &Arc<str>> {
        let absent: &[Arc<str>] = if self.kind == ResourceType::VirtualHost { &[] } else { &self.absent };
        self.removed.iter().chain(absent)
    }
}

fn control_plane(identifier: &str) -> Option<ControlPlane> {
    (!identifier.is_empty()).then(|| ControlPlane { identifier: identifier.to_owned() })
}

/// Bytes of a string field, or of another length-delimited field.
fn string_len(field: u32, length: usize) -> usize {
    key_len(field) + encoded_len_varint(length as u64) + length
}

fn put_string(field: u32, text: &str, out: &mut BytesMut) {
    encode_key(field, WireType::LengthDelimited, out);
    encode_varint(text.len() as u64, out);
    out.extend_from_slice(text.as_bytes());
}

/// A response's bytes in pieces.
#[derive(Debug)]
pub(super) struct Pieces {
    form: ResponseFormat,
    resources: Vec<OfferedResource>,
    next: usize,
    pending: BytesMut,
    /// A large resource, to follow the pending bytes.
    ready: Option<(Bytes, Bytes)>,
}

impl Pieces {
    /// The pending bytes, if they are enough for a piece or the last ones.
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
            let Some(offer) = self.resources.get(self.next) else { return self.piece(true) };
            self.next += 1;
            let (body, trailer) = (self.form.body(offer), self.form.trailer(offer));
            encode_key(RESOURCES, WireType::LengthDelimited, &mut self.pending);
            encode_varint(self.form.message_len(offer) as u64, &mut self.pending);
            if body.len() > PIECE_BYTES / 2 {
                self.ready = Some((body, trailer));
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
    use crate::{Any, Cause};

    fn offer(asked: &str, name: &str, bytes: usize) -> OfferedResource {
        let any = Any { type_url: ResourceType::Route.type_url().into(), value: vec![7; bytes] };
        let resource = Resource::new(name, &any).with_cause(Cause { generation: 3, time_us: 4 });
        OfferedResource { asked: asked.into(), resource: Arc::new(resource) }
    }

    fn push(added: Vec<OfferedResource>) -> Push {
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
        let response = Response::new(WireProtocol::Delta, push(sent), &announcement);
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

        let response = Response::new(WireProtocol::Sotw, push(offers()), &Announcement::default());
        let read = DiscoveryResponse::decode(&*response.encode_to_vec()).unwrap();
        assert_eq!(read.resources.len(), 3);
        assert_eq!(read.resources[1], offers()[1].resource.any());
        assert_eq!((read.control_plane, &*read.nonce), (None, "5"));
    }

    #[test]
    fn small_resources_travel_together() {
        let offers = (0..1000).map(|index| offer(&format!("r/{index}"), &format!("r/{index}"), 100)).collect();
        let response = Response::new(WireProtocol::Delta, push(offers), &Announcement::default());
        let pieces: Vec<Bytes> = response.into_pieces().collect();
        assert!(pieces.len() < 20, "{}", pieces.len());
    }
}
