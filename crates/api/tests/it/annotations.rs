//! Annotations and labels: each of Istio's names is in a table, and others are reported.

use std::collections::BTreeSet;

use evenkeel_api::annotations::{ANNOTATIONS, LABELS, Suppression, Verdict};
use evenkeel_api::decode::{Decode, Field, Schema};
use evenkeel_api::istio;

use crate::tables::{is_below_unsupported, walk};

/// Istio's own definitions name these fields (`mesh/v1alpha1/{config,proxy}.proto`).
#[test]
fn settings_know_all_fields_of_their_definitions() {
    let mut known = BTreeSet::new();
    for (name, schema) in
        [("MeshConfig", istio::MeshConfig::schema()), ("ProxyConfig", <istio::ProxyConfig as Decode>::schema())]
    {
        walk(name, &schema, &mut |path: &str, fields: &'static [Field]| {
            known.extend(fields.iter().map(|field| format!("{path}.{}", field.name)));
        });
    }
    let is_known = |path: &str| known.contains(path) || is_below_unsupported(&known, path);
    let missing: Vec<&str> = include_str!("mesh_fields.txt").lines().filter(|path| !is_known(path)).collect();
    assert!(missing.is_empty(), "not in any table: {missing:#?}");
    assert!(!matches!(istio::MeshConfig::schema(), Schema::Object([])));
}

#[test]
fn tables_are_in_order_and_say_what_happens() {
    for table in [ANNOTATIONS, LABELS] {
        assert!(table.windows(2).all(|pair| matches!(pair, [a, b] if a.name < b.name)));
        for known in table {
            assert!(!known.note.is_empty(), "{}", known.name);
        }
    }
    assert!(ANNOTATIONS.len() > 60 && LABELS.len() > 30);
}

/// The findings about an object with this metadata, `CODE: PATH`.
fn found(kind: &str, metadata: &str) -> Vec<String> {
    let (api, rest) = match kind {
        "Pod" => ("v1", "spec: {containers: [{name: a}]}"),
        "Service" => ("v1", "spec: {ports: [{port: 80}]}"),
        "AuthorizationPolicy" => ("security.istio.io/v1", "spec: {}"),
        "WorkloadEntry" => ("networking.istio.io/v1", "spec: {address: 10.0.0.1}"),
        "KubernetesGateway" => (
            "gateway.networking.k8s.io/v1",
            "spec: {gatewayClassName: istio, listeners: [{name: http, port: 80, protocol: HTTP}]}",
        ),
        "ServiceEntry" => {
            ("networking.istio.io/v1", "spec: {hosts: [a.example], ports: [{number: 80, name: http}], resolution: DNS}")
        }
        "Deployment" => (
            "apps/v1",
            "spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a}]}}}",
        ),
        _ => ("v1", ""),
    };
    let kind = kind.strip_prefix("Kubernetes").unwrap_or(kind);
    let text = format!("apiVersion: {api}\nkind: {kind}\nmetadata: {{name: a, {metadata}}}\n{rest}\n");
    let (_, found) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    assert!(found.iter().all(|finding| finding.span.line > 0), "{found}");
    found.iter().map(|finding| format!("{} {}", finding.severity, finding.code)).collect()
}

