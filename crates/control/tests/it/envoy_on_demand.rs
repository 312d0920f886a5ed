//! Stock Envoy that requests resources when its workload uses them: virtual hosts by VHDS, clusters by on-demand CDS, and
//! endpoints by EDS, all on one delta ADS stream.

use std::net::SocketAddr;
use std::process::Command;
use std::sync::Arc;

use evenkeel_testkit::{Backend, Connection, Process, Response, eventually};
use evenkeel_xds::json::read_text;
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_xds::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use evenkeel_xds::server::{AdsServer, Published, Status};
use evenkeel_xds::{Resource, ResourceSet, ResourceType, Schema};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;

fn resource<M: prost::Name + Default>(name: &str, message: &Value) -> Resource {
    let read = read_text::<M>(&Schema::acquire(), "test.json", &message.to_string());
    assert!(read.diagnostics.is_empty(), "{}", read.diagnostics);
    Resource::from_message(name, &read.message.expect("a message"))
}

fn ads() -> Value {
    json!({ "ads": {}, "resource_api_version": "V3" })
}

fn put_routes(set: &mut ResourceSet) {
    // Nothing comes before the first request: Envoy is not to wait for it before it listens.
    let brief = json!({ "ads": {}, "resource_api_version": "V3", "initial_fetch_timeout": "0.1s" });
    let routes = resource::<RouteConfiguration>("80", &json!({ "name": "80", "vhds": { "config_source": brief } }));
    set.insert(ResourceType::Route, Arc::new(routes));
}

/// A virtual host that leads to a cluster. Its name is that of the resource: by that Envoy finds it when it goes.
fn put_host(set: &mut ResourceSet, domain: &str, cluster: &str) {
    let name = format!("80/{domain}");
    let host = json!({
        "name": name,
        "domains": [domain],
        "routes": [{ "match": { "prefix": "/" }, "route": { "cluster": cluster } }],
    });
    set.insert(ResourceType::VirtualHost, Arc::new(resource::<VirtualHost>(&name, &host)));
}

fn put_cluster(set: &mut ResourceSet, name: &str, endpoint: SocketAddr) {
    let cluster = json!({ "name": name, "type": "EDS", "eds_cluster_config": { "eds_config": ads() } });
    set.insert(ResourceType::Cluster, Arc::new(resource::<Cluster>(name, &cluster)));
    let address = json!({ "address": endpoint.ip().to_string(), "port_value": endpoint.port() });
    let endpoints = json!({
        "cluster_name": name,
        "endpoints": [{ "lb_endpoints": [{ "endpoint": { "address": { "socket_address": address } } }] }],
    });
    set.insert(ResourceType::Endpoint, Arc::new(resource::<ClusterLoadAssignment>(name, &endpoints)));
}

fn bootstrap(xds: SocketAddr) -> Value {
    let address = |port: u16| json!({ "socket_address": { "address": "127.0.0.1", "port_value": port } });
    let manager = json!({
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "web",
        "rds": { "route_config_name": "80", "config_source": ads() },
        "http_filters": [
            { "name": "on_demand", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.on_demand.v3.OnDemand",
                "odcds": { "source": ads(), "timeout": "5s" },
            }},
            { "name": "router", "typed_config": {
                "@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router",
            }},
        ],
    });
    json!({
        "node": { "id": "envoy", "cluster": "test" },
        "admin": { "address": address(0) },
        "dynamic_resources": { "ads_config": {
            "api_type": "DELTA_GRPC",
            "transport_api_version": "V3",
            "grpc_services": [{ "envoy_grpc": { "cluster_name": "xds" } }],
        }},
        "static_resources": {
            "listeners": [{
                "name": "web",
                "address": address(0),
                "filter_chains": [{ "filters": [{ "name": "http", "typed_config": manager }] }],
            }],
            "clusters": [{
                "name": "xds",
                "type": "STATIC",
                "typed_extension_protocol_options": { "envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                    "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                    "explicit_http_config": { "http2_protocol_options": {} },
                }},
                "load_assignment": { "cluster_name": "xds", "endpoints": [{ "lb_endpoints": [{ "endpoint": {
                    "address": address(xds.port()),
                }}]}]},
            }],
        },
    })
}

struct Envoy {
    process: Process,
    web: SocketAddr,
    status: watch::Receiver<Status>,
}

