//! Whether a Pod gets a sidecar.

use std::collections::BTreeMap;

use evenkeel_api::annotations::{INJECT, gets_sidecar};
use evenkeel_api::kubernetes::PodSpec;
use evenkeel_base::Spanned;

/// Annotation of a Pod: the templates of Istio's injector that apply to it.
pub const TEMPLATES_ANNOTATION: &str = "inject.istio.io/templates";
/// The injector's template for gateways.
pub const GATEWAY_TEMPLATE: &str = "gateway";
/// The container of a proxy; a Pod with no other is a gateway, as those of Istio's own manifests.
pub const PROXY_CONTAINER: &str = "istio-proxy";

/// Whether a Pod is in the mesh by its own label or annotation, or else by its namespace. A Pod in its machine's network never is.
pub fn is_injected(
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, Spanned<String>>,
    spec: &PodSpec,
    namespace_labels: &BTreeMap<String, String>,
) -> bool {
    let annotation = annotations.get(INJECT).map(|value| value.as_str());
    gets_sidecar(labels, annotation, namespace_labels) && spec.shares_host_network().is_none()
}

/// Whether a Pod is a gateway: it has a proxy, and no other program.
pub fn is_gateway(annotations: &BTreeMap<String, Spanned<String>>, spec: &PodSpec) -> bool {
    let templates = annotations.get(TEMPLATES_ANNOTATION);
    let is_named = templates.is_some_and(|names| names.split(',').any(|name| name.trim() == GATEWAY_TEMPLATE));
    is_named || matches!(spec.containers.as_slice(), [container] if **container.name == *PROXY_CONTAINER)
}
