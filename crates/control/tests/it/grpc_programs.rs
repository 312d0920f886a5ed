//! Programs of Go's gRPC without a proxy (`GENERATOR: grpc`) on a real control plane: as clients they follow routes, subsets and
//! endpoints, as servers they take mutual TLS and refuse whom policies deny; and they refuse nothing that they are sent.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use evenkeel_ca::{TokenKey, Workload};
use evenkeel_testkit::{Process, TestCa, grpc_xds_client, workspace};
use serde_json::Value;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use crate::fixture::{PATIENCE, Plane};

/// The programs' node, in the form Istio's agent gives it.
const NODE: &str = "sidecar~127.0.0.1~go-0.shop~shop.svc.cluster.local";

/// Starts a program with a bootstrap of its own. Its certificates, if it has any, are in `folder`.
async fn start(plane: &Plane, folder: Option<&Path>, arguments: &[&str]) -> Process {
    let certificates = folder.map(|folder| {
        let file = |name: &str| folder.join(name).display().to_string();
        serde_json::json!({ "default": { "plugin_name": "file_watcher", "config": {
            "certificate_file": file("cert.pem"), "private_key_file": file("key.pem"), "ca_certificate_file": file("root.pem"),
            "refresh_interval": "600s",
        }}})
    });
    let bootstrap = serde_json::json!({
        "xds_servers": [{
            "server_uri": plane.addresses.grpc.to_string(),
            "channel_creds": [{ "type": "insecure" }],
            "server_features": ["xds_v3"],
        }],
        "node": { "id": NODE, "metadata": { "GENERATOR": "grpc", "NAMESPACE": "shop" } },
        "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
        "certificate_providers": certificates.unwrap_or_else(|| serde_json::json!({})),
    });
    let mut command = Command::new(grpc_xds_client());
    command.args(arguments).env("GRPC_XDS_BOOTSTRAP_CONFIG", bootstrap.to_string());
    Process::spawn(&mut command)
}

/// Waits for lines with these texts, in any order, after `from` bytes of what the program printed.
async fn lines(go: Process, from: usize, wanted: &[&str]) -> Process {
    let wanted: Vec<String> = wanted.iter().map(|&text| text.to_owned()).collect();
    let wait = move || {
        let mut go = go;
        go.wait_for(&format!("{wanted:?}"), |go| {
            let output = go.output();
            let new = output.get(from..)?;
            wanted.iter().all(|text| new.lines().any(|line| line.starts_with(&**text))).then_some(())
        });
        go
    };
    tokio::task::spawn_blocking(wait).await.expect("no panic")
}

/// The ports a program serves, in its order.
async fn ports(go: Process) -> (Process, Vec<String>) {
    let go = lines(go, 0, &["serving "]).await;
    let output = go.output();
    let line = output.lines().find(|line| line.starts_with("serving ")).expect("waited for").to_owned();
    (go, line.split(' ').skip(1).map(str::to_owned).collect())
}

/// A service with one endpoint of each version, at these ports of this machine.
fn echo(v1: &str, v2: &str) -> String {
    let endpoint = |port: &str, version: &str| {
        format!("{{address: 127.0.0.1, ports: {{grpc: {port}}}, labels: {{version: {version}}}}}")
    };
    format!(
        "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{hosts: [echo.test], ports: [{{number: 80, name: grpc, protocol: GRPC}}], resolution: STATIC, \
         endpoints: [{}, {}]}}\n---\n\
         apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{host: echo.test, subsets: [{{name: v1, labels: {{version: v1}}}}, {{name: v2, labels: {{version: v2}}}}]}}\n",
        endpoint(v1, "v1"),
        endpoint(v2, "v2"),
    )
}

fn routes(http: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: echo, namespace: shop}}\n\
         spec: {{hosts: [echo.test], http: [{http}]}}\n"
    )
}

fn to(subset: &str, weight: u32) -> String {
    format!("{{destination: {{host: echo.test, subset: {subset}}}, weight: {weight}}}")
}

