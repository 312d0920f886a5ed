//! Settings of the mesh and of proxies with an effect on a running workload: an HTTP proxy in every sidecar, other ports,
//! metrics of the program on the agent's page, and buckets of histograms.

use std::fs;
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// Serves `/`, and metrics at `/own`.
const SERVER: &str = "from http.server import *
class Pages(BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'jobs_total 7\\n' if self.path == '/own' else b'served'
        self.send_response(200)
        self.send_header('content-length', str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_): pass
ThreadingHTTPServer(('', 8000), Pages).serve_forever()
";

/// Gets a page: through the HTTP proxy in the variable `http_proxy`, if there is one.
const CLIENT: &str = "import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print('status', error.code)
";

const MESH: &str = "apiVersion: v1
kind: ConfigMap
metadata: {name: istio, namespace: istio-system}
data:
  mesh: |
    proxyHttpPort: 15080
    outboundTrafficPolicy: {mode: REGISTRY_ONLY}
    defaultConfig: {proxyAdminPort: 15900, statusPort: 15920}
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: istio-system}
spec: {mtls: {mode: STRICT}}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
---
apiVersion: v1
kind: Service
metadata: {name: replicas}
spec: {clusterIP: None, selector: {app: web}, ports: [{name: http, port: 8000}]}
";

fn workload(name: &str, annotations: &str) -> String {
    format!(
        "---\napiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: exec python3 server.py\n{annotations}    \
         spec: {{containers: [{{name: main, ports: [{{containerPort: 8000}}]}}]}}\n"
    )
}

/// What a program prints that runs beside a workload.
pub(super) fn inside(user: &User, state: &Path, workload: &str, command: &[&str]) -> String {
    let state = state.display().to_string();
    let output = user.evenkeel(&["exec", workload, "--state", &state, "--"]).args(command).output().expect("exec runs");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn workloads_notice_settings_of_the_mesh_and_of_their_proxies() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    // As whoever scrapes outside the mesh.
    let direct = "        traffic.sidecar.istio.io/excludeOutboundPorts: '15920'\n";
    let scraped = "        prometheus.io/scrape: 'true'\n        prometheus.io/port: '8000'\n        prometheus.io/path: /own\n\
                   \x20       sidecar.istio.io/statsHistogramBuckets: '{\"cluster\": [1, 60000]}'\n";
    let objects = MESH.to_owned() + &workload("client", direct) + &workload("web", scraped);
    fs::write(folder.path().join("server.py"), SERVER).expect("it can be written");
    fs::write(folder.path().join("client.py"), CLIENT).expect("it can be written");
    fs::write(folder.path().join("objects.yaml"), objects).expect("it can be written");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 2);
    let run = |workload: &str, command: &[&str]| inside(&user, user.state.path(), workload, command);
    let check = |workload: &str, command: &[&str], expected: &str| {
        let found = run(workload, command);
        assert!(found.contains(expected), "{command:?}: {expected} not in\n{found}\n{}", up.output());
        found
    };

    // A client that is told to use the proxy in its sidecar.
    let through = ["env", "http_proxy=http://127.0.0.1:15080", "python3", "client.py"];
    check("client", &[&through[..], &["http://web/"]].concat(), "served");
    check("client", &[&through[..], &["http://unknown.example/"]].concat(), "status 502");

    // The page of the server's agent, also from elsewhere: no proxy stands before it.
    let page = check("web", &["python3", "client.py", "http://127.0.0.1:15920/stats/prometheus"], "\njobs_total 7\n");
    let bounds: Vec<&str> = page
        .lines()
        .filter(|line| line.starts_with("envoy_cluster_upstream_rq_time_bucket{envoy_cluster_name=\"inbound|8000||\""))
        .filter_map(|line| line.split("le=\"").nth(1)?.split('"').next())
        .collect();
    assert_eq!(bounds, ["1", "60000", "+Inf"], "{page}");
    // The Service is headless, so its name has the replica's own address.
    let address = run("client", &["python3", "-c", "import socket; print(socket.gethostbyname('replicas'))"]);
    let elsewhere = format!("http://{}:15920/stats/prometheus", address.trim());
    check("client", &["python3", "client.py", &elsewhere], "\njobs_total 7\n");

    // Commands find the admin interface, and so does a rollout.
    let state = user.state.path().display().to_string();
    let output = user.evenkeel(&["proxy-config", "workers", "web", "--state", &state]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let output = user.evenkeel(&["restart", "web", "--state", &state]).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    assert!(!up.output().contains("cannot tell the sidecar to drain"), "{}", up.output());
    eventually("the new replica", || {
        run("client", &[&through[..], &["http://web/"]].concat()).contains("served").then_some(())
    });
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
