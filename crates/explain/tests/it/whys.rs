//! Why recent requests failed or were slow: the sentence, from the records of the proxies on the way.

use evenkeel_explain::Why;
use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::recent::RecordedRequest;
use evenkeel_filters::explain::cause::{Cause, Fault};
use evenkeel_filters::explain::query::{
    CircuitBreaker, ClusterLimits, EndpointChoice, EndpointState, FailedTry, Phase, PhaseKind, RecentRequest,
};

use crate::mesh::{recent, world};

const ID: &str = "7d1f0c1e-52b6-4a39-9b51-0123456789ab";

/// A record of the client's sidecar, or of the server's, which takes so many milliseconds in one phase.
fn record(direction: &str, kind: PhaseKind, millis: u64) -> RecentRequest {
    let request = recent(ID, "GET http://reviews/x", (direction, "10.96.1.2:80"));
    let duration_us = millis * 1000;
    RecentRequest {
        cluster: Some("outbound|80|v1|reviews.shop.svc.cluster.local".to_owned()),
        endpoint: Some("10.244.0.2:9080".to_owned()),
        status: 200,
        details: "via_upstream".to_owned(),
        attempts: 1,
        duration_us,
        phases: vec![Phase { kind, duration_us, ..Phase::default() }],
        ..request
    }
}

fn failed(direction: &str, status: u16, flags: &str, details: &str) -> RecentRequest {
    let (flags, details) = (flags.to_owned(), details.to_owned());
    RecentRequest { status, flags, details, ..record(direction, PhaseKind::Endpoint, 40) }
}

fn why(requests: &[RecentRequest]) -> Why {
    let recorded = |request: &RecentRequest| {
        let workload = if request.direction == "inbound" { "reviews-v1" } else { "web" };
        let (pod, namespace) = (format!("{workload}-0"), "shop".to_owned());
        let proxy = ProxyName { side: "", workload: workload.to_owned(), pod, namespace };
        RecordedRequest { proxy, request: request.clone(), now: Err("not asked".to_owned()) }
    };
    Why::new(Some(&world("")), requests.iter().map(recorded).collect()).expect("a record")
}

fn check(requests: &[RecentRequest], cause: Cause, fault: Fault, sentence: &str) {
    let why = why(requests);
    assert_eq!((why.cause, why.fault, &*why.sentence), (cause, fault, sentence), "{:#}", why.to_json());
}

#[test]
fn the_slowest_part_is_named() {
    let client = record("outbound", PhaseKind::Endpoint, 830);
    check(
        &[client.clone(), record("inbound", PhaseKind::Endpoint, 812)],
        Cause::Slow(PhaseKind::Endpoint),
        Fault::Server,
        "the server's application (reviews-v1-0.shop) took 812 ms of 830 ms",
    );
    check(
        &[client.clone(), record("inbound", PhaseKind::Endpoint, 20)],
        Cause::Network,
        Fault::Network,
        "the way between the client's proxy (web-0.shop) and 10.244.0.2:9080 (reviews-v1-0.shop) took 810 ms of 830 ms",
    );
    check(
        &[record("outbound", PhaseKind::Configuration, 900)],
        Cause::Slow(PhaseKind::Configuration),
        Fault::ControlPlane,
        "the client's proxy (web-0.shop) waited 900 ms of 900 ms for configuration of the control plane",
    );
    check(
        &[RecentRequest { throttled_us: Some(50_000), ..record("outbound", PhaseKind::Proxy, 300) }],
        Cause::Slow(PhaseKind::Proxy),
        Fault::Proxy,
        "the client's proxy (web-0.shop) itself took 300 ms of 300 ms",
    );
    check(
        &[RecentRequest { throttled_us: Some(250_000), ..record("outbound", PhaseKind::Proxy, 300) }],
        Cause::Throttled,
        Fault::Configuration,
        "the CPU limit throttled the client's proxy (web-0.shop) for up to 250 ms of 300 ms",
    );
}

#[test]
fn failures_are_told_with_their_numbers() {
    let ejected = EndpointState {
        address: "10.244.0.2:9080".to_owned(),
        flags: vec!["failed_outlier_check".to_owned()],
        ejected_us: Some(1_700_000_000_000_000),
        ..EndpointState::default()
    };
    let choice = EndpointChoice {
        endpoints: 2,
        passed_over: 2,
        first_passed_over: vec![ejected],
        limits: ClusterLimits { requests: Some(7), ..ClusterLimits::default() },
        ..EndpointChoice::default()
    };
    let none = failed("outbound", 503, "UH", "no_healthy_upstream");
    check(
        &[RecentRequest { choice: Some(choice.clone()), endpoint: None, ..none }],
        Cause::NoHealthyEndpoint,
        Fault::Server,
        "no endpoint: 2 of 2 of outbound|80|v1|reviews.shop.svc.cluster.local take no requests: 10.244.0.2:9080 is ejected \
         since 22:13:20Z, and 1 more",
    );
    let full = FailedTry { full: Some(CircuitBreaker::Requests), ..FailedTry::default() };
    let overflow = failed("outbound", 503, "UO", "upstream_reset_before_response_started{overflow}");
    check(
        &[RecentRequest { choice: Some(choice), failed_tries: vec![full], ..overflow }],
        Cause::CircuitBreaker,
        Fault::Configuration,
        "the limit `http2MaxRequests: 7` of the client's proxy (web-0.shop) was full",
    );
    // What the server's proxy refused, and what its client gave up, is judged where it began.
    let refused = failed("inbound", 401, "", "jwt_authn_access_denied{Jwt_is_missing}");
    let passed_on = failed("outbound", 401, "", "via_upstream");
    check(
        &[passed_on, refused],
        Cause::InvalidToken,
        Fault::Client,
        "the server's proxy (reviews-v1-0.shop) refused its token: Jwt_is_missing",
    );
    let late = failed("outbound", 504, "UT", "response_timeout");
    let given_up = failed("inbound", 0, "DR", "http2.remote_reset");
    check(
        &[late, given_up],
        Cause::RouteTimeout,
        Fault::Server,
        "the timeout of the route ended after 40 ms: the server's application (reviews-v1-0.shop) took 40 ms of 40 ms",
    );
}
