//! The end of a request: what filters see of it, and the exemplars that statistics keep of traced ones.

use std::sync::{Arc, Mutex};

use evenkeel_filters::format::Record;
use evenkeel_filters::test_filter::{CustomFilter, State, register};
use evenkeel_testkit::{Backend, Connection, Reply, eventually};
use evenkeel_tls::PeerCertificate;

use crate::harness::{MeshTls, Proxy, http_listener, protocol, static_bootstrap, static_cluster};

const BUFFER: &str = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3";
const ZIPKIN: &str = "type.googleapis.com/envoy.config.trace.v3.ZipkinConfig";

/// Writes down the ends that it sees.
struct Witness(Arc<Mutex<Vec<String>>>);

impl CustomFilter for Witness {
    fn complete(&self, _: &mut State, end: &Record<'_>) {
        let text = |value: Option<&[u8]>| String::from_utf8_lossy(value.unwrap_or(b"-")).into_owned();
        let client = end.connection.session.as_ref().and_then(|session| session.peer.as_ref());
        let server = end.upstream.and_then(|upstream| upstream.session?.peer.as_ref());
        let identity = |peer: &Arc<PeerCertificate>| peer.spiffe_id().map(|id| id.to_string());
        let [client, server] = [client, server].map(|peer| peer.and_then(identity).unwrap_or_else(|| "-".to_owned()));
        let app =
            end.upstream.and_then(|upstream| Some(format!("{:?}", upstream.endpoint.lb_metadata.get("workload")?)));
        let line = format!(
            "{} {} {} from {client} to {server}, host {} {}, cut off: {}",
            text(end.request.lookup(":path")),
            end.status,
            text(end.response.lookup("x-from")),
            end.upstream.is_some(),
            app.unwrap_or_default(),
            end.cut_off,
        );
        self.0.lock().expect("no panic").push(line);
    }
}

fn routes() -> String {
    let all = "{match: {path: /direct}, direct_response: {status: 204}}, {match: {prefix: /}, route: {cluster: a}}";
    format!("route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{all}]}}]}}")
}

fn answers(path: &str) -> Reply {
    match path {
        "/cut" => Reply::Raw(b"HTTP/1.1 200 OK\r\nx-from: app\r\ncontent-length: 9\r\n\r\nhalf".to_vec()),
        _ => Reply::Fixed(200, vec![("x-from".to_owned(), "app".to_owned())], b"yes".to_vec()),
    }
}

#[test]
fn filters_see_peers_heads_and_the_host_of_a_request_that_has_ended() {
    let ends = [Arc::default(), Arc::default()];
    register("witness", Witness(Arc::clone(&ends[0])));
    register("witness-of-cluster", Witness(Arc::clone(&ends[1])));
    let (app, tls) = (Backend::start(|request| answers(&request.target)), MeshTls::new());
    let to_app = [static_cluster("a", app.address(), "")];
    let inner =
        Proxy::start_with(&static_bootstrap(&http_listener("inner", &routes(), &tls.listener("http/1.1")), &to_app), 1);
    let filter =
        |name: &str| format!("{{name: {name}, typed_config: {{\"@type\": {BUFFER}.Buffer, max_request_bytes: 1}}}}");
    let of_cluster = protocol(&format!(
        "explicit_http_config: {{http_protocol_options: {{}}}}, http_filters: [{}, {{name: codec, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.upstream_codec.v3.UpstreamCodec}}}}]",
        filter("witness-of-cluster")
    ));
    let to_inner = static_cluster("a", inner.listener("inner"), &format!("{of_cluster}, {}", tls.cluster("http/1.1")))
        .replacen("{endpoint: {", "{metadata: {filter_metadata: {envoy.lb: {workload: shop}}}, endpoint: {", 1);
    let listener = http_listener("outer", &routes(), &tls.listener("http/1.1")).replacen(
        "http_filters:\n",
        &format!("http_filters:\n      - {}\n", filter("witness")),
        1,
    );
    let outer = Proxy::start_with(&static_bootstrap(&listener, &[to_inner]), 1);
    let address = outer.listener("outer");
    for path in ["/plain", "/direct", "/cut"] {
        let mut connection = tls.open(address).expect("a connection");
        let answered = connection.get("test", path, "");
        assert_eq!(answered.is_ok(), path != "/cut", "{path}: {answered:?}");
    }
    let wait = |ends: &Arc<Mutex<Vec<String>>>, count: usize| {
        eventually("the ends", || {
            let seen = ends.lock().expect("no panic").clone();
            (seen.len() >= count).then_some(seen)
        })
    };
    let (client, server) = (MeshTls::CLIENT, MeshTls::SERVER);
    let forwarded = |path: &str, cut: bool| {
        format!("{path} 200 app from {client} to {server}, host true Text(\"shop\"), cut off: {cut}")
    };
    let direct = format!("/direct 204 - from {client} to -, host false , cut off: false");
    assert_eq!(wait(&ends[0], 3), [forwarded("/plain", false), direct, forwarded("/cut", true)]);
    // The try's filters are told when it is over; whether the client got everything is not theirs to know.
    assert_eq!(wait(&ends[1], 2), [forwarded("/plain", false), forwarded("/cut", false)]);
}

/// The durations of traced requests lead to their traces.
#[test]
fn durations_of_traced_requests_have_exemplars() {
    let (app, collector) = (Backend::start(|request| answers(&request.target)), Backend::start(|_| Reply::text("")));
    let clusters = [static_cluster("a", app.address(), ""), static_cluster("collector", collector.address(), "")];
    let tracing = format!(
        "tracing: {{random_sampling: {{value: 0}}, provider: {{name: z, typed_config: {{\"@type\": {ZIPKIN}, collector_cluster: \
         collector, collector_endpoint: /spans, collector_endpoint_version: HTTP_JSON}}}}}}\n      {}",
        routes()
    );
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("traced", &tracing, ""), &clusters), 1);
    let ask = |trace: char, sampled: char| {
        let mut connection = Connection::open(proxy.listener("traced")).expect("a connection");
        let trace: String = std::iter::repeat_n(trace, 32).collect();
        let headers = format!("x-b3-traceid: {trace}\r\nx-b3-spanid: 00000000000000ab\r\nx-b3-sampled: {sampled}\r\n");
        assert_eq!(connection.get("test", "/plain", &headers).expect("an answer").status, 200);
    };
    ask('b', '0');
    ask('a', '1');
    ask('c', '0');
    let metrics = || {
        let mut connection = Connection::open(proxy.admin).expect("the admin port accepts");
        let accept = "accept: application/openmetrics-text\r\n";
        connection.get("admin", "/stats/prometheus", accept).expect("an answer").text()
    };
    let text = eventually("three requests", || {
        let text = metrics();
        text.contains("envoy_http_downstream_rq_time_count{envoy_http_conn_manager_prefix=\"traced\"} 3")
            .then_some(text)
    });
    for family in ["envoy_http_downstream_rq_time_bucket", "envoy_cluster_upstream_rq_time_bucket"] {
        let exemplars: Vec<&str> =
            text.lines().filter(|line| line.starts_with(family) && line.contains(" # ")).collect();
        assert!(!exemplars.is_empty(), "{family}: {text}");
        assert!(
            exemplars.iter().all(|line| line.contains(&format!("trace_id=\"{}\"", "a".repeat(32)))),
            "{exemplars:?}"
        );
    }
}
