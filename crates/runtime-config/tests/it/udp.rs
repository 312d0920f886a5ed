//! UDP listeners: defaults, the compiled form of each field, and what is rejected.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::udp_proxy::{UdpHash, UdpProxy};

use crate::input;

const UDP: &str = "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.UdpProxyConfig";
const ROUTE: &str = "type.googleapis.com/envoy.extensions.filters.udp.udp_proxy.v3.Route";

/// A listener with more fields, and a UDP proxy with these.
fn text(more: &str, proxy: &str) -> String {
    format!(
        "name: l\naddress: {{ socket_address: {{ protocol: UDP, address: 127.0.0.1, port_value: 53 }} }}\n\
         listener_filters: [{{ name: u, typed_config: {{ \"@type\": {UDP}, {proxy} }} }}]\n{more}\n"
    )
}

fn proxy(more: &str, proxy: &str) -> Arc<UdpProxy> {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&text(more, proxy))).unwrap_or_else(|error| panic!("{error}"));
    let listener = builder.build().listeners["l"].clone();
    assert_eq!(listener.address, ListenAddress::Datagram("127.0.0.1:53".parse().unwrap()));
    Arc::clone(listener.udp.as_ref().expect("a UDP proxy"))
}

#[test]
fn defaults_are_envoys() {
    let proxy = proxy("", "stat_prefix: s, cluster: c");
    assert_eq!((&*proxy.stat_prefix, proxy.cluster.as_deref()), ("s", Some("c")));
    assert_eq!(proxy.idle_timeout, Duration::from_secs(60));
    assert_eq!((proxy.max_downstream_datagram_bytes, proxy.max_upstream_datagram_bytes), (1500, 1500));
    assert!(proxy.hash.is_none() && !proxy.per_packet && proxy.access_logs.is_empty());
}

#[test]
fn fields_are_compiled() {
    let sizes = "udp_listener_config: { downstream_socket_config: { max_rx_datagram_size: 65535 } }";
    let all = "stat_prefix: s, cluster: c, idle_timeout: 5s, hash_policies: [{ source_ip: true }], \
               use_per_packet_load_balancing: true, upstream_socket_config: { max_rx_datagram_size: 9000, prefer_gro: true }";
    let compiled = proxy(sizes, all);
    assert_eq!(compiled.idle_timeout, Duration::from_secs(5));
    assert_eq!((compiled.max_downstream_datagram_bytes, compiled.max_upstream_datagram_bytes), (65_535, 9000));
    assert_eq!((compiled.hash, compiled.per_packet), (Some(UdpHash::SourceIp), true));
    let key = |key: &str| proxy("", &format!("stat_prefix: s, cluster: c, hash_policies: [{{ key: {key} }}]")).hash;
    assert_eq!(key("a"), key("a"));
    assert_ne!(key("a"), key("b"));
    let action = format!("{{ name: r, typed_config: {{ \"@type\": {ROUTE}, cluster: d }} }}");
    let matcher = format!("stat_prefix: s, matcher: {{ on_no_match: {{ action: {action} }} }}");
    assert_eq!(proxy("", &matcher).cluster.as_deref(), Some("d"));
    assert_eq!(proxy("", "stat_prefix: s, matcher: {}").cluster, None);
}

#[test]
fn what_cannot_be_honoured_is_rejected_by_its_path() {
    let filter = "listener_filters[0].typed_config";
    let check = |text: &str, expected: &str| {
        let error = input::builder().set_listener(&input::listener(text)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    for (proxy, expected) in [
        ("cluster: c", "stat_prefix"),
        ("stat_prefix: s", "one of cluster, matcher is required"),
        ("stat_prefix: s, cluster: c, use_original_src_ip: true", "use_original_src_ip: is not supported"),
        ("stat_prefix: s, cluster: c, idle_timeout: 0s", "idle_timeout: must be above 0"),
        ("stat_prefix: s, cluster: c, session_filters: [{ name: f }]", "session_filters: not supported"),
        ("stat_prefix: s, cluster: c, tunneling_config: {}", "tunneling_config: not supported"),
        ("stat_prefix: s, cluster: c, hash_policies: [{}]", "hash_policies[0]: one of source_ip, key is required"),
        (
            "stat_prefix: s, cluster: c, upstream_socket_config: { max_rx_datagram_size: 65536 }",
            "upstream_socket_config.max_rx_datagram_size: must be between 1 and 65535",
        ),
        ("stat_prefix: s, matcher: { matcher_list: { matchers: [] } }", "matcher: only on_no_match is supported"),
    ] {
        check(&text("", proxy), expected);
        check(&text("", proxy), filter);
    }
    let proxy = "stat_prefix: s, cluster: c";
    check(&text("bind_to_port: false", proxy), "bind_to_port: no datagram is redirected");
    check(&text("udp_listener_config: { quic_options: {} }", proxy), "udp_listener_config.quic_options: not supported");
    let none =
        text("", proxy).lines().filter(|line| !line.starts_with("listener_filters")).collect::<Vec<_>>().join("\n");
    check(&none, "listener_filters: a UDP listener has exactly one");
    check(&text("", proxy).replace("protocol: UDP, ", ""), "UdpProxyConfig is no listener filter");
}

#[test]
fn a_port_of_tcp_and_one_of_udp_are_different_addresses() {
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&text("", "stat_prefix: s, cluster: c"))).unwrap();
    let tcp = "name: t\naddress: { socket_address: { address: 127.0.0.1, port_value: 53 } }\nfilter_chains: [{ filters: \
               [{ name: t, typed_config: { \"@type\": \
               type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: s, cluster: c } }] }]";
    builder.set_listener(&input::listener(tcp)).unwrap();
    let other = text("", "stat_prefix: s, cluster: c").replace("name: l", "name: m");
    let error = builder.set_listener(&input::listener(&other)).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1:53 is a duplicate address: listener \"l\" has it"), "{error}");
}
