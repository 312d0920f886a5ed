//! A rate limit service: Evenkeel and Envoy ask it the same about the same requests, and do the same with its answers.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use evenkeel_testkit::{Backend, Connection, Reply, free_port, free_ports};
use evenkeel_xds::pb::envoy::config::core::v3::HeaderValue;
use evenkeel_xds::pb::envoy::service::ratelimit::v3 as service;
use evenkeel_xds::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use evenkeel_xds::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit};
use evenkeel_xds::pb::envoy::service::ratelimit::v3::rate_limit_service_server::{
    RateLimitService, RateLimitServiceServer,
};
use evenkeel_xds::pb::google::protobuf::Duration;
use evenkeel_xds::server::grpc::Services;
use tokio::runtime::Runtime;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

use super::proxy::Program;
use super::web::{self, HTTP2, ROUTER, endpoint};

const FILTER: &str = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimit";
const PER_ROUTE: &str = "type.googleapis.com/envoy.extensions.filters.http.ratelimit.v3.RateLimitPerRoute";

/// Decides by the value of the first entry, and remembers what it was asked.
#[derive(Default, Clone)]
struct Limits(Arc<Mutex<Vec<String>>>);

#[tonic::async_trait]
impl RateLimitService for Limits {
    async fn should_rate_limit(
        &self,
        request: Request<service::RateLimitRequest>,
    ) -> Result<Response<service::RateLimitResponse>, Status> {
        let team = request.metadata().get("x-team").map(|team| format!("{team:?} "));
        let question = request.into_inner();
        let text = |descriptor: &evenkeel_xds::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor| {
            let entries: Vec<_> =
                descriptor.entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
            entries.join(",")
        };
        let descriptors: Vec<_> = question.descriptors.iter().map(text).collect();
        let line = format!("{}{} {descriptors:?} {}", team.unwrap_or_default(), question.domain, question.hits_addend);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        let value = question.descriptors[0].entries[0].value.clone();
        let header = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: Vec::new(),
        };
        let limit = |name: &str, most: u32, unit: Unit, left: u32| DescriptorStatus {
            code: Code::Ok.into(),
            current_limit: Some(RateLimit { name: name.to_owned(), requests_per_unit: most, unit: unit.into() }),
            limit_remaining: left,
            duration_until_reset: Some(Duration { seconds: 7, nanos: 0 }),
            quota: None,
        };
        let mut answer = service::RateLimitResponse {
            overall_code: if value.starts_with("over") { Code::OverLimit } else { Code::Ok }.into(),
            response_headers_to_add: vec![header("x-for-client", &value)],
            request_headers_to_add: vec![header("x-for-server", &value)],
            statuses: vec![limit("", 10, Unit::Minute, 5), limit("slow", 3, Unit::Hour, 2)],
            ..service::RateLimitResponse::default()
        };
        match value.as_str() {
            "fails" => return Err(Status::internal("it has no idea")),
            "over-body" => {
                answer.raw_body = b"{\"too\": \"much\"}".to_vec();
                answer.response_headers_to_add.push(header("content-type", "application/json"));
            }
            _ => {}
        }
        Ok(Response::new(answer))
    }
}

impl Limits {
    fn start(&self, port: u16) -> Runtime {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a thread");
        let bind = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        let listener = runtime.block_on(bind).expect("the port is free");
        let services = Services::default().with(RateLimitServiceServer::new(self.clone()));
        runtime.spawn(Server::builder().serve_with_incoming(services, TcpListenerStream::new(listener)));
        runtime
    }
}

/// Paths, headers.
const REQUESTS: &[(&str, &str)] = &[
    ("/", "x-user: fine\r\n"),
    ("/", ""),
    ("/", "x-user: over\r\n"),
    ("/", "x-user: over-body\r\n"),
    ("/", "x-user: over\r\ncontent-type: application/grpc\r\nte: trailers\r\n"),
    ("/", "x-user: fails\r\n"),
    ("/host", ""),
    ("/both", "x-user: fine\r\n"),
    ("/ignored", "x-user: fine\r\n"),
    ("/own", "x-user: fine\r\n"),
    ("/stage", "x-user: fine\r\n"),
    ("/direct", "x-user: over\r\n"),
    ("/strict", "x-user: fine\r\n"),
    ("/strict", "x-user: fails\r\n"),
    ("/strict", "x-user: over\r\n"),
    ("/strict", "x-user: over\r\ncontent-type: application/grpc\r\nte: trailers\r\n"),
    ("/lenient", "x-user: over\r\n"),
    ("/away", "x-user: fine\r\n"),
];

