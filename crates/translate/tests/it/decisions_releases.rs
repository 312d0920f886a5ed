//! Fields, labels and annotations that came with Istio 1.29 to 1.32.

use evenkeel_translate::ProxyView;
use serde_json::{Value, json};

use crate::decisions::PLAIN_HTTP;
use crate::decisions_istio::{base, entry, istio, pod, service};
use crate::decisions_services::{Mesh, outbound};
use crate::recorded::compared;
use crate::scenario::translate;

/// The resource of a name among those of the client's sidecar.
fn resource(mesh: &Mesh, proxy: &str, kind: &str, name: &str) -> Value {
    let all = compared(&translate(&mesh.view(proxy), &mesh.snapshot));
    let list = all[kind].as_array().cloned().unwrap_or_default();
    list.into_iter().find(|one| one["name"] == name || one["cluster_name"] == name).unwrap_or(Value::Null)
}

const CLIENT: &str = "sidecar client-0.shop";
const HTTP: &str = "ports: [{number: 80, name: http, protocol: HTTP}]";

/// The priorities of an assignment's endpoints, by address.
fn priorities(assigned: &Value) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for group in assigned["endpoints"].as_array().into_iter().flatten() {
        for endpoint in group["lb_endpoints"].as_array().into_iter().flatten() {
            let address = endpoint["endpoint"]["address"]["socket_address"]["address"].as_str().unwrap_or_default();
            found.push((address.to_owned(), group["priority"].as_u64().unwrap_or_default()));
        }
    }
    found.sort();
    found
}

#[test]
fn a_selector_without_labels_selects_nothing() {
    let check = |rest: &str, expected: usize, codes: &[&str]| {
        let mesh = Mesh::read(&(base() + &entry("e", &format!("{{hosts: [e.example], {HTTP}, {rest}}}"))));
        let cluster = resource(&mesh, CLIENT, "CDS", "outbound|80||e.example");
        let assigned = if cluster["load_assignment"].is_object() {
            cluster["load_assignment"].clone()
        } else {
            resource(&mesh, CLIENT, "EDS", "outbound|80||e.example")
        };
        assert_eq!(priorities(&assigned).len(), expected, "{rest}: {assigned}");
        let said: Vec<_> =
            mesh.found.iter().map(|finding| finding.code).filter(|code| *code == "empty-selector").collect();
        assert_eq!(said, codes, "{rest}: {}", mesh.found);
    };
    check("resolution: DNS, workloadSelector: {}", 0, &["empty-selector"]);
    check("resolution: DNS, workloadSelector: {labels: {}}", 0, &["empty-selector"]);
    check("resolution: STATIC, workloadSelector: {}", 0, &["empty-selector"]);
    check("resolution: DNS", 1, &[]);
    check("resolution: STATIC, location: MESH_INTERNAL, workloadSelector: {labels: {app: client}}", 1, &[]);
}

#[test]
fn connections_may_race_to_the_addresses_of_a_host() {
    let check = |annotation: &str, rest: &str, kind: &str, family: &str, said: bool| {
        let entry = entry("e", &format!("{{hosts: [e.example], {HTTP}, {rest}}}"));
        let annotated =
            entry.replace("labels: {}", &format!("annotations: {{istio.io/connect-strategy: {annotation}}}"));
        let mesh = Mesh::read(&(base() + &annotated));
        let cluster = resource(&mesh, CLIENT, "CDS", "outbound|80||e.example");
        assert_eq!(cluster["type"], kind, "{annotation} {rest}: {cluster}");
        assert_eq!(cluster["dns_lookup_family"], family, "{annotation} {rest}: {cluster}");
        let findings = mesh.found.iter().filter(|finding| finding.code == "no-effect").count();
        assert_eq!(findings == 1, said, "{annotation} {rest}: {}", mesh.found);
    };
    let one = "endpoints: [{address: a.example}]";
    let race = "race_first_tcp_connect";
    check("DEFAULT", "resolution: DNS", "STRICT_DNS", "V4_ONLY", false);
    check("RACE_FIRST_TCP_CONNECT", "resolution: DNS", "LOGICAL_DNS", "ALL", false);
    check(race, &format!("resolution: DNS, {one}"), "LOGICAL_DNS", "ALL", false);
    check(race, "resolution: DNS_ROUND_ROBIN", "LOGICAL_DNS", "ALL", false);
    check("DEFAULT", "resolution: DNS_ROUND_ROBIN", "LOGICAL_DNS", "V4_ONLY", false);
    // Envoy takes only one host in such a cluster.
    check(
        race,
        "resolution: DNS, endpoints: [{address: a.example}, {address: b.example}]",
        "STRICT_DNS",
        "V4_ONLY",
        true,
    );
    let cluster = |rest: &str| {
        let text = entry("e", &format!("{{hosts: [e.example], {HTTP}, {rest}}}"));
        let text = text.replace("labels: {}", "annotations: {istio.io/connect-strategy: RACE_FIRST_TCP_CONNECT}");
        Mesh::read(&(base() + &text)).found.iter().filter(|finding| finding.code == "no-effect").count()
    };
    assert_eq!(cluster("resolution: STATIC, endpoints: [{address: 10.0.0.1}]"), 1);
}

