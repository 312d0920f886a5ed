//! The agent of a node, with a real API server and real networks: it repairs Pods that were started before the plugin was ready, finds
//! those that run outside the mesh, and keeps its files in place. Only root can run it.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;

use evenkeel_cni::networks::within;
use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_testkit::{Connection, eventually, free_port};
use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

const NODE: &str = "node-1";
const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;

/// An agent with its node's folders.
struct Agent {
    process: Child,
    folder: tempfile::TempDir,
    metrics: u16,
}

impl Agent {
    fn start(server: &ApiServer, networks: &Path, flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        ["bin", "net.d"].iter().for_each(|name| fs::create_dir(folder.path().join(name)).expect("a directory"));
        fs::write(folder.path().join("net.d/10-pods.conflist"), LIST).expect("a file");
        let metrics = free_port();
        let path = |name: &str| folder.path().join(name).display().to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command
            .args(["cni-node", "--node-name", NODE, "--probe-interval", "1", "--netns-dir"])
            .arg(networks)
            .args(["--bin-dir", &path("bin"), "--config-dir", &path("net.d"), "--socket", &path("agent.sock")])
            .args(["--http-address", &format!("127.0.0.1:{metrics}")])
            .arg("--kubeconfig")
            .arg(server.kubeconfig())
            .args(flags);
        let process = command.stdout(Stdio::null()).spawn().expect("the agent starts");
        Self { process, folder, metrics }
    }

    fn plugins(&self) -> Vec<Value> {
        let text = fs::read(self.folder.path().join("net.d/10-pods.conflist")).unwrap_or_default();
        let list: Value = serde_json::from_slice(&text).unwrap_or_default();
        list["plugins"].as_array().into_iter().flatten().map(|plugin| plugin["type"].clone()).collect()
    }

    fn has_metric(&self, line: &str) -> bool {
        let page = Connection::open(([127, 0, 0, 1], self.metrics).into())
            .and_then(|mut connection| connection.get("localhost", "/metrics", ""));
        page.is_ok_and(|page| page.text().lines().any(|found| found == line))
    }

    /// Lets it end, and clean up.
    fn end(&mut self) {
        kill(Pid::from_raw(self.process.id().cast_signed()), Signal::SIGTERM).expect("it is there");
        assert!(self.process.wait().expect("it ends").success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A network with an address and a default route, held by a file.
fn network(path: PathBuf, address: &str) -> File {
    File::create(&path).expect("a file");
    let script = format!(
        "link set lo up\nlink add eth0 type veth peer name eth1\naddr add {address}/24 dev eth0\nlink set eth0 up\nlink set eth1 up\n\
         route add default dev eth0\n"
    );
    let created = thread::spawn(move || {
        unshare(CloneFlags::CLONE_NEWNET).expect("a network");
        let mut ip = Command::new("ip").args(["-batch", "-"]).stdin(Stdio::piped()).spawn().expect("ip starts");
        std::io::Write::write_all(&mut ip.stdin.take().expect("its input"), script.as_bytes()).expect("it reads");
        assert!(ip.wait().expect("it ends").success());
        let here = Path::new("/proc/thread-self/ns/net");
        mount(Some(here), &path, None::<&str>, MsFlags::MS_BIND, None::<&str>).expect("it is bound");
        File::open(path).expect("the network")
    });
    created.join().expect("a network")
}

fn nft(network: &File, arguments: &[&str]) -> bool {
    let run = || Command::new("nft").args(arguments).stdout(Stdio::null()).stderr(Stdio::null()).status();
    within(network, run).expect("it is entered").expect("nft runs").success()
}

/// A Pod of the mesh whose init container has this state.
fn set_status(server: &ApiServer, address: &str, init: &Value, phase: &str, is_ready: bool) {
    let container = |name: &str, state: Value, ready: bool| json!({"name": name, "image": "a", "imageID": "a", "ready": ready, "started": ready, "restartCount": 0, "state": state});
    let running = || json!({"running": {}});
    let init = [container("istio-validation", init.clone(), false), container("istio-proxy", running(), is_ready)];
    let status = json!({"status": {
        "phase": phase, "podIP": address, "podIPs": [{"ip": address}], "initContainerStatuses": init,
        "containerStatuses": [container("web", running(), is_ready)],
    }});
    let patch =
        ["patch", "pod", "web", "-n", "shop", "--subresource=status", "--type=merge", "-p", &status.to_string()];
    server.kubectl(&patch);
}

fn reasons(server: &ApiServer) -> String {
    server.kubectl(&["get", "events", "-n", "shop", "-o", "jsonpath={.items[*].reason}"])
}

fn create_pod(server: &ApiServer) {
    server.kubectl(&["create", "namespace", "shop"]);
    server.service_account("shop", "default");
    let arguments = "[istio-iptables, --run-validation, --skip-rule-apply, -p, '15001', -z, '15006', -u, '1337', -m, REDIRECT, -i, '*', -b, '*']";
    server.apply(&format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: web, namespace: shop}}\nspec:\n  nodeName: {NODE}\n  containers: [{{name: web, image: a}}]\n  \
         initContainers:\n  - {{name: istio-validation, image: a, args: {arguments}}}\n  - {{name: istio-proxy, image: a, restartPolicy: Always}}\n"
    ));
    let taints = "apiVersion: v1\nkind: Node\nmetadata: {name: node-1}\nspec: {taints: [{key: other, effect: NoSchedule}, \
                  {key: cni.istio.io/not-ready, effect: NoSchedule}]}\n";
    server.apply(taints);
}

