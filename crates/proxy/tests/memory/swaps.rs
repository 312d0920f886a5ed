//! The configuration changes thousands of times under clients that keep sending: no client may notice, and nothing of former
//! configurations may stay on the heap.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use evenkeel_proxy::options::Settings;
use evenkeel_testkit::wait::{PATIENCE, poll};
use evenkeel_testkit::{Connection, Random, Response, cases, eventually};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_xds::pb::envoy::config::listener::v3::{Listener, filter};
use evenkeel_xds::pb::envoy::config::route::v3::{RouteConfiguration, route, route_action};
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::http_connection_manager::RouteSpecifier;
use evenkeel_xds::{Resource, ResourceSet, ResourceType};
use prost::Message as _;

use crate::alone;
use crate::counting::{Blocks, live_bytes};
use crate::harness::{
    ControlPlane, Proxy, dynamic_bootstrap, get, http_listener, message, raise_open_files, resource, set,
};

/// Changes before the heap is measured first: tables and pools reach their size.
const WARM_UP: usize = 500;
/// What a change may leave behind. The smallest thing that could leak with every change is an entry in a table.
const LEFT_BYTES_PER_SWAP: usize = 32;
/// The order of changes.
const SEED: u64 = 0x5eed_0000_0000_0001;
/// How long nothing must happen before the heap is measured: a worker tidies up once a second.
const QUIET: Duration = Duration::from_secs(4);
/// Clients that keep their connection, and clients that make new ones.
const CLIENTS: usize = 4;
/// Requests of each client for every change.
const REQUESTS_PER_SWAP: usize = 2;
/// Changes that a client may be behind.
const MOST_BEHIND: usize = 16;

/// The listener under load. `version` is in its filter chain, and in every answer's `server` field.
fn listener(name: &str, version: usize) -> Arc<Resource> {
    static READ: LazyLock<Listener> = LazyLock::new(|| {
        let hcm =
            "rds: {route_config_name: web, config_source: {ads: {}, resource_api_version: V3}}\n      server_name: v0";
        message(&http_listener("web", hcm, ""))
    });
    let mut listener = READ.clone();
    name.clone_into(&mut listener.name);
    let filter = &mut listener.filter_chains[0].filters[0];
    let Some(filter::ConfigType::TypedConfig(any)) = &mut filter.config_type else { panic!("{filter:?}") };
    let mut hcm = HttpConnectionManager::decode(&*any.value).expect("what was written");
    let Some(RouteSpecifier::Rds(rds)) = &mut hcm.route_specifier else { panic!("{hcm:?}") };
    name.clone_into(&mut rds.route_config_name);
    hcm.server_name = format!("v{version}");
    any.value = hcm.encode_to_vec();
    Arc::new(Resource::from_message(name, &listener))
}

/// The route table; `version` is in every answer's `x-routes` field.
fn routes(name: &str, version: usize) -> Arc<Resource> {
    static READ: LazyLock<RouteConfiguration> = LazyLock::new(|| {
        message(
            "{name: web, response_headers_to_add: [{header: {key: x-routes}}], virtual_hosts: [{name: all, domains: [\"*\"], \
             routes: [{match: {prefix: /}, route: {cluster: web}}]}]}",
        )
    });
    let mut routes = READ.clone();
    name.clone_into(&mut routes.name);
    if let Some(header) = &mut routes.response_headers_to_add[0].header {
        header.value = format!("v{version}");
    }
    let action = &mut routes.virtual_hosts[0].routes[0].action;
    let Some(route::Action::Route(action)) = action else { panic!("{action:?}") };
    action.cluster_specifier = Some(route_action::ClusterSpecifier::Cluster(name.to_owned()));
    Arc::new(Resource::from_message(name, &routes))
}

