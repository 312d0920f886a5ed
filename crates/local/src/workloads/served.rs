//! A path that a Gateway's routes serve, for the address that is printed.

use evenkeel_api::istio::{HttpMatch, VirtualService};
use evenkeel_api::{Object, Resource};

/// The path of the first route at this Gateway that leads to a service and asks for nothing but a path; else `/`.
pub fn path(objects: &[Object], gateway: &Object) -> String {
    let routes = objects.iter().filter_map(|object| match &object.resource {
        Resource::VirtualService(routes) if is_at(routes, object, gateway) => Some(routes),
        _ => None,
    });
    let rules = routes.flat_map(|routes| &routes.spec.http).filter(|rule| !rule.value.route.is_empty());
    let paths = rules.flat_map(|rule| match rule.value.matches.as_slice() {
        [] => vec!["/".to_owned()],
        matches => matches.iter().filter_map(|condition| of_match(&condition.value)).collect(),
    });
    let mut paths: Vec<String> = paths.collect();
    if paths.iter().any(|path| path == "/") || paths.is_empty() { "/".to_owned() } else { paths.swap_remove(0) }
}

/// Whether routes apply at the Gateway, by its name, with or without its namespace.
fn is_at(routes: &VirtualService, object: &Object, gateway: &Object) -> bool {
    routes.spec.gateways.iter().any(|name| match name.value.split_once('/') {
        Some((namespace, name)) => *namespace == *gateway.namespace && *name == *gateway.name,
        None => object.namespace == gateway.namespace && *name.value == *gateway.name,
    })
}

/// The path of a condition that asks for nothing else.
fn of_match(condition: &HttpMatch) -> Option<String> {
    let HttpMatch { uri, scheme, method, authority, headers, query_params, .. } = condition;
    let asks_more =
        scheme.is_some() || method.is_some() || authority.is_some() || !headers.is_empty() || !query_params.is_empty();
    match uri {
        _ if asks_more => None,
        None => Some("/".to_owned()),
        Some(uri) => uri.exact.clone().or_else(|| uri.prefix.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_path_that_a_route_serves_is_found() {
        let check = |http: &str, expected: &str| {
            let text = format!(
                "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\nspec: {{selector: {{istio: ingressgateway}}, \
                 servers: [{{port: {{number: 80, name: http, protocol: HTTP}}, hosts: ['*']}}]}}\n---\n\
                 apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: other, namespace: other}}\nspec: {{hosts: ['*'], gateways: [g], \
                 http: [{{match: [{{uri: {{exact: /other}}}}], route: [{{destination: {{host: web}}}}]}}]}}\n---\n\
                 apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: shop}}\nspec: {{hosts: ['*'], gateways: [g], http: [{http}]}}\n"
            );
            let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
            assert!(!found.has_errors(), "{found}");
            let gateway =
                objects.iter().find(|object| matches!(object.resource, Resource::Gateway(_))).expect("a Gateway");
            assert_eq!(path(&objects, gateway), expected, "{http}");
        };
        let to = "route: [{destination: {host: web}}]";
        check(
            &format!("{{match: [{{uri: {{exact: /productpage}}}}, {{uri: {{prefix: /static}}}}], {to}}}"),
            "/productpage",
        );
        check(&format!("{{match: [{{uri: {{prefix: /api}}}}], {to}}}, {{{to}}}"), "/");
        check(
            &format!(
                "{{match: [{{uri: {{exact: /old}}}}], redirect: {{uri: /new}}}}, {{match: [{{uri: {{prefix: /new}}}}], {to}}}"
            ),
            "/new",
        );
        check(
            &format!(
                "{{match: [{{uri: {{prefix: /x}}, headers: {{a: {{exact: b}}}}}}, {{uri: {{regex: /y.*}}}}], {to}}}"
            ),
            "/",
        );
    }
}
