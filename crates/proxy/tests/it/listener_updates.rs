//! A change of a listener ends the connections that it concerns, and no others.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::http::Ending;
use evenkeel_testkit::{Connection, TcpEcho, eventually};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration;
use evenkeel_xds::{Resource, ResourceType};
use socket2::{Domain, Socket, Type};

use crate::harness::{
    ControlPlane, Proxy, answering, dynamic_bootstrap, get, http_listener_at, resource, set, static_cluster,
};

const HTTP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
const OTHER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 3);
const TCP: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 4);

/// A filter chain for clients at one address.
fn chain(client: Ipv4Addr, filter: &str) -> String {
    format!(
        "- filter_chain_match: {{source_prefix_ranges: [{{address_prefix: {client}, prefix_len: 32}}]}}\n  filters: \
         [{{name: filter, typed_config: {{{filter}}}}}]\n"
    )
}

fn http(server_name: &str) -> String {
    format!(
        "\"@type\": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager, \
         stat_prefix: web, server_name: {server_name}, rds: {{route_config_name: main, config_source: {{ads: {{}}, \
         resource_api_version: V3}}}}, http_filters: [{{name: router, typed_config: {{\"@type\": \
         type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}}}]"
    )
}

fn tcp() -> String {
    "\"@type\": type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy, stat_prefix: tcp, cluster: echo"
        .to_owned()
}

fn listener(host: u8, chains: &[String], fields: &str) -> Arc<Resource> {
    let chains = chains.concat();
    let yaml = format!(
        "name: web\naddress: {{socket_address: {{address: 127.0.9.{host}, port_value: \
         0}}}}\n{fields}\nfilter_chains:\n{chains}"
    );
    resource::<Listener>("web", &yaml)
}

fn routes(body: &str) -> Arc<Resource> {
    let yaml = format!(
        "{{name: main, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, direct_response: \
         {{status: 200, body: {{inline_string: {body}}}}}}}]}}]}}"
    );
    resource::<RouteConfiguration>("main", &yaml)
}

fn client(from: Ipv4Addr, to: SocketAddr) -> Connection {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::new(IpAddr::V4(from), 0).into()).expect("loopback is 127.0.0.0/8");
    socket.set_read_timeout(Some(Duration::from_secs(15))).expect("a timeout");
    socket.connect(&to.into()).expect("it accepts");
    let socket = std::net::TcpStream::from(socket);
    Connection::over(socket.try_clone().expect("another descriptor"), socket)
}

/// One client of each chain.
struct Clients {
    http: Connection,
    other: Connection,
    tcp: Connection,
}

impl Clients {
    fn open(web: SocketAddr) -> Self {
        let mut clients = Self { http: client(HTTP, web), other: client(OTHER, web), tcp: client(TCP, web) };
        assert_stays(&mut clients.http, "before");
        assert_stays(&mut clients.other, "before");
        clients.assert_tcp_stays("before");
        clients
    }

    fn assert_tcp_stays(&mut self, when: &str) {
        self.tcp.send("ping").unwrap_or_else(|error| panic!("{when}: {error}"));
        assert_eq!(self.tcp.read_exact(4).unwrap_or_else(|error| panic!("{when}: {error}")), b"ping");
    }
}

fn assert_stays(connection: &mut Connection, when: &str) -> String {
    let response = connection.get("test", "/", "").unwrap_or_else(|error| panic!("{when}: {error}"));
    assert!(response.keeps_open(), "{when}: {response:?}");
    response.text()
}

/// It is closed, or with its next answer.
fn assert_drains(connection: &mut Connection, when: &str) {
    if let Ok(response) = connection.get("test", "/", "") {
        assert!(!response.keeps_open(), "{when}: {response:?}");
    }
}

fn assert_cut(connection: &mut Connection, when: &str) {
    let ending = connection.ending(Duration::from_secs(10)).expect("a timeout can be set");
    assert!(matches!(ending, Ending::Closed | Ending::Reset), "{when}: {ending:?}");
}

