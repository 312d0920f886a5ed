//! Resources written as YAML.

use std::sync::{Arc, LazyLock};

use evenkeel_base::yaml;
use evenkeel_runtime_config::{Builder, Environment, Rejection};
use evenkeel_tls::SecretStore;
use evenkeel_xds::json::read_message;
use evenkeel_xds::{Any, Schema};
use prost::Message;

/// The descriptors, held by all tests: whoever needs them would load them anew otherwise.
static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(Schema::acquire);

/// One resource with its `@type`.
pub fn node_any(file: &str, node: &yaml::Node) -> Any {
    let schema = &SCHEMA;
    let descriptor = schema.message("google.protobuf.Any").expect("Any is in the schema");
    let (message, diagnostics) = read_message(schema, &descriptor, node);
    assert!(!diagnostics.has_errors(), "{file}: {diagnostics:?}");
    Any::decode(&*message.expect("read without errors").encode_to_vec()).expect("the same definitions")
}

/// A resource of this type from block YAML.
pub fn resource(message: &str, text: &str) -> Any {
    let (documents, diagnostics) = yaml::parse(&"inline".into(), text);
    assert!(!diagnostics.has_errors(), "{diagnostics:?}\n{text}");
    let schema = &SCHEMA;
    let descriptor = schema.message(message).unwrap_or_else(|| panic!("{message} is in the schema"));
    let (dynamic, diagnostics) = read_message(schema, &descriptor, &documents[0]);
    assert!(!diagnostics.has_errors(), "{diagnostics:?}\n{text}");
    let value = dynamic.expect("read without errors").encode_to_vec();
    Any { type_url: format!("type.googleapis.com/{message}"), value }
}

pub fn listener(text: &str) -> Any {
    resource("envoy.config.listener.v3.Listener", text)
}

/// The text of a listener on port 80 whose route table of this name comes by RDS, with hosts on demand.
pub fn rds_listener(table: &str) -> String {
    format!(
        "\
name: web
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
filter_chains:
- filters:
  - name: h
    typed_config:
      \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: s
      rds: {{ route_config_name: {table}, config_source: {{ ads: {{}}, resource_api_version: V3 }} }}
      http_filters:
      - {{ name: d, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand }} }}
      - {{ name: r, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }} }}
"
    )
}

pub fn cluster(text: &str) -> Any {
    resource("envoy.config.cluster.v3.Cluster", text)
}

pub fn route(text: &str) -> Any {
    resource("envoy.config.route.v3.RouteConfiguration", text)
}

pub fn endpoints(text: &str) -> Any {
    resource("envoy.config.endpoint.v3.ClusterLoadAssignment", text)
}

pub fn secret(text: &str) -> Any {
    resource("envoy.extensions.transport_sockets.tls.v3.Secret", text)
}

pub fn builder() -> Builder {
    Builder::new(Environment::process(), SecretStore::new())
}

/// Sets a resource by its type.
pub fn set(builder: &mut Builder, resource: &Any) -> Result<(), Rejection> {
    match resource.type_url.rsplit('.').next() {
        Some("Listener") => builder.set_listener(resource),
        Some("Cluster") => builder.set_cluster(resource),
        Some("RouteConfiguration") => builder.set_route(resource),
        Some("ClusterLoadAssignment") => builder.set_endpoints(resource),
        Some("Secret") => builder.set_secret(resource, &evenkeel_runtime_config::Source::Ads),
        other => panic!("{other:?} is no resource"),
    }
}

/// `text` with every line moved right, to be put below a key.
pub fn indent(text: &str, by: usize) -> String {
    text.lines().map(|line| format!("{:by$}{line}\n", "")).collect()
}
