//! Sessions of an HTTPRoute over real sockets, with Evenkeel's proxy and with stock Envoy: a client stays with its server,
//! also while others come and go, and gets another one if its server is gone.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use evenkeel_testkit::{Backend, Connection, Process, Reply, Response, eventually, free_ports};

use crate::gateway_secrets::{Program, start};
use crate::mesh::Plane;

/// Requests of one session.
const REQUESTS: usize = 40;

/// The proxies have no agents, so no certificates of the mesh.
const MESH: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data: {mesh: 'enableAutoMtls: false'}
";

/// The Service and the routes; the servers are in slices of their own.
const OBJECTS: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: edge-0, namespace: ingress, labels: {gateway.networking.k8s.io/gateway-name: edge}, annotations: {inject.istio.io/templates: gateway}}
spec: {serviceAccountName: edge, containers: [{name: proxy}]}
status: {podIP: 10.244.0.2, phase: Running, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ingress}
spec: {clusterIP: 10.96.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: ingress}
spec: {gatewayClassName: istio, listeners: [{name: http, port: PORT, protocol: HTTP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: ingress}
spec:
  parentRefs: [{name: edge}]
  rules:
    - matches: [{path: {value: /cart}}]
      sessionPersistence: {sessionName: cart, absoluteTimeout: 1h, cookieConfig: {lifetimeType: Permanent}}
      backendRefs: [{name: web, port: 80}]
    - matches: [{path: {value: /api}}]
      sessionPersistence: {sessionName: x-session, type: Header}
      backendRefs: [{name: web, port: 80}]
    - backendRefs: [{name: web, port: 80}]
";

fn slice(name: &str, backend: &Backend) -> String {
    format!(
        "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
         metadata: {{name: {name}, namespace: ingress, labels: {{kubernetes.io/service-name: web}}}}\n\
         addressType: IPv4\nports: [{{name: http, port: {}}}]\nendpoints: [{{addresses: [127.0.0.1]}}]\n",
        backend.address().port()
    )
}

/// A session: its server, and what the client sends with its requests.
struct Session {
    server: String,
    field: String,
}

/// A gateway, and its servers by name.
struct Edge {
    plane: Plane,
    servers: BTreeMap<String, Backend>,
    port: u16,
    _processes: [Process; 2],
    _folder: tempfile::TempDir,
}

impl Edge {
    fn start(program: Program) -> Self {
        let [port] = free_ports::<1>();
        let plane = Plane::new();
        plane.write("mesh", MESH);
        plane.write("objects", &OBJECTS.replace("PORT", &port.to_string()));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let control = plane.start();
        let proxy = start(&plane, folder.path(), "ingress", program);
        let mut edge = Self { plane, servers: BTreeMap::new(), port, _processes: [control, proxy], _folder: folder };
        ["one", "two", "three"].into_iter().for_each(|name| edge.add(name));
        edge
    }

    /// Starts a server, and waits until it gets requests.
    fn add(&mut self, name: &str) {
        let own = name.to_owned();
        let backend = Backend::start(move |_| Reply::text(own.clone()));
        self.plane.write(name, &slice(name, &backend));
        self.servers.insert(name.to_owned(), backend);
        eventually(&format!("requests to {name}"), || (self.get("/", "").ok()?.text() == name).then_some(()));
    }

    fn get(&self, path: &str, field: &str) -> std::io::Result<Response> {
        Connection::open(SocketAddr::from(([127, 0, 0, 1], self.port)))?.get("a.test", path, field)
    }

    /// A new session: its server, and what the client sends from then on.
    fn begin(&self, path: &str) -> Session {
        let response = self.get(path, "").expect("a response");
        let field = token(&response).unwrap_or_else(|| panic!("{path}: no session in {response:?}"));
        Session { server: response.text(), field }
    }

    /// All requests of a session go to its server, and begin no other one.
    fn stays(&self, path: &str, session: &Session, context: &str) {
        for _ in 0..REQUESTS {
            let response = self.get(path, &session.field).expect("a response");
            assert_eq!((response.status, response.text()), (200, session.server.clone()), "{context} {path}");
            assert_eq!(token(&response), None, "{context} {path}");
        }
    }
}

/// What a response has a client send with further requests.
fn token(response: &Response) -> Option<String> {
    if let Some(cookie) = response.header("set-cookie") {
        let (pair, attributes) = cookie.split_once(';').expect("attributes");
        assert_eq!(attributes, " Max-Age=3600; Path=/cart; SameSite=Strict; HttpOnly");
        return Some(format!("cookie: other=1; {}\r\n", pair.replace('"', "")));
    }
    response.header("x-session").map(|value| format!("x-session: {value}\r\n"))
}

fn sessions_stay(program: Program) {
    let mut edge = Edge::start(program);
    let context = format!("{program:?}");
    let cart = edge.begin("/cart/1");
    let api = edge.begin("/api");
    edge.stays("/cart/1", &cart, &context);
    edge.stays("/api", &api, &context);
    // Another server takes nobody's sessions.
    edge.add("four");
    edge.stays("/cart/2", &cart, &context);
    edge.stays("/api", &api, &context);
    // A session of one rule means nothing to another.
    let others: std::collections::BTreeSet<String> =
        (0..REQUESTS).map(|_| edge.get("/x", &cart.field).expect("a response").text()).collect();
    assert!(others.len() > 1, "{context}: {others:?}");
    assert_eq!(
        edge.get("/x", "").ok().and_then(|response| token(&response)),
        None,
        "{context}: a rule without sessions"
    );
    // Its server leaves the Service while the client uses it: no request fails, and the new session stays as the old one did.
    edge.plane.remove(&cart.server);
    let moved = eventually("another server", || {
        let response = edge.get("/cart/1", &cart.field).expect("a response");
        assert_eq!(response.status, 200, "{context}: {response:?}");
        let server = response.text();
        (server != cart.server).then(|| Session { server, field: token(&response).expect("a session") })
    });
    edge.stays("/cart/1", &moved, &context);
    // Its server ends: the request goes to another one.
    edge.servers.remove(&moved.server);
    let response = edge.get("/cart/1", &moved.field).expect("a response");
    assert_eq!(response.status, 200, "{context}: {response:?}");
    assert!(response.text() != moved.server && token(&response).is_some(), "{context}: {response:?}");
    // What no proxy has written is no session.
    for forged in ["cart=%00", "cart=MTI3LjAuMC4xOjE=", "cart=", "cart=////", &format!("cart={}", "A".repeat(4000))] {
        let response = edge.get("/cart/1", &format!("cookie: {forged}\r\n")).expect("a response");
        assert!(response.status == 200 && token(&response).is_some(), "{context} {forged}: {response:?}");
    }
}

#[test]
fn sessions_of_an_http_route_stay_with_their_servers() {
    sessions_stay(Program::Evenkeel);
}

#[test]
fn sessions_of_an_http_route_stay_with_their_servers_behind_envoy() {
    sessions_stay(Program::Envoy);
}
