//! Objects and settings of an Istio installation that change nothing here: a finding says so, where the user looks.

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
    settings("serviceSettings: [{hosts: ['*'], settings: {clusterLocal: true}}]", NOTE);
    settings("defaultProviders: {metrics: [prometheus]}", &["warning unsupported-provider"]);
    settings("extensionProviders: [{name: p, prometheus: {}}]", NOTE);
    settings(
        "extensionProviders: [{name: p, prometheus: {}}]\ndefaultProviders: {metrics: [p]}",
        &["warning unsupported-provider"],
    );
    // What no default names.
    let zipkin = "extensionProviders: [{name: p, zipkin: {service: a.test, port: 9411}}]";
    settings(zipkin, NOTE);
    settings(&format!("{zipkin}\ndefaultProviders: {{tracing: [p]}}"), &[]);
    let log = "extensionProviders: [{name: p, envoyFileAccessLog: {path: /dev/stdout}}]";
    settings(log, NOTE);
    settings(&format!("{log}\ndefaultProviders: {{accessLogging: [p]}}"), &[]);
    settings("extensionProviders: [{name: p, envoyTcpAls: {service: a.test, port: 1}}]", NOTE);
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
    check(&entry(", network: vm"), NOTE);
    let service = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: a}\n\
                   spec: {hosts: [a.test], ports: [{number: 80, name: http}], resolution: STATIC, endpoints: [{address: 10.0.0.1, network: vm}]}\n";
    check(service, NOTE);
    let pod = |metadata: &str| {
        format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: a, {metadata}}}\nspec: {{containers: [{{name: a}}]}}\n")
    };
    check(&pod("labels: {topology.istio.io/network: vm}"), NOTE);
    let ranges = |name: &str, value: &str| pod(&format!("annotations: {{traffic.sidecar.istio.io/{name}: '{value}'}}"));
    for name in ["includeOutboundIPRanges", "excludeOutboundIPRanges"] {
        check(&ranges(name, "10.0.0.0/8"), &[]);
        check(&ranges(name, "10.0.0.0/8,fd00::/8"), WARNING);
    }
}
