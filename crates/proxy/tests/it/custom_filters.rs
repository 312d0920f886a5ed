//! Filters of a program that embeds the proxy: their configuration in the connection manager, on routes and around them.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_filters::{CustomFactory, CustomFilter, Decision, Reply, RequestContext};
use evenkeel_proxy::options::Settings;
use evenkeel_runtime_config::custom::{CustomFilter as Configured, CustomFilterKind, CustomRouteKind};
use evenkeel_runtime_config::route_filters::PerRoute;
use evenkeel_testkit::{Connection, eventually};
use evenkeel_xds::ResourceType;
use evenkeel_xds::pb::envoy::config::core::v3::TypedExtensionConfig;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use prost::Message;

use crate::harness::{
    ControlPlane, Proxy, answering, dynamic_bootstrap, http_listener, resource, set, static_bootstrap, static_cluster,
};

const TEXT: &str = "type.googleapis.com/google.protobuf.StringValue";
const NUMBER: &str = "type.googleapis.com/google.protobuf.UInt32Value";

/// Answers with its configuration, and with that of the route.
struct Echo(String);

impl CustomFilter for Echo {
    fn request_head(&self, _: &mut Option<Box<dyn std::any::Any>>, context: &mut RequestContext<'_>) -> Decision {
        let route = context.per_route::<u32>().map_or("none".to_owned(), u32::to_string);
        let body = format!("{} {route}", self.0).into_bytes().into();
        Decision::Reply(Reply { body, ..Reply::new(200, "", "echo") })
    }
}

fn configured(message: &[u8]) -> Result<Configured, String> {
    let text = String::decode(message).map_err(|error| error.to_string())?;
    let factory = Arc::new(CustomFactory::new(move |_| Box::new(Echo(text.clone()))));
    Ok(Configured { message: ECHO.message, clusters: Vec::new(), factory })
}

fn of_route(message: &[u8]) -> Result<Arc<dyn PerRoute>, String> {
    match u32::decode(message) {
        Ok(0) => Err("must not be 0".to_owned()),
        Ok(number) => Ok(Arc::new(number)),
        Err(error) => Err(error.to_string()),
    }
}

/// The kind of [`Echo`].
const ECHO: CustomFilterKind = CustomFilterKind {
    message: "google.protobuf.StringValue",
    compile: configured,
    per_route: Some(CustomRouteKind { message: "google.protobuf.UInt32Value", compile: of_route }),
};

fn embedded(settings: &mut Settings) {
    settings.concurrency = 1;
    settings.custom_filters = vec![ECHO];
}

fn body(address: SocketAddr, host: &str, path: &str) -> String {
    Connection::open(address).expect("it accepts").get(host, path, "").expect("an answer").text()
}

#[test]
fn the_configuration_of_the_innermost_level_applies_and_a_level_may_disable_the_filter() {
    let level = |number: u32| format!("typed_per_filter_config: {{own: {{\"@type\": {NUMBER}, value: {number}}}}}");
    let set = |config: &str| {
        let kind = "type.googleapis.com/envoy.config.route.v3.FilterConfig";
        format!("typed_per_filter_config: {{own: {{\"@type\": {kind}, {config}}}}}")
    };
    let direct = "direct_response: {status: 200, body: {inline_string: direct}}";
    let routes = [
        format!("{{match: {{path: /route}}, {direct}, {}}}", level(3)),
        format!("{{match: {{path: /off}}, {direct}, {}}}", set("disabled: true")),
        format!("{{match: {{path: /on}}, {direct}, {}}}", set("config: {}")),
        format!(
            "{{match: {{path: /wrapped}}, {direct}, {}}}",
            set(&format!("config: {{\"@type\": {NUMBER}, value: 5}}"))
        ),
        format!(
            "{{match: {{path: /weighted}}, route: {{weighted_clusters: {{clusters: [{{name: a, weight: 1, {}}}]}}}}, {}}}",
            level(4),
            level(3)
        ),
        format!("{{match: {{prefix: /}}, {direct}}}"),
    ]
    .join(", ");
    let routes = format!(
        "route_config: {{name: local, {}, virtual_hosts: [{{name: other, domains: [other], {}, routes: [{routes}]}}, \
         {{name: all, domains: [\"*\"], routes: [{routes}]}}]}}",
        level(1),
        level(2),
    );
    let filter = format!("http_filters:\n      - {{name: own, typed_config: {{\"@type\": {TEXT}, value: text}}}}\n");
    let listener = http_listener("levels", &routes, "").replacen("http_filters:\n", &filter, 1);
    let nobody = ([127, 0, 0, 1], 9).into();
    let proxy = Proxy::start_as(&static_bootstrap(&listener, &[static_cluster("a", nobody, "")]), embedded);
    proxy.wait_live();
    let address = proxy.listener("levels");
    for (host, path, expected) in [
        ("test", "/", "text 1"),
        ("other", "/", "text 2"),
        ("other", "/route", "text 3"),
        ("other", "/weighted", "text 4"),
        ("other", "/wrapped", "text 5"),
        ("other", "/off", "direct"),
        ("other", "/on", "text 2"),
        ("test", "/on", "text 1"),
    ] {
        assert_eq!(body(address, host, path), expected, "{host}{path}");
    }
}

