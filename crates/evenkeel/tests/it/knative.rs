//! Knative's Istio layer: VirtualServices and Gateways in the form in which net-istio writes them go through a real API server, one
//! case for each of Knative's conformance tests of ingresses. Each row is a request that comes to a gateway from outside, and what becomes
//! of it.

use std::process::Command;

use evenkeel_testkit::TestCa;
use evenkeel_testkit::kubernetes::{ApiServer, CustomResources};

const EXTERNAL: &str = "knative-serving/knative-ingress-gateway";
const LOCAL: &str = "knative-serving/knative-local-gateway";

/// The Gateways that Knative's installation has.
const GATEWAYS: &str = "\
apiVersion: v1
kind: Namespace
metadata: {name: knative-serving}
---
apiVersion: v1
kind: Namespace
metadata: {name: istio-system}
---
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata: {name: knative-ingress-gateway, namespace: knative-serving}
spec: {selector: {istio: ingressgateway}, servers: [{hosts: ['*'], port: {name: http, number: 80, protocol: HTTP}}]}
---
apiVersion: networking.istio.io/v1beta1
kind: Gateway
metadata: {name: knative-local-gateway, namespace: knative-serving}
spec: {selector: {istio: ingressgateway}, servers: [{hosts: ['*'], port: {name: http, number: 8081, protocol: HTTP}}]}
---
";

/// A revision: a Service whose endpoints Knative writes itself.
fn revision(shop: &str, name: &str, port: &str, address: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {shop}}}\n\
         spec: {{ports: [{{name: {port}, port: 80, targetPort: 8012}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, namespace: {shop}, labels: {{kubernetes.io/service-name: {name}}}}}\n\
         addressType: IPv4\nports: [{{name: {port}, port: 8012}}]\nendpoints: [{{addresses: [{address}]}}]\n---\n"
    )
}

/// A rule of an ingress: for a host at a gateway, with further conditions. net-istio writes one for probes before it.
fn rule(shop: &str, gateway: &str, host: &str, more: &str, splits: &[(&str, u32)], own: &str) -> String {
    let prefix = host.strip_suffix(".svc.cluster.local").unwrap_or(host);
    let route: String = splits
        .iter()
        .map(|(name, weight)| {
            let headers = format!("headers: {{request: {{set: {{Knative-Serving-Revision: {name}}}}}}}");
            format!(
                "    - {{destination: {{host: {name}.{shop}.svc.cluster.local, port: {{number: 80}}}}, weight: {weight}, {headers}}}\n"
            )
        })
        .collect();
    let one = |conditions: &str, own: &str| {
        format!(
            "  - match: [{{gateways: [{gateway}], authority: {{prefix: {prefix}}}{conditions}}}]\n    route:\n{route}    retries: {{}}\n{own}"
        )
    };
    // Conditions are `uri: …` or `headers: {…}`; a probe has its header beside those.
    let probe = match more.split_once("headers: {") {
        Some((before, after)) => format!("{before}headers: {{K-Network-Hash: {{exact: override}}, {after}"),
        None => format!("{more}, headers: {{K-Network-Hash: {{exact: override}}}}"),
    };
    let hash = "    headers: {request: {set: {K-Network-Hash: a3f1}}}\n";
    let of_probe = if own.contains("headers:") { "" } else { hash };
    [one(&probe, &format!("{of_probe}{own}")), one(more, own)].concat()
}

fn ingress(shop: &str, name: &str, hosts: &[&str], gateways: &[&str], rules: &[String]) -> String {
    format!(
        "apiVersion: networking.istio.io/v1beta1\nkind: VirtualService\n\
         metadata: {{name: {name}-ingress, namespace: {shop}, labels: {{networking.internal.knative.dev/ingress: {name}}}}}\n\
         spec:\n  hosts: [{}]\n  gateways: [{}]\n  http:\n{}---\n",
        hosts.join(", "),
        gateways.join(", "),
        rules.concat()
    )
}

