//! A proxy in this process, and a control plane to configure it.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_proxy::options::{AdminWriters, BootstrapSource, Settings};
use evenkeel_proxy::{RunError, run_until};
use evenkeel_testkit::tls::TlsClient;
use evenkeel_testkit::wait::PATIENCE;
use evenkeel_testkit::{Connection, Identity, Response, TestCa, eventually};
use evenkeel_xds::json::read_text;
use evenkeel_xds::pb::envoy::service::secret::v3::secret_discovery_service_server::SecretDiscoveryServiceServer;
use evenkeel_xds::server::grpc::Services;
use evenkeel_xds::server::{AdsServer, AdsService, Published, Status};
use evenkeel_xds::{Resource, ResourceSet, ResourceType, Schema};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::{oneshot, watch};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

/// A running proxy; dropping it drains and ends it.
pub struct Proxy {
    pub admin: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), RunError>>>,
    _folder: TempDir,
}

impl Proxy {
    pub fn start(bootstrap: &str) -> Self {
        Self::start_with(bootstrap, 2)
    }

    /// With that many workers.
    pub fn start_with(bootstrap: &str, concurrency: usize) -> Self {
        Self::start_as(bootstrap, |settings| settings.concurrency = concurrency)
    }

    /// With other settings.
    pub fn start_as(bootstrap: &str, change: impl FnOnce(&mut Settings)) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let admin_path = folder.path().join("admin");
        let mut settings = settings(bootstrap, &folder, Some(admin_path.clone()));
        change(&mut settings);
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn(move || run_until(settings, stopped));
        let admin = eventually("the admin address", || {
            assert!(!thread.is_finished(), "the proxy ended at once");
            std::fs::read_to_string(&admin_path).ok()?.parse().ok()
        });
        Self { admin, stop: Some(stop), thread: Some(thread), _folder: folder }
    }

    pub fn get(&self, path: &str) -> Response {
        self.request("GET", path)
    }

    pub fn post(&self, path: &str) -> Response {
        self.request("POST", path)
    }

    fn request(&self, method: &str, path: &str) -> Response {
        let mut connection = Connection::open(self.admin).expect("the admin port accepts");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: admin\r\nconnection: close\r\ncontent-length: 0\r\n\r\n");
        connection.send(head).expect("the admin port reads");
        connection.response().expect("the admin port answers")
    }

    pub fn json(&self, path: &str) -> serde_json::Value {
        let response = self.get(path);
        serde_json::from_slice(&response.body).unwrap_or_else(|error| panic!("{path}: {error}: {}", response.text()))
    }

    /// Asks `/explain` with this body: the status and the answer, which is a text where it is no JSON.
    pub fn explain(&self, body: &str) -> (u16, serde_json::Value) {
        let mut connection = Connection::open(self.admin).expect("the admin port accepts");
        let length = body.len();
        let request = format!("POST /explain HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n{body}");
        connection.send(request).expect("the admin port reads");
        let answer = connection.response().expect("an answer");
        (answer.status, serde_json::from_slice(&answer.body).unwrap_or_else(|_| answer.text().into()))
    }

    /// Where a listener is bound, once it is.
    pub fn listener(&self, name: &str) -> SocketAddr {
        eventually(&format!("listener {name}"), || {
            let text = self.get("/listeners").text();
            text.lines().find_map(|line| line.strip_prefix(&format!("{name}::"))?.parse().ok())
        })
    }

    pub fn wait_live(&self) {
        eventually("LIVE", || (self.get("/ready").status == 200).then_some(()));
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(|thread| thread.is_finished())
    }

    /// Tells it to end and waits.
    pub fn stop(mut self) -> Result<(), RunError> {
        drop(self.stop.take());
        self.thread.take().expect("not stopped before").join().expect("the proxy does not panic")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let result = thread.join();
            assert!(std::thread::panicking() || matches!(result, Ok(Ok(()))), "{result:?}");
        }
    }
}

pub fn settings(bootstrap: &str, folder: &TempDir, admin_address_path: Option<PathBuf>) -> Settings {
    let path = folder.path().join("bootstrap.yaml");
    std::fs::write(&path, bootstrap).expect("a writable folder");
    Settings {
        bootstrap: BootstrapSource { path: Some(path), text: None },
        concurrency: 2,
        node: Default::default(),
        log_level: Default::default(),
        drain_time: Duration::from_secs(5),
        listener_drain_time: Duration::from_secs(5),
        admin_address_path,
        handover: None,
        parent_shutdown_time: Duration::from_secs(10),
        admin_writers: AdminWriters::User,
        recent: evenkeel_proxy::recent::Options { limit: 256, except: Vec::new() },
        log_flush: Default::default(),
        custom_filters: Vec::new(),
    }
}

pub fn get(address: SocketAddr, path: &str) -> Response {
    Connection::open(address).expect("the listener accepts").get("test", path, "").expect("an answer")
}

/// The certificates of a client's and a server's workload, as configuration names them.
pub struct MeshTls {
    pub ca: TestCa,
    pub client: Identity,
    files: TempDir,
}

const TLS: &str = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3";

