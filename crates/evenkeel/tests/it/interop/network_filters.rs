//! Network filters: Evenkeel admits, closes, counts and logs connections as Envoy does.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_testkit::golden::first_difference;
use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Backend, Connection, TcpEcho, free_ports, wait};

use super::proxy::Program;
use super::web::{self, ROUTER, access_log, cluster, endpoint};

/// How long something may take that takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(5);
/// What a filter waits before it closes, where it waits.
const DELAY: Duration = Duration::from_millis(400);

const LIMIT: &str = "type.googleapis.com/envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit";
const RBAC: &str = "type.googleapis.com/envoy.extensions.filters.network.rbac.v3.RBAC";

const DENY: &str =
    "rules: { action: DENY, policies: { all: { permissions: [ { any: true } ], principals: [ { any: true } ] } } }";
const SHADOW: &str = "shadow_rules: { policies: { some: { permissions: [ { any: true } ], principals: [ { any: true } ] } } }, \
                      shadow_rules_stat_prefix: dry_";

/// A listener's name, the filters before the last one, and what stands behind: an echo or HTTP.
const LISTENERS: [(&str, &str, &str); 9] = [
    ("limit", LIMIT, "stat_prefix: limit, max_connections: 2"),
    ("late", LIMIT, "stat_prefix: late, max_connections: 1, delay: 0.4s"),
    (
        "unlimited",
        LIMIT,
        "stat_prefix: unlimited, max_connections: 1, runtime_enabled: { runtime_key: k, default_value: false }",
    ),
    ("web-limit", LIMIT, "stat_prefix: web-limit, max_connections: 2"),
    ("denied", RBAC, DENY),
    ("late-denied", RBAC, "delay_deny: 0.4s, "),
    ("continuous", RBAC, "enforcement_type: CONTINUOUS, "),
    ("shadow", RBAC, SHADOW),
    ("web-shadow", RBAC, SHADOW),
];

#[test]
fn evenkeel_and_envoy_treat_connections_alike() {
    let (echo, backend) = (TcpEcho::start(), Backend::echo("web"));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [admin, ports @ ..] = free_ports::<{ LISTENERS.len() + 1 }>();
    let file = folder.path().join("bootstrap.yaml");
    let log = folder.path().join("log");
    let upstreams = [echo.address().port(), backend.address().port()];
    std::fs::write(&file, bootstrap(upstreams, ports, admin, &log)).expect("a writable folder");
    let run = |program| {
        // The first connection must count nowhere.
        let unlimited = ports[2];
        let mut process = web::start(program, &file, admin, unlimited);
        let seen = story(ports) + &statistics(admin) + &logged(&log);
        assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
        seen
    };
    let envoy = run(Program::Envoy);
    std::fs::remove_file(&log).expect("a log was written");
    let evenkeel = run(Program::Evenkeel);
    let difference = first_difference(&envoy, &evenkeel);
    assert!(difference.is_none(), "- Envoy, + Evenkeel\n{}\n\nEnvoy's:\n{envoy}", difference.unwrap_or_default());
    for part in ["limited_connections: some", "dry_shadow_engine_result", "rbac_access_denied_matched_policy[all]"] {
        assert!(envoy.contains(part), "{part} is not in {envoy}");
    }
}

/// What clients see.
fn story(ports: [u16; LISTENERS.len()]) -> String {
    let port = |name: &str| ports[LISTENERS.iter().position(|row| row.0 == name).expect("a listener")];
    let open = |name: &str| Connection::open((Ipv4Addr::LOCALHOST, port(name)).into()).expect("it accepts");
    let mut seen = String::new();
    for name in ["limit", "late", "unlimited", "web-limit"] {
        let mut clients = [open(name), open(name), open(name)];
        // Workers accept side by side: which of them is one too many is a matter of chance.
        let mut answers = clients.each_mut().map(|client| ask(name, client));
        answers.sort();
        seen += &format!("{name}: {answers:?}\n");
        drop(clients);
        // There is room again, sooner or later.
        let again = wait::poll(PATIENCE, || {
            let mut client = open(name);
            Some(ask(name, &mut client)).filter(|answer| !answer.starts_with("closed"))
        });
        seen += &format!("{name} again: {again:?}\n");
    }
    for name in ["denied", "late-denied", "continuous", "shadow", "web-shadow"] {
        let mut client = open(name);
        let answers = [ask(name, &mut client), ask(name, &mut client)];
        seen += &format!("{name}: {answers:?}\n");
    }
    seen
}