#[tokio::test]
async fn a_client_follows_routes_subsets_and_endpoints() {
    let plane = Plane::start(&[]).await;
    let go = start(&plane, None, &["-metadata", "x-user=a", "echo.test:80"]).await;
    let (go, ports) = ports(go).await;
    let [first, second] = &ports[..] else { panic!("two ports: {ports:?}") };
    let by_header = format!(
        "{{match: [{{headers: {{x-user: {{exact: a}}}}}}], route: [{}]}}, {{route: [{}]}}",
        to("v2", 100),
        to("v1", 100)
    );
    plane.write("routes.yaml", &routes(&by_header));
    plane.write("echo.yaml", &echo(first, second));
    let to_first = format!("answered {first}.");
    let to_second = format!("with metadata answered {second}.");
    let go = lines(go, 0, &[&to_first, &to_second]).await;

    // The endpoints change places.
    let since = go.output().len();
    plane.write("echo.yaml", &echo(second, first));
    let swapped = [format!("answered {second}."), format!("with metadata answered {first}.")];
    let go = lines(go, since, &[&swapped[0], &swapped[1]]).await;

    // Calls are shared out.
    let from = go.output().len();
    plane.write("routes.yaml", &routes(&format!("{{route: [{}, {}]}}", to("v1", 50), to("v2", 50))));
    let go = lines(go, from, &[&to_first, &to_second, &swapped[0], &swapped[1]]).await;

    // And all go one way.
    let from = go.output().len();
    plane.write("routes.yaml", &routes(&format!("{{route: [{}]}}", to("v2", 100))));
    let go = tokio::task::spawn_blocking(move || {
        let mut go = go;
        go.wait_for("calls of one subset only", |go| {
            let output = go.output();
            let latest: Vec<&str> = output.get(from..)?.lines().rev().take(20).collect();
            (latest.len() == 20 && latest.iter().all(|line| line.ends_with(&swapped[1][14..]))).then_some(())
        });
        go
    });
    let go = go.await.expect("no panic");
    let output = go.output();
    assert!(!output.get(since..).unwrap_or_default().contains("error:"), "no call fails over a change:\n{output}");
    assert_eq!(plane.rejects().await, 0);
}

/// What a program of the service account `go` may have.
fn certificates() -> TempDir {
    let ca = TestCa::new();
    let identity = ca.for_spiffe("spiffe://cluster.local/ns/shop/sa/go");
    let folder = TempDir::new().expect("a directory");
    let files = [("cert.pem", identity.cert_pem), ("key.pem", identity.key_pem), ("root.pem", ca.root_pem())];
    for (name, text) in files {
        std::fs::write(folder.path().join(name), text).expect("a file");
    }
    folder
}

#[tokio::test]
async fn a_server_takes_mutual_tls_and_refuses_whom_policies_deny() {
    let folder = certificates();
    let plane = Plane::start(&[]).await;
    let arguments = ["-credentials", "-xds-server", "127.0.0.1:0", "-metadata", "x-user=a", "server:80"];
    let (go, ports) = ports(start(&plane, Some(folder.path()), &arguments).await).await;
    let [_, _, port] = &ports[..] else { panic!("three ports: {ports:?}") };
    // A server that is not who it should be is not called.
    plane.write("tls.yaml", &mutual_tls(", subjectAltNames: [\"spiffe://cluster.local/ns/shop/sa/other\"]"));
    plane.write("server.yaml", &server(port));
    let go = lines(go, 0, &[NOT_WHO_IT_SHOULD_BE]).await;
    assert!(!go.output().contains("answered"), "{}", go.output());
    plane.write("tls.yaml", &mutual_tls(""));
    let answered = format!("answered {port} over tls.");
    let go = lines(go, 0, &[&answered, &format!("with metadata {answered}")]).await;

    let from = go.output().len();
    plane.write("deny.yaml", DENY);
    let denied = "with metadata error: rpc error: code = PermissionDenied";
    drop(lines(go, from, &[&answered, denied]).await);
    assert_eq!(plane.rejects().await, 0);
}

