//! The bootstrap configuration and certificate of the proxy.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_agent::sds::PemBundle;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};

use super::ports::{Ports, ProxyKind};
use crate::mesh;
use crate::proxy::Scope;

/// The proxy's bootstrap: all resources come over plaintext ADS, and the certificate comes from `secrets`.
pub fn bootstrap(kind: ProxyKind, scope: Scope, xds: SocketAddr, ports: &Ports, secrets: &Path) -> Value {
    let mut dynamic = json!({
        "ads_config": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "set_node_on_first_message_only": true,
            "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
        },
        "cds_config": ads(),
    });
    let listeners = match kind {
        ProxyKind::Gateway => {
            dynamic["lds_config"] = ads();
            json!([])
        }
        ProxyKind::Sidecar => json!([outbound(scope, ports.http)]),
    };
    json!({
        "node": node(kind, scope),
        "admin": {"address": socket(ports.admin)},
        "dynamic_resources": dynamic,
        "static_resources": {
            "listeners": listeners,
            "clusters": [
                grpc_cluster("xds-grpc", &socket(xds)),
                grpc_cluster("sds-grpc", &json!({"pipe": {"path": secrets}})),
            ],
        },
    })
}

fn node(kind: ProxyKind, scope: Scope) -> Value {
    let namespace = mesh::NAMESPACE;
    let (node_type, name, labels) = match kind {
        ProxyKind::Gateway => ("router", mesh::GATEWAY, json!({"istio": mesh::GATEWAY})),
        ProxyKind::Sidecar => ("sidecar", "caller", json!({"app": "caller"})),
    };
    let mut metadata = json!({
        "NAME": format!("{name}-0"),
        "NAMESPACE": namespace,
        "SERVICE_ACCOUNT": name,
        "WORKLOAD_NAME": name,
        "CLUSTER_ID": "Kubernetes",
        "LABELS": labels,
    });
    let wanted = match (scope, kind) {
        (Scope::Envoy, _) => None,
        (Scope::Learned, ProxyKind::Sidecar) => Some("learned"),
        (Scope::Full, _) | (Scope::Learned, ProxyKind::Gateway) => Some("full"),
    };
    if let Some(wanted) = wanted {
        metadata["EVENKEEL"] = json!({"SCOPE": wanted});
    }
    json!({
        "id": format!("{node_type}~127.0.0.1~{name}-0.{namespace}~{namespace}.svc.cluster.local"),
        "cluster": format!("{name}.{namespace}"),
        "metadata": metadata,
    })
}

/// The sidecar's listener for the HTTP port of all services. It is bound to an address that clients reach without
/// capture rules.
fn outbound(scope: Scope, address: SocketAddr) -> Value {
    let extension = |kind: &str| json!({"@type": format!("type.googleapis.com/envoy.extensions.filters.http.{kind}")});
    let mut filters = vec![json!({"name": "envoy.filters.http.router", "typed_config": extension("router.v3.Router")})];
    if scope == Scope::Learned {
        let on_demand =
            json!({"name": "envoy.filters.http.on_demand", "typed_config": extension("on_demand.v3.OnDemand")});
        filters.insert(0, on_demand);
    }
    let manager =
        "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
    json!({
        "name": "outbound",
        "address": socket(address),
        "filter_chains": [{"filters": [{
            "name": "envoy.filters.network.http_connection_manager",
            "typed_config": {
                "@type": manager,
                "stat_prefix": "outbound",
                "rds": {"route_config_name": mesh::SERVICE_PORT.to_string(), "config_source": ads()},
                "http_filters": filters,
            },
        }]}],
    })
}

fn ads() -> Value {
    json!({"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"})
}

fn socket(address: SocketAddr) -> Value {
    json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
}

fn grpc_cluster(name: &str, address: &Value) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": {
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "explicit_http_config": {"http2_protocol_options": {}},
            },
        },
        "load_assignment": {
            "cluster_name": name,
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    })
}

/// Creates a self-signed certificate. The clusters wait for a certificate, although the backend uses plaintext.
pub fn certificate() -> Result<PemBundle, rcgen::Error> {
    let identity = format!("spiffe://cluster.local/ns/{}/sa/{}", mesh::NAMESPACE, mesh::GATEWAY);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
    let certificate = params.self_signed(&key)?.pem();
    let (chain, roots) = (certificate.clone(), certificate.clone());
    let (key, control_plane_roots) = (key.serialize_pem(), certificate);
    Ok(PemBundle { chain, key, roots, domains: Vec::new(), lists: None, control_plane_roots })
}
