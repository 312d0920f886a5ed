//! Load balancing: the compiled form of each option of a cluster, a route and an assignment, in both forms of the API.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::cluster::{
    HashFunction, HashKey, LeastRequest, LoadBalancer, Maglev, Metric, MetricMap, PanicMode, RingHash,
    SelectorFallback, SlowStart, SubsetFallback, Utilization, ZoneAware,
};
use evenkeel_runtime_config::cookie::Cookie;
use evenkeel_runtime_config::hash_policy::HashSource;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::route::{ForwardAction, RouteAction};
use evenkeel_runtime_config::{Cluster, Rejection};

use crate::input;

fn cluster(text: &str) -> Result<Arc<Cluster>, Rejection> {
    let mut builder = input::builder();
    builder.set_cluster(&input::cluster(&format!("name: c\n{text}")))?;
    Ok(builder.build().clusters["c"].clone())
}

fn typed(policy: &str, config: &str) -> String {
    let url = format!("type.googleapis.com/envoy.extensions.load_balancing_policies.{policy}");
    format!(
        "load_balancing_policy: {{ policies: [{{ typed_extension_config: {{ name: p, typed_config: {{ \"@type\": {url}, {config} }} }} }}] }}"
    )
}

const RING: RingHash = RingHash {
    min_size: 1024,
    max_size: 8 << 20,
    function: HashFunction::XxHash,
    key: HashKey::Address,
    balance_factor: 0,
};
const MAGLEV: Maglev = Maglev { table_size: 65_537, key: HashKey::Address, balance_factor: 0 };

#[test]
fn both_forms_name_the_same_balancers() {
    let least = LeastRequest::default();
    let slow = SlowStart { window: Duration::from_secs(30), aggression: 1.0, min_weight_percent: 10.0 };
    let slow_text = "slow_start_config: { slow_start_window: 30s }";
    let ring = "minimum_ring_size: 64, maximum_ring_size: 128, hash_function: MURMUR_HASH_2";
    let odd_ring = RingHash { min_size: 64, max_size: 128, function: HashFunction::MurmurHash2, ..RING };
    let hashing = "consistent_hashing_lb_config: { use_hostname_for_hashing: true, hash_balance_factor: 150 }";
    let bounded = Maglev { table_size: 251, key: HashKey::Hostname, balance_factor: 150 };
    for (text, expected) in [
        ("lb_policy: ROUND_ROBIN".into(), LoadBalancer::RoundRobin { slow_start: None }),
        (typed("round_robin.v3.RoundRobin", slow_text), LoadBalancer::RoundRobin { slow_start: Some(slow) }),
        (
            format!("lb_policy: ROUND_ROBIN\nround_robin_lb_config: {{ {slow_text} }}"),
            LoadBalancer::RoundRobin { slow_start: Some(slow) },
        ),
        (
            "lb_policy: LEAST_REQUEST\nleast_request_lb_config: { choice_count: 3, active_request_bias: { default_value: 0.5, runtime_key: k } }".into(),
            LoadBalancer::LeastRequest(LeastRequest { choices: 3, active_request_bias: 0.5, ..least }),
        ),
        (
            typed("least_request.v3.LeastRequest", "selection_method: FULL_SCAN"),
            LoadBalancer::LeastRequest(LeastRequest { full_scan: true, ..least }),
        ),
        ("lb_policy: RANDOM".into(), LoadBalancer::Random),
        (typed("random.v3.Random", ""), LoadBalancer::Random),
        ("lb_policy: RING_HASH".into(), LoadBalancer::RingHash(RING)),
        (format!("lb_policy: RING_HASH\nring_hash_lb_config: {{ {ring} }}"), LoadBalancer::RingHash(odd_ring)),
        (typed("ring_hash.v3.RingHash", ring), LoadBalancer::RingHash(odd_ring)),
        ("lb_policy: MAGLEV".into(), LoadBalancer::Maglev(MAGLEV)),
        (
            format!("lb_policy: MAGLEV\nmaglev_lb_config: {{ table_size: 251 }}\ncommon_lb_config: {{ {hashing} }}"),
            LoadBalancer::Maglev(bounded),
        ),
        (typed("maglev.v3.Maglev", &format!("table_size: 251, {hashing}")), LoadBalancer::Maglev(bounded)),
    ] {
        assert_eq!(cluster(&text).expect(&text).load_balancer, expected, "{text}");
    }
}

