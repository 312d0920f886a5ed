//! HTTP/2 on either side: when it is used, and the compiled form of each option.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::cluster::UpstreamProtocol;
use evenkeel_runtime_config::hcm::Codec;
use evenkeel_runtime_config::http2::{Http2Keepalive, Http2Options};
use evenkeel_runtime_config::listener::Terminal;
use evenkeel_runtime_config::{Cluster, HttpConnectionManager, Rejection};

use crate::input;

const HCM: &str =
    "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const ROUTER: &str = "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router";
const OPTIONS: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";

fn hcm(rest: &str) -> Result<Arc<HttpConnectionManager>, Rejection> {
    let text = format!(
        "name: l
address: {{ socket_address: {{ address: \"::1\", port_value: 80 }} }}
filter_chains:
- filters:
  - name: hcm
    typed_config:
      \"@type\": {HCM}
      stat_prefix: s
      route_config: {{}}
      http_filters: [{{ name: r, typed_config: {{ \"@type\": {ROUTER} }} }}]
      {rest}"
    );
    let mut builder = input::builder();
    builder.set_listener(&input::listener(&text))?;
    match &builder.build().listeners["l"].filter_chains[0].terminal {
        Terminal::Http(manager) => Ok(Arc::clone(manager)),
        Terminal::Tcp(_) => panic!("a connection manager was configured"),
    }
}

fn cluster(options: &str, rest: &str) -> Result<Arc<Cluster>, Rejection> {
    let text = format!(
        "name: c
typed_extension_protocol_options:
  {OPTIONS}: {{ \"@type\": type.googleapis.com/{OPTIONS}, {options} }}
load_assignment: {{ cluster_name: c }}
{rest}"
    );
    let mut builder = input::builder();
    builder.set_cluster(&input::cluster(&text))?;
    Ok(builder.build().clusters["c"].clone())
}

#[test]
fn what_clients_may_speak() {
    for (text, expected) in
        [("codec_type: AUTO", Codec::Auto), ("codec_type: HTTP1", Codec::Http1), ("codec_type: HTTP2", Codec::Http2)]
    {
        assert_eq!(hcm(text).unwrap().codec, expected, "{text}");
    }
    let plain = hcm("").unwrap();
    assert_eq!((plain.codec, plain.drain_timeout), (Codec::Auto, Duration::from_secs(5)));
    assert_eq!(plain.http2, Http2Options::default());
    let tuned = hcm("drain_timeout: 2s\n      stream_error_on_invalid_http_message: true").unwrap();
    assert_eq!(tuned.drain_timeout, Duration::from_secs(2));
    assert!(tuned.http2.stream_error_on_invalid_message);
}

#[test]
fn each_option_lands_in_its_field() {
    let all = "http2_protocol_options:
        hpack_table_size: 1
        max_concurrent_streams: 2
        initial_stream_window_size: 65536
        initial_connection_window_size: 65537
        allow_connect: true
        max_outbound_frames: 3
        max_outbound_control_frames: 4
        max_consecutive_inbound_frames_with_empty_payload: 5
        max_inbound_priority_frames_per_stream: 6
        max_inbound_window_update_frames_per_data_frame_sent: 7
        override_stream_error_on_invalid_http_message: true
        connection_keepalive: { interval: 30s, timeout: 5s, interval_jitter: { value: 1.5 }, connection_idle_interval: 9s }";
    let keepalive = Http2Keepalive {
        interval: Some(Duration::from_secs(30)),
        timeout: Duration::from_secs(5),
        jitter_permille: 15,
        idle_interval: Some(Duration::from_secs(9)),
    };
    assert_eq!(
        hcm(all).unwrap().http2,
        Http2Options {
            max_concurrent_streams: 2,
            stream_window: 65_536,
            connection_window: 65_537,
            hpack_table_bytes: 1,
            allow_connect: true,
            max_outbound_frames: 3,
            max_outbound_control_frames: 4,
            max_consecutive_empty_frames: 5,
            max_priority_frames_per_stream: 6,
            max_window_updates_per_data_frame: 7,
            stream_error_on_invalid_message: true,
            keepalive: Some(keepalive),
        }
    );
}

#[test]
fn what_endpoints_are_spoken_to_in() {
    let two = || Box::new(Http2Options { max_concurrent_streams: 2, ..Http2Options::default() });
    let http2 = "http2_protocol_options: { max_concurrent_streams: 2 }";
    let tls = "transport_socket: { name: t, typed_config: { \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext } }";
    for (options, rest, expected) in [
        ("explicit_http_config: { http_protocol_options: {} }".to_owned(), "", UpstreamProtocol::Http1),
        (format!("explicit_http_config: {{ {http2} }}"), "", UpstreamProtocol::Http2(two())),
        (format!("use_downstream_protocol_config: {{ {http2} }}"), "", UpstreamProtocol::Downstream(two())),
        ("use_downstream_protocol_config: {}".to_owned(), "", UpstreamProtocol::Downstream(Box::default())),
        (format!("auto_config: {{ http_protocol_options: {{}}, {http2} }}"), tls, UpstreamProtocol::Auto(two())),
    ] {
        assert_eq!(cluster(&options, rest).unwrap().http.protocol, expected, "{options}");
    }
}

#[test]
fn how_much_endpoints_may_say() {
    let limits = |common: &str| {
        let options =
            format!("explicit_http_config: {{ http_protocol_options: {{}} }}, common_http_protocol_options: {common}");
        cluster(&options, "").map(|cluster| (cluster.http.max_response_headers_bytes, cluster.http.max_headers_count))
    };
    assert_eq!(limits("{}").unwrap(), (None, 100));
    assert_eq!(limits("{ max_response_headers_kb: 1, max_headers_count: 300 }").unwrap(), (Some(1024), 300));
    assert_eq!(limits("{ max_response_headers_kb: 8192 }").unwrap(), (Some(8192 * 1024), 100));
    for (refused, expected) in [
        ("{ max_response_headers_kb: 0 }", "max_response_headers_kb: must be from 1 to 8192"),
        ("{ max_response_headers_kb: 8193 }", "max_response_headers_kb: must be from 1 to 8192"),
        ("{ max_headers_count: 0 }", "max_headers_count: must be at least 1"),
    ] {
        let text = limits(refused).expect_err(refused).to_string();
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let check = |result: Result<(), Rejection>, expected: &str| {
        let text = result.expect_err(expected).to_string();
        assert!(text.contains(expected), "{text}");
    };
    let of_hcm = |text: &str, expected: &str| check(hcm(text).map(drop), expected);
    of_hcm("codec_type: HTTP3", "codec_type: only AUTO, HTTP1 and HTTP2 are supported");
    let range = "http2_protocol_options.initial_stream_window_size: must lie between 65535 and 2147483647";
    of_hcm("http2_protocol_options: { initial_stream_window_size: 65534 }", range);
    of_hcm("http2_protocol_options: { max_concurrent_streams: 0 }", "max_concurrent_streams: must lie between 1");
    of_hcm(
        "http2_protocol_options: { connection_keepalive: { interval: 1s } }",
        "connection_keepalive.timeout: is required",
    );
    of_hcm("http2_protocol_options: { allow_metadata: true }", "allow_metadata: not supported");
    let of_cluster = |options: &str, expected: &str| check(cluster(options, "").map(drop), expected);
    of_cluster("auto_config: {}", "transport_socket: auto_config needs TLS");
    of_cluster(
        "common_http_protocol_options: {}",
        "one of explicit_http_config, use_downstream_protocol_config, auto_config",
    );
    of_cluster("auto_config: { http3_protocol_options: {} }", "auto_config.http3_protocol_options: not supported");
}
