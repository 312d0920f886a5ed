//! Commands change a running mesh while requests use it: after `--wait` the next request sees the change, and a proxy that
//! does not run it is reported with its name and the reason.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use evenkeel_testkit::Signal;
use evenkeel_testkit::load::{Stop, ends_meanwhile};
use nix::sys::signal::kill;
use nix::unistd::Pid;
use serde_json::Value;

use super::mesh::{Mesh, get};

/// How many changes, each followed by a request.
const PAIRS: usize = 20;
const PAGE: &str = "/api/capitals/Iceland";

/// All calls of `capitals-info` go to one version.
fn route(version: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: capitals-info, namespace: capitals}}\n\
         spec: {{hosts: [capitals-info], http: [{{route: [{{destination: {{host: capitals-info, subset: {version}}}}}]}}]}}\n"
    )
}

/// The same, and the gateway's answers carry a number.
fn routed(version: &str, number: usize) -> String {
    format!(
        "{}---\n\
         apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: capitals-web, namespace: capitals}}\n\
         spec: {{hosts: ['*'], gateways: [capitals], http: [{{headers: {{response: {{set: {{x-change: \"{number}\"}}}}}}, \
         route: [{{destination: {{host: capitals-web, port: {{number: 8080}}}}}}]}}]}}\n",
        route(version)
    )
}

/// What names the versions.
const SUBSETS: &str = "apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: capitals-info, namespace: capitals}
spec: {host: capitals-info, subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]}
";

/// The proxy of the pages is to listen where its own admin port is.
const CANNOT_LISTEN: &str = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: pages, namespace: capitals}
spec:
  workloadSelector: {labels: {app: capitals-web}}
  egress:
  - {port: {number: 15000, name: proxy, protocol: HTTP_PROXY}, bind: 127.0.0.1, captureMode: NONE, hosts: ['*/*']}
  - {hosts: ['*/*']}
";

