//! `/clusters`: the circuit breaker limits of each cluster, and the counters of each of its endpoints.

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::sync::Arc;

use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::address::EndpointAddress;
use evenkeel_runtime_config::cluster::{Cluster, Discovery, Endpoint, Health};
use evenkeel_upstream::{ClusterSnapshot, HealthFlags, HostSnapshot};
use evenkeel_xds::ResourceType;
use serde_json::{Value as Json, json};

use super::apart::{Deadline, Drawing};
use super::{Admin, Query, Reply};

/// An endpoint's values, summed over all workers.
#[derive(Default)]
struct Counts {
    health: Option<Health>,
    flags: HealthFlags,
    weight: u32,
    hostname: Arc<str>,
    values: [u64; COUNTERS.len()],
}

/// Envoy's names, in its order.
const COUNTERS: [&str; 8] =
    ["cx_active", "cx_connect_fail", "cx_total", "rq_active", "rq_error", "rq_success", "rq_timeout", "rq_total"];

pub(super) async fn page(admin: &Admin, query: &Query) -> Drawing {
    let pool = admin.shared.state.borrow().pool.clone();
    let snapshots = pool.clusters().await;
    let state = admin.shared.state.borrow();
    let of_api = |(kind, name): &(ResourceType, String)| (*kind == ResourceType::Cluster).then(|| name.clone());
    let of_api: HashSet<String> = state.records.keys().filter_map(of_api).collect();
    let (config, wants_json) = (state.config.clone(), query.wants_json());
    Box::new(move |deadline| draw(&config, &of_api, snapshots, wants_json, deadline))
}

fn draw(
    config: &Config,
    of_api: &HashSet<String>,
    snapshots: Vec<Vec<ClusterSnapshot>>,
    wants_json: bool,
    deadline: &Deadline,
) -> Reply {
    let mut counts: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Counts>> = BTreeMap::new();
    for ClusterSnapshot { name, hosts } in snapshots.into_iter().flatten() {
        let cluster = counts.entry(name).or_default();
        for host in hosts {
            add(cluster.entry(host.address.clone()).or_default(), &host);
        }
    }
    let mut clusters: Vec<_> = config.clusters.values().collect();
    clusters.sort_by(|a, b| a.name.cmp(&b.name));
    // After the deadline the page is discarded anyway.
    let rows = clusters.iter().take_while(|_| !deadline.is_over()).map(|cluster| {
        let hosts = counts.remove(&cluster.name).unwrap_or_default();
        (&***cluster, of_api.contains(&*cluster.name), hosts)
    });
    if wants_json {
        let statuses: Vec<Json> = rows.map(|(cluster, api, hosts)| status(cluster, api, &hosts)).collect();
        return Reply::json(&json!({ "cluster_statuses": statuses }));
    }
    let mut text = String::new();
    rows.for_each(|(cluster, api, hosts)| lines(&mut text, cluster, api, &hosts));
    Reply::text(text)
}

