//! `evenkeel tap`: the requests of a real mesh, as they end.

use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually};
use serde_json::Value;

use super::why::Mesh;
use super::{MACHINE, PATIENCE};

/// The first request that `tap` shows with these arguments while the client makes this call again and again.
fn tapped(mesh: &Mesh, arguments: &[&str], call: &str) -> Value {
    let arguments = [&["tap"], arguments, &["--limit", "1", "-o", "json", "--state"]].concat();
    let mut tap = Process::spawn(mesh.user.evenkeel(&arguments).arg(mesh.user.state.path()));
    let id = "0f0f0f0f-0000-4000-8000-000000000000";
    eventually("a request that is shown", || {
        mesh.call(&[&format!("{id} {call}"), &format!("{id} server:8000/error/other")]);
        tap.exited()
    });
    let output = tap.output();
    let line = output.lines().find(|line| line.starts_with('{'));
    let request: Value = line.and_then(|line| serde_json::from_str(line).ok()).unwrap_or_else(|| panic!("{output}"));
    assert_eq!(request["id"], id, "{output}");
    request
}

#[test]
fn requests_are_shown_as_they_end_without_secrets() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let mut mesh = Mesh::new();
    let failed = tapped(&mesh, &["client", "--status", "5xx"], "server:8000/error");
    assert_eq!((&failed["direction"], &failed["method"]), (&"outbound".into(), &"GET".into()), "{failed:#}");
    assert!(failed["upstream"].is_string() && failed["durationUs"].as_u64() > Some(0), "{failed:#}");
    assert!(failed["proxy"].as_str().is_some_and(|proxy| proxy.starts_with("client-")), "{failed:#}");
    // The client also calls another path, which the filter leaves out.
    let refused = tapped(&mesh, &["server.default", "--path", "/token", "--query"], "server:8000/token?a=b&token=x");
    assert_eq!((&refused["path"], &refused["query"]), (&"/token".into(), &"a=b&token=[redacted]".into()));
    let refused = tapped(&mesh, &["server.default", "--path", "/token", "--status", "401"], "server:8000/token");
    assert_eq!((&refused["direction"], &refused["status"]), (&"inbound".into(), &401.into()), "{refused:#}");
    assert_eq!(refused["query"], Value::Null);
    let identity = refused["sourceIdentity"].as_str().unwrap_or_default();
    assert!(identity.starts_with("spiffe://cluster.local/ns/default/sa/"), "{refused:#}");
    assert!(refused["destinationIdentity"].is_string(), "{refused:#}");
    let text = refused.to_string();
    assert!(text.contains(r#"["authorization","[redacted]"]"#) && !text.contains("none.none"), "{text}");
    mesh.up.signal(Signal::SIGINT);
    assert!(mesh.up.wait_for_exit(PATIENCE).success(), "{}", mesh.up.output());
}