/// An exchange, or how long the proxy took to close.
fn ask(name: &str, client: &mut Connection) -> String {
    let since = Instant::now();
    let sent =
        if name.starts_with("web") { client.send("GET / HTTP/1.1\r\nHost: a\r\n\r\n") } else { client.send("ping") };
    let answered = sent.is_ok() && client.ending(PATIENCE).expect("a socket") == Ending::Bytes;
    if !answered {
        return format!(
            "closed {}",
            if since.elapsed() >= DELAY - Duration::from_millis(50) { "late" } else { "at once" }
        );
    }
    if name.starts_with("web") {
        client.response().expect("an answer").status.to_string()
    } else {
        String::from_utf8_lossy(&client.read_exact(4).expect("an echo")).into_owned()
    }
}

fn statistics(admin: u16) -> String {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let wanted = |line: &&str| {
        // Envoy lists only statistics that can count.
        let of_rbac = line.contains(".rbac.") && !line.ends_with(": 0");
        (line.starts_with("connection_limit.") && line.contains("limited_connections")) || of_rbac
    };
    let get = |path: &str| {
        Connection::open(address).and_then(|mut client| client.get("admin", path, "")).expect("an answer").text()
    };
    // Where its filter is switched off, Envoy's gauge goes below zero.
    let is_active = |line: &&str| line.contains("active_connections") && !line.contains("unlimited");
    // The web listener's connection lives for as long as its client keeps it.
    let idle = |text: &String| {
        let active = text.lines().filter(is_active);
        active.clone().count() > 0 && active.into_iter().all(|line| line.ends_with(": 0"))
    };
    let text = wait::poll(PATIENCE, || Some(get("/stats")).filter(idle)).unwrap_or_else(|| get("/stats"));
    let lines: BTreeSet<_> = text.lines().filter(wanted).collect();
    let active: BTreeSet<_> = text.lines().filter(is_active).collect();
    let prometheus = get("/stats/prometheus");
    let families: BTreeSet<_> = prometheus.lines().filter(|line| line.contains("limited_connections{")).collect();
    // Whoever tries until there is room again is counted each time.
    let how_many = |line: &str| match line.rsplit_once(' ') {
        Some((name, number)) if name.contains("limited_connections") && number != "0" => format!("{name} some\n"),
        _ => format!("{line}\n"),
    };
    lines.into_iter().chain(active).chain(families).map(how_many).collect()
}

/// The lines of the log, each once. Both write what they have once a second, each worker on its own.
fn logged(log: &Path) -> String {
    const QUIET: Duration = Duration::from_millis(2500);
    let read = || std::fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect::<BTreeSet<_>>();
    let mut last = (read(), Instant::now());
    wait::poll(PATIENCE + QUIET, || {
        let now = read();
        if now != last.0 {
            last = (now, Instant::now());
        }
        (!last.0.is_empty() && last.1.elapsed() > QUIET).then_some(())
    });
    last.0.into_iter().map(|line| line + "\n").collect()
}

fn bootstrap(upstreams: [u16; 2], ports: [u16; LISTENERS.len()], admin: u16, log: &Path) -> String {
    let listeners = LISTENERS.iter().zip(ports).map(|((name, kind, config), port)| {
        let config = match config.strip_suffix(", ") {
            Some(config) => format!("{config}, {DENY}"),
            None => (*config).to_owned(),
        };
        let prefix = if *kind == RBAC { format!("stat_prefix: {name}, ") } else { String::new() };
        let filter = format!("      - {{ name: f, typed_config: {{ \"@type\": {kind}, {prefix}{config} }} }}\n");
        let format = format!(
            "{name} %RESPONSE_FLAGS% %CONNECTION_TERMINATION_DETAILS% %DYNAMIC_METADATA(envoy.filters.network.rbac)%"
        );
        let log = access_log(log, &[&format]);
        let last = if name.starts_with("web") {
            web::http_filter(&format!(
                "          {log}\n          http_filters: [ {ROUTER} ]\n{}",
                web::one_host("              - { match: { prefix: / }, route: { cluster: web } }\n")
            ))
        } else {
            web::tcp_filter(&format!("cluster: echo, {log}"))
        };
        web::listener(name, port, &(filter + &last))
    });
    let listeners: String = listeners.map(|listener| listener.trim_end().to_owned() + "\n").collect();
    let clusters = [cluster("echo", &endpoint(upstreams[0], ""), ""), cluster("web", &endpoint(upstreams[1], ""), "")];
    web::scene(admin, &listeners, &clusters)
}
