//! Origins of resources: the user's objects that they come from.

use evenkeel_api::Kind;
use evenkeel_base::Span;
use evenkeel_model::{DestinationRule, Service, Subset};

/// The origin of a service's cluster: the most specific of the objects it comes from.
pub fn of_cluster(service: &Service, rule: Option<&DestinationRule>, subset: Option<&Subset>) -> Span {
    let innermost = subset.map(|subset| &subset.origin).or(rule.map(|rule| &rule.origin));
    innermost.unwrap_or(&service.origin).clone()
}

/// Istio's path of an object, as in `metadata.filter_metadata.istio.config` of clusters and routes.
pub fn config_path(kind: Kind, namespace: &str, name: &str) -> String {
    let (group, version) = (kind.group(), kind.versions().first().copied().unwrap_or("v1"));
    format!("/apis/{group}/{version}/namespaces/{namespace}/{}/{name}", dashed(kind.as_str()))
}

/// The separator between an object's path and the position of a rule in it.
const POSITION: char = '#';

/// The path of a rule's object, with the rule's position if the resources are [traced](crate::traced_resources).
pub fn rule_path(path: String, rule: &Span, is_traced: bool) -> String {
    if is_traced { format!("{path}{POSITION}{rule}") } else { path }
}

/// A traced route's origin: the path of its object, and the position of its rule.
pub fn split_origin(origin: &str) -> (&str, Option<&str>) {
    // Names of objects cannot contain the separator; paths of files can.
    origin.split_once(POSITION).map_or((origin, None), |(path, position)| (path, Some(position)))
}

/// `virtual-service` of `VirtualService`.
fn dashed(kind: &str) -> String {
    let mut text = String::with_capacity(kind.len() + 2);
    let mut last_is_lower = false;
    for letter in kind.chars() {
        if letter.is_ascii_uppercase() && last_is_lower {
            text.push('-');
        }
        last_is_lower = letter.is_ascii_lowercase();
        text.push(letter.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_have_the_paths_that_istio_gives_them() {
        let check = |kind, expected: &str| assert_eq!(config_path(kind, "shop", "a"), expected);
        check(Kind::VirtualService, "/apis/networking.istio.io/v1/namespaces/shop/virtual-service/a");
        check(Kind::DestinationRule, "/apis/networking.istio.io/v1/namespaces/shop/destination-rule/a");
        check(Kind::KubernetesGateway, "/apis/gateway.networking.k8s.io/v1/namespaces/shop/gateway/a");
    }
}
