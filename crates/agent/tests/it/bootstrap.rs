use std::path::Path;

use evenkeel_agent::{bootstrap, grpc};
use evenkeel_testkit::{envoy_validate, golden};
use serde_json::{Value, json};

use crate::support::options;

/// Options as `evenkeel up` and a pod would give them; the files named need not exist.
fn words<'a>(role: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["agent", role, "--id", "web-0.default", "--namespace", "default", "--service-account", "web"];
    words.extend(["--ip", "10.244.0.5", "--labels", "app=web", "--labels", "version=v1"]);
    words.extend(["--token", "/state/token", "--root-cert", "/state/root.pem", "--state", "/state"]);
    words.extend(more);
    words
}

fn rendered(words: &[&str]) -> String {
    serde_json::to_string_pretty(&bootstrap::bootstrap(&options(words), 0).unwrap()).unwrap() + "\n"
}

#[test]
fn the_files_are_as_recorded() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let sidecar = words("sidecar", &["--discovery-address", "10.244.0.1:15012"]);
    golden::check(folder.join("sidecar.json"), &rendered(&sidecar));
    golden::check(folder.join("router.json"), &rendered(&words("router", &["--workload-name", "ingress"])));
    let program = options(&words("sidecar", &["--no-proxy", "--grpc-bootstrap", "/state/grpc-bootstrap.json"]));
    let file = serde_json::to_string_pretty(&grpc::bootstrap(&program).unwrap()).unwrap() + "\n";
    golden::check(folder.join("grpc.json"), &file);
}

#[test]
fn what_the_owner_says_of_the_proxy_goes_to_the_control_plane() {
    let proxy_config = |text: &str| {
        let bootstrap = bootstrap::bootstrap(&options(&words("router", &["--proxy-config", text])), 0).unwrap();
        bootstrap["node"]["metadata"]["PROXY_CONFIG"].clone()
    };
    let text = r#"{"gatewayTopology":{"proxyProtocol":{}}}"#;
    assert_eq!(proxy_config(text).to_string(), text);
    assert!(proxy_config("{}").is_null());
}