/// An ingress for one external host, with one rule.
fn external(shop: &str, name: &str, splits: &[(&str, u32)], own: &str) -> String {
    let host = format!("{name}.{shop}.example.com");
    ingress(shop, name, &[&host], &[EXTERNAL], &[rule(shop, EXTERNAL, &host, "", splits, own)])
}

fn objects(shop: &str) -> String {
    let path = |host: &str, path: &str, to: &str| {
        rule(shop, EXTERNAL, host, &format!(", uri: {{prefix: {path}}}"), &[(to, 100)], "")
    };
    let tag = |host: &str, tag: &str, to: &str| {
        let header = format!(", headers: {{Knative-Serving-Tag: {{exact: {tag}}}}}");
        rule(shop, EXTERNAL, host, &header, &[(to, 100)], "")
    };
    let named = |name: &str| format!("{name}.{shop}.example.com");
    let local = format!("local.{shop}.svc.cluster.local");
    let local_hosts = [format!("local.{shop}"), format!("local.{shop}.svc"), local.clone()];
    let local_hosts: Vec<&str> = local_hosts.iter().map(String::as_str).collect();
    let (dispatch, mixed, tagged, rules, both) =
        (named("path"), named("mixed"), named("tagged"), [named("rule-a"), named("rule-b")], named("both"));
    let of_rules = [
        rule(shop, EXTERNAL, &rules[0], "", &[("one", 100)], ""),
        rule(shop, EXTERNAL, &rules[1], "", &[("two", 100)], ""),
    ];
    let pre = "    headers: {request: {set: {X-Pre: a}}}\n";
    [
        external(shop, "basic", &[("one", 100)], ""),
        external(shop, "http2", &[("two", 100)], ""),
        external(shop, "grpc", &[("grpc-one", 100)], ""),
        external(shop, "grpc-split", &[("grpc-one", 50), ("grpc-two", 50)], ""),
        external(shop, "percentage", &[("one", 90), ("two", 10)], ""),
        external(shop, "pre", &[("one", 100)], pre),
        external(shop, "rewrite", &[("one", 100)], "    rewrite: {authority: other.example.com}\n"),
        ingress(
            shop,
            "many",
            &[&named("host-a"), &named("host-b")],
            &[EXTERNAL],
            &[
                rule(shop, EXTERNAL, &named("host-a"), "", &[("one", 100)], ""),
                rule(shop, EXTERNAL, &named("host-b"), "", &[("one", 100)], ""),
            ],
        ),
        ingress(
            shop,
            "path",
            &[&dispatch],
            &[EXTERNAL],
            &[path(&dispatch, "/two", "two"), rule(shop, EXTERNAL, &dispatch, "", &[("one", 100)], "")],
        ),
        ingress(
            shop,
            "mixed",
            &[&mixed],
            &[EXTERNAL],
            &[path(&mixed, "/two", "two"), rule(shop, EXTERNAL, &mixed, "", &[("one", 50), ("two", 50)], "")],
        ),
        ingress(
            shop,
            "tagged",
            &[&tagged],
            &[EXTERNAL],
            &[tag(&tagged, "next", "two"), rule(shop, EXTERNAL, &tagged, "", &[("one", 100)], "")],
        ),
        ingress(shop, "rules", &[&rules[0], &rules[1]], &[EXTERNAL], &of_rules),
        ingress(
            shop,
            "local",
            &local_hosts,
            &[LOCAL],
            &[
                rule(shop, LOCAL, &local, ", uri: {prefix: /two}", &[("two", 100)], ""),
                rule(shop, LOCAL, &local, "", &[("one", 80), ("two", 20)], ""),
            ],
        ),
        ingress(
            shop,
            "both",
            &[&both],
            &[EXTERNAL, LOCAL],
            &[rule(shop, EXTERNAL, &both, "", &[("one", 100)], ""), rule(shop, LOCAL, &both, "", &[("two", 100)], "")],
        ),
    ]
    .concat()
}