#[test]
fn options_for_all_balancers() {
    let plain = cluster("lb_policy: RANDOM").unwrap();
    assert_eq!((plain.panic, plain.locality_weighted), (PanicMode::default(), false));
    let set = cluster(
        "common_lb_config: { healthy_panic_threshold: { value: 33.4 }, zone_aware_lb_config: { fail_traffic_on_panic: true }, \
         close_connections_on_host_set_change: true, override_host_status: { statuses: [HEALTHY, DRAINING] } }",
    )
    .unwrap();
    assert_eq!(set.panic, PanicMode { threshold_percent: 33, fail_traffic: true });
    assert!(set.close_connections_on_host_set_change && set.override_host_status.draining);
    assert!(set.override_host_status.healthy && !set.override_host_status.degraded);
    assert!(cluster("common_lb_config: { locality_weighted_lb_config: {} }").unwrap().locality_weighted);
    let typed = typed("random.v3.Random", "locality_lb_config: { locality_weighted_lb_config: {} }");
    assert!(cluster(&typed).unwrap().locality_weighted);
}

/// The zone-aware routing of a cluster in a proxy with a local cluster.
fn zones(text: &str) -> Result<Option<ZoneAware>, Rejection> {
    let mut builder = input::builder();
    builder.set_local_cluster(Some("peers".into()));
    builder.set_cluster(&input::cluster(&format!("name: c\n{text}")))?;
    Ok(builder.build().clusters["c"].zone_aware)
}

#[test]
fn zones_count_wherever_there_is_a_local_cluster() {
    let default = ZoneAware::default();
    let set = |config: &str| format!("common_lb_config: {{ zone_aware_lb_config: {{ {config} }} }}");
    let typed = |config: &str| {
        typed("round_robin.v3.RoundRobin", &format!("locality_lb_config: {{ zone_aware_lb_config: {{ {config} }} }}"))
    };
    for (text, expected) in [
        ("lb_policy: RANDOM".to_owned(), Some(default)),
        (
            set("routing_enabled: { value: 49.6 }, min_cluster_size: 3"),
            Some(ZoneAware { routing_percent: 50, min_cluster_size: 3, ..default }),
        ),
        (typed("force_local_zone: {}"), Some(ZoneAware { force_local_min_hosts: Some(1), ..default })),
        (typed("force_local_zone: { min_size: 4 }"), Some(ZoneAware { force_local_min_hosts: Some(4), ..default })),
        (typed("force_locality_direct_routing: true"), Some(ZoneAware { force_local_min_hosts: Some(1), ..default })),
        (typed("locality_basis: HEALTHY_HOSTS_WEIGHT"), Some(ZoneAware { by_weight: true, ..default })),
        ("common_lb_config: { locality_weighted_lb_config: {} }".into(), None),
        ("lb_policy: MAGLEV".into(), None),
    ] {
        assert_eq!(zones(&text).expect(&text), expected, "{text}");
    }
    assert_eq!(cluster(&set("min_cluster_size: 3")).unwrap().zone_aware, None, "without a local cluster");
    let refused = zones(&set("routing_enabled: { value: 101 }")).unwrap_err().to_string();
    assert!(refused.contains("routing_enabled.value: must lie between 0 and 100"), "{refused}");
}

#[test]
fn utilization_has_envoys_defaults() {
    const POLICY: &str = "client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin";
    let of = |config: &str| {
        let cluster = cluster(&typed(POLICY, config)).expect(config);
        assert!(matches!(cluster.load_balancer, LoadBalancer::ClientSideWeighted { .. }), "{config}");
        Utilization::clone(cluster.utilization.as_deref().expect("settings"))
    };
    let seconds = Duration::from_secs;
    let default = Utilization {
        blackout: seconds(10),
        expiration: seconds(180),
        update: seconds(1),
        error_penalty: 0.0,
        metrics: Vec::new(),
    };
    assert_eq!(of(""), default);
    let all = of(
        "blackout_period: 0s, weight_expiration_period: 60s, weight_update_period: 0.01s, error_utilization_penalty: 2.5, \
         metric_names_for_computing_utilization: [named_metrics.a.b, utilization.*, eps, of.nobody, nothing]",
    );
    let metrics = vec![
        Metric::Entry(MetricMap::Named, Some("a.b".into())),
        Metric::Entry(MetricMap::Utilization, None),
        Metric::ErrorsPerSecond,
    ];
    let update = Duration::from_millis(100);
    let expected = Utilization { blackout: seconds(0), expiration: seconds(60), update, error_penalty: 2.5, metrics };
    assert_eq!(all, expected);
    for (config, reason) in [
        ("error_utilization_penalty: -1", "error_utilization_penalty: must not be below 0"),
        ("enable_oob_load_report: true", "enable_oob_load_report"),
    ] {
        let refused = cluster(&typed(POLICY, config)).unwrap_err().to_string();
        assert!(refused.contains(reason), "{refused}");
    }
}

