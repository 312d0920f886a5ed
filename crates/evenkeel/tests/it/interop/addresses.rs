//! Listeners with several addresses: each has its socket, all share the filter chains and the statistics of the first one.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_testkit::{Connection, free_ports};

use super::proxy::Program;
use super::web::{self, ROUTER};

fn bootstrap(first: u16, second: u16, admin: u16) -> String {
    let route = "              - { match: { safe_regex: { regex: \"/[a-z]+\" } }, direct_response: { status: 200, body: { inline_string: ok } } }\n";
    let listener =
        web::http_listener("l", first, &format!("          http_filters: [ {ROUTER} ]\n{}", web::one_host(route)));
    let further = format!(
        "    additional_addresses:
    - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {second} }} }}
      socket_options: {{ socket_options: [ {{ description: keep-alive, level: 1, name: 9, int_value: 1, state: STATE_PREBIND }} ] }}
    - address: {{ socket_address: {{ address: \"::1\", port_value: {second} }} }}
    filter_chains:"
    );
    let listener = listener.replace("    filter_chains:", &further);
    let engine = "default_regex_engine: { name: envoy.regex_engines.google_re2, typed_config: { \"@type\": \
                  type.googleapis.com/envoy.extensions.regex_engines.v3.GoogleRE2 } }";
    format!("{engine}\n{}", web::scene(admin, &listener, &[]))
}

fn story(program: Program) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [first, second, admin] = free_ports::<3>();
    std::fs::write(&file, bootstrap(first, second, admin)).expect("a writable folder");
    let _process = web::start(program, &file, admin, first);
    let get = |address: SocketAddr, path: &str| {
        Connection::open(address).and_then(|mut client| client.get("localhost", path, "connection: close\r\n"))
    };
    let addresses: [SocketAddr; 3] = [
        (Ipv4Addr::LOCALHOST, first).into(),
        (Ipv4Addr::LOCALHOST, second).into(),
        (Ipv6Addr::LOCALHOST, second).into(),
    ];
    let mut lines: Vec<String> =
        addresses.iter().map(|address| get(*address, "/path").expect("an answer").text()).collect();
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    let page = |path: &str| get(admin, path).expect("a page").text();
    lines.push(page("/listeners"));
    let stats = page("/stats?filter=downstream_cx_total");
    lines.extend(
        stats.lines().filter(|line| line.starts_with("listener.127") && !line.contains("worker")).map(str::to_owned),
    );
    let number = |port: u16, name: &str| (port.to_string(), name.to_owned());
    let names = [number(first, "FIRST"), number(second, "SECOND")];
    lines.iter().map(|line| names.iter().fold(line.clone(), |line, (port, name)| line.replace(port, name))).collect()
}

#[test]
fn evenkeel_and_envoy_listen_at_the_same_addresses() {
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(story);
    // One of each address, and the one that waited for the port.
    assert!(envoy.contains(&"listener.127.0.0.1_FIRST.downstream_cx_total: 4".to_owned()), "{envoy:#?}");
    assert_eq!(evenkeel, envoy);
}
