//! Gateways that are added, removed, or rejected by proxies, while the mesh runs.

use std::fs;
use std::net::TcpStream;
use std::sync::PoisonError;

use evenkeel_testkit::{Process, Signal, eventually, free_port};

use super::mesh::served;
use super::user::User;
use super::{MACHINE, PATIENCE, settings, state, wait_ready};

fn gateway(name: &str, number: u16, tls: &str) -> String {
    let protocol = if tls.is_empty() { "HTTP" } else { "HTTPS" };
    format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: {name}}}\nspec:\n  \
         selector: {{istio: ingressgateway}}\n  servers:\n    - port: {{number: {number}, name: p, protocol: {protocol}}}\n      \
         hosts: ['*']\n{tls}---\napiVersion: networking.istio.io/v1\nkind: VirtualService\nmetadata: {{name: {name}}}\nspec:\n  \
         hosts: ['*']\n  gateways: [{name}]\n  http: [{{headers: {{request: {{set: {{x-a: 'VALUE'}}}}}}, directResponse: {{status: 200, body: {{string: {name}}}}}}}]\n"
    )
}

/// The first Gateway of a mesh: when `apply --wait` returns, its port is open and answers.
#[test]
fn a_first_gateway_that_was_waited_for_answers() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder, given, port) = (User::present(), state(), state(), free_port());
    let web = super::deployment("web", 1, "exec python3 -m http.server --bind 0.0.0.0 8000");
    fs::write(folder.path().join("web.yaml"), web).expect("our own folder");
    fs::write(given.path().join("gateway.yaml"), gateway("one", port, "")).expect("our own folder");
    let mut command = user.evenkeel(&["up"]);
    let mut up = Process::spawn(command.arg(folder.path()).arg("--state").arg(user.state.path()));
    wait_ready(&mut up, 1);
    let state = user.state.path().display().to_string();
    let mut apply = user.evenkeel(&["apply", "--wait", "--state", &state, "-f"]);
    let applied = apply.arg(given.path()).output().expect("it runs");
    let said = String::from_utf8_lossy(&applied.stdout);
    assert!(applied.status.success() && said.contains("every proxy runs generation"), "{applied:?}");
    assert!(served(&format!("http://127.0.0.1:{port}/"), "/").ends_with("one"));
    // The gateway itself is ready, too.
    let mut status = user.evenkeel(&["proxy-status", "istio-ingressgateway", "--state", &state]);
    assert!(status.output().expect("it runs").status.success());
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}

#[test]
fn ports_open_and_close_with_their_gateways_and_what_proxies_would_refuse_is_said() {
    let _among_others = MACHINE.read().unwrap_or_else(PoisonError::into_inner);
    let (user, folder) = (User::present(), state());
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("it can be written");
    write("web.yaml", &super::deployment("web", 1, "exec python3 -m http.server --bind 0.0.0.0 8000"));
    let mut command = user.evenkeel(&["up"]);
    command.arg(folder.path()).arg("--state").arg(user.state.path());
    let mut up =
        Process::spawn(command.args(["9101=0", "9102=0", "9104=0"].map(|port| format!("--gateway-port={port}"))));
    wait_ready(&mut up, 1);
    let opened = |up: &mut Process, number: u16| {
        let line = up.wait_for_line(&format!("port {number} is open: http://"));
        line.rsplit(' ').next().unwrap_or_default().trim().to_owned()
    };
    // The first one brings the gateway itself.
    write("one.yaml", &gateway("one", 9101, ""));
    let one = opened(&mut up, 9101);
    wait_ready(&mut up, 2);
    assert!(served(&one, "/").ends_with("one"));
    write("two.yaml", &gateway("two", 9102, ""));
    let two = opened(&mut up, 9102);
    assert!(served(&two, "/").ends_with("two"));
    fs::remove_file(folder.path().join("two.yaml")).expect("it is there");
    up.wait_for_line("is closed: no Gateway has port 9102 any more");
    let address = two.trim_start_matches("http://").trim_end_matches('/').to_owned();
    eventually("the end of the port", || TcpStream::connect(&address).is_err().then_some(()));
    assert!(served(&one, "/").ends_with("one"));

    // Labels that no gateway has bring a gateway of their own.
    write("edge.yaml", &gateway("edge", 9104, "").replace("istio: ingressgateway", "istio: edge"));
    let edge = opened(&mut up, 9104);
    up.wait_for_line("ready      istio-edge");
    assert!(served(&edge, "/").ends_with("edge"));
    fs::remove_file(folder.path().join("edge.yaml")).expect("it is there");
    up.wait_for_line("is closed: no Gateway has port 9104 any more");
    up.wait_for_line("not ready  istio-edge: draining");

    // The mesh's settings may come, too, and go.
    let log = user.state.path().join("logs/istio-ingressgateway.proxy.log");
    let runtime = user.state.path().join("runtime/mesh.yaml");
    assert!(runtime.exists());
    write("settings.yaml", &settings(r#"accessLogFormat: "CUSTOM %RESPONSE_CODE%\n""#));
    eventually("an access log in another format", || {
        served(&one, "/");
        fs::read_to_string(&log).unwrap_or_default().contains("CUSTOM 200").then_some(())
    });
    eventually("the end of the settings there were", || (!runtime.exists()).then_some(()));
    assert!(!up.output().contains("warning"), "{}", up.output());
    fs::remove_file(folder.path().join("settings.yaml")).expect("it is there");
    eventually("the settings there were", || runtime.exists().then_some(()));

    // Found before any proxy has asked for it.
    write("one.yaml", &gateway("one", 9101, "").replace("VALUE", "%BOGUS%"));
    up.wait_for_line("there is no operator %BOGUS%");
    write("one.yaml", &gateway("one", 9101, ""));
    up.wait_for_line("resolved: ");
    let tls = "      tls: {mode: SIMPLE, serverCertificate: /nowhere/a.pem, privateKey: /nowhere/a.key}\n";
    write("three.yaml", &gateway("three", 9103, tls));
    up.wait_for_line("refused-by-proxy");
    up.wait_for_line("/nowhere/a.");
    up.signal(Signal::SIGINT);
    assert!(up.wait_for_exit(PATIENCE).success(), "{}", up.output());
}