/// Fields of a filter whose configuration is discovered.
fn discovered(more: &str) -> String {
    let source = "config_source: {ads: {}, resource_api_version: V3, initial_fetch_timeout: 0.2s}";
    format!("{{name: own, config_discovery: {{{source}, type_urls: [{TEXT}]{more}}}}}")
}

fn listener_with(name: &str, filter: &str) -> String {
    let filters = format!("http_filters:\n      - {filter}\n");
    http_listener(name, &answering("direct"), "").replacen("http_filters:\n", &filters, 1)
}

#[test]
fn a_discovered_configuration_applies_when_it_comes_and_changes() {
    for api_type in ["DELTA_GRPC", "GRPC"] {
        let default = format!(", default_config: {{\"@type\": {TEXT}, value: default}}");
        let listener = listener_with("discovered", &discovered(&default));
        let listener = (ResourceType::Listener, resource::<Listener>("discovered", &listener));
        let mut control_plane = ControlPlane::start(set(vec![listener]));
        let proxy = Proxy::start_as(&dynamic_bootstrap(control_plane.address, api_type, ""), embedded);
        proxy.wait_live();
        let address = proxy.listener("discovered");
        assert_eq!(body(address, "test", "/"), "default none", "{api_type}");
        let mut send = |config: &str| {
            let config = format!("{{name: own, typed_config: {{\"@type\": {config}}}}}");
            let config = resource::<TypedExtensionConfig>("own", &config);
            control_plane.change(|set| set.insert(ResourceType::ExtensionConfig, config));
        };
        let serves = |expected: &str| {
            eventually(expected, || (body(proxy.listener("discovered"), "test", "/") == expected).then_some(()));
        };
        send(&format!("{TEXT}, value: one"));
        serves("one none");
        send(&format!("{TEXT}, value: two"));
        serves("two none");
        // Not the type that was announced.
        send(&format!("{NUMBER}, value: 5"));
        let page = || proxy.get("/config_dump").text();
        eventually("a refusal", || page().contains("type_urls expects google.protobuf.StringValue").then_some(()));
        assert_eq!(body(address, "test", "/"), "two none", "{api_type}");
        send(&format!("{TEXT}, value: three"));
        serves("three none");
        assert!(page().contains("EcdsConfigDump"));
    }
}

#[test]
fn nothing_passes_a_filter_whose_configuration_never_came() {
    let http = listener_with("closed", &discovered(""));
    let manager = "- filters:\n";
    let network = http_listener("shut", &answering("direct"), "").replacen(
        manager,
        &format!("{manager}  - {}\n", discovered("")),
        1,
    );
    let listeners = [("closed", &http), ("shut", &network)]
        .map(|(name, yaml)| (ResourceType::Listener, resource::<Listener>(name, yaml)));
    let control_plane = ControlPlane::start(set(listeners.to_vec()));
    let proxy = Proxy::start_as(&dynamic_bootstrap(control_plane.address, "GRPC", ""), embedded);
    let answer = Connection::open(proxy.listener("closed")).expect("it accepts").get("test", "/", "");
    assert_eq!(answer.expect("an answer").status, 500);
    let answer = Connection::open(proxy.listener("shut")).and_then(|mut connection| connection.get("test", "/", ""));
    assert!(answer.is_err(), "{answer:?}");
}
