//! The proxy's bootstrap file, for our proxy and for Envoy alike.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;

use evenkeel_base::runtime_key::RuntimeKey;
use serde_json::{Map, Value, json};

use crate::envoy_json::{endpoint, http2, sds};
use crate::options::{Options, OptionsError, Role, is_true};
use crate::secret_names::{CERTIFICATE_SECRET, CONTROL_PLANE_SECRET};
use crate::{stats_config, telemetry};

/// The name in the control plane's certificate, Istio's.
pub const CONTROL_PLANE_NAME: &str = "istiod.istio-system.svc";
/// File of the SDS socket in the state directory. An agent that takes over has a socket of its own, so that the
/// previous agent can keep using its own.
pub fn sds_socket(epoch: u32) -> String {
    match epoch {
        0 => "sds.sock".to_owned(),
        epoch => format!("sds-{epoch}.sock"),
    }
}

/// `SOL_SOCKET` and `SO_MARK` of Linux, as `core.v3.SocketOption` wants them.
const SOL_SOCKET: u32 = 1;
const SO_MARK: u32 = 36;

/// The node's id and metadata, in Istio's form.
pub fn node(options: &Options) -> Result<Value, OptionsError> {
    let pod = options.pod()?;
    let kind = match options.role {
        Role::Sidecar => "sidecar",
        Role::Router => "router",
    };
    let (namespace, ip) = (&options.namespace, options.ip);
    let labels: Map<String, Value> = options.all_labels().into_iter().map(|(key, value)| (key, json!(value))).collect();
    let app = labels.get("app").and_then(Value::as_str);
    let workload = options.workload_name.as_deref().or(app).unwrap_or(pod).to_owned();
    let mut node = json!({
        "id": format!("{kind}~{ip}~{pod}.{namespace}~{namespace}.svc.{}", options.cluster_domain),
        "cluster": cluster(options, &labels, &workload),
        "metadata": {
            "CLUSTER_ID": options.cluster_id,
            "INSTANCE_IPS": ip.to_string(),
            "LABELS": labels,
            "MESH_ID": options.proxy_config.get("meshId").cloned().unwrap_or_else(|| json!(options.trust_domain)),
            "NAME": pod,
            "NAMESPACE": namespace,
            "SERVICE_ACCOUNT": options.service_account,
            "WORKLOAD_NAME": workload,
        },
    });
    if let Some(locality) = locality(&options.all_labels()) {
        node["locality"] = locality;
    }
    if let Some(metadata) = node["metadata"].as_object_mut() {
        for (name, value) in options.node_metadata() {
            // The environment cannot override what the agent's options set.
            metadata.entry(name).or_insert_with(|| json!(value));
        }
        metadata.remove("DNS_CAPTURE");
    }
    if !options.proxy_config.is_empty() {
        node["metadata"]["PROXY_CONFIG"] = Value::Object(options.proxy_config.clone());
    }
    if options.dns().is_some() {
        node["metadata"]["DNS_CAPTURE"] = json!("true");
    }
    if options.envoy.is_none() {
        node["metadata"]["EVENKEEL"] = scope(options);
    }
    Ok(node)
}

/// The name under which the proxy presents itself: `serviceCluster` of its ProxyConfig, or what `tracingServiceName` says
/// it is made of. An empty name and `istio-proxy`, which Istio has by default, count as none.
fn cluster(options: &Options, labels: &Map<String, Value>, workload: &str) -> String {
    let text = |name: &str| options.proxy_config.get(name).and_then(Value::as_str);
    let canonical = || {
        let of_label = |name: &&str| labels.get(*name).and_then(Value::as_str).filter(|name| !name.is_empty());
        Some(CANONICAL_NAMES.iter().find_map(of_label).unwrap_or(workload))
    };
    let name = match (text("serviceCluster"), text("tracingServiceName")) {
        (Some(name), _) => Some(name.to_owned()).filter(|name| !name.is_empty() && name != "istio-proxy"),
        (None, Some("CANONICAL_NAME_ONLY")) => canonical().map(str::to_owned),
        (None, Some("CANONICAL_NAME_AND_NAMESPACE")) => canonical().map(|name| format!("{name}.{}", options.namespace)),
        (None, Some("APP_LABEL_AND_NAMESPACE")) => {
            let app = labels.get("app").and_then(Value::as_str).filter(|app| !app.is_empty());
            app.map(|app| format!("{app}.{}", options.namespace))
        }
        (None, _) => None,
    };
    name.unwrap_or_else(|| format!("{workload}.{}", options.namespace))
}

