//! The table as field numbers: most resources are valid, and checking that needs only their bytes, no descriptors.
//!
//! Loading the descriptors costs milliseconds and megabytes. They are loaded once to number the table, and again only
//! to name the field of a rejected resource.

use std::sync::LazyLock;

use evenkeel_xds::fields::MAX_DEPTH;
use evenkeel_xds::{Any, Schema, type_url};
use prost::bytes::Buf;
use prost::encoding::{WireType, decode_key, decode_varint};
use prost_reflect::{FieldDescriptor, Kind};

use super::{MessageSupport, Role, Support};
use crate::FastMap;

static TABLE: LazyLock<Table> = LazyLock::new(Table::new);

/// Whether every field that is set is supported. False also for bytes that do not decode.
pub(super) fn only_supported(resource: &Any) -> bool {
    is_supported(type_url::message_name(&resource.type_url), &resource.value, 0)
}

/// Like the above, for a message of this type, `depth` levels below its resource.
pub(crate) fn is_supported(name: &str, bytes: &[u8], depth: usize) -> bool {
    TABLE.by_name.get(name).is_some_and(|&message| TABLE.message(message, bytes, depth))
}

struct Table {
    by_name: FastMap<&'static str, usize>,
    messages: Vec<Message>,
}

struct Message {
    role: Role,
    fields: FastMap<u32, Rule>,
}

#[derive(Debug, Clone, Copy)]
enum Rule {
    /// Nothing below to check.
    Leaf,
    /// A message of the table.
    Message(usize),
    /// An extension.
    Any,
    /// Entries whose values are messages of the table.
    MapOfMessages(usize),
    /// Entries whose values are extensions.
    MapOfAny,
}

impl Table {
    fn new() -> Self {
        let schema = Schema::acquire();
        let by_name = super::messages().enumerate().map(|(index, message)| (message.name, index)).collect();
        let messages = super::messages().map(|message| Message::new(&schema, message, &by_name)).collect();
        Self { by_name, messages }
    }

    fn message(&self, index: usize, mut bytes: &[u8], depth: usize) -> bool {
        let Some(message) = self.messages.get(index).filter(|_| depth < MAX_DEPTH) else { return false };
        while !bytes.is_empty() {
            let Some((number, value)) = field(&mut bytes) else { return false };
            let fine = match (message.fields.get(&number), value) {
                (Some(Rule::Leaf), _) => true,
                (Some(rule), Some(value)) => self.value(*rule, value, depth + 1),
                _ => false,
            };
            if !fine {
                return false;
            }
        }
        true
    }

    fn value(&self, rule: Rule, bytes: &[u8], depth: usize) -> bool {
        match rule {
            Rule::Leaf => true,
            Rule::Message(index) => self.message(index, bytes, depth),
            Rule::Any => self.any(bytes, depth),
            Rule::MapOfMessages(index) => entry_value(bytes).is_some_and(|value| self.message(index, value, depth)),
            Rule::MapOfAny => entry_value(bytes).is_some_and(|value| self.any(value, depth)),
        }
    }

    fn any(&self, bytes: &[u8], depth: usize) -> bool {
        let Some([Some(url), value]) = two_fields(bytes) else { return false };
        let Ok(url) = std::str::from_utf8(url) else { return false };
        let index = self.by_name.get(type_url::message_name(url));
        index.is_some_and(|&index| {
            self.messages[index].role == Role::Extension && self.message(index, value.unwrap_or_default(), depth)
        })
    }
}

impl Message {
    fn new(schema: &Schema, message: &MessageSupport, by_name: &FastMap<&'static str, usize>) -> Self {
        let descriptor = schema.message(message.name);
        let fields = descriptor.iter().flat_map(|descriptor| descriptor.fields());
        let rules = fields.filter_map(|field| {
            let rule = match message.field(field.name())? {
                Support::NoEffect(_) => Rule::Leaf,
                Support::Full | Support::Values(_) => rule(&field, by_name)?,
            };
            Some((field.number(), rule))
        });
        Self { role: message.role, fields: rules.collect() }
    }
}

