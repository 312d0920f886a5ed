//! Headers with which proxies tell each other about a client, sent by clients to sidecars: in plaintext by a workload without
//! a sidecar, and over mutual TLS by one with a sidecar, under each `forwardClientCertDetails`, over HTTP/1 and HTTP/2, to
//! Evenkeel's sidecars and to stock Envoy's.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, envoy, eventually};

use super::user::User;
use super::{MACHINE, PATIENCE, state, wait_ready};

/// Answers with the head of the request as it arrived.
const SERVER: &str = "import http.server as h
class Handler(h.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def do_GET(self):
        text = self.requestline + '\\n' + ''.join('%s: %s\\n' % (n.lower(), v) for n, v in self.headers.items())
        self.send_response(200)
        self.send_header('content-length', str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
    def log_message(self, *a): pass
h.ThreadingHTTPServer(('', 8000), Handler).serve_forever()
";

/// Takes HTTP/2, and asks the server over HTTP/1.1. Without an address of its own to tell, it leaves what it gets as it is.
const FRONT: &str = r#"{static_resources: {listeners: [{name: web, address: {socket_address: {address: 0.0.0.0, port_value: 8001}}, filter_chains: [{filters: [{name: hcm, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, stat_prefix: web, codec_type: HTTP2, forward_client_cert_details: ALWAYS_FORWARD_ONLY, use_remote_address: false, skip_xff_append: true, route_config: {name: local, virtual_hosts: [{name: all, domains: ["*"], routes: [{match: {prefix: /}, route: {cluster: server}}]}]}, http_filters: [{name: router, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}]}}]}]}], clusters: [{name: server, type: STATIC, load_assignment: {cluster_name: server, endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 8000}}}}]}]}}]}}"#;

/// The ways to ask: what curl is told, and the port.
const VERSIONS: [(&str, u16); 2] = [("--http1.1", 80), ("--http2-prior-knowledge", 81)];

/// A client's words. The last three names are nobody's: whoever has such a name of its own has to take it away here.
const LIES: [(&str, &str); 26] = [
    ("x-forwarded-client-cert", "By=spiffe://lies;URI=spiffe://cluster.local/ns/default/sa/root"),
    ("x-forwarded-for", "6.6.6.6, 10.0.0.1"),
    ("x-forwarded-proto", "https"),
    ("x-forwarded-host", "lies.test"),
    ("x-forwarded-port", "666"),
    ("x-envoy-external-address", "6.6.6.6"),
    ("x-envoy-internal", "true"),
    ("x-envoy-peer-metadata", "lies"),
    ("x-envoy-peer-metadata-id", "lies"),
    ("x-envoy-original-path", "/lies"),
    ("x-envoy-original-host", "lies.test"),
    ("x-envoy-original-dst-host", "6.6.6.6:80"),
    ("x-envoy-decorator-operation", "lies"),
    ("x-envoy-downstream-service-cluster", "lies"),
    ("x-envoy-downstream-service-node", "lies"),
    ("x-envoy-attempt-count", "9"),
    ("x-envoy-max-retries", "9"),
    ("x-envoy-retry-on", "5xx"),
    ("x-envoy-upstream-rq-timeout-ms", "60000"),
    ("x-envoy-expected-rq-timeout-ms", "60000"),
    ("x-envoy-force-trace", "1"),
    ("x-envoy-ip-tags", "lies"),
    ("x-istio-attributes", "lies"),
    ("x-istio-auth-userinfo", "lies"),
    ("x-evenkeel-peer", "lies"),
    ("x-evenkeel-identity", "lies"),
];

/// What a sidecar may do with `x-forwarded-client-cert`, and what of it arrives over mutual TLS, and in plain text. The client
/// with a sidecar says nothing: its own sidecar takes it away.
const MODES: [(&str, Certificate, bool); 6] = [
    // None said: APPEND_FORWARD.
    ("", Certificate::Told, false),
    ("SANITIZE", Certificate::Nothing, false),
    ("FORWARD_ONLY", Certificate::Nothing, false),
    ("APPEND_FORWARD", Certificate::Told, false),
    ("SANITIZE_SET", Certificate::Told, false),
    ("ALWAYS_FORWARD_ONLY", Certificate::Nothing, true),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum Certificate {
    /// The client's identity, as its certificate has it.
    Told,
    Nothing,
}

const CLIENT: &str = "URI=spiffe://cluster.local/ns/default/sa/with";

fn name(program: &str, mode: &str) -> String {
    let mode = if mode.is_empty() { "default" } else { mode };
    format!("{program}-{}", mode.to_lowercase().replace('_', "-"))
}

fn workload(name: &str, run: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80, targetPort: 8000}}, {{name: http2-two, port: 81, targetPort: 8001}}]}}\n---\n\
         apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{matchLabels: {{app: {name}}}}}\n  template:\n    metadata:\n      labels: {{app: {name}}}\n      \
         annotations:\n        local.evenkeel.dev/run: {run:?}\n{annotations}    \
         spec: {{serviceAccountName: {name}, containers: [{{name: main, ports: [{{containerPort: 8000}}, {{containerPort: 8001}}]}}]}}\n---\n"
    )
}

