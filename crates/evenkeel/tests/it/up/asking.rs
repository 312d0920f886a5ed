//! Queries to a running mesh: the decisions of its proxies, the outcome of a request, the effect of a change.

use std::path::Path;

use evenkeel_testkit::{Connection, eventually};
use serde_json::Value;

use super::mesh::Mesh;

/// Nobody may read capitals any more, and all of them come from the second version.
const CHANGE: &str = "apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: capitals-info, namespace: capitals}
spec: {hosts: [capitals-info], http: [{name: all, route: [{destination: {host: capitals-info, subset: v2}}]}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: capitals-info, namespace: capitals}
spec: {selector: {matchLabels: {app: capitals-info}}, rules: [{to: [{operation: {methods: [POST]}}]}]}
";

/// Runs `evenkeel` with this mesh's state directory. Returns the exit status and what it prints.
fn run(mesh: &Mesh, arguments: &[&str]) -> (Option<i32>, String, String) {
    let output = mesh.user.evenkeel(arguments).arg("--state").arg(mesh.state()).output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn json(mesh: &Mesh, arguments: &[&str], status: i32) -> Value {
    let (code, out, error) = run(mesh, &[arguments, &["-o", "json"]].concat());
    assert_eq!(code, Some(status), "{arguments:?}: {out}{error}");
    serde_json::from_str(&out).unwrap_or_else(|wrong| panic!("{arguments:?}: {wrong}: {out}"))
}

fn request(mesh: &Mesh, path: &str) -> u16 {
    let address = mesh.url.trim_start_matches("http://").trim_end_matches('/').parse().expect("HOST:PORT");
    let mut connection = Connection::open(address).expect("the gateway accepts");
    let headers = "authorization: Bearer s3cret\r\nx-odd: a\u{85}b\r\n";
    connection.get("capitals.example", path, headers).expect("an answer").status
}

fn all<'j>(json: &'j Value, pointer: &str) -> Vec<&'j Value> {
    json["hops"].as_array().into_iter().flatten().filter_map(|hop| hop.pointer(pointer)).collect()
}

fn write_change(folder: &Path) -> String {
    let file = folder.join("change.yaml");
    std::fs::write(&file, CHANGE).expect("our own folder");
    file.to_string_lossy().into_owned()
}

#[test]
fn a_running_mesh_answers_questions() {
    let mut mesh = Mesh::present();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let change = write_change(folder.path());

    // A recent request, at every proxy on its way.
    assert_eq!(request(&mesh, "/api/capitals/Iceland?asked=yes&token=s3cret"), 200);
    let last = eventually("the request at every proxy", || {
        let last = json(&mesh, &["explain", "--last"], 0);
        (all(&last, "/now/same").len() == 4).then_some(last)
    });
    assert!(!last.to_string().contains("s3cret"), "{last:#}");
    let path = last.pointer("/hops/0/request/call/request/path");
    assert_eq!(path, Some(&"/api/capitals/Iceland?asked=yes&token=[redacted]".into()), "{last:#}");
    assert!(all(&last, "/now/same").iter().all(|same| **same == true), "{last:#}");
    let lines = all(&last, "/route/source/line").into_iter().filter_map(Value::as_u64).count();
    assert_eq!(lines, 2, "the gateway's rule and the client's: {last:#}");
    let id = last["id"].as_str().expect("an id").to_owned();

    // The proxies themselves decide.
    let call = ["--from", "capitals-web.capitals", "--url", "http://capitals-info:8080/capitals/Iceland"];
    let asked = json(&mesh, &[&["explain", "--proxy"], &call[..]].concat(), 0);
    assert_eq!(all(&asked, "/running/agrees"), [&Value::from(true); 2], "{asked:#}");
    assert_eq!(asked["route"]["name"], "split", "{asked:#}");
    let long = format!("x-long: {}", "a".repeat(60_000));
    let asked = json(&mesh, &[&["explain", "--proxy", "-H", &long], &call[..]].concat(), 0);
    assert_eq!(asked["running"]["agrees"], true, "{asked:#}");

    // What a change would do, and what it does.
    let plan = json(&mesh, &["plan", "-f", &change], 2);
    assert!(plan["fails"][0]["to"]["details"].as_str().is_some_and(|said| said.contains("rbac")), "{plan:#}");
    let (code, out, error) = run(&mesh, &["apply", "-f", &change, "--wait"]);
    assert_eq!(code, Some(0), "{out}{error}");
    let then = json(&mesh, &["explain", "--last", &id], 0);
    let same = all(&then, "/now/same").into_iter().filter(|same| **same == true).count();
    assert_eq!(same, 2, "the gateway and the pages decide as before: {then:#}");
    let (_, text, _) = run(&mesh, &["explain", "--last", &id]);
    assert!(text.contains("otherwise") && !text.contains('\u{85}'), "{text}");
    let plan = json(&mesh, &["plan", "-f", &change], 0);
    assert_eq!(plan["fails"].as_array().map(Vec::len), Some(0), "{plan:#}");

    // What cannot be answered is said.
    let (code, _, error) = run(&mesh, &["explain", "--last", "no-such-id"]);
    assert!(code == Some(1) && error.contains("no-such-id"), "{error}");
    mesh.end();
    let (code, _, error) = run(&mesh, &["explain", "--last"]);
    assert!(code == Some(1) && error.contains("no mesh is running"), "{error}");
}
