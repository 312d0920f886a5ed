//! `evenkeel proxy-config clusters`.

use serde_json::Value as Json;

use super::dump::{origin, text};

/// Which clusters are shown; each condition that is set must hold.
#[derive(Debug, Default, clap::Args)]
pub struct Filter {
    /// Only clusters whose host contains this.
    #[arg(long, value_name = "HOST")]
    fqdn: Option<String>,

    /// Only clusters of this port.
    #[arg(long)]
    port: Option<u16>,

    /// Only clusters of this subset.
    #[arg(long)]
    subset: Option<String>,

    /// Only clusters of this direction: inbound, outbound.
    #[arg(long)]
    direction: Option<String>,
}

/// The heads of the columns.
pub const COLUMNS: [&str; 6] = ["SERVICE FQDN", "PORT", "SUBSET", "DIRECTION", "TYPE", "DESTINATION RULE"];

/// What a cluster's name says: `DIRECTION|PORT|SUBSET|HOST`, or a name of another form.
struct Name<'a> {
    direction: &'a str,
    port: &'a str,
    subset: &'a str,
    host: &'a str,
}

impl<'a> Name<'a> {
    fn of(name: &'a str) -> Self {
        // Clusters between networks have `outbound_.PORT_.SUBSET_.HOST`.
        let parts: Vec<&str> = match name.strip_prefix("outbound_.") {
            Some(rest) => std::iter::once("outbound").chain(rest.splitn(3, "_.")).collect(),
            None => name.splitn(4, '|').collect(),
        };
        match parts.as_slice() {
            [direction, port, subset, host] => Self { direction, port, subset, host },
            _ => Self { direction: "", port: "", subset: "", host: name },
        }
    }
}

impl Filter {
    /// Whether a cluster is shown.
    pub fn keeps(&self, cluster: &Json) -> bool {
        let name = Name::of(text(cluster, "name"));
        let port = self.port.map(|port| port.to_string());
        self.fqdn.as_ref().is_none_or(|host| name.host.contains(host.as_str()))
            && port.is_none_or(|port| name.port == port)
            && self.subset.as_ref().is_none_or(|subset| name.subset == subset)
            && self.direction.as_ref().is_none_or(|direction| name.direction.eq_ignore_ascii_case(direction))
    }
}

/// The row of a cluster.
pub fn row(cluster: &Json) -> [String; 6] {
    let name = Name::of(text(cluster, "name"));
    let dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let kind = match cluster.get("cluster_type") {
        Some(custom) => text(custom, "name"),
        None => cluster.get("type").and_then(Json::as_str).unwrap_or("STATIC"),
    };
    [dash(name.host), dash(name.port), dash(name.subset), dash(name.direction), kind.to_owned(), origin(cluster)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_are_taken_apart_and_compared() {
        let check = |name: &str, expected: [&str; 4]| {
            let [host, port, subset, direction, ..] = row(&json!({"name": name}));
            assert_eq!([host, port, subset, direction], expected.map(str::to_owned));
        };
        check("outbound|80|v1|web.shop.svc.cluster.local", ["web.shop.svc.cluster.local", "80", "v1", "outbound"]);
        check("inbound|8080||", ["-", "8080", "-", "inbound"]);
        check("outbound_.80_._.web.shop.svc.cluster.local", ["web.shop.svc.cluster.local", "80", "-", "outbound"]);
        check("BlackHoleCluster", ["BlackHoleCluster", "-", "-", "-"]);
        let keeps = |filter: Filter| filter.keeps(&json!({"name": "outbound|80|v1|web.shop.svc.cluster.local"}));
        let none = Filter::default;
        assert!(keeps(none()));
        assert!(keeps(Filter { fqdn: Some("web.shop".into()), port: Some(80), ..none() }));
        assert!(keeps(Filter { subset: Some("v1".into()), direction: Some("OUTBOUND".into()), ..none() }));
        assert!(!keeps(Filter { port: Some(8), ..none() }) && !keeps(Filter { subset: Some("v".into()), ..none() }));
        assert!(!keeps(Filter { direction: Some("inbound".into()), ..none() }));
    }

    #[test]
    fn types_and_rules_are_named() {
        let check = |more: serde_json::Value, expected: [&str; 2]| {
            let [.., kind, rule] = row(&more);
            assert_eq!([kind, rule], expected.map(str::to_owned));
        };
        check(json!({}), ["STATIC", ""]);
        let config = "/apis/networking.istio.io/v1/namespaces/shop/destination-rule/web";
        check(
            json!({"type": "EDS", "metadata": {"filter_metadata": {"istio": {"config": config}}}}),
            ["EDS", "web.shop"],
        );
        check(json!({"cluster_type": {"name": "envoy.clusters.dns"}}), ["envoy.clusters.dns", ""]);
    }
}