/// The labels with the name of the service that a workload belongs to; without any it is that of the workload, as Istio's
/// injector writes it.
const CANONICAL_NAMES: [&str; 3] = ["service.istio.io/canonical-name", "app.kubernetes.io/name", "app"];

/// The locality of the workload, by the labels that name it in a cluster; `None` if no label does.
fn locality(labels: &BTreeMap<String, String>) -> Option<Value> {
    let of = |name: &str| labels.get(name).map_or("", String::as_str);
    let whole = ["topology.istio.io/locality", "istio-locality"].iter().find_map(|name| labels.get(*name));
    let [region, zone, sub_zone] = match whole {
        Some(own) => {
            // Labels cannot contain slashes, so Istio writes dots.
            let mut parts = own.splitn(3, '.');
            std::array::from_fn(|_| parts.next().unwrap_or_default())
        }
        None => {
            [of("topology.kubernetes.io/region"), of("topology.kubernetes.io/zone"), of("topology.istio.io/subzone")]
        }
    };
    let is_known = [region, zone, sub_zone].iter().any(|part| !part.is_empty());
    is_known.then(|| json!({ "region": region, "zone": zone, "sub_zone": sub_zone }))
}

/// Returns how much of the mesh our own proxy subscribes to: everything, or what its workload uses, beginning with the
/// listeners for captured connections.
fn scope(options: &Options) -> Value {
    if options.learns() {
        json!({
            "SCOPE": "learned",
            "LISTENERS": ["virtualInbound", "virtualOutbound"],
            "UNUSED_AFTER_S": options.scope_unused_after_s,
        })
    } else {
        json!({ "SCOPE": "full" })
    }
}

/// The whole bootstrap. `epoch`: how often the agent was replaced before.
pub fn bootstrap(options: &Options, epoch: u32) -> Result<Value, OptionsError> {
    let node = node(options)?;
    let discovers = node["metadata"][SELF_DISCOVERY].as_str().is_some_and(is_true) && options.role == Role::Sidecar;
    let mut bootstrap = json!({
        "node": node,
        "admin": { "address": loopback(options.admin_port()) },
        "dynamic_resources": {
            "ads_config": {
                "api_type": "DELTA_GRPC",
                "transport_api_version": "V3",
                "set_node_on_first_message_only": true,
                "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds-grpc" } }],
            },
            "lds_config": ads(),
            "cds_config": ads(),
        },
        "static_resources": {
            "clusters": [
                xds_cluster(options),
                sds_cluster(&options.state.join(sds_socket(epoch))),
                local_cluster("agent", options.admin_port(), MAX_PROBES),
                local_cluster("prometheus_stats", options.admin_port(), MAX_SCRAPES),
            ],
            "listeners": [
                admin_listener(READINESS_LISTENER, options.readiness_port, "/healthz/ready", "/ready", "agent"),
                admin_listener(STATS_LISTENER, options.stats_port, "/stats/prometheus", "/stats/prometheus", "prometheus_stats"),
            ],
        },
    });
    telemetry::add_to(&mut bootstrap, options);
    if let Some(statistics) = stats_config::stats_config(options) {
        bootstrap["stats_config"] = statistics;
    }
    if let Some(runtime) = runtime(options) {
        bootstrap["layered_runtime"] = runtime;
    }
    if discovers {
        if let Some(clusters) = bootstrap["static_resources"]["clusters"].as_array_mut() {
            clusters.push(peers());
        }
        bootstrap["cluster_manager"]["local_cluster_name"] = json!(LOCAL_CLUSTER);
    }
    if let Some(mark) = options.mark() {
        let option = json!({
            "description": "capture rules let the proxy's own traffic pass",
            "level": SOL_SOCKET,
            "name": SO_MARK,
            "int_value": mark,
            "state": "STATE_PREBIND",
        });
        bootstrap["cluster_manager"]["upstream_bind_config"] = json!({ "socket_options": [option] });
    }
    if let (Some(resolver), Some(fields)) = (options.proxy_resolver, bootstrap.as_object_mut()) {
        fields.insert("typed_dns_resolver_config".into(), dns_resolver(resolver));
    }
    Ok(bootstrap)
}

