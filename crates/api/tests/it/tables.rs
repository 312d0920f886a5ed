//! The tables of fields themselves.

use std::collections::BTreeSet;

use evenkeel_api::Kind;
use evenkeel_api::decode::{Decode, Field, Schema, Status};
use evenkeel_api::{gateway_api, istio, kubernetes};

/// Calls `visit` with the path and table of every struct below a schema.
pub fn walk(path: &str, schema: &Schema, visit: &mut impl FnMut(&str, &'static [Field])) {
    match schema {
        Schema::Object(fields) => {
            visit(path, fields);
            for field in *fields {
                if let Some(schema) = field.schema {
                    walk(&format!("{path}.{}", field.name), &schema(), visit);
                }
            }
        }
        Schema::List(item) => walk(&format!("{path}[]"), item, visit),
        Schema::Map(value) => walk(&format!("{path}{{}}"), value, visit),
        _ => {}
    }
}

fn schemas() -> Vec<(&'static str, Schema)> {
    vec![
        ("Namespace", kubernetes::Namespace::schema()),
        ("ServiceAccount", kubernetes::ServiceAccount::schema()),
        ("ConfigMap", kubernetes::ConfigMap::schema()),
        ("Secret", kubernetes::Secret::schema()),
        ("Pod", kubernetes::Pod::schema()),
        ("Service", kubernetes::Service::schema()),
        ("EndpointSlice", kubernetes::EndpointSlice::schema()),
        ("Ingress", kubernetes::Ingress::schema()),
        ("IngressClass", kubernetes::IngressClass::schema()),
        ("Deployment", kubernetes::Deployment::schema()),
        ("StatefulSet", kubernetes::StatefulSet::schema()),
        ("DaemonSet", kubernetes::DaemonSet::schema()),
        ("Gateway", istio::Gateway::schema()),
        ("VirtualService", istio::VirtualService::schema()),
        ("DestinationRule", istio::DestinationRule::schema()),
        ("ServiceEntry", istio::ServiceEntry::schema()),
        ("WorkloadEntry", istio::WorkloadEntry::schema()),
        ("WorkloadGroup", istio::WorkloadGroup::schema()),
        ("Sidecar", istio::Sidecar::schema()),
        ("ProxyConfig", istio::ProxyConfigKind::schema()),
        ("Telemetry", istio::Telemetry::schema()),
        ("PeerAuthentication", istio::PeerAuthentication::schema()),
        ("AuthorizationPolicy", istio::AuthorizationPolicy::schema()),
        ("RequestAuthentication", istio::RequestAuthentication::schema()),
        ("GatewayClass", gateway_api::GatewayClass::schema()),
        ("Gateway (gateway.networking.k8s.io)", gateway_api::Gateway::schema()),
        ("HTTPRoute", gateway_api::HttpRoute::schema()),
        ("GRPCRoute", gateway_api::GrpcRoute::schema()),
        ("TLSRoute", gateway_api::TlsRoute::schema()),
        ("TCPRoute", gateway_api::TcpRoute::schema()),
        ("UDPRoute", gateway_api::UdpRoute::schema()),
        ("ReferenceGrant", gateway_api::ReferenceGrant::schema()),
        ("ListenerSet", gateway_api::ListenerSet::schema()),
        ("BackendTLSPolicy", gateway_api::BackendTlsPolicy::schema()),
    ]
}

#[test]
fn every_kind_is_checked_here() {
    let names: Vec<&str> = schemas().into_iter().map(|(name, _)| name.split(' ').next().unwrap_or(name)).collect();
    assert_eq!(names, Kind::ALL.iter().map(|k| k.as_str()).collect::<Vec<_>>());
}

#[test]
fn a_kind_is_a_group_and_a_name() {
    let keys: BTreeSet<(&str, &str)> = Kind::ALL.iter().map(|kind| (kind.group(), kind.as_str())).collect();
    assert_eq!(keys.len(), Kind::ALL.len());
    let gateways: Vec<&str> = Kind::ALL.iter().filter(|k| k.as_str() == "Gateway").map(|k| k.group()).collect();
    assert_eq!(gateways, ["networking.istio.io", "gateway.networking.k8s.io"]);
}

#[test]
fn no_field_is_listed_twice() {
    for (kind, schema) in schemas() {
        walk(kind, &schema, &mut |path, fields| {
            let names: BTreeSet<&str> = fields.iter().map(|f| f.name).collect();
            assert_eq!(names.len(), fields.len(), "{path}");
        });
    }
}

#[test]
fn required_fields_work() {
    for (kind, schema) in schemas() {
        walk(kind, &schema, &mut |path, fields| {
            for field in fields.iter().filter(|f| (f.required)()) {
                assert_eq!(field.status, Status::Works, "{path}.{}", field.name);
            }
        });
    }
}

/// Istio's own schemas name these fields; a new one in a table's neighbourhood must be added to the table.
#[test]
fn istio_kinds_know_all_fields_of_their_schema() {
    let known: BTreeSet<String> = {
        let mut paths = BTreeSet::new();
        for (kind, schema) in schemas() {
            walk(kind, &schema, &mut |path, fields| {
                paths.extend(fields.iter().map(|f| format!("{path}.{}", f.name)));
            });
        }
        paths
    };
    let is_known = |path: &str| known.contains(path) || is_below_unsupported(&known, path);
    let missing: Vec<&str> = include_str!("istio_fields.txt").lines().filter(|path| !is_known(path)).collect();
    assert!(missing.is_empty(), "not in any table: {missing:#?}");
}

/// Whether `path` lies below a field that is listed without fields of its own: one that is not supported.
pub fn is_below_unsupported(known: &BTreeSet<String>, path: &str) -> bool {
    let ancestors = path.match_indices('.').map(|(i, _)| &path[..i]);
    ancestors.skip(1).map(|a| a.trim_end_matches("[]").trim_end_matches("{}")).any(|ancestor| {
        let has_fields = |k: &String| k.strip_prefix(ancestor).is_some_and(|rest| rest.starts_with(['.', '[', '{']));
        known.contains(ancestor) && !known.iter().any(has_fields)
    })
}
