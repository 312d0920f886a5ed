//! Sources of the workload's certificate other than the control plane: files that another program maintains, or an SDS server
//! on a Unix socket, such as SPIRE's agent.

use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_tls::TrustBundle;
use evenkeel_xds::client::connection::Service;
use evenkeel_xds::client::{Backoff, Client, Connection, Protocol, Rejected};
use evenkeel_xds::pb::envoy::config::core::v3::data_source::Specifier;
use evenkeel_xds::pb::envoy::config::core::v3::{DataSource, Node};
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::spiffe_cert_validator_config::TrustDomain;
use evenkeel_xds::pb::envoy::extensions::transport_sockets::tls::v3::{
    CertificateValidationContext, Secret, SpiffeCertValidatorConfig, secret,
};
use evenkeel_xds::{ResourceType, unpack};
use hyper_util::rt::TokioIo;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

use crate::options::Options;
use crate::trust::merge_roots;

/// The socket of another SDS server, at Istio's place.
pub const SDS_SOCKET: &str = "/var/run/secrets/workload-spiffe-uds/socket";
/// The folder of mounted certificates, at Istio's place.
pub const CREDENTIALS: &str = "/var/run/secrets/workload-spiffe-credentials";
/// The folder of mounted certificates with `FILE_MOUNTED_CERTS`, as Istio's.
pub const MOUNTED_CERTS: &str = "/etc/certs";
/// Maximum size of a file, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// How long the connection to the socket may take.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of the certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificatePlace {
    /// The control plane signs it.
    ControlPlane,
    /// Files.
    Files(MountedFiles),
    /// An SDS server.
    Sds(PathBuf),
}

/// Mounted files, PEM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountedFiles {
    /// The certificates, leaf first.
    pub chain: PathBuf,
    /// The key of the leaf.
    pub key: PathBuf,
    /// The roots.
    pub roots: PathBuf,
}

impl MountedFiles {
    /// Files with the names that Istio expects in the folder of a workload's credentials.
    pub fn of_credentials(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name);
        Self { chain: path("certificates.pem"), key: path("private_key.pem"), roots: path("ca_certificates.pem") }
    }

    /// Files with the names of `FILE_MOUNTED_CERTS`.
    pub fn of_mounted(folder: &Path) -> Self {
        let path = |name: &str| folder.join(name);
        Self { chain: path("cert-chain.pem"), key: path("key.pem"), roots: path("root-cert.pem") }
    }

    /// Reads all three.
    ///
    /// # Errors
    /// The file that cannot be read.
    pub fn read(&self) -> Result<Material, (PathBuf, std::io::Error)> {
        let read = |path: &PathBuf| read_bounded(path).map_err(|error| (path.clone(), error));
        let (chain, key, roots) = (read(&self.chain)?, read(&self.key)?, read(&self.roots)?);
        Ok(Material { chain, key, roots, domains: Vec::new(), lists: None })
    }
}

fn read_bounded(path: &Path) -> std::io::Result<String> {
    let size = std::fs::metadata(path)?.len();
    if size > MAX_FILE_BYTES {
        let text = format!("{size} bytes; at most {MAX_FILE_BYTES} are read");
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
    }
    std::fs::read_to_string(path)
}

/// The certificate, key and roots from such a source, in PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Material {
    /// The certificates, leaf first.
    pub chain: String,
    /// The key of the leaf.
    pub key: String,
    /// The roots.
    pub roots: String,
    /// The roots of each trust domain, if the place tells them apart.
    pub domains: Vec<(String, String)>,
    /// Revocation lists.
    pub lists: Option<String>,
}

impl std::fmt::Debug for Material {
    /// The key is never printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Material")
    }
}

impl CertificatePlace {
    /// Chooses the source by the options, or else by what exists at Istio's paths.
    pub fn of(options: &Options) -> Self {
        let credentials = MountedFiles::of_credentials(Path::new(CREDENTIALS));
        if let Some(socket) = &options.sds_socket {
            Self::Sds(socket.clone())
        } else if let Some(folder) = &options.mounted_certs {
            let files = MountedFiles::of_credentials(folder);
            Self::Files(if files.chain.exists() { files } else { MountedFiles::of_mounted(folder) })
        } else if options.file_mounted_certs() {
            Self::Files(MountedFiles::of_mounted(Path::new(MOUNTED_CERTS)))
        } else if Path::new(SDS_SOCKET).exists() {
            Self::Sds(SDS_SOCKET.into())
        } else if credentials.chain.exists() {
            Self::Files(credentials)
        } else {
            Self::ControlPlane
        }
    }
}

