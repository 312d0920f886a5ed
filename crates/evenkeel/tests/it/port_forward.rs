//! Commands that ask the programs in a cluster's Pods, through a real API server. The programs are real ones of this machine, and the
//! kubelet's side of the streams is the test's.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_testkit::kubernetes::kubelet::Kubelet;
use evenkeel_testkit::{Connection, Process, eventually, free_port};
use serde_json::Value;

const BOOTSTRAP: &str = r#"
admin: {address: {socket_address: {address: 127.0.0.1, port_value: 0}}}
static_resources:
  clusters:
  - {name: outbound|80||db.shop.svc.cluster.local, type: STATIC, connect_timeout: 1s}
  listeners:
  - name: web
    address: {socket_address: {address: 127.0.0.1, port_value: 0}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: web
          route_config:
            name: local
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{match: {prefix: /}, direct_response: {status: 200, body: {inline_string: hello}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
"#;

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_evenkeel"))
}

fn proxy(folder: &Path) -> (Process, SocketAddr) {
    let (bootstrap, address) = (folder.join("bootstrap.yaml"), folder.join("admin"));
    fs::write(&bootstrap, BOOTSTRAP).expect("a writable folder");
    let mut command = program();
    command.args(["proxy", "--concurrency", "1", "-c"]).arg(bootstrap).arg("--admin-address-path").arg(&address);
    let process = Process::spawn(&mut command);
    let admin = eventually("the admin address", || fs::read_to_string(&address).ok()?.parse().ok());
    (process, admin)
}

fn control_plane(folder: &Path) -> (Process, SocketAddr) {
    let (config, http): (_, SocketAddr) = (folder.join("config"), ([127, 0, 0, 1], free_port()).into());
    fs::create_dir(&config).expect("a writable folder");
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: db, namespace: shop}\nspec: {ports: [{port: 80}]}\n";
    fs::write(config.join("service.yaml"), service).expect("a writable folder");
    let mut command = program();
    command.args(["control-plane", "--grpc-address", "127.0.0.1:0", "--secure-grpc-address", "127.0.0.1:0"]);
    command.args(["--http-address", &http.to_string()]).arg("--config").arg(config);
    let mut process = Process::spawn(command.arg("--state").arg(folder.join("state")));
    process.wait_for_port(http);
    (process, http)
}

/// A Pod that runs, as far as the API server knows.
fn run_pod(server: &ApiServer, namespace: &str, name: &str, labels: &str, containers: &str) {
    server.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: {namespace}, labels: {labels}}}\n\
         spec: {{nodeName: {namespace}, containers: {containers}}}\n"
    ));
    let status = r#"{"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}"#;
    server.kubectl(&["patch", "pod", name, "-n", namespace, "--subresource=status", "--type=merge", "-p", status]);
}

struct Commands<'a> {
    kubeconfig: &'a Path,
    /// No mesh runs here, whatever runs on the machine.
    home: &'a Path,
}

impl Commands<'_> {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = program();
        command.args(arguments).arg("--kubeconfig").arg(self.kubeconfig);
        command.env("HOME", self.home).env_remove("KUBECONFIG");
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program starts")
    }

    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let [out, error] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        assert!(output.status.success(), "{arguments:?}: {error}{out}");
        out
    }

    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "{arguments:?} succeeded");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }
}

