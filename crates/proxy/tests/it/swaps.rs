//! The configuration changes hundreds of times under clients that keep sending: none of them may notice.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use evenkeel_testkit::{Backend, Connection, Reply, Response, eventually};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration;
use evenkeel_xds::{Resource, ResourceSet, ResourceType};

use crate::harness::{
    ControlPlane, Proxy, answering, dynamic_bootstrap, get, http_listener, raise_open_files, resource, set,
};

/// Changes in a test run; each is accepted by the proxy before the next is made.
const SWAPS: usize = 240;

/// The listener under load. `version` is in its filter chain, and in every answer's `server` field.
fn listener(version: usize) -> Arc<Resource> {
    let hcm = format!(
        "rds: {{route_config_name: main, config_source: {{ads: {{}}, resource_api_version: V3}}}}\n      server_name: v{version}"
    );
    resource::<Listener>("web", &http_listener("web", &hcm, ""))
}

/// The route table; `version` is in every answer's `x-routes` field.
fn routes(version: usize) -> Arc<Resource> {
    let yaml = format!(
        "{{name: main, response_headers_to_add: [{{header: {{key: x-routes, value: v{version}}}}}], virtual_hosts: [{{name: \
         all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, route: {{cluster: shared}}}}]}}]}}"
    );
    resource::<RouteConfiguration>("main", &yaml)
}

fn cluster(name: &str) -> Arc<Resource> {
    let yaml = format!(
        "{{name: {name}, type: EDS, connect_timeout: 5s, eds_cluster_config: {{eds_config: {{ads: {{}}, \
         resource_api_version: V3}}}}}}"
    );
    resource::<Cluster>(name, &yaml)
}

fn endpoints(name: &str, address: SocketAddr) -> Arc<Resource> {
    let port = address.port();
    let yaml = format!(
        "{{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: \
         127.0.0.1, port_value: {port}}}}}}}}}]}}]}}"
    );
    resource::<ClusterLoadAssignment>(name, &yaml)
}

/// One change; the four kinds take turns.
fn swap(set: &mut ResourceSet, turn: usize, backends: [SocketAddr; 2]) {
    let odd = (turn / 4) % 2 == 1;
    match (turn % 4, odd) {
        (0, _) => set.insert(ResourceType::Listener, listener(turn)),
        (1, _) => set.insert(ResourceType::Route, routes(turn)),
        (2, _) => set.insert(ResourceType::Endpoint, endpoints("shared", backends[usize::from(!odd)])),
        (_, false) => {
            let other = http_listener("other", &answering("other"), "");
            set.insert(ResourceType::Listener, resource::<Listener>("other", &other));
            set.insert(ResourceType::Cluster, cluster("other"));
            set.insert(ResourceType::Endpoint, endpoints("other", backends[0]));
        }
        (_, true) => {
            set.remove(ResourceType::Listener, "other");
            set.remove(ResourceType::Cluster, "other");
            set.remove(ResourceType::Endpoint, "other");
        }
    }
}

/// What one client has seen.
#[derive(Default)]
struct Seen {
    answers: usize,
    bodies: BTreeSet<String>,
    listeners: BTreeSet<String>,
    routes: BTreeSet<String>,
}

impl Seen {
    fn add(&mut self, response: &Response) {
        assert_eq!(response.status, 200, "after {} answers: {response:?}", self.answers);
        self.answers += 1;
        self.bodies.insert(response.text());
        self.listeners.extend(response.header("server").map(str::to_owned));
        self.routes.extend(response.header("x-routes").map(str::to_owned));
    }
}

fn kept_connection(web: SocketAddr, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    let mut connection = Connection::open(web).expect("it accepts");
    while !stop.load(Ordering::Relaxed) {
        let response = connection.get("test", "/", "").expect("an answer");
        seen.add(&response);
        if !response.keeps_open() {
            connection = Connection::open(web).expect("it accepts");
        }
    }
    seen
}

fn new_connections(web: SocketAddr, stop: &AtomicBool) -> Seen {
    let mut seen = Seen::default();
    while !stop.load(Ordering::Relaxed) {
        let mut connection = Connection::open(web).expect("it accepts");
        seen.add(&connection.get("test", "/", "connection: close\r\n").expect("an answer"));
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

#[test]
fn hundreds_of_swaps_cost_no_request() {
    // The backends keep a descriptor for every connection that the proxy ever made.
    raise_open_files();
    let (one, two) = (Backend::start(|_| Reply::text("one")), Backend::start(|_| Reply::text("two")));
    let backends = [one.address(), two.address()];
    let mut control_plane = ControlPlane::start(set(vec![
        (ResourceType::Listener, listener(0)),
        (ResourceType::Route, routes(0)),
        (ResourceType::Cluster, cluster("shared")),
        (ResourceType::Endpoint, endpoints("shared", backends[0])),
    ]));
    let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""));
    proxy.wait_live();
    let web = proxy.listener("web");

    let stop = AtomicBool::new(false);
    let (kept, new) = std::thread::scope(|scope| {
        let ending = Stop(&stop);
        let kept = [(); 2].map(|()| scope.spawn(|| kept_connection(web, &stop)));
        let new = [(); 2].map(|()| scope.spawn(|| new_connections(web, &stop)));
        for turn in 0..SWAPS {
            control_plane.change(|set| swap(set, turn, backends));
            let generation = control_plane.generation();
            control_plane.wait_status("the change to be accepted", |status| status.is_live(generation));
            let over = kept.iter().chain(&new).any(|client| client.is_finished());
            assert!(!over, "a client has failed after {turn} changes");
        }
        drop(ending);
        (kept.map(|client| client.join().expect("no failure")), new.map(|client| client.join().expect("no failure")))
    });

    // The load was there while the changes were, and saw them.
    for seen in kept.iter().chain(&new) {
        assert!(seen.answers >= SWAPS / 10, "{} answers", seen.answers);
        assert_eq!(seen.bodies.iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(seen.routes.len() > SWAPS / 100, "{:?}", seen.routes);
    }
    for seen in &new {
        assert!(seen.listeners.len() > SWAPS / 100, "{:?}", seen.listeners);
    }
    // The last of each kind is in force.
    let last = (format!("v{}", SWAPS - 4), format!("v{}", SWAPS - 3));
    eventually("the last listener and route table", || {
        let response = get(web, "/");
        (response.header("server") == Some(&last.0) && response.header("x-routes") == Some(&last.1)).then_some(())
    });
}