/// Mounts of the thread end with it.
fn with_own_mounts(test: impl FnOnce(&Path) + Send + 'static) {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let tested = thread::spawn(|| {
        unshare(CloneFlags::CLONE_NEWNS).expect("mounts");
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>).expect("private");
        let folder = tempfile::tempdir().expect("a directory");
        mount(Some("tmpfs"), folder.path(), Some("tmpfs"), MsFlags::empty(), None::<&str>).expect("a file system");
        test(folder.path());
    });
    tested.join().unwrap_or_else(|problem| std::panic::resume_unwind(problem));
}

#[test]
fn pods_without_rules_are_found_and_repaired() {
    with_own_mounts(|folder| {
        let server = ApiServer::start();
        create_pod(&server);
        let address = "10.9.0.1";
        let pod = network(folder.join("cni-1"), address);
        let mut agent = Agent::start(&server, folder, &["--remove-taint"]);

        // It was started before the plugin was ready.
        let missing = json!({"terminated": {"exitCode": 126}});
        set_status(&server, address, &missing, "Pending", false);
        eventually("the rules", || nft(&pod, &["list", "chain", "ip", "evenkeel", "outbound"]).then_some(()));
        eventually("the Events", || reasons(&server).contains("CaptureRepaired").then_some(()));
        assert!(reasons(&server).contains("CaptureRulesMissing"));
        let repaired = "istio_cni_repair_pods_repaired_total{type=\"repair\",result=\"success\"} 1";
        eventually("the metric", || agent.has_metric(repaired).then_some(()));
        // The API server adds one of its own to a new node.
        let taints = || server.kubectl(&["get", "node", NODE, "-o", "jsonpath={.spec.taints[*].key}"]);
        eventually("the end of the taint", || (!taints().contains("cni.istio.io")).then_some(()));
        assert!(taints().split(' ').any(|key| key == "other"), "{}", taints());

        // It runs, and its sidecar accepts.
        let listener = within(&pod, || TcpListener::bind("0.0.0.0:15001").expect("it listens")).expect("it is entered");
        let passed = json!({"terminated": {"exitCode": 0}});
        set_status(&server, address, &passed, "Running", true);
        let captured = || agent.has_metric("evenkeel_cni_pods_outside_mesh 0");
        eventually("a captured connection", || captured().then(|| listener.accept().expect("it comes")));

        // Somebody removes the rules of a running Pod.
        assert!(nft(&pod, &["delete", "table", "ip", "evenkeel"]));
        eventually("the rules", || nft(&pod, &["list", "table", "ip", "evenkeel"]).then_some(()));
        eventually("the Event", || reasons(&server).contains("OutsideMesh").then_some(()));

        eventually("the metric", || captured().then_some(()));

        // Rules are there, and something lets connections pass before them.
        let past = "add table ip past; add chain ip past out { type nat hook output priority -150; }; add rule ip past out meta skuid 0 tcp dport 15001 dnat to 10.9.0.1:9";
        assert!(nft(&pod, &[past]));
        let is_bypassed = || !agent.has_metric("evenkeel_cni_probes_total{result=\"bypassed\"} 0");
        eventually("the metric", || {
            (agent.has_metric("evenkeel_cni_pods_outside_mesh 1") && is_bypassed()).then_some(())
        });
        assert!(nft(&pod, &["delete", "table", "ip", "past"]));
        eventually("the metric", || captured().then_some(()));

        // The sidecar has ended.
        drop(listener);
        eventually("the Event", || reasons(&server).contains("SidecarNotListening").then_some(()));
        agent.end();
    });
}

