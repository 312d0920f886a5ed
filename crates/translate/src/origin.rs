//! How resources say which object of the user caused them.

/// Istio's path of an object, as in `metadata.filter_metadata.istio.config` of clusters and routes.
pub fn config_path(kind: &str, namespace: &str, name: &str) -> String {
    format!("/apis/networking.istio.io/v1/namespaces/{namespace}/{kind}/{name}")
}