#[test]
fn subsets() {
    let of = |config: &str| cluster(config).expect(config).subsets.clone();
    assert_eq!(of("lb_subset_config: { fallback_policy: ANY_ENDPOINT }"), None, "nothing divides the hosts");
    let config = of(
        "lb_subset_config: { fallback_policy: DEFAULT_SUBSET, default_subset: { stage: prod }, list_as_any: true, subset_selectors: [\
         { keys: [version, stage], fallback_policy: KEYS_SUBSET, fallback_keys_subset: [stage] }, { keys: [stage], single_host_per_subset: true }] }",
    )
    .expect("subsets");
    assert_eq!(config.fallback, SubsetFallback::Default);
    assert_eq!(config.default_subset.get("stage"), Some(&MetadataValue::Text("prod".into())));
    assert_eq!(config.selectors[0].keys, ["stage".into(), "version".into()]);
    assert_eq!(config.selectors[0].fallback, Some(SelectorFallback::Keys(vec!["stage".into()])));
    assert!(config.selectors[1].single_host && config.list_as_any);
    let inner = "subset_selectors: [{ keys: [a] }], allow_redundant_keys: true, subset_lb_policy: { policies: [{ typed_extension_config: \
         { name: p, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.load_balancing_policies.random.v3.Random } } }] }";
    let typed = cluster(&typed("subset.v3.Subset", inner)).unwrap();
    assert_eq!(typed.load_balancer, LoadBalancer::Random);
    assert!(typed.subsets.as_ref().is_some_and(|subsets| subsets.allow_redundant_keys));
}

#[test]
fn what_makes_no_sense_is_refused() {
    for (text, expected) in [
        (
            "lb_policy: MAGLEV\nmaglev_lb_config: { table_size: 100 }",
            "maglev_lb_config.table_size: 100 is no prime number",
        ),
        (
            "lb_policy: RING_HASH\nring_hash_lb_config: { minimum_ring_size: 10, maximum_ring_size: 9 }",
            "ring_hash_lb_config.minimum_ring_size: 10 is above maximum_ring_size (9)",
        ),
        ("lb_policy: RANDOM\nmaglev_lb_config: {}", "maglev_lb_config: does not go with this lb_policy"),
        (
            "common_lb_config: { consistent_hashing_lb_config: { hash_balance_factor: 99 } }",
            "common_lb_config.consistent_hashing_lb_config.hash_balance_factor: 99 is below 100",
        ),
        (
            "round_robin_lb_config: { slow_start_config: { slow_start_window: 1s, aggression: { default_value: 0 } } }",
            "round_robin_lb_config.slow_start_config.aggression.default_value: must be above 0",
        ),
        (
            "lb_subset_config: { subset_selectors: [{ keys: [a, b], single_host_per_subset: true }] }",
            "lb_subset_config.subset_selectors[0].single_host_per_subset: goes with exactly one key",
        ),
        (
            "lb_subset_config: { subset_selectors: [{ keys: [a], fallback_policy: KEYS_SUBSET, fallback_keys_subset: [b] }] }",
            "lb_subset_config.subset_selectors[0].fallback_keys_subset: must be some of the keys, but not all",
        ),
        ("load_balancing_policy: {}", "load_balancing_policy.policies: must not be empty"),
        ("lb_policy: LOAD_BALANCING_POLICY_CONFIG", "load_balancing_policy: is required by lb_policy"),
    ] {
        let rejection = cluster(text).expect_err(text);
        let problems: Vec<_> = rejection.problems.iter().map(ToString::to_string).collect();
        assert!(problems.iter().any(|problem| problem.starts_with(expected)), "{text}: {problems:?}");
    }
}

#[test]
fn endpoints_with_metadata_weights_and_policies() {
    let assigned = "
load_assignment:
  cluster_name: c
  policy: { overprovisioning_factor: 100, weighted_priority_health: true, drop_overloads: [{ category: x, drop_percentage: { numerator: 5 } }] }
  endpoints:
  - locality: { region: r, zone: z }
    load_balancing_weight: 7
    lb_endpoints:
    - endpoint: { address: { socket_address: { address: 10.0.0.1, port_value: 80 } } }
      metadata: { filter_metadata: { envoy.lb: { hash_key: one, version: [v1, v2] } } }
  - lb_endpoints:
    - endpoint: { address: { socket_address: { address: 10.0.0.2, port_value: 80 } } }
";
    let cluster = cluster(assigned).unwrap();
    let set = &cluster.endpoints;
    assert_eq!(
        (set.overprovisioning_percent, set.weighted_priority_health, set.drop_overload_ppm),
        (100, true, 50_000)
    );
    let [one, two] = set.hosts.as_slice() else { panic!("two hosts") };
    assert_eq!((one.hash_key.as_deref(), one.locality_weight, two.locality_weight), (Some("one"), 7, 0));
    let versions = MetadataValue::List(vec![MetadataValue::Text("v1".into()), MetadataValue::Text("v2".into())]);
    assert_eq!(one.lb_metadata.get("version"), Some(&versions));
}

