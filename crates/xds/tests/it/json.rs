//! Reading and writing the JSON form; naming fields.

use evenkeel_base::yaml;
use evenkeel_xds::json::{any_to_json, read_message, read_text, to_json};
use evenkeel_xds::pb::envoy::config::bootstrap::v3::Bootstrap;
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::{Any, Schema, check_supported};

fn read(text: &str) -> (Option<Bootstrap>, Vec<String>) {
    let read = read_text::<Bootstrap>(&Schema::acquire(), "b.yaml", text);
    (read.message, read.diagnostics.iter().map(ToString::to_string).collect())
}

#[test]
fn mistakes_are_named_with_their_place() {
    for (text, expected) in [
        ("node: {idd: x}", "error[xds.unknown-field]: node.idd: envoy.config.core.v3.Node has no field \"idd\""),
        (
            "admin:\n  address:\n    socket_address: {address: 127.0.0.1, port_value: many}",
            "b.yaml:3:54: error[xds.type]: admin.address.socket_address.port_value: expected a 32-bit unsigned integer, found \"many\"",
        ),
        (
            "static_resources:\n  clusters: 5",
            "b.yaml:2:13: error[xds.type]: static_resources.clusters: expected a mapping (Cluster), found a whole number",
        ),
        (
            "static_resources: {clusters: [{name: a, connect_timeout: soon}]}",
            "expected a duration such as 0.25s or 5s, found \"soon\"",
        ),
        (
            "static_resources: {clusters: [{lb_policy: ROUND_ROBBIN}]}",
            "static_resources.clusters[0].lb_policy: expected one of ROUND_ROBIN, LEAST_REQUEST",
        ),
        (
            "static_resources: {clusters: [{transport_socket: {typed_config: {\"@type\": type.googleapis.com/a.B}}}]}",
            "static_resources.clusters[0].transport_socket.typed_config.@type: a.B is not supported",
        ),
        ("", "b.yaml: error[xds.empty]: expected a Bootstrap, the file is empty"),
    ] {
        let (_, diagnostics) = read(text);
        assert_eq!(diagnostics.len(), 1, "{text}: {diagnostics:#?}");
        assert!(diagnostics[0].contains(expected), "{text}\n got {}\nwant {expected}", diagnostics[0]);
    }
}

#[test]
fn both_spellings_of_names_and_both_formats_are_read() {
    let yaml = "node: {id: n, userAgentName: u}\nstatic_resources:\n  clusters:\n  - {name: c, connect_timeout: 0.25s, type: STATIC}";
    let json = r#"{"node": {"id": "n", "user_agent_name": "u"}, "staticResources": {"clusters": [{"name": "c", "connectTimeout": "0.250s", "type": 0}]}}"#;
    let (from_yaml, diagnostics) = read(yaml);
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    let (from_json, diagnostics) = read(json);
    assert!(diagnostics.is_empty(), "{diagnostics:?}");
    assert_eq!(from_yaml.as_ref().unwrap().node.as_ref().unwrap().id, "n");
    assert_eq!(from_yaml.unwrap().static_resources, from_json.unwrap().static_resources);
}

#[test]
fn a_listener_survives_text_bytes_text() {
    let text = include_str!("listener.json");
    let schema = Schema::acquire();
    let (nodes, diagnostics) = yaml::parse(&"listener.json".into(), text);
    assert!(diagnostics.is_empty(), "{diagnostics}");
    let descriptor = schema.message("google.protobuf.Any").unwrap();
    let (message, diagnostics) = read_message(&schema, &descriptor, &nodes[0]);
    assert!(diagnostics.is_empty(), "{diagnostics}");
    let any: prost_types::Any = message.unwrap().transcode_to().unwrap();
    let any = Any { type_url: any.type_url, value: any.value };
    let expected: serde_json::Value = serde_json::from_str(text).unwrap();
    assert_eq!(any_to_json(&schema, &any), expected);
}

#[test]
fn unknown_types_stay_opaque() {
    let any = Any { type_url: "type.googleapis.com/example.Unknown".into(), value: vec![1, 2, 3] };
    let json = any_to_json(&Schema::acquire(), &any);
    assert_eq!(json.to_string(), r#"{"@type":"type.googleapis.com/example.Unknown","value":"AQID"}"#);
    let cluster = Cluster { name: "c".into(), ..Default::default() };
    assert_eq!(to_json(&Schema::acquire(), &cluster).to_string(), r#"{"name":"c"}"#);
}

#[test]
fn unsupported_fields_are_found_inside_extensions() {
    let schema = Schema::acquire();
    let (nodes, _) = yaml::parse(&"listener.json".into(), include_str!("listener.json"));
    let (message, _) = read_message(&schema, &schema.message("google.protobuf.Any").unwrap(), &nodes[0]);
    let any: prost_types::Any = message.unwrap().transcode_to().unwrap();
    let mut any = Any { type_url: any.type_url, value: any.value };
    // Field 9999, a varint, which no schema has.
    any.value.extend([0xf8, 0xf0, 0x04, 0x01]);
    let unsupported = check_supported(&schema, &any, &|message, field| {
        !matches!((message.rsplit('.').next(), field), (Some("RouteAction"), "timeout") | (Some("Router"), ""))
    });
    let paths: Vec<String> = unsupported.iter().map(ToString::to_string).collect();
    assert_eq!(
        paths,
        [
            "filter_chains[0].filters[0].typed_config.route_config.virtual_hosts[0].routes[0].route.timeout: not supported",
            "filter_chains[0].filters[0].typed_config.http_filters[0].typed_config: \
             envoy.extensions.filters.http.router.v3.Router is not supported",
            "#9999: not supported",
        ]
    );
}

#[test]
fn garbage_is_opaque_not_fatal() {
    let schema = Schema::acquire();
    for length in 0..200u32 {
        let value: Vec<u8> = (0..length).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let any = Any { type_url: evenkeel_xds::type_url::LISTENER.into(), value };
        any_to_json(&schema, &any);
        check_supported(&schema, &any, &|_, _| true);
    }
}