impl Envoy {
    fn start(xds: SocketAddr, status: watch::Receiver<Status>) -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        let (file, admin_path) = (folder.path().join("bootstrap.json"), folder.path().join("admin"));
        std::fs::write(&file, bootstrap(xds).to_string()).expect("a bootstrap file");
        let mut command = Command::new(evenkeel_testkit::envoy());
        command.args(["--concurrency", "1", "-l", "warning", "--use-dynamic-base-id", "--admin-address-path"]);
        command.arg(&admin_path).arg("-c").arg(&file);
        let mut process = Process::spawn(&mut command);
        let admin: SocketAddr =
            process.wait_for("the admin address", |_| std::fs::read_to_string(&admin_path).ok()?.parse().ok());
        let web: SocketAddr = process.wait_for("the listener", |_| {
            let text = Connection::open(admin).ok()?.get("admin", "/listeners", "").ok()?.text();
            text.lines().find_map(|line| line.strip_prefix("web::")?.parse().ok())
        });
        // It accepts once it has its route table.
        process.wait_for_port(web);
        Self { process, web, status }
    }

    fn get(&self, host: &str) -> Response {
        let answer = Connection::open(self.web).and_then(|mut connection| connection.get(host, "/", ""));
        answer.unwrap_or_else(|error| panic!("{host}: {error}: {}", self.process.output()))
    }

    /// How many names of a type it has asked for.
    fn names(&self, kind: ResourceType) -> usize {
        self.status.borrow().of(kind).map_or(0, |status| status.names)
    }
}

#[tokio::test]
async fn envoy_holds_requests_and_asks_for_hosts_clusters_and_endpoints() {
    let (source, sender, observed) = Published::new(ResourceSet::new(1));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (server, service) = (tonic::transport::Server::builder(), AdsServer::new(Arc::new(source)));
    tokio::spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
    let play = move || play(address, &sender, observed);
    tokio::task::spawn_blocking(play).await.expect("no panic");
}

fn play(xds: SocketAddr, resources: &watch::Sender<Arc<ResourceSet>>, status: watch::Receiver<Status>) {
    let backend = Backend::echo("web");
    let mut set = ResourceSet::new(2);
    put_routes(&mut set);
    put_host(&mut set, "web.test", "web");
    put_host(&mut set, "*.wild.test", "wild");
    put_host(&mut set, "lost.test", "lost");
    for cluster in ["web", "wild", "unused"] {
        put_cluster(&mut set, cluster, backend.address());
    }
    resources.send_replace(Arc::new(set.clone()));
    let envoy = Envoy::start(xds, status);
    assert_eq!([ResourceType::VirtualHost, ResourceType::Cluster].map(|kind| envoy.names(kind)), [0, 0]);

    // Asked for on the first request, and not again.
    for _ in 0..2 {
        let answer = envoy.get("web.test");
        assert_eq!(answer.status, 200, "{}\n{}", answer.text(), envoy.process.output());
        assert_eq!([ResourceType::VirtualHost, ResourceType::Cluster].map(|kind| envoy.names(kind)), [1, 1]);
    }
    // Two hosts of one wildcard.
    assert_eq!((envoy.get("a.wild.test").status, envoy.get("b.wild.test").status), (200, 200));
    // What does not exist is answered as absent: nothing waits for it.
    assert_eq!(envoy.get("unknown.test").status, 404);
    assert_eq!(envoy.get("lost.test").status, 503);
    assert_eq!(backend.requests().len(), 4);

    // What was asked for in vain is told when it comes to be, and what goes is taken away.
    put_host(&mut set, "unknown.test", "web");
    put_cluster(&mut set, "lost", backend.address());
    set.remove(ResourceType::VirtualHost, "80/web.test");
    set.generation += 1;
    resources.send_replace(Arc::new(set));
    for (host, expected) in [("unknown.test", 200), ("lost.test", 200), ("web.test", 404)] {
        eventually(host, || (envoy.get(host).status == expected).then_some(()));
    }
    let status = envoy.status.borrow().clone();
    assert_eq!(status.types.iter().map(|of| of.rejects).sum::<u64>(), 0, "{status:?}");
    assert!(status.types.iter().all(|of| !of.wildcard), "{status:?}");
}
