//! Runtime layers of the bootstrap, and the fields that read their values.

use std::sync::Arc;

use evenkeel_runtime_config::bootstrap::Bootstrap;
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_runtime_config::route::RouteAction;
use evenkeel_runtime_config::runtime::{Runtime, RuntimeValue};
use evenkeel_runtime_config::{Environment, Rejection};
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;

use crate::input;

fn read(layers: &str) -> Result<Bootstrap, Rejection> {
    let text = format!("node: {{ id: n }}\nlayered_runtime: {{ layers: [{layers}] }}");
    let any = input::resource("envoy.config.bootstrap.v3.Bootstrap", &text);
    let message: pb::Bootstrap = evenkeel_xds::unpack(&any).expect("just packed");
    Bootstrap::new(&message, &Environment::process())
}

#[test]
fn static_layers_set_values_and_the_last_one_counts() {
    let values = "{ a: { b: 1 }, flag: true, text_flag: 'False', text: '7', half: 0.5, envoy.reloadable_features.x: false, \
                  share: { numerator: 5, denominator: TEN_THOUSAND }, percent: { numerator: 3 } }";
    let layers = format!(
        "{{ name: s, static_layer: {values} }}, {{ name: t, static_layer: {{ a.b: 2 }} }}, {{ name: a, admin_layer: {{}} }}"
    );
    let bootstrap = read(&layers).unwrap_or_else(|error| panic!("{error}"));
    let of = |numerator, denominator| Some(Fraction { numerator, denominator });
    for (key, flag, number, fraction) in [
        ("a.b", None, Some(2.0), of(2, 100)),
        ("flag", Some(true), None, None),
        ("text_flag", Some(false), None, None),
        ("text", None, Some(7.0), of(7, 100)),
        ("half", None, Some(0.5), None),
        ("share", None, None, of(5, 10_000)),
        ("percent", None, None, of(3, 100)),
        ("envoy.reloadable_features.x", None, None, None),
        ("", None, None, None),
    ] {
        let runtime = &bootstrap.runtime;
        let found = (runtime.flag(key), runtime.number(key), runtime.fraction(key));
        assert_eq!(found, (flag, number, fraction), "{key}");
    }
}

#[test]
fn what_no_layer_can_do_is_a_warning() {
    let check = |layer: &str, expected: &[&str]| {
        let bootstrap = read(layer).unwrap_or_else(|error| panic!("{layer}: {error}"));
        let warnings: Vec<String> = bootstrap.warnings.iter().map(ToString::to_string).collect();
        assert_eq!(warnings, expected, "{layer}");
    };
    check("{ name: a, admin_layer: {} }", &[]);
    check("{ name: s, static_layer: { envoy.reloadable_features.x: true } }", &[]);
    check("{ name: s, static_layer: { overload.global_downstream_max_connections: 5 } }", &[]);
    check(
        "{ name: d, disk_layer: { symlink_root: /srv/runtime, subdirectory: envoy } }",
        &["layered_runtime.layers[0].disk_layer: runtime values are not read from files"],
    );
    check(
        "{ name: r, rtds_layer: { name: r, rtds_config: { ads: {}, resource_api_version: V3 } } }",
        &["layered_runtime.layers[0].rtds_layer: runtime values are not requested from a server"],
    );
    check(
        "{ name: s, static_layer: { a: 1, b: [ 1 ], c: { numerator: -1 }, d: { denominator: DOZEN }, e: some } }",
        &[
            "layered_runtime.layers[0].static_layer[\"a\"]: only fields that have it as their `runtime_key` read it",
            "layered_runtime.layers[0].static_layer[\"b\"]: is neither a number, a flag nor a fraction; it has no effect",
            "layered_runtime.layers[0].static_layer[\"c\"]: is neither a number, a flag nor a fraction; it has no effect",
            "layered_runtime.layers[0].static_layer[\"d\"]: is neither a number, a flag nor a fraction; it has no effect",
            "layered_runtime.layers[0].static_layer[\"e\"]: is neither a number, a flag nor a fraction; it has no effect",
        ],
    );
}

/// The share of requests that a route takes and the share that it mirrors, as parts per million.
fn shares(route: &str, mirror: &str) -> (u32, u32) {
    let mut runtime = Runtime::default();
    runtime.set("tenth", RuntimeValue::Number(10.0));
    runtime.set("few", RuntimeValue::Fraction(Fraction { numerator: 7, denominator: 1_000_000 }));
    runtime.set("flag", RuntimeValue::Flag(true));
    let mut builder = input::builder();
    builder.set_runtime(Arc::new(runtime));
    builder.set_listener(&input::listener(&input::rds_listener("t"))).unwrap_or_else(|error| panic!("{error}"));
    let table = format!(
        "name: t
virtual_hosts:
- name: h
  domains: [\"*\"]
  routes:
  - match: {{ prefix: /, runtime_fraction: {route} }}
    route: {{ cluster: c, request_mirror_policies: [{{ cluster: c, runtime_fraction: {mirror} }}] }}
"
    );
    builder.set_route(&input::route(&table)).unwrap_or_else(|error| panic!("{error}"));
    let config = builder.build();
    let route = &config.routes["t"].virtual_hosts[0].routes[0];
    let RouteAction::Forward(action) = &route.action else { panic!("{route:?}") };
    (route.matches.fraction_ppm, action.mirrors.as_ref().expect("a mirror")[0].fraction_ppm)
}

#[test]
fn fractions_have_the_values_of_their_keys() {
    let default = "default_value: { numerator: 30 }";
    let check = |key: &str, expected: u32| {
        let fraction = format!("{{ {default}, runtime_key: {key} }}");
        assert_eq!(shares(&fraction, &fraction), (expected, expected), "{key}");
    };
    check("tenth", 100_000);
    check("few", 7);
    check("flag", 300_000);
    check("unknown", 300_000);
    // A route needs no default.
    let whole = "{ default_value: { numerator: 100 } }";
    assert_eq!(shares("{ runtime_key: tenth }", whole), (100_000, 1_000_000));
    assert_eq!(shares("{ runtime_key: unknown }", whole), (0, 1_000_000));
}
