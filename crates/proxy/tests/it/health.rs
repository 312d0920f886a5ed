//! Health of hosts on live workers: active checks and outlier detection take a host out of load balancing for every worker,
//! and put it back.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use evenkeel_testkit::{Backend, Reply, eventually};
use futures_util::stream::iter;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::header::{HeaderMap, HeaderValue};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::runtime::Runtime;

use crate::harness::{Proxy, get, http_listener, protocol, stat, static_bootstrap};

/// Requests of one look, each on a connection of its own, so that every worker gets some.
const REQUESTS: usize = 30;
const WORKERS: usize = 3;

const ROUTES: &str = "route_config: {name: local, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: \
                      /}, route: {cluster: backend}}]}]}";

/// A host whose status, to checks and requests alike, can be changed.
fn host(name: &'static str) -> (Backend, Arc<AtomicU16>) {
    let status = Arc::new(AtomicU16::new(200));
    let answer = Arc::clone(&status);
    let backend = Backend::start(move |_| Reply::Fixed(answer.load(Ordering::SeqCst), Vec::new(), name.into()));
    (backend, status)
}

fn proxy(hosts: [SocketAddr; 2], extra: &str) -> Proxy {
    let endpoint = |host: SocketAddr| {
        let (ip, port) = (host.ip(), host.port());
        format!("{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}")
    };
    let endpoints = hosts.map(endpoint).join(", ");
    let cluster = format!(
        "{{name: backend, type: STATIC, connect_timeout: 5s, common_lb_config: {{healthy_panic_threshold: {{value: \
         0}}}}, load_assignment: {{cluster_name: backend, endpoints: [{{lb_endpoints: [{endpoints}]}}]}}, {extra}}}"
    );
    let proxy = Proxy::start_with(&static_bootstrap(&http_listener("health", ROUTES, ""), &[cluster]), WORKERS);
    proxy.wait_live();
    proxy
}

fn wait_stat(proxy: &Proxy, name: &str, value: u64) {
    eventually(&format!("{name} = {value}"), || {
        (stat(proxy, &format!("cluster.backend.{name}")) == [value]).then_some(())
    });
}

fn wait_flags(proxy: &Proxy, host: SocketAddr, flags: &str) {
    let line = format!("backend::{host}::health_flags::{flags}");
    eventually(&line, || proxy.get("/clusters").text().lines().any(|has| has == line).then_some(()));
}

/// Who answers, with what status.
fn answers(proxy: &Proxy) -> Vec<(u16, String)> {
    let listener = proxy.listener("health");
    let mut answers: Vec<_> = (0..REQUESTS)
        .map(|_| {
            let response = get(listener, "/");
            (response.status, response.text())
        })
        .collect();
    answers.sort();
    answers.dedup();
    answers
}

fn ok(names: &[&str]) -> Vec<(u16, String)> {
    names.iter().map(|&name| (200, name.to_owned())).collect()
}

const CHECK: &str =
    "timeout: 10s, interval: 0.05s, no_traffic_interval: 0.05s, unhealthy_threshold: 2, healthy_threshold: 2";

#[test]
fn a_host_that_fails_its_http_checks_is_out_until_it_passes_them() {
    let ((one, status), (other, _)) = (host("one"), host("other"));
    let check = format!("health_checks: [{{{CHECK}, http_health_check: {{path: /healthz}}}}]");
    let proxy = proxy([one.address(), other.address()], &check);
    wait_stat(&proxy, "health_check.healthy", 2);
    wait_stat(&proxy, "membership_healthy", 2);
    assert_eq!(answers(&proxy), ok(&["one", "other"]));

    status.store(503, Ordering::SeqCst);
    wait_stat(&proxy, "health_check.healthy", 1);
    wait_stat(&proxy, "membership_healthy", 1);
    wait_flags(&proxy, one.address(), "/failed_active_hc");
    wait_flags(&proxy, other.address(), "healthy");
    assert_eq!(answers(&proxy), ok(&["other"]));
    assert!(stat(&proxy, "cluster.backend.health_check.failure")[0] >= 1);

    status.store(200, Ordering::SeqCst);
    wait_stat(&proxy, "membership_healthy", 2);
    wait_flags(&proxy, one.address(), "healthy");
    assert_eq!(answers(&proxy), ok(&["one", "other"]));
    assert!(one.requests().iter().any(|request| request.target == "/healthz"));
    proxy.stop().expect("a clean end");
}

