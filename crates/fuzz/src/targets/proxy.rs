//! Other inputs of the proxy: paths, the PROXY protocol, its bootstrap, and resources from a control plane.

use evenkeel_http::path;
use evenkeel_runtime_config::bootstrap::Bootstrap;
use evenkeel_runtime_config::{Builder, Environment, Source};
use evenkeel_tls::SecretStore;
use evenkeel_upstream::proxy_protocol::{self, Parsed};
use evenkeel_xds::json::read_text;
use evenkeel_xds::pb::envoy::config::bootstrap::v3 as pb;
use evenkeel_xds::{Any, Schema};

use super::Target;

pub const PATH: Target = Target {
    name: "path",
    run: normalize,
    seeds: &[b"/a/./b/../c?x=../y", b"/%2e%2E/%61%2fb\\..\\c", b"//a///b/..%00", b"/..%5c%2F/.%"],
    mutations: 50_000,
};

pub const PROXY_PROTOCOL: Target = Target {
    name: "proxy_protocol",
    run: read_proxy_protocol,
    seeds: &[
        b"PROXY TCP4 192.0.2.1 192.0.2.2 5000 80\r\nGET / HTTP/1.1\r\n",
        b"PROXY TCP6 2001:db8::1 ::1 65535 1\r\n",
        b"PROXY UNKNOWN\r\n",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\xc0\0\x02\x02\x13\x88\0\x50",
        b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x13\xc0\0\x02\x01\xc0\0\x02\x02\x13\x88\0\x50\x02\0\x04host",
        b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
    ],
    mutations: 40_000,
};

pub const BOOTSTRAP: Target = Target {
    name: "bootstrap",
    run: bootstrap,
    seeds: &[
        b"node: { id: a, cluster: b }\nadmin: { address: { socket_address: { address: 127.0.0.1, port_value: 15000 } } }\n",
        b"static_resources:\n  clusters:\n  - name: c\n    connect_timeout: 1s\n    load_assignment: { cluster_name: c, endpoints: [ { lb_endpoints: [ { endpoint: { address: { socket_address: { address: 10.0.0.1, port_value: 80 } } } } ] } ] }\n",
        b"dynamic_resources: { ads_config: { api_type: DELTA_GRPC, transport_api_version: V3, grpc_services: [ { envoy_grpc: { cluster_name: x } } ] }, lds_config: { ads: {} } }\n",
        b"static_resources: { listeners: [ { name: l, address: { socket_address: { address: \"::\", port_value: 1 } }, filter_chains: [ { filters: [ { name: tcp, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: t, cluster: c } } ] } ] } ] }\n",
    ],
    mutations: 500,
};

pub const XDS: Target = Target {
    name: "xds",
    run: xds,
    seeds: &[
        // The first byte chooses the type; name, then more fields of the message.
        b"\x01\x0a\x01c\x22\x02\x08\x01\x10\x00",
        b"\x00\x0a\x01l\x12\x11\x0a\x0f\x12\x09127.0.0.1\x18\x90\x4e",
        b"\x02\x0a\x01r\x12\x14\x0a\x01v\x12\x01*\x1a\x0c\x0a\x03\x0a\x01/\x12\x05\x0a\x03abc",
        b"\x03\x0a\x01c\x12\x15\x12\x13\x0a\x11\x0a\x0f\x12\x0d\x12\x0810.0.0.1\x18\x50",
        b"\x04\x0a\x01s\x12\x06\x0a\x04\x0a\x02\x1a\x00",
    ],
    mutations: 4_000,
};

/// A normalized path stays unchanged when normalized again, and has no dot segments.
fn normalize(data: &[u8]) {
    let Ok(first) = path::normalize(data) else { return };
    let first = first.unwrap_or_else(|| data.to_vec());
    let (only_path, _) = path::split_query(&first);
    assert!(only_path.starts_with(b"/"));
    assert!(only_path.split(|byte| *byte == b'/').all(|segment| segment != b"." && segment != b".."));
    assert!(!only_path.contains(&b'\\'));
    let merged = path::merge_slashes(&first).unwrap_or_else(|| first.clone());
    assert_eq!(path::merge_slashes(&merged), None, "merged once is merged");
    if let Some(open) = path::unescape_slashes(&merged) {
        assert!(!path::has_escaped_slash(&open) || open.contains(&b'%'));
    }
}

/// An accepted header can be written and parsed back unchanged.
fn read_proxy_protocol(data: &[u8]) {
    match proxy_protocol::parse(data) {
        Ok(Parsed::Header(header, length)) => {
            assert!(length <= data.len());
            assert_eq!(proxy_protocol::parse(&data[..length]), Ok(Parsed::Header(header.clone(), length)));
            let Some((source, destination)) = header.addresses else { return };
            let wire = proxy_protocol::encode(header.version, source, destination, &header.tlvs);
            let Ok(Parsed::Header(back, whole)) = proxy_protocol::parse(&wire) else {
                panic!("what is written is valid: {}", wire.escape_ascii());
            };
            assert_eq!((back.version, whole), (header.version, wire.len()));
        }
        Ok(Parsed::Incomplete) => assert!(data.len() < 64 * 1024),
        Ok(Parsed::Absent) | Err(_) => {}
    }
}

/// Reads a bootstrap like `evenkeel proxy -c FILE`: the result is diagnostics or a configuration.
fn bootstrap(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = read_text::<pb::Bootstrap>(&Schema::acquire(), "fuzz", text);
    let (Some(message), false) = (read.message, read.diagnostics.has_errors()) else { return };
    let environment = Environment::process();
    let Ok(bootstrap) = Bootstrap::new(&message, &environment) else { return };
    let mut builder = Builder::new(environment, SecretStore::new());
    for cluster in &bootstrap.clusters {
        let _ = builder.set_static_cluster(cluster);
    }
    for listener in &bootstrap.listeners {
        let _ = builder.set_static_listener(listener);
    }
    builder.build();
}

/// Decodes and compiles one resource of any kind: it is accepted or rejected.
fn xds(data: &[u8]) {
    let Some((&kind, value)) = data.split_first() else { return };
    const TYPES: [&str; 5] = [
        "envoy.config.listener.v3.Listener",
        "envoy.config.cluster.v3.Cluster",
        "envoy.config.route.v3.RouteConfiguration",
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
        "envoy.extensions.transport_sockets.tls.v3.Secret",
    ];
    let which = usize::from(kind) % TYPES.len();
    let any = Any { type_url: format!("type.googleapis.com/{}", TYPES[which]), value: value.to_vec() };
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    let _ = match which {
        0 => builder.set_listener(&any),
        1 => builder.set_cluster(&any),
        2 => builder.set_route(&any),
        3 => builder.set_endpoints(&any),
        _ => builder.set_secret(&any, &Source::Ads),
    };
    builder.interest();
    builder.build();
}
