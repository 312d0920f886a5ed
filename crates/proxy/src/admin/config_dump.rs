//! `/config_dump`: the configuration in the format of `envoy.admin.v3.ConfigDump`, with secrets redacted.

use std::time::SystemTime;

use evenkeel_filters::explain::query::REDACTED;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::builder::Held;
use evenkeel_runtime_config::cluster::{Cluster, Discovery, Endpoint, Health};
use evenkeel_xds::json::{any_to_json, to_json};
use evenkeel_xds::pb::envoy::config::listener::v3::{Listener, filter::ConfigType};
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};
use evenkeel_xds::{ResourceType, Schema, pack, unpack};
use http::StatusCode;
use regex::Regex;
use serde_json::{Map, Value as Json, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::apart::{Deadline, Drawing};
use super::{Admin, Query, Reply};
use crate::recent::redact;
use crate::state::{Record, Refusal, State};

/// `[redacted]` in base64, as Envoy prints it in place of private keys.
const REDACTED_BASE64: &str = "W3JlZGFjdGVkXQ==";

pub(super) fn page(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    let name_regex = query.regex("name_regex")?;
    let state = admin.shared.state.borrow();
    let dump = Dump { state: &state, schema: &Schema::acquire() };
    let mut configs = vec![dump.bootstrap(), dump.clusters()];
    if query.has("include_eds") {
        configs.push(dump.endpoints());
    }
    configs.extend([dump.listeners(), dump.routes(), dump.secrets()]);
    configs.extend(dump.extensions());
    let resource = query.get("resource").map(str::to_owned);
    Ok(Box::new(move |deadline| select(configs, name_regex.as_ref(), resource.as_deref(), deadline)))
}

/// The requested part of the dump, as JSON text.
fn select(mut configs: Vec<Json>, name: Option<&Regex>, field: Option<&str>, deadline: &Deadline) -> Reply {
    configs.iter_mut().for_each(hide_secrets);
    if let Some(regex) = name {
        configs.iter_mut().for_each(|config| keep_named(config, regex, deadline));
    }
    if let Some(field) = field {
        let found = configs.iter_mut().find_map(|config| config.get_mut(field).map(Json::take));
        let Some(found) = found else {
            return Reply::error(StatusCode::NOT_FOUND, format!("there are no {field} in the dump\n"));
        };
        let items = if found.is_array() { found } else { Json::Array(vec![found]) };
        return Reply::json(&json!({ "configs": items }));
    }
    Reply::json(&json!({ "configs": configs }))
}

/// RFC 3339 in UTC, to the millisecond.
pub(super) fn rfc3339(time: SystemTime) -> String {
    let time = OffsetDateTime::from(time);
    let milliseconds = time.nanosecond() / 1_000_000 * 1_000_000;
    let time = time.replace_nanosecond(milliseconds).unwrap_or(time);
    time.format(&Rfc3339).unwrap_or_default()
}

struct Dump<'a> {
    state: &'a State,
    schema: &'a Schema,
}