fn add(counts: &mut Counts, host: &HostSnapshot) {
    counts.health = Some(host.discovered);
    counts.flags = host.health_flags;
    counts.weight = host.weight;
    counts.hostname = host.hostname.clone();
    let values = [
        host.cx_active,
        host.cx_connect_fail,
        host.cx_total,
        host.rq_active,
        host.rq_error,
        host.rq_success,
        host.rq_timeout,
        host.rq_total,
    ];
    counts.values.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

fn lines(text: &mut String, cluster: &Cluster, api: bool, hosts: &BTreeMap<Arc<str>, Counts>) {
    let name = &cluster.name;
    let limits = &cluster.circuit_breakers.default;
    // Writing to a String cannot fail.
    _ = writeln!(text, "{name}::observability_name::{}", cluster.stat_name);
    for (limit, value) in [
        ("max_connections", limits.max_connections),
        ("max_pending_requests", limits.max_pending_requests),
        ("max_requests", limits.max_requests),
        ("max_retries", limits.max_retries),
    ] {
        _ = writeln!(text, "{name}::default_priority::{limit}::{value}");
    }
    _ = writeln!(text, "{name}::added_via_api::{api}");
    for (address, counts) in hosts {
        let endpoint = endpoint_at(cluster, address);
        for (counter, value) in COUNTERS.iter().zip(counts.values) {
            _ = writeln!(text, "{name}::{address}::{counter}::{value}");
        }
        let (region, zone, sub_zone) = locality(endpoint);
        _ = writeln!(text, "{name}::{address}::hostname::{}", counts.hostname);
        _ = writeln!(text, "{name}::{address}::health_flags::{}", health_flags(counts));
        _ = writeln!(text, "{name}::{address}::weight::{}", counts.weight);
        _ = writeln!(text, "{name}::{address}::region::{region}");
        _ = writeln!(text, "{name}::{address}::zone::{zone}");
        _ = writeln!(text, "{name}::{address}::sub_zone::{sub_zone}");
        _ = writeln!(text, "{name}::{address}::priority::{}", endpoint.map_or(0, |endpoint| endpoint.priority));
    }
}

fn status(cluster: &Cluster, api: bool, hosts: &BTreeMap<Arc<str>, Counts>) -> Json {
    let limits = &cluster.circuit_breakers.default;
    let statuses: Vec<Json> = hosts
        .iter()
        .map(|(address, counts)| {
            let endpoint = endpoint_at(cluster, address);
            let (region, zone, sub_zone) = locality(endpoint);
            let stats: Vec<Json> = COUNTERS
                .iter()
                .zip(counts.values)
                .map(|(counter, value)| {
                    let kind = if counter.ends_with("_active") { "GAUGE" } else { "COUNTER" };
                    // Protobuf's JSON encodes 64-bit numbers as strings.
                    json!({"type": kind, "name": counter, "value": value.to_string()})
                })
                .collect();
            json!({
                "address": address_json(endpoint, address),
                "hostname": &*counts.hostname,
                "stats": stats,
                "health_status": health_status(counts),
                "weight": counts.weight,
                "priority": endpoint.map_or(0, |endpoint| endpoint.priority),
                "locality": {"region": region, "zone": zone, "sub_zone": sub_zone},
            })
        })
        .collect();
    json!({
        "name": &*cluster.name,
        "observability_name": &*cluster.stat_name,
        "added_via_api": api,
        "host_statuses": statuses,
        "circuit_breakers": {"thresholds": [{
            "max_connections": limits.max_connections,
            "max_pending_requests": limits.max_pending_requests,
            "max_requests": limits.max_requests,
            "max_retries": limits.max_retries,
        }]},
        "eds_service_name": match &cluster.discovery {
            Discovery::Eds(service) => &**service,
            _ => "",
        },
    })
}

fn endpoint_at<'c>(cluster: &'c Cluster, address: &str) -> Option<&'c Endpoint> {
    cluster.endpoints.hosts.iter().map(|host| &**host).find(|host| address_text(&host.address) == address)
}

fn address_text(address: &EndpointAddress) -> String {
    match address {
        EndpointAddress::Socket(address) => address.to_string(),
        EndpointAddress::Pipe(path) => path.display().to_string(),
    }
}

fn address_json(endpoint: Option<&Endpoint>, text: &str) -> Json {
    match (endpoint.map(|endpoint| &endpoint.address), text.parse::<std::net::SocketAddr>()) {
        (Some(EndpointAddress::Pipe(path)), _) => json!({"pipe": {"path": path.display().to_string()}}),
        (_, Ok(address)) => {
            json!({"socket_address": {"address": address.ip().to_string(), "port_value": address.port()}})
        }
        (_, Err(_)) => json!({"pipe": {"path": text}}),
    }
}

fn locality(endpoint: Option<&Endpoint>) -> (String, String, String) {
    let mut parts = endpoint.map_or("", |endpoint| &*endpoint.locality).splitn(3, '/').map(str::to_owned);
    let mut part = || parts.next().unwrap_or_default();
    (part(), part(), part())
}

/// Envoy's health flags in its order, or `healthy` when there are none.
fn health_flags(counts: &Counts) -> String {
    let discovered = match counts.health {
        None | Some(Health::Healthy) => "",
        Some(Health::Degraded) => "/degraded_eds_health",
        Some(Health::Unhealthy) => "/failed_eds_health",
        Some(Health::Draining) => "/eds_status_draining",
    };
    let known: String = counts.flags.names().collect();
    match format!("{known}{discovered}") {
        none if none.is_empty() => "healthy".to_owned(),
        flags => flags,
    }
}

/// `HostHealthStatus` as protobuf JSON.
fn health_status(counts: &Counts) -> Json {
    let mut status = json!({"eds_health_status": eds_health(counts.health)});
    for (flag, name) in [
        (HealthFlags::FAILED_ACTIVE_HC, "failed_active_health_check"),
        (HealthFlags::FAILED_OUTLIER_CHECK, "failed_outlier_check"),
        (HealthFlags::DEGRADED_ACTIVE_HC, "failed_active_degraded_check"),
        (HealthFlags::PENDING_DYNAMIC_REMOVAL, "pending_dynamic_removal"),
        (HealthFlags::PENDING_ACTIVE_HC, "pending_active_hc"),
        (HealthFlags::ACTIVE_HC_TIMEOUT, "active_hc_timeout"),
    ] {
        if counts.flags.has(flag) {
            status[name] = true.into();
        }
    }
    status
}

fn eds_health(health: Option<Health>) -> &'static str {
    match health {
        None | Some(Health::Healthy) => "HEALTHY",
        Some(Health::Degraded) => "DEGRADED",
        Some(Health::Unhealthy) => "UNHEALTHY",
        Some(Health::Draining) => "DRAINING",
    }
}
