//! Errors in a bootstrap, and their positions.

use std::fmt::Write as _;
use std::path::Path;

use evenkeel_proxy::options::NodeOverrides;
use evenkeel_proxy::{RunError, run_until};
use evenkeel_testkit::{Backend, Reply, golden};
use tokio::sync::oneshot;

use crate::harness::{Proxy, answering, get, http_listener, settings, static_bootstrap, static_cluster};

const CASES: &[(&str, &str)] = &[
    ("not YAML", "admin: [unclosed"),
    ("not a bootstrap", "- a\n- b\n"),
    ("unknown field", "static_resources:\n  listners: []\n"),
    ("wrong type", "admin:\n  address:\n    socket_address: {address: 127.0.0.1, port_value: lots}\n"),
    ("field that is not supported", "static_resources: {}\nhds_config: {api_type: GRPC}\n"),
    ("statistics sink without configuration", "stats_sinks:\n- name: envoy.stat_sinks.statsd\n"),
    (
        "statistics sink that is not there",
        "stats_sinks:\n- name: envoy.stat_sinks.hystrix\n  typed_config: {'@type': type.googleapis.com/envoy.config.metrics.v3.HystrixSink}\n",
    ),
    (
        "unknown cluster of ads",
        "dynamic_resources:\n  ads_config:\n    api_type: GRPC\n    grpc_services: [{envoy_grpc: {cluster_name: nowhere}}]\n",
    ),
    (
        "extension that is not there",
        "static_resources:\n  clusters:\n  - name: c\n    transport_socket:\n      name: t\n      typed_config:\n        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.alts.v3.Alts\n",
    ),
    ("two mistakes at once", "nodes: {}\nadmin: {adress: {}}\n"),
];

fn error_of(text: &str) -> String {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (_stop, stopped) = oneshot::channel();
    let error = run_until(settings(text, &folder, None), stopped).expect_err("a bootstrap with a mistake");
    assert!(matches!(error, RunError::Bootstrap(_)), "{error:?}");
    error.to_string().replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn mistakes_have_a_place_and_a_path() {
    let mut report = String::new();
    for (title, text) in CASES {
        writeln!(report, "## {title}\n{}\n", error_of(text)).expect("strings take all");
    }
    let listener = http_listener("web", &answering("hello"), "");
    let listener = listener.replace("stat_prefix: web", "stat_prefix: web\n      http3_protocol_options: {}");
    let indented = listener.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
    let text = format!("static_resources:\n  listeners:\n  -\n{indented}");
    writeln!(report, "## deep in a filter\n{}\n", error_of(&text)).expect("strings take all");
    golden::check(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/bootstrap-errors.txt"), &report);
}

#[test]
fn a_file_that_is_not_there_is_named() {
    let source = evenkeel_proxy::options::BootstrapSource { path: Some("/nowhere/b.yaml".into()), text: None };
    let error = evenkeel_proxy::bootstrap::load(&source, &NodeOverrides::default()).expect_err("no such file");
    assert_eq!(error.to_string(), "cannot read the bootstrap /nowhere/b.yaml: No such file or directory (os error 2)");
}

#[test]
fn the_command_line_overrides_the_file() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut settings = settings("node: {id: file, cluster: file, metadata: {A: b}}", &folder, None);
    settings.bootstrap.text = Some("admin: {address: {socket_address: {address: 127.0.0.1, port_value: 9}}}".into());
    let overrides = NodeOverrides { id: Some("flag".into()), cluster: None, zone: Some("z".into()) };
    let loaded = evenkeel_proxy::bootstrap::load(&settings.bootstrap, &overrides).expect("a good bootstrap");
    let node = &loaded.bootstrap.node;
    assert_eq!((node.id.as_str(), node.cluster.as_str(), node.user_agent_name.as_str()), ("flag", "file", "evenkeel"));
    assert_eq!(node.locality.as_ref().map(|locality| locality.zone.as_str()), Some("z"));
    assert!(node.metadata.is_some());
    assert_eq!(loaded.bootstrap.admin.map(|admin| admin.port()), Some(9));
}

#[test]
fn runtime_values_decide_which_route_requests_take() {
    let route = |fraction: &str, body: &str| {
        format!(
            "{{match: {{prefix: /, {fraction}}}, direct_response: {{status: 200, body: {{inline_string: {body}}}}}}}"
        )
    };
    let first = route("runtime_fraction: {default_value: {numerator: 100}, runtime_key: routing.new}", "new");
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{first}, {}]}}]}}",
        route("", "old")
    );
    let check = |layers: &str, expected: &str| {
        let bootstrap = static_bootstrap(&http_listener("web", &routes, ""), &[]);
        let proxy = Proxy::start(&format!("{bootstrap}\nlayered_runtime: {{layers: [{layers}]}}\n"));
        proxy.wait_live();
        assert_eq!(get(proxy.listener("web"), "/").text(), expected, "{layers}");
    };
    check("{name: admin, admin_layer: {}}", "new");
    check("{name: s, static_layer: {routing: {new: 0}}}", "old");
    check("{name: s, static_layer: {routing.new: 0}}, {name: d, disk_layer: {symlink_root: /nowhere}}", "old");
}

#[test]
fn the_scheme_of_requests_is_overwritten() {
    let backend = Backend::start(|request| Reply::text(request.header("x-forwarded-proto").unwrap_or("-")));
    let by_scheme = "{match: {prefix: /, headers: [{name: \":scheme\", string_match: {exact: https}}]}, route: {cluster: b}, \
                     response_headers_to_add: [{header: {key: x-route, value: https}}]}";
    let routes = format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{by_scheme}, {{match: {{prefix: /}}, \
         route: {{cluster: b}}}}]}}]}}"
    );
    let check = |settings: &str, expected: (&str, Option<&str>)| {
        let listener = http_listener("web", &format!("{settings}\n      {routes}"), "");
        let proxy = Proxy::start(&static_bootstrap(&listener, &[static_cluster("b", backend.address(), "")]));
        proxy.wait_live();
        let answer = get(proxy.listener("web"), "/");
        assert_eq!((&*answer.text(), answer.header("x-route")), expected, "{settings}");
    };
    check("use_remote_address: true", ("http", None));
    let overwrite = "scheme_header_transformation: {scheme_to_overwrite: https}";
    check(overwrite, ("https", Some("https")));
    check(
        &format!("use_remote_address: true\n      append_x_forwarded_port: true\n      {overwrite}"),
        ("https", Some("https")),
    );
}