impl Dump<'_> {
    fn bootstrap(&self) -> Json {
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump",
            "bootstrap": to_json(self.schema, &self.state.bootstrap),
            "last_updated": rfc3339(self.state.started_at),
        })
    }

    fn clusters(&self) -> Json {
        let (mut fixed, mut active, mut warming) = (Vec::new(), Vec::new(), Vec::new());
        for held in self.state.builder.clusters() {
            let (name, json) = self.resource(&held);
            match (held.is_static, held.active) {
                (true, _) => fixed.push(json!({"cluster": json, "last_updated": rfc3339(self.state.started_at)})),
                (false, true) => active.push(self.versioned("cluster", ResourceType::Cluster, &name, json)),
                (false, false) => warming.push(self.versioned("cluster", ResourceType::Cluster, &name, json)),
            }
        }
        for (name, refusal) in self.never_accepted(ResourceType::Cluster) {
            warming.push(json!({"cluster": {"name": name}, "error_state": self.error_state(refusal)}));
        }
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump",
            "static_clusters": fixed,
            "dynamic_active_clusters": active,
            "dynamic_warming_clusters": warming,
        })
    }

    fn listeners(&self) -> Json {
        let mut fixed = Vec::new();
        let mut dynamic: Map<String, Json> = Map::new();
        for held in self.state.builder.listeners() {
            let (name, json) = self.resource(&held);
            if held.is_static {
                fixed.push(json!({"listener": json, "last_updated": rfc3339(self.state.started_at)}));
                continue;
            }
            let field = if held.active { "active_state" } else { "warming_state" };
            let entry = dynamic.entry(name.clone()).or_insert_with(|| json!({"name": name}));
            entry[field] = self.versioned("listener", ResourceType::Listener, &name, json);
        }
        for ((_, name), record) in self.records(ResourceType::Listener) {
            if let Some(refusal) = &record.refused {
                let entry = dynamic.entry(name.clone()).or_insert_with(|| json!({"name": name}));
                entry["error_state"] = self.error_state(refusal);
            }
        }
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump",
            "static_listeners": fixed,
            "dynamic_listeners": dynamic.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>(),
        })
    }

    fn routes(&self) -> Json {
        let dynamic = self.state.builder.routes().map(|held| {
            let (name, json) = self.resource(&held);
            self.versioned("route_config", ResourceType::Route, &name, json)
        });
        let inline = self.state.builder.listeners().flat_map(|held| inline_routes(&held));
        let fixed = inline.map(|route| {
            json!({"route_config": any_to_json(self.schema, &route), "last_updated": rfc3339(self.state.started_at)})
        });
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.RoutesConfigDump",
            "static_route_configs": fixed.collect::<Vec<_>>(),
            "dynamic_route_configs": dynamic.collect::<Vec<_>>(),
        })
    }

    fn endpoints(&self) -> Json {
        let (mut fixed, mut dynamic) = (Vec::new(), Vec::new());
        let mut clusters: Vec<_> = self.state.config.clusters.values().collect();
        clusters.sort_by(|a, b| a.name.cmp(&b.name));
        for cluster in clusters {
            let entry = json!({ "endpoint_config": assignment(cluster) });
            match &cluster.discovery {
                Discovery::Eds(_) => dynamic.push(entry),
                _ => fixed.push(entry),
            }
        }
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump",
            "static_endpoint_configs": fixed,
            "dynamic_endpoint_configs": dynamic,
        })
    }

    fn secrets(&self) -> Json {
        let (mut active, mut warming) = (Vec::new(), Vec::new());
        for ((_, name), record) in self.records(ResourceType::Secret) {
            let mut entry = json!({"name": name, "version_info": record.version});
            if let Some(updated) = record.updated {
                entry["last_updated"] = rfc3339(updated).into();
            }
            if let Some(refusal) = &record.refused {
                entry["error_state"] = self.error_state(refusal);
            }
            match &record.public_secret {
                Some(secret) => {
                    entry["secret"] = any_to_json(self.schema, &pack(secret));
                    active.push(entry);
                }
                None => warming.push(entry),
            }
        }
        json!({
            "@type": "type.googleapis.com/envoy.admin.v3.SecretsConfigDump",
            "dynamic_active_secrets": active,
            "dynamic_warming_secrets": warming,
        })
    }

    /// Configurations of filters; `None` if no filter discovers its own.
    fn extensions(&self) -> Option<Json> {
        let filters: Vec<Json> = self
            .records(ResourceType::ExtensionConfig)
            .map(|((_, name), record)| {
                let mut entry = json!({"version_info": record.version});
                if let Some(updated) = record.updated {
                    entry["last_updated"] = rfc3339(updated).into();
                }
                if let Some(held) = self.state.builder.extension(name) {
                    entry["ecds_filter"] = any_to_json(self.schema, held);
                }
                if let Some(refusal) = &record.refused {
                    entry["error_state"] = self.error_state(refusal);
                }
                entry
            })
            .collect();
        let kind = "type.googleapis.com/envoy.admin.v3.EcdsConfigDump";
        (!filters.is_empty()).then(|| json!({"@type": kind, "ecds_filters": filters}))
    }

    fn resource(&self, held: &Held<'_>) -> (String, Json) {
        let json = any_to_json(self.schema, held.resource);
        (json["name"].as_str().unwrap_or_default().to_owned(), json)
    }

    fn records(&self, kind: ResourceType) -> impl Iterator<Item = (&(ResourceType, String), &Record)> {
        self.state.records.iter().filter(move |((of, _), _)| *of == kind)
    }

    fn never_accepted(&self, kind: ResourceType) -> impl Iterator<Item = (&str, &Refusal)> {
        self.records(kind)
            .filter(|(_, record)| record.updated.is_none())
            .filter_map(|((_, name), record)| Some((name.as_str(), record.refused.as_ref()?)))
    }

    fn versioned(&self, field: &str, kind: ResourceType, name: &str, json: Json) -> Json {
        let mut entry = Map::new();
        if let Some(record) = self.state.records.get(&(kind, name.to_owned())) {
            entry.insert("version_info".into(), record.version.clone().into());
            entry.insert(field.into(), json);
            if let Some(updated) = record.updated {
                entry.insert("last_updated".into(), rfc3339(updated).into());
            }
            if let Some(refusal) = record.refused.as_ref().filter(|_| kind != ResourceType::Listener) {
                entry.insert("error_state".into(), self.error_state(refusal));
            }
        } else {
            entry.insert(field.into(), json);
        }
        Json::Object(entry)
    }

    fn error_state(&self, refusal: &Refusal) -> Json {
        let mut error = json!({
            "last_update_attempt": rfc3339(refusal.time),
            "details": refusal.reason,
            "version_info": refusal.version,
        });
        if let Some(resource) = &refusal.resource {
            error["failed_configuration"] = any_to_json(self.schema, resource);
        }
        error
    }
}

