//! A scene of one HTTP listener, for tables of their own.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;

use evenkeel_testkit::{Connection, Process, envoy};

use super::proxy::Program;

/// The HTTP filter that routes.
pub const ROUTER: &str =
    "{ name: r, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router } }";

/// A bootstrap with one listener. `filters` stand before the router; routes and clusters are items of YAML lists, in flow
/// style and a line each.
pub fn bootstrap(port: u16, admin: u16, filters: &[String], routes: &[String], clusters: &[String]) -> String {
    let lines =
        |items: &[String], indent: &str| -> String { items.iter().map(|item| format!("{indent}- {item}\n")).collect() };
    let filters = filters.iter().map(|filter| format!("{filter}, ")).collect::<String>();
    let (routes, clusters) = (lines(routes, "              "), lines(clusters, "  "));
    let manager = format!("          http_filters: [ {filters}{ROUTER} ]\n{}", one_host(&routes));
    scene(admin, &http_listener("l", port, &manager), &clusters)
}

/// A connection manager's routes, as lines of a YAML list, for whatever host is asked for.
pub fn one_host(routes: &str) -> String {
    format!(
        "          route_config:
            name: r
            virtual_hosts:
            - name: all
              domains: [\"*\"]
              routes:
{routes}"
    )
}

/// A bootstrap of these listeners and clusters, as items of YAML lists.
pub fn scene(admin: u16, listeners: &str, clusters: &str) -> String {
    format!(
        "admin: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {admin} }} }} }}
static_resources:
  listeners:
{listeners}  clusters:
{clusters}"
    )
}

/// A listener on loopback with one filter, whose lines are indented by six.
pub fn listener(name: &str, port: u16, filter: &str) -> String {
    format!(
        "  - name: {name}
    address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
{filter}"
    )
}

/// A listener on loopback for HTTP. `manager` is what its connection manager has besides a name, in lines indented by ten.
pub fn http_listener(name: &str, port: u16, manager: &str) -> String {
    let filter = format!(
        "      - name: http
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
{manager}"
    );
    listener(name, port, &filter)
}

/// An endpoint on loopback, as an item of `lb_endpoints`.
pub fn endpoint(port: u16, more: &str) -> String {
    format!("{{ endpoint: {{ address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }} }}{more} }}")
}

/// Starts a proxy with two workers from the file, and waits until it is ready.
pub fn start(program: Program, file: &Path, admin: u16, port: u16) -> Process {
    let mut command = match program {
        Program::Evenkeel => Command::new(env!("CARGO_BIN_EXE_evenkeel")),
        Program::Envoy => Command::new(envoy()),
    };
    match program {
        Program::Evenkeel => command.arg("proxy"),
        Program::Envoy => command.args(["--disable-hot-restart", "--file-flush-interval-msec", "20"]),
    };
    command.args(["--concurrency", "2", "-l", "warning", "-c"]).arg(file);
    let mut process = Process::spawn(&mut command);
    let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, admin));
    process.wait_for("a ready proxy", |_| {
        let response = Connection::open(admin).ok()?.get("admin", "/ready", "Connection: close\r\n").ok()?;
        (response.status == 200).then_some(())
    });
    process.wait_for_port((Ipv4Addr::LOCALHOST, port).into());
    process
}