#[test]
fn commands_reach_the_programs_of_a_cluster() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_proxy, admin) = proxy(folder.path());
    let (_control_plane, http) = control_plane(folder.path());
    let server = ApiServer::shared();
    let (mesh, shop) = (server.namespace("mesh"), server.namespace("shop"));
    let kubelet = Kubelet::start(move |port| match (port.pod.as_str(), port.port) {
        ("istiod-0", 15014) => Some(http),
        ("web-0", 15000) | ("web-1", 15001) => Some(admin),
        _ => None,
    });
    kubelet.register(server, &mesh);
    kubelet.register(server, &shop);
    run_pod(server, &mesh, "istiod-0", "{app: istiod, istio.io/rev: default}", "[{name: discovery, image: none}]");
    run_pod(server, &shop, "web-0", "{app: web}", "[{name: app, image: none}, {name: istio-proxy, image: none}]");
    let config =
        r#"[{name: istio-proxy, image: none, env: [{name: PROXY_CONFIG, value: '{"proxyAdminPort":15001}'}]}]"#;
    run_pod(server, &shop, "web-1", "{app: web}", config);
    run_pod(server, &shop, "plain-0", "{app: plain}", "[{name: app, image: none}]");
    let kubeconfig = server.kubeconfig();
    let commands = Commands { kubeconfig: &kubeconfig, home: folder.path() };

    let json = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
    let status = json(&commands.succeeds(&["proxy-status", "-i", &mesh, "-o", "json"]));
    assert!(status["control_plane"].as_str().is_some_and(|name| name.starts_with("evenkeel/")), "{status}");
    assert!(json(&commands.succeeds(&["history", "-i", &mesh, "-o", "json"])).is_object());
    assert!(json(&commands.succeeds(&["ca", "status", "-i", &mesh, "-o", "json"])).is_object());
    for pod in ["web-0", "web-1", "pod/web-0"] {
        let clusters = commands.succeeds(&["proxy-config", "clusters", pod, "-n", &shop]);
        assert!(clusters.contains("db.shop.svc.cluster.local"), "{pod}: {clusters}");
    }
    let named = format!("web-0.{shop}");
    assert!(commands.succeeds(&["proxy-config", "listeners", &named, "-o", "json"]).contains("web"));
    assert!(commands.succeeds(&["proxy-config", "page", "/ready", &named]).contains("LIVE"));
    assert!(commands.succeeds(&["proxy-config", "workers", "web-0", "-n", &shop]).starts_with(&format!("{named}:")));
    assert!(commands.succeeds(&["proxy-config", "log", "web-0", "-n", &shop, "--level", "info"]).contains("info"));
    let profile = folder.path().join("web").display().to_string();
    commands.succeeds(&["profile", "web-0", "-n", &shop, "--seconds", "1", "-o", &profile]);

    // The requests of both Pods' proxies, which are one here.
    let listeners = Connection::open(admin).and_then(|mut open| open.get("localhost", "/listeners", ""));
    let listeners = listeners.expect("it answers").text();
    let listener: SocketAddr =
        listeners.lines().find_map(|line| line.strip_prefix("web::")?.parse().ok()).expect("a listener");
    let request = || Connection::open(listener).and_then(|mut open| open.get("web", "/hello", "")).expect("it answers");
    request();
    let why = json(&commands.succeeds(&["why", "-n", &shop, "-o", "json", "--slower-than", "0s"]));
    assert_eq!(why["proxies"], 2, "{why}");
    assert!(commands.succeeds(&["explain", "--last", "--from", &named]).contains("/hello"));
    let mut tap = commands.command(&["tap", "web", "-n", &shop, "--limit", "2", "--for", "60s", "-o", "json"]);
    let mut tap = tap.stdout(Stdio::piped()).spawn().expect("the program starts");
    let lines = BufReader::new(tap.stdout.take().expect("a pipe")).lines();
    let requests = std::thread::spawn(move || lines.map_while(Result::ok).collect::<Vec<_>>());
    eventually("the requests", || {
        request();
        requests.is_finished().then_some(())
    });
    let tapped = requests.join().expect("no panic");
    assert!(tapped.iter().all(|line| json(line)["path"] == "/hello"), "{tapped:?}");
    assert!(tap.wait().expect("it ends").success());

    // Whoever is meant by no Pod, has no proxy, or may not, is named.
    let failure = |arguments: &[&str], expected: &str| {
        let error = commands.fails(arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    };
    failure(&["proxy-config", "clusters", "wep-0", "-n", &shop], "did you mean `web-0`?");
    failure(&["proxy-config", "clusters", "plain-0", "-n", &shop], "no running Pod with a proxy");
    failure(&["proxy-config", "clusters"], "name a workload or a Pod of the cluster");
    failure(&["proxy-status", "-i", &shop], "no Pod of a control plane runs in the namespace");
    failure(&["proxy-status", "-i", &mesh, "--revision", "canary"], "of the revision `canary`");
    let nobody = server.kubeconfig_of(&shop, "default");
    let nobody = Commands { kubeconfig: &nobody, home: folder.path() };
    assert!(nobody.fails(&["proxy-status", "-i", &mesh]).contains("pods is forbidden"));
    let rights = ["create", "role", "reader", "-n", &mesh, "--verb=list", "--resource=pods"];
    server.kubectl(&rights);
    let account = format!("--serviceaccount={shop}:default");
    server.kubectl(&["create", "rolebinding", "reader", "-n", &mesh, "--role=reader", &account]);
    eventually("the missing right", || {
        nobody.fails(&["proxy-status", "-i", &mesh]).contains("`pods/portforward`").then_some(())
    });
}

#[test]
fn the_dashboard_of_a_cluster_shows_its_pods() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_proxy, admin) = proxy(folder.path());
    let (_control_plane, http) = control_plane(folder.path());
    let server = ApiServer::shared();
    let shop = server.namespace("board");
    let find = move |port: u16| if port == 15014 { http } else { admin };
    Kubelet::start(move |wanted| Some(find(wanted.port))).register(server, &shop);
    run_pod(server, &shop, "istiod-0", "{app: istiod, istio.io/rev: default}", "[{name: discovery, image: none}]");
    run_pod(server, &shop, "web-0", "{app: web}", "[{name: app, image: none}, {name: istio-proxy, image: none}]");
    let kubeconfig = server.kubeconfig();
    let commands = Commands { kubeconfig: &kubeconfig, home: folder.path() };
    let mut dashboard = commands.command(&["dashboard", "-i", &shop, "-n", &shop]);
    let mut dashboard = dashboard.stdout(Stdio::piped()).spawn().expect("the program starts");
    let mut url = String::new();
    BufReader::new(dashboard.stdout.take().expect("a pipe")).read_line(&mut url).expect("a line");
    let address: SocketAddr =
        url.trim().trim_start_matches("http://").trim_end_matches('/').parse().expect("an address");
    let page = |path: &str| {
        let response = Connection::open(address).ok()?.get("localhost", path, "").ok()?;
        serde_json::from_str::<Value>(&response.text()).ok()
    };
    eventually("the Pod", || page("/api/graph")?.to_string().contains(&format!("{shop}/web-0")).then_some(()));
    eventually("the control plane", || page("/api/status")?["unreachable"].is_null().then_some(()));
    dashboard.kill().expect("it runs");
    dashboard.wait().expect("it ends");
    let top = commands.succeeds(&["top", "--once", "-i", &shop, "-n", &shop]);
    assert!(top.contains(&format!("{shop}/web-0")), "{top}");
}