#[test]
fn a_host_that_asks_for_it_in_an_answer_is_out_until_it_passes_its_checks() {
    let wants_out = Arc::new(AtomicU16::new(0));
    let wants = Arc::clone(&wants_out);
    let one = Backend::start(move |request| {
        let asks = request.target == "/" && wants.load(Ordering::SeqCst) == 1;
        let header = ("x-envoy-immediate-health-check-fail".to_owned(), "1".to_owned());
        Reply::Fixed(200, asks.then_some(header).into_iter().collect(), b"one".to_vec())
    });
    let (other, _) = host("other");
    let check = |interval: &str| {
        format!(
            "health_checks: [{{timeout: 10s, interval: {interval}, no_traffic_interval: {interval}, unhealthy_threshold: 2, \
             healthy_threshold: 2, http_health_check: {{path: /healthz}}}}]"
        )
    };
    let rarely = proxy([one.address(), other.address()], &check("1000s"));
    wait_stat(&rarely, "membership_healthy", 2);
    wants_out.store(1, Ordering::SeqCst);
    answers(&rarely);
    wait_flags(&rarely, one.address(), "/failed_active_hc/excluded_via_immediate_hc_fail");
    assert_eq!(answers(&rarely), ok(&["other"]));
    rarely.stop().expect("a clean end");

    wants_out.store(0, Ordering::SeqCst);
    let often = proxy([one.address(), other.address()], &check("0.05s"));
    wait_stat(&often, "membership_healthy", 2);
    wants_out.store(1, Ordering::SeqCst);
    eventually("an answer of it", || (answers(&often).len() == 2).then_some(()));
    wants_out.store(0, Ordering::SeqCst);
    wait_stat(&often, "membership_healthy", 2);
    wait_flags(&often, one.address(), "healthy");
    often.stop().expect("a clean end");
}

#[test]
fn a_host_whose_port_closes_is_out_until_it_opens() {
    let ((one, _), (other, _)) = (host("one"), host("other"));
    let address = one.address();
    let proxy = proxy([address, other.address()], &format!("health_checks: [{{{CHECK}, tcp_health_check: {{}}}}]"));
    wait_stat(&proxy, "membership_healthy", 2);
    assert_eq!(answers(&proxy), ok(&["one", "other"]));

    drop(one);
    wait_stat(&proxy, "membership_healthy", 1);
    wait_flags(&proxy, address, "/failed_active_hc");
    assert_eq!(answers(&proxy), ok(&["other"]));
    assert!(stat(&proxy, "cluster.backend.health_check.network_failure")[0] >= 1);

    eventually("the port to be free", || TcpListener::bind(address).ok().map(drop));
    let _one = Backend::start_on(address, |_| Reply::text("one again"));
    wait_stat(&proxy, "membership_healthy", 2);
    wait_flags(&proxy, address, "healthy");
    assert_eq!(answers(&proxy), ok(&["one again", "other"]));
    proxy.stop().expect("a clean end");
}

#[test]
fn a_host_that_keeps_failing_is_ejected_on_every_worker_for_a_while() {
    let ((one, status), (other, _)) = (host("one"), host("other"));
    let outliers = "outlier_detection: {consecutive_5xx: 3, interval: 0.05s, base_ejection_time: 5s, \
                    max_ejection_percent: 50, enforcing_consecutive_5xx: 100, enforcing_success_rate: 0, \
                    enforcing_consecutive_gateway_failure: 0}";
    let proxy = proxy([one.address(), other.address()], outliers);
    let listener = proxy.listener("health");
    assert_eq!(answers(&proxy), ok(&["one", "other"]));

    status.store(500, Ordering::SeqCst);
    eventually("an ejection", || {
        get(listener, "/");
        (stat(&proxy, "cluster.backend.outlier_detection.ejections_active") == [1]).then_some(())
    });
    // Were it asked, one worker that had not heard of it would be told so by its name.
    status.store(200, Ordering::SeqCst);
    wait_flags(&proxy, one.address(), "/failed_outlier_check");
    wait_flags(&proxy, other.address(), "healthy");
    wait_stat(&proxy, "membership_healthy", 1);
    let asked = one.requests().len();
    assert_eq!(answers(&proxy), ok(&["other"]));
    assert_eq!(one.requests().len(), asked, "it is spared by all {WORKERS} workers");
    assert_eq!(stat(&proxy, "cluster.backend.outlier_detection.ejections_enforced_consecutive_5xx"), [1]);

    wait_stat(&proxy, "outlier_detection.ejections_active", 0);
    wait_flags(&proxy, one.address(), "healthy");
    wait_stat(&proxy, "membership_healthy", 2);
    assert_eq!(answers(&proxy), ok(&["one", "other"]));
    assert_eq!(stat(&proxy, "cluster.backend.outlier_detection.ejections_enforced_total"), [1]);
    proxy.stop().expect("a clean end");
}

/// A gRPC server that answers health checks with this `ServingStatus`, and everything else with its name.
struct GrpcHost {
    address: SocketAddr,
    status: Arc<AtomicU16>,
    /// The bodies of the checks it was sent.
    checks: Arc<Mutex<Vec<Bytes>>>,
    _runtime: Runtime,
}

impl GrpcHost {
    const SERVING: u16 = 1;
    const NOT_SERVING: u16 = 2;

