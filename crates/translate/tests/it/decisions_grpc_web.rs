//! Ports of gRPC-Web: calls become gRPC where the port is declared so, at a sidecar's both sides and at gateways.

use crate::calls::{Arrival, HTTP, Mesh};

const CALL: &str = "POST web /s.S/M content-type=application/grpc-web";
const NOTE: &str = "the call is gRPC-Web: the server gets it as gRPC";

/// A Service `web` whose port 80 has this name and protocol, before the workload `reviews`.
fn service(port: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: web, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.9.9, selector: {{app: reviews}}, ports: [{{{port}}}]}}\n---\n"
    )
}

const WEB: &str = "name: grpc-web, port: 80, targetPort: 8085";

#[test]
fn calls_of_a_grpc_web_port_become_grpc() {
    let check = |port: &str, request: &str, expected: &str| {
        assert_eq!(Mesh::new(&service(port)).client().http(request), expected, "{port}: {request}");
    };
    let web = format!("{NOTE}, web/s.S/M to web.shop:80");
    check(WEB, CALL, &web);
    check("name: x, appProtocol: grpc-web, port: 80", CALL, &web);
    check("name: grpc-web-a, port: 80", "POST web /s.S/M content-type=application/grpc-web-text", &web);
    check("name: grpc-web, port: 80", "GET web /", "web/ to web.shop:80");
    check("name: grpc-web, port: 80", "POST web /s.S/M content-type=application/grpc", "web/s.S/M to web.shop:80");
}

#[test]
fn a_grpc_web_server_is_called_over_http2_and_translates_at_its_own_side_too() {
    let mesh = Mesh::new(&service(WEB));
    assert_eq!(mesh.codes, Vec::<&str>::new());
    let client = mesh.client();
    let options = |cluster: &str| {
        client.resource("CDS", cluster)["typed_extension_protocol_options"]
            ["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"]["explicit_http_config"]
            .clone()
    };
    assert!(options("outbound|80||web.shop.svc.cluster.local")["http2_protocol_options"].is_object());
    let server = mesh.proxy("sidecar reviews-0.shop");
    let to_server = Arrival { listener: "virtualInbound", to: "10.244.0.2:8085", from: "10.244.0.1:4000", ..HTTP };
    let decided = server.decide(to_server, CALL);
    assert!(decided.contains(NOTE), "{decided}");
}

#[test]
fn gateways_sidecars_and_entries_may_declare_it() {
    let gateway = |protocol: &str| {
        let objects = format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: web, namespace: shop}}\nspec:\n  \
             selector: {{app: edge}}\n  servers: [{{port: {{number: 8085, name: web, protocol: {protocol}}}, hosts: [\"*\"]}}]\n---\n\
             apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web, namespace: shop}}\nspec:\n  \
             hosts: [\"web.example.com\"]\n  gateways: [web]\n  http: [{{route: [{{destination: {{host: reviews}}}}]}}]\n"
        );
        let edge = Mesh::new(&objects).proxy("router edge-0.shop");
        let arrival = Arrival { listener: "0.0.0.0_8085", to: "10.244.0.6:8085", ..HTTP };
        edge.decide(arrival, "POST web.example.com / content-type=application/grpc-web")
    };
    assert!(gateway("GRPC-WEB").contains(NOTE), "{}", gateway("GRPC-WEB"));
    assert!(!gateway("HTTP").contains(NOTE));

    let entry = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: web, namespace: shop}\nspec:\n  \
                 hosts: [web.example.com]\n  addresses: [10.97.0.1]\n  resolution: STATIC\n  \
                 ports: [{number: 80, name: web, protocol: GRPC-WEB}]\n  endpoints: [{address: 192.0.2.1}]\n";
    let decided = Mesh::new(entry).client().http("POST web.example.com / content-type=application/grpc-web+proto");
    assert!(decided.contains(NOTE), "{decided}");

    let sidecar = "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: client, namespace: shop}\nspec:\n  \
                   workloadSelector: {labels: {app: client}}\n  \
                   egress: [{port: {number: 80, name: web, protocol: GRPC-WEB}, hosts: [\"./*\"]}]\n  \
                   ingress: [{port: {number: 9999, name: in, protocol: GRPC-WEB}, defaultEndpoint: \"127.0.0.1:7000\"}]\n";
    let client = Mesh::new(sidecar).client();
    let decided = client.http("POST reviews / content-type=application/grpc-web");
    assert!(decided.contains(NOTE), "{decided}");
    let own = Arrival { listener: "virtualInbound", to: "10.244.0.1:9999", from: "10.244.0.2:4000", ..HTTP };
    let decided = client.decide(own, "POST client / content-type=application/grpc-web");
    assert!(decided.contains(NOTE), "{decided}");
}
