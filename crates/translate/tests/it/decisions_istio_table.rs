//! The differences that were once found between Istio's answers and ours, one row each: a small mesh, what is asked, Istio's
//! answer, and the one that must not come back. `decisions_istio.rs` has their neighbours.

use crate::decisions::{Client, PLAIN_HTTP};
use crate::decisions_istio::{
    EDGE, SIDECAR, at_gateway, base, call, entry, gateway, http, istio, pod, resource, routes, service, services, sni,
    to,
};
use crate::decisions_services::Mesh;

/// What is asked of a mesh.
enum Question {
    /// Where a request goes that comes to this port of the gateway.
    Gateway(u16, Client, &'static str),
    /// Where a call of the workload goes, from its address and its request.
    Workload(Client, &'static str, &'static str),
    /// A resource of a proxy: its kind and its name.
    Resource(&'static str, &'static str, &'static str),
    /// The findings about the mesh.
    Findings,
}

/// A difference. Texts of resources and findings contain the answers.
struct Difference {
    id: &'static str,
    mesh: String,
    question: Question,
    istio: &'static str,
    /// Our former answer, if it is more than the lack of Istio's.
    instead: &'static str,
}

use Question::{Findings, Gateway, Resource, Workload};

const WEB: &str = "outbound|80||web.shop.svc.cluster.local";

fn row(id: &'static str, mesh: String, question: Question, istio: &'static str, instead: &'static str) -> Difference {
    Difference { id, mesh, question, istio, instead }
}

fn settings(text: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata: {{mesh: \"{text}\"}}\n"
    )
}

/// An Ingress with a certificate, for one path of a host.
fn ingress(name: &str, path: &str, port: &str) -> String {
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{ingressClassName: istio, tls: [{{hosts: [a.example], secretName: a}}], rules: [{{host: a.example, http: {{paths: \
         [{{path: '{path}', pathType: Prefix, backend: {{service: {{name: web, port: {{{port}}}}}}}}}]}}}}]}}\n"
    )
}

/// The gateway of Ingresses, and a Service.
fn of_ingresses(more: &str) -> String {
    let class = "---\napiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\nspec: {controller: istio.io/ingress-controller}\n";
    base().replace("istio: edge", "istio: ingressgateway") + class + &services("web") + more
}

/// A Service in front of the gateway, with a label, and what else has the gateway's address.
fn of_gateway_port(labels: &str, more: &str) -> String {
    let server = gateway(&http(90, "'*'"));
    let front = service(
        "edge/front",
        &format!("[{labels}] {{selector: {{istio: edge}}, ports: [{{name: http, port: 90, targetPort: 8090}}]}}"),
    );
    let answers = routes("v", "{hosts: ['*'], gateways: [edge/gw], http: [{directResponse: {status: 204}}]}");
    base() + &server + &answers + if labels.is_empty() { "" } else { &front } + more
}

fn at_gateways() -> Vec<Difference> {
    let headless = service("db", "{clusterIP: None, selector: {app: db}, ports: [{name: http, port: 80}]}");
    let none =
        entry("none", "{hosts: [none.example], resolution: NONE, ports: [{number: 80, name: http, protocol: HTTP}]}");
    let sources = |condition: &str| {
        let canary = to("canary", 80);
        let spec = format!(
            "{{hosts: [a.example], gateways: [edge/gw, mesh], http: [{{match: [{{{condition}}}], {}, {}]}}",
            &canary[1..],
            to("web", 80)
        );
        base() + &gateway(&http(8080, "a.example")) + &services("web canary") + &routes("v", &spec)
    };
    let of_hosts = |hosts: &str| {
        let spec = format!("{{hosts: ['{hosts}'], gateways: [edge/gw], http: [{}]}}", to("web", 80));
        base() + &gateway(&http(8080, "a.example, b.example, '*.c.example'")) + &services("web") + &routes("v", &spec)
    };
    let other_port = format!(
        "{{hosts: [a.example], gateways: [edge/gw], http: [{{match: [{{port: 8081}}], {}]}}",
        &to("web", 80)[1..]
    );
    let wildcard = format!("{{hosts: ['*.example'], gateways: [edge/gw], http: [{}]}}", to("web", 80));
    let of_port = base()
        + &gateway(&format!("{}, {}", http(8080, "a.example, '*.example'"), http(8081, "a.example")))
        + &services("web")
        + &routes("a", &other_port)
        + &routes("b", &wildcard);
    let request = |text: &'static str| Gateway(8080, PLAIN_HTTP, text);
    let untranslated = of_gateway_port("experimental.istio.io/disable-gateway-port-translation: \"true\"", "");
    let by_entry = entry(
        "edge/e",
        "{hosts: [e.example], resolution: STATIC, endpoints: [{address: 10.244.9.1}], ports: [{number: 90, name: http, protocol: HTTP, targetPort: 8082}]}",
    );
    vec![
        row(
            "G3",
            base() + &headless,
            Resource(EDGE, "CDS", "outbound|80||db.shop.svc.cluster.local"),
            "\"EDS\"",
            "ORIGINAL_DST",
        ),
        row("G3", base() + &none, Resource(EDGE, "CDS", "outbound|80||none.example"), "\"EDS\"", "ORIGINAL_DST"),
        row("G2", sources("sourceLabels: {role: tester}"), request("GET a.example /"), "web.shop:80", "canary.shop:80"),
        row("G2", sources("sourceNamespace: admin"), request("GET a.example /"), "web.shop:80", "canary.shop:80"),
        row("G1", of_hosts("*.example"), request("GET b.example /"), "web.shop:80", "404"),
        row("G1", of_hosts("*"), request("GET x.c.example /"), "web.shop:80", "404"),
        row("V3", of_port, request("GET a.example /"), "web.shop:80", "404"),
        row("L1", untranslated, Resource(EDGE, "LDS", "0.0.0.0_90"), "\"port_value\":90", "8090"),
        row("E1", of_gateway_port("", &by_entry), Resource(EDGE, "LDS", "0.0.0.0_8082"), "\"port_value\":8082", ""),
    ]
}

fn of_ingress() -> Vec<Difference> {
    let number = "number: 80";
    let secure = Client { server_name: Some("a.example"), ..PLAIN_HTTP };
    let both = of_ingresses(&(ingress("a", "/a", number) + &ingress("b", "/b", number)));
    let misnamed = of_ingresses(&ingress("a", "/a", "name: nope"));
    let star = of_ingresses(&ingress("a", "/star/*", number));
    vec![
        row("I1", both, Gateway(443, secure, "GET a.example /b"), "web.shop:80", "404"),
        row("H1", misnamed, Gateway(80, PLAIN_HTTP, "GET a.example /a"), "404", "web.shop:80"),
        row("H1", star, Gateway(80, PLAIN_HTTP, "GET a.example /starx"), "404", "web.shop:80"),
    ]
}

fn of_entries() -> Vec<Difference> {
    let egress = "{hosts: [b.example], tls: [{match: [{port: 443, sniHosts: [b.example]}], route: [{destination: {host: egress, port: {number: 443}}}]}]}";
    let shared = base()
        + &entry(
            "far",
            "{hosts: [a.example, b.example], addresses: [10.7.6.1], resolution: STATIC, endpoints: [{address: 10.5.5.5}], ports: [{number: 443, name: tls, protocol: TLS}]}",
        )
        + &service("egress", "{clusterIP: 10.96.0.1, ports: [{name: tls, port: 443}]}")
        + &routes("b", egress);
    let machine = base()
        + &service("web", "{selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}")
        + &istio("WorkloadEntry", "vm", "{address: 10.5.0.1, labels: {app: web}, ports: {http: 7070}}");
    let other_port = base()
        + &entry(
            "e",
            "{hosts: [a.example], addresses: [10.6.0.1], resolution: NONE, ports: [{number: 9001, name: tcp, protocol: TCP, targetPort: 9002}]}",
        );
    let short_names = base()
        + &entry(
            "e",
            "{hosts: [a.other.svc.cluster.local], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 192.0.2.1}]}",
        );
    let unknown = base() + &services("web") + &settings("outboundTrafficPolicy: {mode: ALLOW_ANY_DYNAMIC_DNS}");
    let unknown_host = Workload(PLAIN_HTTP, "192.0.2.9:8123", "GET x.example:8123 /");
    vec![
        row("S1", shared, Workload(sni("b.example"), "10.7.6.1:443", ""), "egress.shop:443", "PassthroughCluster"),
        row("W1", machine, Resource(SIDECAR, "EDS", WEB), "\"port_value\":7070", "8080"),
        row(
            "T1",
            other_port,
            Resource(SIDECAR, "CDS", "outbound|9001||a.example"),
            "\"upstream_port_override\":9002",
            "",
        ),
        row(
            "N1",
            short_names,
            Workload(PLAIN_HTTP, "192.0.2.9:80", "GET a.other /"),
            "a.other:80",
            "PassthroughCluster",
        ),
        row("A1", unknown, unknown_host, "AllowAnyDynamicDNSCluster", "PassthroughCluster"),
    ]
}

fn of_rules() -> Vec<Difference> {
    let rule = |spec: &str| base() + &services("web") + &istio("DestinationRule", "web", spec);
    let of_subset = "{host: web, trafficPolicy: {loadBalancer: {simple: RANDOM}}, subsets: [{name: v1, labels: {version: v1}, \
                     trafficPolicy: {portLevelSettings: [{port: {number: 80}, connectionPool: {tcp: {maxConnections: 5}}}]}}]}";
    let exported = "{host: web, exportTo: [other], trafficPolicy: {connectionPool: {tcp: {maxConnections: 5}}}}";
    let alias = service("old", "{type: ExternalName, externalName: web.shop.svc.cluster.local}");
    let of_alias = istio("DestinationRule", "old", "{host: old, trafficPolicy: {loadBalancer: {simple: RANDOM}}}");
    let subset = Resource(SIDECAR, "CDS", "outbound|80|v1|web.shop.svc.cluster.local");
    vec![
        row("R1", rule(of_subset), subset, "\"max_connections\":5", "RANDOM"),
        row("D1", rule(exported), Resource(SIDECAR, "CDS", WEB), "\"EDS\"", "\"max_connections\":5"),
        row(
            "O1",
            rule("{host: web, trafficPolicy: {tls: {mode: SIMPLE}}}"),
            Resource(SIDECAR, "CDS", WEB),
            "\"TLSv1_3\"",
            "",
        ),
        row("AL1", base() + &services("web") + &alias + &of_alias, Findings, "another name of", ""),
    ]
}

fn of_routes() -> Vec<Difference> {
    let answer = |name: &str, export: &str, status: u16| {
        let spec = "hosts: [web.shop.svc.cluster.local]";
        routes(name, &format!("{{exportTo: ['{export}'], {spec}, http: [{{directResponse: {{status: {status}}}}}]}}"))
    };
    let exports = base() + &services("web") + &answer("one/a", "*", 410) + &answer("b", ".", 411);
    let mirror =
        "{hosts: [web], http: [{mirror: {host: copy}, route: [{destination: {host: web, port: {number: 80}}}]}]}";
    let port = |name: &str, number: u16, address: &str| {
        service(name, &format!("{{clusterIP: {address}, ports: [{{name: http, port: {number}}}]}}"))
    };
    let api = base()
        + &services("web")
        + &port("api", 8080, "10.96.0.9")
        + &routes("api", &format!("{{hosts: [api], http: [{}]}}", to("api", 8080)));
    let detected = base()
        + &service("any", "{clusterIP: 10.96.0.1, ports: [{name: any, port: 5000}]}")
        + &port("web", 5000, "10.96.0.2");
    let called = |to: &'static str, request: &'static str| Workload(PLAIN_HTTP, to, request);
    vec![
        row("P1", exports, called("10.96.0.1:80", "GET web.shop.svc.cluster.local /"), "411", "410"),
        row(
            "M1",
            base() + &services("web copy") + &routes("v", mirror),
            Resource(SIDECAR, "RDS", "80"),
            "\"disable_shadow_host_suffix_append\":true",
            "",
        ),
        row("V1", api, called("10.96.0.9:80", "GET api /"), "api.shop:8080", "PassthroughCluster"),
        row("Q1", base() + &services("web"), Resource(SIDECAR, "RDS", "80"), "\"max_grpc_timeout\":\"0s\"", ""),
        row("U1", detected, called("192.0.2.9:5000", "GET any:5000 /"), "any.shop:5000", "PassthroughCluster"),
    ]
}

fn of_services() -> Vec<Difference> {
    let zone = |app: &str, zone: &str| {
        format!("app: {app}, topology.kubernetes.io/region: r, topology.kubernetes.io/zone: {zone}")
    };
    let shares = pod("edge/edge-0", "istio: edge", "10.244.9.1")
        + &pod("client-0", &zone("client", "a"), "10.244.0.1")
        + &pod("web-0", &zone("web", "a"), "10.244.0.2")
        + &pod("web-1", &zone("web", "b"), "10.244.0.3")
        + &service("web", "{trafficDistribution: PreferClose, selector: {app: web}, ports: [{name: http, port: 80}]}")
        + &settings("localityLbSetting: {distribute: [{from: r/a, to: {r/a: 100}}]}");
    let sessions = base()
        + &pod("web-0", "app: web", "10.244.0.2")
        + &service("web", "[istio.io/persistent-session: id] {selector: {app: web}, ports: [{name: http, port: 80}]}");
    vec![
        row("X1", shares, Resource(SIDECAR, "EDS", WEB), "10.244.0.3", ""),
        row("C1", sessions, Findings, "", "Istio has no label of this name"),
    ]
}

fn differences() -> Vec<Difference> {
    [at_gateways(), of_ingress(), of_entries(), of_rules(), of_routes(), of_services()].into_iter().flatten().collect()
}

#[test]
fn what_once_differed_is_answered_as_istio_does() {
    for Difference { id, mesh, question, istio, instead } in differences() {
        let mesh = Mesh::read(&mesh);
        let (answer, is_whole) = match question {
            Gateway(port, client, request) => (at_gateway(&mesh, port, &client, request), true),
            Workload(client, to, request) => (call(&mesh, &client, to, request), true),
            Resource(proxy, kind, name) => (resource(&mesh, proxy, kind, name).to_string(), false),
            Findings => (mesh.found.to_string(), false),
        };
        if is_whole {
            assert_eq!(answer, istio, "{id}");
        } else {
            assert!(answer.contains(istio), "{id}: {istio}: {answer}");
            assert!(instead.is_empty() || !answer.contains(instead), "{id}: {instead}: {answer}");
        }
        assert_ne!(istio, instead, "{id}");
    }
}

/// Every difference that the comparison with Istio has found, by the name that it has there.
#[test]
fn every_difference_has_a_row() {
    let ids = "G3 G2 G1 I1 S1 R1 P1 W1 A1 M1 V3 X1 L1 T1 D1 V1 Q1 O1 E1 N1 H1 AL1 U1 C1";
    let mut rows: Vec<_> = differences().iter().map(|difference| difference.id).collect();
    rows.sort_unstable();
    rows.dedup();
    let mut ids: Vec<_> = ids.split(' ').collect();
    ids.sort_unstable();
    assert_eq!(rows, ids);
}