/// The layer with `runtimeValues`. Our own proxy refuses keys that it does not have and values that are no numbers, so it
/// does not get them; the control plane's findings name them. An empty value removes a key, as in Istio.
///
/// Stock Envoy takes larger expressions than by default, as under Istio's agents: those for service accounts with long names, and users'
/// own.
fn runtime(options: &Options) -> Option<Value> {
    let values = options.proxy_config.get("runtimeValues").and_then(Value::as_object);
    let texts = values.into_iter().flatten().filter_map(|(key, value)| Some((key, value.as_str()?)));
    let texts = texts.filter(|(_, text)| !text.is_empty());
    let is_passed = |key: &str, text: &str| {
        options.envoy.is_some() || RuntimeKey::parse(key).is_some() && text.parse::<u64>().is_ok()
    };
    let passed = texts.filter(|(key, text)| is_passed(key, text));
    let expressions = options.envoy.is_some().then(|| (EXPRESSION_SIZE.to_owned(), json!(MAX_EXPRESSION_SIZE)));
    let passed = passed.map(|(key, text)| (key.clone(), json!(text)));
    let layer: Map<String, Value> = expressions.into_iter().chain(passed).collect();
    let layer = json!({ "name": "proxy config", "static_layer": layer });
    layer["static_layer"].as_object().is_some_and(|layer| !layer.is_empty()).then(|| {
        let admin = json!({ "name": "admin", "admin_layer": {} });
        json!({ "layers": [layer, admin] })
    })
}

/// The runtime key of the largest regular expression that Envoy takes, in RE2's instructions, and Istio's value.
const EXPRESSION_SIZE: &str = "re2.max_program_size.error_level";
const MAX_EXPRESSION_SIZE: &str = "32768";

/// Metadata of a node whose proxy is told of the proxies like it, as zone-aware balancing needs.
const SELF_DISCOVERY: &str = "ENABLE_SELF_DISCOVERY";
/// The cluster of these proxies, under Istio's name.
const LOCAL_CLUSTER: &str = "local_cluster";

/// Returns the cluster of proxies like this one. Nothing is ever sent to them; they are counted by zone.
fn peers() -> Value {
    json!({
        "name": LOCAL_CLUSTER,
        "type": "EDS",
        "connect_timeout": "1s",
        // The proxy does without them rather than wait for ever.
        "eds_cluster_config": { "eds_config": { "ads": {}, "resource_api_version": "V3" } },
    })
}

fn dns_resolver(resolver: SocketAddr) -> Value {
    let address = json!({ "socket_address": { "address": resolver.ip(), "port_value": resolver.port() } });
    json!({
        "name": "envoy.network.dns_resolver.cares",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig",
            "resolvers": [address],
        },
    })
}

fn ads() -> Value {
    // Without this setting Envoy would start after 15 s without any configuration, and report that it is ready.
    json!({ "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0s" })
}

