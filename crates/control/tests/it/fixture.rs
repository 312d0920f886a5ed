//! A running control plane, its files, and its clients.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_control::server::Addresses;
use evenkeel_control::source::LiveSource;
use evenkeel_control::webhooks::InjectionOptions;
use evenkeel_control::{ControlError, ControlPlane, Options, SignerOptions};
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{
    Client, ClientRequest, ClientResponse, Connection, ConnectionError, Protocol, Rejected, Update,
};
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::ClientConfig;
use tokio_rustls::rustls::pki_types::ServerName;
use tonic::transport::{Channel, Endpoint};

/// Time limit of every wait in these tests, also on a busy machine; only a failure takes that long.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A Service with one HTTP port.
pub fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop}}\n\
         spec: {{selector: {{app: {name}}}, ports: [{{name: http, port: 80}}]}}\n"
    )
}

/// A ready Pod with its own service account.
pub fn pod(name: &str, ip: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}-0, namespace: shop, labels: {{app: {name}}}}}\n\
         spec: {{serviceAccountName: {name}, containers: [{{name: main}}]}}\n\
         status: {{podIP: {ip}, conditions: [{{type: Ready, status: \"True\"}}]}}\n"
    )
}

/// The cluster of a [`service`].
pub fn cluster(name: &str) -> String {
    format!("outbound|80||{name}.shop.svc.cluster.local")
}

/// A control plane with directories of its own.
pub struct Plane {
    pub config: TempDir,
    pub state: TempDir,
    pub addresses: Addresses,
    stop: Option<oneshot::Sender<()>>,
    task: Option<JoinHandle<Result<(), ControlError>>>,
}

impl Plane {
    /// Starts with these files.
    pub async fn start(files: &[(&str, String)]) -> Self {
        let config = tempfile::tempdir().expect("a directory");
        let state = tempfile::tempdir().expect("a directory");
        for (name, text) in files {
            std::fs::write(config.path().join(name), text).expect("a file");
        }
        Self::start_in(config, state).await
    }

    /// Starts on directories that are there.
    pub async fn start_in(config: TempDir, state: TempDir) -> Self {
        Self::start_on(config, state, SocketAddr::from(([127, 0, 0, 1], 0))).await
    }

    /// The same, with plaintext xDS at this address.
    pub async fn start_on(config: TempDir, state: TempDir, grpc_address: SocketAddr) -> Self {
        let options = Options { grpc_address, ..options(config.path(), state.path()) };
        Self::start_as(config, state, options).await
    }

    /// Starts with these files, and with further sources.
    pub async fn start_beside(files: &[(&str, String)], sources: Vec<Box<dyn LiveSource>>) -> Self {
        let [config, state] = [(); 2].map(|()| tempfile::tempdir().expect("a directory"));
        for (name, text) in files {
            std::fs::write(config.path().join(name), text).expect("a file");
        }
        Self::start_with(config, state, sources).await
    }

    /// Starts on directories that are there, with further sources.
    pub async fn start_with(config: TempDir, state: TempDir, sources: Vec<Box<dyn LiveSource>>) -> Self {
        let plane = ControlPlane::start_with(&options(config.path(), state.path()), sources).await;
        Self::serve(config, state, plane.expect("a control plane"))
    }

    /// The same, with these options.
    pub async fn start_as(config: TempDir, state: TempDir, options: Options) -> Self {
        let plane = ControlPlane::start(&options).await.expect("a control plane");
        Self::serve(config, state, plane)
    }

    fn serve(config: TempDir, state: TempDir, plane: ControlPlane) -> Self {
        let addresses = plane.addresses;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(plane.serve(async move { drop(stopped.await) }));
        Self { config, state, addresses, stop: Some(stop), task: Some(task) }
    }

    /// Writes a file of the configuration as editors do: beside, then renamed.
    pub fn write(&self, name: &str, text: &str) {
        let path = self.config.path().join(name);
        let new = path.with_extension("new");
        std::fs::write(&new, text).expect("a file");
        std::fs::rename(new, path).expect("a renamed file");
    }

    /// Stops it; the directories stay.
    pub async fn stop(mut self) -> (TempDir, TempDir) {
        drop(self.stop.take());
        let task = self.task.take().expect("a running control plane");
        tokio::time::timeout(PATIENCE, task).await.expect("an end in time").expect("no panic").expect("a clean end");
        (self.config, self.state)
    }

    /// A client on the plaintext port.
    pub async fn client(&self, protocol: Protocol, account: &str) -> Proxy {
        let channel = plain_channel(self.addresses.grpc).await;
        Proxy::open(channel, protocol, node("shop", account)).await.expect("a stream")
    }

    /// The body of a page.
    pub async fn page(&self, path: &str) -> String {
        use http_body_util::{BodyExt as _, Empty};
        let stream = TcpStream::connect(self.addresses.http).await.expect("a connection");
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a connection");
        tokio::spawn(connection);
        let request = http::Request::get(path).header("host", "control").body(Empty::<bytes::Bytes>::new());
        let response = sender.send_request(request.expect("a request")).await.expect("a response");
        let body = response.into_body().collect().await.expect("a body").to_bytes();
        String::from_utf8(body.to_vec()).expect("text")
    }

    /// A page as JSON.
    pub async fn json(&self, path: &str) -> serde_json::Value {
        serde_json::from_str(&self.page(path).await).expect("JSON")
    }

    /// How many responses were refused, by its metrics.
    pub async fn rejects(&self) -> u64 {
        let metrics = self.page("/metrics").await;
        let lines = metrics.lines().filter(|line| line.starts_with("pilot_total_xds_rejects{"));
        lines.map(|line| line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).expect("a number")).sum()
    }

    /// Looks at a page until `found` finds what it wants.
    pub async fn until<T>(&self, path: &str, found: impl Fn(&str) -> Option<T>) -> T {
        let found = self.look_for(path, found).await;
        found.unwrap_or_else(|page| panic!("{path} never says so, but\n{page}"))
    }

    /// The same; an error is what it says instead.
    pub async fn look_for<T>(&self, path: &str, found: impl Fn(&str) -> Option<T>) -> Result<T, String> {
        let look = async {
            loop {
                if let Some(value) = found(&self.page(path).await) {
                    return value;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        match tokio::time::timeout(PATIENCE, look).await {
            Ok(value) => Ok(value),
            Err(_) => Err(self.page(path).await),
        }
    }
}

/// Options for ports of the system's choice.
pub fn options(config: &Path, state: &Path) -> Options {
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    Options {
        config: vec![config.to_owned()],
        state: state.to_owned(),
        trust_domain: None,
        ca_certs: None,
        signer: SignerOptions::default(),
        grpc_address: any,
        secure_grpc_address: any,
        http_address: any,
        webhook_address: None,
        injection: InjectionOptions::default(),
        allow_plaintext_from_network: false,
        require_running_pod: false,
        leave_out_refused: false,
        on_one_machine: false,
        jwks: None,
        no_confinement: true,
        max_certificate_ttl_s: None,
        server_names: Vec::new(),
    }
}

/// The node of sidecar `client-0`.
pub fn node(namespace: &str, account: &str) -> Node {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let fields = [("NAMESPACE", text(namespace)), ("SERVICE_ACCOUNT", text(account))];
    Node {
        id: format!("sidecar~10.244.0.9~client-0.{namespace}~{namespace}.svc.cluster.local"),
        metadata: Some(Struct { fields: fields.map(|(k, v)| (k.to_owned(), v)).into() }),
        ..Default::default()
    }
}

/// A plaintext channel.
pub async fn plain_channel(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).expect("a URI").connect().await.expect("a connection")
}

/// A channel over TLS as `config` wants it.
pub async fn tls_channel(address: SocketAddr, config: ClientConfig) -> Result<Channel, tonic::transport::Error> {
    let connector = TlsConnector::from(Arc::new(config));
    let connect = tower::service_fn(move |_: http::Uri| {
        let connector = connector.clone();
        async move {
            let stream = TcpStream::connect(address).await?;
            let name = ServerName::try_from("istiod.istio-system.svc").expect("a name");
            Ok::<_, std::io::Error>(TokioIo::new(connector.connect(name, stream).await?))
        }
    });
    Endpoint::from_static("http://istiod.istio-system.svc:15012").connect_with_connector(connect).await
}

/// A proxy that subscribes to all clusters and listeners.
pub struct Proxy {
    client: Client,
    connection: Connection,
}

impl Proxy {
    /// Opens a stream and asks.
    pub async fn open(channel: Channel, protocol: Protocol, node: Node) -> Result<Self, ConnectionError> {
        let mut client = Client::new(protocol, node);
        client.subscribe_all(ResourceType::Cluster);
        client.subscribe_all(ResourceType::Listener);
        client.on_connect();
        let first = client.poll_request().expect("a first request");
        let connection = Connection::open(channel, Service::Aggregated, first).await?;
        let mut proxy = Self { client, connection };
        proxy.flush().await;
        Ok(proxy)
    }

    /// Asks which roots to trust.
    pub async fn want_roots(&mut self) {
        self.client.subscribe_all(ResourceType::ProxyConfig);
        self.flush().await;
    }

    /// Asks for the endpoints of clusters.
    pub async fn want_endpoints(&mut self, names: &[&str]) {
        self.client.set_names(ResourceType::Endpoint, names.iter().copied());
        self.flush().await;
    }

    /// Sends what there is to say. Whether the server is still there, and if not why, the next response tells.
    async fn flush(&mut self) {
        while let Some(request) = self.client.poll_request() {
            drop(self.connection.send(request).await);
        }
    }

    /// Takes one update, accepting it or refusing one resource of it.
    pub async fn step(&mut self, refuse: Option<&str>) -> Result<Update, ConnectionError> {
        let response = tokio::time::timeout(PATIENCE, self.connection.next()).await.expect("an update in time")?;
        let update = self.client.on_response(response).expect("a type asked for");
        let reject = |reason: &str| {
            // Preferably something that a user wrote.
            let written = update.added.iter().find(|r| r.name.starts_with("outbound|"));
            let name = written.or(update.added.first()).map(|r| r.name.clone()).unwrap_or_default();
            vec![Rejected { name, reason: reason.to_owned() }]
        };
        self.client.answer(&update, &refuse.map(reject).unwrap_or_default());
        self.flush().await;
        Ok(update)
    }

    /// Accepts updates until one had a resource of this name, which is lost on the way to where it should be kept.
    pub async fn lose(&mut self, name: &str) {
        loop {
            let next = tokio::time::timeout(PATIENCE, self.connection.next()).await.expect("an update in time");
            let mut response = next.expect("an open stream");
            let ClientResponse::Delta(delta) = &mut response else { panic!("a delta stream") };
            let before = delta.resources.len();
            delta.resources.retain(|resource| resource.name != name);
            let lost = delta.resources.len() < before;
            let update = self.client.on_response(response).expect("a type asked for");
            self.client.answer(&update, &[]);
            self.flush().await;
            if lost {
                return;
            }
        }
    }

    /// Reports the health of its workload, as Istio's agents do.
    pub async fn report_health(&self, health: Result<(), &str>) {
        let error = health.err().map(|message| evenkeel_xds::pb::google::rpc::Status {
            message: message.to_owned(),
            code: tonic::Code::Internal.into(),
            ..Default::default()
        });
        let request = DeltaDiscoveryRequest {
            type_url: evenkeel_xds::type_url::HEALTH_INFORMATION.to_owned(),
            error_detail: error,
            ..Default::default()
        };
        self.connection.send(ClientRequest::Delta(request)).await.expect("an open stream");
    }

    /// Tells what it holds.
    pub async fn report(&mut self) {
        self.client.report();
        self.flush().await;
    }

    /// Accepts updates until `found` finds what it wants in one.
    pub async fn until<T>(&mut self, found: impl Fn(&Update) -> Option<T>) -> T {
        loop {
            let update = self.step(None).await.expect("an open stream");
            if let Some(value) = found(&update) {
                return value;
            }
        }
    }

    /// Accepts updates until the proxy holds a resource of this name.
    pub async fn until_held(&mut self, kind: ResourceType, name: &str) {
        while !self.client.held(kind).any(|(held, _)| held == name) {
            self.step(None).await.expect("an open stream");
        }
    }

    /// The names of the resources that the proxy holds, with their versions.
    pub fn held(&self, kind: ResourceType) -> BTreeMap<String, String> {
        self.client.held(kind).map(|(name, version)| (name.to_string(), version.to_string())).collect()
    }

    /// Whether the proxy holds a resource of this name.
    pub fn holds(&self, kind: ResourceType, name: &str) -> bool {
        self.client.held(kind).any(|(held, _)| held == name)
    }
}
