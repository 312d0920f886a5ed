//! Metadata in messages (`core.v3.Metadata`): data that other components attached to a resource.

use std::sync::Arc;

use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};

use crate::dynamic_metadata::DynamicMetadata;
use crate::metadata::{MetadataMatch, MetadataValue};
use crate::peer::DestinationService;

/// The metadata that load balancing uses.
pub(crate) const LB_METADATA: &str = "envoy.lb";

/// `filter_metadata.istio.config`: the user's object that a resource was generated from.
pub(crate) fn origin(metadata: Option<&core::Metadata>) -> Option<Arc<str>> {
    text_of(metadata, "istio", "config").map(Into::into)
}

/// All metadata but the object that a resource was generated from, where the control plane says nothing else.
pub(crate) fn besides_origin(metadata: Option<&core::Metadata>) -> DynamicMetadata {
    let mut all = DynamicMetadata::default();
    let Some(metadata) = metadata else { return all };
    let is_origin = |name: &str, object: &Struct| {
        name == "istio" && object.fields.keys().all(|field| field == "config") && origin(Some(metadata)).is_some()
    };
    let mut named: Vec<_> = metadata.filter_metadata.iter().filter(|(name, object)| !is_origin(name, object)).collect();
    named.sort_by_key(|(name, _)| *name);
    named.into_iter().for_each(|(name, object)| all.merge(name, &fields(object)));
    all
}

/// A text in metadata.
pub(crate) fn text_of<'m>(metadata: Option<&'m core::Metadata>, namespace: &str, field: &str) -> Option<&'m str> {
    match &metadata?.filter_metadata.get(namespace)?.fields.get(field)?.kind {
        Some(Kind::StringValue(text)) => Some(text),
        _ => None,
    }
}

/// The first service of `istio`: `services`.
pub(crate) fn service_of(metadata: Option<&core::Metadata>) -> Option<DestinationService> {
    let Some(Kind::ListValue(services)) = &metadata?.filter_metadata.get("istio")?.fields.get("services")?.kind else {
        return None;
    };
    let Some(Kind::StructValue(service)) = &services.values.first()?.kind else { return None };
    let text = |name: &str| match service.fields.get(name).and_then(|value| value.kind.as_ref()) {
        Some(Kind::StringValue(text)) => text.as_str().into(),
        _ => Box::default(),
    };
    Some(DestinationService { host: text("host"), name: text("name"), namespace: text("namespace") })
}

/// Whether `istio`: `alpn_override` forbids that filters change what TLS offers: a user's own TLS settings apply.
pub(crate) fn keeps_alpn(metadata: Option<&core::Metadata>) -> bool {
    text_of(metadata, "istio", "alpn_override") == Some("false")
}

/// Whether `istio`: `external` is true.
pub(crate) fn is_external(metadata: Option<&core::Metadata>) -> bool {
    let value = metadata.and_then(|metadata| metadata.filter_metadata.get("istio")?.fields.get("external"));
    value.is_some_and(|value| matches!(value.kind, Some(Kind::BoolValue(true))))
}

/// The string fields of a struct, sorted by name.
pub(crate) fn string_fields(fields: &evenkeel_xds::pb::google::protobuf::Struct) -> Vec<(Box<str>, Box<str>)> {
    let mut labels: Vec<(Box<str>, Box<str>)> = fields
        .fields
        .iter()
        .filter_map(|(name, value)| match &value.kind {
            Some(Kind::StringValue(text)) => Some((name.as_str().into(), text.as_str().into())),
            _ => None,
        })
        .collect();
    labels.sort();
    labels
}

/// The route's metadata, overlaid by that of one of its clusters; `None`: any host will do.
pub(crate) fn criteria(of_route: &MetadataMatch, own: Option<&core::Metadata>) -> Option<MetadataMatch> {
    let both = of_route.overlaid(&lb_metadata(own));
    (!both.is_empty()).then_some(both)
}

/// The `envoy.lb` part of metadata.
pub(crate) fn lb_metadata(metadata: Option<&core::Metadata>) -> MetadataMatch {
    let fields = metadata.and_then(|metadata| metadata.filter_metadata.get(LB_METADATA));
    fields.map(metadata_match).unwrap_or_default()
}

/// All fields of an object, sorted by name.
pub(crate) fn fields(fields: &Struct) -> Vec<(Box<str>, MetadataValue)> {
    metadata_match(fields).iter().cloned().collect()
}

pub(super) fn metadata_match(fields: &Struct) -> MetadataMatch {
    MetadataMatch::new(fields.fields.iter().map(|(name, value)| (name.as_str().into(), metadata_value(value))))
}

/// Recursion depth is bounded by the decoder of the containing message.
fn metadata_value(value: &Value) -> MetadataValue {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => MetadataValue::Null,
        Some(Kind::BoolValue(value)) => MetadataValue::Bool(*value),
        Some(Kind::NumberValue(value)) => MetadataValue::Number(value.to_bits()),
        Some(Kind::StringValue(value)) => MetadataValue::Text(value.as_str().into()),
        Some(Kind::ListValue(list)) => MetadataValue::List(list.values.iter().map(metadata_value).collect()),
        Some(Kind::StructValue(fields)) => MetadataValue::Object(self::fields(fields)),
    }
}
