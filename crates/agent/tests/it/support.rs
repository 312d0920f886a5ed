//! A control plane in one task, and the options of an agent that uses it.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use clap::Parser;
use evenkeel_agent::{Options, Status};
use evenkeel_ca::{Authority, TokenKey, Workload};
use evenkeel_tls::config::{
    CertificateSource, ClientCertificate, CommonTlsContext, DataSource, DownstreamTlsContext, PeerChecks, TlsParams,
    TrustSource, Validation,
};
use evenkeel_tls::{ClientHelloReader, DownstreamTls, Inspection, SecretStore, TlsStream};
use evenkeel_xds::istio::auth::istio_certificate_service_server::{
    IstioCertificateService, IstioCertificateServiceServer,
};
use evenkeel_xds::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};
use evenkeel_xds::istio::mesh::{ProxyConfig, TrustDomain};
use evenkeel_xds::istio::nds::NameTable;
use evenkeel_xds::istio::nds::name_table::NameInfo;
use evenkeel_xds::json::read_text;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::server::grpc::Services;
use evenkeel_xds::server::{AdsServer, Session, Source};
use evenkeel_xds::{Resource, ResourceSet, ResourceType, Schema, Version};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Extensions, Request, Response};

/// How long a test waits for what takes well under a second on an idle machine.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub struct ControlPlane {
    pub address: SocketAddr,
    pub state: PathBuf,
    pub tokens: TokenKey,
    /// What was asked for and by whom.
    pub nodes: Arc<Mutex<Vec<Node>>>,
    /// Lifetime of the next certificates; below the authority's minimum when it is dated back.
    pub lifetime: Arc<Mutex<Duration>>,
    pub issued: watch::Receiver<usize>,
    /// What agents report of their workloads.
    pub health: mpsc::UnboundedReceiver<Result<(), String>>,
    resources: watch::Sender<Arc<ResourceSet>>,
    /// The roots that an agent was last known to trust.
    pub trusted: watch::Receiver<Option<Version>>,
}