impl MeshTls {
    pub const CLIENT: &str = "spiffe://cluster.local/ns/default/sa/client";
    pub const SERVER: &str = "spiffe://cluster.local/ns/default/sa/server";
    /// The server's other name.
    pub const SERVER_NAME: &str = "server.test";

    pub fn new() -> Self {
        let (files, ca) = (tempfile::tempdir().expect("a temporary folder"), TestCa::new());
        std::fs::write(files.path().join("ca.pem"), ca.root_pem()).expect("a writable folder");
        let client = ca.for_spiffe(Self::CLIENT);
        client.write(files.path(), "client");
        ca.for_server(Self::SERVER, Self::SERVER_NAME).write(files.path(), "server");
        Self { ca, client, files }
    }

    /// Fields of a filter chain: only clients with a certificate are let in.
    pub fn listener(&self, alpn: &str) -> String {
        let context = self.context("server", alpn);
        format!(
            "\n  transport_socket: {{name: tls, typed_config: {{\"@type\": {TLS}.DownstreamTlsContext, \
             require_client_certificate: true, {context}}}}}\n"
        )
    }

    /// The field of a cluster whose hosts want a certificate.
    pub fn cluster(&self, alpn: &str) -> String {
        let context = self.context("client", alpn);
        format!("transport_socket: {{name: tls, typed_config: {{\"@type\": {TLS}.UpstreamTlsContext, {context}}}}}")
    }

    /// A connection with the client's certificate.
    pub fn open(&self, address: SocketAddr) -> std::io::Result<Connection> {
        let (server_name, identity) = (Self::SERVER_NAME, Some(&self.client));
        TlsClient { server_name, root_pem: self.ca.root_pem(), identity, alpn: &["http/1.1"] }.open(address)
    }

    fn context(&self, name: &str, alpn: &str) -> String {
        let folder = self.files.path().display();
        format!(
            "common_tls_context: {{tls_certificates: [{{certificate_chain: {{filename: {folder}/{name}-cert.pem}}, private_key: \
             {{filename: {folder}/{name}-key.pem}}}}], validation_context: {{trusted_ca: {{filename: {folder}/ca.pem}}}}, \
             alpn_protocols: [{alpn}]}}"
        )
    }
}

/// The field of a cluster that says what its hosts speak.
pub fn protocol(choice: &str) -> String {
    format!(
        "typed_extension_protocol_options: {{envoy.extensions.upstreams.http.v3.HttpProtocolOptions: {{\"@type\": \
         type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions, {choice}}}}}"
    )
}

/// A control plane that serves whatever a test gives it.
pub struct ControlPlane {
    pub address: SocketAddr,
    resources: watch::Sender<Arc<ResourceSet>>,
    status: watch::Receiver<Status>,
    set: ResourceSet,
    runtime: Option<Runtime>,
}

impl ControlPlane {
    pub fn start(set: ResourceSet) -> Self {
        Self::start_on("127.0.0.1:0".parse().expect("an address"), set)
    }

    pub fn start_on(address: SocketAddr, set: ResourceSet) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads");
        let (source, resources, status) = Published::new(set.clone());
        let source = Arc::new(source);
        let listener = runtime.block_on(tokio::net::TcpListener::bind(address)).expect("a free port");
        let address = listener.local_addr().expect("bound");
        let secrets = SecretDiscoveryServiceServer::new(AdsService::new(source.clone()));
        let services = Services::default().with(AdsServer::new(source)).with(secrets);
        runtime.spawn(Server::builder().serve_with_incoming(services, TcpListenerStream::new(listener)));
        Self { address, resources, status, set, runtime: Some(runtime) }
    }

    /// Changes the set and publishes it.
    pub fn change(&mut self, change: impl FnOnce(&mut ResourceSet)) {
        change(&mut self.set);
        self.set.generation += 1;
        self.resources.send_replace(Arc::new(self.set.clone()));
    }

    pub fn wait_status(&self, what: &str, accept: impl Fn(&Status) -> bool) -> Status {
        eventually(what, || Some(self.status.borrow().clone()).filter(|status| accept(status)))
    }

    pub fn generation(&self) -> u64 {
        self.set.generation
    }

    /// Waits until the set as it is now is accepted.
    pub fn wait_accepted(&self) {
        let (generation, mut status) = (self.set.generation, self.status.clone());
        let accepted = status.wait_for(|status| status.is_live(generation));
        let runtime = self.runtime.as_ref().expect("running");
        let accepted =
            runtime.block_on(async { tokio::time::timeout(PATIENCE, accepted).await.map(|status| status.is_ok()) });
        assert_eq!(accepted, Ok(true), "the change was not accepted");
    }

    /// Ends it, as a crash would.
    pub fn kill(mut self) -> ResourceSet {
        self.runtime.take().expect("running").shutdown_background();
        std::mem::take(&mut self.set)
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// The descriptors, held by all tests: whoever needs them would load them anew otherwise.
static SCHEMA: LazyLock<Arc<Schema>> = LazyLock::new(Schema::acquire);

/// A message from YAML.
pub fn message<M: prost::Name + Default>(yaml: &str) -> M {
    let read = read_text::<M>(&SCHEMA, "test.yaml", yaml);
    assert!(read.diagnostics.is_empty(), "{}", read.diagnostics);
    read.message.expect("a message")
}

/// A resource from YAML.
pub fn resource<M: prost::Name + Default>(name: &str, yaml: &str) -> Arc<Resource> {
    Arc::new(Resource::from_message(name, &message::<M>(yaml)))
}

pub fn set(resources: Vec<(ResourceType, Arc<Resource>)>) -> ResourceSet {
    let mut set = ResourceSet::new(1);
    resources.into_iter().for_each(|(kind, resource)| set.insert(kind, resource));
    set
}

/// A bootstrap whose clusters and listeners come from `control_plane`.
pub fn dynamic_bootstrap(control_plane: SocketAddr, api_type: &str, extra_clusters: &str) -> String {
    let port = control_plane.port();
    format!(
        r#"
node: {{id: test-node, cluster: test}}
admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}
dynamic_resources:
  ads_config:
    api_type: {api_type}
    transport_api_version: V3
    grpc_services: [{{envoy_grpc: {{cluster_name: xds-grpc}}}}]
  cds_config: {{ads: {{}}, resource_api_version: V3, initial_fetch_timeout: 0s}}
  lds_config: {{ads: {{}}, resource_api_version: V3, initial_fetch_timeout: 0s}}
static_resources:
  clusters:
  - name: xds-grpc
    type: STATIC
    connect_timeout: 1s
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {{http2_protocol_options: {{}}}}
    load_assignment:
      cluster_name: xds-grpc
      endpoints: [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}}}}}]}}]
{extra_clusters}"#
    )
}

