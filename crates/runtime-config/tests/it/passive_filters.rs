//! Filters that istiod puts before the TCP proxy of ports named `mongo` and `mysql`.

use crate::input;

const NETWORK: &str = "type.googleapis.com/envoy.extensions.filters.network";

/// A listener with these filters before its TCP proxy; empty: accepted.
fn rejection(filters: &str) -> String {
    let text = format!(
        "name: l
address: {{ socket_address: {{ address: 127.0.0.1, port_value: 80 }} }}
filter_chains:
- filters:
  {filters}
  - {{ name: t, typed_config: {{ \"@type\": {NETWORK}.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c }} }}
"
    );
    let set = input::builder().set_listener(&input::listener(&text));
    set.err().map(|rejection| rejection.to_string()).unwrap_or_default()
}

#[test]
fn connections_pass_unless_a_setting_would_change_them() {
    let check = |message: &str, expected: &str| {
        let found = rejection(&format!("- {{ name: f, typed_config: {{ \"@type\": {NETWORK}.{message} }} }}"));
        assert_eq!(found.is_empty(), expected.is_empty(), "{message}: {found}");
        assert!(found.contains(expected), "{message}: {found}");
    };
    check("mongo_proxy.v3.MongoProxy, stat_prefix: a", "");
    check("mysql_proxy.v3.MySQLProxy, stat_prefix: a", "");
    check("mongo_proxy.v3.MongoProxy", "stat_prefix");
    check("mongo_proxy.v3.MongoProxy, stat_prefix: a, delay: {}", "delay: not supported");
    check(
        "mongo_proxy.v3.MongoProxy, stat_prefix: a, emit_dynamic_metadata: true",
        "emit_dynamic_metadata: not supported",
    );
    check("mysql_proxy.v3.MySQLProxy, stat_prefix: a, downstream_ssl: REQUIRE", "downstream_ssl: not supported");
    // A DENY by what the filter would find out must not let everything pass.
    let metadata =
        "metadata: { filter: envoy.filters.network.mysql_proxy, path: [ { key: k } ], value: { present_match: true } }";
    let rules = format!(
        "rbac.v3.RBAC, stat_prefix: r, rules: {{ action: DENY, policies: {{ p: {{ permissions: [ {{ {metadata} }} ], principals: [ {{ any: true }} ] }} }} }}"
    );
    check(&rules, "nothing here sets what `envoy.filters.network.mysql_proxy` finds out");
}
