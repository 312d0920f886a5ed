//! The dashboard of a running mesh: its data, and the page in a browser.

use std::fs;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_admin::dashboard::{Edge, Graph, Health, NodeKind, Requests, SecurityMode, Status, WorkloadPage};
use evenkeel_testkit::{Connection, Process, Signal, eventually, workspace};
use serde::de::DeserializeOwned;

use super::proxy_settings::inside;
use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// Calls a URL this many times.
const CLIENT: &str = "import sys, urllib.request, urllib.error
for _ in range(int(sys.argv[2])):
    try:
        print(urllib.request.urlopen(sys.argv[1], timeout=20).status)
    except urllib.error.HTTPError as error:
        print(error.code)
";

const OBJECTS: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: nobody, namespace: shop}
spec: {selector: {app: nobody}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: bank, namespace: shop}
spec: {hosts: [bank.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.244.0.2}]}
";

fn workload(namespace: &str, name: &str, more: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}, version: v2}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 -m http.server 8000\n{more}    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n"
    )
}

/// A mesh with a server, a client with a proxy and one without.
struct Mesh {
    user: User,
    _folder: tempfile::TempDir,
    up: Process,
    address: SocketAddr,
}

impl Mesh {
    fn start() -> Self {
        let (user, folder) = (User::present(), state());
        fs::write(folder.path().join("client.py"), CLIENT).expect("it can be written");
        let plain = "        sidecar.istio.io/inject: 'false'\n";
        let workloads =
            [workload("shop", "web", ""), workload("front", "client", ""), workload("front", "plain", plain)];
        fs::write(folder.path().join("objects.yaml"), workloads.concat() + OBJECTS).expect("it can be written");
        let mut up = Process::spawn(user.evenkeel(&["up"]).arg(folder.path()).arg("--state").arg(user.state.path()));
        wait_ready(&mut up, 3);
        let line = up.wait_for_line("the mesh in a browser: ");
        let url = line.rsplit("http://").next().unwrap_or_default().trim_end_matches('/').to_owned();
        Self { address: url.parse().expect("an address"), user, _folder: folder, up }
    }

    fn call(&self, client: &str, url: &str, times: u32) -> String {
        inside(&self.user, self.user.state.path(), client, &["python3", "client.py", url, &times.to_string()])
    }

    fn get(&self, path: &str, host: &str) -> (u16, String) {
        let mut connection = Connection::open(self.address).expect("it listens");
        let response = connection.get(host, path, "").expect("an answer");
        (response.status, response.text())
    }

    fn page<T: DeserializeOwned>(&self, path: &str) -> T {
        let (status, body) = self.get(path, "localhost");
        assert_eq!(status, 200, "{path}: {body}");
        serde_json::from_str(&body).expect("the page's JSON")
    }

    /// Calls until the graph shows the edge as it is expected.
    fn edge(&self, ends: [&str; 2], called: impl Fn(), is_expected: impl Fn(&Edge) -> bool) -> Edge {
        let [from, to] = ends;
        eventually(&format!("an edge from {from} to {to}"), || {
            called();
            let graph: Graph = self.page("/api/graph");
            graph.edges.into_iter().find(|edge| edge.from == from && edge.to == to && is_expected(edge))
        })
    }

    fn stop(mut self) {
        self.up.signal(Signal::SIGINT);
        assert!(self.up.wait_for_exit(PATIENCE).success(), "{}", self.up.output());
    }
}

