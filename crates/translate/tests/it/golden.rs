//! Golden files; `BLESS=1` rewrites them. Two proxies are there whole. Of the others a resource is a line, with the parts below it that
//! their scenario is about.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use evenkeel_testkit::golden;
use evenkeel_translate::ClientKind;
use serde_json::{Map, Value};

use crate::scenario::{SCENARIOS, Scenario, as_json, translate};

/// A sidecar and a gateway of which everything is recorded.
const WHOLE: [&str; 2] = ["capitals-web-0", "istio-ingressgateway-0"];

/// The fields that each scenario is about.
const PARTS: [(&str, &[&str]); 10] = [
    (
        "balancing",
        &[
            "circuit_breakers",
            "common_lb_config",
            "health_checks",
            "lb_subset_config",
            "least_request_lb_config",
            "load_balancing_policy",
            "locality",
            "outlier_detection",
            "priority",
            "ring_hash_lb_config",
            "round_robin_lb_config",
            "upstream_connection_options",
        ],
    ),
    ("capitals", &["filter_chain_match", "transport_socket_matches"]),
    ("protocols", &["filter_chain_match", "typed_extension_protocol_options", "codec_type", "upstream_bind_config"]),
    ("routing", &["domains", "request_headers_to_add", "response_headers_to_add"]),
    ("egress", &["domains", "filter_chain_match", "server_names", "transport_socket", "transport_socket_matches"]),
    ("gateways", &["domains", "filter_chain_match", "transport_socket", "http_protocol_options", "proxy_protocol"]),
    ("datagrams", &["address", "common_lb_config", "listener_filters", "endpoints"]),
    ("networks", &["filter_chain_match", "lb_endpoints", "transport_socket"]),
    ("sidecars", &["bind_to_port", "domains", "load_assignment"]),
    ("grpc", &["filter_chain_match", "rules", "transport_socket", "common_tls_context"]),
];

#[test]
fn resources_are_as_recorded() {
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        let parts = PARTS.iter().find(|(of, _)| *of == name).map(|(_, parts)| *parts).expect("its parts");
        for view in &scenario.proxies {
            let json = as_json(&translate(view, &scenario.snapshot));
            let kind = match view.client_kind {
                ClientKind::Grpc => ".grpc",
                _ => "",
            };
            let (text, format) = if WHOLE.contains(&&*view.pod) {
                (serde_json::to_string_pretty(&json).expect("JSON") + "\n", "json")
            } else {
                (lines(&json, parts), "txt")
            };
            golden::check(scenario.folder.join(format!("{}{kind}.{format}", view.pod)), &text);
        }
    }
}

/// A line for each resource, and for each filter chain and route in it, with the parts in question below.
fn lines(resources: &Value, parts: &'static [&'static str]) -> String {
    let mut lines = Lines { parts, out: String::new(), resource: String::new(), seen: BTreeMap::new() };
    for (kind, of) in resources.as_object().expect("resources by type") {
        for resource in of.as_array().expect("a list") {
            let name = ["name", "cluster_name"].iter().find_map(|field| resource[*field].as_str()).unwrap_or_default();
            lines.resource = format!("{kind} {name}");
            lines.line("", &format!("{} {}", lines.resource, summary(resource)));
            lines.below(resource);
        }
    }
    lines.out
}

struct Lines {
    parts: &'static [&'static str],
    out: String,
    resource: String,
    /// Where each part is first. It is written once.
    seen: BTreeMap<String, String>,
}

impl Lines {
    fn line(&mut self, indent: &str, text: &str) {
        _ = writeln!(self.out, "{indent}{}", text.trim_end());
    }

