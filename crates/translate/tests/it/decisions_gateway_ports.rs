//! The ports on which gateways listen: those to which the Services in front of them lead.

use evenkeel_base::Severity;
use evenkeel_xds::ResourceType;

use crate::decisions::{Client, PLAIN_HTTP, outcome};
use crate::decisions_services::Mesh;
use crate::scenario::translate;

/// A Pod of the gateway, a Gateway, a VirtualService that answers by itself, and more.
fn mesh(ports: &str, server: &str, more: &str) -> Mesh {
    Mesh::read(&format!(
        "apiVersion: v1
kind: Pod
metadata: {{name: edge-0, namespace: edge, labels: {{istio: edge}}}}
spec: {{containers: [{{name: proxy, ports: [{ports}]}}]}}
status: {{podIP: 10.244.4.1, phase: Running}}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {{name: edge, namespace: shop}}
spec: {{selector: {{istio: edge}}, servers: [{{port: {{{server}}}, hosts: ['*']}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: web, namespace: shop}}
spec: {{hosts: [web.example.com], gateways: [edge], http: [{{directResponse: {{status: 204}}}}]}}
{more}"
    ))
}

fn service(name: &str, spec: &str) -> String {
    format!("---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: edge}}\nspec: {spec}\n")
}

#[test]
fn gateways_listen_on_the_target_ports_of_their_services_or_on_the_port_itself() {
    let check = |more: &str, number: u16, expected: &[u16]| {
        let mesh =
            mesh("{name: web, containerPort: 9090}", &format!("number: {number}, name: http, protocol: HTTP"), more);
        let view = mesh.view("router edge-0.edge");
        let set = translate(&view, &mesh.snapshot);
        let listeners: Vec<String> = set.of(ResourceType::Listener).keys().map(ToString::to_string).collect();
        let named: Vec<String> = expected.iter().map(|port| format!("0.0.0.0_{port}")).collect();
        assert_eq!(listeners, named, "{more}");
        let config = mesh.proxy(&view);
        for (listener, port) in named.iter().zip(expected) {
            let to = format!("10.244.4.1:{port}");
            let decided = outcome(&config, listener, &PLAIN_HTTP, &to, "GET web.example.com /", 0);
            assert_eq!(decided, "204", "{more} {listener}");
        }
    };
    let edge = |ports: &str| service("edge", &format!("{{selector: {{istio: edge}}, ports: [{ports}]}}"));
    check("", 80, &[80]);
    check("", 8080, &[8080]);
    check(&edge("{name: http, port: 80, targetPort: 8080}"), 80, &[8080]);
    check(&edge("{name: http, port: 80}"), 80, &[80]);
    check(&edge("{name: http, port: 80, targetPort: web}"), 80, &[9090]);
    // A name that no container has leads nowhere.
    check(&edge("{name: http, port: 80, targetPort: other}"), 80, &[80]);
    // The Service has another port.
    check(&edge("{name: http, port: 81, targetPort: 8080}"), 80, &[80]);
    // A Service of other workloads, and one that only names an address.
    check(&service("other", "{selector: {app: other}, ports: [{name: http, port: 80, targetPort: 8080}]}"), 80, &[80]);
    let second = service("second", "{selector: {istio: edge}, ports: [{name: http, port: 80, targetPort: 8081}]}");
    check(&(edge("{name: http, port: 80, targetPort: 8080}") + &second), 80, &[8080]);
    // The label, with any value.
    let untranslated = edge("{name: http, port: 80, targetPort: 8080}")
        .replace("name: edge,", "name: edge, labels: {experimental.istio.io/disable-gateway-port-translation: \"\"},");
    check(&untranslated, 80, &[80]);
    check(&(untranslated + &second), 80, &[8081]);
    // A ServiceEntry that names the gateway's address.
    let entry = "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: e, namespace: edge}\n\
                 spec: {hosts: [e.example.com], resolution: STATIC, endpoints: [{address: 10.244.4.1}], ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8082}]}\n";
    check(entry, 80, &[8082]);
}

#[test]
fn a_server_with_tls_that_redirects_to_tls_serves_as_if_it_did_not() {
    let check = |protocol: &str, tls: &str, client: &Client, expected: &str, codes: &[&str]| {
        let server = format!("number: 443, name: web, protocol: {protocol}}}, tls: {{{tls}");
        let mesh = mesh("", &server, "");
        let config = mesh.proxy(&mesh.view("router edge-0.edge"));
        let decided = outcome(&config, "0.0.0.0_443", client, "10.244.4.1:443", "GET web.example.com /", 0);
        assert_eq!(decided, expected, "{server}");
        let warnings = mesh.found.iter().filter(|finding| finding.severity >= Severity::Warning);
        assert_eq!(warnings.map(|finding| finding.code).collect::<Vec<_>>(), codes, "{server}: {}", mesh.found);
    };
    let secure = Client { identity: "shop/sa/web", server_name: Some("web.example.com"), ..PLAIN_HTTP };
    let mutual = "mode: ISTIO_MUTUAL";
    check("HTTPS", mutual, &secure, "204", &[]);
    // It is a warning, and nothing else changes: no redirect from HTTPS to itself.
    check("HTTPS", &format!("{mutual}, httpsRedirect: true"), &secure, "204", &["no-effect"]);
    check("HTTP", "httpsRedirect: true", &PLAIN_HTTP, "301 https://web.example.com/", &[]);
}

#[test]
fn servers_with_certificates_listen_there_too() {
    let tls = "number: 443, name: tls, protocol: TLS}, tls: {mode: PASSTHROUGH";
    let fronting = service("edge", "{selector: {istio: edge}, ports: [{name: tls, port: 443, targetPort: 8443}]}");
    let more = "---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {name: tls, namespace: shop}\n\
                spec: {hosts: [tls.example.com], gateways: [edge], tls: [{match: [{sniHosts: [tls.example.com]}], route: [{destination: {host: edge.edge.svc.cluster.local, port: {number: 443}}}]}]}\n";
    for (front, expected) in [("", "0.0.0.0_443"), (fronting.as_str(), "0.0.0.0_8443")] {
        let front =
            if front.is_empty() { service("edge", "{ports: [{name: tls, port: 443}]}") } else { front.to_owned() };
        let mesh = mesh("", tls, &format!("{more}{front}"));
        let set = translate(&mesh.view("router edge-0.edge"), &mesh.snapshot);
        let listeners: Vec<String> = set.of(ResourceType::Listener).keys().map(ToString::to_string).collect();
        assert_eq!(listeners, [expected]);
    }
}
