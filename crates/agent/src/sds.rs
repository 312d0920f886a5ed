//! The SDS server: serves the workload's certificate and the mesh's roots to the proxy over a Unix socket.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3::data_source::Specifier;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, Node};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, TlsCertificate, secret,
};
use evenkeel_xds::pb::envoy::service::secret::v3::secret_discovery_service_server::SecretDiscoveryServiceServer;
use evenkeel_xds::server::{AdsService, Session, Source};
use evenkeel_xds::{Resource, ResourceSet, ResourceType};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::time::Sleep;
use tokio_stream::Stream;
use tonic::transport::Server;
use tonic::{Extensions, Status};

use crate::bootstrap::{CERTIFICATE_SECRET, ROOT_SECRET};
use crate::files::RemoveFile;

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The workload's certificate, key and roots as PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub struct PemBundle {
    /// Chain, leaf first.
    pub chain: String,
    /// Key of the leaf.
    pub key: String,
    /// Roots to trust.
    pub roots: String,
}

/// The secrets that the server serves. They are replaced as a whole when one changes. Clones share one state.
#[derive(Clone, Debug)]
pub struct Secrets {
    current: watch::Sender<Arc<ResourceSet>>,
}

impl Default for Secrets {
    fn default() -> Self {
        Self::new()
    }
}

impl Secrets {
    /// None yet.
    pub fn new() -> Self {
        Self { current: watch::channel(Arc::new(ResourceSet::new(0))).0 }
    }

    /// Replaces all secrets and pushes those that changed to every open stream.
    pub fn publish(&self, material: &PemBundle) {
        let generation = self.current.borrow().generation + 1;
        let mut set = ResourceSet::new(generation);
        for secret in [certificate(material), roots(material)] {
            set.insert(ResourceType::Secret, Arc::new(Resource::from_message(secret.name.clone(), &secret)));
        }
        self.current.send_replace(Arc::new(set));
    }
}

impl Source for Secrets {
    async fn connect(&self, _node: &Node, _extensions: &Extensions) -> Result<Session, Status> {
        Ok(Session::new(self.current.subscribe()))
    }
}

/// The server, bound to its socket.
#[derive(Debug)]
pub struct SdsServer {
    listener: UnixListener,
    path: PathBuf,
    secrets: Secrets,
}

impl SdsServer {
    /// Binds the socket and replaces one that a crashed run left. Only this user may connect.
    pub fn bind(path: &Path, secrets: Secrets) -> io::Result<Self> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Self { listener, path: path.to_owned(), secrets })
    }

    /// Serves delta and state-of-the-world SDS until the future is dropped; then the socket's file is removed.
    pub async fn run(self) -> Result<(), tonic::transport::Error> {
        let _remove = RemoveFile(self.path);
        let service = SecretDiscoveryServiceServer::new(AdsService::new(Arc::new(self.secrets)));
        Server::builder().add_service(service).serve_with_incoming(Incoming::new(self.listener)).await
    }
}

/// Accepts connections and never ends. tonic would end at the first failed accept, and accepts fail while the process
/// has no descriptor left.
struct Incoming {
    listener: UnixListener,
    pause: Option<Pin<Box<Sleep>>>,
}

impl Incoming {
    fn new(listener: UnixListener) -> Self {
        Self { listener, pause: None }
    }
}

impl Stream for Incoming {
    type Item = io::Result<UnixStream>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(pause) = &mut self.pause {
                ready!(pause.as_mut().poll(cx));
                self.pause = None;
            }
            match ready!(self.listener.poll_accept(cx)) {
                Ok((stream, _)) => return Poll::Ready(Some(Ok(stream))),
                Err(error) => {
                    tracing::warn!(%error, "the proxy could not connect for its secrets");
                    self.pause = Some(Box::pin(tokio::time::sleep(ACCEPT_PAUSE)));
                }
            }
        }
    }
}

fn certificate(material: &PemBundle) -> Secret {
    let certificate = TlsCertificate {
        certificate_chain: Some(inline(&material.chain)),
        private_key: Some(inline(&material.key)),
        ..TlsCertificate::default()
    };
    Secret { name: CERTIFICATE_SECRET.into(), r#type: Some(secret::Type::TlsCertificate(certificate)) }
}

fn roots(material: &PemBundle) -> Secret {
    let context = CertificateValidationContext {
        trusted_ca: Some(inline(&material.roots)),
        ..CertificateValidationContext::default()
    };
    Secret { name: ROOT_SECRET.into(), r#type: Some(secret::Type::ValidationContext(context)) }
}

fn inline(text: &str) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(text.as_bytes().to_vec())), ..DataSource::default() }
}