fn change(control_plane: &mut ControlPlane, kind: ResourceType, resource: Arc<Resource>) {
    control_plane.change(|set| set.insert(kind, resource));
    control_plane.wait_accepted();
}

#[test]
fn a_change_drains_the_connections_of_the_chains_it_changes() {
    let echo = TcpEcho::start();
    let cluster = resource::<Cluster>("echo", &static_cluster("echo", echo.address(), ""));
    let before = [chain(HTTP, &http("one")), chain(OTHER, &http("one")), chain(TCP, &tcp())];
    let mut control_plane = ControlPlane::start(set(vec![
        (ResourceType::Cluster, cluster),
        (ResourceType::Route, routes("first")),
        (ResourceType::Listener, listener(1, &before, "")),
    ]));
    let proxy = Proxy::start_as(&dynamic_bootstrap(control_plane.address, "DELTA_GRPC", ""), |settings| {
        // Only the second is about listeners that change.
        settings.drain_time = Duration::from_secs(60);
        settings.listener_drain_time = Duration::from_secs(1);
    });
    proxy.wait_live();
    let mut clients = Clients::open(proxy.listener("web"));

    for turn in 0..10 {
        change(&mut control_plane, ResourceType::Route, routes(&format!("turn-{turn}")));
        eventually("the routes", || {
            (assert_stays(&mut clients.http, "routes") == format!("turn-{turn}")).then_some(())
        });
        assert_stays(&mut clients.other, "routes changed");
        clients.assert_tcp_stays("routes changed");
    }

    // One chain changes; all come in another order, in a listener with other fields of its own.
    let after = [chain(TCP, &tcp()), chain(OTHER, &http("two")), chain(HTTP, &http("one"))];
    let update = listener(1, &after, "listener_filters_timeout: 3s");
    change(&mut control_plane, ResourceType::Listener, update);
    assert_drains(&mut clients.other, "its chain changed");
    assert_stays(&mut clients.http, "another chain changed");
    clients.assert_tcp_stays("another chain changed");
    clients.other = client(OTHER, proxy.listener("web"));
    assert_stays(&mut clients.other, "a new connection");

    // A chain goes.
    change(&mut control_plane, ResourceType::Listener, listener(1, &after[1..], ""));
    assert_cut(&mut clients.tcp, "its chain is gone");
    assert_stays(&mut clients.http, "another chain went");
    assert_stays(&mut clients.other, "another chain went");

    // At another address it is another listener.
    change(&mut control_plane, ResourceType::Listener, listener(2, &after[1..], ""));
    assert_drains(&mut clients.http, "the address changed");
    assert_drains(&mut clients.other, "the address changed");
}

#[test]
fn a_listener_refused_for_its_address_serves_once_the_address_is_free() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port");
    let at = |name: &str| resource::<Listener>(name, &http_listener_at(free, name, &answering(name), ""));
    for api_type in ["DELTA_GRPC", "GRPC"] {
        let mut control_plane = ControlPlane::start(set(vec![(ResourceType::Listener, at("first"))]));
        let proxy = Proxy::start(&dynamic_bootstrap(control_plane.address, api_type, ""));
        assert_eq!(get(proxy.listener("first"), "/").text(), "first");
        control_plane.change(|set| set.insert(ResourceType::Listener, at("second")));
        control_plane.wait_status("a refusal", |status| status.types.iter().any(|kind| kind.nack.is_some()));
        control_plane.change(|set| _ = set.remove(ResourceType::Listener, "first"));
        assert_eq!(get(proxy.listener("second"), "/").text(), "second");
        assert!(!proxy.get("/config_dump").text().contains("duplicate address"), "no longer refused");
        control_plane.change(|set| _ = set.remove(ResourceType::Listener, "second"));
        eventually("it to end", || std::net::TcpStream::connect(free).is_err().then_some(()));
    }
}
