//! Metadata of a resource for clients that measure ages: its cause and its origin, in the delta protocol's
//! `Resource.metadata`. Other clients do not get it, and would ignore it.

use bytes::Bytes;
use prost::Message as _;

use crate::pb::envoy::config::core::v3::Metadata;
use crate::pb::envoy::service::discovery::v3 as discovery;
use crate::pb::google::protobuf::{Struct, Value, value::Kind};

/// Key in `filter_metadata`.
pub const KEY: &str = "evenkeel";
const GENERATION: &str = "generation";
/// Microseconds since 1970. A JSON number holds them exactly until the year 2255.
const TIME_US: &str = "time_us";
const ORIGIN: &str = "origin";

/// The change that caused the present version of a resource. The default means unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cause {
    /// Generation of the snapshot the change made.
    pub generation: u64,
    /// When the change was noticed, in microseconds since 1970; 0 if unknown.
    pub time_us: u64,
}

/// The encoded field, to be appended to an encoded `discovery.v3.Resource`; empty if there is no metadata.
pub(crate) fn encode(cause: Cause, origin: Option<&str>) -> Bytes {
    if cause == Cause::default() && origin.is_none() {
        return Bytes::new();
    }
    let number = |number: u64| Value { kind: Some(Kind::NumberValue(number as f64)) };
    let mut own = Struct::default();
    own.fields.insert(GENERATION.to_owned(), number(cause.generation));
    own.fields.insert(TIME_US.to_owned(), number(cause.time_us));
    if let Some(origin) = origin {
        own.fields.insert(ORIGIN.to_owned(), Value { kind: Some(Kind::StringValue(origin.to_string())) });
    }
    let metadata = Metadata { filter_metadata: [(KEY.to_owned(), own)].into(), ..Default::default() };
    discovery::Resource { metadata: Some(metadata), ..Default::default() }.encode_to_vec().into()
}

/// Reads cause and origin; the defaults if the server sends none.
pub(crate) fn read(metadata: Option<&Metadata>) -> (Cause, Option<&str>) {
    let Some(own) = metadata.and_then(|metadata| metadata.filter_metadata.get(KEY)) else { return Default::default() };
    let number = |name: &str| match own.fields.get(name).and_then(|value| value.kind.as_ref()) {
        // Casting saturates; NaN becomes 0.
        Some(Kind::NumberValue(number)) => *number as u64,
        _ => 0,
    };
    let origin = match own.fields.get(ORIGIN).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(origin)) => Some(origin.as_str()),
        _ => None,
    };
    (Cause { generation: number(GENERATION), time_us: number(TIME_US) }, origin)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Resource;
    use crate::pb::envoy::config::cluster::v3::Cluster;

    #[test]
    fn what_is_written_is_read() {
        let cause = Cause { generation: 7, time_us: 1_795_000_000_123_456 };
        let plain = Resource::from_message("a", &Cluster::default());
        assert!(plain.encoded_metadata().is_empty());
        let resource = plain.with_cause(cause).with_origin("a.yaml:1:2");
        let bytes = [resource.encoded(), resource.encoded_metadata()].concat();
        let read_back = discovery::Resource::decode(&*bytes).expect("a message");
        assert_eq!(read_back.name, "a");
        assert_eq!(read(read_back.metadata.as_ref()), (cause, Some("a.yaml:1:2")));
        assert_eq!(read(None), (Cause::default(), None));
    }
}
