//! `TypedStruct`: a message as untyped values under its type URL. Istio's control plane sends some of its filters so.

use prost::Message as _;
use prost_reflect::{DynamicMessage, ReflectMessage, Value};

use crate::schema::Schema;
use crate::{Any, type_url};

/// Whether a message of this name is one.
pub fn is_typed_struct(full_name: &str) -> bool {
    matches!(full_name, "udpa.type.v1.TypedStruct" | "xds.type.v3.TypedStruct")
}

/// Returns the message inside; `None` if its type is not in the schema, or its values are no such message.
pub(crate) fn inside(schema: &Schema, message: &DynamicMessage) -> Option<DynamicMessage> {
    let url = message.get_field_by_name("type_url")?;
    let descriptor = schema.message(type_url::message_name(url.as_str()?))?;
    let Value::Message(fields) = message.get_field_by_name("value")?.into_owned() else { return None };
    let values = serde_json::to_value(&fields).ok()?;
    DynamicMessage::deserialize(descriptor, values).ok()
}

/// Returns the message inside; `None` if it is no `TypedStruct`, or as for [`inside`].
pub fn opened(any: &Any) -> Option<Any> {
    if !is_typed_struct(type_url::message_name(&any.type_url)) {
        return None;
    }
    let schema = Schema::acquire();
    let message = inside(&schema, &schema.decode(any)?.ok()?)?;
    let type_url = format!("{}{}", type_url::PREFIX, message.descriptor().full_name());
    Some(Any { type_url, value: message.encode_to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_become_the_message() {
        let check = |inner: &str, values: &str, expected: Option<&str>| {
            let text = format!("{{\"type_url\": \"type.googleapis.com/{inner}\", \"value\": {values}}}");
            let schema = Schema::acquire();
            let descriptor = schema.message("udpa.type.v1.TypedStruct").unwrap();
            let outer =
                DynamicMessage::deserialize(descriptor, &mut serde_json::Deserializer::from_str(&text)).unwrap();
            let any = Any {
                type_url: "type.googleapis.com/udpa.type.v1.TypedStruct".to_owned(),
                value: outer.encode_to_vec(),
            };
            let found = opened(&any).map(|any| serde_json::to_string(&schema.decode(&any).unwrap().unwrap()).unwrap());
            assert_eq!(found.as_deref(), expected, "{inner} {values}");
        };
        let config = "io.istio.http.peer_metadata.Config";
        check(config, "{}", Some("{}"));
        check(
            config,
            "{\"upstream_propagation\": [{\"istio_headers\": {\"skip_external_clusters\": true}}]}",
            Some("{\"upstreamPropagation\":[{\"istioHeaders\":{\"skipExternalClusters\":true}}]}"),
        );
        check(config, "{\"unknown\": 1}", None);
        check("no.such.Message", "{}", None);
    }
}
