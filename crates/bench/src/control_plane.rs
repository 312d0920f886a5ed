//! A control plane in this process with a given number of services, one of which it changes on request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use evenkeel_xds::json::read_text;
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::core::v3::socket_address::PortSpecifier;
use evenkeel_xds::pb::envoy::config::core::v3::{Address, SocketAddress, address};
use evenkeel_xds::pb::envoy::config::endpoint::v3::lb_endpoint::HostIdentifier;
use evenkeel_xds::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints};
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::route::v3::RouteConfiguration;
use evenkeel_xds::server::{AdsServer, Published, Status};
use evenkeel_xds::{Resource, ResourceSet, ResourceType, Schema};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

/// Time limit until a change is accepted.
const PATIENCE: Duration = Duration::from_secs(30);
/// Virtual hosts of the one route table.
const VIRTUAL_HOSTS: usize = 10;
/// The service that requests go to.
const USED: usize = 0;
/// The service whose endpoints change.
const CHANGED: usize = 1;

/// It ends with this value.
pub struct ControlPlane {
    address: SocketAddr,
    resources: watch::Sender<Arc<ResourceSet>>,
    status: watch::Receiver<Status>,
    set: ResourceSet,
    changes: u32,
    runtime: Runtime,
}

/// The kind of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// The endpoints of one service.
    Endpoints,
    /// The route table.
    Routes,
}

impl ControlPlane {
    /// Starts with `services` services, one of them at `upstream`, behind a listener on `listen`.
    pub fn start(services: usize, listen: SocketAddr, upstream: SocketAddr) -> Result<Self> {
        let set = resources(services, listen, upstream)?;
        let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (source, resources, status) = Published::new(set.clone());
        let listener = runtime.block_on(TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)))?;
        let address = listener.local_addr()?;
        let (server, service) = (Server::builder(), AdsServer::new(Arc::new(source)));
        runtime.spawn(server.serve_with_incoming(service, TcpListenerStream::new(listener)));
        Ok(Self { address, resources, status, set, changes: 0, runtime })
    }

    /// The bootstrap file of a proxy that takes its configuration from here.
    pub fn bootstrap(&self, id: &str, admin: SocketAddr) -> String {
        format!(
            r#"node: {{id: "{id}", cluster: bench}}
admin: {{address: {{socket_address: {{address: {}, port_value: {}}}}}}}
dynamic_resources:
  ads_config:
    api_type: DELTA_GRPC
    transport_api_version: V3
    grpc_services: [{{envoy_grpc: {{cluster_name: xds-grpc}}}}]
  cds_config: {{ads: {{}}, resource_api_version: V3}}
  lds_config: {{ads: {{}}, resource_api_version: V3}}
static_resources:
  clusters:
  - name: xds-grpc
    type: STATIC
    connect_timeout: 5s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: xds-grpc
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {}}}}}]}}]
"#,
            admin.ip(),
            admin.port(),
            socket(self.address),
        )
    }

    /// Makes a change and publishes it.
    pub fn change(&mut self, change: Change) -> Result<()> {
        self.changes += 1;
        match change {
            Change::Endpoints => {
                let [.., a, b] = self.changes.to_be_bytes();
                let address = SocketAddr::from(([10, 254, a, b], 80));
                self.set.insert(ResourceType::Endpoint, endpoints(&cluster_name(CHANGED), address));
            }
            Change::Routes => self.set.insert(ResourceType::Route, routes(self.changes)?),
        }
        self.set.generation += 1;
        self.resources.send_replace(Arc::new(self.set.clone()));
        Ok(())
    }

    /// Waits until the proxy has accepted the published resources.
    pub fn wait_accepted(&self) -> Result<()> {
        let (generation, mut status) = (self.set.generation, self.status.clone());
        let accepted = status.wait_for(|status| status.is_live(generation));
        let accepted = self
            .runtime
            .block_on(async { tokio::time::timeout(PATIENCE, accepted).await.map(|status| status.map(|_| ())) });
        ensure!(matches!(accepted, Ok(Ok(()))), "the change was not accepted within {PATIENCE:?}");
        Ok(())
    }
}

