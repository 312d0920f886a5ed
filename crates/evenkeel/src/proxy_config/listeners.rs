//! `evenkeel proxy-config listeners`.

use std::collections::BTreeSet;

use serde_json::Value as Json;

use super::dump::{address, list, text};
use super::routes::path;

/// Which listeners are shown; each condition that is set must hold.
#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Only listeners at this address.
    #[arg(long)]
    address: Option<String>,

    /// Only listeners of this port.
    #[arg(long)]
    port: Option<u16>,

    /// Only listeners with a filter chain of this kind: HTTP, TCP.
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<String>,
}

/// The heads of the columns.
pub const COLUMNS: [&str; 4] = ["ADDRESSES", "PORT", "MATCH", "DESTINATION"];

impl Filter {
    /// Whether a listener is shown.
    pub fn keeps(&self, listener: &Json) -> bool {
        let (own, port) = listener.get("address").map(address).unwrap_or_default();
        let has_kind = |kind: &String| chains(listener).iter().any(|chain| kind_of(chain).eq_ignore_ascii_case(kind));
        self.address.as_ref().is_none_or(|wanted| *wanted == own)
            && self.port.is_none_or(|wanted| port == Some(wanted))
            && self.kind.as_ref().is_none_or(has_kind)
    }
}

/// The rows of a listener: one for each filter chain.
pub fn rows(listener: &Json) -> Vec<[String; 4]> {
    let (own, port) = listener.get("address").map(address).unwrap_or_default();
    let further = list(listener, "additional_addresses").filter_map(|more| more.get("address").map(address));
    let addresses: Vec<String> = std::iter::once(own).chain(further.map(|(address, _)| address)).collect();
    let port = port.map_or_else(|| "-".to_owned(), |port| port.to_string());
    let row = |chain: &Json| [addresses.join(","), port.clone(), condition(chain), destination(chain)];
    chains(listener).into_iter().map(row).collect()
}

/// The chains, the default one last.
fn chains(listener: &Json) -> Vec<&Json> {
    list(listener, "filter_chains").chain(listener.get("default_filter_chain")).collect()
}

/// Which connections a chain takes.
fn condition(chain: &Json) -> String {
    let Some(matched) = chain.get("filter_chain_match") else { return "ALL".to_owned() };
    let texts = |key: &str| list(matched, key).filter_map(Json::as_str).collect::<Vec<_>>().join(",");
    let mut parts = Vec::new();
    for (name, value) in [
        ("SNI", texts("server_names")),
        ("Trans", text(matched, "transport_protocol").to_owned()),
        ("App", texts("application_protocols")),
        ("Addr", ranges(matched, "prefix_ranges")),
        ("Source", ranges(matched, "source_prefix_ranges")),
        ("Port", matched.get("destination_port").map(Json::to_string).unwrap_or_default()),
    ] {
        if !value.is_empty() {
            parts.push(format!("{name}: {value}"));
        }
    }
    if parts.is_empty() { "ALL".to_owned() } else { parts.join("; ") }
}

fn ranges(matched: &Json, key: &str) -> String {
    let range = |range: &Json| {
        let prefix = text(range, "address_prefix");
        let length = range.get("prefix_len").and_then(Json::as_u64).unwrap_or(0);
        let is_one = length == if prefix.contains(':') { 128 } else { 32 };
        if is_one { prefix.to_owned() } else { format!("{prefix}/{length}") }
    };
    list(matched, key).map(range).collect::<Vec<_>>().join(",")
}

/// What ends a chain.
fn terminal(chain: &Json) -> Option<&Json> {
    list(chain, "filters").last()?.get("typed_config")
}

fn kind_of(chain: &Json) -> &'static str {
    let kind = terminal(chain).map(|config| text(config, "@type")).unwrap_or_default();
    match kind.rsplit('.').next() {
        Some("HttpConnectionManager") => "HTTP",
        Some("TcpProxy") => "TCP",
        _ => "OTHER",
    }
}

/// Where a chain sends its traffic.
fn destination(chain: &Json) -> String {
    let Some(config) = terminal(chain) else { return "no filter".to_owned() };
    match kind_of(chain) {
        "HTTP" => routes(config),
        "TCP" => {
            let weighted = config.pointer("/weighted_clusters/clusters").and_then(Json::as_array);
            let names = weighted.into_iter().flatten().map(|cluster| {
                format!(
                    "{} ({})",
                    text(cluster, "name"),
                    cluster.get("weight").map(Json::to_string).unwrap_or_default()
                )
            });
            let names: Vec<String> = names.collect();
            if names.is_empty() {
                format!("Cluster: {}", text(config, "cluster"))
            } else {
                format!("Clusters: {}", names.join(", "))
            }
        }
        _ => {
            format!("Filter: {}", list(chain, "filters").last().map(|filter| text(filter, "name")).unwrap_or_default())
        }
    }
}

