//! Queries on a snapshot.

use evenkeel_base::hostname::Hostname;
use evenkeel_model::{AddressBook, GatewayRef, Labels, MeshConfig, MtlsMode, Snapshot, TrafficPolicy};

fn build(text: &str) -> Snapshot {
    let (objects, found) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    assert_eq!(found.to_string(), "");
    evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0
}

fn labels(pairs: &[(&str, &str)]) -> Labels {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn mtls_modes_are_inherited() {
    let snapshot = build(
        "
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: mesh, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: namespace, namespace: lax}
spec: {mtls: {mode: DISABLE}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: workload, namespace: lax}
spec:
  selector: {matchLabels: {app: web}}
  mtls: {mode: PERMISSIVE}
  portLevelMtls: {80: {mode: STRICT}, 81: {mode: UNSET}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: ports-only, namespace: lax}
spec:
  selector: {matchLabels: {app: ports}}
  portLevelMtls: {80: {mode: STRICT}}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: unset, namespace: unset}
spec: {mtls: {mode: UNSET}}
",
    );
    let check = |namespace: &str, app: &str, port, expected| {
        assert_eq!(snapshot.mtls_mode(namespace, &labels(&[("app", app)]), port), expected, "{namespace} {app} {port}");
    };
    check("any", "web", 80, MtlsMode::Strict);
    check("unset", "web", 80, MtlsMode::Strict);
    check("lax", "other", 80, MtlsMode::Disable);
    check("lax", "web", 80, MtlsMode::Strict);
    check("lax", "web", 81, MtlsMode::Permissive);
    check("lax", "web", 82, MtlsMode::Permissive);
    check("lax", "ports", 80, MtlsMode::Strict);
    check("lax", "ports", 81, MtlsMode::Disable);
    assert_eq!(build("").mtls_mode("any", &Labels::new(), 80), MtlsMode::Permissive);
}

#[test]
fn destination_rules_are_looked_up_as_in_istio() {
    let rule = |name: &str, namespace: &str, rest: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{rest}}}\n"
        )
    };
    let service = |namespace: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: {namespace}}}\n\
             spec: {{ports: [{{port: 80, name: http}}]}}\n"
        )
    };
    let text = [
        service("shop"),
        service("bare"),
        rule("of-client", "client", "host: web.shop.svc.cluster.local"),
        rule("of-client-wild", "client", "host: '*.shop.svc.cluster.local'"),
        rule("of-service", "shop", "host: web"),
        rule("of-service-private", "bare", "host: web, exportTo: ['.']"),
        rule("of-mesh", "istio-system", "host: '*.svc.cluster.local'"),
        rule("selected", "picky", "host: web.shop.svc.cluster.local, workloadSelector: {matchLabels: {app: a}}"),
    ]
    .concat();
    let snapshot = build(&text);
    let check = |service: &str, client: &str, app: &str, expected: &str| {
        let service = snapshot.services_of(service).first().expect("the service");
        let found = snapshot.destination_rule_for(service, client, &labels(&[("app", app)]));
        assert_eq!(found.map(|r| &*r.name), Some(expected), "{} from {client}", service.host);
    };
    let (shop, bare) = ("web.shop.svc.cluster.local", "web.bare.svc.cluster.local");
    check(shop, "client", "", "of-client");
    check(shop, "other", "", "of-service");
    check(shop, "shop", "", "of-service");
    check(bare, "bare", "", "of-service-private");
    check(bare, "other", "", "of-mesh");
    check(shop, "picky", "a", "selected");
    check(shop, "picky", "b", "of-service");
    check(bare, "istio-system", "", "of-mesh");
}