/// A tenant's certificate, which net-istio copies to the gateway, and the Gateways that net-istio writes for a host with TLS, and for one whose HTTP is redirected.
fn secured(shop: &str) -> String {
    let ca = TestCa::new();
    let host = format!("secured.{shop}.example.com");
    let identity = ca.for_dns(&[&host]);
    let indented = |pem: &str| pem.lines().map(|line| format!("    {line}\n")).collect::<String>();
    let server = |name: &str, more: &str| format!("{{hosts: [{host}], port: {{name: '{name}', {more}}}");
    let https = server(&format!("{shop}/secured:0"), "number: 443, protocol: HTTPS");
    let http = server("http-server", "number: 80, protocol: HTTP");
    let gateway = format!("{shop}/secured");
    format!(
        "apiVersion: v1\nkind: Secret\ntype: kubernetes.io/tls\nmetadata: {{name: tenant, namespace: istio-system}}\nstringData:\n  tls.crt: |\n{}  tls.key: |\n{}---\n\
         apiVersion: networking.istio.io/v1beta1\nkind: Gateway\nmetadata: {{name: secured, namespace: {shop}}}\n\
         spec:\n  selector: {{istio: ingressgateway}}\n  servers:\n  - {https}, tls: {{mode: SIMPLE, credentialName: tenant}}}}\n  - {http}, tls: {{httpsRedirect: true}}}}\n---\n{}",
        indented(&identity.cert_pem),
        indented(&identity.key_pem),
        ingress(shop, "secured", &[&host], &[&gateway], &[rule(shop, &gateway, &host, "", &[("one", 100)], "")])
    )
}