fn bootstrap([port, admin, limits, closed]: [u16; 4], backend: u16) -> String {
    let filter = |name: &str, cluster: &str, more: &str| {
        format!(
            "{{ name: {name}, typed_config: {{ \"@type\": {FILTER}, domain: mine, timeout: 2s, rate_limit_service: {{ transport_api_version: V3, \
             grpc_service: {{ envoy_grpc: {{ cluster_name: {cluster} }}, initial_metadata: [ {{ key: x-team, value: blue }} ] }} }}, {more} }} }}"
        )
    };
    let user = "{ actions: [ { request_headers: { header_name: x-user, descriptor_key: user } } ] }";
    let disabled = |names: &[&str]| {
        let off = names.iter().map(|name| {
            format!("{name}: {{ \"@type\": type.googleapis.com/envoy.config.route.v3.FilterConfig, disabled: true }}")
        });
        off.collect::<Vec<_>>().join(", ")
    };
    let only = |name: &str| {
        let others: Vec<_> = ["rl", "strict", "lenient", "away"].into_iter().filter(|other| *other != name).collect();
        disabled(&others)
    };
    let route = |path: &str, limits: &str, more: &str| {
        format!(
            "              - {{ match: {{ path: {path} }}, route: {{ cluster: backend, {limits} }}, typed_per_filter_config: {{ {more} }} }}\n"
        )
    };
    let per_route = |more: &str| format!("{}, rl: {{ \"@type\": {PER_ROUTE}, {more} }}", only("rl"));
    let own = format!("rate_limits: [ {user} ]");
    let routes = [
        route("/", &own, &only("rl")),
        route("/host", "", &only("rl")),
        route("/both", &own, &per_route("vh_rate_limits: INCLUDE")),
        route("/ignored", "", &per_route("vh_rate_limits: IGNORE")),
        route(
            "/own",
            &own,
            &per_route(
                "domain: theirs, rate_limits: [ { actions: [ { source_cluster: {} }, { destination_cluster: {} } ] } ]",
            ),
        ),
        route(
            "/stage",
            "rate_limits: [ { stage: 1, actions: [ { generic_key: { descriptor_value: over } } ] } ]",
            &only("rl"),
        ),
        format!(
            "              - {{ match: {{ path: /direct }}, direct_response: {{ status: 200 }}, typed_per_filter_config: {{ {} }} }}\n",
            only("rl")
        ),
        route("/strict", &own, &only("strict")),
        route("/lenient", &own, &only("lenient")),
        route("/away", &own, &only("away")),
    ];
    let filters = [
        filter("rl", "limits", "enable_x_ratelimit_headers: DRAFT_VERSION_03"),
        filter(
            "strict",
            "limits",
            "failure_mode_deny: true, status_on_error: { code: 503 }, rate_limited_status: { code: 423 }, stat_prefix: mine, \
             rate_limited_as_resource_exhausted: true, disable_x_envoy_ratelimited_header: true, response_headers_to_add: [ { header: { key: \
             x-why, value: \"%REQ(x-user)%\" } } ]",
        ),
        filter("lenient", "limits", "filter_enforced: { default_value: { numerator: 0 } }"),
        filter("away", "closed", ""),
    ];
    let limits_of_host =
        "domains: [\"*\"]\n              rate_limits: [ { actions: [ { generic_key: { descriptor_value: host } } ] } ]";
    let manager = format!(
        "          http_filters: [ {}, {ROUTER} ]\n{}",
        filters.join(", "),
        web::one_host(&routes.concat()).replace("domains: [\"*\"]", limits_of_host)
    );
    let clusters = [
        web::cluster("backend", &endpoint(backend, ""), ""),
        web::cluster("limits", &endpoint(limits, ""), HTTP2),
        web::cluster("closed", &endpoint(closed, ""), HTTP2),
    ];
    let log = web::access_log(std::path::Path::new("/dev/null"), &["%RESPONSE_FLAGS%"]);
    let manager = format!("          {log}\n{manager}");
    format!(
        "node: {{ id: me, cluster: us }}\n{}",
        web::scene(admin, &web::http_listener("l", port, &manager), &clusters)
    )
}

/// What a program answers, what the service was asked, and its statistics.
fn story(program: Program) -> Vec<String> {
    let backend = Backend::start(|request| Reply::text(request.header("x-for-server").unwrap_or("-").to_owned()));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("bootstrap.yaml");
    let [port, admin, limits_port] = free_ports::<3>();
    let limits = Limits::default();
    let runtime = limits.start(limits_port);
    let config = bootstrap([port, admin, limits_port, free_port()], backend.address().port());
    std::fs::write(&file, config).expect("a writable folder");
    let mut process = web::start(program, &file, admin, port);
    let get = |port: u16, path: &str, headers: &str| {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        Connection::open(address).and_then(|mut client| client.get("localhost", path, headers)).expect("an answer")
    };
    let mut lines = Vec::new();
    for (path, headers) in REQUESTS {
        let answer = get(port, path, headers);
        let names = [
            "content-type",
            "grpc-status",
            "x-envoy-ratelimited",
            "x-for-client",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "x-why",
        ];
        let fields: Vec<_> =
            names.iter().filter_map(|name| Some(format!("{name}: {}", answer.header(name)?))).collect();
        lines.push(format!("{path} {headers:?}: {} {fields:?} {}", answer.status, answer.text()));
        lines.extend(
            std::mem::take(&mut *limits.0.lock().unwrap_or_else(PoisonError::into_inner))
                .into_iter()
                .map(|asked| format!("  asked: {asked}")),
        );
    }
    let stats = get(admin, "/stats", "connection: close\r\n").text();
    let mut stats: Vec<_> =
        stats.lines().filter(|line| line.starts_with("cluster.backend.ratelimit.")).map(str::to_owned).collect();
    stats.sort();
    lines.extend(stats);
    assert!(process.exited().is_none(), "{program:?} ended; it printed:\n{}", process.output());
    runtime.shutdown_background();
    lines
}

#[test]
fn evenkeel_and_envoy_ask_a_service_for_limits_alike() {
    let [envoy, evenkeel] = [Program::Envoy, Program::Evenkeel].map(story);
    assert!(
        envoy.iter().any(|line| line.contains("429")) && envoy.iter().any(|line| line.contains("asked: ")),
        "{envoy:#?}"
    );
    let different: Vec<_> =
        envoy.iter().zip(&evenkeel).filter(|(envoy, own)| envoy != own).map(|(a, b)| format!("- {a}\n+ {b}")).collect();
    assert!(
        different.is_empty() && envoy.len() == evenkeel.len(),
        "- Envoy, + Evenkeel\n{}\n{evenkeel:#?}",
        different.join("\n")
    );
}