/// Route configurations inlined in a listener.
fn inline_routes(held: &Held<'_>) -> Vec<evenkeel_xds::Any> {
    let Ok(listener) = unpack::<Listener>(held.resource) else { return Vec::new() };
    let chains = listener.filter_chains.into_iter().chain(listener.default_filter_chain);
    chains
        .flat_map(|chain| chain.filters)
        .filter_map(|filter| match filter.config_type? {
            ConfigType::TypedConfig(any) => unpack::<HttpConnectionManager>(&any).ok(),
            ConfigType::ConfigDiscovery(_) => None,
        })
        .filter_map(|manager| match manager.route_specifier? {
            RouteSpecifier::RouteConfig(routes) => Some(pack(&routes)),
            _ => None,
        })
        .collect()
}

/// A cluster's endpoints in use, in the format of `ClusterLoadAssignment`.
fn assignment(cluster: &Cluster) -> Json {
    let name = match &cluster.discovery {
        Discovery::Eds(service) => service,
        _ => &cluster.name,
    };
    let mut localities: Vec<(u32, &str, u32, Vec<Json>)> = Vec::new();
    for host in &cluster.endpoints.hosts {
        let known = localities
            .iter_mut()
            .find(|(priority, locality, ..)| *priority == host.priority && **locality == *host.locality);
        match known {
            Some((.., hosts)) => hosts.push(lb_endpoint(host)),
            None => localities.push((host.priority, &host.locality, host.locality_weight, vec![lb_endpoint(host)])),
        }
    }
    let endpoints: Vec<Json> = localities
        .into_iter()
        .map(|(priority, locality, weight, hosts)| {
            let mut parts = locality.splitn(3, '/').map(str::to_owned);
            let mut part = || parts.next().unwrap_or_default();
            json!({
                "locality": {"region": part(), "zone": part(), "sub_zone": part()},
                "lb_endpoints": hosts,
                "load_balancing_weight": weight,
                "priority": priority,
            })
        })
        .collect();
    json!({
        "@type": evenkeel_xds::type_url::ENDPOINT,
        "cluster_name": &**name,
        "endpoints": endpoints,
    })
}

fn lb_endpoint(host: &Endpoint) -> Json {
    let address = match &host.address {
        EndpointAddress::Socket(address) => {
            json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
        }
        EndpointAddress::Pipe(path) => json!({"pipe": {"path": path.display().to_string()}}),
    };
    let health = match host.health {
        Health::Healthy => "HEALTHY",
        Health::Degraded => "DEGRADED",
        Health::Unhealthy => "UNHEALTHY",
        Health::Draining => "DRAINING",
    };
    json!({
        "endpoint": {"address": address, "hostname": &*host.hostname},
        "health_status": health,
        "load_balancing_weight": host.weight,
    })
}

/// Redacts private keys, passwords, session ticket keys, and the values of headers that have or match secrets.
fn hide_secrets(json: &mut Json) {
    match json {
        Json::Array(items) => items.iter_mut().for_each(hide_secrets),
        Json::Object(fields) => {
            redact_header(fields);
            for (name, value) in fields {
                if matches!(name.as_str(), "uri" | "path" | "path_redirect" | "prefix_rewrite")
                    && let Json::String(text) = value
                {
                    *text = redact::url(text, REDACTED).0;
                } else if matches!(name.as_str(), "private_key" | "password" | "session_ticket_keys") {
                    redact_source(value);
                } else {
                    hide_secrets(value);
                }
            }
        }
        _ => {}
    }
}