/// Returns all resources of a proxy with this many services: a listener, a route table, and a cluster with its endpoints for
/// each.
pub fn resources(services: usize, listen: SocketAddr, upstream: SocketAddr) -> Result<ResourceSet> {
    // Held over all that is read, so that it loads once.
    let _schema = Schema::acquire();
    let mut set = ResourceSet::new(1);
    let cluster: Cluster = read(
        "{name: a, type: EDS, connect_timeout: 5s, eds_cluster_config: {eds_config: {ads: {}, resource_api_version: V3}}}",
    )?;
    for number in 0..services {
        let name = cluster_name(number);
        let cluster = Cluster { name: name.clone(), ..cluster.clone() };
        set.insert(ResourceType::Cluster, Arc::new(Resource::from_message(&*name, &cluster)));
        let [.., b, c] = u32::try_from(number)?.to_be_bytes();
        let address = if number == USED { upstream } else { SocketAddr::from(([10, 255, b, c], 80)) };
        set.insert(ResourceType::Endpoint, endpoints(&name, address));
    }
    set.insert(ResourceType::Listener, listener(listen)?);
    set.insert(ResourceType::Route, routes(0)?);
    Ok(set)
}

/// The cluster of a service.
pub fn cluster_name(number: usize) -> String {
    format!("outbound|80||service-{number}.bench.svc.cluster.local")
}

fn socket(address: SocketAddr) -> String {
    format!("{{socket_address: {{address: {}, port_value: {}}}}}", address.ip(), address.port())
}

/// Returns the single endpoint of a cluster.
pub fn endpoints(cluster: &str, address: SocketAddr) -> Arc<Resource> {
    let socket = SocketAddress {
        address: address.ip().to_string(),
        port_specifier: Some(PortSpecifier::PortValue(u32::from(address.port()))),
        ..SocketAddress::default()
    };
    let address = Address { address: Some(address::Address::SocketAddress(socket)) };
    let endpoint = Endpoint { address: Some(address), ..Endpoint::default() };
    let host = LbEndpoint { host_identifier: Some(HostIdentifier::Endpoint(endpoint)), ..LbEndpoint::default() };
    let locality = LocalityLbEndpoints { lb_endpoints: vec![host], ..LocalityLbEndpoints::default() };
    let assignment = ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![locality],
        ..ClusterLoadAssignment::default()
    };
    Arc::new(Resource::from_message(cluster, &assignment))
}

/// The route table; `version` is in one of its hosts' answers.
pub fn routes(version: u32) -> Result<Arc<Resource>> {
    let host = |number: usize| {
        let domains = if number == USED { "*".to_owned() } else { format!("service-{number}.bench") };
        let cluster = cluster_name(number);
        format!(
            "{{name: \"{domains}\", domains: [\"{domains}\"], routes: [{{match: {{prefix: /}}, route: {{cluster: \"{cluster}\"}}}}]}}"
        )
    };
    let hosts: Vec<_> = (0..VIRTUAL_HOSTS).map(host).collect();
    let yaml = format!(
        "{{name: main, response_headers_to_add: [{{header: {{key: x-version, value: v{version}}}}}], virtual_hosts: [{}]}}",
        hosts.join(", ")
    );
    Ok(Arc::new(Resource::from_message("main", &read::<RouteConfiguration>(&yaml)?)))
}

fn listener(listen: SocketAddr) -> Result<Arc<Resource>> {
    let yaml = format!(
        r#"
name: ingress
address: {}
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: ingress
      rds: {{route_config_name: main, config_source: {{ads: {{}}, resource_api_version: V3}}}}
      http_filters:
      - name: envoy.filters.http.router
        typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
"#,
        socket(listen)
    );
    Ok(Arc::new(Resource::from_message("ingress", &read::<Listener>(&yaml)?)))
}

fn read<M: prost::Name + Default>(yaml: &str) -> Result<M> {
    let read = read_text::<M>(&Schema::acquire(), "bench.yaml", yaml);
    ensure!(read.diagnostics.is_empty(), "{}", read.diagnostics);
    read.message.context("a message")
}
