//! Ingresses of one host in several objects.

use crate::decisions::{Client, PLAIN_HTTP, outcome};
use crate::decisions_services::Mesh;

fn ingress(name: &str, namespace: &str, paths: &[(&str, &str, &str)]) -> String {
    let path = |(path, kind, service): &(&str, &str, &str)| {
        format!("{{path: {path}, pathType: {kind}, backend: {{service: {{name: {service}, port: {{number: 80}}}}}}}}")
    };
    let paths: Vec<String> = paths.iter().map(path).collect();
    format!(
        "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: {namespace}}}\n\
         spec: {{ingressClassName: istio, rules: [{{host: a.test, http: {{paths: [{}]}}}}]}}\n",
        paths.join(", ")
    )
}

#[test]
fn paths_are_sorted_over_all_objects() {
    let services = ["one", "two", "three"].map(|name| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{ports: [{{name: http, port: 80}}]}}\n"
        )
    });
    let base = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: istio-system, labels: {istio: ingressgateway}}\n\
                spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.1, phase: Running}\n---\n\
                apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\n\
                spec: {controller: istio.io/ingress-controller}\n";
    let objects = [
        ingress("a", "shop", &[("/", "Prefix", "one"), ("/api", "Prefix", "one")]),
        ingress("b", "shop", &[("/api/v1", "Prefix", "two"), ("/api", "Exact", "two")]),
        ingress("c", "shop", &[("/api/v1", "Exact", "three")]),
    ];
    // The order of the objects means nothing.
    for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2]] {
        let names = ["x", "y", "z"];
        let written = order.map(|at| objects[at].replacen("name: ", &format!("name: {}", names[at]), 1)).concat();
        let mesh = Mesh::read(&format!("{base}{}{written}", services.concat()));
        let config = mesh.proxy(&mesh.view("router edge-0.istio-system"));
        let check = |path: &str, expected: &str| {
            let got = outcome(&config, "0.0.0.0_80", &PLAIN_HTTP, "10.244.4.1:80", &format!("GET a.test {path}"), 0);
            assert_eq!(got, format!("outbound|80||{expected}.shop.svc.cluster.local a.test{path}"), "{order:?}");
        };
        check("/api/v1", "three");
        check("/api/v1/x", "two");
        check("/api", "two");
        check("/api/v2", "one");
        check("/other", "one");
    }
}

#[test]
fn tls_serves_the_paths_of_all_objects_of_a_host() {
    let ingress = |name: &str, host: &str, tls: &str, path: &str, port: &str| {
        format!(
            "---\napiVersion: networking.k8s.io/v1\nkind: Ingress\nmetadata: {{name: {name}, namespace: shop}}\n\
             spec: {{ingressClassName: istio, {tls}rules: [{{host: {host}, http: {{paths: [{{path: {path}, pathType: Prefix, backend: {{service: {{name: one, port: {{{port}}}}}}}}}]}}}}]}}\n"
        )
    };
    let base = "apiVersion: v1\nkind: Pod\nmetadata: {name: edge-0, namespace: istio-system, labels: {istio: ingressgateway}}\n\
                spec: {containers: [{name: proxy}]}\nstatus: {podIP: 10.244.4.1, phase: Running}\n---\n\
                apiVersion: networking.k8s.io/v1\nkind: IngressClass\nmetadata: {name: istio}\n\
                spec: {controller: istio.io/ingress-controller}\n---\napiVersion: v1\nkind: Service\n\
                metadata: {name: one, namespace: shop}\nspec: {ports: [{name: http, port: 80}]}\n";
    let (tls, number) = ("tls: [{hosts: [a.test], secretName: a}], ", "number: 80");
    let check = |objects: &[String], request: &str, secure: bool, expected: &str| {
        let mesh = Mesh::read(&format!("{base}{}", objects.concat()));
        let config = mesh.proxy(&mesh.view("router edge-0.istio-system"));
        let client = Client { server_name: secure.then_some("a.test"), ..PLAIN_HTTP };
        let port = if secure { 443 } else { 80 };
        let to = format!("10.244.4.1:{port}");
        let got = outcome(&config, &format!("0.0.0.0_{port}"), &client, &to, &format!("GET {request}"), 0);
        assert_eq!(got.split(' ').next(), Some(expected), "{request} {secure}");
    };
    let one = "outbound|80||one.shop.svc.cluster.local";
    let both = [ingress("a", "a.test", tls, "/a", number), ingress("b", "a.test", tls, "/b", number)];
    let first = [ingress("a", "a.test", tls, "/a", number), ingress("b", "a.test", "", "/b", number)];
    let second = [ingress("a", "a.test", "", "/a", number), ingress("b", "a.test", tls, "/b", number)];
    for objects in [both, first, second] {
        for secure in [false, true] {
            check(&objects, "a.test /a", secure, one);
            check(&objects, "a.test /b", secure, one);
            check(&objects, "a.test /c", secure, "404");
        }
    }
    // A port that the Service does not name leaves out its path: another one is used.
    let misnamed = [ingress("a", "a.test", tls, "/", number), ingress("b", "a.test", tls, "/b", "name: nope")];
    check(&misnamed, "a.test /b", true, one);
    check(&misnamed[1..], "a.test /b", true, "404");
}
