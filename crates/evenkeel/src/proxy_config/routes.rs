//! `evenkeel proxy-config routes`.

use serde_json::Value as Json;

use super::dump::{list, origin, text};

/// Which route configurations are shown.
#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Only the route configuration of this name, such as 8080.
    #[arg(long)]
    name: Option<String>,
}

/// The heads of the columns.
pub const COLUMNS: [&str; 6] = ["NAME", "VHOST NAME", "DOMAINS", "MATCH", "TO", "VIRTUAL SERVICE"];

/// Domains that are shown of a virtual host; the others are counted.
const DOMAINS: usize = 1;

impl Filter {
    /// Whether a route configuration is shown.
    pub fn keeps(&self, config: &Json) -> bool {
        self.name.as_ref().is_none_or(|name| text(config, "name") == name)
    }
}

/// The rows of a route configuration: one for each route.
pub fn rows(config: &Json) -> Vec<[String; 6]> {
    let (mut rows, name) = (Vec::new(), text(config, "name"));
    for host in list(config, "virtual_hosts") {
        let domains: Vec<&str> = list(host, "domains").filter_map(Json::as_str).collect();
        let more = domains.len().saturating_sub(DOMAINS);
        let mut shown = domains.into_iter().take(DOMAINS).collect::<Vec<_>>().join(", ");
        if more > 0 {
            shown.push_str(&format!(" + {more} more"));
        }
        for route in list(host, "routes") {
            rows.push([
                if name.is_empty() { "-".to_owned() } else { name.to_owned() },
                text(host, "name").to_owned(),
                shown.clone(),
                condition(route),
                action(route),
                origin(route),
            ]);
        }
    }
    rows
}

/// Which requests a route takes.
fn condition(route: &Json) -> String {
    let mut shown = path(route);
    let count = |key: &str| route.get("match").map_or(0, |matched| list(matched, key).count());
    for (number, what) in [(count("headers"), "headers"), (count("query_parameters"), "query parameters")] {
        if number > 0 {
            shown.push_str(&format!(" + {number} {}", if number == 1 { what.trim_end_matches('s') } else { what }));
        }
    }
    shown
}

/// Which paths a route takes.
pub fn path(route: &Json) -> String {
    let Some(matched) = route.get("match") else { return String::new() };
    let at = |pointer: &str| matched.pointer(pointer).and_then(Json::as_str);
    let exact = || at("/path").map(str::to_owned);
    let prefix = || at("/prefix").map(|prefix| format!("{prefix}*"));
    let parts = || at("/path_separated_prefix").map(|prefix| format!("{prefix}, {prefix}/*"));
    let regex = || at("/safe_regex/regex").map(|regex| format!("regex {regex}"));
    let template = || at("/path_match_policy/typed_config/path_template").map(str::to_owned);
    let connect = || matched.get("connect_matcher").map(|_| "CONNECT".to_owned());
    let known = exact().or_else(prefix).or_else(parts).or_else(regex).or_else(template).or_else(connect);
    known.unwrap_or_else(|| "?".to_owned())
}

/// Where a route leads.
fn action(route: &Json) -> String {
    if let Some(forward) = route.get("route") {
        let weighted = forward.pointer("/weighted_clusters/clusters").and_then(Json::as_array);
        let named = |cluster: &Json| {
            let weight = cluster.get("weight").and_then(Json::as_u64).unwrap_or(0);
            format!("{} ({weight})", text(cluster, "name"))
        };
        return match weighted {
            Some(clusters) => clusters.iter().map(named).collect::<Vec<_>>().join(", "),
            None => ["cluster", "cluster_header"].map(|key| text(forward, key)).concat(),
        };
    }
    if route.get("redirect").is_some() {
        return "redirect".to_owned();
    }
    match route.pointer("/direct_response/status").and_then(Json::as_u64) {
        Some(status) => format!("response {status}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn routes_say_what_they_take_where_it_goes_and_who_wrote_them() {
        let config = "/apis/networking.istio.io/v1/namespaces/shop/virtual-service/web";
        let route = |matched: Json, action: Json| {
            let mut route = json!({"match": matched, "metadata": {"filter_metadata": {"istio": {"config": config}}}});
            route.as_object_mut().expect("an object").append(action.clone().as_object_mut().expect("an object"));
            route
        };
        let check = |matched: Json, action: Json, expected: [&str; 2]| {
            let config = json!({"name": "80", "virtual_hosts": [{
                "name": "web:80", "domains": ["web", "web.shop", "10.0.0.1"], "routes": [route(matched, action)],
            }]});
            let [condition, destination] = expected;
            let row = ["80", "web:80", "web + 2 more", condition, destination, "web.shop"];
            assert_eq!(rows(&config), [row.map(str::to_owned)]);
        };
        check(json!({"prefix": "/"}), json!({"route": {"cluster": "a"}}), ["/*", "a"]);
        let headers = json!([{"name": "a"}, {"name": "b"}]);
        check(
            json!({"path": "/a", "headers": headers, "query_parameters": [{}]}),
            json!({"redirect": {}}),
            ["/a + 2 headers + 1 query parameter", "redirect"],
        );
        let weighted = json!({"route": {"weighted_clusters": {"clusters": [{"name": "a", "weight": 1}, {"name": "b", "weight": 3}]}}});
        check(json!({"safe_regex": {"regex": ".*"}}), weighted, ["regex .*", "a (1), b (3)"]);
        check(
            json!({"path_separated_prefix": "/a"}),
            json!({"direct_response": {"status": 503}}),
            ["/a, /a/*", "response 503"],
        );
        check(json!({"connect_matcher": {}}), json!({"route": {"cluster_header": "x-to"}}), ["CONNECT", "x-to"]);
    }
}