#[test]
fn every_name_is_honoured_or_named() {
    for (field, table) in [("annotations", ANNOTATIONS), ("labels", LABELS)] {
        for known in table {
            let place = known.places.first().copied().unwrap_or("Service");
            let (value, expected): (&str, &[&str]) = match known.verdict {
                Verdict::Honoured if known.name.contains("Ports") => ("80", &[]),
                Verdict::Honoured if known.name.contains("IPRanges") => ("10.0.0.0/8", &[]),
                Verdict::Honoured if known.name == "proxy.istio.io/config" => ("{}", &[]),
                Verdict::Honoured if known.name == "istio-injection" => ("enabled", &[]),
                Verdict::Honoured if known.name == "sidecar.istio.io/componentLogLevel" => ("misc:error", &[]),
                Verdict::Honoured if known.name.ends_with("ogLevel") => ("debug", &[]),
                Verdict::Honoured if known.name.ends_with("statsHistogramBuckets") => (r#"{"cluster": [1]}"#, &[]),
                Verdict::Honoured if known.name.ends_with("scrape-targets") => ("8080:/metrics", &[]),
                Verdict::Honoured if known.name == "status.sidecar.istio.io/port" => ("0", &[]),
                Verdict::Honoured if known.name.ends_with("canonical-serviceaccounts") => ("spiffe://a/b", &[]),
                Verdict::Honoured if known.name == "istio.io/connect-strategy" => ("DEFAULT", &[]),
                Verdict::Honoured => ("true", &[]),
                Verdict::OnlyValues(_) => ("something", &["warning unsupported-value"]),
                Verdict::NotYet => ("x", &["warning unsupported-annotation"]),
                Verdict::Inert => ("x", &["info no-effect"]),
            };
            assert_eq!(
                found(place, &format!("{field}: {{{}: '{value}'}}", known.name)),
                expected,
                "{} on {place}",
                known.name
            );
        }
    }
}

#[test]
fn what_has_no_effect_is_named() {
    let check = |kind: &str, metadata: &str, expected: &[&str]| {
        assert_eq!(found(kind, metadata), expected, "{kind} {metadata}")
    };
    let (unknown, misplaced, bad) =
        ["warning unknown-annotation", "warning misplaced-annotation", "warning bad-value"].into();
    check("Pod", "annotations: {sidecar.istio.io/injcet: 'true'}", &[unknown]);
    check("Pod", "annotations: {sidecar.isto.io/inject: 'true'}", &[unknown]);
    check("Pod", "annotations: {x.istio.io/unheard-of: y}", &[unknown]);
    check("Pod", "annotations: {gateway.networking.k8s.io/unheard-of: y}", &[unknown]);
    check("Namespace", "labels: {istio-injecton: enabled}", &[unknown]);
    check("Pod", "annotations: {example.com/inject: 'true', app: a}", &[]);
    check("Pod", "labels: {app.kubernetes.io/name: a, istio: ingressgateway}", &[]);
    // On a kind where it is not read.
    check("Deployment", "annotations: {sidecar.istio.io/inject: 'false'}", &[misplaced]);
    check("Service", "labels: {istio-injection: enabled}", &[misplaced]);
    check("Service", "annotations: {istio.io/dry-run: 'true'}", &[misplaced]);
    check("Namespace", "annotations: {istio-injection: enabled}", &[misplaced]);
    check("Pod", "annotations: {traffic.sidecar.istio.io/excludeInboundPorts: http}", &["error bad-value"]);
    check("ServiceEntry", "annotations: {istio.io/connect-strategy: race_first_tcp_connect}", &[]);
    check("ServiceEntry", "annotations: {istio.io/connect-strategy: RACE_ALL}", &["warning bad-value"]);
    check("Pod", "annotations: {sidecar.istio.io/interceptionMode: TPROXY}", &[]);
    check("Pod", "annotations: {sidecar.istio.io/interceptionMode: NONE}", &["info not-captured"]);
    check("Pod", "annotations: {sidecar.istio.io/interceptionMode: ALL}", &["warning unsupported-value"]);
    check("Pod", "annotations: {traffic.sidecar.istio.io/includeOutboundIPRanges: 10.0.0.0/99}", &["error bad-value"]);
    check("AuthorizationPolicy", "annotations: {istio.io/dry-run: maybe}", &[bad]);
    check("Pod", "annotations: {sidecar.istio.io/inject: maybe}", &[bad]);
    check("Namespace", "labels: {istio-injection: maybe}", &[bad]);
    check("Pod", "annotations: {sidecar.istio.io/extraStatTags: 'a,b c'}", &[bad]);
    let buckets = |json: &str| format!("annotations: {{sidecar.istio.io/statsHistogramBuckets: '{json}'}}");
    check("Pod", &buckets(r#"{"cluster": [1, 5, 0.5], "istio": [9]}"#), &[]);
    for mistake in ["[1]", r#"{"cluster": 1}"#, r#"{"cluster": []}"#, r#"{"": [1]}"#, r#"{"cluster": [1, 0]}"#] {
        check("Pod", &buckets(mistake), &[bad]);
    }
    check("Pod", "annotations: {prometheus.istio.io/merge-metrics: maybe}", &[bad]);
    let targets = |list: &str| format!("annotations: {{prometheus.istio.io/scrape-targets: '{list}'}}");
    check("Pod", &targets("8080:/metrics, 9100:stats?x=y,7"), &[]);
    for mistake in ["http:/metrics", "8080:/a,0:/b", "70000", ":/metrics"] {
        check("Pod", &targets(mistake), &[bad]);
    }
    for port in ["http", "15006", "70000"] {
        check("Pod", &format!("annotations: {{status.sidecar.istio.io/port: '{port}'}}"), &["warning port-conflict"]);
    }
    check("Pod", "annotations: {status.sidecar.istio.io/port: '15020'}", &[]);
    check("Pod", "annotations: {sidecar.istio.io/logLevel: loud}", &[bad]);
    check("Pod", "annotations: {sidecar.istio.io/componentLogLevel: debug}", &[bad]);
    check("Pod", "annotations: {sidecar.istio.io/agentLogLevel: 'ads:debug'}", &[bad]);
    check("Service", "annotations: {alpha.istio.io/canonical-serviceaccounts: 'spiffe://a/b,c'}", &[bad]);
    check("Service", "annotations: {alpha.istio.io/kubernetes-serviceaccounts: 'web,a/b'}", &[bad]);
    check("Pod", "annotations: {traffic.sidecar.istio.io/excludeInterfaces: 'eth0 }'}", &["error bad-value"]);
}

#[test]
fn analyze_leaves_out_the_codes_of_an_object() {
    let check = |text: &str, code: &str, expected: bool| {
        let value = evenkeel_base::Spanned::new(text.to_owned(), evenkeel_base::Span::whole_file("a.yaml"));
        let suppression = Suppression::of(&[("galley.istio.io/analyze-suppress".to_owned(), value)].into());
        assert_eq!(suppression.covers(code), expected, "{text} {code}");
    };
    check("IST0103", "IST0103", true);
    check("IST0103, IST0107", "IST0107", true);
    check("IST0103", "IST0107", false);
    check("*", "IST0107", true);
    check("", "IST0107", false);
}

/// A name that is called honoured is read by some code, and some test gives it a value.
#[test]
fn what_is_honoured_is_read_and_tested() {
    let crates = evenkeel_testkit::workspace::root().join("crates");
    let table = crates.join("api/src/annotations/table.rs");
    let sources = evenkeel_testkit::workspace::sources(&crates).into_iter().filter(|path| *path != table);
    let texts: Vec<(bool, bool, String)> = sources
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a source file");
            let is_test =
                path.components().any(|part| ["tests", "tests.rs"].iter().any(|name| part.as_os_str() == *name));
            (!is_test, is_test || text.contains("#[cfg(test)]"), text)
        })
        .collect();
    // Any label is matched by selectors; and the control plane writes some names for itself.
    let of_others = ["a label like any other", "the control plane writes it"];
    let is_honoured = |known: &&evenkeel_api::annotations::Known| {
        known.verdict == Verdict::Honoured && !of_others.iter().any(|note| known.note.starts_with(note))
    };
    for known in ANNOTATIONS.iter().chain(LABELS).filter(is_honoured) {
        let quoted = format!("\"{}\"", known.name);
        assert!(texts.iter().any(|(reads, _, text)| *reads && text.contains(&quoted)), "nothing reads {}", known.name);
        // A test may name the constant instead.
        let constants =
            texts.iter().flat_map(|(_, _, text)| text.match_indices(&quoted).map(move |(at, _)| (at, text)));
        let names: Vec<&str> = constants
            .filter_map(|(at, text)| text.get(..at)?.strip_suffix(": &str = ")?.rsplit(' ').next())
            .chain([known.name])
            .collect();
        let is_tested =
            |(_, tests, text): &(bool, bool, String)| *tests && names.iter().any(|name| text.contains(name));
        assert!(texts.iter().any(is_tested), "no test of {}", known.name);
    }
}