/// An agent without a proxy, until it is dropped, with a token of the control plane's for the account `go`.
fn agent(plane: &Plane, folder: &Path) -> JoinHandle<()> {
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        options: evenkeel_agent::Options,
    }
    let token = folder.join("token");
    let workload = Workload { namespace: "shop".into(), service_account: "go".into(), pod: "go-0".into() };
    let key = TokenKey::open(plane.state.path()).expect("the control plane's key");
    let minted = key.mint(&workload, Duration::from_secs(600), SystemTime::now()).expect("a token");
    std::fs::write(&token, minted).expect("a file");
    let file = |path: &Path| path.display().to_string();
    let mut words =
        ["agent", "sidecar", "--no-proxy", "--id", "go-0.shop", "--namespace", "shop"].map(str::to_owned).to_vec();
    words.extend(["--service-account", "go", "--ip", "127.0.0.1"].map(str::to_owned));
    for (name, value) in [
        ("--token", file(&token)),
        ("--root-cert", file(&plane.state.path().join("ca-cert.pem"))),
        ("--discovery-address", plane.addresses.secure_grpc.to_string()),
        ("--state", file(&folder.join("state"))),
        ("--grpc-bootstrap", file(&folder.join("grpc-bootstrap.json"))),
    ] {
        words.extend([name.to_owned(), value]);
    }
    let options = <Line as clap::Parser>::parse_from(words).options;
    tokio::spawn(async { evenkeel_agent::serve(options, std::future::pending()).await.expect("it can run") })
}

