//! A call for each kind of object, made twice: `explain` decides it from the YAML, and a live proxy that the control plane
//! configures carries it. Both have the same outcome.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_testkit::jwt::{Signer, jwks};
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Backend, Connection, Response, TestCa, free_ports, objects, wait};
use serde_json::Value;

use crate::gateway_secrets::{Program, start};
use crate::mesh::{Plane, Proxy, host};

/// How long a change may take to arrive at a proxy.
const PATIENCE: Duration = Duration::from_secs(20);

/// One call.
#[derive(Clone)]
struct Row {
    /// The kind that it is about.
    kind: &'static str,
    /// Whole documents.
    objects: String,
    from: From,
    /// Host and path.
    host: &'static str,
    path: &'static str,
    /// `NAME: VALUE`, if there is one.
    header: &'static str,
    /// What both come to, so that they are not wrong together: a status, and the backend that answers.
    expected: (u16, &'static str),
}

#[derive(Clone, Copy, PartialEq)]
enum From {
    /// The workload's own calls.
    Sidecar,
    /// Calls from outside, to one of the gateway's ports.
    Gateway(u16),
    /// The same with TLS.
    Secure(u16),
}

/// The proxies have no agents, so no certificates of the mesh.
const MESH: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: '{outboundTrafficPolicy: {mode: REGISTRY_ONLY}, enableAutoMtls: false}'}
";

const PODS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: client-0, namespace: shop, labels: {app: client}}
spec: {serviceAccountName: client, containers: [{name: main}]}
status: {podIP: 10.244.0.1, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: ingress, labels: {istio: edge}}
spec: {serviceAccountName: edge, containers: [{name: proxy}]}
status: {podIP: 10.244.0.2, phase: Running, conditions: [{type: Ready, status: 'True'}]}
";

fn object(api: &str, kind: &str, namespace: &str, spec: &str) -> String {
    let name = kind.to_lowercase();
    format!(
        "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {{{spec}}}\n---\n"
    )
}

fn networking(kind: &str, spec: &str) -> String {
    object("networking.istio.io/v1", kind, "shop", spec)
}

fn security(kind: &str, spec: &str) -> String {
    object("security.istio.io/v1", kind, "ingress", spec)
}

/// A ServiceEntry with two endpoints of two versions, after a host of this name.
fn versions(name: &str, [one, two]: [SocketAddr; 2]) -> String {
    let endpoint = |address: SocketAddr, version: &str| {
        format!("{{address: {}, ports: {{http: {}}}, labels: {{version: {version}}}}}", address.ip(), address.port())
    };
    networking(
        "ServiceEntry",
        &format!(
            "hosts: [{name}.test], location: MESH_EXTERNAL, resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], \
             endpoints: [{}, {}]",
            endpoint(one, "v1"),
            endpoint(two, "v2")
        ),
    )
}

