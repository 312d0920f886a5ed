//! A setup with one HTTP listener, for tests with their own tables.

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
    let filters = filters.iter().map(|filter| format!("{filter}, ")).collect::<String>();
    let manager =
        format!("          http_filters: [ {filters}{ROUTER} ]\n{}", one_host(&lines(routes, "              ")));
    scene(admin, &http_listener("l", port, &manager), clusters)
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

/// Items of a YAML list, a line each.
fn lines(items: &[String], indent: &str) -> String {
    items.iter().map(|item| format!("{indent}- {item}\n")).collect()
}

/// A bootstrap of these listeners, as items of a YAML list, and clusters, in flow style.
pub fn scene(admin: u16, listeners: &str, clusters: &[String]) -> String {
    let clusters = lines(clusters, "  ");
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
    listener(name, port, &http_filter(manager))
}

/// A connection manager as a listener's filter.
pub fn http_filter(manager: &str) -> String {
    format!(
        "      - name: http
        typed_config:
          \"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: http
{manager}"
    )
}

/// A TCP proxy on loopback. `config` is what it has besides a name.
pub fn tcp_listener(name: &str, port: u16, config: &str) -> String {
    listener(name, port, &tcp_filter(config))
}

/// A TCP proxy as a listener's filter.
pub fn tcp_filter(config: &str) -> String {
    format!(
        "      - name: tcp
        typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, {config} }}
"
    )
}

/// `access_log` with a file that gets a line of text in each of these formats, or of JSON for `json_format: { … }`.
pub fn access_log(path: &Path, formats: &[&str]) -> String {
    let path = path.display();
    let item = |format: &&str| {
        let format = if format.starts_with("json_format:") {
            (*format).to_owned()
        } else {
            format!("text_format_source: {{ inline_string: \"{format}\\n\" }}")
        };
        format!(
            "{{ name: file, typed_config: {{ \"@type\": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog, \
             path: \"{path}\", log_format: {{ {format} }} }} }}"
        )
    };
    format!("access_log: [ {} ]", formats.iter().map(item).collect::<Vec<_>>().join(", "))
}

/// Has a cluster's connections speak HTTP/2.
pub const HTTP2: &str = "typed_extension_protocol_options: { envoy.extensions.upstreams.http.v3.HttpProtocolOptions: { \"@type\": \
                         type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, explicit_http_config: { \
                         http2_protocol_options: {} } } },";

/// A static cluster of these items of `lb_endpoints`. `more`: what else it has, with a comma at the end.
pub fn cluster(name: &str, hosts: &str, more: &str) -> String {
    format!(
        "{{ name: {name}, type: STATIC, {more} load_assignment: {{ cluster_name: {name}, endpoints: [ {{ lb_endpoints: [ {hosts} ] }} ] }} }}"
    )
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