#[tokio::test]
async fn a_program_runs_with_what_the_agent_writes() {
    let folder = TempDir::new().expect("a directory");
    let plane = Plane::start(&[]).await;
    let agent = agent(&plane, folder.path());
    let state = folder.path().join("state");
    let ready = || evenkeel_agent::Status::read(&state).is_ok_and(|status| status.ready && status.proxy == "none");
    let waiting = async {
        while !ready() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.expect("a certificate in time");

    let mut command = Command::new(grpc_xds_client());
    command.args(["-credentials", "-xds-server", "127.0.0.1:0", "server:80"]);
    command.env("GRPC_XDS_BOOTSTRAP", folder.path().join("grpc-bootstrap.json"));
    let (go, ports) = ports(Process::spawn(&mut command)).await;
    let [_, _, port] = &ports[..] else { panic!("three ports: {ports:?}") };
    plane.write("tls.yaml", &mutual_tls(""));
    plane.write("server.yaml", &server(port));
    let go = lines(go, 0, &[&format!("answered {port} over tls.")]).await;
    // It came through the agent: with the workload's certificate.
    let streams = plane.json("/debug/adsz").await;
    let of_program = streams["proxies"].as_array().expect("streams").iter().find(|stream| stream["proxy"] == NODE);
    assert_eq!(of_program.expect("a stream")["identity"], "spiffe://cluster.local/ns/shop/sa/go", "{streams}");
    assert_eq!(plane.rejects().await, 0);

    // Files for this user alone; the socket goes with the agent, and the program keeps what it knows.
    for name in ["key.pem", "xds.sock"] {
        let mode = state.join(name).metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    agent.abort();
    assert!(agent.await.is_err_and(|ended| ended.is_cancelled()), "the agent has ended by itself");
    assert!(!state.join("xds.sock").exists());
    let from = go.output().len();
    drop(lines(go, from, &[&format!("answered {port} over tls.")]).await);
}

/// The program's Pod, and a service that leads to a port of it.
fn server(port: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: go-0, namespace: shop, labels: {{app: go}}}}\n\
         spec: {{serviceAccountName: go, containers: [{{name: go}}]}}\n\
         status: {{podIP: 127.0.0.1, conditions: [{{type: Ready, status: \"True\"}}]}}\n---\n\
         apiVersion: v1\nkind: Service\nmetadata: {{name: server, namespace: shop}}\n\
         spec: {{clusterIP: 10.96.0.7, selector: {{app: go}}, ports: [{{name: grpc, port: 80, targetPort: {port}}}]}}\n---\n\
         apiVersion: security.istio.io/v1\nkind: PeerAuthentication\nmetadata: {{name: strict, namespace: shop}}\n\
         spec: {{mtls: {{mode: STRICT}}}}\n"
    )
}

fn mutual_tls(names: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\nmetadata: {{name: server, namespace: shop}}\n\
         spec: {{host: server, trafficPolicy: {{tls: {{mode: ISTIO_MUTUAL{names}}}}}}}\n"
    )
}

const NOT_WHO_IT_SHOULD_BE: &str = "error: rpc error: code = Unavailable desc = last connection error: connection error: \
    desc = \"transport: authentication handshake failed: xds: received SANs";

const DENY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: deny, namespace: shop}\n\
    spec: {action: DENY, rules: [{when: [{key: \"request.headers[x-user]\", values: [a]}]}]}\n";

/// Every name there is of whole configurations, those that the translation's golden files are made of, is resolved.
#[tokio::test]
async fn no_program_refuses_what_it_is_sent() {
    let folder = certificates();
    for name in ["grpc", "routing", "balancing", "protocols", "egress", "gateways", "capitals"] {
        let input = workspace::root().join(format!("crates/translate/tests/it/golden/{name}/input.yaml"));
        let text = std::fs::read_to_string(input).expect("an input file");
        let plane = Plane::start(&[("input.yaml", text)]).await;
        let asking = start(&plane, Some(folder.path()), &["nobody:1"]).await;
        let page = format!("/debug/config_dump?proxyID={NODE}");
        let dump: Value = plane.until(&page, |page| serde_json::from_str(page).ok()).await;
        drop(asking);
        let targets = names(&dump["LDS"]);
        let targets: Vec<&str> = targets.iter().filter(|name| !name.starts_with("xds.istio.io/")).copied().collect();
        assert!(targets.len() > 3, "{name}: {targets:?}");
        plane.until("/debug/syncz", |page| (!page.contains(NODE)).then_some(())).await;

        let go = start(&plane, Some(folder.path()), &targets).await;
        let clusters = clusters_of(&dump["RDS"]);
        let by_eds = names(&dump["EDS"]).into_iter().filter(|name| clusters.contains(*name)).count();
        let expected =
            [("LDS", targets.len()), ("RDS", names(&dump["RDS"]).len()), ("CDS", clusters.len()), ("EDS", by_eds)];
        let settled = plane.until("/debug/syncz", |page| {
            let page: Value = serde_json::from_str(page).expect("JSON");
            let types = page["proxies"][0]["types"].as_array()?;
            let of = |kind: &str| types.iter().find(|status| status["type"] == kind);
            let is_there = |(kind, names): (&str, usize)| {
                names == 0
                    || of(kind)
                        .is_some_and(|s| s["names"] == names && s["state"] != "STALE" && s["state"] != "NOT SENT")
            };
            expected.into_iter().all(is_there).then(|| page.to_string())
        });
        let settled = settled.await;
        assert_eq!(plane.rejects().await, 0, "{name}: {settled}");
        drop(go);
    }
}

/// The names of one type in a dump.
fn names(resources: &Value) -> Vec<&str> {
    resources.as_array().into_iter().flatten().filter_map(|resource| resource["name"].as_str()).collect()
}

/// The clusters that routes lead to.
fn clusters_of(value: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    match value {
        Value::Object(fields) => {
            found.extend(fields.get("cluster").and_then(Value::as_str).map(str::to_owned));
            let shares = fields.get("weighted_clusters").and_then(|weighted| weighted["clusters"].as_array());
            let shares = shares.into_iter().flatten().filter(|share| share["weight"] != 0);
            found.extend(shares.filter_map(|share| share["name"].as_str()).map(str::to_owned));
            found.extend(fields.values().flat_map(clusters_of));
        }
        Value::Array(items) => found.extend(items.iter().flat_map(clusters_of)),
        _ => {}
    }
    found
}