/// Follows an SDS server until the future is dropped. Unusable secrets are rejected, and the former ones stay.
pub async fn follow(
    socket: PathBuf,
    (certificate, roots): (String, String),
    node: Node,
    out: watch::Sender<Option<Material>>,
) {
    let mut client = Client::new(Protocol::Sotw, node);
    client.set_names(ResourceType::Secret, [certificate.as_str(), roots.as_str()]);
    let mut held = Held { certificate, roots, pair: None, trust: None, out };
    let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
    loop {
        if let Err(error) = held.stream(&socket, &mut client, &mut backoff).await {
            tracing::warn!(socket = %socket.display(), %error, "no secrets from the SDS server; trying again");
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// Roots as they arrived.
#[derive(Clone)]
struct Trusted {
    /// All of them.
    roots: String,
    domains: Vec<(String, String)>,
    lists: Option<String>,
}

impl Trusted {
    fn read(context: CertificateValidationContext) -> Result<Self, String> {
        let lists = context.crl.map(|lists| text(Some(lists))).transpose()?;
        let Some(validator) = context.custom_validator_config else {
            let roots = text(context.trusted_ca)?;
            TrustBundle::from_pem(roots.as_bytes()).map_err(|error| format!("trusted_ca {error}"))?;
            return Ok(Self { roots, domains: Vec::new(), lists });
        };
        // SPIRE's secret `ALL` has the bundles of all trust domains that it knows.
        let config = validator.typed_config.ok_or("custom_validator_config has no typed_config")?;
        let config: SpiffeCertValidatorConfig = unpack(&config).map_err(|error| error.to_string())?;
        let domain = |domain: TrustDomain| Ok::<_, String>((domain.name, text(domain.trust_bundle)?));
        let domains = config.trust_domains.into_iter().map(domain).collect::<Result<Vec<_>, _>>()?;
        TrustBundle::from_domains(domains.iter().map(|(name, roots)| (name.as_str(), roots.as_bytes())))
            .map_err(|error| format!("custom_validator_config: {error}"))?;
        let texts: Vec<&str> = domains.iter().map(|(_, roots)| roots.as_str()).collect();
        Ok(Self { roots: merge_roots(&texts), domains, lists })
    }
}

/// The secrets that have arrived so far.
struct Held {
    certificate: String,
    roots: String,
    pair: Option<(String, String)>,
    trust: Option<Trusted>,
    out: watch::Sender<Option<Material>>,
}

impl Held {
    async fn stream(&mut self, socket: &Path, client: &mut Client, backoff: &mut Backoff) -> anyhow::Result<()> {
        let channel = connect(socket).await?;
        client.on_connect();
        let Some(first) = client.poll_request() else { return Ok(()) };
        let mut connection = Connection::open(channel, Service::Secrets, first).await?;
        loop {
            while let Some(request) = client.poll_request() {
                connection.send(request).await?;
            }
            let update = client.on_response(connection.next().await?)?;
            backoff.reset();
            let mut rejected = Vec::new();
            for resource in &update.added {
                let taken = unpack::<Secret>(&resource.any).map_err(|error| error.to_string());
                if let Err(reason) = taken.and_then(|secret| self.take(secret)) {
                    rejected.push(Rejected { name: resource.name.clone(), reason });
                }
            }
            client.answer(&update, &rejected);
            self.publish();
        }
    }

    fn take(&mut self, secret: Secret) -> Result<(), String> {
        match secret.r#type {
            Some(secret::Type::TlsCertificate(pair)) if secret.name == self.certificate => {
                let pair = (text(pair.certificate_chain)?, text(pair.private_key)?);
                // A pair that does not fit is refused here, and the proxy never sees it.
                evenkeel_tls::Identity::parse(pair.0.as_bytes(), pair.1.as_bytes())
                    .map_err(|error| error.to_string())?;
                self.pair = Some(pair);
                Ok(())
            }
            Some(secret::Type::ValidationContext(context)) if secret.name == self.roots => {
                self.trust = Some(Trusted::read(context)?);
                Ok(())
            }
            _ => Err(format!(
                "`{}` is neither the certificate `{}` nor the roots `{}`",
                secret.name, self.certificate, self.roots
            )),
        }
    }

    fn publish(&self) {
        let (Some((chain, key)), Some(trusted)) = (self.pair.clone(), self.trust.clone()) else { return };
        let Trusted { roots, domains, lists } = trusted;
        let material = Material { chain, key, roots, domains, lists };
        self.out.send_if_modified(|out| {
            let is_new = out.as_ref() != Some(&material);
            *out = Some(material);
            is_new
        });
    }
}

fn text(source: Option<DataSource>) -> Result<String, String> {
    let bytes = match source.and_then(|source| source.specifier) {
        Some(Specifier::InlineBytes(bytes)) => bytes,
        Some(Specifier::InlineString(text)) => text.into_bytes(),
        Some(_) => return Err("only inline data is supported".into()),
        None => return Err("a field is missing".into()),
    };
    String::from_utf8(bytes).map_err(|_| "not PEM".into())
}

async fn connect(socket: &Path) -> Result<Channel, tonic::transport::Error> {
    let socket = socket.to_owned();
    let connector = service_fn(move |_: Uri| {
        let socket = socket.clone();
        async move { Ok::<_, std::io::Error>(TokioIo::new(UnixStream::connect(socket).await?)) }
    });
    Endpoint::from_static("http://sds").connect_timeout(CONNECT_TIMEOUT).connect_with_connector(connector).await
}