    /// Filter chains, routes and the parts in question, wherever they are in it.
    fn below(&mut self, value: &Value) {
        match value {
            Value::Array(items) => items.iter().for_each(|item| self.below(item)),
            Value::Object(fields) if is_route(fields) => self.line("    ", &without_usual(value).to_string()),
            Value::Object(fields) => {
                if fields.contains_key("filters") {
                    self.line("  chain ", &chain_of(value));
                }
                if fields.contains_key("domains") {
                    self.line("  virtual host ", &value_of(&fields["name"]));
                }
                for (name, field) in fields {
                    if self.parts.contains(&&**name) { self.part(name, field) } else { self.below(field) }
                }
            }
            _ => {}
        }
    }

    fn part(&mut self, name: &str, value: &Value) {
        let text = format!("{name}: {}", without_usual(value));
        match self.seen.get(&text) {
            Some(first) => self.line("    ", &format!("{name}: as {first}")),
            None => {
                self.line("    ", &text);
                self.seen.insert(text, self.resource.clone());
            }
        }
    }
}

fn is_route(fields: &Map<String, Value>) -> bool {
    fields.contains_key("match")
        && ["route", "redirect", "direct_response"].iter().any(|action| fields.contains_key(*action))
}

/// The value but for what all have.
fn without_usual(value: &Value) -> Value {
    const USUAL: [&str; 5] =
        ["@type", "max_grpc_timeout", "metadata", "retry_host_predicate", "host_selection_retry_max_attempts"];
    match value {
        Value::Object(fields) => {
            let others = fields.iter().filter(|(name, _)| !USUAL.contains(&&***name));
            others.map(|(name, field)| (name.clone(), without_usual(field))).collect()
        }
        Value::Array(items) => items.iter().map(without_usual).collect(),
        value => value.clone(),
    }
}

/// What kind of cluster, the address of a listener, the endpoints, or the names.
fn summary(resource: &Value) -> String {
    let text = |pointer: &str| resource.pointer(pointer).map(value_of);
    let address = text("/address/socket_address/address").zip(text("/address/socket_address/port_value"));
    let address = address.map(|(address, port)| format!("{address}:{port}"));
    let endpoints =
        resource["endpoints"].as_array().map(|groups| groups.iter().map(endpoints_of).collect::<Vec<_>>().join("; "));
    let names = resource["table"].as_object().map(|table| table.keys().cloned().collect::<Vec<_>>().join(", "));
    let all = [text("/type"), text("/lb_policy"), address, text("/traffic_direction"), endpoints, names];
    all.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The addresses and weights of a locality.
fn endpoints_of(group: &Value) -> String {
    let endpoints = group["lb_endpoints"].as_array().into_iter().flatten().map(|endpoint| {
        let address = &endpoint["endpoint"]["address"];
        let socket = &address["socket_address"];
        let place = match socket["address"].as_str() {
            Some(host) => format!("{host}:{}", socket["port_value"]),
            None => address.to_string(),
        };
        match &endpoint["load_balancing_weight"] {
            Value::Null => place,
            weight => format!("{place} ({weight})"),
        }
    });
    endpoints.collect::<Vec<_>>().join(", ")
}

/// The names of a chain's filters, and where it leads to.
fn chain_of(chain: &Value) -> String {
    let names = |filters: &Value| -> Vec<String> {
        let names = filters.as_array().into_iter().flatten().map(|filter| value_of(&filter["name"]));
        names.map(|name| name.rsplit('.').next().unwrap_or(&name).to_owned()).collect()
    };
    let last =
        chain["filters"].as_array().and_then(|filters| filters.last()).map_or(&Value::Null, |f| &f["typed_config"]);
    let to = [&last["cluster"], &last["rds"]["route_config_name"], &last["route_config"]["name"]];
    let to = to.into_iter().find(|to| to.is_string()).map(value_of);
    let all = [names(&chain["filters"]), names(&last["http_filters"])].concat().join(", ");
    let secure = if chain["transport_socket"].is_null() { "" } else { " with TLS" };
    let to = to.map(|to| format!(" to {to}")).unwrap_or_default();
    format!("{}{secure}: {all}{to}", chain["name"].as_str().unwrap_or("without a name"))
}

fn value_of(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
