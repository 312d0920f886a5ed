//! `layered_runtime` of the bootstrap, and fields with a `runtime_key`.

use std::collections::BTreeMap;

use evenkeel_base::runtime_key::{RUNTIME_KEYS, RuntimeKey};
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as bootstrap;
use evenkeel_xds::pb::envoy::config::bootstrap::v3::runtime_layer::LayerSpecifier;
use evenkeel_xds::pb::envoy::config::core::v3 as core;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use evenkeel_xds::pb::google::protobuf::{Struct, Value};

use super::Cx;
use crate::fraction::Fraction;
use crate::runtime::{Runtime, RuntimeValue};

/// Beginnings of keys that are accepted without effect, with the reason.
const NO_EFFECT: &[(&str, &str)] = &[
    ("re2.max_program_size.", "regular expressions have a fixed size limit here"),
    ("envoy.reloadable_features.", "it switches parts of another implementation"),
    ("envoy.restart_features.", "it switches parts of another implementation"),
    ("envoy.deprecated_features:", "it switches parts of another implementation"),
];

/// Beginnings of keys that limit what the proxy takes on. One that the proxy does not know would be a limit that does not
/// exist, so the bootstrap is rejected.
const LIMITS: [&str; 3] = ["overload.", "envoy.resource_limits.", "evenkeel.resource_limits."];

/// The values of the layers, except for [`RuntimeKey`]s. Layers whose values are not in the bootstrap give warnings.
pub(crate) fn layers(cx: &mut Cx<'_>, runtime: &bootstrap::LayeredRuntime) -> Runtime {
    let mut values = Runtime::default();
    cx.each("layers", &runtime.layers, |cx, layer| match layer.layer_specifier.as_ref()? {
        LayerSpecifier::StaticLayer(layer) => cx.at("static_layer", |cx| static_layer(cx, layer, &mut values)),
        LayerSpecifier::DiskLayer(_) => cx.warn_at("disk_layer", "runtime values are not read from files"),
        LayerSpecifier::RtdsLayer(_) => cx.warn_at("rtds_layer", "runtime values are not requested from a server"),
        // It is empty until it is written to, which this proxy's admin interface does not offer.
        LayerSpecifier::AdminLayer(_) => None::<()>,
    });
    values
}

fn static_layer(cx: &mut Cx<'_>, layer: &Struct, values: &mut Runtime) -> Option<()> {
    for (key, value) in flat(layer) {
        let has_no_effect = NO_EFFECT.iter().any(|(beginning, _)| key.starts_with(beginning));
        if has_no_effect || RuntimeKey::parse(&key).is_some() {
            continue;
        }
        cx.element(format!("{key:?}"), |cx| {
            if LIMITS.iter().any(|beginning| key.starts_with(beginning)) {
                let known = RUNTIME_KEYS.join(", ");
                return cx.fail::<()>(format!("the runtime key is not supported; these are: {known}"));
            }
            match runtime_value(value) {
                Some(value) => {
                    values.set(&key, value);
                    cx.warn("only fields that have it as their `runtime_key` read it")
                }
                None => cx.warn("is neither a number, a flag nor a fraction; it has no effect"),
            }
        });
    }
    Some(())
}

/// The values of a layer, sorted by key. As in Envoy, nested maps are keys joined by dots, except for fractions.
pub(crate) fn flat(layer: &Struct) -> Vec<(String, &Value)> {
    let mut flat = Vec::new();
    flatten("", &layer.fields, &mut flat);
    flat.sort_by(|a, b| a.0.cmp(&b.0));
    flat
}

fn flatten<'m>(prefix: &str, fields: &'m BTreeMap<String, Value>, flat: &mut Vec<(String, &'m Value)>) {
    for (key, value) in fields {
        let key = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
        match &value.kind {
            Some(Kind::StructValue(nested)) if !is_fraction(nested) => flatten(&key, &nested.fields, flat),
            _ => flat.push((key, value)),
        }
    }
}

fn is_fraction(value: &Struct) -> bool {
    value.fields.contains_key("numerator") || value.fields.contains_key("denominator")
}

/// Flags and numbers may be written as text, as in Envoy's runtime.
fn runtime_value(value: &Value) -> Option<RuntimeValue> {
    match value.kind.as_ref()? {
        Kind::BoolValue(flag) => Some(RuntimeValue::Flag(*flag)),
        Kind::NumberValue(number) => Some(RuntimeValue::Number(*number)),
        Kind::StringValue(text) => {
            let flag = text.to_ascii_lowercase().parse().ok().map(RuntimeValue::Flag);
            flag.or_else(|| text.parse().ok().map(RuntimeValue::Number))
        }
        Kind::StructValue(fraction) => fractional_percent(fraction).map(RuntimeValue::Fraction),
        Kind::NullValue(_) | Kind::ListValue(_) => None,
    }
}

fn fractional_percent(value: &Struct) -> Option<Fraction> {
    let kind = |name: &str| value.fields.get(name).and_then(|value| value.kind.as_ref());
    let numerator = match kind("numerator") {
        None => 0,
        Some(Kind::NumberValue(number)) if *number >= 0.0 && number.fract() == 0.0 => *number as u32,
        Some(_) => return None,
    };
    let denominator = match kind("denominator") {
        None => 100,
        Some(Kind::StringValue(name)) => match name.as_str() {
            "HUNDRED" => 100,
            "TEN_THOUSAND" => 10_000,
            "MILLION" => 1_000_000,
            _ => return None,
        },
        Some(_) => return None,
    };
    Some(Fraction { numerator, denominator })
}

/// The value in effect of a flag.
pub(crate) fn flag(cx: &Cx<'_>, field: Option<&core::RuntimeFeatureFlag>, absent: bool) -> bool {
    let Some(field) = field else { return absent };
    let default = field.default_value.as_ref().map_or(absent, |value| value.value);
    cx.runtime.flag(&field.runtime_key).unwrap_or(default)
}

/// The value in effect of a number.
pub(crate) fn double(cx: &Cx<'_>, field: Option<&core::RuntimeDouble>, absent: f64) -> f64 {
    field.map_or(absent, |field| cx.runtime.number(&field.runtime_key).unwrap_or(field.default_value))
}

/// The value in effect of a whole number.
pub(crate) fn whole_number(cx: &Cx<'_>, field: &core::RuntimeUInt32) -> u32 {
    cx.runtime.whole_number(&field.runtime_key).unwrap_or(field.default_value)
}
