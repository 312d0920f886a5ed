//! Replicas are replaced one after the other behind a gateway, as a Deployment's are, and no request fails.

use std::collections::{BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use evenkeel_testkit::{Backend, Connection, Reply, Response};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::{Resource, ResourceType};

use crate::harness::{
    ControlPlane, MeshTls, Proxy, dynamic_bootstrap, http_listener, protocol, raise_open_files, resource, set, stat,
    static_bootstrap, static_cluster,
};

/// Replicas replaced in a test run.
const ROLLOUTS: usize = 100;

/// Replicas that serve at a time.
const REPLICAS: usize = 3;

/// Replicas that drain at a time; the next one to go waits for the first of them.
const MOST_DRAINING: usize = 4;

/// A tenth of it is what a draining replica waits for an idle connection to speak.
const DRAIN_TIME: Duration = Duration::from_secs(2);

/// When the old replica is told to end.
#[derive(Clone, Copy, PartialEq)]
enum Old {
    /// When the gateway has taken the new endpoints.
    EndsAfter,
    /// At the same time: the gateway learns of it while the replica closes its doors.
    EndsMeanwhile,
}

/// What gateway and replicas speak.
#[derive(Clone, Copy)]
enum Wire<'t> {
    Http1,
    /// HTTP/2 over mutual TLS, as sidecars do.
    Http2(&'t MeshTls),
}

/// A replica's sidecar. Every answer names the replica.
fn replica(name: usize, application: SocketAddr, wire: Wire<'_>) -> (Proxy, SocketAddr) {
    let routes = format!(
        "drain_timeout: 0.2s\n      route_config: {{name: local, response_headers_to_add: [{{header: {{key: x-replica, value: r{name}}}}}], \
         virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: {{cluster: \
         application}}}}]}}]}}"
    );
    let transport = match wire {
        Wire::Http1 => String::new(),
        Wire::Http2(tls) => tls.listener("h2, http/1.1"),
    };
    let listener = http_listener("inbound", &routes, &transport);
    let clusters = [static_cluster("application", application, "")];
    let proxy = Proxy::start_as(&static_bootstrap(&listener, &clusters), |settings| {
        settings.concurrency = 1;
        settings.drain_time = DRAIN_TIME;
    });
    proxy.wait_live();
    let address = proxy.listener("inbound");
    (proxy, address)
}

/// The gateway's listener, with the retries that Istio gives to every route.
fn gateway() -> Arc<Resource> {
    let routes = "route_config: {name: main, virtual_hosts: [{name: all, domains: [\"*\"], routes: [{match: {prefix: /}, \
                  route: {cluster: replicas, retry_policy: {retry_on: \
                  \"connect-failure,refused-stream,unavailable,cancelled,reset-before-request\", num_retries: 2, \
                  retry_host_predicate: [{name: envoy.retry_host_predicates.previous_hosts, typed_config: {\"@type\": \
                  type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate}}], \
                  host_selection_retry_max_attempts: 5}}}]}]}";
    resource::<Listener>("web", &http_listener("web", routes, ""))
}

/// The gateway's cluster. Envoy's own limit of three retries at a time is below the four clients; Istio sets none.
fn cluster(wire: Wire<'_>) -> Arc<Resource> {
    let wire = match wire {
        Wire::Http1 => String::new(),
        Wire::Http2(tls) => {
            format!("{}, {}", protocol("explicit_http_config: {http2_protocol_options: {}}"), tls.cluster("h2"))
        }
    };
    let yaml = format!(
        "{{name: replicas, type: EDS, connect_timeout: 5s, circuit_breakers: {{thresholds: [{{max_retries: 4294967295}}]}}, \
         eds_cluster_config: {{eds_config: {{ads: {{}}, resource_api_version: V3}}}}, {wire}}}"
    );
    resource::<Cluster>("replicas", &yaml)
}

fn endpoints<'a>(replicas: impl Iterator<Item = &'a (Proxy, SocketAddr)>) -> Arc<Resource> {
    let endpoint = |address: &SocketAddr| {
        let (ip, port) = (address.ip(), address.port());
        format!("{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}")
    };
    let endpoints = replicas.map(|(_, address)| endpoint(address)).collect::<Vec<_>>().join(", ");
    let yaml = format!("{{cluster_name: replicas, endpoints: [{{lb_endpoints: [{endpoints}]}}]}}");
    resource::<ClusterLoadAssignment>("replicas", &yaml)
}

/// What one client has seen.
#[derive(Default)]
struct Seen {
    answers: usize,
    replicas: BTreeSet<String>,
}

