//! Keys, tokens and passwords are in no page, no log, no history and no core file.

use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::{Connection, Process, Signal, TestCa, eventually, free_port, objects};

use crate::gateway_secrets::{Program, serves, start};
use crate::mesh::Plane;

/// How long a process may take to end.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

/// What clients send and nobody may be shown.
const SENT: [(&str, &str); 6] = [
    ("authorization", "Bearer hidden-bearer-0001"),
    ("proxy-authorization", "Basic aGlkZGVuLWJhc2ljLTAwMDI6eA"),
    ("cookie", "session=hidden-cookie-0003"),
    ("x-api-key", "hidden-api-key-0004"),
    ("x-amz-security-token", "hidden-token-0005"),
    ("x-goog-iap-jwt-assertion", "hidden-jwt-0006"),
];

/// Parts of a PEM key that are in nothing else: its lines of Base64.
fn lines_of(pem: &str) -> Vec<String> {
    pem.lines().filter(|line| !line.starts_with('-') && line.len() > 20).map(str::to_owned).collect()
}

/// Asks for each page that the index links to, and some with parameters.
fn pages(address: SocketAddr) -> Vec<(String, String)> {
    let get = |path: &str| {
        let response =
            Connection::open(address).and_then(|mut connection| connection.get("localhost", path, "")).expect("a page");
        response.text()
    };
    let index = get("/");
    let links = index.split('"').filter(|part| part.starts_with('/')).map(str::to_owned);
    let listed = index.split_whitespace().filter(|word| word.starts_with('/')).map(str::to_owned);
    let more = [
        "/config_dump?include_eds",
        "/stats?format=json",
        "/debug/config_dump?proxyID=edge-0.ingress",
        "/debug/history?proxyID=edge-0.ingress&at=0",
        "/debug/pprof/heap?seconds=1",
    ];
    let mut paths: Vec<String> = links.chain(listed).chain(more.map(str::to_owned)).collect();
    paths.sort_unstable();
    paths.dedup();
    // These wait: for proxies, and for a profile of 30 s.
    paths.retain(|path| !path.starts_with("/debug/settle"));
    paths.retain(|path| !path.starts_with("/debug/pprof/") || path.contains("seconds=1"));
    paths.into_iter().map(|path| (path.clone(), get(&path))).collect()
}

/// Everything in the files below a directory.
fn files(folder: &Path, found: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found)
        } else {
            let text = String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()).into_owned();
            found.push((path.display().to_string(), text));
        }
    }
}

fn assert_absent(secrets: &[String], texts: &[(String, String)]) {
    assert!(!secrets.is_empty());
    for (name, text) in texts {
        for secret in secrets {
            assert!(!text.contains(secret.as_str()), "{name} has {secret}:\n{text:.2000}");
        }
    }
}