impl ControlPlane {
    /// Starts one whose authority and keys are in `state`.
    pub async fn start(state: &Path) -> Self {
        let now = SystemTime::now();
        let authority = Authority::open(state, "cluster.local", now).unwrap();
        let certificate = authority
            .server_certificate(&["istiod.istio-system.svc", "127.0.0.1"], Duration::from_secs(3600), now)
            .unwrap();
        let inline = |text: &str| DataSource::Inline(text.as_bytes().to_vec());
        let tls = DownstreamTlsContext {
            common: CommonTlsContext {
                certificates: vec![CertificateSource::Static {
                    chain: inline(&certificate.chain_pem),
                    key: inline(&certificate.key_pem),
                }],
                validation: Validation::Chain {
                    trust: TrustSource::Static(inline(authority.trust_bundle_pem())),
                    checks: PeerChecks::default(),
                },
                alpn: vec!["h2".into()],
                params: TlsParams::default(),
            },
            client_certificate: ClientCertificate::Optional,
        };
        let tls = Arc::new(DownstreamTls::new(&tls, &SecretStore::new()).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let nodes = Arc::new(Mutex::new(Vec::new()));
        let lifetime = Arc::new(Mutex::new(Duration::from_secs(3600)));
        let (count, issued) = watch::channel(0);
        let certificates =
            Certificates { authority, tokens: TokenKey::open(state).unwrap(), lifetime: lifetime.clone(), count };
        let resources = watch::channel(one_name()).0;
        let (reports, health) = mpsc::unbounded_channel();
        let (trust, trusted) = watch::channel(None);
        let names = OneName { nodes: nodes.clone(), resources: resources.clone(), reports, trust };
        let names = AdsServer::new(Arc::new(names));
        let services = Services::default().with(IstioCertificateServiceServer::new(certificates)).with(names);
        tokio::spawn(Server::builder().serve_with_incoming(services, incoming(listener, tls)));
        Self {
            address,
            state: state.to_owned(),
            tokens: TokenKey::open(state).unwrap(),
            nodes,
            lifetime,
            issued,
            health,
            resources,
            trusted,
        }
    }

    /// Sends proxies a resource from YAML besides the name.
    pub fn add<M: prost::Name + Default>(&self, kind: ResourceType, name: &str, yaml: &str) {
        let read = read_text::<M>(&Schema::acquire(), "test.yaml", yaml);
        let message = read.message.unwrap_or_else(|| panic!("{}", read.diagnostics));
        let mut set = ResourceSet::clone(&self.resources.borrow());
        set.generation += 1;
        set.insert(kind, Arc::new(Resource::from_message(name, &message)));
        self.resources.send_replace(Arc::new(set));
    }

    /// Tells agents which roots to trust; gives the version that they acknowledge.
    pub fn trust(&self, bundle: &str) -> Version {
        self.trust_domains(bundle, Vec::new())
    }

    /// Like [`Self::trust`], with roots of trust domains.
    pub fn trust_domains(&self, bundle: &str, trust_domains: Vec<TrustDomain>) -> Version {
        let message = ProxyConfig { ca_certificates_pem: vec![bundle.to_owned()], trust_domains };
        let resource = Arc::new(Resource::from_message("", &message));
        let mut set = ResourceSet::clone(&self.resources.borrow());
        set.generation += 1;
        set.insert(ResourceType::ProxyConfig, resource.clone());
        self.resources.send_replace(Arc::new(set));
        resource.version
    }

    /// Options of an agent of workload `web-0`, with its token written.
    pub fn agent(&self, state: &Path, more: &[&str]) -> Options {
        let workload = Workload { namespace: "default".into(), service_account: "web".into(), pod: "web-0".into() };
        let token = self.tokens.mint(&workload, Duration::from_secs(600), SystemTime::now()).unwrap();
        std::fs::create_dir_all(state).unwrap();
        std::fs::write(state.join("token"), token).unwrap();
        let root = self.state.join("ca-cert.pem");
        let [admin, status, readiness, stats, dns] = evenkeel_testkit::free_ports();
        let fixed = [
            ("--id", "web-0.default".to_owned()),
            ("--namespace", "default".to_owned()),
            ("--service-account", "web".to_owned()),
            ("--ip", "127.0.0.1".to_owned()),
            ("--labels", "app=web".to_owned()),
            ("--token", state.join("token").display().to_string()),
            ("--root-cert", root.display().to_string()),
            ("--discovery-address", self.address.to_string()),
            ("--state", state.display().to_string()),
            ("--concurrency", "1".to_owned()),
            ("--admin-port", admin.to_string()),
            ("--status-port", status.to_string()),
            ("--readiness-port", readiness.to_string()),
            ("--stats-port", stats.to_string()),
            ("--dns-address", format!("127.0.0.1:{dns}")),
            ("--drain-time-s", "1".to_owned()),
            // This control plane has one table for all names, as Istio's.
            ("--scope", "full".to_owned()),
        ];
        let mut words = vec!["agent".to_owned(), "sidecar".to_owned(), "--no-capture".to_owned()];
        words.extend(fixed.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
        words.extend(more.iter().map(|word| (*word).to_owned()));
        options(&words)
    }
}

/// Parses an agent's command line.
pub fn options<S: Into<std::ffi::OsString> + Clone>(words: &[S]) -> Options {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }
    Line::parse_from(words.iter().cloned()).options
}

/// An agent running on the test's runtime.
pub struct Running {
    stop: oneshot::Sender<()>,
    pub ended: JoinHandle<anyhow::Result<()>>,
}

pub fn start(options: Options) -> Running {
    let (stop, stopped) = oneshot::channel::<()>();
    let stopped = async {
        let _ = stopped.await;
    };
    Running { stop, ended: tokio::spawn(evenkeel_agent::serve(options, stopped)) }
}

impl Running {
    /// Tells the agent to stop; returns what ends when it has.
    pub fn begin_to_stop(self) -> JoinHandle<anyhow::Result<()>> {
        self.stop.send(()).unwrap();
        self.ended
    }

