//! A real API server accepts the same objects with the definitions of this program and with Istio's.

use evenkeel_install::crds;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};
use evenkeel_testkit::{golden, workspace};

#[test]
fn the_chart_has_the_definitions_of_the_program() {
    golden::check(workspace::root().join("charts/evenkeel/templates/crds.yaml"), &crds::template());
}

/// Objects as group and version, kind, and `spec`.
const OBJECTS: &[[&str; 3]] = &[
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{route: [{destination: {host: a, port: {number: 80}}}]}]}",
    ],
    [
        "networking.istio.io/v1beta1",
        "VirtualService",
        "{hosts: [a], http: [{timeout: 1s, retries: {attempts: 3}, route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1alpha3",
        "VirtualService",
        "{hosts: [a], tcp: [{match: [{port: 1}], route: [{destination: {host: a}}]}]}",
    ],
    ["networking.istio.io/v1", "VirtualService", "{hosts: a}"],
    ["networking.istio.io/v1", "VirtualService", "{hosts: [1]}"],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{route: [{destination: {host: a}, weight: many}]}]}",
    ],
    ["networking.istio.io/v1", "VirtualService", "{hosts: [a], htpp: []}"],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{match: [{uri: {prefix: /}, headers: {x: {exact: y}}}], route: [{destination: {host: a}}]}]}",
    ],
    [
        "networking.istio.io/v1",
        "VirtualService",
        "{hosts: [a], http: [{fault: {abort: {httpStatus: 500, percentage: {value: 1.5}}}, route: [{destination: {host: a}}]}]}",
    ],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {simple: LEAST_REQUEST}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {loadBalancer: {simple: FASTEST}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, subsets: [{name: v1, labels: {version: v1}}]}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, subsets: [{labels: {version: v1}}]}"],
    ["networking.istio.io/v1", "DestinationRule", "{trafficPolicy: {}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {tls: {mode: ISTIO_MUTUAL}}}"],
    ["networking.istio.io/v1", "DestinationRule", "{host: a, trafficPolicy: {tls: {mode: NEVER}}}"],
    [
        "networking.istio.io/v1",
        "DestinationRule",
        "{host: a, trafficPolicy: {outlierDetection: {consecutive5xxErrors: 5, interval: 10s}}}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{selector: {istio: ingress}, servers: [{hosts: ['*'], port: {number: 80, name: http, protocol: HTTP}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{selector: {istio: ingress}, servers: [{hosts: ['*'], port: {number: 80, protocol: HTTP}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{selector: {istio: ingress}, servers: [{port: {number: 80, name: http, protocol: HTTP}}]}",
    ],
    ["networking.istio.io/v1", "Gateway", "{selector: {istio: 1}, servers: []}"],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: a}}]}",
    ],
    [
        "networking.istio.io/v1",
        "Gateway",
        "{servers: [{hosts: [a], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: COMPLEX}}]}",
    ],
    [
        "networking.istio.io/v1",
        "ServiceEntry",
        "{hosts: [a.example], ports: [{number: 443, name: tls, protocol: TLS}], resolution: DNS, location: MESH_EXTERNAL}",
    ],
    ["networking.istio.io/v1", "ServiceEntry", "{ports: [{number: 443, name: tls, protocol: TLS}]}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], resolution: MAGIC}"],
    ["networking.istio.io/v1", "ServiceEntry", "{hosts: [a.example], ports: [{number: x, name: tls}]}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 10.0.0.1, labels: {app: a}, ports: {http: 80}, weight: 2}"],
    ["networking.istio.io/v1", "WorkloadEntry", "{address: 10.0.0.1, ports: {http: eighty}}"],
    ["networking.istio.io/v1", "WorkloadGroup", "{metadata: {labels: {app: a}}, template: {serviceAccount: a}}"],
    ["networking.istio.io/v1", "Sidecar", "{egress: [{hosts: ['./*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}"],
    ["networking.istio.io/v1", "Sidecar", "{outboundTrafficPolicy: {mode: NOTHING}}"],
    ["networking.istio.io/v1beta1", "ProxyConfig", "{concurrency: 2, environmentVariables: {A: b}}"],
    ["networking.istio.io/v1beta1", "ProxyConfig", "{concurrency: -1}"],
    ["networking.istio.io/v1", "ProxyConfig", "{concurrency: 2}"],
    [
        "security.istio.io/v1",
        "PeerAuthentication",
        "{mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: DISABLE}}, selector: {matchLabels: {a: b}}}",
    ],
    ["security.istio.io/v1", "PeerAuthentication", "{mtls: {mode: strict}}"],
    [
        "security.istio.io/v1beta1",
        "AuthorizationPolicy",
        "{action: DENY, rules: [{from: [{source: {principals: ['*']}}], to: [{operation: {methods: [GET]}}]}]}",
    ],
    ["security.istio.io/v1", "AuthorizationPolicy", "{action: MAYBE}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{rules: [{when: [{values: [a]}]}]}"],
    ["security.istio.io/v1", "AuthorizationPolicy", "{}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, jwksUri: 'https://a.example/keys'}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: 1}]}"],
    ["security.istio.io/v1", "RequestAuthentication", "{jwtRules: [{issuer: a, forwardOriginalToken: sometimes}]}"],
    [
        "telemetry.istio.io/v1",
        "Telemetry",
        "{tracing: [{randomSamplingPercentage: 10.5}], accessLogging: [{providers: [{name: envoy}]}]}",
    ],
    ["telemetry.istio.io/v1alpha1", "Telemetry", "{tracing: [{randomSamplingPercentage: lots}]}"],
    [
        "networking.istio.io/v1alpha3",
        "EnvoyFilter",
        "{configPatches: [{applyTo: HTTP_FILTER, patch: {operation: ADD, value: {name: a}}}]}",
    ],
    ["extensions.istio.io/v1alpha1", "WasmPlugin", "{url: 'oci://a/b', phase: AUTHN}"],
];