/// A header to add (`key`, `value`), or to match (`name` and one of several matchers). A value that only repeats another one is kept.
fn redact_header(fields: &mut Map<String, Json>) {
    let is_secret = |field: &str| fields.get(field).and_then(Json::as_str).is_some_and(redact::is_secret);
    let (added, matched) = (is_secret("key"), is_secret("name"));
    let hide = |value: &mut Json| {
        if let Json::String(text) = value
            && !(text.starts_with('%') && text.ends_with('%'))
        {
            *text = REDACTED.to_owned();
        }
    };
    if added {
        if let Some(value) = fields.get_mut("value") {
            hide(value);
        }
        if let Some(raw) = fields.get_mut("raw_value") {
            *raw = REDACTED_BASE64.into();
        }
    }
    if matched {
        const EXACT: [&str; 4] = ["exact_match", "prefix_match", "suffix_match", "contains_match"];
        EXACT.iter().for_each(|field| {
            if let Some(value) = fields.get_mut(*field) {
                hide(value);
            }
        });
        if let Some(Json::Object(matcher)) = fields.get_mut("string_match") {
            ["exact", "prefix", "suffix", "contains"].iter().for_each(|field| {
                if let Some(value) = matcher.get_mut(*field) {
                    hide(value);
                }
            });
        }
    }
}

fn redact_source(json: &mut Json) {
    match json {
        Json::Array(items) => items.iter_mut().for_each(redact_source),
        Json::Object(fields) => {
            for (name, value) in fields {
                match name.as_str() {
                    "inline_bytes" => *value = REDACTED_BASE64.into(),
                    "inline_string" => *value = REDACTED.into(),
                    "keys" => redact_source(value),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

/// Keeps the entries whose resource has a matching name.
fn keep_named(config: &mut Json, regex: &Regex, deadline: &Deadline) {
    let Json::Object(fields) = config else { return };
    for items in fields.values_mut().filter_map(Json::as_array_mut) {
        items.retain(|item| {
            let own = item["name"].as_str();
            let nested = item.as_object().into_iter().flat_map(Map::values);
            let nested = nested.filter_map(|value| value["name"].as_str().or_else(|| value["cluster_name"].as_str()));
            own.into_iter().chain(nested).any(|name| !deadline.is_over() && regex.is_match(name))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_redacted_wherever_they_are() {
        let mut json = json!({
            "a": [{"private_key": {"inline_string": "secret"}, "certificate_chain": {"inline_string": "public"}}],
            "session_ticket_keys": {"keys": [{"inline_bytes": "c2VjcmV0"}]},
            "private_key": {"filename": "/key.pem"},
        });
        hide_secrets(&mut json);
        assert_eq!(
            json,
            json!({
                "a": [{"private_key": {"inline_string": "[redacted]"}, "certificate_chain": {"inline_string": "public"}}],
                "session_ticket_keys": {"keys": [{"inline_bytes": REDACTED_BASE64}]},
                "private_key": {"filename": "/key.pem"},
            })
        );
    }

    #[test]
    fn secret_headers_are_redacted_wherever_they_are() {
        let check = |mut json: Json, expected: Json| {
            hide_secrets(&mut json);
            assert_eq!(json, expected);
        };
        check(
            json!({"initial_metadata": [{"key": "Authorization", "value": "Bearer x"}, {"key": "x-env", "value": "test"}]}),
            json!({"initial_metadata": [{"key": "Authorization", "value": REDACTED}, {"key": "x-env", "value": "test"}]}),
        );
        check(
            json!({"request_headers_to_add": [{"header": {"key": "x-api-key", "raw_value": "c2VjcmV0"}}]}),
            json!({"request_headers_to_add": [{"header": {"key": "x-api-key", "raw_value": REDACTED_BASE64}}]}),
        );
        // It repeats what the request has.
        check(
            json!({"header": {"key": "x-token", "value": "%REQ(x-other)%"}}),
            json!({"header": {"key": "x-token", "value": "%REQ(x-other)%"}}),
        );
        check(
            json!({"headers": [{"name": "authorization", "string_match": {"exact": "Bearer x"}}]}),
            json!({"headers": [{"name": "authorization", "string_match": {"exact": REDACTED}}]}),
        );
        check(
            json!({"http_health_check": {"path": "/ready?token=x"}, "path": {"inline": 1}}),
            json!({"http_health_check": {"path": "/ready?token=[redacted]"}, "path": {"inline": 1}}),
        );
        // A resource whose name seems secret is none.
        check(json!({"name": "token", "value": "1"}), json!({"name": "token", "value": "1"}));
    }

    #[test]
    fn times_have_milliseconds() {
        let time = SystemTime::UNIX_EPOCH + std::time::Duration::from_micros(1_234_567);
        assert_eq!(rfc3339(time), "1970-01-01T00:00:01.234Z");
    }
}