fn cluster(name: &str, version: usize) -> Arc<Resource> {
    static READ: LazyLock<Cluster> = LazyLock::new(|| {
        message(
            "{name: web, type: EDS, connect_timeout: 5s, eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}}",
        )
    });
    let mut cluster = READ.clone();
    name.clone_into(&mut cluster.name);
    if let Some(timeout) = &mut cluster.connect_timeout {
        timeout.seconds += i64::try_from(version).expect("small");
    }
    Arc::new(Resource::from_message(name, &cluster))
}

fn endpoints(name: &str, address: SocketAddr) -> Arc<Resource> {
    let port = address.port();
    let yaml = format!(
        "{{cluster_name: {name}, endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: \
         127.0.0.1, port_value: {port}}}}}}}}}]}}]}}"
    );
    resource::<ClusterLoadAssignment>(name, &yaml)
}

/// Makes changes in an order that the seed decides.
struct Changes {
    random: Random,
    backends: [SocketAddr; 2],
    /// Which of them serves.
    second: bool,
    /// A listener, cluster, route table and endpoints that come and go under a name of their own each time.
    other: Option<String>,
    made: usize,
}

impl Changes {
    fn next(&mut self, set: &mut ResourceSet) {
        let kind = self.random.below(5);
        self.made += 1;
        let version = self.made;
        match kind {
            0 => set.insert(ResourceType::Listener, listener("web", version)),
            1 => set.insert(ResourceType::Route, routes("web", version)),
            2 => {
                self.second = !self.second;
                set.insert(ResourceType::Endpoint, endpoints("web", self.backends[usize::from(self.second)]));
            }
            3 => set.insert(ResourceType::Cluster, cluster("web", version)),
            _ => match self.other.take() {
                None => {
                    let name = format!("other-{version}");
                    set.insert(ResourceType::Listener, listener(&name, version));
                    set.insert(ResourceType::Route, routes(&name, version));
                    set.insert(ResourceType::Cluster, cluster(&name, version));
                    set.insert(ResourceType::Endpoint, endpoints(&name, self.backends[0]));
                    self.other = Some(name);
                }
                Some(name) => self.remove(set, &name),
            },
        }
    }

    fn remove(&mut self, set: &mut ResourceSet, name: &str) {
        let kinds = [ResourceType::Listener, ResourceType::Route, ResourceType::Cluster, ResourceType::Endpoint];
        kinds.into_iter().for_each(|kind| _ = set.remove(kind, name));
    }

    /// Everything as it was in the beginning.
    fn back(&mut self, set: &mut ResourceSet) {
        if let Some(name) = self.other.take() {
            self.remove(set, &name);
        }
        self.second = false;
        set.insert(ResourceType::Listener, listener("web", 0));
        set.insert(ResourceType::Route, routes("web", 0));
        set.insert(ResourceType::Cluster, cluster("web", 0));
        set.insert(ResourceType::Endpoint, endpoints("web", self.backends[0]));
    }
}

/// A server that answers every request with the same text and, unlike [`evenkeel_testkit::Backend`], remembers none. It runs for as
/// long as the process.
fn backend(body: &'static str) -> SocketAddr {
    fn serve(mut stream: TcpStream, body: &str) -> std::io::Result<()> {
        stream.set_nodelay(true)?;
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let (mut buffer, mut held) = ([0; 4096], 0);
        loop {
            match stream.read(&mut buffer[held..])? {
                0 => return Ok(()),
                count => held += count,
            }
            if buffer[..held].ends_with(b"\r\n\r\n") {
                held = 0;
                stream.write_all(answer.as_bytes())?;
            }
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || serve(stream, body));
        }
    });
    address
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

/// Sends a few requests for every change it is told of. `keeps`: on one connection for as long as it may, otherwise on a new one
/// each time.
fn client(web: SocketAddr, keeps: bool, changes: &Receiver<()>) -> Seen {
    let mut seen = Seen::default();
    let mut connection = None;
    while let Ok(()) = changes.recv() {
        for turn in 1..=REQUESTS_PER_SWAP {
            let mut open = connection.take().unwrap_or_else(|| Connection::open(web).expect("it accepts"));
            let last = if keeps || turn < REQUESTS_PER_SWAP { "" } else { "connection: close\r\n" };
            let response = open.get("test", "/", last).expect("an answer");
            seen.add(&response);
            connection = response.keeps_open().then_some(open);
        }
    }
    seen
}