#[test]
fn traffic_policies_merge_by_level() {
    let snapshot = build(
        "
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web}
spec:
  host: web
  trafficPolicy:
    loadBalancer: {simple: RANDOM}
    tls: {mode: DISABLE}
    portLevelSettings: [{port: {number: 81}, loadBalancer: {simple: ROUND_ROBIN}}]
  subsets:
    - name: v1
      trafficPolicy:
        connectionPool: {tcp: {maxConnections: 1}}
        portLevelSettings: [{port: {number: 82}, tls: {mode: ISTIO_MUTUAL}}]
",
    );
    let rule = snapshot.destination_rules.first().expect("the rule");
    let check = |subset: Option<&str>, port, expected: (&str, bool, &str)| {
        let TrafficPolicy { load_balancer, connection_pool, tls, ports, .. } = rule.policy_for(subset, port);
        assert!(ports.is_empty());
        let load_balancer = load_balancer.and_then(|l| l.policy).map(|l| format!("{l:?}")).unwrap_or_default();
        let tls = tls.map(|t| format!("{t:?}")).unwrap_or_default();
        let tls = tls.split(' ').next().unwrap_or_default();
        assert_eq!((load_balancer.as_str(), connection_pool.is_some(), tls), expected, "{subset:?} {port}");
    };
    check(None, 80, ("Random", false, "Disable"));
    check(None, 81, ("RoundRobin", false, ""));
    check(Some("v1"), 80, ("Random", true, "Disable"));
    check(Some("v1"), 81, ("RoundRobin", true, ""));
    check(Some("v1"), 82, ("", false, "IstioMutual"));
    check(Some("unknown"), 80, ("Random", false, "Disable"));
}

#[test]
fn policies_apply_to_mesh_namespace_and_workload() {
    let policy = |name: &str, namespace: &str, rest: &str| {
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{rest}}}\n"
        )
    };
    let snapshot = build(
        &[
            policy("of-mesh", "istio-system", ""),
            policy("of-mesh-web", "istio-system", "selector: {matchLabels: {app: web}}"),
            policy("of-namespace", "shop", ""),
            policy("of-web", "shop", "selector: {matchLabels: {app: web}}"),
            policy("refuses", "shop", "action: DENY, rules: [{}]"),
            policy("of-other", "other", ""),
        ]
        .concat(),
    );
    let check = |namespace: &str, app: &str, expected: &[&str]| {
        let found = snapshot.policies_for(namespace, &labels(&[("app", app)]));
        assert_eq!(found.iter().map(|p| &*p.name).collect::<Vec<_>>(), expected, "{namespace} {app}");
    };
    check("shop", "web", &["refuses", "of-mesh", "of-mesh-web", "of-namespace", "of-web"]);
    check("shop", "info", &["refuses", "of-mesh", "of-namespace"]);
    check("third", "info", &["of-mesh"]);
}

#[test]
fn what_is_visible_depends_on_the_namespace() {
    let entry = |name: &str, namespace: &str, export: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
             metadata: {{name: {name}, namespace: {namespace}}}\n\
             spec: {{hosts: [a.example.com], ports: [{{number: 80, name: http}}], resolution: DNS, exportTo: [{export}]}}\n"
        )
    };
    let snapshot =
        build(&[entry("one", "one", "'*'"), entry("two", "two", "'*'"), entry("three", "three", "'.'")].concat());
    let check = |namespace: &str, expected: &str| {
        let seen = snapshot.service("a.example.com", namespace).map(|s| s.name.to_string());
        assert_eq!(seen.as_deref(), Some(expected), "{namespace}");
    };
    check("one", "one");
    check("two", "two");
    check("three", "three");
    check("four", "one");
}