/// `None` for a message that is not in the table: such a field cannot be checked here.
fn rule(field: &FieldDescriptor, by_name: &FastMap<&'static str, usize>) -> Option<Rule> {
    let (kind, map) = match field.kind() {
        Kind::Message(entry) if field.is_map() => (entry.map_entry_value_field().kind(), true),
        kind => (kind, false),
    };
    let Kind::Message(message) = kind else { return Some(Rule::Leaf) };
    match (message.full_name(), map) {
        ("google.protobuf.Any", false) => Some(Rule::Any),
        ("google.protobuf.Any", true) => Some(Rule::MapOfAny),
        (name, _) if name.starts_with("google.protobuf.") => Some(Rule::Leaf),
        (name, false) => by_name.get(name).copied().map(Rule::Message),
        (name, true) => by_name.get(name).copied().map(Rule::MapOfMessages),
    }
}

/// Splits off one field: its number, and its bytes if it is length-delimited.
pub(crate) fn field<'b>(bytes: &mut &'b [u8]) -> Option<(u32, Option<&'b [u8]>)> {
    let (number, wire_type) = decode_key(bytes).ok()?;
    let skip = match wire_type {
        WireType::Varint => {
            decode_varint(bytes).ok()?;
            return Some((number, None));
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::LengthDelimited => {
            let length = usize::try_from(decode_varint(bytes).ok()?).ok()?;
            let value = bytes.get(..length)?;
            bytes.advance(length);
            return Some((number, Some(value)));
        }
        WireType::StartGroup | WireType::EndGroup => return None,
    };
    if bytes.len() < skip {
        return None;
    }
    bytes.advance(skip);
    Some((number, None))
}

/// The value of a map entry: field 2, or an empty message.
fn entry_value(bytes: &[u8]) -> Option<&[u8]> {
    two_fields(bytes).map(|[_, value]| value.unwrap_or_default())
}

/// The bytes of fields 1 and 2 of a message without other fields; the last occurrence of each.
fn two_fields(mut bytes: &[u8]) -> Option<[Option<&[u8]>; 2]> {
    let (mut first, mut second) = (None, None);
    while !bytes.is_empty() {
        match field(&mut bytes)? {
            (1, value) => first = value,
            (2, value @ Some(_)) => second = value,
            _ => return None,
        }
    }
    Some([first, second])
}

#[cfg(test)]
mod tests {
    use evenkeel_xds::pack;
    use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
    use evenkeel_xds::pb::envoy::extensions::filters::http::router::v3::Router;
    use evenkeel_xds::pb::envoy::extensions::upstreams::http::v3::HttpProtocolOptions;

    use super::*;

    #[test]
    fn supported_resources_need_no_descriptors() {
        let with_options = |any| Cluster {
            name: "c".into(),
            typed_extension_protocol_options: [("k".to_owned(), any)].into(),
            ..Cluster::default()
        };
        let unsupported = Cluster { close_connections_on_host_health_failure: true, ..Cluster::default() };
        let router = Router { respect_expected_rq_timeout: true, ..Router::default() };
        for (resource, expected) in [
            (pack(&Cluster::default()), true),
            (pack(&with_options(pack(&HttpProtocolOptions::default()))), true),
            (pack(&with_options(pack(&router))), false),
            (pack(&with_options(pack(&unsupported))), false),
            (pack(&unsupported), false),
            (Any { type_url: "x/y".into(), value: Vec::new() }, false),
            (Any { value: vec![0x0a, 0xff], ..pack(&Cluster::default()) }, false),
            (Any { value: vec![0x0b], ..pack(&Cluster::default()) }, false),
        ] {
            assert_eq!(only_supported(&resource), expected, "{resource:?}");
        }
    }
}
