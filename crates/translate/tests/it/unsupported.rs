//! Objects that protect something and are not supported: what they would have judged is closed, the rest is open as
//! before, and the mesh's option opens it.

use evenkeel_base::{Diagnostics, Severity};
use evenkeel_model::{AddressBook, MeshConfig, Snapshot};
use evenkeel_runtime_config::Config;
use evenkeel_runtime_config::cluster::Discovery;

use crate::decisions::{Client, PLAIN_HTTP, PLAIN_TCP, outcome};
use crate::own_proxy::compile;
use crate::scenario::{translate, view_of};

/// Two workloads, of which one has a waypoint by its label, a gateway, and a workload of another namespace that has the same waypoint.
const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}, {name: http-admin, port: 81, targetPort: 8081}]}
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {containers: [{name: web}]}
status: {podIP: 10.244.0.3, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: other-0, namespace: shop, labels: {app: other, istio.io/use-waypoint: way}}
spec: {containers: [{name: other}]}
status: {podIP: 10.244.0.4, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: away-0, namespace: away, labels: {app: away, istio.io/use-waypoint: way, istio.io/use-waypoint-namespace: shop}}
spec: {containers: [{name: away}]}
status: {podIP: 10.244.0.6, phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: shop, labels: {istio: edge}}
spec: {containers: [{name: proxy}]}
status: {podIP: 10.244.0.5, phase: Running}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: ['*'], gateways: [edge], http: [{directResponse: {status: 204}}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: far, namespace: shop}
spec: {hosts: [far.test], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
---
";

fn load(document: &str, mesh: &MeshConfig) -> (Snapshot, Diagnostics) {
    let text = format!("{MESH}{document}");
    let (objects, _) = crate::recorded::load(&[("mesh.yaml".into(), text.as_str().into())]);
    evenkeel_model::build(&objects, mesh, &mut AddressBook::default())
}

/// Which of `web` (port 8080), `admin` (its port 8081), `other`, `edge` and `away` refuse a call, whether `web` may `send` a request, by
/// a Unix `socket`, too, and `bytes`, whether sidecars and gateways refuse every call to the host `far.test`, and the findings about it.
fn closed(document: &str, mesh: &MeshConfig) -> (Vec<&'static str>, Vec<String>) {
    let (snapshot, found) = load(document, mesh);
    let config_of = |proxy: &str| {
        let (config, refused) = compile(&translate(&view_of(proxy, &snapshot), &snapshot));
        assert!(refused.is_empty(), "{refused:?}");
        config
    };
    let web = config_of("sidecar web-0.shop");
    let end = |config: &Config, listener: &str, to: &str| outcome(config, listener, &PLAIN_HTTP, to, "GET web /x", 0);
    let sent = |listener: &str, client: &Client, to: &str, request: &str| {
        outcome(&web, listener, &Client { from: "10.244.0.3:4000", ..*client }, to, request, 0)
    };
    let ends = [
        ("web", end(&web, "virtualInbound", "10.244.0.3:8080")),
        ("admin", end(&web, "virtualInbound", "10.244.0.3:8081")),
        ("other", end(&config_of("sidecar other-0.shop"), "virtualInbound", "10.244.0.4:8080")),
        ("edge", end(&config_of("router edge-0.shop"), "0.0.0.0_80", "10.244.0.5:80")),
        ("away", end(&config_of("sidecar away-0.away"), "virtualInbound", "10.244.0.6:8080")),
        ("send", sent("0.0.0.0_80", &PLAIN_HTTP, "203.0.113.1:80", "GET far.test /x")),
        // What comes by a Unix socket has no port.
        ("socket", sent("0.0.0.0_80", &PLAIN_HTTP, "0.0.0.0:0", "GET far.test /x")),
        ("bytes", sent("virtualOutbound", &PLAIN_TCP, "203.0.113.1:9000", "")),
    ];
    let mut refused: Vec<&str> =
        ends.iter().filter(|(_, end)| end.starts_with("denied by ns[")).map(|(name, _)| *name).collect();
    let is_far_closed = |config: &Config| {
        let far = config.clusters.get("outbound|80||far.test").expect("a cluster");
        far.endpoints.hosts.is_empty() && matches!(far.discovery, Discovery::Static)
    };
    let is_closed = is_far_closed(&web);
    assert_eq!(is_far_closed(&config_of("router edge-0.shop")), is_closed, "{document}");
    refused.extend(is_closed.then_some("far"));
    let told = found.iter().filter(|finding| ["closed", "not-enforced"].contains(&finding.code));
    let severity = |severity| if severity == Severity::Error { "!" } else { "" };
    (refused, told.map(|finding| format!("{}{}", severity(finding.severity), finding.code)).collect())
}

#[track_caller]
fn check(document: &str, expected: &[&str], told: &[&str]) {
    assert_eq!(closed(document, &MeshConfig::default()), (expected.to_vec(), owned(told)), "{document}");
    // The option opens, and says so.
    let open = MeshConfig { leave_out_refused: true, on_one_machine: true, ..MeshConfig::default() };
    let left_out: &[&str] = if told.is_empty() { &[] } else { &["not-enforced"] };
    assert_eq!(closed(document, &open), (Vec::new(), owned(left_out)), "left out: {document}");
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn object(version: &str, kind: &str, spec: &str) -> String {
    format!("apiVersion: {version}\nkind: {kind}\nmetadata: {{name: p, namespace: shop}}\nspec: {{{spec}}}\n")
}

const EVERYONE: &[&str] = &["web", "admin", "other", "edge", "send", "socket", "bytes"];
/// The same without what is sent.
const CALLED: &[&str] = &["web", "admin", "other", "edge"];
const EVERYWHERE: &[&str] = &["web", "admin", "other", "edge", "away"];
const WEB: &[&str] = &["web", "admin"];
const ALL_OF_WEB: &[&str] = &["web", "admin", "send", "socket", "bytes"];
const CLOSED: &[&str] = &["closed"];
const SELECTOR: &str = "selector: {matchLabels: {app: web}}";

#[test]
fn a_plugin_that_must_not_fail_closes_what_it_judges() {
    let check = |spec: &str, expected: &[&str]| {
        let told: &[&str] = if expected.is_empty() { &[] } else { CLOSED };
        check(&object("extensions.istio.io/v1alpha1", "WasmPlugin", spec), expected, told);
    };
    let url = "url: 'oci://r.test/p:1'";
    // Istio's default is to refuse requests while the plugin fails.
    check(url, EVERYONE);
    check(&format!("{url}, failStrategy: FAIL_CLOSE"), EVERYONE);
    check(&format!("{url}, failStrategy: FAIL_OPEN"), &[]);
    check(&format!("{url}, failStrategy: FAIL_OPEN, phase: STATS"), &[]);
    for phase in ["AUTHN", "AUTHZ", "AUTHM"] {
        check(&format!("{url}, failStrategy: FAIL_OPEN, phase: {phase}, {SELECTOR}"), ALL_OF_WEB);
    }
    check(&format!("{url}, {SELECTOR}"), ALL_OF_WEB);
    // Without a mode it is for both directions; what is for clients is for gateways, too.
    let matching =
        |entries: &str, expected: &[&str]| check(&format!("{url}, {SELECTOR}, match: [{entries}]"), expected);
    matching("{mode: SERVER}", WEB);
    matching("{mode: CLIENT}", &["send", "socket", "bytes"]);
    matching("{mode: CLIENT_AND_SERVER}", ALL_OF_WEB);
    matching("{mode: UNDEFINED}", ALL_OF_WEB);
    matching("{mode: SERVER, ports: [{number: 8081}]}", &["admin"]);
    matching("{ports: [{number: 8081}]}, {mode: SERVER}", &["web", "admin", "socket"]);
    matching("{ports: [{number: 80}]}", &["send", "socket"]);
    matching("{mode: CLIENT, ports: [{number: 80}]}", &["send", "socket"]);
    matching(
        "{mode: SERVER, ports: [{number: 8080}]}, {mode: CLIENT, ports: [{number: 9000}]}",
        &["web", "socket", "bytes"],
    );
    check(&format!("{url}, match: [{{mode: CLIENT}}]"), &["edge", "send", "socket", "bytes"]);
    check(&format!("{url}, match: [{{mode: SERVER}}]"), &["web", "admin", "other"]);
    check(&format!("{url}, targetRefs: [{{kind: Service, name: web}}]"), WEB);
    check(
        &format!("{url}, targetRefs: [{{kind: Gateway, group: gateway.networking.k8s.io, name: way}}]"),
        &["other", "away"],
    );
    // References that cannot be read may be to anything.
    check(&format!("{url}, targetRefs: [{{kind: Deployment, name: web}}]"), EVERYONE);
    check(&format!("{url}, {SELECTOR}, targetRefs: [{{kind: Service, name: web}}]"), EVERYONE);
    let newer =
        object("extensions.istio.io/v1alpha1", "TrafficExtension", &format!("{SELECTOR}, lua: {{inlineCode: x}}"));
    super::unsupported::check(&newer, ALL_OF_WEB, CLOSED);
    let newer = object(
        "extensions.istio.io/v1alpha1",
        "TrafficExtension",
        &format!("{SELECTOR}, wasm: {{failStrategy: FAIL_OPEN}}"),
    );
    super::unsupported::check(&newer, &[], &[]);
}

#[test]
fn a_filter_that_checks_closes_where_it_would_be() {
    let check = |spec: &str, expected: &[&str]| {
        let told: &[&str] = if expected.is_empty() { &[] } else { CLOSED };
        check(&object("networking.istio.io/v1alpha3", "EnvoyFilter", spec), expected, told);
    };
    let patch = |context: &str, value: &str| {
        format!(
            "configPatches: [{{applyTo: HTTP_FILTER, match: {{context: {context}}}, patch: {{operation: INSERT_BEFORE, value: {value}}}}}]"
        )
    };
    for checking in [
        "{name: envoy.filters.http.ext_authz}",
        "{name: x, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.rbac.v3.RBAC}}",
        "{name: envoy.filters.http.local_ratelimit}",
        "{name: envoy.filters.http.ratelimit}",
        "{rate_limits: [{actions: [{remote_address: {}}]}]}",
        "{name: envoy.filters.http.jwt_authn}",
        "{name: envoy.filters.http.lua, typed_config: {inlineCode: x}}",
        "{name: envoy.filters.http.wasm}",
        "{name: envoy.filters.http.oauth2}",
        "{name: envoy.filters.http.csrf}",
        "{name: envoy.filters.http.basic_auth}",
        "{name: envoy.filters.http.ext_proc}",
        "{typed_config: {common_http_protocol_options: {headers_with_underscores_action: REJECT_REQUEST}}}",
        "{typedConfig: {mergeSlashes: true}}",
        "{request_headers_to_remove: [x-user]}",
        "{transport_socket: {typed_config: {require_client_certificate: true}}}",
        "{name: envoy.filters.network.rbac}",
        "{name: envoy.filters.network.connection_limit}",
        "{direct_response: {status: 403}}",
    ] {
        check(&patch("ANY", checking), EVERYONE);
    }
    for harmless in [
        "{name: envoy.filters.http.compressor}",
        "{name: envoy.filters.http.grpc_stats}",
        "{typed_config: {stream_idle_timeout: 30s, request_timeout: 10s}}",
        "{access_log: [{name: envoy.access_loggers.stdout}]}",
        "{connect_timeout: 3s}",
        "{name: x, typed_config: {evaluate: true}}",
        // Istio's own statistics, in versions before 1.18.
        "{name: istio.stats, typed_config: {'@type': type.googleapis.com/envoy.extensions.filters.http.wasm.v3.Wasm, value: {config: {vm_config: {runtime: envoy.wasm.runtime.null}}}}}",
    ] {
        check(&patch("ANY", harmless), &[]);
    }
    let authorize = "{name: envoy.filters.http.ext_authz}";
    check(&patch("SIDECAR_INBOUND", authorize), &["web", "admin", "other"]);
    check(&patch("SIDECAR_OUTBOUND", authorize), &["send", "socket", "bytes"]);
    check(&patch("GATEWAY", authorize), &["edge"]);
    check(&format!("workloadSelector: {{labels: {{app: web}}}}, {}", patch("SIDECAR_INBOUND", authorize)), WEB);
    check(&format!("targetRefs: [{{kind: Service, name: web}}], {}", patch("ANY", authorize)), WEB);
    // What is removed protects nothing; what cannot be read may be anything.
    check("configPatches: [{patch: {operation: REMOVE, value: {name: envoy.filters.http.rbac}}}]", &[]);
    check("configPatches: []", &[]);
    check("priority: 10", &[]);
    check("configPatchez: [{patch: {value: {name: envoy.filters.http.rbac}}}]", EVERYONE);
    check("config: [{patch: {value: {name: envoy.filters.http.rbac}}}]", EVERYONE);
}

#[test]
fn a_network_policy_closes_on_one_machine_and_is_the_networks_in_a_cluster() {
    let machine = MeshConfig { on_one_machine: true, ..MeshConfig::default() };
    let of = |version: &str, kind: &str, spec: &str, expected: &[&str]| {
        let document = object(version, kind, spec);
        let told: &[&str] = if expected.is_empty() { &[] } else { &["!not-enforced"] };
        assert_eq!(closed(&document, &machine), (expected.to_vec(), owned(told)), "{document}");
        let told: &[&str] = if expected.is_empty() { &[] } else { &["not-enforced"] };
        check(&document, &[], told);
    };
    let network = |spec: &str, expected: &[&str]| of("networking.k8s.io/v1", "NetworkPolicy", spec, expected);
    network("podSelector: {}", CALLED);
    network("podSelector: {matchLabels: {app: web}}, ingress: [{from: [{podSelector: {}}]}]", WEB);
    network("podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]", WEB);
    // What Pods send is refused by nothing, so only the start stops.
    let egress = object("networking.k8s.io/v1", "NetworkPolicy", "podSelector: {}, policyTypes: [Egress]");
    assert_eq!(closed(&egress, &machine), (Vec::new(), owned(&["!not-enforced"])));
    check(&egress, &[], &["not-enforced"]);
    // Selectors with expressions select more here.
    network("podSelector: {matchExpressions: [{key: app, operator: In, values: [web]}]}", CALLED);
    // These let everything pass.
    network("podSelector: {}, ingress: [{}]", &[]);
    network("podSelector: {}, ingress: [{}], egress: [{}], policyTypes: [Ingress, Egress]", &[]);
    of("cilium.io/v2", "CiliumNetworkPolicy", "endpointSelector: {}", CALLED);
    of("policy.networking.k8s.io/v1alpha1", "AdminNetworkPolicy", "priority: 1", EVERYWHERE);
    of("crd.projectcalico.org/v1", "GlobalNetworkPolicy", "order: 1", EVERYWHERE);
}

#[test]
fn a_policy_for_a_waypoint_closes_what_the_waypoint_would_judge() {
    let check = |kind: &str, spec: &str, expected: &[&str], told: &[&str]| {
        super::unsupported::check(&object("security.istio.io/v1", kind, spec), expected, told);
    };
    let policy = |spec: &str, expected: &[&str], told: &[&str]| check("AuthorizationPolicy", spec, expected, told);
    let service = "targetRefs: [{kind: Service, name: web}]";
    policy(&format!("{service}, rules: [{{}}]"), WEB, CLOSED);
    policy(&format!("{service}, action: DENY, rules: [{{}}]"), WEB, CLOSED);
    policy(&format!("{service}, action: DENY, rules: [{{to: [{{operation: {{methods: [GET]}}}}]}}]"), WEB, CLOSED);
    policy(&format!("{service}, action: DENY, rules: [{{to: [{{operation: {{methods: [PUT]}}}}]}}]"), &[], CLOSED);
    policy(&format!("{service}, action: AUDIT, rules: [{{}}]"), &[], &[]);
    let waypoint = "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: way}]";
    policy(&format!("{waypoint}, rules: [{{}}]"), &["other", "away"], CLOSED);
    policy(&format!("{waypoint}, action: DENY, rules: [{{}}]"), &["other", "away"], CLOSED);
    policy("targetRefs: [{kind: Service, name: gone}], rules: [{}]", &[], &[]);
    check("RequestAuthentication", &format!("{service}, jwtRules: [{{issuer: me, jwks: '{{}}'}}]"), WEB, CLOSED);
    // Istio heeds this class in the root namespace only, and no other.
    for (class, namespace) in [("istio-waypoint", "shop"), ("cilium", "shop"), ("cilium", "istio-system")] {
        let target = format!("targetRefs: [{{kind: GatewayClass, group: gateway.networking.k8s.io, name: {class}}}]");
        let policy = object("security.istio.io/v1", "AuthorizationPolicy", &format!("{target}, rules: [{{}}]"));
        let plugin =
            object("extensions.istio.io/v1alpha1", "WasmPlugin", &format!("{target}, url: 'oci://r.test/p:1'"));
        for document in [policy, plugin] {
            let document = document.replace("namespace: shop", &format!("namespace: {namespace}"));
            super::unsupported::check(&document, &[], &[]);
            let (_, found) = load(&document, &MeshConfig::default());
            assert!(
                found.iter().any(|finding| finding.code == "no-effect" && finding.severity == Severity::Warning),
                "{found}"
            );
        }
    }
}

/// Where no workload is known that would refuse in the waypoint's place, clients do.
#[test]
fn clients_refuse_calls_to_a_service_without_known_workloads() {
    let far = "{kind: ServiceEntry, group: networking.istio.io, name: far}";
    let policy = |kind: &str, spec: &str, expected: &[&str], told: &[&str]| {
        let version = if kind == "WasmPlugin" { "extensions.istio.io/v1alpha1" } else { "security.istio.io/v1" };
        check(&object(version, kind, &format!("targetRefs: [{far}], {spec}")), expected, told);
    };
    let authorization = |spec: &str, expected: &[&str]| {
        policy("AuthorizationPolicy", spec, expected, if expected.is_empty() { &[] } else { CLOSED });
    };
    authorization("rules: [{}]", &["far"]);
    authorization("rules: []", &["far"]);
    authorization("action: DENY, rules: [{to: [{operation: {methods: [PUT]}}]}]", &["far"]);
    authorization("action: AUDIT, rules: [{}]", &[]);
    policy("RequestAuthentication", "jwtRules: [{issuer: me, jwks: '{}'}]", &["far"], CLOSED);
    policy("WasmPlugin", "url: 'oci://r.test/p:1'", &["far"], CLOSED);
    policy("WasmPlugin", "url: 'oci://r.test/p:1', failStrategy: FAIL_OPEN", &[], &[]);
    let filter = "configPatches: [{patch: {operation: INSERT_BEFORE, value: {name: envoy.filters.http.rbac}}}]";
    check(
        &object("networking.istio.io/v1alpha3", "EnvoyFilter", &format!("targetRefs: [{far}], {filter}")),
        &["far"],
        CLOSED,
    );
    // A policy that is only on trial refuses nothing.
    let trial = object("security.istio.io/v1", "AuthorizationPolicy", &format!("targetRefs: [{far}], rules: [{{}}]"));
    let trial = trial.replace("namespace: shop}", "namespace: shop, annotations: {istio.io/dry-run: 'true'}}");
    assert_eq!(closed(&trial, &MeshConfig::default()).0, Vec::<&str>::new());
    // Both a service with known workloads and one without.
    let both = format!("targetRefs: [{{kind: Service, name: web}}, {far}], rules: [{{}}]");
    let both = object("security.istio.io/v1", "AuthorizationPolicy", &both);
    check(&both, &["web", "admin", "far"], &["closed", "closed"]);
}

/// No bytes and no request with another host reach the addresses of a closed service, on ports of any protocol.
#[test]
fn the_addresses_of_a_closed_service_are_closed() {
    let services = "\
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {clusterIP: 10.96.7.7, ports: [{name: http, port: 80}, {name: tcp, port: 90}, {name: tls, port: 443}, {name: any, port: 91}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: range, namespace: shop}
spec: {hosts: [range.test], addresses: [10.97.0.0/16], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: far, namespace: shop}
spec: {hosts: [far.shop.svc.cluster.local], tls: [{match: [{port: 443, sniHosts: [far.shop.svc.cluster.local]}], route: [{destination: {host: far}}]}]}
---
";
    let both =
        "targetRefs: [{kind: Service, name: far}, {kind: ServiceEntry, group: networking.istio.io, name: range}]";
    let policy = object("security.istio.io/v1", "AuthorizationPolicy", &format!("{both}, rules: [{{}}]"));
    let outcomes = |mesh: &MeshConfig| {
        let (snapshot, _) = load(&format!("{services}{policy}"), mesh);
        let (web, refused) = compile(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot));
        assert!(refused.is_empty(), "{refused:?}");
        let sent = |client: &Client, to: &str, request: &str| {
            // As the captured connection is: the listener of the address, or else of the port.
            let (host, port) = to.split_once(':').expect("a port");
            let own = format!("{host}_{port}");
            let listener = if web.listeners.contains_key(&*own) { own } else { format!("0.0.0.0_{port}") };
            outcome(&web, &listener, &Client { from: "10.244.0.3:4000", ..*client }, to, request, 0)
        };
        [
            sent(&PLAIN_TCP, "10.96.7.7:80", ""),
            sent(&PLAIN_HTTP, "10.96.7.7:80", "GET other.test /"),
            sent(&PLAIN_HTTP, "10.96.7.7:80", "GET far.shop.svc.cluster.local /"),
            sent(&PLAIN_TCP, "10.96.7.7:90", ""),
            sent(&PLAIN_TCP, "10.96.7.7:443", ""),
            sent(&PLAIN_TCP, "10.96.7.7:91", ""),
            sent(&PLAIN_HTTP, "10.96.7.7:91", "GET other.test /"),
            sent(&PLAIN_TCP, "10.97.1.2:80", ""),
            sent(&PLAIN_HTTP, "10.97.1.2:80", "GET other.test /"),
        ]
    };
    for outcome in outcomes(&MeshConfig::default()) {
        let is_closed = ["far.shop.svc.cluster.local", "range.test"].iter().any(|host| outcome.contains(host));
        assert!(is_closed && !outcome.contains("Passthrough"), "{outcome}");
    }
    // The same without the policy: what the addresses get otherwise.
    let open = outcomes(&MeshConfig { leave_out_refused: true, ..MeshConfig::default() });
    for at in [0, 1, 4, 7, 8] {
        assert!(open[at].contains("PassthroughCluster"), "{at}: {}", open[at]);
    }
}

/// A service names its waypoint, itself or by its namespace, and says that it has none.
#[test]
fn clients_refuse_calls_to_a_service_that_uses_a_waypoint() {
    let waypoint = "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: far-way}], rules: [{}]";
    let policy = object("security.istio.io/v1", "AuthorizationPolicy", waypoint);
    let of_entry = |labels: &str| {
        let mesh = MESH.replace(
            "metadata: {name: far, namespace: shop}",
            &format!("metadata: {{name: far, namespace: shop, labels: {{{labels}}}}}"),
        );
        let (objects, _) = crate::recorded::load(&[("mesh.yaml".into(), format!("{mesh}{policy}").into())]);
        let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
        let far = snapshot.services.iter().find(|service| service.host.as_str() == "far.test").expect("a service");
        far.closed_by.iter().map(|by| format!("{} {}", by.what, by.origin)).collect::<Vec<_>>()
    };
    let closed_by = of_entry("istio.io/use-waypoint: far-way");
    assert!(matches!(&*closed_by, [by] if by.starts_with("AuthorizationPolicy shop/p mesh.yaml:")), "{closed_by:?}");
    assert_eq!(of_entry("istio.io/use-waypoint: far-way, istio.io/use-waypoint-namespace: shop").len(), 1);
    assert_eq!(of_entry("istio.io/use-waypoint: far-way, istio.io/use-waypoint-namespace: away").len(), 0);
    assert_eq!(of_entry("istio.io/use-waypoint: other").len(), 0);
    assert_eq!(of_entry("istio.io/use-waypoint: none").len(), 0);
    assert_eq!(of_entry("x: y").len(), 0);
}

/// A policy for all waypoints, which Istio heeds in the root namespace.
#[test]
fn a_policy_for_a_class_closes_whoever_has_a_waypoint() {
    let class =
        "targetRefs: [{kind: GatewayClass, group: gateway.networking.k8s.io, name: istio-waypoint}], rules: [{}]";
    let policy = object("security.istio.io/v1", "AuthorizationPolicy", class)
        .replace("namespace: shop", "namespace: istio-system");
    check(&policy, &["other", "away"], CLOSED);
    let namespace =
        "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop, labels: {istio.io/use-waypoint: way}}\n---\n";
    check(&format!("{namespace}{policy}"), &[EVERYWHERE, &["far"]].concat(), &["closed", "closed"]);
    // These are for no waypoint.
    let namespace = namespace.replace("use-waypoint: way", "use-waypoint: none");
    check(&format!("{namespace}{policy}"), &["other", "away"], CLOSED);
}

/// Namespaces and Services may name a waypoint of another namespace.
#[test]
fn users_of_a_waypoint_are_found_in_all_namespaces() {
    let waypoint = "targetRefs: [{kind: Gateway, group: gateway.networking.k8s.io, name: far}], rules: [{}]";
    let policy = object("security.istio.io/v1", "AuthorizationPolicy", waypoint);
    let uses = "istio.io/use-waypoint: far, istio.io/use-waypoint-namespace: shop";
    let namespace = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: away, labels: {{{uses}}}}}\n---\n");
    check(&format!("{namespace}{policy}"), &["away"], CLOSED);
    let service = format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: away, namespace: away, labels: {{{uses}}}}}\n\
         spec: {{selector: {{app: away}}, ports: [{{name: http, port: 80}}]}}\n---\n"
    );
    check(&format!("{service}{policy}"), &["away"], CLOSED);
    // Another namespace's waypoint of the same name.
    check(&format!("{}{policy}", namespace.replace(": shop", ": other")), &[], &[]);
}