#[test]
fn the_most_specific_host_comes_first() {
    let routes = |name: &str, host: &str, gateway: &str| {
        format!(
            "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}}}\n\
             spec: {{hosts: ['{host}'], gateways: [{gateway}], http: [{{directResponse: {{status: 200}}}}]}}\n"
        )
    };
    let snapshot = build(
        &[
            routes("wide", "*.example.com", "mesh"),
            routes("exact", "a.example.com", "mesh"),
            routes("at-gateway", "a.example.com", "front"),
            routes("also-at-gateway", "a.example.com", "default/front"),
        ]
        .concat(),
    );
    let check = |gateway: &GatewayRef, host: &str, expected: &[&str]| {
        let host = Hostname::parse(host).expect("a host");
        let found = snapshot.route_sets_for(gateway, "default", &host);
        assert_eq!(found.iter().map(|v| &*v.name).collect::<Vec<_>>(), expected, "{host} at {gateway}");
    };
    let front = GatewayRef::parse("front", "default");
    check(&GatewayRef::Mesh, "a.example.com", &["exact", "wide"]);
    check(&GatewayRef::Mesh, "b.example.com", &["wide"]);
    check(&GatewayRef::Mesh, "example.com", &[]);
    check(&front, "a.example.com", &["at-gateway", "also-at-gateway"]);
}

#[test]
fn addresses_survive_a_restart_and_the_mesh_has_its_settings() {
    let text = "
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {ports: [{port: 80, name: http}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'trustDomain: example.org'}
---
apiVersion: v1
kind: Pod
metadata: {name: a}
spec: {containers: [{name: a}]}
";
    let (objects, _) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
    let mut book = AddressBook::default();
    let (first, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut book);
    let stored = serde_json::to_string(&book).expect("a serializable book");
    let mut book = serde_json::from_str(&stored).expect("a readable book");
    let (second, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut book);
    assert_eq!(first, second);
    assert_eq!(first.services.first().expect("the service").vips().count(), 1);
    assert_eq!(
        first.workloads.first().expect("a workload").identity.to_string(),
        "spiffe://example.org/ns/default/sa/default"
    );
}

#[test]
fn any_line_may_be_missing_or_double() {
    let text = include_str!("../../../api/tests/golden/everything.yaml");
    let lines: Vec<&str> = text.lines().collect();
    let build = |lines: &[&str]| {
        let (objects, _) = evenkeel_api::load(&[("a.yaml".into(), lines.join("\n").into())]);
        evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0
    };
    let whole = build(&lines);
    assert_eq!((whole.services.len(), whole.route_sets.len(), whole.gateways.len()), (4, 1, 1));
    for at in 0..lines.len() {
        for copies in [0, 2] {
            let changed: Vec<&str> =
                lines.iter().enumerate().flat_map(|(i, line)| vec![*line; if i == at { copies } else { 1 }]).collect();
            let snapshot = build(&changed);
            // The document around the line is refused at most, or two that were one without the `---` between them.
            let lost = if lines[at] == "---" { 2 } else { 1 };
            assert!(snapshot.services.len() + lost >= whole.services.len(), "line {at} × {copies}");
        }
    }
}

/// A Pod that the webhook has given a gateway proxy is a gateway, and has no sidecar, whatever its Gateway is.
#[test]
fn pods_with_the_template_of_a_gateway_have_no_sidecar() {
    let check = |annotations: &str, labels: &str, expected: bool| {
        let text = format!(
            "apiVersion: v1\nkind: Pod\n\
             metadata: {{name: edge-0, namespace: net, labels: {{{labels}}}, annotations: {{{annotations}}}}}\n\
             spec: {{containers: [{{name: main}}]}}\nstatus: {{podIP: 10.0.0.1, phase: Running}}\n"
        );
        // A list of templates is a finding of its own.
        let (objects, _) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
        let snapshot = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default()).0;
        let pod = snapshot.workload(&"net".into(), &"edge-0".into()).expect("the Pod");
        assert_eq!(pod.has_proxy, expected, "{annotations} {labels}");
    };
    check("", "app: web", true);
    check("inject.istio.io/templates: gateway", "app: web", false);
    check("inject.istio.io/templates: sidecar", "app: web", true);
    // A Pod that says that it takes mutual TLS has a sidecar.
    check("inject.istio.io/templates: gateway", "security.istio.io/tlsMode: istio", true);
}