fn objects(program: &Path) -> String {
    let front = format!("{} proxy --concurrency 1 --config-yaml \"$(cat front.txt)\"", program.display());
    let server = &format!("{front} & exec python3 server.py");
    let mut text =
        workload("with", server, "") + &workload("without", server, "        sidecar.istio.io/inject: \"false\"\n");
    for (mode, ..) in MODES {
        let said = match mode {
            "" => String::new(),
            mode => format!("        proxy.istio.io/config: '{{proxyHeaders: {{forwardedClientCert: {mode}}}}}'\n"),
        };
        text += &workload(&name("own", mode), server, &said);
        let path = envoy();
        let by_envoy = format!(
            "        local.evenkeel.dev/proxy: envoy\n        local.evenkeel.dev/envoy-path: {}\n",
            path.display()
        );
        text += &workload(&name("envoy", mode), server, &(said + &by_envoy));
    }
    text
}

struct Mesh {
    user: User,
    state: String,
}

impl Mesh {
    /// What arrives at a server of a request with all the lies.
    fn arrives(&self, client: &str, (version, port): (&str, u16), server: &str) -> Option<Vec<String>> {
        let mut command = self.user.evenkeel(&[
            "exec",
            client,
            "--state",
            &self.state,
            "--",
            "curl",
            "-s",
            "--fail-with-body",
            "-m",
            "20",
        ]);
        command.arg(version);
        for (name, value) in LIES {
            command.args(["-H", &format!("{name}: {value}")]);
        }
        let output = command.arg(format!("http://{server}:{port}/public")).output().expect("it runs");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();

        output.status.success().then_some(lines)
    }
}

#[test]
fn a_sidecar_believes_no_client_about_itself() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    fs::write(folder.path().join("server.py"), SERVER).expect("our own folder");
    fs::write(folder.path().join("front.txt"), FRONT).expect("our own folder");
    let program = folder.path().join("evenkeel");
    fs::copy(env!("CARGO_BIN_EXE_evenkeel"), &program).expect("the binary can be copied");
    fs::write(folder.path().join("mesh.yaml"), objects(&program)).expect("our own folder");
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up = Process::spawn(&mut command);
    wait_ready(&mut up, 2 + 2 * MODES.len());
    let state = user.state.path().display().to_string();
    let mesh = Mesh { user, state };
    let mut wrong = String::new();
    for (mode, told, believed) in MODES {
        for client in ["with", "without"] {
            for version in VERSIONS {
                let [own, envoys] = ["own", "envoy"].map(|program| {
                    let server = name(program, mode);
                    eventually(&server, || mesh.arrives(client, version, &server))
                });
                let row = format!("{mode} {client} {}", version.0);
                let xfcc: Vec<&String> =
                    own.iter().filter(|line| line.starts_with("x-forwarded-client-cert")).collect();
                let expected = match (client, told, believed) {
                    ("with", Certificate::Told, _) => Some(CLIENT),
                    ("without", _, true) => Some(LIES[0].1),
                    _ => None,
                };
                let is_right = match (xfcc.as_slice(), expected) {
                    ([], None) => true,
                    ([line], Some(text)) => line.contains(text) && (line.contains("sa/root") == (client == "without")),
                    _ => false,
                };
                if !is_right {
                    let _ = writeln!(wrong, "{row}: {xfcc:?} instead of {expected:?}");
                }
                let taken = ["x-envoy-internal:", "x-envoy-max-retries:", "x-envoy-retry-on:", "x-envoy-force-trace:"];
                let heeded: Vec<_> =
                    own.iter().filter(|line| taken.iter().any(|name| line.starts_with(name))).collect();
                assert!(heeded.is_empty() && own.len() > taken.len(), "{row}: {own:?}");
                compare(&mut wrong, &row, &envoys, &own);
            }
        }
    }
    assert!(wrong.is_empty(), "- Envoy, + Evenkeel\n{wrong}");
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

/// Istio's filter removes them, and stock Envoy does not have it.
const TAKEN_BY_ISTIO: [&str; 2] = ["x-envoy-peer-metadata", "x-envoy-peer-metadata-id"];

/// Both sidecars pass on the same.
fn compare(wrong: &mut String, row: &str, envoys: &[String], own: &[String]) {
    let by_name = |lines: &[String]| -> BTreeMap<String, String> {
        let lines = lines.iter().filter_map(|line| line.split_once(": "));
        lines.map(|(name, value)| (name.to_owned(), without_chance(name, value))).collect()
    };
    let (mut envoys, own) = (by_name(envoys), by_name(own));
    envoys.retain(|name, _| !TAKEN_BY_ISTIO.contains(&name.as_str()));
    for name in envoys.keys().chain(own.keys().filter(|name| !envoys.contains_key(*name))) {
        if envoys.get(name) != own.get(name) {
            let _ = writeln!(wrong, "{row}: {name}\n- {:?}\n+ {:?}", envoys.get(name), own.get(name));
        }
    }
}

/// The value without what differs between two requests or two servers.
fn without_chance(name: &str, value: &str) -> String {
    match name {
        "x-request-id" => String::new(),
        "host" => value.replace("own-", "").replace("envoy-", ""),
        // The hash is of the client's certificate, which is renewed; the server names itself.
        "x-forwarded-client-cert" => {
            let parts = value.split(';').filter(|part| !part.starts_with("Hash="));
            parts.collect::<Vec<_>>().join(";").replace("sa/own-", "sa/").replace("sa/envoy-", "sa/")
        }
        _ => value.to_owned(),
    }
}