#[test]
fn the_dashboard_shows_who_calls_whom_and_how_it_is_secured() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start();
    let web = || assert!(mesh.call("client", "http://web.shop/", 20).contains("200"));
    let is_live =
        |edge: &Edge| edge.active && edge.traffic.p95_ms.is_some() && edge.security.mode == SecurityMode::Mutual;
    let edge = mesh.edge(["front/client", "shop/web"], web, is_live);
    assert_eq!((edge.service.as_str(), edge.protocol.as_str()), ("web.shop.svc.cluster.local", "http"));
    assert_eq!(edge.security.client_identities, ["spiffe://cluster.local/ns/front/sa/default"]);
    assert_eq!(edge.security.server_identities, ["spiffe://cluster.local/ns/shop/sa/default"]);
    assert!(edge.security.parameters[0].starts_with("TLSv1.3 "), "{edge:?}");
    assert!(edge.traffic.requests > 0.0 && edge.traffic.error_share == 0.0 && edge.total >= 20, "{edge:?}");

    // Only the server's proxy knows of a client without one.
    let plain = || assert!(mesh.call("plain", "http://web.shop/", 3).contains("200"));
    let edge = mesh.edge(["front/plain", "shop/web"], plain, |edge| edge.active);
    assert_eq!(edge.security.mode, SecurityMode::Plain, "{edge:?}");

    let nobody = || assert!(mesh.call("client", "http://nobody.shop/", 2).contains("503"));
    let service = "service:nobody.shop.svc.cluster.local";
    let edge = mesh.edge(["front/client", service], nobody, |edge| edge.active && edge.traffic.error_share == 1.0);
    assert_eq!(edge.last_error, "503 UH", "{edge:?}");

    let graph: Graph = mesh.page("/api/graph");
    let node = |id: &str| graph.nodes.iter().find(|node| node.id == id).unwrap_or_else(|| panic!("{id}: {graph:#?}"));
    assert_eq!((node("shop/web").version.as_str(), node("shop/web").health), ("v2", Health::Healthy));
    assert_eq!(node("front/plain").kind, NodeKind::WithoutProxy);
    assert_eq!((node(service).kind, node(service).health), (NodeKind::Service, Health::Failing));

    let page: WorkloadPage = mesh.page("/api/workload?id=shop%2Fweb");
    let [replica] = page.replicas.as_slice() else { panic!("{page:#?}") };
    assert!(replica.ready && replica.live == Some(true) && !replica.workers.is_empty(), "{replica:?}");
    let identities: Vec<_> = replica.certificates.iter().flat_map(|certificate| &certificate.identities).collect();
    assert_eq!(identities, ["spiffe://cluster.local/ns/shop/sa/default"], "{replica:?}");
    assert!(page.recent.requests.iter().any(|rate| *rate > 0.0), "{page:#?}");
    assert_eq!(page.edges.len(), 2, "{page:#?}");

    let objects: Vec<_> = page.objects.iter().map(|object| (object.kind.as_str(), object.name.as_str())).collect();
    assert_eq!(objects, [("Service", "web.shop.svc.cluster.local")]);
    assert!(page.objects[0].origin.contains("objects.yaml:"), "{:?}", page.objects);

    let status: Status = mesh.page("/api/status");
    assert_eq!((status.live, status.proxies, status.late.len(), status.unreachable), (2, 2, 0, None));
    assert!(
        status.findings.iter().any(|finding| finding.file.ends_with("objects.yaml") && finding.line > 0),
        "{:?}",
        status.findings
    );

    let requests: Requests = mesh.page("/api/requests");
    let failed = requests.failed.iter().find(|request| request.authority == "nobody.shop").expect("the failed request");
    assert_eq!((failed.status, failed.flags.as_str(), failed.node.as_str()), (503, "UH", "front/client"));
    assert!(!failed.cause.is_empty(), "{failed:?}");
    web();
    let top = mesh.user.evenkeel(&["top", "--once", "-n", "shop", "--state"]).arg(mesh.user.state.path()).output();
    let top = String::from_utf8_lossy(&top.expect("it runs").stdout).into_owned();
    let rows: Vec<Vec<&str>> = top.lines().map(|line| line.split_whitespace().collect()).collect();
    assert!(matches!(rows.as_slice(), [_, web] if web[..3] == ["shop/web", "1/1", "healthy"]), "{top}");
    assert!(rows[1][3].parse::<f64>().is_ok_and(|rate| rate > 0.0) && rows[1][4] == "0.0", "{top}");
    // A page of a stranger in a browser reads nothing.
    assert_eq!(mesh.get("/api/graph", "stranger.example").0, 403);
    let printed = mesh.user.evenkeel(&["dashboard", "--state"]).arg(mesh.user.state.path()).output().expect("it runs");
    assert_eq!(String::from_utf8_lossy(&printed.stdout), format!("http://{}/\n", mesh.address));
    mesh.stop();
}

/// A path that a browser would take for an image, if it read it as HTML.
const HTML: &str = "http://web.shop/<img/src=x/onerror=alert(1)>";

/// `scripts/setup.sh test` installs Chromium, Node.js and Playwright; the pictures are kept in `target/dashboard`.
#[test]
fn the_page_shows_the_mesh_in_a_browser() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mesh = Mesh::start();
    let root = workspace::root();
    let (playwright, pictures) = (root.join("target/tools/playwright-core"), root.join("target/dashboard"));
    assert!(playwright.is_dir(), "{} is missing: run scripts/setup.sh test", playwright.display());
    fs::create_dir_all(&pictures).expect("target can be written");
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        for client in ["client", "plain"] {
            let (mesh, is_over) = (&mesh, &is_over);
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    mesh.call(client, "http://web.shop/", 15);
                    // Proxies keep only the latest requests.
                    mesh.call(client, HTML, 1);
                }
            });
        }
        let mut node = Command::new("node");
        node.arg(root.join("crates/evenkeel/tests/it/up/dashboard.mjs")).arg(format!("http://{}/", mesh.address));
        let output = node.arg(&pictures).arg(&playwright).output();
        is_over.store(true, Ordering::Relaxed);
        output.expect("Node.js runs")
    });
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    mesh.stop();
}