#[test]
fn stock_envoys_that_know_it_are_told_to_use_the_hybrid_curve() {
    let settings = |mesh: &str| {
        format!(
            "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"{mesh}\"}}\n"
        )
    };
    /// The curves of every TLS context in resources.
    fn curves(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                if let Some(parameters) = fields.get("tls_params") {
                    let curves = parameters["ecdh_curves"].as_array().cloned().unwrap_or_default();
                    found.push(curves.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "));
                }
                fields.values().for_each(|field| curves(field, found));
            }
            Value::Array(list) => list.iter().for_each(|one| curves(one, found)),
            _ => {}
        }
    }
    let check = |mesh: &str, takes_it: bool, expected: &[&str]| {
        let secure = istio("DestinationRule", "web", "{host: web, trafficPolicy: {tls: {mode: SIMPLE}}}");
        let web = service("web", "{clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}");
        let other = service("other", "{clusterIP: 10.96.0.2, ports: [{name: http, port: 80}]}");
        let mesh = Mesh::read(&(base() + &settings(mesh) + &secure + &web + &other));
        let view = ProxyView { takes_hybrid_curve: takes_it, ..mesh.view(CLIENT) };
        let mut found = Vec::new();
        curves(&compared(&translate(&view, &mesh.snapshot)), &mut found);
        found.sort();
        found.dedup();
        assert_eq!(found, expected, "{takes_it}");
    };
    let hybrid = "X25519MLKEM768 X25519 P-256";
    check("{}", false, &[""]);
    check("{}", true, &[hybrid]);
    // What the mesh says comes first, where it says something.
    check("tlsDefaults: {ecdhCurves: [P-256]}", true, &["P-256", hybrid]);
    check("meshMTLS: {ecdhCurves: [P-384]}", true, &["P-384", hybrid]);
}

#[test]
fn sidecars_exclude_namespaces_and_hosts() {
    let web = |namespace: &str, number: u8| {
        service(
            &format!("{namespace}/web"),
            &format!("{{clusterIP: 10.96.0.{number}, ports: [{{name: http, port: 80}}]}}"),
        )
    };
    let check = |hosts: &str, expected: [bool; 3]| {
        let sidecar = format!("{{outboundTrafficPolicy: {{mode: REGISTRY_ONLY}}, egress: [{{hosts: [{hosts}]}}]}}");
        let objects = [web("shop", 1), web("other", 2), web("third", 3)].concat();
        // Something that is imported anyway, so that there is a listener.
        let own = entry(
            "own",
            &format!("{{hosts: [own.example], resolution: STATIC, {HTTP}, endpoints: [{{address: 192.0.2.1}}]}}"),
        );
        let mesh = Mesh::read(&(base() + &objects + &own + &istio("Sidecar", "default", &sidecar)));
        let config = mesh.sidecar("client-0.shop");
        let is_called = |namespace: &str| {
            let request = format!("GET web.{namespace}.svc.cluster.local /");
            outbound(&config, &PLAIN_HTTP, "192.0.2.9:80", &request).starts_with("outbound|80||web.")
        };
        assert_eq!(["shop", "other", "third"].map(is_called), expected, "{hosts}");
    };
    check("'*/*'", [true, true, true]);
    check("'*/*', '~other/*'", [true, false, true]);
    check("'~other/*', '*/*'", [true, false, true]);
    check("'*/*', '~other/*.example'", [true, true, true]);
    check("'*/*', '~/web.third.svc.cluster.local'", [true, true, false]);
    check("'*/*', '~./web.shop.svc.cluster.local'", [false, true, true]);
    check("'*/*', '~*/*.svc.cluster.local'", [false, false, false]);
}

