//! Objects and settings of an Istio installation that change nothing here: a finding says so, where the user looks.

use evenkeel_api::decode::{Decode, Schema, Status};
use evenkeel_api::istio::{OF_AGENT, ProxyConfig};
use evenkeel_testkit::workspace;
use serde_json::json;

/// The codes of a document's findings that name this.
#[track_caller]
fn check(document: &str, expected: &[&str]) {
    let (_, found) = evenkeel_api::load(&[("a.yaml".into(), document.into())]);
    let codes: Vec<String> = found.iter().map(|finding| format!("{} {}", finding.severity, finding.code)).collect();
    assert_eq!(codes, expected, "{document}\n{found}");
    assert!(found.iter().all(|finding| finding.span.line > 0 && finding.help.is_some()), "{found}");
}

fn config_map(name: &str, namespace: &str, data: &str) -> String {
    format!("apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}, namespace: {namespace}}}\ndata: {{{data}}}\n")
}

const WARNING: &[&str] = &["warning no-effect"];
const NOTE: &[&str] = &["info no-effect"];

#[test]
fn objects_of_an_installation_that_nothing_reads_are_named() {
    let check_map = |name: &str, namespace: &str, data: &str, expected: &[&str]| {
        check(&config_map(name, namespace, data), expected);
    };
    let mesh = "mesh: 'connectTimeout: 1s'";
    check_map("istio", "istio-system", mesh, &[]);
    check_map("istio-1-29", "istio-system", mesh, WARNING);
    check_map("istio-canary", "istio-system", mesh, WARNING);
    check_map("istio-canary", "shop", mesh, &[]);
    check_map("istio-ca-root-cert", "istio-system", "root-cert.pem: x", &[]);
    check_map("istio-sidecar-injector", "istio-system", "config: x", WARNING);
    check_map("istio-sidecar-injector-canary", "istio-system", "config: x", WARNING);
    check_map("istio", "istio-system", "mesh: '', meshNetworks: 'networks: {}'", &[]);
    check_map("istio", "istio-system", "mesh: '', meshNetworks: 'networks: {a: {}}'", WARNING);
    let secret = |name: &str, namespace: &str| {
        format!(
            "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: {namespace}}}\nstringData: {{ca-cert.pem: x}}\n"
        )
    };
    check(&secret("cacerts", "istio-system"), WARNING);
    check(&secret("istio-ca-secret", "istio-system"), WARNING);
    check(&secret("cacerts", "shop"), &[]);
}

#[test]
fn settings_of_the_mesh_that_change_nothing_are_named() {
    let settings = |text: &str, expected: &[&str]| {
        let text = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |-\n    {}\n",
            text.replace('\n', "\n    ")
        );
        check(&text, expected);
    };
    settings("serviceSettings: [{hosts: ['*'], settings: {clusterLocal: true}}]", &[]);
    settings("defaultProviders: {metrics: [prometheus]}", &[]);
    settings("extensionProviders: [{name: p, prometheus: {}}]\ndefaultProviders: {metrics: [p]}", &[]);
    let zipkin = "extensionProviders: [{name: p, zipkin: {service: a.test, port: 9411}}]";
    settings(&format!("{zipkin}\ndefaultProviders: {{tracing: [p]}}"), &[]);
    let log = "extensionProviders: [{name: p, envoyFileAccessLog: {path: /dev/stdout}}]";
    settings(&format!("{log}\ndefaultProviders: {{accessLogging: [p]}}"), &[]);
    settings("extensionProviders: [{name: p, sds: {name: a, service: a.test, port: 1}}]", NOTE);
    // AuthorizationPolicies name these.
    settings("extensionProviders: [{name: p, envoyExtAuthzGrpc: {service: a.test, port: 1}}]", &[]);
}

