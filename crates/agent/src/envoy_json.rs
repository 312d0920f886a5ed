//! Parts of Envoy's configuration, as JSON, that occur in several places of the bootstrap.

use serde_json::{Value, json};

/// Secrets come from the agent by SDS.
pub(crate) fn sds() -> Value {
    json!({
        "resource_api_version": "V3",
        "initial_fetch_timeout": "0s",
        "api_config_source": {
            "api_type": "GRPC",
            "transport_api_version": "V3",
            "set_node_on_first_message_only": true,
            "grpc_services": [{ "envoy_grpc": { "cluster_name": "sds-grpc" } }],
        },
    })
}

/// The cluster speaks HTTP/2.
pub(crate) fn http2() -> Value {
    json!({
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        },
    })
}

/// A cluster's only endpoint.
pub(crate) fn endpoint(cluster: &str, address: Value) -> Value {
    json!({
        "cluster_name": cluster,
        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": address } }] }],
    })
}
