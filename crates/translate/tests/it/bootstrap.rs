//! Stock Envoy accepts everything: the resources of each proxy as static resources of one bootstrap file.

use evenkeel_testkit::envoy_validate;
use evenkeel_translate::ClientKind;
use serde_json::{Value, json};

use crate::scenario::{SCENARIOS, Scenario, as_json, translate};

#[test]
fn envoy_accepts_every_resource() {
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        let envoys = scenario.proxies.iter().filter(|view| view.client_kind == ClientKind::Envoy);
        for view in envoys {
            let resources = as_json(&translate(view, &scenario.snapshot));
            let bootstrap = bootstrap(&resources, name == "gateways");
            let text = serde_json::to_string_pretty(&bootstrap).expect("JSON");
            if let Err(said) = envoy_validate(&text) {
                panic!("Envoy refuses the resources of {} in {name}:\n{said}", view.pod);
            }
        }
    }
}

#[test]
fn envoy_is_asked_for_real() {
    let mut resources = as_json(&translate_first("capitals"));
    resources["CDS"][0]["lb_policy"] = "NO_SUCH_POLICY".into();
    let text = bootstrap(&resources, false).to_string();
    let said = envoy_validate(&text).expect_err("an unknown policy");
    assert!(said.contains("NO_SUCH_POLICY"), "{said}");
}

fn translate_first(name: &str) -> evenkeel_xds::ResourceSet {
    let scenario = Scenario::read(name);
    translate(&scenario.proxies[0], &scenario.snapshot)
}

/// Listeners and clusters as they are. Route configurations and endpoints cannot stand in a bootstrap file alone: each
/// gets a listener, and a cluster, of its own.
pub fn bootstrap(resources: &Value, has_certificate_files: bool) -> Value {
    let list = |kind: &str| resources[kind].as_array().cloned().unwrap_or_default().into_iter().map(untyped);
    let mut listeners: Vec<Value> = list("LDS").collect();
    if has_certificate_files {
        // Envoy opens certificate files when it validates; these exist only on the gateway's machine.
        listeners.retain(|l| !l.to_string().contains("/etc/certs/"));
    }
    listeners.extend(list("RDS").enumerate().map(|(i, routes)| route_listener(i, routes)));
    let mut clusters: Vec<Value> = list("CDS").collect();
    clusters.extend(list("EDS").enumerate().map(|(i, endpoints)| endpoint_cluster(i, endpoints)));
    clusters.extend(["xds-grpc", "sds-grpc"].map(grpc_cluster));
    json!({
        "node": { "id": "test", "cluster": "test" },
        "dynamic_resources": { "ads_config": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds-grpc" } }],
        }},
        "static_resources": { "listeners": listeners, "clusters": clusters },
    })
}

fn untyped(mut resource: Value) -> Value {
    if let Value::Object(fields) = &mut resource {
        fields.remove("@type");
    }
    resource
}

fn route_listener(index: usize, mut routes: Value) -> Value {
    routes["validate_clusters"] = false.into();
    json!({
        "name": format!("routes-{index}"),
        "address": { "socket_address": { "address": "127.0.0.1", "port_value": 20000 + index } },
        "filter_chains": [{ "filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                "stat_prefix": "routes",
                "route_config": routes,
                "http_filters": [{
                    "name": "envoy.filters.http.router",
                    "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
                }],
            },
        }]}],
    })
}

fn endpoint_cluster(index: usize, endpoints: Value) -> Value {
    json!({ "name": format!("endpoints-{index}"), "type": "STATIC", "load_assignment": endpoints })
}

fn grpc_cluster(name: &str) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
            "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
            "explicit_http_config": { "http2_protocol_options": {} },
        }},
        "load_assignment": { "cluster_name": name, "endpoints": [{ "lb_endpoints": [{ "endpoint": {
            "address": { "socket_address": { "address": "127.0.0.1", "port_value": 15010 } },
        }}]}]},
    })
}
