//! Runtime keys of ProxyConfig: the findings describe what the agent and the proxy do with them.

use clap::Parser;
use evenkeel_base::runtime_key::RuntimeKey;
use evenkeel_proxy::options::{BootstrapSource, NodeOverrides};

#[derive(Parser)]
struct Agent {
    #[command(flatten)]
    options: evenkeel_agent::Options,
}

/// The proxy with this runtime key, and whether its agent passes it on.
fn passed(key: &str) -> bool {
    let config = serde_json::json!({ "runtimeValues": { key: "5" } }).to_string();
    let words = ["agent", "sidecar", "--id", "web-0.shop", "--namespace", "shop", "--ip", "10.244.0.5"];
    let more = ["--token", "/t", "--root-cert", "/r", "--state", "/s", "--proxy-config", &config];
    let options = Agent::parse_from(words.into_iter().chain(more)).options;
    let bootstrap = evenkeel_agent::bootstrap::bootstrap(&options, 0).expect("a bootstrap");
    let text = Some(bootstrap.to_string());
    evenkeel_proxy::bootstrap::load(&BootstrapSource { path: None, text }, &NodeOverrides::default())
        .unwrap_or_else(|error| panic!("{key}: {error}"));
    !bootstrap["layered_runtime"].is_null()
}

#[test]
fn the_proxy_takes_the_runtime_keys_that_have_an_effect_by_the_findings() {
    let keys = [
        ("overload.global_downstream_max_connections", true),
        ("overload.premature_reset_total_stream_count", true),
        ("overload.premature_reset_min_stream_lifetime_seconds", true),
        ("envoy.resource_limits.listener.virtualInbound.connection_limit", true),
        ("evenkeel.resource_limits.listener.virtualInbound.request_limit", true),
        ("evenkeel.resource_limits.listener.virtualInbound.memory_limit", true),
        ("envoy.resource_limits.listener.virtualInbound.request_limit", false),
        ("envoy.resource_limits.listener.connection_limit", false),
        ("envoy.reloadable_features.no_extension_lookup_by_name", false),
        ("re2.max_program_size.error_level", false),
    ];
    for (key, expected) in keys {
        assert_eq!((RuntimeKey::parse(key).is_some(), passed(key)), (expected, expected), "{key}");
    }
}
