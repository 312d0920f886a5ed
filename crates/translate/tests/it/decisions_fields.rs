//! A decision for each field that no other table covers.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_testkit::TestCa;
use serde_json::{Value, json};

use crate::calls::{Arrival, HTTP, Mesh, destination_rule, object_of, virtual_service};
use crate::decisions::{Client, PLAIN_HTTP, mesh};
use crate::decisions_mesh::built;
use crate::recorded::compared;
use crate::scenario::{translate, view_of};

const CLUSTER: &str = "outbound|80||reviews.shop.svc.cluster.local";

/// A field of the cluster of `reviews` under a policy.
fn cluster(policy: &str, path: &str, expected: Value) {
    let proxy = Mesh::new(&destination_rule("reviews", &format!("trafficPolicy: {policy}"))).client();
    let found = proxy.resource("CDS", CLUSTER).pointer(path).cloned().unwrap_or_default();
    assert_eq!(found, expected, "{policy}: {path}");
}

#[test]
fn consistent_hashes() {
    let hashed = |fields: &str, expected: Value| {
        let rule =
            destination_rule("reviews", &format!("trafficPolicy: {{loadBalancer: {{consistentHash: {fields}}}}}"));
        let proxy = Mesh::new(&rule).client();
        let policies = &proxy.routes("reviews.shop.svc.cluster.local:80")[0]["route"]["hash_policy"];
        assert_eq!(*policies, expected, "{fields}");
    };
    hashed("{httpHeaderName: x-user}", json!([{"header": {"header_name": "x-user"}}]));
    hashed("{httpQueryParameterName: user}", json!([{"query_parameter": {"name": "user"}}]));
    hashed("{useSourceIp: true}", json!([{"connection_properties": {"source_ip": true}}]));
    hashed(
        "{httpCookie: {name: u, path: /a, ttl: 60s}}",
        json!([{"cookie": {"name": "u", "path": "/a", "ttl": "60s"}}]),
    );
    let attributes = "{httpCookie: {name: u, ttl: 0s, attributes: [{name: SameSite, value: Lax}]}}";
    let cookie = json!({"name": "u", "ttl": "0s", "attributes": [{"name": "SameSite", "value": "Lax"}]});
    hashed(attributes, json!([{ "cookie": cookie }]));
    let balanced = |fields: &str, path: &str, expected: Value| {
        cluster(&format!("{{loadBalancer: {{consistentHash: {fields}}}}}"), path, expected);
    };
    balanced("{useSourceIp: true, minimumRingSize: 2000}", "/ring_hash_lb_config/minimum_ring_size", json!(2000));
    let ring = "{useSourceIp: true, ringHash: {minimumRingSize: 512}}";
    balanced(ring, "/ring_hash_lb_config/minimum_ring_size", json!(512));
    let maglev = "{useSourceIp: true, maglev: {tableSize: 65537}}";
    balanced(maglev, "/lb_policy", json!("MAGLEV"));
    balanced(maglev, "/maglev_lb_config/table_size", json!(65537));
}

#[test]
fn slow_start_outliers_and_keep_alive() {
    let warm = |path: &str| format!("/least_request_lb_config/slow_start_config/{path}");
    let warmup = "{loadBalancer: {warmup: {duration: 30s, minimumPercent: 20, aggression: 2}}}";
    cluster(warmup, &warm("slow_start_window"), json!("30s"));
    cluster(warmup, &warm("min_weight_percent/value"), json!(20.0));
    cluster(warmup, &warm("aggression/default_value"), json!(2.0));
    cluster("{loadBalancer: {warmupDurationSecs: 10s}}", &warm("slow_start_window"), json!("10s"));
    let outlier = |fields: &str, path: &str, expected: Value| {
        cluster(&format!("{{outlierDetection: {fields}}}"), &format!("/outlier_detection/{path}"), expected);
    };
    outlier("{baseEjectionTime: 7s}", "base_ejection_time", json!("7s"));
    let local = "{splitExternalLocalOriginErrors: true, consecutiveLocalOriginFailures: 4}";
    outlier(local, "split_external_local_origin_errors", json!(true));
    outlier(local, "consecutive_local_origin_failure", json!(4));
    cluster(
        "{outlierDetection: {minHealthPercent: 30}}",
        "/common_lb_config/healthy_panic_threshold/value",
        json!(30.0),
    );
    let options = "/typed_extension_protocol_options/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
    cluster(
        "{connectionPool: {http: {h2UpgradePolicy: UPGRADE, http2KeepAlive: {interval: 10s, timeout: 2s}}}}",
        &format!("{options}/explicit_http_config/http2_protocol_options/connection_keepalive/timeout"),
        json!("2s"),
    );
    // A port has a policy of its own.
    let ports = "{portLevelSettings: [{port: {number: 80}, outlierDetection: {consecutive5xxErrors: 9}}]}";
    cluster(ports, "/outlier_detection/consecutive_5xx", json!(9));
}