    fn start(name: &'static str) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let (status, checks) = (Arc::new(AtomicU16::new(Self::SERVING)), Arc::<Mutex<Vec<Bytes>>>::default());
        let (answer, seen) = (Arc::clone(&status), Arc::clone(&checks));
        let service = service_fn(move |request: Request<Incoming>| {
            let (answer, seen) = (Arc::clone(&answer), Arc::clone(&seen));
            async move {
                if request.uri().path() != "/grpc.health.v1.Health/Check" {
                    let frames = vec![Ok::<_, Infallible>(Frame::data(Bytes::from(name)))];
                    return Ok::<_, Infallible>(Response::new(StreamBody::new(iter(frames))));
                }
                let body = request.into_body().collect().await.expect("a body").to_bytes();
                seen.lock().expect("nobody panicked").push(body);
                // Flag and length, then field 1 of `HealthCheckResponse`.
                let message = [0, 0, 0, 0, 2, 0x08, answer.load(Ordering::SeqCst) as u8];
                let trailers = HeaderMap::from_iter([("grpc-status".parse().expect("a name"), HeaderValue::from(0))]);
                let frames = vec![Ok(Frame::data(Bytes::copy_from_slice(&message))), Ok(Frame::trailers(trailers))];
                Ok(Response::builder()
                    .header("content-type", "application/grpc")
                    .body(StreamBody::new(iter(frames)))
                    .expect("a response"))
            }
        });
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
                tokio::spawn(connection.serve_connection(TokioIo::new(socket), service.clone()));
            }
        });
        Self { address, status, checks, _runtime: runtime }
    }
}

#[test]
fn a_host_that_says_over_grpc_that_it_does_not_serve_is_out_until_it_does() {
    let [one, other] = ["one", "other"].map(GrpcHost::start);
    let http2 = protocol("explicit_http_config: {http2_protocol_options: {}}");
    let check = format!("health_checks: [{{{CHECK}, grpc_health_check: {{service_name: shop}}}}], {http2}");
    let proxy = proxy([one.address, other.address], &check);
    wait_stat(&proxy, "health_check.healthy", 2);
    assert_eq!(answers(&proxy), ok(&["one", "other"]));

    one.status.store(GrpcHost::NOT_SERVING, Ordering::SeqCst);
    wait_stat(&proxy, "membership_healthy", 1);
    wait_flags(&proxy, one.address, "/failed_active_hc");
    assert_eq!(answers(&proxy), ok(&["other"]));

    one.status.store(GrpcHost::SERVING, Ordering::SeqCst);
    wait_stat(&proxy, "membership_healthy", 2);
    wait_flags(&proxy, one.address, "healthy");
    assert_eq!(answers(&proxy), ok(&["one", "other"]));
    // Flag and length, then the name as field 1 of `HealthCheckRequest`.
    let expected = b"\0\0\0\0\x06\x0a\x04shop";
    let checks = one.checks.lock().expect("nobody panicked");
    assert!(!checks.is_empty() && checks.iter().all(|check| check == &expected[..]), "{checks:?}");
    drop(checks);
    proxy.stop().expect("a clean end");
}

/// A host that passes its checks and fails its requests is spared for as long as that is held against it; one that also fails
/// its checks is out for both reasons, and back when neither is left.
#[test]
fn checks_and_outcomes_of_requests_are_held_against_a_host_together() {
    let (checked, asked) = (Arc::new(AtomicU16::new(200)), Arc::new(AtomicU16::new(200)));
    let statuses = (Arc::clone(&checked), Arc::clone(&asked));
    let one = Backend::start(move |request| {
        let status = if request.target == "/healthz" { &statuses.0 } else { &statuses.1 };
        Reply::Fixed(status.load(Ordering::SeqCst), Vec::new(), b"one".to_vec())
    });
    let (other, _) = host("other");
    let both = format!(
        "health_checks: [{{{CHECK}, http_health_check: {{path: /healthz}}}}], outlier_detection: {{consecutive_5xx: 3, \
         interval: 0.05s, base_ejection_time: 1s, max_ejection_percent: 100, enforcing_consecutive_5xx: 100, \
         enforcing_success_rate: 0, enforcing_consecutive_gateway_failure: 0, \
         successful_active_health_check_uneject_host: false}}"
    );
    let proxy = proxy([one.address(), other.address()], &both);
    let listener = proxy.listener("health");
    wait_stat(&proxy, "membership_healthy", 2);
    assert_eq!(answers(&proxy), ok(&["one", "other"]));

    asked.store(500, Ordering::SeqCst);
    eventually("an ejection", || {
        get(listener, "/");
        (stat(&proxy, "cluster.backend.outlier_detection.ejections_active") == [1]).then_some(())
    });
    checked.store(503, Ordering::SeqCst);
    // Which of the two ends first is a matter of time; that it has both is not.
    let text = format!("backend::{}::health_flags::/failed_active_hc", one.address());
    eventually("a failed check", || proxy.get("/clusters").text().contains(&text).then_some(()));
    assert_eq!(answers(&proxy), ok(&["other"]));
    asked.store(200, Ordering::SeqCst);
    wait_stat(&proxy, "outlier_detection.ejections_active", 0);
    wait_flags(&proxy, one.address(), "/failed_active_hc");
    assert_eq!(answers(&proxy), ok(&["other"]));
    checked.store(200, Ordering::SeqCst);
    wait_flags(&proxy, one.address(), "healthy");
    assert_eq!(answers(&proxy), ok(&["one", "other"]));
    assert_eq!(stat(&proxy, "cluster.backend.outlier_detection.ejections_enforced_total"), [1]);
    proxy.stop().expect("a clean end");
}
