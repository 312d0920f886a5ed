//! Expressions (CEL) over what is known of requests and connections.

mod connection;
mod request;
#[cfg(test)]
mod tests;

use evenkeel_cel::{Attribute, Attributes, Failure, Value};
use evenkeel_runtime_config::expression::Expression;
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::tracing::OwnNode;

use crate::format::Record;
use crate::info::Form;

/// The value of an expression for a request or connection.
pub fn evaluate(expression: &Expression, record: &Record<'_>) -> Result<Value, Failure> {
    expression.compiled.evaluate(&OfRecord { record, node: Node::of(&expression.node) })
}

/// As [`evaluate`], for a proxy with this id and cluster.
pub(crate) fn evaluate_for(
    expression: &evenkeel_cel::Expression,
    [id, cluster]: &[String; 2],
    record: &Record<'_>,
) -> Result<Value, Failure> {
    expression.evaluate(&OfRecord { record, node: Node { id, cluster } })
}

/// Whether an expression is true for a request or connection. One that has no value is not.
pub fn holds(expression: &Expression, record: &Record<'_>) -> bool {
    expression.compiled.holds(&OfRecord { record, node: Node::of(&expression.node) })
}

/// The attributes of a record.
struct OfRecord<'r> {
    record: &'r Record<'r>,
    node: Node<'r>,
}

/// This proxy.
struct Node<'r> {
    id: &'r str,
    cluster: &'r str,
}

impl<'r> Node<'r> {
    fn of(node: &'r OwnNode) -> Self {
        Self { id: &node.id, cluster: &node.cluster }
    }
}

impl Attributes for OfRecord<'_> {
    fn attribute(&self, attribute: Attribute) -> Option<Value> {
        let Attribute { root, field } = attribute;
        let field = field.unwrap_or_default();
        match root {
            "request" => request::of_request(self.record, field),
            "response" => request::of_response(self.record, field),
            "connection" => connection::of_connection(self.record, field),
            "upstream" => connection::of_upstream(self.record, field),
            "source" => connection::of_source(self.record, field),
            "destination" => connection::of_destination(self.record, field),
            "metadata" => Some(self.metadata()),
            "filter_state" => Some(self.filter_state()),
            "node" => self.of_node(field),
            "xds" => self.of_configuration(field),
            "listener_direction" => Some(self.direction()),
            _ => None,
        }
    }
}

impl OfRecord<'_> {
    fn metadata(&self) -> Value {
        let filters = self.record.stream.metadata.iter();
        Value::map(filters.map(|(filter, fields)| (filter, of_fields(fields))))
    }

    /// Objects about workloads have fields; of the others there is the text that logs have.
    fn filter_state(&self) -> Value {
        Value::map(self.record.stream.objects().map(|(key, object)| {
            let value = object.peer().map(|peer| {
                let names = ["workload", "namespace", "service", "revision", "cluster", "app", "version"];
                Value::map(names.into_iter().zip(peer.parts().map(Value::text)))
            });
            let text = || {
                let mut text = Vec::new();
                object.write(Form::Plain, &mut text);
                Value::lossy(&text)
            };
            (key, value.unwrap_or_else(text))
        }))
    }

    fn of_node(&self, field: &str) -> Option<Value> {
        match field {
            "id" => Some(Value::text(self.node.id)),
            "cluster" => Some(Value::text(self.node.cluster)),
            _ => None,
        }
    }

    fn of_configuration(&self, field: &str) -> Option<Value> {
        let stream = self.record.stream;
        match field {
            "node" => {
                Some(Value::map(["id", "cluster"].into_iter().filter_map(|name| Some((name, self.of_node(name)?)))))
            }
            "cluster_name" => stream.cluster_name.as_deref().map(Value::text),
            "route_name" => stream.route_name.as_deref().map(Value::text),
            "filter_chain_name" => self.record.connection.filter_chain_name().map(Value::text),
            "listener_direction" => Some(self.direction()),
            _ => None,
        }
    }

    /// The number in `envoy.config.core.v3.TrafficDirection`.
    fn direction(&self) -> Value {
        let direction = self.record.connection.listener.as_ref().map(|listener| listener.direction);
        Value::Int(match direction.unwrap_or_default() {
            TrafficDirection::Unspecified => 0,
            TrafficDirection::Inbound => 1,
            TrafficDirection::Outbound => 2,
        })
    }
}

fn of_fields(fields: &[(Box<str>, MetadataValue)]) -> Value {
    Value::map(fields.iter().map(|(name, value)| (&**name, of_metadata(value))))
}

/// Recursion depth is bounded by whoever has read the metadata.
fn of_metadata(value: &MetadataValue) -> Value {
    match value {
        MetadataValue::Null => Value::Null,
        MetadataValue::Bool(value) => Value::Bool(*value),
        MetadataValue::Number(bits) => Value::Double(f64::from_bits(*bits)),
        MetadataValue::Text(text) => Value::text(text),
        MetadataValue::List(values) => Value::list(values.iter().map(of_metadata)),
        MetadataValue::Object(fields) => of_fields(fields),
    }
}
