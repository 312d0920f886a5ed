//! Volumes of a sidecar, as in Istio, and where it mounts them.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::pod::Pod;

/// The directory of the agent.
pub(crate) const STATE: &str = "/etc/istio/proxy";
/// The roots of the mesh.
pub(crate) const ROOTS: &str = "/var/run/secrets/istio/root-cert.pem";
/// The token for the control plane.
pub(crate) const TOKEN: &str = "/var/run/secrets/tokens/istio-token";
/// Lifetime of this token, in seconds; Kubernetes replaces it before.
const TOKEN_LIFETIME: u32 = 43200;
/// Annotations with further volumes and mounts, as JSON by name.
const USER_VOLUMES: &str = "sidecar.istio.io/userVolume";
const USER_MOUNTS: &str = "sidecar.istio.io/userVolumeMount";

/// The volumes.
pub(crate) fn volumes(pod: &Pod<'_>) -> Vec<Value> {
    let field = |name: &str| json!({"path": name, "fieldRef": {"fieldPath": format!("metadata.{name}")}});
    let token = json!({"audience": "istio-ca", "expirationSeconds": TOKEN_LIFETIME, "path": "istio-token"});
    let own = [
        json!({"name": "workload-socket", "emptyDir": {}}),
        json!({"name": "credential-socket", "emptyDir": {}}),
        json!({"name": "workload-certs", "emptyDir": {}}),
        json!({"name": "istio-envoy", "emptyDir": {"medium": "Memory"}}),
        json!({"name": "istio-data", "emptyDir": {}}),
        json!({"name": "istio-podinfo", "downwardAPI": {"items": [field("labels"), field("annotations")]}}),
        json!({"name": "istio-token", "projected": {"sources": [{"serviceAccountToken": token}]}}),
        json!({"name": "istiod-ca-cert", "configMap": {"name": "istio-ca-root-cert"}}),
    ];
    own.into_iter().chain(of_user(pod, USER_VOLUMES)).collect()
}

/// The mounts of the sidecar.
pub(crate) fn mounts(pod: &Pod<'_>) -> Vec<Value> {
    let own = [
        ("workload-socket", "/var/run/secrets/workload-spiffe-uds"),
        ("credential-socket", "/var/run/secrets/credential-uds"),
        ("workload-certs", "/var/run/secrets/workload-spiffe-credentials"),
        ("istiod-ca-cert", "/var/run/secrets/istio"),
        ("istio-data", "/var/lib/istio/data"),
        ("istio-envoy", STATE),
        ("istio-token", "/var/run/secrets/tokens"),
        ("istio-podinfo", "/etc/istio/pod"),
    ];
    let own = own.map(|(name, path)| json!({"name": name, "mountPath": path}));
    own.into_iter().chain(of_user(pod, USER_MOUNTS)).collect()
}

/// Those of an annotation: objects by name. What cannot be read is left out.
fn of_user(pod: &Pod<'_>, annotation: &str) -> Vec<Value> {
    let text = pod.annotations().get(annotation).map_or("{}", |text| text.as_str());
    let by_name: BTreeMap<String, serde_json::Map<String, Value>> = serde_json::from_str(text).unwrap_or_default();
    by_name
        .into_iter()
        .map(|(name, mut fields)| {
            fields.insert("name".to_owned(), name.into());
            Value::Object(fields)
        })
        .collect()
}