fn forward(route: &str) -> Result<Arc<evenkeel_runtime_config::RouteTable>, Rejection> {
    let text = format!(
        "name: r\nvirtual_hosts: [{{ name: v, domains: [\"*\"], routes: [{{ match: {{ prefix: / }}, route: {{ {route} }} }}] }}]"
    );
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&crate::routes::rds_listener("r")))?;
    builder.set_route(&input::route(&text))?;
    Ok(builder.build().routes["r"].clone())
}

fn action(table: &evenkeel_runtime_config::RouteTable) -> &ForwardAction {
    match &table.virtual_hosts[0].routes[0].action {
        RouteAction::Forward(action) => action,
        other => panic!("{other:?} does not forward"),
    }
}

#[test]
fn routes_hash_and_name_metadata() {
    let table = forward(
        "weighted_clusters: { clusters: [{ name: a, weight: 1, metadata_match: { filter_metadata: { envoy.lb: { version: v2 } } } }, { name: b, weight: 1 }] }, \
         metadata_match: { filter_metadata: { envoy.lb: { version: v1, stage: prod } } }, \
         hash_policy: [{ header: { header_name: X-User } , terminal: true }, { cookie: { name: c, ttl: 2.5s, path: /p, attributes: [{ name: Secure }] } }, \
         { connection_properties: { source_ip: true } }, { connection_properties: {} }, { query_parameter: { name: q } }]",
    )
    .unwrap();
    let action = action(&table);
    let version = |leg: usize| action.clusters[leg].metadata_match.as_ref().and_then(|m| m.get("version").cloned());
    assert_eq!(version(0), Some(MetadataValue::Text("v2".into())), "the cluster's own goes over the route's");
    assert_eq!(version(1), Some(MetadataValue::Text("v1".into())));
    let [header, cookie, address, query] = action.hash_policies.as_slice() else { panic!("four policies apply") };
    assert!(
        matches!(&header.source, HashSource::Header { name, rewrite: None } if &**name == "x-user") && header.terminal
    );
    let expected = Cookie {
        name: "c".into(),
        ttl_seconds: Some(2),
        path: "/p".into(),
        attributes: vec![("Secure".into(), "".into())],
    };
    assert!(matches!(&cookie.source, HashSource::Cookie(cookie) if *cookie == expected));
    assert!(matches!(&address.source, HashSource::SourceIp));
    assert!(matches!(&query.source, HashSource::QueryParameter(name) if &**name == "q"));
    let refused = forward("cluster: a, hash_policy: [{ filter_state: { key: k } }]").expect_err("no filter state");
    assert!(refused.to_string().contains("filter_state"), "{refused}");
}

#[test]
fn the_statuses_that_count_as_errors_are_known_in_advance() {
    let options = |matcher: &str| {
        format!(
            "outlier_detection: {{}}\ntyped_extension_protocol_options: {{ envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{ \"@type\": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: {{ http_protocol_options: {{}} }}, outlier_detection: {{ error_matcher: {matcher} }} }} }}"
        )
    };
    let status =
        |value: &str| format!("{{ http_response_headers_match: {{ headers: [{{ name: \":status\", {value} }}] }} }}");
    let check = |matcher: &str, expected: &[u16]| {
        let cluster = cluster(&options(matcher)).expect("a cluster");
        let detection = cluster.outlier_detection.clone().expect("outlier detection");
        assert_eq!(detection.error_statuses.as_deref(), Some(expected), "{matcher}");
        assert!(expected.iter().all(|status| detection.counted_status(*status) == 500));
        assert_eq!(detection.counted_status(599), 200);
    };
    let (regex, exact) =
        (status("string_match: { safe_regex: { regex: 429|503 } }"), status("string_match: { exact: \"404\" }"));
    check(&regex, &[429, 503]);
    check(&exact, &[404]);
    check(&format!("{{ or_match: {{ rules: [{regex}, {exact}] }} }}"), &[404, 429, 503]);
    check(&status("range_match: { start: 500, end: 502 }"), &[500, 501]);
    let refused =
        |matcher: &str| cluster(&options(matcher)).err().map(|rejection| rejection.to_string()).unwrap_or_default();
    let other = "{ http_response_headers_match: { headers: [{ name: x-a, present_match: true }] } }";
    assert!(refused(other).contains("error_matcher.http_response_headers_match.headers: only conditions on :status"));
    assert!(refused("{ any_match: true }").contains("any_match"), "{}", refused("{ any_match: true }"));
}
