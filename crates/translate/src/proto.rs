//! Small helpers to write protobuf messages, and mirrors of messages whose maps need a stable order.
//!
//! A resource's version is a hash of its bytes, so equal resources must have equal bytes. The generated types keep maps in
//! `HashMap`s (except `typed_per_filter_config`), whose order changes from one instance to the next. This crate therefore
//! gives generated maps at most one entry, and uses a mirror with a `BTreeMap` where more are needed.

use std::collections::BTreeMap;
use std::time::Duration;

use prost::{Message, Name};

use crate::pb::config::listener::{Filter, filter::ConfigType};
use crate::pb::google::protobuf as wkt;
use crate::pb::google::protobuf::Any;
use crate::pb::{config, core, matcher};

/// The URL prefix of every packed type.
const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

/// Packs a message.
pub fn any<M: Message + Name>(message: &M) -> wkt::Any {
    any_named(&M::full_name(), message)
}

/// Packs a message under the type name `full_name`.
pub fn any_named<M: Message>(full_name: &str, message: &M) -> wkt::Any {
    wkt::Any { type_url: format!("{TYPE_URL_PREFIX}{full_name}"), value: message.encode_to_vec() }
}

/// A duration, limited to protobuf's range.
pub fn duration(value: Duration) -> wkt::Duration {
    let seconds = i64::try_from(value.as_secs()).unwrap_or(i64::MAX);
    let nanos = i32::try_from(value.subsec_nanos()).unwrap_or(0);
    wkt::Duration { seconds, nanos }
}

/// A wrapped number.
pub fn u32_value(value: u32) -> wkt::UInt32Value {
    wkt::UInt32Value { value }
}

/// A wrapped truth value.
pub fn bool_value(value: bool) -> wkt::BoolValue {
    wkt::BoolValue { value }
}

/// A struct with one string field.
pub fn one_field(name: &str, value: &str) -> wkt::Struct {
    let value = wkt::Value { kind: Some(wkt::value::Kind::StringValue(value.to_owned())) };
    wkt::Struct { fields: [(name.to_owned(), value)].into() }
}

/// A text as a value.
pub fn text_value(text: &str) -> wkt::Value {
    wkt::Value { kind: Some(wkt::value::Kind::StringValue(text.to_owned())) }
}

/// A true or false value in metadata.
pub fn flag_value(flag: bool) -> wkt::Value {
    wkt::Value { kind: Some(wkt::value::Kind::BoolValue(flag)) }
}

/// A list of one struct with these string fields.
pub fn list_of_one(fields: &[(&str, &str)]) -> wkt::Value {
    let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), text_value(value))).collect();
    let value = wkt::Value { kind: Some(wkt::value::Kind::StructValue(wkt::Struct { fields })) };
    wkt::Value { kind: Some(wkt::value::Kind::ListValue(wkt::ListValue { values: vec![value] })) }
}

/// `filter_metadata` with one string field under one namespace.
pub fn metadata(namespace: &str, name: &str, value: &str) -> core::Metadata {
    core::Metadata { filter_metadata: [(namespace.to_owned(), one_field(name, value))].into(), ..Default::default() }
}

/// A TCP address.
pub fn socket_address(address: &str, port: u32) -> core::SocketAddress {
    core::SocketAddress {
        address: address.to_owned(),
        port_specifier: Some(core::socket_address::PortSpecifier::PortValue(port)),
        ..Default::default()
    }
}

/// A TCP address as an `Address`.
pub fn address(host: &str, port: u32) -> core::Address {
    core::Address { address: Some(core::address::Address::SocketAddress(socket_address(host, port))) }
}

/// A UDP address as an `Address`.
pub fn udp_address(host: &str, port: u32) -> core::Address {
    let protocol = core::socket_address::Protocol::Udp as i32;
    let address = core::SocketAddress { protocol, ..socket_address(host, port) };
    core::Address { address: Some(core::address::Address::SocketAddress(address)) }
}

/// "This resource comes over ADS", with Istio's unlimited first wait.
pub fn ads() -> core::ConfigSource {
    use core::config_source::ConfigSourceSpecifier;
    core::ConfigSource {
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(core::AggregatedConfigSource {})),
        initial_fetch_timeout: Some(duration(Duration::ZERO)),
        resource_api_version: core::ApiVersion::V3 as i32,
        ..Default::default()
    }
}

/// A string matcher.
pub fn string_matcher(pattern: matcher::string_matcher::MatchPattern) -> matcher::StringMatcher {
    matcher::StringMatcher { match_pattern: Some(pattern), ignore_case: false }
}