/// Commands that compare objects of the cluster with what its proxies run, or with their requests.
#[test]
fn answers_about_a_cluster_are_those_of_its_proxies() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_proxy, admin) = proxy(folder.path());
    let (_control_plane, http) = control_plane(folder.path());
    let server = ApiServer::start();
    let (mesh, shop) = (server.namespace("mesh"), server.namespace("shop"));
    let kubelet = Kubelet::start(move |port| match (port.pod.as_str(), port.port) {
        ("istiod-0", 15014) => Some(http),
        ("web-0", 15000) => Some(admin),
        _ => None,
    });
    [&mesh, &shop].iter().for_each(|namespace| kubelet.register(&server, namespace));
    run_pod(&server, &mesh, "istiod-0", "{app: istiod, istio.io/rev: default}", "[{name: discovery, image: none}]");
    let sidecar = "{app: web, security.istio.io/tlsMode: istio}";
    run_pod(&server, &shop, "web-0", sidecar, "[{name: app, image: none}, {name: istio-proxy, image: none}]");
    let address = r#"{"status": {"podIP": "10.1.0.1", "podIPs": [{"ip": "10.1.0.1"}]}}"#;
    server.kubectl(&["patch", "pod", "web-0", "-n", &shop, "--subresource=status", "--type=merge", "-p", address]);
    let service = |name: &str| {
        format!(
            "---\napiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: {shop}}}\n\
             spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80}}]}}\n"
        )
    };
    server.apply(&[service("web"), service("db")].concat());
    let kubeconfig = server.kubeconfig();
    let commands = Commands { kubeconfig: &kubeconfig, home: folder.path() };
    let json = |output: &Output| -> Value {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let found = serde_json::from_slice(&output.stdout);
        found.unwrap_or_else(|_| panic!("no JSON: {}{}", text(&output.stdout), text(&output.stderr)))
    };
    let web = format!("web-0.{shop}");

    // There is no policy, and the proxy enforces none.
    let authz = commands.run(&["authz", "check", &web, "--proxy", "-o", "json"]);
    let protection = json(&authz);
    assert_eq!((authz.status.code(), &protection["running"]["agrees"]), (Some(0), &true.into()), "{protection}");
    // Of a policy that it does not have the difference is told.
    let policy = format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: none, namespace: {shop}}}\nspec: {{}}\n"
    );
    let change = folder.path().join("change.yaml");
    fs::write(&change, &policy).expect("a writable folder");
    let change = change.display().to_string();

    let mtls = commands.run(&["mtls", "-n", &shop, "--fail-on-plaintext", "-o", "json"]);
    assert!(json(&mtls).is_object());
    assert_ne!(mtls.status.code(), Some(3), "a proxy has not answered: {}", json(&mtls));

    let listeners = Connection::open(admin).and_then(|mut open| open.get("localhost", "/listeners", ""));
    let listeners = listeners.expect("it answers").text();
    let listener: SocketAddr =
        listeners.lines().find_map(|line| line.strip_prefix("web::")?.parse().ok()).expect("a listener");
    Connection::open(listener).and_then(|mut open| open.get("db", "/hello", "")).expect("it answers");
    let plan = json(&commands.run(&["plan", "-f", &change, "--proxy", &web, "-o", "json"]));
    assert!(!plan.to_string().contains("not asked"), "{plan}");

    let url = format!("http://db.{shop}/hello");
    let explained = commands.run(&["explain", "--from", &web, "--url", &url, "--proxy", "-o", "json"]);
    assert!(!json(&explained).to_string().contains("asking the proxy of"), "{}", json(&explained));

    let report = folder.path().join("report.tar.gz").display().to_string();
    let printed = commands.succeeds(&["bug-report", "-n", &mesh, "-o", &report]);
    assert!(printed.contains("It has no keys"), "{printed}");
    let names = Command::new("tar").args(["-tzf", &report]).output().expect("tar runs");
    let names = String::from_utf8_lossy(&names.stdout).into_owned();
    assert!(names.contains("control-plane/istiod-0/"), "{names}");
}
