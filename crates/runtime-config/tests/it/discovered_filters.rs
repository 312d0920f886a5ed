//! Filters whose configuration comes by ECDS.

use std::sync::Arc;

use evenkeel_runtime_config::hcm::{HttpFilter, HttpFilterConfig};
use evenkeel_runtime_config::listener::{Listener, NetworkFilterConfig, Terminal};

use evenkeel_runtime_config::{Builder, Reference, Source};

use crate::input;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const BUFFER: &str = "envoy.extensions.filters.http.buffer.v3.Buffer";
const LIMIT: &str = "envoy.extensions.filters.network.connection_limit.v3.ConnectionLimit";
const URL: &str = "type.googleapis.com";

/// A listener with a discovered HTTP filter and a discovered network filter, both with further fields.
fn listener(http: &str, network: &str) -> String {
    let discovery =
        |kind: &str, more: &str| format!("{{ config_source: {{ ads: {{}} }}, type_urls: [{URL}/{kind}]{more} }}");
    format!(
        "name: l
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
filter_chains:
- filters:
  - {{ name: limit, config_discovery: {} }}
  - name: hcm
    typed_config:
      \"@type\": {HCM}
      stat_prefix: s
      http_filters:
      - {{ name: own, config_discovery: {} }}
      - {{ name: r, typed_config: {{ \"@type\": {URL}/envoy.extensions.filters.http.router.v3.Router }} }}
      route_config: {{ virtual_hosts: [] }}
",
        discovery(LIMIT, network),
        discovery(BUFFER, http),
    )
}

fn buffer(bytes: u32) -> String {
    format!("\"@type\": {URL}/{BUFFER}, max_request_bytes: {bytes}")
}

fn limit(connections: u32) -> String {
    format!("\"@type\": {URL}/{LIMIT}, stat_prefix: s, max_connections: {connections}")
}

fn send(builder: &mut Builder, name: &str, config: &str) -> Result<(), String> {
    let text = format!("name: {name}\ntyped_config: {{ {config} }}\n");
    let resource = input::resource("envoy.config.core.v3.TypedExtensionConfig", &text);
    builder.set_extension(&resource).map_err(|rejection| rejection.to_string())
}

fn reference(name: &str) -> Reference {
    Reference { name: name.into(), source: Source::Ads, initial_fetch_timeout: None }
}

fn serving(builder: &mut Builder) -> Option<Arc<Listener>> {
    builder.build().listeners.get("l").cloned()
}

fn http_filter(listener: &Listener) -> &HttpFilter {
    match &listener.filter_chains[0].terminal {
        Terminal::Http(manager) => &manager.filters[0],
        Terminal::Tcp(_) => panic!("a connection manager was configured"),
    }
}

/// What is in force of both filters: the limits, or `None` for filters that let nothing pass.
fn in_force(builder: &mut Builder) -> Option<(Option<u64>, Option<u64>)> {
    let listener = serving(builder)?;
    let http = match &http_filter(&listener).config {
        HttpFilterConfig::Buffer(buffer) => Some(u64::from(buffer.max_request_bytes)),
        HttpFilterConfig::Custom(_) => None,
        other => panic!("{other:?}"),
    };
    let network = match &listener.filter_chains[0].network_filters[0].config {
        NetworkFilterConfig::ConnectionLimit(limit) => Some(limit.connections.most()),
        NetworkFilterConfig::Custom(_) => None,
        other => panic!("{other:?}"),
    };
    Some((http, network))
}

#[test]
fn a_listener_waits_for_the_configuration_of_its_filters_and_follows_it() {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&listener("", ""))).expect("good");
    assert_eq!(in_force(&mut builder), None, "it waits for both");
    let missing: Vec<_> = builder.missing().extensions.iter().map(|reference| reference.name.to_string()).collect();
    assert_eq!(missing, ["limit", "own"]);
    send(&mut builder, "own", &buffer(7)).expect("good");
    assert_eq!(in_force(&mut builder), None, "it waits for the other");
    send(&mut builder, "limit", &limit(3)).expect("good");
    assert_eq!(in_force(&mut builder), Some((Some(7), Some(3))));
    send(&mut builder, "own", &buffer(8)).expect("good");
    assert_eq!(in_force(&mut builder), Some((Some(8), Some(3))));
    let before = serving(&mut builder).expect("it serves");
    send(&mut builder, "own", &buffer(8)).expect("the same again");
    assert!(Arc::ptr_eq(&before, &serving(&mut builder).expect("it serves")), "nothing has changed");
    // A listener that comes later uses what is there.
    builder
        .set_listener(&input::listener(&format!("{}per_connection_buffer_limit_bytes: 9\n", listener("", ""))))
        .expect("good");
    assert_eq!(in_force(&mut builder), Some((Some(8), Some(3))));
    // Without configuration, nothing passes.
    builder.remove_extension(&reference("own"));
    assert_eq!(in_force(&mut builder), Some((None, Some(3))));
    builder.remove_listener("l");
    builder.build();
    assert_eq!(builder.extension("limit"), None, "nothing names it any more");
}

#[test]
fn a_default_configuration_applies_until_another_has_come() {
    let with_default = |more: &str| format!(", default_config: {{ {} }}{more}", buffer(1));
    for (more, waits) in [("", true), (", apply_default_config_without_warming: true", false)] {
        let mut builder = input::builder();
        builder.set_listener(&input::listener(&listener(&with_default(more), ""))).expect("good");
        send(&mut builder, "limit", &limit(3)).expect("good");
        assert_eq!(in_force(&mut builder), (!waits).then_some((Some(1), Some(3))), "{more}");
        builder.give_up_extension(&reference("own"));
        assert_eq!(in_force(&mut builder), Some((Some(1), Some(3))), "{more}");
        send(&mut builder, "own", &buffer(2)).expect("good");
        assert_eq!(in_force(&mut builder), Some((Some(2), Some(3))), "{more}");
        builder.remove_extension(&reference("own"));
        assert_eq!(in_force(&mut builder), Some((Some(1), Some(3))), "{more}");
    }
    // Neither a default nor an answer in time: the listener serves, and nothing passes.
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&listener("", ""))).expect("good");
    builder.give_up_extension(&reference("own"));
    builder.give_up_extension(&reference("limit"));
    assert_eq!(in_force(&mut builder), Some((None, None)));
}