/// A listener on a free port with one HTTP connection manager. Each name has an address of its own, since two listeners
/// on one address and port 0 would be one.
pub fn http_listener(name: &str, routes: &str, extra: &str) -> String {
    let host = 1 + name.bytes().fold(0, |sum, byte| (sum * 31 + u32::from(byte)) % 250) as u8;
    http_listener_at(([127, 0, 1, host], 0).into(), name, routes, extra)
}

/// The same at a given address.
pub fn http_listener_at(address: SocketAddr, name: &str, routes: &str, extra: &str) -> String {
    let (ip, port) = (address.ip(), address.port());
    format!(
        r#"
name: {name}
address: {{socket_address: {{address: {ip}, port_value: {port}}}}}
filter_chains:
- filters:
  - name: envoy.filters.network.http_connection_manager
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
      stat_prefix: {name}
      {routes}
      http_filters:
      - name: envoy.filters.http.router
        typed_config: {{"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}}
{extra}"#
    )
}

/// Inline routes that answer every request with a text.
pub fn answering(body: &str) -> String {
    format!(
        "route_config: {{name: local, virtual_hosts: [{{name: all, domains: [\"*\"], routes: [{{match: {{prefix: /}}, \
         direct_response: {{status: 200, body: {{inline_string: {body}}}}}}}]}}]}}"
    )
}

/// A bootstrap with one listener and these clusters, and nothing from a control plane.
pub fn static_bootstrap(listener: &str, clusters: &[String]) -> String {
    let item = |yaml: &str| {
        let indented = yaml.trim().lines().map(|line| format!("    {line}\n")).collect::<String>();
        format!("  -\n{indented}")
    };
    let clusters = clusters.iter().map(|cluster| item(cluster)).collect::<String>();
    let clusters = if clusters.is_empty() { clusters } else { format!("  clusters:\n{clusters}") };
    format!(
        "admin: {{address: {{socket_address: {{address: 127.0.0.1, port_value: 0}}}}}}\nstatic_resources:\n{clusters}  \
         listeners:\n{}",
        item(listener)
    )
}

/// A cluster with one host; `extra` are more of its fields.
pub fn static_cluster(name: &str, host: SocketAddr, extra: &str) -> String {
    let (ip, port) = (host.ip(), host.port());
    format!(
        "{{name: {name}, type: STATIC, connect_timeout: 5s, load_assignment: {{cluster_name: {name}, endpoints: \
         [{{lb_endpoints: [{{endpoint: {{address: {{socket_address: {{address: {ip}, port_value: {port}}}}}}}}}]}}]}}, \
         {extra}}}"
    )
}

/// Lets this process open as many files as the system allows it, and says how many those are.
pub fn raise_open_files() -> u64 {
    evenkeel_process::resources::raise_open_files().expect("raised within the hard limit")
}

/// The values of all statistics whose name ends so.
pub fn stat(proxy: &Proxy, suffix: &str) -> Vec<u64> {
    let text = proxy.get("/stats").text();
    let values = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, _)| name.ends_with(suffix));
    values.filter_map(|(_, value)| value.parse().ok()).collect()
}

/// Open connections of each worker.
pub fn active_by_worker(proxy: &Proxy) -> Vec<u64> {
    let text = proxy.get("/stats").text();
    let per_worker = text.lines().filter(|line| {
        line.starts_with("listener.") && line.contains(".worker_") && line.contains("downstream_cx_active: ")
    });
    per_worker.filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect()
}
