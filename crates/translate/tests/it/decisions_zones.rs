//! Zone-aware balancing, and balancing by the utilization that endpoints report.

use serde_json::{Value, json};

use crate::decisions_mesh::resource;

const WEB: &str = "outbound|80||web.shop.svc.cluster.local";
const RULE: &str = "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {name: r, namespace: shop}\nspec: {host: web, trafficPolicy: {loadBalancer: POLICY}}\n";
/// Further Pods of `web`: name, labels.
const PODS: [(&str, &str); 5] = [
    ("web-1", "topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z2, pod-template-hash: one"),
    ("web-2", "topology.kubernetes.io/region: r2, topology.kubernetes.io/zone: z1, pod-template-hash: one, tier: gold"),
    ("web-3", "topology.kubernetes.io/region: r3, pod-template-hash: one, tier: gold"),
    ("web-4", "topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z2, pod-template-hash: two"),
    ("web-5", "topology.kubernetes.io/region: r1, topology.kubernetes.io/zone: z3"),
];

fn pods() -> String {
    let pod = |(index, (name, labels)): (usize, &(&str, &str))| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: web, {labels}}}}}\nspec: {{containers: [{{name: web}}]}}\nstatus: {{podIP: 10.244.0.{}, phase: Running, conditions: [{{type: Ready, status: 'True'}}]}}\n",
            index + 20
        )
    };
    PODS.iter().enumerate().map(pod).collect()
}

fn rule(policy: &str) -> String {
    if policy.is_empty() { String::new() } else { RULE.replace("POLICY", policy) }
}

fn cluster(settings: &str, policy: &str, proxy: &str) -> Value {
    resource(settings, &rule(policy), &format!("{proxy} web-0.shop"), "CDS", WEB)
}

#[test]
fn clusters_divide_requests_among_zones_where_it_is_said() {
    let check = |settings: &str, policy: &str, expected: Value| {
        let found = cluster(settings, policy, "sidecar");
        assert_eq!(found["common_lb_config"]["zone_aware_lb_config"], expected, "{settings} {policy}");
    };
    let off = json!({"routing_enabled": {}});
    check("", "", Value::Null);
    check("", "{zoneAwareLbSetting: {}}", json!({}));
    check("", "{zoneAwareLbSetting: {enabled: true, minClusterSize: 2}}", json!({"min_cluster_size": 2}));
    check("", "{zoneAwareLbSetting: {enabled: false}}", off.clone());
    // The mesh's setting, unless a rule says something of zones or localities.
    let mesh = "zoneAwareLbSetting: {enabled: true, minClusterSize: 3}";
    check(mesh, "", json!({"min_cluster_size": 3}));
    check(mesh, "{simple: RANDOM}", json!({"min_cluster_size": 3}));
    check(mesh, "{zoneAwareLbSetting: {minClusterSize: 2}}", json!({"min_cluster_size": 2}));
    check(mesh, "{zoneAwareLbSetting: {enabled: false}}", off);
    check(mesh, "{localityLbSetting: {enabled: false}}", Value::Null);
    check("zoneAwareLbSetting: {enabled: false}", "", Value::Null);
    // Envoy divides requests among zones wherever there is a local cluster, unless it is told not to.
    let specifier = |policy: &str| {
        let found = cluster("", policy, "self-discovering");
        let common = found["common_lb_config"].as_object().expect("settings").clone();
        common.into_iter().filter(|(name, _)| name.ends_with("_lb_config")).collect::<serde_json::Map<_, _>>()
    };
    assert_eq!(Value::Object(specifier("")), json!({"zone_aware_lb_config": {"routing_enabled": {}}}));
    assert_eq!(Value::Object(specifier("{zoneAwareLbSetting: {}}")), json!({"zone_aware_lb_config": {}}));
    let shares = "{localityLbSetting: {distribute: [{from: r1/*, to: {r1/*: 80, r2/*: 20}}]}}";
    assert_eq!(Value::Object(specifier(shares)), json!({"locality_weighted_lb_config": {}}));
}