fn xds_cluster(options: &Options) -> Value {
    let (host, port) = split_host_port(&options.discovery_address);
    let kind = if host.parse::<IpAddr>().is_ok() { "STATIC" } else { "STRICT_DNS" };
    json!({
        "name": "xds-grpc",
        "type": kind,
        "connect_timeout": "1s",
        "typed_extension_protocol_options": http2(),
        "upstream_connection_options": { "tcp_keepalive": { "keepalive_time": 300 } },
        "load_assignment": endpoint("xds-grpc", json!({ "socket_address": { "address": host, "port_value": port } })),
        "transport_socket": {
            "name": "envoy.transport_sockets.tls",
            "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                "sni": CONTROL_PLANE_NAME,
                "common_tls_context": {
                    "alpn_protocols": ["h2"],
                    "tls_params": {
                        "tls_minimum_protocol_version": "TLSv1_3",
                        "tls_maximum_protocol_version": "TLSv1_3",
                    },
                    "tls_certificate_sds_secret_configs": [{ "name": CERTIFICATE_SECRET, "sds_config": sds() }],
                    // From the agent, which follows a change of the root.
                    "combined_validation_context": {
                        "default_validation_context": {
                            "match_typed_subject_alt_names": [
                                { "san_type": "DNS", "matcher": { "exact": CONTROL_PLANE_NAME } },
                            ],
                        },
                        "validation_context_sds_secret_config": { "name": CONTROL_PLANE_SECRET, "sds_config": sds() },
                    },
                },
            },
        },
    })
}

fn sds_cluster(socket: &Path) -> Value {
    json!({
        "name": "sds-grpc",
        "type": "STATIC",
        "connect_timeout": "1s",
        "typed_extension_protocol_options": http2(),
        "load_assignment": endpoint("sds-grpc", json!({ "pipe": { "path": socket } })),
    })
}

/// Readiness probes at a time, in requests.
const MAX_PROBES: u32 = 16;
/// The listener of readiness probes.
pub const READINESS_LISTENER: &str = "readiness";
/// The listener of scrapes.
pub const STATS_LISTENER: &str = "stats";
/// Scrapes of the statistics at a time, in requests: together with the probes they leave room on the admin interface.
const MAX_SCRAPES: u32 = 4;

/// Returns a cluster for the proxy's own admin interface that allows `requests` requests at a time.
fn local_cluster(name: &str, port: u16, requests: u32) -> Value {
    json!({
        "name": name,
        "type": "STATIC",
        "connect_timeout": "0.25s",
        "circuit_breakers": {
            "thresholds": [{
                "max_connections": requests,
                "max_pending_requests": requests,
                "max_requests": requests,
            }],
        },
        "load_assignment": endpoint(name, loopback(port)),
    })
}

/// A listener that exposes one path of the admin interface and nothing else. It accepts no query either, since a query
/// could make an answer expensive; such requests are redirected to the path without it.
fn admin_listener(name: &str, port: u16, path: &str, admin_path: &str, cluster: &str) -> Value {
    let router = json!({
        "name": "envoy.filters.http.router",
        "typed_config": { "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router" },
    });
    let routes = json!([
        {
            "match": { "path": path, "headers": [{ "name": ":path", "string_match": { "exact": path } }] },
            "route": { "cluster": cluster, "prefix_rewrite": admin_path },
        },
        {
            "match": { "path": path },
            "redirect": { "path_redirect": path, "response_code": "FOUND", "strip_query": true },
        },
    ]);
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "codec_type": "AUTO",
        "stat_prefix": name,
        "http_filters": [router],
        "route_config": {
            "virtual_hosts": [{ "name": "backend", "domains": ["*"], "routes": routes }],
        },
    });
    json!({
        "name": name,
        "address": { "socket_address": { "address": Ipv4Addr::UNSPECIFIED, "port_value": port } },
        "filter_chains": [{
            "filters": [{ "name": "envoy.filters.network.http_connection_manager", "typed_config": manager }],
        }],
    })
}

fn loopback(port: u16) -> Value {
    json!({ "socket_address": { "address": Ipv4Addr::LOCALHOST, "port_value": port } })
}

/// HOST:PORT or `[v6]:PORT`; the port defaults to 15012.
pub(crate) fn split_host_port(address: &str) -> (&str, u16) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
    (host.trim_start_matches('[').trim_end_matches(']'), port.parse().unwrap_or(15012))
}
