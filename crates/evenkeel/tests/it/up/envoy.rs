//! A stock Envoy as the sidecar of a workload, among Evenkeel's.

use std::fs;
use std::process::Command;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, envoy, eventually};
use serde_json::Value;

use super::check::scenario_holds;
use super::user::User;
use super::{MACHINE, PATIENCE, capitals, wait_ready};

#[test]
fn the_scenario_holds_with_envoy_as_the_callers_sidecar() {
    scenario_holds(&with_envoy("capitals-web.yaml"));
}

#[test]
fn the_scenario_holds_with_envoy_as_the_services_sidecar() {
    scenario_holds(&with_envoy("capitals-info.yaml"));
}

#[test]
fn the_hybrid_curve_is_used_with_envoy_on_either_side() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let user = with_envoy("capitals-web.yaml");
    let mut up = Process::spawn(&mut user.up(&[]));
    wait_ready(&mut up, 5);
    let state = user.state.path().display().to_string();
    // The gateway calls the Envoy, which calls the other service.
    let output = up.output();
    let gateway = output.lines().find(|line| line.starts_with("http://127.0.0.1:")).expect("the gateway's address");
    let url = format!("{}api/capitals", gateway.trim());
    let answered =
        || Command::new("curl").args(["-sf", "-m", "20", &url]).output().is_ok_and(|out| out.status.success());
    eventually("an answer", || answered().then_some(()));
    for (client, server) in [("istio-ingressgateway", "capitals-web"), ("capitals-web", "capitals-info")] {
        let ledger = || {
            let output = user.evenkeel(&["mtls", "--state", &state, "-o", "json"]).output().expect("mtls runs");
            let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
            let is_it = |edge: &&Value| {
                let name = |side: &str| edge[side]["name"].as_str().unwrap_or_default().to_owned();
                name("client").starts_with(client) && name("server").starts_with(server)
            };
            let edges = all["edges"].as_array().into_iter().flatten().filter(is_it);
            let groups: Vec<_> = edges.map(|edge| edge["tls"]["group"].clone()).collect();
            (!groups.is_empty()).then_some(groups)
        };
        let groups = eventually(&format!("connections of {client} to {server}"), ledger);
        assert!(groups.iter().all(|group| group == "X25519MLKEM768"), "{client} to {server}: {groups:?}");
    }
    tables_are_those_of_either_proxy(&user, &state);
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

/// `proxy-config` reads Envoy's pages as it reads those of Evenkeel's proxy.
fn tables_are_those_of_either_proxy(user: &User, state: &str) {
    let printed = |arguments: &[&str]| {
        let output = user.evenkeel(&["proxy-config"]).args(arguments).args(["--state", state]).output();
        let output = output.expect("proxy-config runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let check = |arguments: &[&str], expected: &[&str]| {
        let table = printed(arguments);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        for row in expected {
            assert!(table.lines().any(|line| words(line).contains(row)), "{arguments:?}: {row} is missing in\n{table}");
        }
    };
    let info = "capitals-info.capitals.svc.cluster.local";
    let rule = format!("{info} 8080 v2 outbound EDS capitals-info.capitals");
    for proxy in ["capitals-web", "deploy/istio-ingressgateway"] {
        check(&["clusters", proxy, "--subset", "v2"], &[&rule]);
        check(
            &["endpoints", proxy, "--cluster", &format!("|v2|{info}")],
            &[&format!("HEALTHY OK outbound|8080|v2|{info}")],
        );
        check(&["secrets", proxy], &["default Cert Chain ACTIVE", "ROOTCA CA ACTIVE"]);
        check(&["bootstrap", proxy], &["\"node\": {"]);
        check(&["all", proxy], &["SERVICE FQDN", "ADDRESSES", "VHOST NAME", "ENDPOINT", "RESOURCE NAME"]);
    }
    check(&["listeners", "capitals-web", "--port", "15001"], &["0.0.0.0 15001", "Cluster: PassthroughCluster"]);
    let routed = format!("outbound|8080||{info}");
    check(&["routes", "istio-ingressgateway"], &["http.8080 *:8080 * /*", "capitals-web.capitals"]);
    check(&["clusters", "istio-ingressgateway", "-o", "yaml"], &[&format!("name: {routed}")]);
    // Levels change while the proxy runs, in the agent's process, too.
    check(&["log", "istio-ingressgateway", "--level", "debug"], &["all: debug"]);
    check(&["log", "istio-ingressgateway"], &["all: debug"]);
    check(&["log", "istio-ingressgateway", "--reset"], &["all: warning"]);
    check(&["log", "capitals-web", "--level", "http:debug"], &["http: debug"]);
}

/// The example in which the workloads of one file have Envoy for sidecar.
pub fn with_envoy(file: &str) -> User {
    let folder = super::state();
    let copied = std::process::Command::new("cp").arg("-r").arg(capitals()).arg(folder.path()).status();
    assert!(copied.is_ok_and(|status| status.success()));
    let example = folder.path().join("capitals");
    let text = fs::read_to_string(example.join(file)).expect("the example has it");
    let annotations = format!(
        "      annotations:\n        local.evenkeel.dev/proxy: envoy\n        local.evenkeel.dev/envoy-path: {}\n",
        envoy().display()
    );
    fs::write(example.join(file), text.replace("      annotations:\n", &annotations)).expect("our own copy");
    User::present().with_example(example, folder)
}