#[test]
fn what_istio_keeps_of_the_statistics_stays_beside_what_the_owner_includes() {
    let patterns = |config: &str, annotations: &str| -> Option<Vec<String>> {
        let mut options = options(&words("sidecar", &["--proxy-config", config]));
        options.environment = vec![("ISTIO_METAJSON_ANNOTATIONS".to_owned(), annotations.to_owned())];
        let bootstrap = bootstrap::bootstrap(&options, 0).unwrap();
        if bootstrap["stats_config"].is_null() {
            return None;
        }
        let patterns = bootstrap["stats_config"]["stats_matcher"]["inclusion_list"]["patterns"].as_array().unwrap();
        Some(patterns.iter().map(|pattern| pattern.to_string().replace('"', "")).collect())
    };
    let check = |config: &str, annotations: &str, expected: &[&str]| {
        let patterns = patterns(config, annotations).expect("a matcher");
        let kept = ["server", "istio", "evenkeel", "cluster.xds-grpc"].map(|text| format!("{{prefix:{text}}}"));
        let kept = kept.into_iter().chain(["{suffix:downstream_cx_active}".into(), "{suffix:rbac.denied}".into()]);
        for pattern in kept.chain(expected.iter().map(|text| (*text).to_owned())) {
            assert!(patterns.contains(&pattern), "{config} {annotations}: {pattern} not in {patterns:?}");
        }
        assert_eq!(patterns.len(), 15 + expected.len(), "{config} {annotations}: {patterns:?}");
    };
    let config = r#"{"proxyStatsMatcher":{"inclusionPrefixes":["http.{pod_ip}_","a"],"inclusionSuffixes":["z"],"inclusionRegexps":["x.*"]}}"#;
    let of_config = ["{suffix:z}", "{safe_regex:{regex:x.*}}"];
    check(config, "{}", &[&["{prefix:http.10.244.0.5_}", "{prefix:a}"][..], &of_config].concat());
    // An annotation replaces the list of its kind, and no other.
    let annotations = r#"{"sidecar.istio.io/statsInclusionPrefixes":"cluster.outbound,listener"}"#;
    check(config, annotations, &[&["{prefix:cluster.outbound}", "{prefix:listener}"][..], &of_config].concat());
    check("{}", annotations, &["{prefix:cluster.outbound}", "{prefix:listener}"]);
    check("{}", r#"{"sidecar.istio.io/statsInclusionSuffixes":"cx_total"}"#, &["{suffix:cx_total}"]);
    check("{}", r#"{"sidecar.istio.io/statsInclusionRegexps":"a.*z"}"#, &["{safe_regex:{regex:a.*z}}"]);
    check(r#"{"proxyStatsMatcher":{}}"#, "not JSON", &[]);
    assert_eq!(patterns("{}", r#"{"sidecar.istio.io/statsInclusionPrefixes":""}"#), None);
    assert_eq!(patterns("{}", "{}"), None);
}

#[test]
fn further_tags_of_statistics_are_those_of_the_config_and_the_annotation() {
    let check = |config: &str, annotation: &str, expected: &[&str]| {
        let mut options = options(&words("sidecar", &["--proxy-config", config]));
        let annotations = format!(r#"{{"sidecar.istio.io/extraStatTags":"{annotation}"}}"#);
        options.environment = vec![("ISTIO_METAJSON_ANNOTATIONS".to_owned(), annotations)];
        let bootstrap = bootstrap::bootstrap(&options, 0).unwrap();
        let tags = bootstrap["stats_config"]["stats_tags"].as_array().cloned().unwrap_or_default();
        let tags: Vec<String> =
            tags.iter().map(|tag| format!("{} {}", tag["tag_name"], tag["regex"]).replace('"', "")).collect();
        assert_eq!(tags, expected, "{config} {annotation}");
        assert!(bootstrap["stats_config"]["stats_matcher"].is_null());
    };
    let tag = |name: &str| format!(r"{name} ({name}=\\.=(.*?);\\.;)");
    let (a, b) = (tag("a"), tag("b_1"));
    check("{}", "", &[]);
    check(r#"{"extraStatTags":["a"]}"#, "b_1, a", &[&a, &b]);
    // What could change the expression is left out; the control plane's findings name it.
    check(r#"{"extraStatTags":["a)|(.*"]}"#, "b_1", &[&b]);
}

#[test]
fn histograms_have_the_buckets_of_the_annotation() {
    let check = |annotation: &str, expected: Value| {
        let mut options = options(&words("sidecar", &[]));
        let annotations = json!({ "sidecar.istio.io/statsHistogramBuckets": annotation });
        options.environment = vec![("ISTIO_METAJSON_ANNOTATIONS".to_owned(), annotations.to_string())];
        let bootstrap = bootstrap::bootstrap(&options, 0).unwrap();
        assert_eq!(bootstrap["stats_config"]["histogram_bucket_settings"], expected, "{annotation}");
    };
    let setting = |prefix: &str, buckets: &[f64]| json!({ "match": { "prefix": prefix }, "buckets": buckets });
    check(
        r#"{"istio": [5, 1, 5], "cluster": [0.5]}"#,
        json!([setting("cluster", &[0.5]), setting("istio", &[1.0, 5.0])]),
    );
    // What an Envoy would refuse is left out.
    check(r#"{"istio": [-1, 0, 2], "a": [], "": [1]}"#, json!([setting("istio", &[2.0])]));
    check(r#"{"istio": "5"}"#, Value::Null);
    check("not JSON", Value::Null);
}

#[test]
fn runtime_values_are_for_the_proxy_that_has_the_key() {
    let layer = |config: &str, more: &[&str]| {
        let more: Vec<&str> = ["--proxy-config", config].iter().chain(more).copied().collect();
        let bootstrap = bootstrap::bootstrap(&options(&words("sidecar", &more)), 0).unwrap();
        bootstrap["layered_runtime"]["layers"][0]["static_layer"].to_string().replace('"', "")
    };
    let limit = "overload.global_downstream_max_connections";
    let config = format!(r#"{{"runtimeValues":{{"{limit}":"7","envoy.reloadable_features.x":"false","a.b":""}}}}"#);
    assert_eq!(layer(&config, &[]), format!("{{{limit}:7}}"));
    let size = "re2.max_program_size.error_level";
    assert_eq!(
        layer(&config, &["--envoy", "/bin/envoy"]),
        format!("{{{size}:32768,{limit}:7,envoy.reloadable_features.x:false}}")
    );
    assert_eq!(layer("{}", &["--envoy", "/bin/envoy"]), format!("{{{size}:32768}}"));
    let own = format!(r#"{{"runtimeValues":{{"{size}":"50"}}}}"#);
    assert_eq!(layer(&own, &["--envoy", "/bin/envoy"]), format!("{{{size}:50}}"));
    assert_eq!(layer(&format!(r#"{{"runtimeValues":{{"{limit}":"many"}}}}"#), &[]), "null");
    assert_eq!(layer("{}", &[]), "null");
}

#[test]
fn the_proxy_presents_itself_as_its_config_says() {
    let check = |config: &str, labels: &[&str], expected: &str| {
        let more = labels.iter().flat_map(|label| ["--labels", *label]);
        let more: Vec<&str> = ["--proxy-config", config].into_iter().chain(more).collect();
        let node = bootstrap::bootstrap(&options(&words("sidecar", &more)), 0).unwrap()["node"].clone();
        assert_eq!(node["cluster"], *expected, "{config} {labels:?}");
    };
    let canonical = &["service.istio.io/canonical-name=shop"][..];
    check("{}", canonical, "web.default");
    check(r#"{"serviceCluster":"front"}"#, canonical, "front");
    check(r#"{"serviceCluster":"istio-proxy"}"#, canonical, "web.default");
    check(r#"{"tracingServiceName":"CANONICAL_NAME_ONLY"}"#, canonical, "shop");
    // Istio's injector writes the name of the application or of the workload.
    check(r#"{"tracingServiceName":"CANONICAL_NAME_ONLY"}"#, &["app=a"], "a");
    check(r#"{"tracingServiceName":"CANONICAL_NAME_ONLY"}"#, &["app=a", "app.kubernetes.io/name=b"], "b");
    check(r#"{"tracingServiceName":"CANONICAL_NAME_ONLY"}"#, &[], "web");
    check(r#"{"tracingServiceName":"CANONICAL_NAME_AND_NAMESPACE"}"#, canonical, "shop.default");
    check(r#"{"tracingServiceName":"APP_LABEL_AND_NAMESPACE"}"#, &["app=other"], "other.default");
}

#[test]
fn the_nodes_metadata_come_from_proxy_config_the_environment_and_the_command_line() {
    let environment = [
        ("ISTIO_META_NETWORK", "of the environment"),
        ("ISTIO_META_AUTO_REGISTER_GROUP", "vm"),
        ("ISTIO_META_NAMESPACE", "another"),
        ("ISTIO_METAJSON_LABELS", r#"{"app": "other", "tier": "db"}"#),
    ];
    let config = r#"{"proxyMetadata":{"ISTIO_META_NETWORK":"of the config","ISTIO_META_A":"a","OTHER":"x"}}"#;
    let mut options = options(&words("sidecar", &["--proxy-config", config, "--metadata", "A=b"]));
    options.environment = environment.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let metadata = bootstrap::bootstrap(&options, 0).unwrap()["node"]["metadata"].clone();
    let check = |name: &str, expected: &str| assert_eq!(metadata[name], *expected, "{name}");
    check("NETWORK", "of the environment");
    check("AUTO_REGISTER_GROUP", "vm");
    check("A", "b");
    check("NAMESPACE", "default");
    check("DNS_CAPTURE", "true");
    assert_eq!(metadata["LABELS"], json!({"app": "web", "tier": "db", "version": "v1"}));
    assert!(metadata["OTHER"].is_null());
}

#[test]
fn the_config_sets_what_no_option_does() {
    let config = r#"{"concurrency":5,"terminationDrainDuration":"7.5s","interceptionMode":"TPROXY"}"#;
    let check = |more: &[&str], concurrency: u32, drain_ms: u128, mode: &Value| {
        let options = options(&words("sidecar", more));
        assert_eq!((options.concurrency(), options.drain_time().as_millis()), (concurrency, drain_ms), "{more:?}");
        let metadata = &bootstrap::bootstrap(&options, 0).unwrap()["node"]["metadata"];
        assert_eq!(metadata["INTERCEPTION_MODE"], *mode, "{more:?}");
    };
    check(&[], 2, 5_000, &Value::Null);
    check(&["--proxy-config", config], 5, 7_500, &json!("TPROXY"));
    let more = ["--concurrency", "1", "--drain-time-s", "3", "--metadata", "INTERCEPTION_MODE=REDIRECT"];
    check(&[&["--proxy-config", config][..], &more].concat(), 1, 3_000, &json!("REDIRECT"));
    check(&["--proxy-config", r#"{"concurrency":0,"terminationDrainDuration":"soon"}"#], 0, 5_000, &Value::Null);
}

/// A Pod's grace period has room for the drain time that is asked for, and not for accepting beside it.
#[test]
fn accepting_is_a_part_of_the_drain_time_that_is_asked_for() {
    let check = |more: &[&str], expected_s: u64| {
        let options = options(&words("sidecar", &[&["--accept-after-stop-s", "5"], more].concat()));
        assert_eq!(options.drain_time_after_accepting().as_secs(), expected_s, "{more:?}");
    };
    check(&[], 5);
    check(&["--proxy-config", r#"{"terminationDrainDuration":"25s"}"#], 20);
    check(&["--proxy-config", r#"{"terminationDrainDuration":"25s"}"#, "--drain-time-s", "8"], 3);
    check(&["--drain-time-s", "3"], 0);
}

#[test]
fn dns_is_answered_unless_the_metadata_say_otherwise() {
    let check = |more: &[&str], expected: bool| {
        let options = options(&words("sidecar", more));
        let metadata = bootstrap::bootstrap(&options, 0).unwrap()["node"]["metadata"].clone();
        assert_eq!((options.dns().is_some(), metadata["DNS_CAPTURE"] == "true"), (expected, expected), "{more:?}");
    };
    check(&[], true);
    check(&["--metadata", "DNS_CAPTURE=true"], true);
    check(&["--metadata", "DNS_CAPTURE=false"], false);
    check(&["--proxy-config", r#"{"proxyMetadata":{"ISTIO_META_DNS_CAPTURE":"false"}}"#], false);
    check(&["--metadata", "DNS_CAPTURE=false", "--dns-address", "127.0.0.1:53"], true);
    check(&["--no-capture", "--metadata", "DNS_CAPTURE=true"], false);
}

#[test]
fn a_sidecar_that_discovers_itself_has_a_local_cluster() {
    let of = |role: &str, more: &[&str]| bootstrap::bootstrap(&options(&words(role, more)), 0).unwrap();
    let config = r#"{"proxyMetadata":{"ISTIO_META_ENABLE_SELF_DISCOVERY":"true"}}"#;
    let check = |role: &str, more: &[&str], expected: bool| {
        let bootstrap = of(role, more);
        let clusters = bootstrap["static_resources"]["clusters"].as_array().unwrap();
        let has = clusters.iter().any(|cluster| cluster["name"] == "local_cluster" && cluster["type"] == "EDS");
        let named = bootstrap["cluster_manager"]["local_cluster_name"] == "local_cluster";
        assert_eq!((has, named), (expected, expected), "{role} {more:?}");
    };
    check("sidecar", &[], false);
    check("sidecar", &["--metadata", "ENABLE_SELF_DISCOVERY=true"], true);
    check("sidecar", &["--proxy-config", config], true);
    check("sidecar", &["--metadata", "ENABLE_SELF_DISCOVERY=false"], false);
    check("router", &["--proxy-config", config], false);
    let marked = of("sidecar", &["--proxy-config", config]);
    assert!(marked["cluster_manager"]["upstream_bind_config"].is_object());
}

#[test]
fn the_node_says_where_its_workload_runs() {
    let locality = |labels: &[&str]| {
        let more: Vec<&str> = labels.iter().flat_map(|label| ["--labels", *label]).collect();
        let node = bootstrap::bootstrap(&options(&words("sidecar", &more)), 0).unwrap()["node"].clone();
        ["region", "zone", "sub_zone"].map(|part| node["locality"][part].as_str().unwrap_or("-").to_owned()).join("/")
    };
    assert_eq!(locality(&[]), "-/-/-");
    assert_eq!(locality(&["istio-locality=r1.z2.s3"]), "r1/z2/s3");
    assert_eq!(locality(&["istio-locality=r1"]), "r1//");
    assert_eq!(locality(&["istio-locality=r1", "topology.istio.io/locality=r2.z1"]), "r2/z1/");
    let topology =
        ["topology.kubernetes.io/region=r1", "topology.kubernetes.io/zone=z2", "topology.istio.io/subzone=s3"];
    assert_eq!(locality(&topology), "r1/z2/s3");
    assert_eq!(locality(&topology[1..2]), "/z2/");
}

#[test]
fn envoy_accepts_them() {
    let ca = evenkeel_testkit::TestCa::new();
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("root.pem");
    std::fs::write(&root, ca.root_pem()).unwrap();
    let root = root.display().to_string();
    for role in ["sidecar", "router"] {
        for more in [
            &[][..],
            &["--discovery-address", "[::1]:15012"],
            &["--metadata", "ENABLE_SELF_DISCOVERY=true"],
            &[
                "--proxy-config",
                r#"{"extraStatTags":["a"],"runtimeValues":{"overload.premature_reset_total_stream_count":"5"}}"#,
            ],
            &["--discovery-address", "10.0.0.1:15012", "--proxy-resolver", "10.0.0.1:53"],
            &[
                "--proxy-config",
                r#"{"tracing":{"zipkin":{"address":"zipkin:9411"},"tlsSettings":{"mode":"ISTIO_MUTUAL"}},"statsdUdpAddress":"10.0.0.1:8125",
                    "envoyMetricsService":{"address":"10.0.0.1:1","tlsSettings":{"mode":"SIMPLE"},"tcpKeepalive":{"probes":3,"time":"10s"}},
                    "envoyAccessLogService":{"address":"[::1]:1","tlsSettings":{"mode":"SIMPLE","insecureSkipVerify":true}}}"#,
            ],
        ] {
            let mut words = words(role, more);
            // Envoy reads the root file when it validates.
            let at = words.iter().position(|word| *word == "/state/root.pem").unwrap();
            words[at] = &root;
            envoy_validate(&rendered(&words)).unwrap_or_else(|error| panic!("{role} {more:?}: {error}"));
        }
    }
}

/// What the proxy sends, and where, as Istio's bootstrap has it.
#[test]
fn the_bootstrap_says_where_spans_logs_and_statistics_go() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden");
    let config = r#"{
        "tracing": {"zipkin": {"address": "zipkin.istio-system:9411"}, "tlsSettings": {"mode": "ISTIO_MUTUAL", "subjectAltNames": ["spiffe://cluster.local/ns/istio-system/sa/zipkin"]}},
        "statsdUdpAddress": "10.96.0.9:8125",
        "envoyMetricsService": {"address": "10.96.0.8:15000", "tcpKeepalive": {"probes": 3, "time": "10s", "interval": "0.5s"}},
        "envoyAccessLogService": {"address": "[fd00::8]:15000", "tlsSettings": {"mode": "MUTUAL", "clientCertificate": "/c", "privateKey": "/k", "caCertificates": "/r", "caCrl": "/l"}}
    }"#;
    let all = bootstrap::bootstrap(&options(&words("sidecar", &["--proxy-config", config])), 0).unwrap();
    let plain = bootstrap::bootstrap(&options(&words("sidecar", &[])), 0).unwrap();
    let clusters = |all: &Value| all["static_resources"]["clusters"].as_array().unwrap().clone();
    let added: Vec<Value> = clusters(&all).split_off(clusters(&plain).len());
    let shown = json!({ "tracing": all["tracing"], "stats_sinks": all["stats_sinks"], "clusters": added });
    golden::check(folder.join("telemetry.json"), &(serde_json::to_string_pretty(&shown).unwrap() + "\n"));
    assert!(plain["tracing"].is_null() && plain["stats_sinks"].is_null());

    let tls = |settings: &str| {
        let config = format!(r#"{{"zipkinAddress": "zipkin:9411", "tracing": {{"tlsSettings": {settings}}}}}"#);
        let all = bootstrap::bootstrap(&options(&words("sidecar", &["--proxy-config", &config])), 0).unwrap();
        let socket = clusters(&all).pop().unwrap()["transport_socket"]["typed_config"].clone();
        let checks = &socket["common_tls_context"]["validation_context"];
        let name = &checks["match_typed_subject_alt_names"][0];
        let shown = [&socket["sni"], &checks["trusted_ca"]["filename"], &name["san_type"], &name["matcher"]["exact"]];
        shown.map(|value| value.as_str().unwrap_or("-").to_owned()).join(" ")
    };
    // Without names, the server is the one that was called.
    assert_eq!(tls(r#"{"mode": "SIMPLE"}"#), "zipkin /etc/ssl/certs/ca-certificates.crt DNS zipkin");
    assert_eq!(tls(r#"{"mode": "SIMPLE", "sni": "z.test", "caCertificates": "/r"}"#), "z.test /r DNS z.test");
    assert_eq!(tls(r#"{"mode": "SIMPLE", "insecureSkipVerify": true}"#), "zipkin - - -");
    assert_eq!(tls(r#"{"mode": "DISABLE"}"#), "- - - -");

    // With the mesh's certificates, revocation lists count, and nothing skips the verification.
    let config = r#"{"zipkinAddress": "zipkin:9411", "tracing": {"tlsSettings":
        {"mode": "ISTIO_MUTUAL", "subjectAltNames": ["spiffe://a/z"], "caCrl": "/l", "insecureSkipVerify": true}}}"#;
    let all = bootstrap::bootstrap(&options(&words("sidecar", &["--proxy-config", config])), 0).unwrap();
    let socket = clusters(&all).pop().unwrap()["transport_socket"]["typed_config"].clone();
    let combined = &socket["common_tls_context"]["combined_validation_context"];
    let checks = &combined["default_validation_context"];
    assert_eq!(checks["crl"], json!({"filename": "/l"}));
    assert_eq!(checks["match_typed_subject_alt_names"][0]["matcher"]["exact"], "spiffe://a/z");
    assert_eq!(combined["validation_context_sds_secret_config"]["name"], "ROOTCA");

    // What cannot be read sends nothing, and the proxy starts.
    for config in [
        r#"{"zipkinAddress": "zipkin", "statsdUdpAddress": "statsd:8125", "envoyMetricsServiceAddress": ":1"}"#,
        r#"{"zipkinAddress": "zipkin:9411", "tracing": {"tlsSettings": {"mode": "WHAT"}}}"#,
        r#"{"zipkinAddress": 5}"#,
    ] {
        let all = bootstrap::bootstrap(&options(&words("sidecar", &["--proxy-config", config])), 0).unwrap();
        assert_eq!(clusters(&all), clusters(&plain), "{config}");
        assert!(all["tracing"].is_null() && all["stats_sinks"].is_null(), "{config}");
    }
}

#[test]
fn contradicting_options_are_named() {
    let check = |change: (&'static str, &'static str), expected: &str| {
        let mut words = words("sidecar", &[]);
        let at = words.iter().position(|word| *word == change.0).unwrap();
        words[at + 1] = change.1;
        let options = options(&words);
        let error = bootstrap::bootstrap(&options, 0).err().or_else(|| options.identity().err()).expect("an error");
        assert_eq!(error.to_string(), expected);
    };
    check(("--id", "web-0.other"), "--id web-0.other: expected POD.default, because --namespace is `default`");
    check(("--id", ".default"), "--id .default: expected POD.default, because --namespace is `default`");
    check(("--id", "web-0"), "--id web-0: expected POD.default, because --namespace is `default`");
    check(
        ("--service-account", "we/b"),
        "--trust-domain, --namespace and --service-account do not make an identity: \
         the path of a workload's SPIFFE id is `/ns/NAMESPACE/sa/SERVICE-ACCOUNT`",
    );
}
