//! Access logs as log records of OpenTelemetry, configured as istiod does it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use evenkeel_testkit::{Backend, Connection, Reply, eventually};
use evenkeel_xds::pb::opentelemetry::proto::common::v1::any_value::Value;
use evenkeel_xds::pb::opentelemetry::proto::common::v1::{AnyValue, KeyValue};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{HeaderMap, Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::harness::{Proxy, http_listener, protocol, static_bootstrap, static_cluster};

#[derive(Clone, PartialEq, Message)]
struct ExportRequest {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeLogs {
    #[prost(message, repeated, tag = "2")]
    records: Vec<LogRecord>,
}

#[derive(Clone, PartialEq, Message)]
struct LogRecord {
    #[prost(fixed64, tag = "1")]
    time_unix_nano: u64,
    #[prost(message, optional, tag = "5")]
    body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    attributes: Vec<KeyValue>,
}

type Calls = Arc<Mutex<Vec<(String, ExportRequest)>>>;

/// A collector that takes everything.
fn collector(runtime: &Runtime) -> (SocketAddr, Calls) {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
    let (address, calls) = (listener.local_addr().expect("bound"), Calls::default());
    let all = Arc::clone(&calls);
    runtime.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let calls = Arc::clone(&all);
            let service = service_fn(move |request: Request<Incoming>| take(request, Arc::clone(&calls)));
            tokio::spawn(
                hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service),
            );
        }
    });
    (address, calls)
}

async fn take(
    request: Request<Incoming>,
    calls: Calls,
) -> Result<Response<StreamBody<impl futures_util::Stream<Item = Result<Frame<Bytes>, Infallible>>>>, Infallible> {
    let path = request.uri().path().to_owned();
    let body = request.into_body().collect().await.expect("a complete request").to_bytes();
    let message = ExportRequest::decode(body.get(5..).expect("a frame")).expect("a request");
    calls.lock().unwrap_or_else(PoisonError::into_inner).push((path, message));
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().expect("a value"));
    let frames = [Ok(Frame::data(Bytes::from_static(&[0; 5]))), Ok(Frame::trailers(trailers))];
    let response = Response::builder().header("content-type", "application/grpc");
    Ok(response.body(StreamBody::new(futures_util::stream::iter(frames))).expect("a response"))
}

/// `KEY=VALUE`, in order.
fn pairs(attributes: &[KeyValue]) -> String {
    let one = |pair: &KeyValue| format!("{}={}", pair.key, pair.value.as_ref().map(text).unwrap_or_default());
    attributes.iter().map(one).collect::<Vec<_>>().join(" ")
}

fn text(value: &AnyValue) -> String {
    match &value.value {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::KvlistValue(list)) => format!("{{{}}}", pairs(&list.values)),
        other => format!("{other:?}"),
    }
}

#[test]
fn requests_are_exported_in_batches() {
    let runtime = Runtime::new().expect("threads");
    let (address, calls) = collector(&runtime);
    let backend = Backend::start(|_| Reply::text("hello"));
    let common = "log_name: otel_envoy_accesslog, transport_api_version: V3, filter_state_objects_to_log: [downstream_peer], \
                  buffer_flush_interval: 0.2s, grpc_service: {envoy_grpc: {cluster_name: otel, authority: otel.test}}";
    let log = format!(
        "access_log: [{{name: otel, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.access_loggers.open_telemetry.v3.OpenTelemetryAccessLogConfig, common_config: {{{common}}}, \
         resource_attributes: {{values: [{{key: k, value: {{string_value: v}}}}]}}, \
         body: {{string_value: \"%REQ(:METHOD)% %REQ(:PATH)% %RESPONSE_CODE%\"}}, attributes: {{values: [{{key: a, value: {{kvlist_value: \
         {{values: [{{key: bytes, value: {{string_value: \"%BYTES_SENT%\"}}}}]}}}}}}]}}}}}}]"
    );
    let routes = "route_config: {name: r, virtual_hosts: [{name: v, domains: [\"*\"], routes: [{match: {prefix: /}, route: {cluster: \
                  backend}}]}]}";
    let listener = http_listener("l", &format!("{routes}\n      {log}"), "");
    let http2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
    let clusters = [static_cluster("backend", backend.address(), ""), static_cluster("otel", address, &http2)];
    let node = "node: {id: me, cluster: c, locality: {zone: z}}\n";
    let proxy = Proxy::start_with(&(node.to_owned() + &static_bootstrap(&listener, &clusters)), 1);
    proxy.wait_live();
    let mut client = Connection::open(proxy.listener("l")).expect("it accepts");
    for path in ["/a", "/b"] {
        client.get("web", path, "").expect("an answer");
    }
    let all = eventually("both requests to be exported", || {
        let calls = calls.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let records = |(_, request): &(String, ExportRequest)| request.resources[0].scopes[0].records.len();
        (calls.iter().map(records).sum::<usize>() == 2).then_some(calls)
    });
    let mut bodies = Vec::new();
    for (path, request) in &all {
        assert_eq!(path, "/opentelemetry.proto.collector.logs.v1.LogsService/Export");
        let [of_resource] = &request.resources[..] else { panic!("{request:?}") };
        let resource = of_resource.resource.as_ref().expect("a resource");
        assert_eq!(
            pairs(&resource.attributes),
            "log_name=otel_envoy_accesslog zone_name=z cluster_name=c node_name=me k=v"
        );
        for record in &of_resource.scopes[0].records {
            assert_eq!(pairs(&record.attributes), "a={bytes=5}");
            assert!(record.time_unix_nano > 1_700_000_000_000_000_000, "{record:?}");
            bodies.extend(record.body.as_ref().map(text));
        }
    }
    assert_eq!(bodies, ["GET /a 200", "GET /b 200"]);
}