/// A call of the workload itself.
fn row(
    kind: &'static str,
    objects: String,
    host: &'static str,
    path: &'static str,
    expected: (u16, &'static str),
) -> Row {
    Row { kind, objects, from: From::Sidecar, host, path, header: "", expected }
}

/// A Gateway with one server.
fn gateway(tls: &str, port: u16, protocol: &str) -> String {
    networking(
        "Gateway",
        &format!(
            "selector: {{istio: edge}}, servers: [{{port: {{number: {port}, name: p{port}, protocol: {protocol}}}, hosts: ['*']{tls}}}]"
        ),
    )
}

fn rows(ca: &TestCa, backends: [SocketAddr; 2], [plain, secure]: [u16; 2]) -> Vec<Row> {
    let [one, two] = backends;
    let back = host("back", one) + "---\n";
    let at_edge = networking(
        "VirtualService",
        "hosts: ['*'], gateways: [gateway], http: [{route: [{destination: {host: back.test}}]}]",
    );
    let edge = back.clone() + &gateway("", plain, "HTTP") + &at_edge;
    let outside = |kind, objects: String, path, expected| Row {
        from: From::Gateway(plain),
        ..row(kind, edge.clone() + &objects, "any.test", path, expected)
    };
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                   spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}\n---\n";
    let slice = format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: web, namespace: shop, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: {}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n---\n",
        two.port()
    );
    let entry = networking(
        "ServiceEntry",
        &format!(
            "hosts: [vm.test], location: MESH_EXTERNAL, resolution: STATIC, workloadSelector: {{labels: {{app: vm}}}}, \
             ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {}}}]",
            two.port()
        ),
    );
    let workload = networking("WorkloadEntry", "address: 127.0.0.1, labels: {app: vm}");
    let rule = networking(
        "DestinationRule",
        "host: back.test, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]",
    );
    let to_v2 = networking(
        "VirtualService",
        "hosts: [back.test], http: [{match: [{headers: {x-user: {exact: a}}}], route: [{destination: {host: back.test, subset: v2}}]}, \
         {match: [{uri: {prefix: /gone}}], directResponse: {status: 410}}, {match: [{uri: {prefix: /moved}}], redirect: {uri: /new}}, \
         {route: [{destination: {host: back.test, subset: v1}}]}]",
    );
    let routed = versions("back", backends) + &rule + &to_v2;
    let deny = security("AuthorizationPolicy", "action: DENY, rules: [{to: [{operation: {paths: [/admin]}}]}]");
    let secret = objects::tls_secret(ca, "ingress", "web", "any.test") + "---\n";
    let tls = ", tls: {mode: SIMPLE, credentialName: web}";
    let sealed = back.clone() + &gateway(tls, secure, "HTTPS") + &at_edge + secret.trim_start_matches("---\n");
    let sidecar =
        networking("Sidecar", "workloadSelector: {labels: {app: client}}, egress: [{hosts: ['./back.test']}]");
    let imports = back.clone() + &host("other", two) + "---\n" + &sidecar;
    let mesh = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\n";
    let own = vec![
        row("ServiceEntry", back.clone(), "back.test", "/", (200, "one")),
        row("ServiceEntry", back.clone(), "nowhere.test", "/", (502, "")),
        row("Service", service.to_owned() + &slice, "web.shop", "/", (200, "two")),
        row("EndpointSlice", service.to_owned(), "web.shop", "/", (503, "")),
        row("WorkloadEntry", entry + &workload, "vm.test", "/", (200, "two")),
        row("VirtualService", routed.clone(), "back.test", "/gone", (410, "")),
        row("VirtualService", routed.clone(), "back.test", "/moved", (301, "")),
        row("DestinationRule", routed.clone(), "back.test", "/", (200, "one")),
        Row { header: "x-user: a", ..row("DestinationRule", routed, "back.test", "/", (200, "two")) },
        row("Sidecar", imports.clone(), "other.test", "/", (502, "")),
        row("Sidecar", imports, "back.test", "/", (200, "one")),
        row("Namespace", mesh.to_owned() + &host("back", one), "back.test", "/", (200, "one")),
        outside("Gateway", String::new(), "/", (200, "one")),
        outside("AuthorizationPolicy", deny.clone(), "/admin", (403, "")),
        outside("AuthorizationPolicy", deny, "/", (200, "one")),
        Row { from: From::Secure(secure), ..row("Secret", sealed, "any.test", "/", (200, "one")) },
    ];
    [own, token_rows(one, plain, &edge)].concat()
}