#[test]
fn certificate_files_of_clients() {
    let tls =
        "{tls: {mode: MUTUAL, clientCertificate: /a.crt, privateKey: /a.key, caCertificates: /ca.crt, caCrl: /a.crl}}";
    let mesh = Mesh::new(&destination_rule("reviews", &format!("trafficPolicy: {tls}")));
    // The files are elsewhere, so no proxy can compile this here.
    let text = compared(&mesh.resources("sidecar client-0.shop")).to_string();
    for file in ["/a.crt", "/a.key", "/ca.crt", "/a.crl"] {
        assert!(text.contains(file), "{file} is not in {text}");
    }
    // The same for unknown hosts.
    let settings = format!("{{outboundTrafficPolicy: {{mode: ALLOW_ANY_DYNAMIC_DNS, {}", &tls[1..]);
    let map = format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: '{settings}}}'}}\n"
    );
    let text = compared(&Mesh::new(&map).resources("sidecar client-0.shop")).to_string();
    for file in ["/a.crt", "/a.key", "/ca.crt", "/a.crl"] {
        assert!(text.contains(file), "{file} is not in {text}");
    }
}

#[test]
fn certificates_of_gateways() {
    let gateway = |tls: &str| {
        let server = format!("{{port: {{number: 8443, name: web, protocol: HTTPS}}, hosts: ['*'], tls: {{{tls}}}}}");
        object_of(
            "networking.istio.io/v1",
            "Gateway",
            "web",
            "shop",
            &format!("selector: {{app: edge}}\nservers: [{server}]"),
        )
    };
    let of =
        |objects: &str, kind: &str| compared(&Mesh::new(objects).resources("router edge-0.shop"))[kind].to_string();
    // The roots may stand beside one of several certificates.
    let files =
        "mode: MUTUAL, tlsCertificates: [{serverCertificate: /a.crt, privateKey: /a.key, caCertificates: /ca.crt}]";
    let listeners = of(&gateway(files), "LDS");
    assert!(listeners.contains(r#""trusted_ca":{"filename":"/ca.crt"}"#), "{listeners}");
    // A Secret in base64.
    let ca = TestCa::new();
    let identity = ca.for_dns(&["web.example.com"]);
    let (chain, key) = (STANDARD.encode(&identity.cert_pem), STANDARD.encode(&identity.key_pem));
    let secret = format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: web, namespace: shop}}\ndata: {{tls.crt: {chain}, tls.key: {key}}}\n---\n"
    );
    let secrets = of(&(secret + &gateway("mode: SIMPLE, credentialName: web")), "SDS");
    assert!(secrets.contains("kubernetes://web"), "{secrets}");
}

/// The DENY policy with this rule judges calls of `reviews`: each call with whether it is denied.
fn denies(rule: &str, calls: &[(&Client, &str, bool)]) {
    let policy = object_of(
        "security.istio.io/v1",
        "AuthorizationPolicy",
        "p",
        "shop",
        &format!("selector: {{matchLabels: {{app: reviews}}}}\naction: DENY\nrules: [{{{rule}}}]"),
    );
    let server = Mesh::new(&policy).proxy("sidecar reviews-0.shop");
    for (client, request, denied) in calls {
        let end = server.outcome("virtualInbound", client, "10.244.0.2:80", request);
        let expected = if *denied { "denied by ns[shop]-policy[p]-rule[0]".to_owned() } else { forwarded(request) };
        assert_eq!(end, expected, "{rule}: {request}");
    }
}

fn forwarded(request: &str) -> String {
    let words: Vec<&str> = request.split(' ').collect();
    format!("inbound|80|| {}{}", words[1], words[2])
}