/// A regular expression of RE2's syntax.
pub fn regex(pattern: &str) -> matcher::RegexMatcher {
    matcher::RegexMatcher { regex: pattern.to_owned(), ..Default::default() }
}

/// `envoy.config.rbac.v3.RBAC` with its policies in the order of their names.
#[derive(Clone, PartialEq, Message)]
pub struct RbacRules {
    /// `RBAC.Action`.
    #[prost(enumeration = "config::rbac::rbac::Action", tag = "1")]
    pub action: i32,
    /// Policies.
    #[prost(btree_map = "string, message", tag = "2")]
    pub policies: BTreeMap<String, config::rbac::Policy>,
}

/// `envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication` with its providers in the order of their names.
#[derive(Clone, PartialEq, prost::Message)]
pub struct JwtAuthentication {
    /// The providers.
    #[prost(btree_map = "string, message", tag = "1")]
    pub providers: BTreeMap<String, crate::pb::jwt_authn::JwtProvider>,
    /// The requirements of requests.
    #[prost(message, repeated, tag = "2")]
    pub rules: Vec<crate::pb::jwt_authn::RequirementRule>,
    /// Preflight requests pass.
    #[prost(bool, tag = "4")]
    pub bypass_cors_preflight: bool,
}

/// `envoy.extensions.filters.http.rbac.v3.RBAC` over [`RbacRules`].
#[derive(Clone, PartialEq, Message)]
pub struct HttpRbac {
    /// Enforced rules.
    #[prost(message, optional, tag = "1")]
    pub rules: Option<RbacRules>,
    /// Rules that are only logged and counted.
    #[prost(message, optional, tag = "2")]
    pub shadow_rules: Option<RbacRules>,
    /// Statistics prefix of these.
    #[prost(string, tag = "3")]
    pub shadow_rules_stat_prefix: String,
}

/// `envoy.extensions.filters.network.rbac.v3.RBAC` over [`RbacRules`].
#[derive(Clone, PartialEq, Message)]
pub struct NetworkRbac {
    /// Enforced rules.
    #[prost(message, optional, tag = "1")]
    pub rules: Option<RbacRules>,
    /// Rules that are only logged and counted.
    #[prost(message, optional, tag = "2")]
    pub shadow_rules: Option<RbacRules>,
    /// Statistics prefix; required.
    #[prost(string, tag = "3")]
    pub stat_prefix: String,
    /// Statistics prefix of rules that are only logged and counted.
    #[prost(string, tag = "5")]
    pub shadow_rules_stat_prefix: String,
}

/// `google.protobuf.Struct` with its fields in order.
#[derive(Clone, PartialEq, Message)]
pub struct OrderedStruct {
    /// Fields.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, OrderedValue>,
}

/// `google.protobuf.Value` with the fields of structs in order.
#[derive(Clone, PartialEq, Message)]
pub struct OrderedValue {
    /// Its kind.
    #[prost(oneof = "OrderedKind", tags = "3, 5, 6")]
    pub kind: Option<OrderedKind>,
}

/// The kind of an [`OrderedValue`].
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum OrderedKind {
    /// Text.
    #[prost(string, tag = "3")]
    Text(String),
    /// A struct.
    #[prost(message, tag = "5")]
    Struct(OrderedStruct),
    /// A list.
    #[prost(message, tag = "6")]
    List(OrderedList),
}

/// `google.protobuf.ListValue`.
#[derive(Clone, PartialEq, Message)]
pub struct OrderedList {
    /// Its values.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<OrderedValue>,
}

impl OrderedValue {
    /// Text.
    pub fn text(text: &str) -> Self {
        Self { kind: Some(OrderedKind::Text(text.to_owned())) }
    }

    /// A JSON value as a log format. Numbers and truth values become text, the only constants that our proxy logs. The
    /// parser limits the depth.
    pub fn of(json: &serde_json::Value) -> Self {
        use serde_json::Value as Json;
        let kind = match json {
            Json::String(text) => OrderedKind::Text(text.clone()),
            Json::Null | Json::Bool(_) | Json::Number(_) => OrderedKind::Text(json.to_string()),
            Json::Array(items) => OrderedKind::List(OrderedList { values: items.iter().map(Self::of).collect() }),
            Json::Object(fields) => {
                let fields = fields.iter().map(|(name, value)| (name.clone(), Self::of(value))).collect();
                OrderedKind::Struct(OrderedStruct { fields })
            }
        };
        Self { kind: Some(kind) }
    }
}

pub use evenkeel_base::re2::quote;

/// A network filter.
pub fn network_filter(name: &str, config: Any) -> Filter {
    Filter { name: name.to_owned(), config_type: Some(ConfigType::TypedConfig(config)) }
}