#[test]
fn a_namespace_says_how_traffic_is_distributed() {
    let placed = |name: &str, zone: &str, address: &str| {
        pod(name, &format!("app: web, topology.istio.io/locality: r.{zone}, istio-locality: q.x"), address)
    };
    let pods = base().replace("app: client", "app: client, topology.istio.io/locality: r.a")
        + &placed("web-0", "a", "10.244.0.2")
        + &placed("web-1", "b", "10.244.0.3");
    let annotation = "networking.istio.io/traffic-distribution";
    let check = |namespace: &str, fields: &str, own: &str, far: u64| {
        let text = service("web", &format!("{{{fields}selector: {{app: web}}, ports: [{{name: http, port: 80}}]}}"));
        let text = text.replace("labels: {}}", &format!("annotations: {{{own}}}}}"));
        let of_namespace =
            format!("---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: shop, annotations: {{{namespace}}}}}\n");
        let mesh = Mesh::read(&(pods.clone() + &text + &of_namespace));
        let assigned = resource(&mesh, CLIENT, "EDS", "outbound|80||web.shop.svc.cluster.local");
        let expected = [("10.244.0.2".to_owned(), 0), ("10.244.0.3".to_owned(), far)];
        assert_eq!(priorities(&assigned), expected, "{namespace} {fields} {own}");
    };
    let near = format!("{annotation}: PreferClose");
    let any = format!("{annotation}: Any");
    check("", "", "", 0);
    check(&near, "", "", 1);
    check("", "", &near, 1);
    check(&near, "", &any, 0);
    check(&any, "trafficDistribution: PreferClose, ", "", 1);
}

#[test]
fn hosts_of_dns_fail_over_by_labels_and_take_shares() {
    let endpoints = "endpoints: [{address: a.example, labels: {tier: gold}, locality: r/a}, {address: b.example, labels: {tier: silver}, locality: r/b}]";
    let of = |setting: &str| {
        let rule = format!(
            "{{host: e.example, trafficPolicy: {{outlierDetection: {{consecutive5xxErrors: 3}}, loadBalancer: {{localityLbSetting: {{{setting}}}}}}}}}"
        );
        let mesh = Mesh::read(
            &(base().replace("app: client", "app: client, tier: silver, topology.istio.io/locality: r.a")
                + &entry("e", &format!("{{hosts: [e.example], resolution: DNS, {HTTP}, {endpoints}}}"))
                + &istio("DestinationRule", "e", &rule)),
        );
        resource(&mesh, CLIENT, "CDS", "outbound|80||e.example")["load_assignment"].clone()
    };
    let by = |a: u64, b: u64| [("a.example".to_owned(), a), ("b.example".to_owned(), b)];
    assert_eq!(priorities(&of("failoverPriority: [tier]")), by(1, 0));
    assert_eq!(priorities(&of("failoverPriority: [tier=gold]")), by(0, 1));
    let shared = of("distribute: [{from: r/a, to: {r/a: 80, r/b: 20}}]");
    let weights: Vec<_> = shared["endpoints"]
        .as_array()
        .expect("groups")
        .iter()
        .map(|group| group["load_balancing_weight"].clone())
        .collect();
    assert_eq!(weights, [json!(80), json!(20)], "{shared}");
}

#[test]
fn roots_have_a_secret_of_their_own() {
    let check = |tls: &str, roots: &str, certificate: Value| {
        let mesh = Mesh::read(
            &(base()
                + &entry("e", &format!("{{hosts: [e.example], resolution: DNS, {HTTP}}}"))
                + &istio(
                    "Gateway",
                    "edge/gw",
                    "{selector: {istio: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}",
                )
                + &istio(
                    "DestinationRule",
                    "e",
                    &format!("{{host: e.example, trafficPolicy: {{tls: {{sni: e.example, {tls}}}}}}}"),
                )),
        );
        let of = |proxy: &str| {
            let cluster = resource(&mesh, proxy, "CDS", "outbound|80||e.example");
            cluster["transport_socket"]["typed_config"]["common_tls_context"].clone()
        };
        let context = of("router edge-0.edge");
        let named = &context["combined_validation_context"]["validation_context_sds_secret_config"]["name"];
        assert_eq!(named, roots, "{tls}: {context}");
        assert_eq!(context["tls_certificate_sds_secret_configs"][0]["name"], certificate, "{tls}: {context}");
        // A sidecar that the rule does not select has no Secrets.
        let files = &of(CLIENT)["validation_context"]["trusted_ca"]["filename"];
        assert_eq!(files, "/etc/ssl/certs/ca-certificates.crt", "{tls}");
    };
    check("mode: SIMPLE, caCertCredentialName: r", "kubernetes://r-cacert", Value::Null);
    check(
        "mode: SIMPLE, credentialName: c, caCertCredentialName: 'kubernetes://r'",
        "kubernetes://r-cacert",
        Value::Null,
    );
    check("mode: MUTUAL, credentialName: c", "kubernetes://c-cacert", "kubernetes://c".into());
    check("mode: MUTUAL, credentialName: c, caCertCredentialName: r", "kubernetes://r-cacert", "kubernetes://c".into());
}
