//! `evenkeel history` of a mesh whose files are edited: what each edit changed, also after it was taken back and after the end.

use std::fs;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};
use serde_json::Value;

use super::user::User;
use super::{MACHINE, PATIENCE, deployment, state, wait_ready};

const SERVICE: &str = "---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8000}]}
";

fn route(timeout: &str) -> String {
    format!(
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: web}}\nspec:\n  hosts: [web]\n  http:\n    \
         - timeout: {timeout}\n      route: [{{destination: {{host: web}}}}]\n"
    )
}

#[test]
fn history_tells_what_was_edited_and_taken_back() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| {
        // At once, as editors do.
        let new = folder.path().join("new");
        fs::write(&new, text).and_then(|()| fs::rename(&new, folder.path().join(name))).expect("our own folder");
    };
    write("web.yaml", &(deployment("web", 1, "exec python3 -m http.server --bind 0.0.0.0 8000") + SERVICE));
    write("route.yaml", &route("3s"));
    let mut command = user.evenkeel(&["up"]);
    let mut up = Process::spawn(command.arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 1);
    let run = |words: &[&str], more: &[&str]| {
        let state = user.state.path().display().to_string();
        let output = user.evenkeel(&[words, &["--state", &state], more].concat()).output().expect("it runs");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    // The sidecar holds what its program has called.
    let curl = ["--", "curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "http://web/"];
    eventually("an answer", || (run(&["exec", "web"], &curl).trim() == "200").then_some(()));
    // What a change did to the timeout, from the difference of its file.
    let edits = |words: &[&str]| -> Vec<String> {
        let told: Value = serde_json::from_str(&run(words, &["-o", "json"])).expect("JSON");
        let files = told["changes"].as_array().expect("changes").iter().flat_map(|change| change["files"].as_array());
        let of_route =
            files.flatten().filter(|file| file["file"].as_str().is_some_and(|name| name.ends_with("route.yaml")));
        let lines = |file: &Value| {
            let lines = file["diff"].as_array().expect("lines").iter().filter_map(Value::as_str);
            lines.filter(|line| line.starts_with(['-', '+'])).collect::<Vec<_>>().join(" ")
        };
        of_route.map(lines).collect()
    };
    let [there, back] =
        [["3s", "5s"], ["5s", "3s"]].map(|[old, new]| format!("-    - timeout: {old} +    - timeout: {new}"));
    for (timeout, expected) in [("5s", vec![there.clone()]), ("3s", vec![there.clone(), back.clone()])] {
        write("route.yaml", &route(timeout));
        eventually(&format!("the edit to {timeout} in the history"), || {
            (edits(&["history"]) == expected).then_some(())
        });
        // The proxy's own has it when the proxy has acknowledged it.
        eventually("the edit at the proxy", || (edits(&["history", "web"]) == expected).then_some(()));
    }
    let text = run(&["history", "web"], &[]);
    let [latest, first] = ["+    - timeout: 3s", "+    - timeout: 5s"].map(|line| text.find(line));
    assert!(latest.is_some() && latest < first, "the latest comes first: {text}");
    let cause = "    VirtualService default/web (";
    assert!(text.contains(cause) && text.contains("changed  VHDS"), "{text}");
    let all = run(&["history"], &[]);
    assert!(!all.contains("pods.yaml") && all.contains("(--all)"), "{all}");
    assert!(run(&["history"], &["--all"]).contains("pods.yaml"));
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
    assert_eq!(edits(&["history"])[..2], [there, back]);
}