#[test]
fn the_own_region_comes_first_then_the_others() {
    let priorities = |settings: &str, policy: &str| {
        let more = format!("{}{}", pods(), rule(policy));
        let found = resource(settings, &more, "sidecar web-0.shop", "EDS", WEB);
        let of = |group: &Value| {
            let part = |name: &str| group["locality"][name].as_str().unwrap_or_default().to_owned();
            (format!("{}/{}", part("region"), part("zone")), group["priority"].as_u64().unwrap_or_default())
        };
        let mut all: Vec<(String, u64)> = found["endpoints"].as_array().expect("localities").iter().map(of).collect();
        all.sort_unstable();
        all.dedup();
        all.into_iter().map(|(name, priority)| format!("{name}={priority}")).collect::<Vec<_>>().join(" ")
    };
    let check = |settings: &str, policy: &str, expected: &str| {
        assert_eq!(priorities(settings, policy), expected, "{settings} {policy}");
    };
    let flat = "r1/=0 r1/z2=0 r1/z3=0 r2/z1=0 r3/=0";
    let near = "r1/=0 r1/z2=0 r1/z3=0 r2/z1=1 r3/=1";
    check("", "", flat);
    check("", "{zoneAwareLbSetting: {}}", near);
    check("", "{zoneAwareLbSetting: {enabled: false}}", flat);
    check("zoneAwareLbSetting: {enabled: true}", "", near);
    check("zoneAwareLbSetting: {failover: [{from: r1, to: r3}]}", "", "r1/=0 r1/z2=0 r1/z3=0 r2/z1=2 r3/=1");
    // Labels count more than regions.
    let labels = "{zoneAwareLbSetting: {failoverPriority: [tier=gold]}}";
    check("", labels, "r1/=1 r1/z2=1 r1/z3=1 r2/z1=0 r3/=0");
    let both = "{zoneAwareLbSetting: {failoverPriority: [tier=gold], failover: [{from: r1, to: r3}]}}";
    check("", both, "r1/=2 r1/z2=2 r1/z3=2 r2/z1=1 r3/=0");
}

#[test]
fn a_proxy_is_told_of_the_proxies_like_it() {
    let more = pods();
    let peers = |proxy: &str| {
        let found = resource("", &more, &format!("self-discovering {proxy}.shop"), "EDS", "local_cluster");
        let of = |group: &Value| {
            let endpoints = group["lb_endpoints"].as_array().expect("endpoints");
            let address = |one: &Value| {
                one["endpoint"]["address"]["socket_address"]["address"].as_str().expect("an address").to_owned()
            };
            let zone = group["locality"]["zone"].as_str().unwrap_or_default().to_owned();
            (zone, endpoints.iter().map(address).collect::<Vec<_>>())
        };
        found["endpoints"].as_array().map(|groups| groups.iter().map(of).collect::<Vec<_>>()).unwrap_or_default()
    };
    let group = |zone: &str, addresses: &[&str]| (zone.to_owned(), addresses.iter().map(|a| (*a).to_owned()).collect());
    // Those of its region with the same `pod-template-hash`.
    assert_eq!(peers("web-1"), [group("z2", &["10.244.0.20"])]);
    assert_eq!(peers("web-5"), [group("", &["10.244.0.3"]), group("z3", &["10.244.0.24"])]);
}

#[test]
fn endpoints_are_weighed_by_what_they_report() {
    let policy = |policy: &str| {
        let found = cluster("", policy, "sidecar");
        assert_eq!(found["lb_policy"], "LOAD_BALANCING_POLICY_CONFIG", "{policy}");
        let mut config =
            found["load_balancing_policy"]["policies"][0]["typed_extension_config"]["typed_config"].clone();
        let kind = config.as_object_mut().expect("a message").remove("@type");
        assert!(kind.is_some_and(|kind| kind.to_string().contains("ClientSideWeightedRoundRobin")), "{policy}");
        config
    };
    assert_eq!(policy("{backendUtilization: {}}"), json!({}));
    let all = "{backendUtilization: {weightStabilizationPeriod: 5s, weightExpirationPeriod: 60s, weightUpdatePeriod: 2s, errorUtilizationPenaltyPercent: 150, metricNamesForComputingUtilization: [named_metrics.queue, cpu_utilization]}, warmup: {duration: 30s}}";
    let expected = json!({
        "blackout_period": "5s",
        "weight_expiration_period": "60s",
        "weight_update_period": "2s",
        "error_utilization_penalty": 1.5,
        "metric_names_for_computing_utilization": ["named_metrics.queue", "cpu_utilization"],
        "slow_start_config": {"slow_start_window": "30s"},
    });
    assert_eq!(policy(all), expected);
}