#[test]
fn what_a_policy_excepts() {
    let call = "GET reviews /";
    denies(
        "to: [{operation: {notHosts: [reviews]}}]",
        &[(&PLAIN_HTTP, call, false), (&PLAIN_HTTP, "GET other /", true)],
    );
    denies(
        "to: [{operation: {notMethods: [GET]}}]",
        &[(&PLAIN_HTTP, call, false), (&PLAIN_HTTP, "PUT reviews /", true)],
    );
    denies("to: [{operation: {notPorts: ['80']}}]", &[(&PLAIN_HTTP, call, false)]);
    denies("to: [{operation: {notPorts: ['81']}}]", &[(&PLAIN_HTTP, call, true)]);
    denies(
        "to: [{operation: {notPaths: [/a*]}}]",
        &[(&PLAIN_HTTP, "GET reviews /ab", false), (&PLAIN_HTTP, call, true)],
    );
    let (own, other) = (mesh("shop/sa/client"), mesh("stock/sa/ledger"));
    denies("from: [{source: {notNamespaces: [shop]}}]", &[(&own, call, false), (&other, call, true)]);
    denies("from: [{source: {notServiceAccounts: [shop/client]}}]", &[(&own, call, false), (&other, call, true)]);
    denies("from: [{source: {notRemoteIpBlocks: [10.244.9.0/24]}}]", &[(&PLAIN_HTTP, call, false)]);
    denies("from: [{source: {notRemoteIpBlocks: [10.1.0.0/16]}}]", &[(&PLAIN_HTTP, call, true)]);
}

#[test]
fn tokens_without_keys_are_refused_whatever_else_the_rule_says() {
    let rule = "jwtRules: [{issuer: me, jwks: '{}', audiences: [a], forwardOriginalToken: true, timeout: 1s, spaceDelimitedClaims: [c]}]";
    let authentication = object_of("security.istio.io/v1", "RequestAuthentication", "jwt", "shop", rule);
    let server = Mesh::new(&authentication).proxy("sidecar reviews-0.shop");
    let end = |request: &str| server.outcome("virtualInbound", &PLAIN_HTTP, "10.244.0.2:80", request);
    assert_eq!(end("GET reviews /"), forwarded("GET reviews /"));
    let refused = end("GET reviews /?access_token=x");
    assert!(refused.contains("Jwt_is_not_in_the_form"), "{refused}");
}

#[test]
fn who_sees_rules_and_entries() {
    let entry = |to: &str| {
        let spec = format!(
            "exportTo: [{to}]\nhosts: [a.example.com]\naddresses: [10.97.0.1]\nresolution: STATIC\n\
             ports: [{{number: 80, name: http, protocol: HTTP}}]\nendpoints: [{{address: 192.0.2.1, network: n}}]"
        );
        object_of("networking.istio.io/v1", "ServiceEntry", "e", "stock", &spec)
    };
    let called = |objects: &str| Mesh::new(objects).client().http("GET a.example.com /");
    assert_eq!(called(&entry("'*'")), "a.example.com/ to a.example.com:80");
    assert_eq!(called(&entry("'.'")), "a.example.com/ to PassthroughCluster");
    let rule = |to: &str| {
        let spec = format!(
            "exportTo: [{to}]\nhost: reviews.shop.svc.cluster.local\ntrafficPolicy: {{loadBalancer: {{simple: RANDOM}}}}"
        );
        object_of("networking.istio.io/v1", "DestinationRule", "d", "shop", &spec)
    };
    let policy =
        |to: &str, proxy: &str| Mesh::new(&rule(to)).proxy(proxy).resource("CDS", CLUSTER)["lb_policy"].clone();
    assert_eq!(policy("'.'", "sidecar client-0.shop"), "RANDOM");
    assert_eq!(policy("'.'", "sidecar ledger-0.stock"), "LEAST_REQUEST");
    assert_eq!(policy("'*'", "sidecar ledger-0.stock"), "RANDOM");
}

#[test]
fn conditions_of_tls_routes() {
    let tls = |condition: &str| {
        let spec = format!(
            "hosts: [reviews.shop.svc.cluster.local]\ntls: [{{match: [{{port: 9443, sniHosts: [reviews.shop.svc.cluster.local], {condition}}}], \
             route: [{{destination: {{host: ratings, port: {{number: 9000}}}}}}]}}]"
        );
        let sni = Some("reviews.shop.svc.cluster.local");
        let arrival = Arrival { listener: "10.96.0.1_9443", to: "10.96.0.1:9443", sni, ..HTTP };
        Mesh::new(&virtual_service("tls", "shop", &spec)).client().decide(arrival, "")
    };
    assert_eq!(tls("gateways: [mesh]"), "ratings.shop:9000");
    assert_eq!(tls("sourceNamespace: shop"), "ratings.shop:9000");
    assert_ne!(tls("gateways: [front]"), "ratings.shop:9000");
    assert_ne!(tls("sourceNamespace: stock"), "ratings.shop:9000");
}

