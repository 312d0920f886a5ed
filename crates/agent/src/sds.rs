//! The SDS server: serves the workload's certificate and the mesh's roots to the proxy over a Unix socket.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use evenkeel_xds::pb::envoy::config::core::v3::data_source::Specifier;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, Node, TypedExtensionConfig};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::spiffe_cert_validator_config::TrustDomain;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, SpiffeCertValidatorConfig, TlsCertificate, secret,
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
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;

use crate::files::RemoveFile;
use crate::secret_names::{CERTIFICATE_SECRET, CONTROL_PLANE_SECRET, ROOT_SECRET};

/// Pause after an accept that failed for lack of file descriptors or memory.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long the proxy may take to acknowledge secrets.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(20);

/// Envoy's name of the validator that tells trust domains apart.
const SPIFFE_VALIDATOR: &str = "envoy.tls.cert_validator.spiffe";

/// The workload's certificate, key and roots as PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub struct PemBundle {
    /// Chain, leaf first.
    pub chain: String,
    /// Key of the leaf.
    pub key: String,
    /// Roots to trust.
    pub roots: String,
    /// Roots by trust domain. If there are any, these count instead of [`roots`](Self::roots).
    pub domains: Vec<(String, String)>,
    /// Revocation lists of the certificates that the roots vouch for.
    pub lists: Option<String>,
    /// Roots that verify the control plane; not those of peers if the certificate comes from elsewhere.
    pub control_plane_roots: String,
}

impl PemBundle {
    /// The authority key identifier of the certificate, lower-case hexadecimal.
    pub(crate) fn authority_key_id(&self) -> Option<String> {
        let leaf = pem::parse(&self.chain).ok()?;
        let (_, certificate) = X509Certificate::from_der(leaf.contents()).ok()?;
        certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                id.key_identifier.as_ref().map(|id| id.0.iter().map(|byte| format!("{byte:02x}")).collect())
            }
            _ => None,
        })
    }
}

/// The secrets that the server serves. They are replaced as a whole when one changes. Clones share one state.
#[derive(Clone, Debug)]
pub struct Secrets {
    current: watch::Sender<Arc<ResourceSet>>,
    streams: watch::Sender<Streams>,
}

/// The progress of each open stream.
#[derive(Debug, Default)]
struct Streams {
    next: u64,
    open: BTreeMap<u64, Reached>,
}

#[derive(Debug, Default)]
struct Reached {
    generation: u64,
    refusal: Option<String>,
}

/// Takes a stream off the books when it ends.
struct OpenStream {
    streams: watch::Sender<Streams>,
    number: u64,
}

impl OpenStream {
    fn note(&self, status: &evenkeel_xds::server::Status) {
        let refusal = status.types.iter().find_map(|status| Some(status.nack.as_ref()?.message.clone()));
        self.streams.send_modify(|streams| {
            _ = streams.open.insert(self.number, Reached { generation: status.settled_generation, refusal });
        });
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.streams.send_modify(|streams| _ = streams.open.remove(&self.number));
    }
}

impl Default for Secrets {
    fn default() -> Self {
        Self::new()
    }
}

impl Secrets {
    /// Creates a table without secrets.
    pub fn new() -> Self {
        Self { current: watch::channel(Arc::new(ResourceSet::new(0))).0, streams: watch::Sender::default() }
    }

    /// Replaces all secrets and pushes those that changed to every open stream. Returns their generation.
    pub fn publish(&self, material: &PemBundle) -> u64 {
        let generation = self.current.borrow().generation + 1;
        let mut set = ResourceSet::new(generation);
        for secret in [certificate(material), roots(material), control_plane_roots(material)] {
            set.insert(ResourceType::Secret, Arc::new(Resource::from_message(secret.name.clone(), &secret)));
        }
        self.current.send_replace(Arc::new(set));
        generation
    }

    /// The generation of the present secrets.
    pub fn generation(&self) -> u64 {
        self.current.borrow().generation
    }

    /// Waits until every open stream has acknowledged the secrets of a generation; at once if there is no stream.
    ///
    /// # Errors
    /// The proxy's refusal, or that it does not answer.
    pub async fn confirmed(&self, generation: u64) -> Result<(), String> {
        let mut streams = self.streams.subscribe();
        let is_over = |streams: &Streams| {
            let mut open = streams.open.values();
            open.all(|reached| reached.generation >= generation || reached.refusal.is_some())
        };
        let over = tokio::time::timeout(CONFIRM_TIMEOUT, streams.wait_for(is_over)).await;
        match over {
            Ok(Ok(streams)) => match streams.open.values().find_map(|reached| reached.refusal.clone()) {
                Some(refusal) => Err(format!("the proxy refuses a secret: {refusal}")),
                None => Ok(()),
            },
            Ok(Err(_)) => Ok(()),
            Err(_) => Err(format!("the proxy has not answered for {} s", CONFIRM_TIMEOUT.as_secs())),
        }
    }
}

impl Source for Secrets {
    async fn connect(&self, _node: &Node, _extensions: &Extensions) -> Result<Session, Status> {
        let mut number = 0;
        self.streams.send_modify(|streams| {
            number = streams.next;
            streams.next += 1;
            _ = streams.open.insert(number, Reached::default());
        });
        let stream = OpenStream { streams: self.streams.clone(), number };
        Ok(Session::new(self.current.subscribe()).observed(move |status| stream.note(&status)))
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
        Server::builder().serve_with_incoming(service, Incoming::new(self.listener)).await
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
    let validator = (!material.domains.is_empty()).then(|| TypedExtensionConfig {
        name: SPIFFE_VALIDATOR.into(),
        typed_config: Some(evenkeel_xds::pack(&spiffe_validator(&material.domains))),
    });
    let context = CertificateValidationContext {
        // Envoy's validator ignores `trusted_ca`, and Evenkeel's proxy requires exactly one of the two.
        trusted_ca: validator.is_none().then(|| inline(&material.roots)),
        custom_validator_config: validator,
        crl: material.lists.as_deref().map(inline),
        ..CertificateValidationContext::default()
    };
    Secret { name: ROOT_SECRET.into(), r#type: Some(secret::Type::ValidationContext(context)) }
}

fn spiffe_validator(domains: &[(String, String)]) -> SpiffeCertValidatorConfig {
    let domain = |(name, roots): &(String, String)| TrustDomain {
        name: name.clone(),
        trust_bundle: Some(inline(roots)),
        ..Default::default()
    };
    SpiffeCertValidatorConfig { trust_domains: domains.iter().map(domain).collect(), ..Default::default() }
}

fn control_plane_roots(material: &PemBundle) -> Secret {
    let context = CertificateValidationContext {
        trusted_ca: Some(inline(&material.control_plane_roots)),
        ..CertificateValidationContext::default()
    };
    Secret { name: CONTROL_PLANE_SECRET.into(), r#type: Some(secret::Type::ValidationContext(context)) }
}

fn inline(text: &str) -> DataSource {
    DataSource { specifier: Some(Specifier::InlineBytes(text.as_bytes().to_vec())), ..DataSource::default() }
}
