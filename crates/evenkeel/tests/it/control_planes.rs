//! Two control planes over the same directories, as processes, and a proxy that has the addresses of both: one after the
//! other is killed and comes back, and the proxy keeps what it has, is sent nothing twice, and follows every edit.

use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::{Connection, Process, Signal, eventually};
use serde_json::{Value, json};

struct ControlPlane {
    grpc: SocketAddr,
    http: SocketAddr,
    process: Option<Process>,
}

fn free_address() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port")
}

fn page(address: SocketAddr, path: &str) -> Option<String> {
    let response = Connection::open(address).ok()?.get("test", path, "").ok()?;
    (response.status == 200).then(|| response.text())
}

fn json_page(address: SocketAddr, path: &str) -> Option<Value> {
    serde_json::from_str(&page(address, path)?).ok()
}

impl ControlPlane {
    fn new() -> Self {
        Self { grpc: free_address(), http: free_address(), process: None }
    }

    fn start(&mut self, folder: &Path) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command
            .arg("control-plane")
            .arg("--config")
            .arg(folder.join("config"))
            .arg("--state")
            .arg(folder.join("state"));
        command.args(["--grpc-address", &self.grpc.to_string(), "--http-address", &self.http.to_string()]);
        command.args(["--secure-grpc-address", "127.0.0.1:0"]);
        self.process = Some(Process::spawn(&mut command));
    }

    fn wait_ready(&mut self) {
        self.process.as_mut().expect("a running process").wait_for_port(self.http);
    }

    /// Ends it without a word, as a crash would.
    fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.signal(Signal::SIGKILL);
        }
    }

    /// The status of the one proxy, once it has accepted everything there is.
    fn settled(&self) -> Value {
        eventually("a settled proxy", || {
            let syncz = json_page(self.http, "/debug/syncz")?;
            let proxy = syncz["proxies"].get(0)?;
            let types = proxy["types"].as_array()?;
            let asked = types.iter().any(|status| status["type"] == "EDS");
            // Between a request and its answer, a type is not in sync for a moment.
            let accepted = types.iter().all(|status| status["state"] == "SYNCED");
            (asked && accepted && proxy["live"] == true).then(|| proxy.clone())
        })
    }

    /// Each service with its virtual addresses.
    fn addresses(&self, services: usize) -> Value {
        eventually("all services", || {
            let registry = json_page(self.http, "/debug/registryz")?;
            let all: Vec<Value> = registry.as_array()?.iter().map(|s| json!([s["host"], s["addresses"]])).collect();
            (all.len() == services).then(|| Value::Array(all))
        })
    }
}

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80}}]}}\n"
    )
}

fn bootstrap(control_planes: &[ControlPlane]) -> String {
    gateway_bootstrap(&control_planes.iter().map(|plane| plane.grpc.port()).collect::<Vec<_>>())
}

/// The bootstrap of the gateway `gateway-0.shop`, whose control planes listen on these ports.
pub fn gateway_bootstrap(ports: &[u16]) -> String {
    let endpoint = |port: &u16| {
        let address = json!({"address": "127.0.0.1", "port_value": port});
        json!({"endpoint": {"address": {"socket_address": address}}})
    };
    let endpoints: Vec<Value> = ports.iter().map(endpoint).collect();
    let http2 = json!({
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    });
    let grpc = json!({
        "api_type": "DELTA_GRPC",
        "transport_api_version": "V3",
        "grpc_services": [{"envoy_grpc": {"cluster_name": "xds"}}],
    });
    json!({
        "admin": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": 0}}},
        "node": {
            "id": "router~10.0.0.9~gateway-0.shop~shop.svc.cluster.local",
            "cluster": "gateway",
            "metadata": {"NAMESPACE": "shop"},
        },
        "dynamic_resources": {
            "ads_config": grpc,
            "cds_config": {"ads": {}, "resource_api_version": "V3"},
            "lds_config": {"ads": {}, "resource_api_version": "V3"},
        },
        "static_resources": {"clusters": [{
            "name": "xds",
            "type": "STATIC",
            "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
            "load_assignment": {"cluster_name": "xds", "endpoints": [{"lb_endpoints": endpoints}]},
        }]},
    })
    .to_string()
}

fn resources_sent(proxy: &Value) -> u64 {
    let types = proxy["types"].as_array().expect("types");
    types.iter().map(|status| status["resources_sent"].as_u64().expect("a number")).sum()
}