/// Whether the rules come from an init container or from the plugin: the program looks at the network that it is in.
#[test]
fn a_network_with_ipv6_gets_rules_for_it() {
    with_own_mounts(|folder| {
        let load = |network: &File| {
            let run = || {
                let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
                command
                    .args([
                        "istio-iptables",
                        "--run-validation",
                        "-p",
                        "15001",
                        "-z",
                        "15006",
                        "-u",
                        "1337",
                        "-m",
                        "REDIRECT",
                        "-i",
                        "*",
                        "-b",
                        "*",
                    ])
                    .output()
            };
            let output = within(network, run).expect("it is entered").expect("the program starts");
            let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{text}");
            text.into_owned()
        };
        let single = network(folder.join("single"), "10.9.0.1");
        assert_eq!(load(&single), "verified: outbound connections are captured (IPv4)\n");
        assert!(!nft(&single, &["list", "table", "ip6", "evenkeel"]));
        let dual = network(folder.join("dual"), "10.9.0.2");
        let ip = |words: &str| {
            let run = || Command::new("ip").args(words.split(' ')).status();
            assert!(within(&dual, run).expect("it is entered").expect("ip runs").success(), "{words}");
        };
        ip("-6 addr add fd09::2/64 dev eth0 nodad");
        // Without a route nothing leaves by IPv6. Rules are loaded again when a Pod is repaired.
        assert_eq!(load(&dual), "verified: outbound connections are captured (IPv4, IPv6)\n");
        ip("-6 route add default dev eth0");
        assert_eq!(load(&dual), "verified: outbound connections are captured (IPv4, IPv6)\n");
        for table in ["ip", "ip6"] {
            assert!(nft(&dual, &["list", "table", table, "evenkeel"]), "{table}");
        }
        // Rules for IPv4 alone let everything by IPv6 pass.
        assert!(nft(&dual, &["delete", "table", "ip6", "evenkeel"]));
        let verify = || {
            Command::new(env!("CARGO_BIN_EXE_evenkeel"))
                .args([
                    "istio-iptables",
                    "--run-validation",
                    "--skip-rule-apply",
                    "-m",
                    "REDIRECT",
                    "-i",
                    "*",
                    "-b",
                    "*",
                    "-u",
                    "1337",
                ])
                .output()
        };
        let output = within(&dual, verify).expect("it is entered").expect("the program starts");
        assert_eq!(output.status.code(), Some(126));
        assert!(
            String::from_utf8_lossy(&output.stdout).starts_with("error: IPv6: outbound connections are not captured")
        );
    });
}

#[test]
fn pods_are_labelled_or_deleted_as_configured() {
    with_own_mounts(|folder| {
        let server = ApiServer::start();
        create_pod(&server);
        let pod = network(folder.join("cni-1"), "10.9.0.1");
        set_status(&server, "10.9.0.1", &json!({"terminated": {"exitCode": 126}}), "Pending", false);
        let mut agent = Agent::start(&server, folder, &["--broken-pods=label", "--broken-pod-label=mesh/broken=yes"]);
        let labels = ["get", "pod", "web", "-n", "shop", "-o", "jsonpath={.metadata.labels.mesh/broken}"];
        eventually("the label", || (server.kubectl(&labels) == "yes").then_some(()));
        assert!(!nft(&pod, &["list", "table", "ip", "evenkeel"]), "no rules are loaded");
        agent.end();
        let mut agent = Agent::start(&server, folder, &["--broken-pods=delete"]);
        let there = [
            "get",
            "pods",
            "-n",
            "shop",
            "-o",
            "jsonpath={.items[*].metadata.deletionTimestamp}{.items[*].metadata.name}",
        ];
        eventually("the deletion", || (server.kubectl(&there) != "web").then_some(()));
        agent.end();
    });
}

#[test]
fn files_that_others_rewrite_are_restored_and_go_at_the_end() {
    with_own_mounts(|folder| {
        let server = ApiServer::start();
        let mut agent = Agent::start(&server, folder, &["--broken-pods=ignore"]);
        let chained = [Value::from("bridge"), "evenkeel-cni".into()];
        let is_chained = || (agent.plugins() == chained).then_some(());
        eventually("the entry", is_chained);
        let [list, program] = ["net.d/10-pods.conflist", "bin/evenkeel-cni"].map(|name| agent.folder.path().join(name));
        // The network plugin's installer writes its file again, and somebody cleans the folder of programs.
        fs::write(&list, LIST).expect("a file");
        eventually("the entry", is_chained);
        fs::remove_file(&program).expect("it is removed");
        eventually("the program", || program.exists().then_some(()));
        eventually("the metric", || agent.has_metric("istio_cni_install_ready 1").then_some(()));
        agent.end();
        let folder = &agent.folder;
        assert!(!folder.path().join("bin/evenkeel-cni").exists());
        let left: Value =
            serde_json::from_slice(&fs::read(folder.path().join("net.d/10-pods.conflist")).expect("it")).expect("JSON");
        assert_eq!(left, serde_json::from_str::<Value>(LIST).expect("JSON"));
    });
}
