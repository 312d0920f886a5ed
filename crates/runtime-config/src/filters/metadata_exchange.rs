//! Istio's `istio.metadata_exchange`, compiled: over TCP, proxies tell each other which workload they are for, before the first bytes of
//! their applications.

use std::sync::Arc;

use evenkeel_xds::istio::metadata_exchange as message;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::pb::google::protobuf::{Any, Struct, Value};
use prost::Message;

use crate::compile::Cx;
use crate::filter_needs::FilterNeeds;
use crate::peer::{Peer, PeerHeaders};
use crate::support::message::{MessageSupport, extension};

/// Begins what a proxy sends; the length of the rest follows. Both are in network byte order.
const MAGIC: u32 = 0x3D23_0467;
/// The bytes of magic number and length.
pub const PREFIX_BYTES: usize = 8;
/// The type of what follows.
const STRUCT: &str = "type.googleapis.com/google.protobuf.Struct";
/// The field with the workload.
const METADATA: &str = "x-envoy-peer-metadata";
/// The field with the proxy's id.
const ID: &str = "x-envoy-peer-metadata-id";

/// The filter's configuration.
#[derive(Debug, PartialEq, Eq)]
pub struct MetadataExchange {
    /// The ALPN protocol on which both sides have to agree.
    pub protocol: Vec<u8>,
    /// What this proxy sends of its workload.
    pub own: Arc<[u8]>,
}

impl FilterNeeds for MetadataExchange {
    fn why_once(&self) -> Option<&'static str> {
        Some("the second would take the application's bytes for the peer's metadata")
    }
}

impl MetadataExchange {
    /// An exchange over this protocol by the proxy with these headers.
    pub fn new(protocol: &str, own: &PeerHeaders) -> Self {
        let workload = Struct::decode(&*own.metadata).unwrap_or_default();
        let mut all = Struct::default();
        all.fields.insert(METADATA.to_owned(), Value { kind: Some(Kind::StructValue(workload)) });
        if !own.id.is_empty() {
            all.fields.insert(ID.to_owned(), Value { kind: Some(Kind::StringValue(own.id.to_string())) });
        }
        let rest = Any { type_url: STRUCT.to_owned(), value: all.encode_to_vec() }.encode_to_vec();
        let length = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let own = [&MAGIC.to_be_bytes()[..], &length.to_be_bytes(), &rest].concat();
        Self { protocol: protocol.as_bytes().to_vec(), own: own.into() }
    }
}

/// How many bytes follow this prefix; `None`: it does not begin an exchange.
pub fn length_after(prefix: [u8; PREFIX_BYTES]) -> Option<usize> {
    let [m0, m1, m2, m3, l0, l1, l2, l3] = prefix;
    let length = u32::from_be_bytes([l0, l1, l2, l3]);
    (u32::from_be_bytes([m0, m1, m2, m3]) == MAGIC).then(|| usize::try_from(length).unwrap_or(usize::MAX))
}

/// What these bytes after the prefix tell of the peer; outer `None`: they are no such message.
pub fn peer_in(bytes: &[u8]) -> Option<Option<Peer>> {
    let any = Any::decode(bytes).ok()?;
    // A message of another type tells nothing, as in Istio's proxy.
    let Some(all) = (any.type_url == STRUCT).then(|| Struct::decode(&*any.value).ok()).flatten() else {
        return Some(None);
    };
    let workload = match all.fields.get(METADATA).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StructValue(workload)) => workload,
        _ => return Some(None),
    };
    Some(Peer::of_metadata(&workload.encode_to_vec()))
}

pub(crate) fn metadata_exchange(cx: &mut Cx<'_>, config: &message::MetadataExchange) -> Option<MetadataExchange> {
    let protocol = cx.non_empty("protocol", &config.protocol)?;
    let node = &cx.env.tracing.node;
    Some(MetadataExchange::new(protocol, &node.workload.headers(&node.id)))
}

const NO_DISCOVERY: &str = "without Istio's bootstrap extension, Istio's proxies look nothing up either";

/// The supported fields of its message.
#[rustfmt::skip]
pub(crate) const NETWORK_FIELDS: &[MessageSupport] = &[
    MessageSupport {
        no_effect: &[(NO_DISCOVERY, &["enable_discovery"])],
        ..extension("envoy.tcp.metadataexchange.config.MetadataExchange", &["protocol"])
    },
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn what_one_proxy_sends_another_one_reads() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let peer = Peer::new("web-v1", "shop", "Kubernetes", &labels);
        let exchange =
            MetadataExchange::new("istio-peer-exchange", &peer.headers("sidecar~10.0.0.1~web-0.shop~shop.svc"));
        let (prefix, rest) = exchange.own.split_at(PREFIX_BYTES);
        assert_eq!(prefix[..4], [0x3d, 0x23, 0x04, 0x67]);
        assert_eq!(length_after(prefix.try_into().unwrap()), Some(rest.len()));
        assert_eq!(peer_in(rest), Some(Some(peer)));
    }

    #[test]
    fn other_bytes_tell_nothing() {
        let check = |bytes: &[u8], expected: Option<Option<Peer>>| assert_eq!(peer_in(bytes), expected, "{bytes:?}");
        check(b"\xff\xff\xff", None);
        check(b"", Some(None));
        check(&Any { type_url: "type.googleapis.com/x".to_owned(), value: vec![1] }.encode_to_vec(), Some(None));
        check(&Any { type_url: STRUCT.to_owned(), value: vec![0xff] }.encode_to_vec(), Some(None));
        assert_eq!(length_after(*b"GET / HT"), None);
        assert_eq!(length_after([0x3d, 0x23, 0x04, 0x67, 0xff, 0xff, 0xff, 0xff]), Some(0xffff_ffff));
    }
}
