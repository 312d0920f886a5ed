//! Bootstrap files.

use std::time::Duration;

use evenkeel_runtime_config::bootstrap::{Ads, Bootstrap};
use evenkeel_runtime_config::overload::{Action, ActionRule, ListenerLimits, Monitor, PrematureResets, Trigger};
use evenkeel_runtime_config::{Builder, Environment, Rejection, Source};
use evenkeel_tls::SecretStore;
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;

use crate::input;

const CLUSTERS: &str = r#"
    - name: xds-grpc
      type: STRICT_DNS
      connect_timeout: 1s
      typed_extension_protocol_options: &http2
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          explicit_http_config: { http2_protocol_options: {} }
      upstream_connection_options: { tcp_keepalive: { keepalive_time: 300 } }
      load_assignment: { cluster_name: xds-grpc, endpoints: [{ lb_endpoints: [{ endpoint: { address: { socket_address: { address: control-plane.test, port_value: 15012 } } } }] }] }
    - name: sds-grpc
      typed_extension_protocol_options: *http2
      load_assignment: { cluster_name: sds-grpc, endpoints: [{ lb_endpoints: [{ endpoint: { address: { pipe: { path: ./sds.sock } } } }] }] }
"#;

const DYNAMIC: &str = "
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{ envoy_grpc: { cluster_name: xds-grpc } }]
  lds_config: { ads: {}, resource_api_version: V3 }
  cds_config: { ads: {}, resource_api_version: V3, initial_fetch_timeout: 0s }
";

fn read(text: &str) -> Result<Bootstrap, Rejection> {
    let any = input::resource("envoy.config.bootstrap.v3.Bootstrap", text);
    let message: pb::Bootstrap = evenkeel_xds::unpack(&any).expect("just packed");
    Bootstrap::new(&message, &Environment::process())
}

#[test]
fn a_sidecars_bootstrap() {
    let text = format!(
        "node: {{ id: \"sidecar~10.0.0.1~a.b~b.svc.cluster.local\", cluster: a.b, metadata: {{ NAMESPACE: b }} }}
admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: 15000 }} }} }}
cluster_manager: {{ upstream_bind_config: {{ socket_options: [{{ description: mark, level: 1, name: 36, int_value: 1337, state: STATE_PREBIND }}] }} }}
typed_dns_resolver_config: {{ name: envoy.network.dns_resolver.cares, typed_config: {{
  \"@type\": type.googleapis.com/envoy.extensions.network.dns_resolver.cares.v3.CaresDnsResolverConfig,
  resolvers: [{{ socket_address: {{ address: 10.0.0.53, port_value: 53 }} }}] }} }}
{DYNAMIC}
static_resources:
  clusters:{CLUSTERS}"
    );
    let bootstrap = read(&text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(bootstrap.resolver.servers, ["10.0.0.53:53".parse().unwrap()]);
    assert_eq!(bootstrap.admin, Some("127.0.0.1:15000".parse().unwrap()));
    let metadata = std::sync::Arc::default();
    assert_eq!(bootstrap.ads, Some(Ads { cluster: "xds-grpc".into(), delta: true, metadata }));
    assert_eq!((bootstrap.lds, bootstrap.cds), (Some(Source::Ads), Some(Source::Ads)));
    assert_eq!(bootstrap.bind.socket_options[0].value, 1337);
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    builder.set_default_bind(bootstrap.bind);
    builder.set_default_resolver(bootstrap.resolver.clone());
    for cluster in &bootstrap.clusters {
        builder.set_static_cluster(cluster).unwrap_or_else(|error| panic!("{error}"));
    }
    let config = builder.build();
    // The other waits for DNS.
    assert_eq!(config.clusters.len(), 1);
    assert_eq!(config.clusters["sds-grpc"].bind.socket_options.len(), 1);
}

