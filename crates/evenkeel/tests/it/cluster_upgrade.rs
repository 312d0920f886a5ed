//! `evenkeel upgrade` against a real API server. It has no controllers, so nothing starts there.

use std::process::{Command, Output};

use evenkeel_testkit::kubernetes::ApiServer;
use evenkeel_testkit::{Process, eventually, free_ports};
use serde_json::Value;

use crate::control_planes::gateway_bootstrap;

const NAMESPACE: &str = "istio-system";

struct Cluster {
    server: ApiServer,
}

impl Cluster {
    fn start() -> Self {
        Self { server: ApiServer::start() }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.args(arguments).arg("--kubeconfig").arg(self.server.kubeconfig()).output().expect("the program starts")
    }

    /// What a command prints that succeeds.
    fn succeeds(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = text(&output);
        assert!(output.status.success(), "{arguments:?}: {text}");
        text
    }

    /// What a command prints that fails.
    fn fails(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments);
        let text = text(&output);
        assert!(!output.status.success(), "{arguments:?} succeeded: {text}");
        text
    }

    fn names(&self, kind: &str) -> String {
        self.server.kubectl(&["get", kind, "-n", NAMESPACE, "-o", "name"])
    }

    /// Lets the installed Deployment be of another version, as that version has applied it.
    fn set_version(&self, version: &str, settings: &[&str]) {
        let objects = self.succeeds(&[&["install", "--dry-run"], settings].concat());
        let deployment = objects.split("---\n").find(|text| text.contains("kind: Deployment")).expect("the Deployment");
        let line = |line: &str| match line.split_once("app.kubernetes.io/version:") {
            Some((indent, _)) => format!("{indent}app.kubernetes.io/version: \"{version}\"\n"),
            None => format!("{line}\n"),
        };
        let text: String = deployment.lines().map(line).collect();
        self.server.kubectl_with_input(&["apply", "--server-side", "--field-manager=evenkeel", "-f", "-"], &text);
    }
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// What an earlier release had and this one does not, applied as the program applies it.
const OBSOLETE: &str = r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "istiod-legacy", "namespace": "istio-system",
  "labels": {"app.kubernetes.io/managed-by": "evenkeel", "istio.io/rev": "default"}}, "spec": {"ports": [{"port": 1}]}}"#;
/// State of the control plane has the labels, too.
const STATE: &str = r#"{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "state", "namespace": "istio-system",
  "labels": {"app.kubernetes.io/managed-by": "evenkeel", "istio.io/rev": "default"}}}"#;

