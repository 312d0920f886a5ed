//! Go's gRPC as a proxyless client: it resolves a name by LDS, RDS, CDS and EDS, state of the world, and follows changes.

use std::process::Command;
use std::sync::Arc;

use evenkeel_testkit::{Process, grpc_xds_client};
use evenkeel_xds::pb::envoy::config::cluster::v3::{Cluster, cluster};
use evenkeel_xds::pb::envoy::config::core::v3::{
    Address, AggregatedConfigSource, ConfigSource, Locality, SocketAddress, address, config_source, socket_address,
};
use evenkeel_xds::pb::envoy::config::endpoint::v3::{
    ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
};
use evenkeel_xds::pb::envoy::config::listener::v3::{ApiListener, Listener};
use evenkeel_xds::pb::envoy::config::route::v3::{
    Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route, route_action, route_match,
};
use evenkeel_xds::pb::envoy::extensions::filters::http::router::v3::Router;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, HttpFilter, Rds, http_connection_manager::RouteSpecifier, http_filter,
};
use evenkeel_xds::pb::google::protobuf::UInt32Value;
use evenkeel_xds::server::{AdsServer, Published};
use evenkeel_xds::{Resource, ResourceSet, ResourceType, pack};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;

const NAME: &str = "echo.shop:80";

fn ads() -> Option<ConfigSource> {
    let ads = config_source::ConfigSourceSpecifier::Ads(AggregatedConfigSource::default());
    Some(ConfigSource { config_source_specifier: Some(ads), ..Default::default() })
}

fn listener() -> Listener {
    let rds = Rds { route_config_name: "routes".into(), config_source: ads() };
    let router = http_filter::ConfigType::TypedConfig(pack(&Router::default()));
    let filter =
        HttpFilter { name: "envoy.filters.http.router".into(), config_type: Some(router), ..Default::default() };
    let manager = HttpConnectionManager {
        route_specifier: Some(RouteSpecifier::Rds(rds)),
        http_filters: vec![filter],
        ..Default::default()
    };
    let api_listener = Some(ApiListener { api_listener: Some(pack(&manager)) });
    Listener { name: NAME.into(), api_listener, ..Default::default() }
}

fn routes(cluster: &str) -> RouteConfiguration {
    let matched =
        RouteMatch { path_specifier: Some(route_match::PathSpecifier::Prefix(String::new())), ..Default::default() };
    let action = RouteAction {
        cluster_specifier: Some(route_action::ClusterSpecifier::Cluster(cluster.into())),
        ..Default::default()
    };
    let route = Route { r#match: Some(matched), action: Some(route::Action::Route(action)), ..Default::default() };
    let host = VirtualHost { name: NAME.into(), domains: vec![NAME.into()], routes: vec![route], ..Default::default() };
    RouteConfiguration { name: "routes".into(), virtual_hosts: vec![host], ..Default::default() }
}

fn cluster(name: &str) -> Cluster {
    Cluster {
        name: name.into(),
        cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(cluster::DiscoveryType::Eds as i32)),
        eds_cluster_config: Some(cluster::EdsClusterConfig { eds_config: ads(), ..Default::default() }),
        ..Default::default()
    }
}

fn endpoints(name: &str, port: u32) -> ClusterLoadAssignment {
    let socket = SocketAddress {
        address: "127.0.0.1".into(),
        port_specifier: Some(socket_address::PortSpecifier::PortValue(port)),
        ..Default::default()
    };
    let address = Some(Address { address: Some(address::Address::SocketAddress(socket)) });
    let endpoint = lb_endpoint::HostIdentifier::Endpoint(Endpoint { address, ..Default::default() });
    let locality = LocalityLbEndpoints {
        locality: Some(Locality { region: "here".into(), ..Default::default() }),
        load_balancing_weight: Some(UInt32Value { value: 1 }),
        lb_endpoints: vec![LbEndpoint { host_identifier: Some(endpoint), ..Default::default() }],
        ..Default::default()
    };
    ClusterLoadAssignment { cluster_name: name.into(), endpoints: vec![locality], ..Default::default() }
}

fn put(set: &mut ResourceSet, kind: ResourceType, resource: Resource) {
    set.insert(kind, Arc::new(resource));
}

#[tokio::test]
async fn resolves_a_name_and_follows_changes() {
    let (source, sender, _status) = Published::new(ResourceSet::new(1));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (server, service) = (tonic::transport::Server::builder(), AdsServer::new(Arc::new(source)));
    tokio::spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
    let config = format!(
        r#"{{"xds_servers": [{{"server_uri": "{}", "channel_creds": [{{"type": "insecure"}}], "server_features": ["xds_v3"]}}],
            "node": {{"id": "go"}}}}"#,
        address
    );
    let mut command = Command::new(grpc_xds_client());
    command.arg(NAME).env("GRPC_XDS_BOOTSTRAP_CONFIG", config);
    let play = move || play(Process::spawn(&mut command), ResourceSet::new(2), &sender);
    tokio::task::spawn_blocking(play).await.expect("no panic");
}

fn play(mut go: Process, mut set: ResourceSet, resources: &watch::Sender<Arc<ResourceSet>>) {
    let line = go.wait_for_line("serving");
    let ports: Vec<u32> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [first, second] = ports[..] else { panic!("two ports: {line}") };
    put(&mut set, ResourceType::Listener, Resource::from_message(NAME, &listener()));
    put(&mut set, ResourceType::Route, Resource::from_message("routes", &routes("one")));
    put(&mut set, ResourceType::Cluster, Resource::from_message("one", &cluster("one")));
    put(&mut set, ResourceType::Endpoint, Resource::from_message("one", &endpoints("one", first)));
    let publish = |set: &mut ResourceSet| {
        set.generation += 1;
        resources.send_replace(Arc::new(set.clone()));
    };
    publish(&mut set);
    go.wait_for_line(&format!("answered {first}."));

    // An endpoint moves.
    put(&mut set, ResourceType::Endpoint, Resource::from_message("one", &endpoints("one", second)));
    publish(&mut set);
    go.wait_for_line(&format!("answered {second}."));

    // A route moves to another cluster, and the one it leaves goes: no call fails over it.
    put(&mut set, ResourceType::Cluster, Resource::from_message("two", &cluster("two")));
    put(&mut set, ResourceType::Endpoint, Resource::from_message("two", &endpoints("two", first)));
    put(&mut set, ResourceType::Route, Resource::from_message("routes", &routes("two")));
    set.remove(ResourceType::Cluster, "one");
    set.remove(ResourceType::Endpoint, "one");
    let from = go.output().len();
    publish(&mut set);
    let answered = format!("answered {first}.");
    go.wait_for("the other cluster", |go| go.output().get(from..)?.contains(&answered).then_some(()));
    let since = go.output();
    assert!(!since.get(from..).unwrap_or_default().contains("error:"), "{since}");
}
