//! What the gateway is started with.

use std::net::SocketAddr;
use std::path::Path;

use evenkeel_agent::sds::Material;
use rcgen::{CertificateParams, KeyPair, SanType};
use serde_json::{Value, json};

use crate::mesh;

/// The proxy's bootstrap: a gateway of the mesh that gets everything over ADS in plain text, and its certificate from `secrets`.
pub fn bootstrap(xds: SocketAddr, admin: SocketAddr, secrets: &Path) -> Value {
    let socket = |address: SocketAddr| json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}});
    let ads = json!({"ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s"});
    let (namespace, name) = (mesh::NAMESPACE, mesh::GATEWAY);
    json!({
        "node": {
            "id": format!("router~127.0.0.1~{name}-0.{namespace}~{namespace}.svc.cluster.local"),
            "cluster": format!("{name}.{namespace}"),
            "metadata": {
                "NAME": format!("{name}-0"),
                "NAMESPACE": namespace,
                "SERVICE_ACCOUNT": name,
                "WORKLOAD_NAME": name,
                "CLUSTER_ID": "Kubernetes",
                "LABELS": {"istio": name},
            },
        },
        "admin": {"address": socket(admin)},
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{"envoy_grpc": {"cluster_name": "xds-grpc"}}],
            },
            "lds_config": ads.clone(),
            "cds_config": ads,
        },
        "static_resources": {
            "clusters": [
                grpc_cluster("xds-grpc", &socket(xds)),
                grpc_cluster("sds-grpc", &json!({"pipe": {"path": secrets}})),
            ],
        },
    })
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

/// A certificate of its own making: its clusters wait for one, though the backend speaks plain text.
pub fn certificate() -> Result<Material, rcgen::Error> {
    let identity = format!("spiffe://cluster.local/ns/{}/sa/{}", mesh::NAMESPACE, mesh::GATEWAY);
    let key = KeyPair::generate()?;
    let mut params = CertificateParams::default();
    params.subject_alt_names = vec![SanType::URI(identity.try_into()?)];
    let certificate = params.self_signed(&key)?.pem();
    Ok(Material { chain: certificate.clone(), key: key.serialize_pem(), roots: certificate })
}