#[test]
fn an_upgrade_is_shown_before_it_is_applied_and_prunes_after_it() {
    let cluster = Cluster::start();
    let nothing = cluster.fails(&["upgrade", "--yes"]);
    assert!(nothing.contains("nothing of this program is installed in istio-system"), "{nothing}");
    let settings = ["--set", "pilot.env.A=1", "--set", "revisionTags={prod}"];
    cluster.succeeds(&[&["install", "--timeout", "0"][..], &settings].concat());
    let same = cluster.succeeds(&["upgrade", "--dry-run"]);
    assert!(same.contains("no object changes"), "{same}");

    // The values are those that the installation has recorded, and what is new goes over them.
    cluster.set_version("0.0.1", &settings);
    let apply = ["apply", "--server-side", "--field-manager=evenkeel", "-f", "-"];
    cluster.server.kubectl_with_input(&apply, OBSOLETE);
    cluster.server.kubectl_with_input(&["apply", "-f", "-"], STATE);
    cluster.succeeds(&["tag", "set", "stable", "--revision", "default"]);
    let upgrade = ["upgrade", "--timeout", "0", "--set", "pilot.env.B=2", "--set", "revisionTags={}"];
    let with = |more: &[&'static str]| [&upgrade[..], more].concat();
    let shown = cluster.succeeds(&with(&["--dry-run"]));
    for part in [
        "Revision default: 0.0.1 to ",
        "  ~ Deployment istiod: ",
        "spec.template.spec.containers[0].env",
        "  - Service istiod-legacy: the new release does not have it",
        "  ~ ConfigMap evenkeel-values: data.values.yaml",
    ] {
        assert!(shown.contains(part), "{part:?} is not in {shown}");
    }
    assert!(!shown.contains("istio-revision-tag"), "tags stay: {shown}");
    assert!(cluster.names("services").contains("istiod-legacy"), "nothing is changed yet");
    let json: Value = serde_json::from_slice(&cluster.run(&with(&["--dry-run", "-o", "json"])).stdout).expect("JSON");
    assert_eq!(json["from"], "0.0.1");
    assert_eq!(json["values"]["pilot"]["env"], serde_json::json!({"A": 1, "B": 2}));
    let unasked = cluster.fails(&upgrade);
    assert!(unasked.contains("nobody can be asked here (--yes upgrades"), "{unasked}");
    let done = cluster.succeeds(&with(&["--yes"]));
    assert!(done.contains("Deployment istiod: configured"), "{done}");
    assert!(done.contains("1 objects that only the old release has stay"), "{done}");
    assert!(cluster.names("services").contains("istiod-legacy"), "what runs may need it");
    let done = cluster.succeeds(&with(&["--yes", "--prune"]));
    assert!(done.contains("Service istiod-legacy: deleted"), "{done}");
    assert!(!cluster.names("services").contains("istiod-legacy"));
    assert!(cluster.names("secrets").contains("secret/state"), "state stays");
    let tags = cluster.succeeds(&["tag", "list"]);
    assert!(tags.contains("stable") && tags.contains("prod"), "{tags}");
    let again = cluster.succeeds(&["upgrade", "--dry-run"]);
    assert!(again.contains("no object changes"), "{again}");
    let version = [
        "get",
        "deployment",
        "istiod",
        "-n",
        NAMESPACE,
        "-o",
        "jsonpath={.metadata.labels.app\\.kubernetes\\.io/version}",
    ];
    assert_eq!(cluster.server.kubectl(&version), env!("CARGO_PKG_VERSION"));
}

#[test]
fn what_would_lose_something_is_refused() {
    let cluster = Cluster::start();
    cluster.succeeds(&["install", "--timeout", "0"]);
    let dry = ["upgrade", "--dry-run"];
    // The release, and its definitions, are of a newer version.
    cluster.set_version("9.0.0", &[]);
    assert!(cluster.fails(&dry).contains("revision default is of 9.0.0, which is newer than this program"));
    cluster.succeeds(&["upgrade", "--dry-run", "--allow-downgrade"]);
    cluster.set_version("0.0.1", &[]);
    let crd = "gateways.networking.istio.io";
    let annotate = |version: &str| {
        let patch = format!(r#"{{"metadata": {{"annotations": {{"evenkeel.dev/version": "{version}"}}}}}}"#);
        cluster.server.kubectl(&["patch", "crd", crd, "--type=merge", "-p", &patch]);
    };
    annotate("9.0.0");
    for flags in [&["upgrade", "--yes"][..], &["upgrade", "--yes", "--skip-checks"], &["install", "--skip-checks"]] {
        let refused = cluster.fails(flags);
        assert!(refused.contains("gateways.networking.istio.io is of 9.0.0"), "{flags:?}: {refused}");
    }
    annotate("0.0.1");
    // Others have changed a field.
    let manager = ["apply", "--server-side", "--field-manager=operator", "--force-conflicts", "-f", "-"];
    let map = r#"{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "istio", "namespace": "istio-system"}, "data": {"mesh": "{}"}}"#;
    cluster.server.kubectl_with_input(&manager, map);
    let conflict =
        cluster.fails(&["upgrade", "--yes", "--timeout", "0", "--set", "meshConfig.accessLogFile=/dev/stdout"]);
    assert!(
        conflict.contains("! ConfigMap istio: Apply failed with 1 conflict: conflict with \"operator\""),
        "{conflict}"
    );
    assert!(conflict.contains("nothing is changed: the API server refuses"), "{conflict}");
    assert!(cluster.fails(&["upgrade", "--yes", "--set", "pilto=1"]).contains("pilto"));
    assert!(cluster.fails(&["upgrade", "-o", "json"]).contains("-o json is for --dry-run"));
    // Values that nobody has recorded are not guessed.
    cluster.server.kubectl(&["delete", "configmap", "evenkeel-values", "-n", NAMESPACE]);
    assert!(cluster.fails(&dry).contains("name all values again, with --reset-values"));
    // A release of Helm is Helm's.
    let helm = ["label", "deployment", "istiod", "-n", NAMESPACE, "--overwrite", "app.kubernetes.io/managed-by=Helm"];
    cluster.server.kubectl(&helm);
    assert!(cluster.fails(&dry).contains("upgrade it by `helm upgrade`"));
}

#[test]
fn a_further_revision_takes_the_values_and_not_the_tags() {
    let cluster = Cluster::start();
    cluster.succeeds(&["install", "--timeout", "0", "--set", "pilot.env.A=1,revisionTags={prod}"]);
    let shown = cluster.succeeds(&["upgrade", "--revision", "canary", "--dry-run"]);
    assert!(shown.contains("Revision canary: ") && shown.contains("beside what is installed"), "{shown}");
    assert!(shown.contains("  + Deployment istiod-canary\n"), "{shown}");
    let done = cluster.succeeds(&["upgrade", "--revision", "canary", "--yes", "--timeout", "0"]);
    assert!(done.contains("evenkeel tag set NAME --revision canary"), "{done}");
    let env = [
        "get",
        "deployment",
        "istiod-canary",
        "-n",
        NAMESPACE,
        "-o",
        "jsonpath={.spec.template.spec.containers[0].env[?(@.name=='A')].value}",
    ];
    assert_eq!(cluster.server.kubectl(&env), "1");
    assert!(cluster.names("deployments").contains("deployment.apps/istiod\n"), "the old one runs");
    let tags: Value = serde_json::from_str(&cluster.succeeds(&["tag", "list", "-o", "json"])).expect("JSON");
    assert_eq!((&tags[0]["tag"], &tags[0]["revision"]), (&"prod".into(), &"default".into()), "{tags}");
    cluster.succeeds(&["tag", "set", "prod", "--revision", "canary", "--overwrite"]);
    // With two revisions the source of the values has to be named.
    assert!(cluster.fails(&["upgrade", "--revision", "next", "--dry-run"]).contains("--from (default, canary)"));
    cluster.succeeds(&["upgrade", "--revision", "next", "--from", "canary", "--dry-run"]);
    assert!(
        cluster
            .fails(&["upgrade", "--revision", "next", "--from", "none", "--dry-run"])
            .contains("--from names no revision")
    );
    cluster.succeeds(&["uninstall"]);
    assert!(!cluster.names("configmaps").contains("configmap/evenkeel-values\n"), "the record goes with its revision");
    assert!(
        cluster.fails(&["upgrade", "--dry-run"]).contains("the default revision is not installed; there is canary")
    );
    cluster.succeeds(&["upgrade", "--revision", "canary", "--dry-run"]);
}

/// A gateway with a route.
const MESH: &str = "\
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {selector: {app: web}, ports: [{name: http, port: 80}]}
---
apiVersion: v1
kind: Pod
metadata: {name: gateway-0, namespace: shop, labels: {istio: ingressgateway}}
spec: {containers: [{name: istio-proxy, image: a}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {selector: {istio: ingressgateway}, servers: [{port: {number: 8080, name: http, protocol: HTTP}, hosts: [web.example.com]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: shop}
spec: {hosts: [web.example.com], gateways: [edge], http: [{route: [{destination: {host: web}}]}]}
";
/// What the running control plane reads beside the cluster's objects: as another version would do it, it configures otherwise.
const FURTHER: &str = "\
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: web, namespace: shop}
spec: {host: web.shop.svc.cluster.local, trafficPolicy: {connectionPool: {tcp: {connectTimeout: 7s}}}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: lost, namespace: shop}
spec: {hosts: [lost.example.com], gateways: [absent], http: [{route: [{destination: {host: nowhere}}]}]}
";

#[test]
fn the_preview_compares_with_what_the_running_control_plane_does() {
    let cluster = Cluster::start();
    cluster.succeeds(&["install", "--timeout", "0", "--set", "base.validation=false"]);
    cluster.server.kubectl(&["delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", "--all"]);
    cluster.server.kubectl(&["create", "namespace", "shop"]);
    cluster.server.service_account("shop", "default");
    cluster.server.apply(MESH);
    let status = r#"{"status": {"phase": "Running", "podIP": "10.0.0.9", "podIPs": [{"ip": "10.0.0.9"}]}}"#;
    let patch = ["patch", "pod", "gateway-0", "-n", "shop", "--subresource=status", "--type=merge", "-p", status];
    cluster.server.kubectl(&patch);
    let compare = |further: Option<&str>| -> Value {
        let folder = tempfile::tempdir().expect("a directory");
        let [grpc, http] = free_ports();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("config")).expect("a directory");
        if let Some(text) = further {
            std::fs::write(path("config/further.yaml"), text).expect("a file");
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        command.arg("control-plane").arg("--config").arg(path("config")).arg("--state").arg(path("state"));
        command.args(["--grpc-address", &format!("127.0.0.1:{grpc}"), "--secure-grpc-address", "127.0.0.1:0"]);
        let pages = format!("127.0.0.1:{http}");
        command.args(["--http-address", &pages, "--kubeconfig"]).arg(cluster.server.kubeconfig());
        let mut plane = Process::spawn(&mut command);
        plane.wait_for_port(pages.parse().expect("an address"));
        std::fs::write(path("bootstrap.json"), gateway_bootstrap(&[grpc])).expect("a file");
        let mut proxy = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
        let _proxy = Process::spawn(proxy.arg("proxy").arg("-c").arg(path("bootstrap.json")));
        eventually("a comparison with the proxy", || {
            let arguments = ["upgrade", "--dry-run", "-o", "json", "--control-plane", &pages];
            let json: Value = serde_json::from_slice(&cluster.run(&arguments).stdout).ok()?;
            let found = json["configuration"].clone();
            (found["proxies"] == 1 && found["resources"].as_u64() > Some(3)).then_some(found)
        })
    };
    let same = compare(None);
    for list in ["appearing", "vanishing", "changing", "notCompared"] {
        assert_eq!(same[list], serde_json::json!([]), "{same:#}");
    }
    let other = compare(Some(FURTHER));
    let changing = other["changing"].as_array().expect("a list");
    let cluster = changing.iter().find(|change| change["kind"] == "CDS").expect("a cluster that changes");
    assert_eq!(cluster["proxy"], "gateway-0.shop");
    assert!(cluster["fields"].as_array().is_some_and(|fields| fields.contains(&"connect_timeout".into())), "{cluster}");
    assert!(other["vanishing"].as_array().is_some_and(|list| !list.is_empty()), "{other:#}");
    assert_eq!(other["appearing"], serde_json::json!([]), "{other:#}");
}

/// Releases of one revision in two namespaces, of which the name of one ends like that of the other.
#[test]
fn what_another_namespace_runs_is_left_alone() {
    let cluster = Cluster::start();
    let with = |command: &[&str], namespace: &str, settings: &str| {
        let own = format!("global.istioNamespace={namespace}{settings}");
        cluster.succeeds(&[command, &["-n", namespace, "--set", &own]].concat())
    };
    for namespace in ["mesh", "istio-mesh"] {
        with(&["install", "--force-conflicts", "--timeout", "0"], namespace, "");
    }
    let roles = || cluster.server.kubectl(&["get", "clusterroles", "-o", "name"]);
    let has = |name: &str| roles().contains(&format!("clusterrole.rbac.authorization.k8s.io/{name}\n"));
    assert!(has("istiod-clusterrole-mesh") && has("istiod-clusterrole-istio-mesh"), "{}", roles());
    let shown = with(&["upgrade", "--dry-run"], "mesh", ",pilot.env.A=1");
    assert!(!shown.contains("istio-mesh: the new release"), "{shown}");
    let done = with(&["upgrade", "--yes", "--prune", "--timeout", "0", "--force-conflicts"], "mesh", ",pilot.env.A=1");
    assert!(!done.contains("deleted"), "{done}");
    cluster.succeeds(&["uninstall", "-n", "mesh"]);
    assert!(!has("istiod-clusterrole-mesh") && has("istiod-clusterrole-istio-mesh"), "{}", roles());
    let deployments = |namespace: &str| cluster.server.kubectl(&["get", "deployments", "-n", namespace, "-o", "name"]);
    assert_eq!([deployments("mesh"), deployments("istio-mesh")], ["", "deployment.apps/istiod\n"]);
}