    pub async fn stop(self) {
        timeout(PATIENCE, self.begin_to_stop()).await.expect("the agent ends in time").unwrap().unwrap();
    }
}

/// A request on loopback, its method and target in the first line and header fields in others: head and body of the answer.
pub async fn ask(port: u16, request: &str) -> (String, String) {
    let (start, fields) = request.split_once('\n').unwrap_or((request, "accept: */*"));
    let request = format!("{start} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{fields}\r\n\r\n");
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.expect("an answer in time").unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Waits for a status that satisfies a condition.
pub async fn status(state: &Path, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
    eventually(what, || Status::read(state).ok().filter(&condition)).await
}

/// Waits for a value.
pub async fn eventually<T>(what: &str, mut probe: impl FnMut() -> Option<T>) -> T {
    eventually_asked(what, async || probe()).await
}

/// The same where looking takes a request.
pub async fn eventually_asked<T>(what: &str, mut probe: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = probe().await {
            return value;
        }
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

struct Certificates {
    authority: Authority,
    tokens: TokenKey,
    lifetime: Arc<Mutex<Duration>>,
    count: watch::Sender<usize>,
}

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, tonic::Status> {
        let token = request.metadata().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or_default();
        let token = token.strip_prefix("Bearer ").unwrap_or_default();
        let now = SystemTime::now();
        let workload =
            self.tokens.verify(token, now).map_err(|error| tonic::Status::unauthenticated(error.to_string()))?;
        let identity = workload.spiffe_id("cluster.local").unwrap();
        // Dated back, so that it can live shorter than the authority's minimum.
        let (minimum, lifetime) = (Duration::from_secs(10), *self.lifetime.lock().unwrap());
        let back = minimum.saturating_sub(lifetime);
        let issued = self.authority.sign(request.get_ref().csr.as_bytes(), &identity, lifetime, now - back);
        let mut cert_chain = issued.map_err(|error| tonic::Status::permission_denied(error.to_string()))?.chain;
        cert_chain.push(self.authority.trust_bundle_pem().to_owned());
        self.count.send_modify(|count| *count += 1);
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

struct OneName {
    nodes: Arc<Mutex<Vec<Node>>>,
    resources: watch::Sender<Arc<ResourceSet>>,
    reports: mpsc::UnboundedSender<Result<(), String>>,
    trust: watch::Sender<Option<Version>>,
}

impl Source for OneName {
    async fn connect(&self, node: &Node, _extensions: &Extensions) -> Result<Session, tonic::Status> {
        self.nodes.lock().unwrap().push(node.clone());
        let reports = self.reports.clone();
        let trust = self.trust.clone();
        let session = Session::new(self.resources.subscribe()).observed(move |status| {
            if status.roots.is_some() {
                trust.send_replace(status.roots);
            }
        });
        Ok(session.hears_health(move |health| drop(reports.send(health))))
    }
}

fn one_name() -> Arc<ResourceSet> {
    let info = NameInfo {
        ips: vec!["10.96.0.7".into()],
        registry: "Kubernetes".into(),
        shortname: "info".into(),
        namespace: "default".into(),
    };
    let table = NameTable { table: [("info.default.svc.cluster.local".to_owned(), info)].into(), ..Default::default() };
    let mut set = ResourceSet::new(1);
    set.insert(ResourceType::NameTable, Arc::new(Resource::from_message("", &table)));
    Arc::new(set)
}

/// Connections whose handshake succeeded.
fn incoming(listener: TcpListener, tls: Arc<DownstreamTls>) -> ReceiverStream<std::io::Result<Peer>> {
    let (sender, receiver) = mpsc::channel(8);
    tokio::spawn(async move {
        while let Ok((mut socket, _)) = listener.accept().await {
            let (tls, sender) = (tls.clone(), sender.clone());
            tokio::spawn(async move {
                let mut reader = ClientHelloReader::new();
                let mut buffer = [0; 4096];
                while let Ok(count @ 1..) = socket.read(&mut buffer).await {
                    match reader.push(&buffer[..count]) {
                        Inspection::NeedMore(more) => reader = more,
                        Inspection::Hello(hello) => {
                            if let Ok(stream) = tls.accept(*hello, socket).await {
                                let _ = sender.send(Ok(Peer(stream))).await;
                            }
                            return;
                        }
                        _ => return,
                    }
                }
            });
        }
    });
    ReceiverStream::new(receiver)
}

struct Peer(TlsStream<TcpStream>);

impl Connected for Peer {
    type ConnectInfo = ();
    fn connect_info(&self) {}
}

impl AsyncRead for Peer {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Peer {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