#[test]
fn a_proxy_moves_between_two_control_planes_and_is_sent_nothing_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str| {
        std::fs::write(folder.path().join("config").join(format!("{name}.yaml")), service(name)).expect("a file");
    };
    std::fs::create_dir(folder.path().join("config")).expect("a folder");
    write("a");
    write("b");

    // Both at once on an empty state directory: they have to agree on one root.
    let mut planes = [ControlPlane::new(), ControlPlane::new()];
    planes.iter_mut().for_each(|plane| plane.start(folder.path()));
    planes.iter_mut().for_each(ControlPlane::wait_ready);
    assert_eq!(planes[0].addresses(2), planes[1].addresses(2));

    std::fs::write(folder.path().join("bootstrap.json"), bootstrap(&planes)).expect("a file");
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(["proxy", "--concurrency", "1", "-c"]).arg(folder.path().join("bootstrap.json"));
    command.arg("--admin-address-path").arg(folder.path().join("admin"));
    let proxy = Process::spawn(&mut command);
    let admin: SocketAddr =
        eventually("the admin address", || std::fs::read_to_string(folder.path().join("admin")).ok()?.parse().ok());
    assert!(resources_sent(&planes[0].settled()) > 0);
    let held = || page(admin, "/config_dump").expect("the proxy answers");
    let mut before = held();
    assert!(before.contains("outbound|80||a.shop.svc.cluster.local"), "{before}\n{}", proxy.output());

    for (number, (from, to)) in [(0, 1), (1, 0)].into_iter().enumerate() {
        planes[from].kill();
        let settled = planes[to].settled();
        // It went over with everything it had: the times at which its resources were taken in are as they were.
        assert_eq!(resources_sent(&settled), 0, "{settled}");
        assert_eq!(held(), before);
        // And it follows what is written now.
        let added = format!("new-{number}");
        write(&added);
        eventually("the new service", || held().contains(&added).then_some(()));
        planes[to].settled();
        check_status(&planes, &planes[to], Some(&planes[from]));
        planes[from].start(folder.path());
        planes[from].wait_ready();
        assert_eq!(planes[from].addresses(3 + number), planes[to].addresses(3 + number));
        before = held();
    }
    let serving = planes
        .iter()
        .find(|plane| json_page(plane.http, "/debug/syncz").is_some_and(|page| page["proxies"][0].is_object()));
    check_status(&planes, serving.expect("one serves it"), None);
    check_history(folder.path(), &planes);
}

/// Asked of both, the proxy stands in the table of the one that serves it; one that is away is named, and costs the exit status.
fn check_status(planes: &[ControlPlane], serving: &ControlPlane, away: Option<&ControlPlane>) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("proxy-status");
    planes.iter().for_each(|plane| _ = command.args(["--control-plane", &plane.http.to_string()]));
    let output = command.output().expect("it runs");
    let (table, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let name = json_page(serving.http, "/debug/syncz").expect("a page")["control_plane"].clone();
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(rows.len() == 1 && rows[0].starts_with("gateway-0.shop "), "{table}");
    assert!(rows[0].ends_with(name.as_str().expect("a name")), "{table}");
    assert_eq!(output.status.code(), Some(i32::from(away.is_some())), "{errors}");
    let is_named = |plane: &ControlPlane| errors.contains(&format!("the control plane's HTTP port {}", plane.http));
    assert!(away.map_or(errors.is_empty(), is_named), "{errors}");
}

/// Both have written down what the proxy ran at either, and tell the same, as does whoever reads the directory.
fn check_history(folder: &Path, planes: &[ControlPlane]) {
    let asked = |arguments: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let output = command.args(["history", "-o", "json"]).args(arguments).output().expect("it runs");
        (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let state = folder.join("state");
    let read = ["--state", state.to_str().expect("text"), "gateway-0.shop"];
    let past = eventually("the last change in the history", || {
        let (_, text) = asked(&read);
        text.contains("outbound|80||new-1.shop.svc.cluster.local").then_some(text)
    });
    for plane in planes {
        let address = plane.http.to_string();
        assert_eq!(asked(&["--control-plane", &address, "gateway-0.shop"]), (true, past.clone()));
        let (found, text) = asked(&["--control-plane", &address, "--at", "1h", "gateway-0.shop"]);
        assert!(!found && text.contains("no proxy `gateway-0.shop` had acknowledged anything by then"), "{text}");
        let (found, text) = asked(&["--control-plane", &address, "--at", "+1 h & more", "gateway-0.shop"]);
        assert!(!found && text.contains("`+1 h & more` is neither a time"), "{text}");
    }
}