#[test]
fn networks_and_ipv6_ranges_are_named() {
    let entry = |more: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {{name: a}}\nspec: {{address: 10.0.0.1{more}}}\n"
        )
    };
    check(&entry(""), &[]);
    check(&entry(", network: vm"), &[]);
    let service = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a}\n\
                   spec: {hosts: [a.test], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{address: 10.0.0.1, network: vm}]}\n";
    check(service, &[]);
    let pod = |metadata: &str| {
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, {metadata}}}\nspec: {{containers: [{{name: a}}]}}\n")
    };
    check(&pod("labels: {topology.istio.io/cluster: west}"), NOTE);
    let ranges = |name: &str, value: &str| pod(&format!("annotations: {{traffic.sidecar.istio.io/{name}: '{value}'}}"));
    for name in ["includeOutboundIPRanges", "excludeOutboundIPRanges"] {
        check(&ranges(name, "10.0.0.0/8"), &[]);
        check(&ranges(name, "10.0.0.0/8,fd00::/8"), WARNING);
    }
}

/// Fields of an agent's `--proxy-config` that are supported in MeshConfig, but that an agent says something about.
const NAMED: [(&str, &str); 1] = [("holdApplicationUntilProxyStarts", "true")];
/// Fields that the control plane takes from the node's metadata; tables of decisions show their effect.
const OF_CONTROL_PLANE: [&str; 5] =
    ["connectionSettings", "envoyMetricsServiceAddress", "gatewayTopology", "proxyHeaders", "tracing"];

#[test]
fn each_field_of_an_agents_config_has_an_effect_or_a_finding() {
    let agent = workspace::sources(&workspace::root().join("crates/agent/src"));
    let agent: String = agent.iter().map(|path| std::fs::read_to_string(path).expect("a source file")).collect();
    // By its name, or as a field of a type whose fields are renamed: `zipkin_address: `.
    let reads = |name: &str| {
        let snake = |letter: char| {
            if letter.is_ascii_uppercase() { format!("_{}", letter.to_ascii_lowercase()) } else { letter.to_string() }
        };
        let field = format!(" {}: Option<", name.chars().map(snake).collect::<String>());
        agent.contains(&format!("\"{name}\"")) || agent.contains(&field)
    };
    let Schema::Object(fields) = <ProxyConfig as Decode>::schema() else { panic!("an object") };
    for field in fields {
        let special = NAMED.iter().find(|(name, _)| *name == field.name);
        let value = match special {
            Some((_, "true")) => json!(true),
            Some((_, value)) => json!(value),
            None => json!("x"),
        };
        let config = json!({ field.name: value });
        let found = ProxyConfig::findings_of_agent(config.as_object().expect("an object"));
        let named = found.iter().any(|finding| finding.message.contains(field.name) && finding.help.is_some());
        let is_read = reads(field.name) || OF_CONTROL_PLANE.contains(&field.name);
        match (field.status, special) {
            (Status::Works, None) => assert!(is_read, "{}: nothing reads it", field.name),
            _ => assert!(named, "{}: no finding: {found}", field.name),
        }
        assert!(!(is_read && special.is_some()), "{}: it is read", field.name);
    }
    // Each of the other lists has such fields only.
    let known = |name: &str| fields.iter().any(|field| field.name == name && field.status == Status::Works);
    assert!(OF_AGENT.iter().chain(&OF_CONTROL_PLANE).all(|name| known(name)));
    assert!(OF_AGENT.iter().all(|name| reads(name)));
}

#[test]
fn an_agents_config_is_read_as_any_other() {
    let check = |config: serde_json::Value, expected: &[&str]| {
        let found = ProxyConfig::findings_of_agent(config.as_object().expect("an object"));
        let codes: Vec<String> = found.iter().map(|finding| format!("{} {}", finding.severity, finding.code)).collect();
        assert_eq!(codes, expected, "{config}\n{found}");
    };
    check(json!({}), &[]);
    check(
        json!({"concurrency": 2, "meshId": "m", "proxyMetadata": {"ISTIO_META_DNS_CAPTURE": "true", "CA_ADDR": "a:1"}}),
        &[],
    );
    check(json!({"proxyMetadata": {"ISTIO_META_OTHER": "x"}}), &["info no-effect"]);
    check(json!({"statsdUdpAddres": "a:1"}), &["warning unknown-field"]);
    check(json!({"discoveryAddress": "a:1"}), &["info no-effect"]);
    check(json!({"privateKeyProvider": {}}), &["warning unsupported-field"]);
}