/// A stand-in is no AuthorizationPolicy of the same name, and does not take its place.
#[test]
fn a_policy_of_the_same_name_keeps_its_effect() {
    let plugin = object("extensions.istio.io/v1alpha1", "WasmPlugin", &format!("url: x, {SELECTOR}"));
    let policy = object(
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "selector: {matchLabels: {app: other}}, action: DENY, rules: [{}]",
    );
    let both = closed(&format!("{plugin}---\n{policy}"), &MeshConfig::default());
    assert_eq!(both, (vec!["web", "admin", "other", "send", "socket", "bytes"], owned(CLOSED)));
    let open = MeshConfig { leave_out_refused: true, ..MeshConfig::default() };
    assert_eq!(closed(&format!("{plugin}---\n{policy}"), &open).0, ["other"]);
}

/// A text that is not YAML may be about any workload of the namespaces that it names.
#[test]
fn what_cannot_be_read_closes_too() {
    let broken =
        "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: p, namespace: shop}\nspec: {\n";
    assert_eq!(closed(broken, &MeshConfig::default()).0, EVERYONE);
    let misspelt = object("extensions.istio.io/v1alpha1", "WasmPlugn", "url: x");
    assert_eq!(closed(&misspelt, &MeshConfig::default()).0, EVERYONE);
    let older = "apiVersion: rbac.istio.io/v1alpha1\nkind: ServiceRole\nmetadata: {name: p, namespace: shop}\nspec: {rules: []}\n";
    let (_, found) = evenkeel_api::load(&[("mesh.yaml".into(), older.into())]);
    assert!(found.has_errors() && found.to_string().contains("AuthorizationPolicy"), "{found}");
}
