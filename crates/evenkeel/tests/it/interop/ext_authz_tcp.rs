//! External authorization of connections: beside Envoy, with a server that is built on Envoy's published API.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{AuthzServer, Connection, TcpEcho, free_port, free_ports, wait};

use super::ext_authz::question;
use super::proxy::Program;
use super::web::{self, HTTP2, access_log, cluster, endpoint};

/// How long something may take that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
const EXT_AUTHZ: &str = "type.googleapis.com/envoy.extensions.filters.network.ext_authz.v3.ExtAuthz";
const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

/// A listener's name, the cluster that is asked, and the rest of its filter's configuration.
const LISTENERS: [(&str, &str, &str); 7] = [
    ("allowed", "permits", ""),
    ("denied", "refuses", ""),
    ("gone", "gone", ""),
    ("gone-open", "gone", ", failure_mode_allow: true"),
    ("missing", "missing", ""),
    (
        "judged",
        "permits",
        ", metadata_context_namespaces: [ envoy.filters.network.rbac, none ], include_tls_session: true",
    ),
    ("passed", "refuses", ""),
];

/// Only what an RBAC filter's rules have matched is decided about: all of `judged`, nothing of `passed`.
const WHEN: &str = ", filter_enabled_metadata: { filter: envoy.filters.network.rbac, \
                    path: [ { key: istio_ext_authz_shadow_effective_policy_id } ], \
                    value: { string_match: { prefix: istio-ext-authz } } }";

#[test]
fn evenkeel_and_envoy_ask_about_connections_alike() {
    let mut servers = [AuthzServer::start_with(&["-permit"]), AuthzServer::start()];
    let echo = TcpEcho::start();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [admin, ports @ ..] = free_ports::<{ LISTENERS.len() + 1 }>();
    let (file, log) = (folder.path().join("bootstrap.yaml"), folder.path().join("log"));
    let upstreams = [echo.address().port(), servers[0].grpc(), servers[1].grpc()];
    std::fs::write(&file, bootstrap(upstreams, ports, admin, &log)).expect("a writable folder");
    let mut run = |program| {
        let mut process = web::start(program, &file, admin, ports[0]);
        let mut seen = String::new();
        for ((name, ..), port) in LISTENERS.iter().zip(ports) {
            let mut client = Connection::open((Ipv4Addr::LOCALHOST, port).into()).expect("it accepts");
            seen += &format!("{name}: {}\n", ask(&mut client));
        }
        for server in &mut servers {
            server.all_questions().iter().for_each(|line| seen += &format!("asked: {}\n", question(line)));
        }
        let complete = |log: &String| log.lines().count() >= LISTENERS.len();
        let read = || std::fs::read_to_string(&log).unwrap_or_default();
        let lines = wait::poll(PATIENCE, || Some(read()).filter(complete)).unwrap_or_else(read);
        let lines: BTreeSet<_> = lines.lines().collect();
        lines.into_iter().for_each(|line| seen += &format!("{line}\n"));
        // Envoy counts each piece of data that it lets pass unasked, and the connection's end; Evenkeel counts the connection.
        seen += &counted(admin).replace("passed.disabled: 2", "passed.disabled: 1");
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        drop(process);
        std::fs::remove_file(&log).expect("a log was written");
        seen
    };
    let envoy = run(Program::Envoy);
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n\nEnvoy's:\n{envoy}", difference.unwrap_or_default());
    for part in ["allowed: ping", "denied: closed", "UAEX", "ext_authz.gone-open.failure_mode_allowed: 1"] {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}

fn ask(client: &mut Connection) -> String {
    if client.send("ping").is_ok() && client.ending(PATIENCE).expect("a socket") == Ending::Bytes {
        String::from_utf8_lossy(&client.read_exact(4).expect("an echo")).into_owned()
    } else {
        "closed".to_owned()
    }
}

fn counted(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let text =
        Connection::open(address).and_then(|mut client| client.get("admin", "/stats", "")).expect("an answer").text();
    let lines: BTreeSet<_> =
        text.lines().filter(|line| line.starts_with("ext_authz.") && !line.ends_with(": 0")).collect();
    lines.into_iter().map(|line| format!("{line}\n")).collect()
}

fn bootstrap(upstreams: [u16; 3], ports: [u16; LISTENERS.len()], admin: u16, log: &Path) -> String {
    let listeners = LISTENERS.iter().zip(ports).map(|((name, cluster, more), port)| {
        let judged = matches!(*name, "judged" | "passed");
        let rule = if *name == "passed" { "not_id: { any: true }" } else { "any: true" };
        let shadow = format!(
            "      - {{ name: s, typed_config: {{ \"@type\": {RBAC}, stat_prefix: tcp., \
             shadow_rules_stat_prefix: istio_ext_authz_, shadow_rules: {{ action: DENY, policies: {{ \
             \"istio-ext-authz-ns[a]-policy[p]-rule[0]\": {{ permissions: [ {{ any: true }} ], principals: [ {{ {rule} }} ] }} }} }} }} }}\n"
        );
        let filter = format!(
            "      - {{ name: f, typed_config: {{ \"@type\": {EXT_AUTHZ}, stat_prefix: {name}, transport_api_version: V3, \
             grpc_service: {{ envoy_grpc: {{ cluster_name: {cluster} }}, timeout: 0.4s }}{more}{} }} }}\n",
            if judged { WHEN } else { "" }
        );
        let log = access_log(log, &[&format!("{name} %RESPONSE_FLAGS% %CONNECTION_TERMINATION_DETAILS%")]);
        let last = web::tcp_filter(&format!("cluster: echo, {log}"));
        web::listener(name, port, &(if judged { shadow } else { String::new() } + &filter + &last))
    });
    let listeners: String = listeners.map(|listener| listener.trim_end().to_owned() + "\n").collect();
    let [echo, permits, refuses] = upstreams;
    let clusters = [
        cluster("echo", &endpoint(echo, ""), ""),
        cluster("permits", &endpoint(permits, ""), HTTP2),
        cluster("refuses", &endpoint(refuses, ""), HTTP2),
        cluster("gone", &endpoint(free_port(), ""), HTTP2),
    ];
    web::scene(admin, &listeners, &clusters)
}