impl Seen {
    /// Every other request is a small POST; the application answers with what it received.
    fn ask(&mut self, connection: &mut Connection, extra: &str) -> Response {
        let turn = self.answers;
        let (method, body) = if turn.is_multiple_of(2) { ("GET", String::new()) } else { ("POST", format!("b{turn}")) };
        let length = body.len();
        let head = format!("{method} /{turn} HTTP/1.1\r\nhost: test\r\ncontent-length: {length}\r\n{extra}\r\n");
        connection.send(head + &body).expect("it reads");
        let response = connection.response().expect("an answer");
        assert_eq!(response.status, 200, "{method} after {turn} answers: {response:?}");
        assert_eq!(response.text(), format!("{method} /{turn} {body}"));
        self.answers += 1;
        self.replicas.extend(response.header("x-replica").map(str::to_owned));
        response
    }
}

fn kept_connection(web: SocketAddr, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut connection = Connection::open(web).expect("it accepts");
    while !stop.load(Ordering::Relaxed) {
        let response = seen.ask(&mut connection, "");
        assert!(response.keeps_open(), "the gateway does not drain: {response:?}");
    }
    seen
}

fn new_connections(web: SocketAddr, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let mut connection = Connection::open(web).expect("it accepts");
        seen.ask(&mut connection, "connection: close\r\n");
    }
    seen
}

/// Ends the clients, also when the test fails.
struct Stop<'s>(&'s AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Replaces the oldest replica that often under load.
fn roll_out(rollouts: usize, old: Old, wire: Wire<'_>) {
    raise_open_files();
    let application = Backend::start(|request| {
        Reply::text(format!("{} {} {}", request.method, request.target, String::from_utf8_lossy(&request.body)))
    });
    let mut serving: VecDeque<_> = (0..REPLICAS).map(|name| replica(name, application.address(), wire)).collect();
    let mut control_plane = ControlPlane::start(set(vec![
        (ResourceType::Listener, gateway()),
        (ResourceType::Cluster, cluster(wire)),
        (ResourceType::Endpoint, endpoints(serving.iter())),
    ]));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    proxy.wait_live();
    let web = proxy.listener("web");

    let stop = AtomicBool::new(false);
    let clients = std::thread::scope(|scope| {
        let ending = Stop(&stop);
        let kept = [(); 2].map(|()| scope.spawn(|| kept_connection(web, &stop)));
        let new = [(); 2].map(|()| scope.spawn(|| new_connections(web, &stop)));
        let clients: Vec<_> = kept.into_iter().chain(new).collect();
        let mut draining: VecDeque<ScopedJoinHandle<'_, _>> = VecDeque::new();
        for rollout in 0..rollouts {
            serving.push_back(replica(REPLICAS + rollout, application.address(), wire));
            let (leaving, _) = serving.pop_front().expect("replicas");
            control_plane.change(|set| set.insert(ResourceType::Endpoint, endpoints(serving.iter())));
            let generation = control_plane.generation();
            let accepted = || control_plane.wait_status("the change", |status| status.is_live(generation));
            if old == Old::EndsAfter {
                accepted();
            }
            draining.push_back(scope.spawn(move || leaving.stop()));
            accepted();
            if draining.len() > MOST_DRAINING {
                let first = draining.pop_front().expect("not empty");
                first.join().expect("no panic").expect("a clean end");
            }
            assert!(!clients.iter().any(|client| client.is_finished()), "a client has failed after {rollout} rollouts");
        }
        drop(ending);
        for replica in draining {
            replica.join().expect("no panic").expect("a clean end");
        }
        clients.into_iter().map(|client| client.join().expect("no failure")).collect::<Vec<Seen>>()
    });

    // The load was there all the time, and followed the replicas.
    let replicas: BTreeSet<_> = clients.iter().flat_map(|seen| &seen.replicas).collect();
    assert!(replicas.len() > rollouts / 2, "{} replicas have served", replicas.len());
    for seen in &clients {
        assert!(seen.answers > rollouts, "{} answers", seen.answers);
    }
    for name in ["http.web.downstream_rq_5xx", "cluster.replicas.upstream_rq_5xx"] {
        assert_eq!(stat(&proxy, name).iter().sum::<u64>(), 0, "{name}");
    }
}

#[test]
fn a_hundred_rollouts_cost_no_request() {
    roll_out(ROLLOUTS, Old::EndsAfter, Wire::Http1);
}

#[test]
fn a_replica_that_closes_its_doors_before_the_gateway_knows_costs_no_request() {
    roll_out(ROLLOUTS / 4, Old::EndsMeanwhile, Wire::Http1);
}

#[test]
fn rollouts_behind_mutual_tls_and_http2_cost_no_request() {
    let tls = MeshTls::new();
    roll_out(ROLLOUTS / 4, Old::EndsAfter, Wire::Http2(&tls));
    roll_out(ROLLOUTS / 4, Old::EndsMeanwhile, Wire::Http2(&tls));
}