#[test]
fn the_objects_of_knative_have_their_effect() {
    let server = ApiServer::start();
    server.install(CustomResources::Istio);
    let shop = server.namespace("shop");
    server.apply(GATEWAYS);
    let revisions = [
        revision(&shop, "one", "http", "10.1.0.1"),
        revision(&shop, "two", "http2", "10.1.0.2"),
        revision(&shop, "grpc-one", "grpc", "10.1.0.3"),
        revision(&shop, "grpc-two", "grpc", "10.1.0.4"),
    ];
    server.apply(&[&revisions.concat(), &objects(&shop), &secured(&shop)].map(String::as_str).concat());
    let home = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig();
    let explain = |url: &str, more: &[&str]| {
        let url = url.replace("SHOP", &shop);
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(["explain", "--from-outside", "--url", &url]).args(more).arg("--kubeconfig").arg(&kubeconfig);
        let output = command.env("HOME", home.path()).output().expect("it runs");
        assert!(output.status.success(), "{url}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let check = |case: &str, url: &str, more: &[&str], expected: &[&str]| {
        let text = explain(url, more);
        expected.iter().for_each(|part| assert!(text.contains(part), "{case}: no {part:?} in\n{text}"));
    };
    let (one, two) = ("→ 10.1.0.1:8012", "→ 10.1.0.2:8012");
    let grpc = ["-X", "POST", "-H", "content-type: application/grpc"];
    let with = |more: &[&'static str]| [&grpc[..], more].concat();
    let cases: &[(&str, &str, &[&str], &[&str])] = &[
        ("basics", "http://basic.SHOP.example.com/", &[], &[one]),
        (
            "basics, a port in the host",
            "http://basic.SHOP.example.com/",
            &["-H", "Host: basic.SHOP.example.com:80"],
            &[one],
        ),
        ("basics/http2", "http://http2.SHOP.example.com/", &[], &[two]),
        ("grpc", "http://grpc.SHOP.example.com/ping.PingService/Ping", &grpc, &["→ 10.1.0.3:8012"]),
        (
            "grpc/split",
            "http://grpc-split.SHOP.example.com/a.B/C",
            &with(&["--random", "10"]),
            &["50.0 %", "→ 10.1.0.3:8012"],
        ),
        (
            "grpc/split, the other",
            "http://grpc-split.SHOP.example.com/a.B/C",
            &with(&["--random", "60"]),
            &["→ 10.1.0.4:8012"],
        ),
        ("headers/pre-split", "http://pre.SHOP.example.com/", &[], &[one, "x-pre: a"]),
        (
            "headers/post-split",
            "http://percentage.SHOP.example.com/",
            &["--random", "95"],
            &[two, "knative-serving-revision: two"],
        ),
        (
            "headers/probe",
            "http://basic.SHOP.example.com/",
            &["-H", "K-Network-Hash: override"],
            &[one, "k-network-hash: a3f1"],
        ),
        ("headers/tags", "http://tagged.SHOP.example.com/", &["-H", "Knative-Serving-Tag: next"], &[two]),
        ("headers/tags, none", "http://tagged.SHOP.example.com/", &[], &[one]),
        ("hosts/multiple, the first", "http://host-a.SHOP.example.com/", &[], &[one]),
        ("hosts/multiple, the second", "http://host-b.SHOP.example.com/", &[], &[one]),
        ("hosts/multiple, another", "http://host-c.SHOP.example.com/", &[], &["404"]),
        ("dispatch/path", "http://path.SHOP.example.com/two/x", &[], &[two]),
        ("dispatch/path, the rest", "http://path.SHOP.example.com/x", &[], &[one]),
        ("dispatch/percentage", "http://percentage.SHOP.example.com/", &["--random", "5"], &["90.0 %", "10.0 %", one]),
        ("dispatch/path and percentage", "http://mixed.SHOP.example.com/x", &["--random", "70"], &["50.0 %", two]),
        ("dispatch/path and percentage, the path", "http://mixed.SHOP.example.com/two", &["--random", "10"], &[two]),
        ("dispatch/rule", "http://rule-a.SHOP.example.com/", &[], &[one]),
        ("dispatch/rule, the other", "http://rule-b.SHOP.example.com/", &[], &[two]),
        ("retry", "http://basic.SHOP.example.com/", &[], &["no retries"]),
        ("timeout", "http://basic.SHOP.example.com/", &[], &["no timeout"]),
        ("tls", "https://secured.SHOP.example.com/", &[], &[one]),
        ("tls, a host without", "https://basic.SHOP.example.com/", &[], &["✗"]),
        ("http option", "http://secured.SHOP.example.com/a", &[], &["301"]),
        ("visibility", "http://local.SHOP.svc.cluster.local:8081/", &["--random", "5"], &[one]),
        ("visibility, not from outside", "http://local.SHOP.svc.cluster.local/", &[], &["404"]),
        ("visibility, a short name", "http://local.SHOP:8081/", &["--random", "5"], &[one]),
        ("visibility/split", "http://local.SHOP.svc:8081/", &["--random", "95"], &["80.0 %", "20.0 %", two]),
        ("visibility/path", "http://local.SHOP.svc.cluster.local:8081/two", &["--random", "5"], &[two]),
        ("ingress class, one host at both gateways", "http://both.SHOP.example.com/", &[], &[one]),
        ("ingress class, the local one", "http://both.SHOP.example.com:8081/", &[], &[two]),
        (
            "websocket",
            "http://basic.SHOP.example.com/",
            &["-H", "connection: upgrade", "-H", "upgrade: websocket"],
            &[one],
        ),
        (
            "websocket/split",
            "http://percentage.SHOP.example.com/",
            &["-H", "connection: upgrade", "-H", "upgrade: websocket", "--random", "95"],
            &[two],
        ),
        ("host rewrite", "http://rewrite.SHOP.example.com/", &[], &[one, "other.example.com"]),
    ];
    for (case, url, more, expected) in cases {
        let more: Vec<String> = more.iter().map(|text| text.replace("SHOP", &shop)).collect();
        check(case, url, &more.iter().map(String::as_str).collect::<Vec<_>>(), expected);
    }
    // update: the next revision takes all.
    server.apply(&external(&shop, "basic", &[("two", 100)], ""));
    check("update", "http://basic.SHOP.example.com/", &[], &[two]);
}