/// The route configuration of a connection manager; one in place with a single route by its cluster.
fn routes(manager: &Json) -> String {
    if let Some(name) = manager.pointer("/rds/route_config_name").and_then(Json::as_str) {
        return format!("Route: {name}");
    }
    let Some(own) = manager.get("route_config") else { return "Routes by key".to_owned() };
    let hosts: Vec<&Json> = list(own, "virtual_hosts").collect();
    let only = match hosts.as_slice() {
        [host] => list(host, "routes").map(|route| route.pointer("/route/cluster").and_then(Json::as_str)).collect(),
        _ => Vec::new(),
    };
    match only.as_slice() {
        [Some(cluster)] => format!("Cluster: {cluster}"),
        _ if !text(own, "name").is_empty() => format!("Inline Route: {}", text(own, "name")),
        _ => {
            let paths: BTreeSet<String> = hosts.iter().flat_map(|host| list(host, "routes").map(path)).collect();
            format!("Inline Route: {}", Vec::from_iter(paths).join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn chains_say_what_they_take_and_where_it_goes() {
        let http =
            "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
        let tcp = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
        let check = |matched: Json, config: Json, expected: [&str; 2]| {
            let mut chain = json!({"filters": [{"name": "istio.stats"}, {"name": "last", "typed_config": config}]});
            if !matched.is_null() {
                chain["filter_chain_match"] = matched;
            }
            let listener = json!({
                "address": {"socket_address": {"address": "0.0.0.0", "port_value": 15006}},
                "additional_addresses": [{"address": {"socket_address": {"address": "::", "port_value": 15006}}}],
                "filter_chains": [chain],
            });
            let found = rows(&listener);
            let [condition, destination] = expected;
            assert_eq!(found, [["0.0.0.0,::", "15006", condition, destination].map(str::to_owned)]);
        };
        check(Json::Null, json!({"@type": tcp, "cluster": "a"}), ["ALL", "Cluster: a"]);
        let clusters = json!({"clusters": [{"name": "a", "weight": 90}, {"name": "b", "weight": 10}]});
        check(json!({}), json!({"@type": tcp, "weighted_clusters": clusters}), ["ALL", "Clusters: a (90), b (10)"]);
        let matched = json!({"destination_port": 80, "server_names": ["a.test", "b.test"], "transport_protocol": "tls",
            "prefix_ranges": [{"address_prefix": "10.0.0.1", "prefix_len": 32}, {"address_prefix": "10.1.0.0", "prefix_len": 16}]});
        check(
            matched,
            json!({"@type": http, "rds": {"route_config_name": "80"}}),
            ["SNI: a.test,b.test; Trans: tls; Addr: 10.0.0.1,10.1.0.0/16; Port: 80", "Route: 80"],
        );
        let one =
            json!({"name": "inbound|80||", "virtual_hosts": [{"routes": [{"route": {"cluster": "inbound|80||"}}]}]});
        check(Json::Null, json!({"@type": http, "route_config": one}), ["ALL", "Cluster: inbound|80||"]);
        let two = json!({"name": "r", "virtual_hosts": [{"routes": [{"redirect": {}}, {"route": {"cluster": "a"}}]}]});
        check(Json::Null, json!({"@type": http, "route_config": two}), ["ALL", "Inline Route: r"]);
        let unnamed = json!({"virtual_hosts": [{"routes": [{"match": {"path": "/b"}}, {"match": {"prefix": "/a"}}]}]});
        check(Json::Null, json!({"@type": http, "route_config": unnamed}), ["ALL", "Inline Route: /a*, /b"]);
        check(Json::Null, json!({"@type": "x.Other"}), ["ALL", "Filter: last"]);
    }

    #[test]
    fn filters_compare_address_port_and_type() {
        let tcp = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
        let listener = json!({
            "address": {"socket_address": {"address": "0.0.0.0", "port_value": 80}},
            "default_filter_chain": {"filters": [{"name": "tcp", "typed_config": {"@type": tcp}}]},
        });
        let check = |filter: Filter, expected: bool| assert_eq!(filter.keeps(&listener), expected, "{filter:?}");
        let none = Filter::default;
        check(none(), true);
        check(Filter { address: Some("0.0.0.0".into()), port: Some(80), kind: Some("tcp".into()) }, true);
        check(Filter { port: Some(81), ..none() }, false);
        check(Filter { kind: Some("HTTP".into()), ..none() }, false);
        check(Filter { address: Some("::".into()), ..none() }, false);
    }
}
