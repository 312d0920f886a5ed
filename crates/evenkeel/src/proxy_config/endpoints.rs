//! `evenkeel proxy-config endpoints`, from `/clusters?format=json` (`envoy.admin.v3.Clusters`).

use serde_json::Value as Json;

use super::dump::{address, list, text};

/// The page.
pub const PAGE: &str = "/clusters?format=json";

/// Which endpoints are shown; each condition that is set must hold.
#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Only endpoints of clusters whose name contains this, such as `outbound|80||web.shop.svc.cluster.local`.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,

    /// Only endpoints at this address.
    #[arg(long)]
    address: Option<String>,

    /// Only endpoints at this port.
    #[arg(long)]
    port: Option<u16>,

    /// Only endpoints with this status: healthy, unhealthy, draining, degraded, timeout.
    #[arg(long)]
    status: Option<String>,
}

/// The heads of the columns.
pub const COLUMNS: [&str; 4] = ["ENDPOINT", "STATUS", "OUTLIER CHECK", "CLUSTER"];

/// The endpoints that are shown: as JSON with their cluster's name, and as rows.
pub fn endpoints(page: &Json, filter: &Filter) -> Vec<(Json, [String; 4])> {
    let mut all = Vec::new();
    for cluster in list(page, "cluster_statuses") {
        let name = text(cluster, "name");
        if filter.cluster.as_ref().is_some_and(|wanted| !name.contains(wanted.as_str())) {
            continue;
        }
        for host in list(cluster, "host_statuses") {
            let (host_address, port) = host.get("address").map(address).unwrap_or_default();
            let status = status(host);
            let is_shown = filter.address.as_ref().is_none_or(|wanted| *wanted == host_address)
                && filter.port.is_none_or(|wanted| port == Some(wanted))
                && filter.status.as_ref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(status));
            if !is_shown {
                continue;
            }
            let endpoint = port.map_or_else(|| host_address.clone(), |port| joined(&host_address, port));
            let health = host.get("health_status");
            let ejected = health.and_then(|health| health.get("failed_outlier_check")).and_then(Json::as_bool);
            let outlier = if ejected == Some(true) { "FAILED" } else { "OK" };
            let mut json = host.clone();
            if let Some(fields) = json.as_object_mut() {
                fields.insert("cluster".to_owned(), name.into());
            }
            all.push((json, [endpoint, status.to_owned(), outlier.to_owned(), name.to_owned()]));
        }
    }
    all
}

fn joined(address: &str, port: u16) -> String {
    if address.contains(':') { format!("[{address}]:{port}") } else { format!("{address}:{port}") }
}

/// The worst that is known of an endpoint, in Envoy's words.
fn status(host: &Json) -> &str {
    let Some(health) = host.get("health_status") else { return "HEALTHY" };
    let is_set = |key: &str| health.get(key).and_then(Json::as_bool) == Some(true);
    match text(health, "eds_health_status") {
        "" | "HEALTHY" | "UNKNOWN" if is_set("failed_active_health_check") || is_set("failed_active_hc") => "UNHEALTHY",
        "" | "UNKNOWN" => "HEALTHY",
        status => status,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn health_is_the_worst_that_is_known() {
        let page = json!({"cluster_statuses": [{"name": "outbound|80||web", "host_statuses": [
            {"address": {"socket_address": {"address": "10.0.0.1", "port_value": 80}}},
            {"address": {"socket_address": {"address": "fd00::1", "port_value": 80}},
             "health_status": {"eds_health_status": "HEALTHY", "failed_active_health_check": true}},
            {"address": {"pipe": {"path": "/run/a"}},
             "health_status": {"eds_health_status": "DRAINING", "failed_outlier_check": true}},
        ]}, {"name": "agent"}]});
        let rows = |filter: Filter| {
            let shown = endpoints(&page, &filter)
                .into_iter()
                .map(|(_, [endpoint, status, outlier, _])| format!("{endpoint} {status} {outlier}"));
            shown.collect::<Vec<_>>()
        };
        let all = ["10.0.0.1:80 HEALTHY OK", "[fd00::1]:80 UNHEALTHY OK", "unix:///run/a DRAINING FAILED"];
        let none = Filter::default;
        assert_eq!(rows(none()), all);
        assert_eq!(rows(Filter { status: Some("unhealthy".into()), ..none() }), all[1..2]);
        assert_eq!(rows(Filter { address: Some("10.0.0.1".into()), port: Some(80), ..none() }), all[..1]);
        assert_eq!(rows(Filter { cluster: Some("web".into()), ..none() }), all);
        assert!(rows(Filter { cluster: Some("agent".into()), ..none() }).is_empty());
    }
}