#[test]
fn a_configuration_that_does_not_fit_is_rejected_and_the_one_before_stays() {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&listener("", ""))).expect("good");
    send(&mut builder, "own", &buffer(7)).expect("good");
    send(&mut builder, "limit", &limit(3)).expect("good");
    for (name, config, reason) in [
        ("own", limit(3), "type_urls expects envoy.extensions.filters.http.buffer.v3.Buffer"),
        ("own", buffer(0), "max_request_bytes"),
        (
            "own",
            "\"@type\": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua".to_owned(),
            "is not supported",
        ),
        ("limit", limit(0), "max_connections"),
    ] {
        let error = send(&mut builder, name, &config).expect_err(reason);
        assert!(error.contains(reason), "{error}");
        assert_eq!(in_force(&mut builder), Some((Some(7), Some(3))), "{reason}");
    }
}

#[test]
fn a_source_that_cannot_be_honoured_is_rejected() {
    let no_default = ", apply_default_config_without_warming: true";
    let other_default = format!(", default_config: {{ {} }}", limit(1));
    for (http, path, reason) in [
        (no_default, "config_discovery.default_config", "is required"),
        (&other_default, "config_discovery.default_config", "type_urls expects"),
        (", type_urls: []", "config_discovery.type_urls", "must not be empty"),
    ] {
        // A later key replaces an earlier one of the same name only in the text, so the list is taken out first.
        let text = match http {
            ", type_urls: []" => listener("", "").replace(&format!(", type_urls: [{URL}/{BUFFER}]"), ""),
            http => listener(http, ""),
        };
        let error = input::builder().set_listener(&input::listener(&text)).expect_err(reason).to_string();
        assert!(error.contains(path) && error.contains(reason), "{error}");
    }
}