#[test]
fn a_proxy_shows_no_secret() {
    let (ca, folder) = (TestCa::new(), tempfile::tempdir().expect("a temporary folder"));
    let (identity, port) = (ca.for_dns(&["web.test"]), free_port());
    let inline = |pem: &str| format!("{{inline_string: {:?}}}", pem);
    // The key is in the command line's configuration itself.
    let bootstrap = format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
static_resources:
  listeners:
  - name: l
    address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - transport_socket:
        name: tls
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
          common_tls_context: {{tls_certificates: [{{certificate_chain: {}, private_key: {}}}]}}
      filters:
      - name: http
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
          route_config: {{virtual_hosts: [{{name: v, domains: ['*'], routes: [{{match: {{prefix: /}}, direct_response: {{status: 200}}}}]}}]}}
          http_filters: [{{name: r, typed_config: {{\"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]
",
        inline(&identity.cert_pem),
        inline(&identity.key_pem),
    );
    let admin_file = folder.path().join("admin");
    let mut command = Command::new("bash");
    // A core file would be allowed, and would be written here.
    command.args([
        "-c",
        "ulimit -c unlimited; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_evenkeel"),
        "proxy",
        "-l",
        "trace",
    ]);
    command.args(["--concurrency", "1", "--config-yaml", &bootstrap, "--admin-address-path"]).arg(&admin_file);
    let mut process = Process::spawn(command.current_dir(folder.path()));
    process.wait_for_line("LIVE");
    let admin: SocketAddr = eventually("the admin address", || std::fs::read_to_string(&admin_file).ok()?.parse().ok());
    let client = TlsClient { server_name: "web.test", root_pem: ca.root_pem(), ..TlsClient::default() };
    let headers: String = SENT.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let mut connection = client.open(([127, 0, 0, 1], port).into()).expect("a handshake");
    let path = "/a?access_token=hidden-query-0007&password=hidden-query-0008&x=shown";
    assert_eq!(connection.get("web.test", path, &headers).expect("an answer").status, 200);
    let mut secrets: Vec<String> = lines_of(&identity.key_pem);
    secrets.extend(SENT.iter().filter_map(|(_, value)| value.rsplit([' ', '=']).next()).map(str::to_owned));
    secrets.extend(["hidden-query-0007", "hidden-query-0008"].map(str::to_owned));
    let mut texts = pages(admin);
    // The request is there, without what is hidden.
    let requests = texts.iter().find(|(path, _)| path.starts_with("/requests")).expect("the page").1.clone();
    assert!(requests.contains("x=shown"), "{requests}");
    process.signal(Signal::SIGABRT);
    let status = process.wait_for_exit(PATIENCE);
    assert!(status.signal().is_some() && !status.core_dumped(), "{status}");
    texts.push(("the log".to_owned(), process.output()));
    assert_absent(&secrets, &texts);
}

#[test]
fn a_control_plane_shows_no_secret() {
    let (plane, ca, port) = (Plane::new(), TestCa::new(), free_port());
    let secret = objects::tls_secret(&ca, "ingress", "web", "web.test");
    let opaque = objects::secret("ingress", "other", &[("password", "hidden-password-0009")]);
    let gateway = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: shop}}\n\
         spec: {{selector: {{istio: edge}}, servers: [{{port: {{number: {port}, name: https, protocol: HTTPS}}, hosts: [web.test], \
         tls: {{mode: SIMPLE, credentialName: web}}}}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: v, namespace: shop}}\n\
         spec: {{hosts: ['*'], gateways: [g], http: [{{directResponse: {{status: 200, body: {{string: ok}}}}}}]}}\n"
    );
    plane.write("secret", &format!("{secret}---\n{opaque}"));
    plane.write("gateway", &gateway);
    let control = plane.start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let edge = start(&plane, folder.path(), "ingress", Program::Evenkeel);
    eventually("the gateway", || serves(([127, 0, 0, 1], port).into(), "web.test", &ca).then_some(()));
    // What is secret of the object: the key and the password, as text and as the object has them.
    let key =
        secret.split("tls.key").nth(1).expect("a key").split('"').find(|part| part.len() > 100).expect("its text");
    let mut secrets = lines_of(&key.replace("\\n", "\n"));
    secrets.push("hidden-password-0009".to_owned());
    let mut texts = pages(plane.http());
    files(&plane.state().join("history"), &mut texts);
    texts.push(("the control plane's log".to_owned(), control.output()));
    texts.push(("the gateway's log".to_owned(), edge.output()));
    assert_absent(&secrets, &texts);
    // The authority's key and that of tokens are in their own files, for their owner only.
    let mut kept = Vec::new();
    files(&plane.state(), &mut kept);
    let keys: Vec<_> = kept.iter().filter(|(_, text)| text.contains("PRIVATE KEY")).collect();
    assert!(!keys.is_empty());
    for (path, key) in keys {
        let mode = std::fs::metadata(path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{path}");
        assert_absent(&lines_of(key), &texts);
    }
}