#[test]
fn the_statistics_that_are_reported() {
    let names = ["cluster.a.upstream_rq_total", "cluster.b.upstream_rq_total", "server.live"];
    for (matcher, expected) in [
        ("reject_all: true", [false, false, false]),
        ("reject_all: false", [true, true, true]),
        ("inclusion_list: { patterns: [{ prefix: cluster.a. }, { exact: server.live }] }", [true, false, true]),
        ("inclusion_list: { patterns: [{ suffix: _total }] }", [true, true, false]),
        // Expressions match the whole name, as in Envoy.
        ("inclusion_list: { patterns: [{ safe_regex: { regex: 'cluster\\.a' } }] }", [false, false, false]),
        ("inclusion_list: { patterns: [{ safe_regex: { regex: 'cluster\\.[ac]\\..*' } }] }", [true, false, false]),
        ("exclusion_list: { patterns: [{ contains: .B., ignore_case: true }] }", [true, false, true]),
    ] {
        let bootstrap = read(&format!("node: {{ id: n }}\nstats_config: {{ stats_matcher: {{ {matcher} }} }}"));
        let matcher = bootstrap.unwrap_or_else(|error| panic!("{error}")).stats;
        assert_eq!(names.map(|name| matcher.reports(name)), expected, "{matcher:?}");
    }
}

#[test]
fn mistakes_are_named_with_their_path() {
    let dns = "{ envoy_grpc: { cluster_name: nowhere } }";
    for (text, expected) in [
        (
            "node: { id: n }\nflags_path: /tmp/y\nadmin: { socket_options: [{ level: 1, name: 2, int_value: 3 }] }".to_owned(),
            vec!["flags_path: not supported", "admin.socket_options: not supported"],
        ),
        (
            "node: { id: n }\nstatic_resources: { clusters: [{ name: c, close_connections_on_host_health_failure: true }] }".into(),
            vec!["static_resources.clusters[0].close_connections_on_host_health_failure: not supported"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_tags: [{ tag_name: a }] }".into(),
            vec!["stats_config.stats_tags[0].regex: is required: no tag of Envoy's own has this name"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_tags: [{ tag_name: envoy.cluster_name }, { tag_name: a, regex: '(?=x)(y)' }] }"
                .into(),
            vec!["stats_config.stats_tags[1].regex: invalid regular expression: `(?=`: RE2 knows no such group; look-around and back references are not supported"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_tags: [{ tag_name: a, regex: 'a.*' }] }".into(),
            vec!["stats_config.stats_tags[0].regex: the expression needs a group, `(…)`, around what it takes out of names"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_tags: [{ fixed_value: a }] }".into(),
            vec!["stats_config.stats_tags[0].tag_name: must not be empty"],
        ),
        (
            "node: { id: n }\nstats_config: { histogram_bucket_settings: [{ buckets: [1] }] }".into(),
            vec!["stats_config.histogram_bucket_settings[0].match: is required"],
        ),
        (
            "node: { id: n }\nstats_config: { histogram_bucket_settings: [{ match: { prefix: a }, buckets: [1, 0] }] }".into(),
            vec!["stats_config.histogram_bucket_settings[0].buckets[1]: must be a number greater than 0"],
        ),
        (
            "node: { id: n }\nstats_config: { histogram_bucket_settings: [{ match: { prefix: a }, buckets: [1, 1] }] }".into(),
            vec!["stats_config.histogram_bucket_settings[0].buckets[1]: the same bound is there already"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_matcher: {} }".into(),
            vec!["stats_config.stats_matcher: one of reject_all, exclusion_list, inclusion_list is required"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_matcher: { inclusion_list: {} } }".into(),
            vec!["stats_config.stats_matcher.inclusion_list.patterns: at least one is required"],
        ),
        (
            "node: { id: n }\nstats_config: { stats_matcher: { exclusion_list: { patterns: [{ safe_regex: { regex: '(' } }] } } }".into(),
            vec!["stats_config.stats_matcher.exclusion_list.patterns[0].safe_regex.regex: invalid regular expression: missing closing `)`"],
        ),
        (
            "node: { id: n }\ndynamic_resources: { lds_config: { ads: {} } }".into(),
            vec!["dynamic_resources.lds_config.ads: needs dynamic_resources.ads_config"],
        ),
        (
            format!(
                "node: {{ id: n }}\ndynamic_resources: {{ ads_config: {{ api_type: GRPC, grpc_services: [{dns}] }} }}"
            ),
            vec!["dynamic_resources: there is no static cluster \"nowhere\" to connect to"],
        ),
        (
            "node: { id: n }\ncluster_manager: { local_cluster_name: peers }".into(),
            vec!["cluster_manager.local_cluster_name: there is no static cluster \"peers\""],
        ),
        (
            "node: { id: n }\ndynamic_resources: { ads_config: { api_type: REST } }".into(),
            vec!["dynamic_resources.ads_config.api_type: REST is not supported; GRPC, DELTA_GRPC and files are"],
        ),
    ] {
        let rejection = read(&text).unwrap_err();
        let got: Vec<String> = rejection.problems.iter().map(ToString::to_string).collect();
        assert_eq!(got, expected, "{text}");
        assert!(rejection.to_string().starts_with("Bootstrap \"n\": "));
    }
}