#[test]
fn what_a_slice_says_of_an_endpoint() {
    let client = Mesh::new(FAR).client();
    let group = client.endpoints("outbound|80||far.shop.svc.cluster.local")[0].clone();
    assert_eq!(group["locality"]["zone"], "z1", "{group:#}");
    let address = &group["lb_endpoints"][0]["endpoint"]["address"]["socket_address"];
    assert_eq!((&address["address"], &address["port_value"]), (&json!("10.1.0.1"), &json!(80)));
}

/// A Service whose endpoint is written down.
const FAR: &str = "\
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {clusterIP: 10.96.0.8, ports: [{name: http, port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: far, namespace: shop, labels: {kubernetes.io/service-name: far}}
addressType: IPv4
ports: [{name: http, port: 80, protocol: TCP}]
endpoints:
- {addresses: [10.1.0.1], zone: z1, hostname: a, nodeName: n1, targetRef: {kind: Pod, name: a, namespace: shop}}
";

#[test]
fn servers_of_gateways_with_names() {
    let gateway = object_of(
        "networking.istio.io/v1",
        "Gateway",
        "web",
        "shop",
        "selector: {app: edge}\nservers: [{name: first, port: {number: 8085, name: web, protocol: HTTP, targetPort: 9}, \
         hosts: ['web.example.com'], defaultEndpoint: '127.0.0.1:1'}]",
    );
    let routes = virtual_service(
        "web",
        "shop",
        "hosts: [web.example.com]\ngateways: [web]\nhttp: [{match: [{statPrefix: s, uri: {prefix: /}}], route: [{destination: {host: reviews, port: {number: 80}}}]}]",
    );
    let mesh = Mesh::new(&(gateway + &routes));
    assert_eq!(mesh.codes, ["no-effect", "no-effect"]);
    let arrival = Arrival { listener: "0.0.0.0_8085", to: "10.244.0.6:8085", ..HTTP };
    let decided = mesh.proxy("router edge-0.shop").decide(arrival, "GET web.example.com /");
    assert_eq!(decided, "web.example.com/ to reviews.shop:80");
}

/// The resources of the sidecar of `web-0` as text, with these settings of the mesh.
fn with_settings(settings: &str, more: &str) -> String {
    let (snapshot, _) = built(settings, more);
    compared(&translate(&view_of("sidecar web-0.shop", &snapshot), &snapshot)).to_string()
}

#[test]
fn names_of_the_mesh() {
    let text = with_settings("trustDomain: example.org", "");
    assert!(text.contains("spiffe://example.org/") && !text.contains("spiffe://cluster.local/"));
    // Policies of the root namespace hold everywhere.
    let policy = object_of("security.istio.io/v1", "AuthorizationPolicy", "all", "roots", "action: DENY\nrules: [{}]");
    let more = format!("---\n{policy}");
    assert!(with_settings("rootNamespace: roots", &more).contains("ns[roots]-policy[all]-rule[0]"));
    assert!(!with_settings("{}", &more).contains("ns[roots]-policy[all]-rule[0]"));
}

#[test]
fn formats_of_access_logs() {
    let log = |format: &str| {
        let provider = format!("{{name: file, envoyFileAccessLog: {{path: /tmp/log, {format}}}}}");
        with_settings(&format!("extensionProviders: [{provider}]\ndefaultProviders: {{accessLogging: [file]}}"), "")
    };
    let text = log("logFormat: {text: \"own %REQ(:METHOD)%\\n\"}");
    assert!(text.contains("own %REQ(:METHOD)%"), "{text}");
    assert!(log("omitEmptyValues: true, logFormat: {labels: {m: x}}").contains(r#""omit_empty_values":true"#));
}

#[test]
fn parts_of_certificates_that_workloads_are_told() {
    let details = |parts: &str| {
        let settings = format!("defaultConfig: {{proxyHeaders: {{setCurrentClientCertDetails: {{{parts}}}}}}}");
        let text = with_settings(&settings, "");
        let start = text.find("set_current_client_cert_details").expect("the field");
        text[start..].split('}').next().unwrap_or_default().to_owned()
    };
    let all = details("subject: true, chain: true, uri: true");
    assert!([r#""subject":true"#, r#""chain":true"#, r#""uri":true"#].iter().all(|part| all.contains(part)), "{all}");
    let none = details("subject: false, chain: false, uri: false, dns: true");
    assert!(
        ![r#""subject":true"#, r#""chain":true"#, r#""uri":true"#].iter().any(|part| none.contains(part)),
        "{none}"
    );
}
