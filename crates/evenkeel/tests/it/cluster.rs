//! `install`, `check`, `tag` and `uninstall` against a real API server. It has no controllers, so nothing starts there.

use std::process::{Command, Output};

use evenkeel_testkit::eventually;
use evenkeel_testkit::kubernetes::ApiServer;
use serde_json::Value;

/// Runs a command on the cluster.
fn run(server: &ApiServer, arguments: &[&str]) -> Output {
    let kubeconfig = server.kubeconfig();
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.args(arguments).arg("--kubeconfig").arg(kubeconfig).output().expect("the program starts")
}

fn succeeds(server: &ApiServer, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {error}{}", String::from_utf8_lossy(&output.stdout));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn fails(server: &ApiServer, arguments: &[&str]) -> String {
    let output = run(server, arguments);
    assert!(!output.status.success(), "{arguments:?} succeeded");
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// How many objects in the cluster have the program's label.
fn own_objects(server: &ApiServer) -> String {
    let kinds = "mutatingwebhookconfigurations,validatingwebhookconfigurations,clusterroles,clusterrolebindings,roles,rolebindings,\
                 services,serviceaccounts,configmaps,deployments,poddisruptionbudgets,horizontalpodautoscalers,secrets";
    server.kubectl(&["get", kinds, "-A", "-l", "app.kubernetes.io/managed-by=evenkeel", "-o", "name"])
}

#[test]
fn an_installation_is_checked_applied_tagged_and_removed() {
    let server = ApiServer::start();
    let before = succeeds(&server, &["check", "--pre"]);
    assert!(before.contains(" 0 failed"), "{before}");
    assert!(before.contains("ok    the user may create deployments.apps"), "{before}");

    // Without controllers no Pod starts, and the command says what does not work.
    let error = fails(&server, &["install", "--timeout", "2", "--set", "pilot.env.A=1"]);
    assert!(error.contains("Deployment istiod: created"), "{error}");
    assert!(
        error.contains("it does not work after 2 s") && error.contains("FAIL  the Deployment is available"),
        "{error}"
    );
    let again = succeeds(&server, &["install", "--timeout", "0", "--set", "pilot.env.A=1"]);
    assert!(!again.contains(": created") && !again.contains(": configured"), "{again}");
    assert!(again.contains("Deployment istiod: unchanged"), "{again}");
    let policies = "jsonpath={.webhooks[*].failurePolicy}";
    let validator = ["get", "validatingwebhookconfiguration", "istio-validator-istio-system", "-o", policies];
    assert_eq!(server.kubectl(&validator), "Ignore Ignore", "no control plane has seen its webhook answer");

    let checked: Value = serde_json::from_str(&fails(&server, &["check", "-o", "json"])).expect("JSON");
    assert_eq!(checked["success"], false);
    assert!(checked["checks"].as_array().is_some_and(|checks| checks.len() > 50), "{checked}");

    succeeds(&server, &["tag", "set", "prod", "--revision", "default"]);
    server.kubectl(&["create", "namespace", "shop"]);
    server.kubectl(&["label", "namespace", "shop", "istio.io/rev=prod"]);
    let tags: Value = serde_json::from_str(&succeeds(&server, &["tag", "list", "-o", "json"])).expect("JSON");
    assert_eq!(tags, serde_json::json!([{"tag": "prod", "revision": "default", "namespaces": ["shop"]}]));
    assert!(
        fails(&server, &["tag", "set", "prod", "--revision", "gone"]).contains("no control plane has the revision")
    );
    assert!(fails(&server, &["tag", "remove", "prod"]).contains("namespaces use prod: shop"));
    assert!(succeeds(&server, &["check-inject", "-n", "shop"]).contains("new Pods get a sidecar"));
    assert!(fails(&server, &["check-inject", "-n", "default"]).contains("new Pods get no sidecar"));
    assert!(succeeds(&server, &["injector", "list"]).contains("istio-revision-tag-prod"));
    succeeds(&server, &["tag", "remove", "prod", "--force"]);

    // A definition of a later version is not replaced.
    let later = r#"{"metadata": {"annotations": {"evenkeel.dev/version": "9.0.0"}}}"#;
    let crd = "gateways.networking.istio.io";
    server.kubectl(&["patch", "crd", crd, "--type=merge", "-p", later]);
    assert!(fails(&server, &["install", "--timeout", "0"]).contains("gateways.networking.istio.io is of 9.0.0"));

    server.service_account("shop", "default");
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, namespace: shop, labels: {istio.io/rev: default}}\n\
               spec: {containers: [{name: istio-proxy, image: none}]}\n";
    // The webhook has no server here.
    server.kubectl(&["delete", "mutatingwebhookconfiguration", "--all"]);
    server.apply(pod);
    assert!(fails(&server, &["uninstall"]).contains("shop/web"));
    let removed = succeeds(&server, &["uninstall", "--force"]);
    assert!(removed.contains("Deployment istiod: deleted"), "{removed}");
    assert_eq!(own_objects(&server), "");
    assert!(fails(&server, &["uninstall"]).contains("nothing of revision default"));
    succeeds(&server, &["uninstall", "--purge", "--force"]);
    // The API server removes definitions after their objects.
    eventually("the end of the definitions", || server.kubectl(&["get", "crd", "-o", "name"]).is_empty().then_some(()));
}

#[test]
fn a_dry_run_prints_what_would_be_applied() {
    let print = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_evenkeel")).args(arguments).output().expect("the program starts");
        (
            output.status.success(),
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr),
        )
    };
    let (worked, text) = print(&["install", "--dry-run", "--revision", "canary"]);
    assert!(worked && text.contains("name: istiod-canary") && text.contains("kind: Namespace"), "{text}");
    let (worked, text) = print(&["install", "--dry-run", "--set", "pilto=1"]);
    assert!(!worked && text.contains("pilto"), "{text}");
}