/// Agents that identify themselves to their server by a token write it there.
#[test]
fn streams_of_ads_have_metadata() {
    let with = |metadata: &str| {
        let grpc = format!("grpc_services: [{{ envoy_grpc: {{ cluster_name: xds-grpc }}, {metadata} }}]");
        let dynamic = DYNAMIC.replace("grpc_services: [{ envoy_grpc: { cluster_name: xds-grpc } }]", &grpc);
        read(&format!("node: {{ id: n }}\n{dynamic}static_resources:\n  clusters:{CLUSTERS}"))
    };
    let found = |metadata: &str| -> Vec<(String, String)> {
        let ads = with(metadata).unwrap_or_else(|error| panic!("{error}")).ads.expect("a server");
        ads.metadata.iter().map(|one| (one.name.to_string(), one.value.to_string())).collect()
    };
    let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let all = "initial_metadata: [{ key: x-consul-token, value: '' }, { key: X-Team, value: blue team }]";
    assert_eq!(found(all), [pair("x-consul-token", ""), pair("x-team", "blue team")]);
    assert_eq!(found("initial_metadata: []"), []);
    for (metadata, expected) in [
        ("timeout: 1s", "grpc_services[0].timeout: is not supported for sources of configuration"),
        (
            "initial_metadata: [{ key: a-bin, value: x }]",
            "grpc_services[0].initial_metadata[0].key: \"a-bin\" cannot be sent",
        ),
        (
            "initial_metadata: [{ key: 'a b', value: x }]",
            "grpc_services[0].initial_metadata[0].key: \"a b\" cannot be sent",
        ),
        (
            "initial_metadata: [{ key: a, value: '%PROTOCOL%' }]",
            "grpc_services[0].initial_metadata[0].value: only text without operators is supported for sources of configuration",
        ),
    ] {
        let rejection = with(metadata).unwrap_err();
        let got: Vec<String> = rejection.problems.iter().map(ToString::to_string).collect();
        assert_eq!(got, [format!("dynamic_resources.ads_config.{expected}")], "{metadata}");
    }
}

const MONITORS: &str = r#"
  resource_monitors:
  - name: envoy.resource_monitors.fixed_heap
    typed_config: { "@type": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig, max_heap_size_bytes: 1000 }
  - name: connections
    typed_config: { "@type": type.googleapis.com/envoy.extensions.resource_monitors.downstream_connections.v3.DownstreamConnectionsConfig, max_active_downstream_connections: 50000 }
  - name: memory
    typed_config: { "@type": type.googleapis.com/envoy.extensions.resource_monitors.cgroup_memory.v3.CgroupMemoryConfig }
"#;