#[test]
fn a_real_api_server_gives_the_same_verdicts_as_with_istios_definitions() {
    let [istios, ours] = [(); 2].map(|()| ApiServer::start());
    istios.install(CustomResources::Istio);
    let definitions: Vec<String> = crds::definitions().iter().map(ToString::to_string).collect();
    ours.apply(&definitions.join("\n---\n"));
    ours.kubectl(&["wait", "--for=condition=Established", "--timeout=60s", "crd", "--all"]);
    let mut different = Vec::new();
    for [version, kind, spec] in OBJECTS {
        let object =
            format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: a, namespace: default}}\nspec: {spec}\n");
        let verdicts = [&istios, &ours].map(|server| server.accepts(&object));
        if verdicts[0].is_ok() != verdicts[1].is_ok() {
            different.push(format!("{kind} {spec}\n  Istio's: {:?}\n  ours: {:?}", verdicts[0], verdicts[1]));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
}

#[test]
fn every_version_and_name_is_that_of_istio() {
    let names = |server: &ApiServer| {
        let path = "{range .items[*]}{.metadata.name} {.spec.names.shortNames} {.spec.versions[*].name}{\"\\n\"}{end}";
        server.kubectl(&["get", "crd", "-o", &format!("jsonpath={path}")])
    };
    let [istios, ours] = [(); 2].map(|()| ApiServer::start());
    istios.install(CustomResources::Istio);
    let definitions: Vec<String> = crds::definitions().iter().map(ToString::to_string).collect();
    ours.apply(&definitions.join("\n---\n"));
    let normal = |text: String| {
        let mut lines: Vec<Vec<String>> = text
            .lines()
            .map(|line| {
                let mut words: Vec<String> = line.split(' ').map(str::to_owned).collect();
                words.sort();
                words
            })
            .collect();
        lines.sort();
        lines
    };
    assert_eq!(normal(names(&ours)), normal(names(&istios)));
}