/// Makes so many changes under load, and puts everything back.
fn change(control_plane: &mut ControlPlane, changes: &mut Changes, web: SocketAddr, count: usize) {
    let started = Instant::now();
    let seen: Vec<Seen> = std::thread::scope(|scope| {
        let start = |number: usize| {
            let (sender, receiver) = sync_channel(MOST_BEHIND);
            (sender, scope.spawn(move || client(web, number.is_multiple_of(2), &receiver)))
        };
        let (tell, clients): (Vec<SyncSender<()>>, Vec<_>) = (0..CLIENTS).map(start).unzip();
        for turn in 0..count {
            tell.iter()
                .for_each(|client| client.send(()).unwrap_or_else(|_| panic!("a client failed at change {turn}")));
            control_plane.change(|set| changes.next(set));
            control_plane.wait_accepted();
        }
        control_plane.change(|set| changes.back(set));
        control_plane.wait_accepted();
        drop(tell);
        clients.into_iter().map(|client| client.join().expect("no failure")).collect()
    });
    let answers: usize = seen.iter().map(|seen| seen.answers).sum();
    let seconds = started.elapsed().as_secs_f64();
    _ = writeln!(
        std::io::stderr(),
        "{count} changes, {answers} requests in {seconds:.1} s: {:.0} changes/s, {:.0} requests/s",
        count as f64 / seconds,
        answers as f64 / seconds
    );
    // The load was there while the changes were, and saw them.
    for seen in seen {
        assert_eq!(seen.answers, count * REQUESTS_PER_SWAP);
        assert_eq!(seen.bodies.iter().collect::<Vec<_>>(), ["one", "two"]);
        assert!(seen.routes.len() > count / 20, "{} route tables", seen.routes.len());
        assert!(seen.listeners.len() > count / 20, "{} listeners", seen.listeners.len());
    }
}

#[test]
fn swaps_cost_no_request_and_leave_nothing_behind() {
    // Each is accepted by the proxy before the next is made.
    let swaps = cases(2_500, 9_500);
    let _alone = alone();
    raise_open_files();
    let backends = [backend("one"), backend("two")];
    let mut changes = Changes { random: Random::new(SEED), backends, second: false, other: None, made: 0 };
    let mut first = set(Vec::new());
    changes.back(&mut first);
    let mut control_plane = ControlPlane::start(first);
    // The recent requests that a worker keeps are many at first; so few of them are there before the heap is measured.
    let keep_few = |settings: &mut Settings| settings.recent.limit = 16;
    let proxy = Proxy::start_as(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""), keep_few);
    proxy.wait_live();
    let web = proxy.listener("web");

    change(&mut control_plane, &mut changes, web, WARM_UP);
    let mut before = live_bytes();
    poll(QUIET, || {
        before = before.min(live_bytes());
        None::<()>
    });
    let blocks = Blocks::now();
    change(&mut control_plane, &mut changes, web, swaps);
    let bar = before + (LEFT_BYTES_PER_SWAP * swaps).cast_signed();
    let back = poll(PATIENCE, || Some(live_bytes()).filter(|bytes| *bytes <= bar));
    _ = writeln!(std::io::stderr(), "heap: {before} bytes before, {} after", live_bytes());
    let grown = Blocks::now().grown_since(&blocks, swaps / 100);
    assert!(back.is_some(), "{} bytes more than before; blocks (size, count): {grown:?}", live_bytes() - before);

    // What was put back is in force.
    eventually("the first listener and route table", || {
        let response = get(web, "/");
        (response.header("server") == Some("v0") && response.header("x-routes") == Some("v0")).then_some(())
    });
}