#[test]
fn an_overload_manager_and_the_limits_of_the_runtime_layer() {
    let text = format!(
        "node: {{ id: n }}
overload_manager:
  refresh_interval: 0.25s{MONITORS}
  actions:
  - name: envoy.overload_actions.stop_accepting_requests
    triggers: [{{ name: envoy.resource_monitors.fixed_heap, threshold: {{ value: 0.9 }} }}, {{ name: memory, scaled: {{ scaling_threshold: 0.5, saturation_threshold: 0.75 }} }}]
layered_runtime:
  layers:
  - name: static
    static_layer:
      overload: {{ global_downstream_max_connections: 40000, premature_reset_total_stream_count: 6 }}
      overload.premature_reset_min_stream_lifetime_seconds: \"3\"
      envoy.resource_limits.listener.web.connection_limit: 7
      evenkeel.resource_limits.listener.web.request_limit: \"9\"
      evenkeel.resource_limits.listener.web.memory_limit: 1000000
      re2.max_program_size.error_level: 1024
  - name: admin
    admin_layer: {{}}"
    );
    let overload = read(&text).unwrap_or_else(|error| panic!("{error}")).overload;
    assert_eq!(overload.refresh_interval, Duration::from_millis(250));
    assert_eq!(
        overload.monitors,
        [
            Monitor::FixedHeap { max_bytes: 1000 },
            Monitor::DownstreamConnections { max: 50000 },
            Monitor::CgroupMemory { max_bytes: None }
        ]
    );
    let triggers = vec![Trigger { monitor: 0, from: 0.9, full: 0.9 }, Trigger { monitor: 2, from: 0.5, full: 0.75 }];
    assert_eq!(overload.actions, [ActionRule { action: Action::StopAcceptingRequests, triggers }]);
    assert_eq!(overload.max_connections, Some(40000));
    assert_eq!(overload.premature_resets, PrematureResets { total_stream_count: 6, min_stream_lifetime_seconds: 3 });
    let web = ListenerLimits { connections: Some(7), requests: Some(9), memory_bytes: Some(1_000_000) };
    assert_eq!(overload.listeners.into_iter().collect::<Vec<_>>(), [("web".into(), web)]);

    let extents = |from, full, shares: &[f64]| -> Vec<f64> {
        shares.iter().map(|share| Trigger { monitor: 0, from, full }.extent(*share)).collect()
    };
    assert_eq!(extents(0.5, 0.75, &[0.0, 0.5, 0.625, 0.75, 2.0]), [0.0, 0.0, 0.5, 1.0, 1.0]);
    assert_eq!(extents(0.9, 0.9, &[0.89, 0.9]), [0.0, 1.0]);
}

#[test]
fn mistakes_in_limits_are_named_with_their_path() {
    let manager = |rest: &str| format!("node: {{ id: n }}\noverload_manager:{MONITORS}{rest}");
    let action =
        |name: &str, trigger: &str| manager(&format!("  actions: [{{ name: {name}, triggers: [{trigger}] }}]"));
    let stop = "envoy.overload_actions.stop_accepting_requests";
    let runtime = |layer: &str| {
        format!("node: {{ id: n }}\nlayered_runtime: {{ layers: [{{ name: a, static_layer: {layer} }}] }}")
    };
    for (text, expected) in [
        (
            action("envoy.overload_actions.fly", "{ name: memory, threshold: { value: 1 } }"),
            "overload_manager.actions[0].name: \"envoy.overload_actions.fly\" is not supported",
        ),
        (
            action(stop, "{ name: nowhere, threshold: { value: 1 } }"),
            "overload_manager.actions[0].triggers[0].name: there is no resource monitor \"nowhere\"",
        ),
        (
            action(stop, "{ name: memory, threshold: { value: 1.5 } }"),
            "overload_manager.actions[0].triggers[0]: thresholds must lie between 0 and 1",
        ),
        (
            action(stop, "{ name: memory, scaled: { scaling_threshold: 0.9, saturation_threshold: 0.5 } }"),
            "overload_manager.actions[0].triggers[0]: thresholds must lie",
        ),
        (
            manager(
                "  - name: c\n    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.resource_monitors.fixed_heap.v3.FixedHeapConfig }",
            ),
            "overload_manager.resource_monitors[3].typed_config.max_heap_size_bytes: must be greater than 0",
        ),
        (
            manager(
                "  - name: r\n    typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router }",
            ),
            "overload_manager.resource_monitors[3].typed_config: envoy.extensions.filters.http.router.v3.Router is no resource monitor",
        ),
        (
            runtime("{ overload.some_key: 1 }"),
            "layered_runtime.layers[0].static_layer[\"overload.some_key\"]: the runtime key is not supported; these are: overload.global_downstream_max_connections",
        ),
        (runtime("{ envoy.resource_limits.listener.web.connection_limit: -1 }"), "must be a whole number, 0 or more"),
    ] {
        let rejection = read(&text).unwrap_err();
        assert!(rejection.to_string().contains(expected), "{text}\n{rejection}");
    }
}