/// Calls with tokens, through a gateway to this backend. `edge` leads there.
fn token_rows(one: SocketAddr, plain: u16, edge: &str) -> Vec<Row> {
    let back = host("back", one) + "---\n";
    let outside = |kind, objects: String, path, expected| Row {
        from: From::Gateway(plain),
        ..row(kind, edge.to_owned() + &objects, "any.test", path, expected)
    };
    let (issuer, stranger) = (Signer::ec("k", "P-256"), Signer::ec("k", "P-256"));
    let keys = jwks(&[&issuer]);
    let tokens = security("RequestAuthentication", &format!("jwtRules: [{{issuer: me, jwks: '{keys}'}}]"));
    let with =
        |signer: &Signer, claims: &str| -> &'static str { format!("/?access_token={}", signer.token(claims)).leak() };
    let good = with(&issuer, r#"{"iss":"me","sub":"you","exp":4102444800}"#);
    let by_claim = networking(
        "VirtualService",
        "hosts: ['*'], gateways: [gateway], http: [\
         {match: [{headers: {'@request.auth.claims.team': {exact: red}}}], directResponse: {status: 410}}, \
         {match: [{headers: {'@request.auth.claims[realm][roles]': {prefix: adm}}}], redirect: {uri: /new}}, \
         {match: [{withoutHeaders: {'@request.auth.claims.sub': {regex: .*}}}], directResponse: {status: 451}}, \
         {route: [{destination: {host: back.test}}]}]",
    );
    let claimed = back.clone() + &gateway("", plain, "HTTP") + &by_claim + &tokens;
    let claims = |path, expected| Row {
        from: From::Gateway(plain),
        ..row("VirtualService", claimed.clone(), "any.test", path, expected)
    };
    vec![
        outside("RequestAuthentication", tokens.clone(), "/?access_token=x", (401, "")),
        outside("RequestAuthentication", tokens.clone(), good, (200, "one")),
        outside("RequestAuthentication", tokens.clone(), with(&stranger, r#"{"iss":"me"}"#), (401, "")),
        outside("RequestAuthentication", tokens.clone(), with(&issuer, r#"{"iss":"me","exp":1}"#), (401, "")),
        outside("RequestAuthentication", tokens, "/", (200, "one")),
        claims(with(&issuer, r#"{"iss":"me","sub":"a","team":"red"}"#), (410, "")),
        claims(with(&issuer, r#"{"iss":"me","sub":"a","team":["blue","red"]}"#), (410, "")),
        claims(with(&issuer, r#"{"iss":"me","sub":"a","realm":{"roles":["user","admin"]}}"#), (301, "")),
        claims(with(&issuer, r#"{"iss":"me","sub":"a","team":"blue"}"#), (200, "one")),
        claims(with(&stranger, r#"{"iss":"me","sub":"a","team":"red"}"#), (401, "")),
        claims("/", (451, "")),
    ]
}

#[test]
fn a_call_of_every_kind_comes_to_what_explain_says() {
    let ca = TestCa::new();
    let backends = ["one", "two"].map(Backend::echo);
    let ports = free_ports::<2>();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plane = Plane::new();
    plane.write("mesh", MESH);
    plane.write("pods", PODS);
    let _control = plane.start();
    let sidecar = Proxy::start(&plane, folder.path(), "client-0", "full", 1);
    let gateway = start(&plane, folder.path(), "ingress", Program::Evenkeel);
    for row in rows(&ca, [backends[0].address(), backends[1].address()], ports) {
        plane.write("row", &row.objects);
        let told = explained(&plane.config(), &row);
        let backend = backends.iter().position(|backend| told.1 == Some(backend.address().port()));
        let name = backend.map_or("", |at| ["one", "two"][at]);
        let Row { kind, host, path, expected, .. } = row;
        assert_eq!((told.0, name), expected, "explain about {kind}: {host}{path}");
        // The proxies hold what was written when their answer is this.
        let answer = || made(&row, &ca, &sidecar).ok();
        let is_this =
            |response: &Response| (response.status, response.header("x-backend").unwrap_or_default()) == expected;
        let right = wait::poll(PATIENCE, || answer().filter(is_this));
        assert!(right.is_some(), "{kind}: {host}{path}: {:?} instead of {expected:?}: {}", answer(), gateway.output());
    }
}

/// The status that `explain` tells, and the port of the endpoint that gets the request.
fn explained(config: &Path, row: &Row) -> (u16, Option<u16>) {
    let Row { from, host, path, header, .. } = row;
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("explain").arg("-f").arg(config).args(["-o", "json"]);
    match from {
        From::Sidecar => command.args(["--from", "client-0.shop", "--url", &format!("http://{host}{path}")]),
        From::Gateway(port) => command.args(["--from-outside", "--url", &format!("http://{host}:{port}{path}")]),
        From::Secure(port) => command.args(["--from-outside", "--url", &format!("https://{host}:{port}{path}")]),
    };
    if !header.is_empty() {
        command.args(["-H", header]);
    }
    let output = command.output().expect("it runs");
    let told: Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}", String::from_utf8_lossy(&output.stderr)));
    let hops = told["hops"].as_array().cloned().unwrap_or_default();
    let endpoint = hops.first().map(|hop| hop["clusters"][0]["endpoints"][0].to_string()).unwrap_or_default();
    let port = endpoint.split("127.0.0.1:").nth(1).and_then(|rest| rest.split('"').next()?.parse().ok());
    let status = told["status"].as_u64().and_then(|status| u16::try_from(status).ok()).unwrap_or(0);
    match (told["outcome"] == "forward", port) {
        (false, _) => (status, None),
        (true, Some(port)) => (200, Some(port)),
        // It goes to a cluster without endpoints.
        (true, None) => (503, None),
    }
}

/// The response to the call.
fn made(row: &Row, ca: &TestCa, sidecar: &Proxy) -> std::io::Result<Response> {
    let header = if row.header.is_empty() { String::new() } else { format!("{}\r\n", row.header) };
    let local = |port: u16| SocketAddr::from(([127, 0, 0, 1], port));
    let mut connection = match row.from {
        From::Sidecar => Connection::open(sidecar.web)?,
        From::Gateway(port) => Connection::open(local(port))?,
        From::Secure(port) => {
            TlsClient { server_name: row.host, root_pem: ca.root_pem(), ..TlsClient::default() }.open(local(port))?
        }
    };
    connection.get(row.host, row.path, &header)
}