/// Runs a command of this mesh with a file that has this text. Returns the exit status and all that it prints.
fn change(mesh: &Mesh, folder: &Path, text: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let file = folder.join("change.yaml");
    std::fs::write(&file, text).expect("our own folder");
    let mut command = mesh.user.evenkeel(arguments);
    let output = command.arg("-f").arg(&file).arg("--state").arg(mesh.state()).output().expect("it runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

/// Requests one after the other until `stop`; each has to be answered with 200.
fn call(url: &str, stop: &AtomicBool, asked: &AtomicUsize) {
    while !ends_meanwhile(stop) {
        let answer = get(url, PAGE);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        asked.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs something while requests are made, each of which has to succeed.
fn under_load(mesh: &Mesh, during: impl FnOnce()) {
    let (stop, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
    thread::scope(|scope| {
        let stopping = Stop(&stop);
        scope.spawn(|| call(&mesh.url, &stop, &asked));
        during();
        drop(stopping);
    });
    assert!(asked.load(Ordering::Relaxed) > 0, "there was load");
}

#[test]
fn the_next_request_sees_a_change_that_was_waited_for_and_what_is_not_run_is_said() {
    let mut mesh = Mesh::present();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |text: &str, arguments: &[&str]| change(&mesh, folder.path(), text, arguments);

    // What it would do: the requests so far went to both versions.
    let (status, plan) = run(&routed("v2", 0), &["plan", "-o", "json"]);
    let json: Value = serde_json::from_str(&plan).unwrap_or_else(|error| panic!("{error}: {plan}"));
    assert_eq!((status, json["fails"].as_array().map(Vec::len)), (Some(0), Some(0)), "{plan}");
    assert!(json["moves"].as_array().is_some_and(|moves| !moves.is_empty()), "{plan}");

    under_load(&mesh, || {
        let mut stale = Vec::new();
        for number in 1..=PAIRS {
            let version = if number % 2 == 0 { "v1" } else { "v2" };
            let (status, said) = run(&routed(version, number), &["apply", "--wait"]);
            assert!(status == Some(0) && said.contains("every proxy runs generation"), "{said}");
            let answer = get(&mesh.url, PAGE);
            let is_new = answer.contains(&format!("x-change: {number}\r\n"));
            if !is_new || answer.contains("population") != (version == "v2") {
                stale.push(format!("{number}: {answer}"));
            }
        }
        assert!(stale.is_empty(), "{} of {PAIRS} pairs are stale: {stale:#?}", stale.len());

        // A mistake changes nothing.
        let wrong = routed("v2", PAIRS + 1).replace("subset:", "subst:");
        let (status, said) = run(&wrong, &["apply", "--wait"]);
        assert!(status == Some(1) && said.contains("change.yaml:") && said.contains("nothing was changed"), "{said}");
        assert!(get(&mesh.url, PAGE).contains(&format!("x-change: {PAIRS}\r\n")));

        // The command says which proxy does not run it, and why. It goes on with what it had.
        let (status, said) = run(CANNOT_LISTEN, &["apply", "--wait"]);
        let refusal = said.lines().find(|line| line.contains(" refuses LDS "));
        let refusal = refusal.unwrap_or_else(|| panic!("{said}"));
        assert_eq!(status, Some(1), "{said}");
        assert!(refusal.starts_with("capitals-web-") && refusal.contains("127.0.0.1_15000"), "{refusal}");
        assert!(refusal.contains("in use"), "{refusal}");
        let (status, said) = run(CANNOT_LISTEN, &["delete", "--wait"]);
        assert!(status == Some(0) && said.contains("every proxy runs generation"), "{said}");

        // What routes requests is deleted: the service itself serves them.
        let (status, said) = run(&route("v1"), &["delete", "--wait"]);
        assert!(status == Some(0) && said.contains("capitals-info deleted"), "{said}");
    });

    // Without an alternative, the next request shows it.
    let (status, said) = run(&route("v1"), &["apply", "--wait"]);
    assert_eq!(status, Some(0), "{said}");
    what_was_applied_is_cited_by_its_file(&mesh, folder.path());
    let (status, said) = run(SUBSETS, &["delete", "--wait"]);
    assert_eq!(status, Some(0), "{said}");
    assert!(!get(&mesh.url, PAGE).starts_with("HTTP/1.1 200"));
    let (status, said) = run(SUBSETS, &["apply", "--wait"]);
    assert!(status == Some(0) && get(&mesh.url, PAGE).starts_with("HTTP/1.1 200"), "{said}");

    a_proxy_that_does_not_answer_is_named(&mesh, folder.path());
    mesh.end();
}

/// Every command names the user's file, not the one in which the object is stored.
fn what_was_applied_is_cited_by_its_file(mesh: &Mesh, folder: &Path) {
    let state = mesh.state().display().to_string();
    let file = folder.join("change.yaml").display().to_string();
    let said = |arguments: &[&str]| {
        let output = mesh.user.evenkeel(arguments).args(["--state", &state]).output().expect("it runs");
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        assert!(!text.contains("control/applied"), "{arguments:?}: {text}");
        text
    };
    let cited = format!("applied from {file}:");
    let explain = ["explain", "--from", "capitals-web.capitals", "--url", "http://capitals-info:8080/"];
    for arguments in [&explain[..], &["history", "capitals-web"], &["get"], &["effective", "capitals-info"]] {
        let text = said(arguments);
        assert!(text.contains(&cited), "{arguments:?}: {text}");
    }
    // A program gets the path alone.
    let json = said(&[&explain[..], &["-o", "json"]].concat());
    assert!(json.contains(&format!("\"file\": \"{file}\"")) && !json.contains("applied from"), "{json}");
    // Findings, of the command and of the mesh.
    let (_, text) = change(mesh, folder, &route("v9"), &["apply"]);
    assert!(text.contains("change.yaml:4:"), "{text}");
    let text = said(&["analyze"]);
    assert!(text.contains(&format!("{cited}4:")), "{text}");
    let (status, text) = change(mesh, folder, &route("v1"), &["apply", "--wait"]);
    assert_eq!(status, Some(0), "{text}");
}

fn a_proxy_that_does_not_answer_is_named(mesh: &Mesh, folder: &Path) {
    let agent = mesh.processes().into_iter().find(|process| process.is_agent_of("capitals-web"));
    let agent = Pid::from_raw(agent.expect("an agent of the pages").pid);
    kill(agent, Signal::SIGSTOP).expect("it runs");
    let (status, said) = change(mesh, folder, &routed("v2", PAIRS + 3), &["apply", "--wait", "--timeout", "2"]);
    kill(agent, Signal::SIGCONT).expect("it runs");
    assert_eq!(status, Some(1), "{said}");
    let named = said.lines().find(|line| line.ends_with("has not answered within 2 s"));
    assert!(named.is_some_and(|line| line.starts_with("capitals-web-")), "{said}");
    let (status, said) = change(mesh, folder, &routed("v1", PAIRS + 4), &["apply", "--wait"]);
    assert_eq!(status, Some(0), "{said}");
}
