//! How resources say which object of the user caused them.

use evenkeel_base::Span;
use evenkeel_model::{DestinationRule, Service, Subset};

/// Where the user asked for a cluster of a service: the innermost of the objects it is made of.
pub fn of_cluster(service: &Service, rule: Option<&DestinationRule>, subset: Option<&Subset>) -> Span {
    let innermost = subset.map(|subset| &subset.origin).or(rule.map(|rule| &rule.origin));
    innermost.unwrap_or(&service.origin).clone()
}

/// Istio's path of an object, as in `metadata.filter_metadata.istio.config` of clusters and routes.
pub fn config_path(kind: &str, namespace: &str, name: &str) -> String {
    format!("/apis/networking.istio.io/v1/namespaces/{namespace}/{kind}/{name}")
}
