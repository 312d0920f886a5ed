//! An external certificate service that signs in place of the control plane, as Istio's registration authority.
//!
//! ```text
//!  agent ── CSR, token ──► Certificates    checks the identity, and that the request is for it and signed by its key
//!                            │ ask         TLS, own token or certificate, bounded in time and size
//!                            ▼
//!                          the signer
//!                            │ accept      (evenkeel_ca::external) identity, key and lifetime as requested; a trusted root
//!                            ▼
//!  agent ◄── chain, the mesh's roots ── ledger
//! ```
//!
//! The flags name the signer, or else `MeshConfig.ca`; this is looked up for each certificate. If the settings cannot be
//! used, nobody signs: the control plane does not fall back to its own authority.

mod channel;

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_api::istio::is_local;
use evenkeel_ca::external::ExternalRequest;
use evenkeel_model::{ExternalSigner, SignerTls};
use evenkeel_tls::printable;
use evenkeel_xds::istio::auth::IstioCertificateRequest;
use evenkeel_xds::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::world::World;

/// Maximum number of concurrent requests to the signer; further ones wait within their own time limit.
const MAX_ASKED: usize = 64;
/// Maximum number of attempts per request.
const MAX_TRIES: u32 = 3;
/// How long a signer of the cluster may take: others approve and sign in turn.
const CLUSTER_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before the second attempt; the pause before the third is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Maximum size of a response, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Maximum size of a token, certificate or key file, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Maximum number of characters of the signer's error message that are passed on.
const MAX_REASON: usize = 300;

/// Flags of an external signer.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct SignerOptions {
    /// Forward workloads' certificate requests to this certificate service (istio.v1.auth.IstioCertificateService) instead of
    /// signing them. The control plane checks each answer [default: `ca` of the mesh configuration].
    #[arg(long, value_name = "HOST:PORT")]
    pub external_signer: Option<String>,

    /// PEM file with the roots that verify the external signer's server [default: the system's].
    #[arg(long, value_name = "FILE", requires = "external_signer")]
    pub external_signer_ca: Option<PathBuf>,

    /// PEM file with the certificate that the control plane shows to the external signer.
    #[arg(long, value_name = "FILE", requires_all = ["external_signer", "external_signer_key"])]
    pub external_signer_cert: Option<PathBuf>,

    /// PEM file with the key of that certificate.
    #[arg(long, value_name = "FILE", requires = "external_signer_cert")]
    pub external_signer_key: Option<PathBuf>,

    /// File with the control plane's token for the external signer; read for each request.
    #[arg(long, value_name = "FILE", conflicts_with = "external_signer_forward_token")]
    pub external_signer_token: Option<PathBuf>,

    /// Send the workload's own token to the external signer, for signers that authenticate workloads themselves.
    #[arg(long)]
    pub external_signer_forward_token: bool,

    /// PEM file with the roots of the external signer's certificates. The whole mesh trusts them beside its own; changes of the
    /// file take effect within a second. Give it before the signer itself, so that every workload knows them.
    #[arg(long, value_name = "FILE")]
    pub external_signer_roots: Option<PathBuf>,

    /// A signer of the cluster, which the platform sets.
    #[arg(skip)]
    pub cluster: Option<Arc<dyn ClusterSigner>>,
}

impl SignerOptions {
    /// Returns the options as arguments for a control plane process that is started in another directory.
    pub fn arguments(&self) -> Vec<OsString> {
        let file = |path: &PathBuf| std::path::absolute(path).unwrap_or_else(|_| path.clone()).into_os_string();
        let Self {
            external_signer,
            external_signer_ca,
            external_signer_cert,
            external_signer_key,
            external_signer_token,
            external_signer_forward_token,
            external_signer_roots,
            cluster: _,
        } = self;
        let values = [
            ("--external-signer", external_signer.as_ref().map(OsString::from)),
            ("--external-signer-ca", external_signer_ca.as_ref().map(file)),
            ("--external-signer-cert", external_signer_cert.as_ref().map(file)),
            ("--external-signer-key", external_signer_key.as_ref().map(file)),
            ("--external-signer-token", external_signer_token.as_ref().map(file)),
            ("--external-signer-roots", external_signer_roots.as_ref().map(file)),
        ];
        let given = values.into_iter().filter_map(|(flag, value)| Some([OsString::from(flag), value?]));
        let forward = external_signer_forward_token.then(|| "--external-signer-forward-token".into());
        given.flatten().chain(forward).collect()
    }
}

/// A signer that the platform reaches: one of a cluster's API server.
pub trait ClusterSigner: fmt::Debug + Send + Sync {
    /// Its name.
    fn name(&self) -> &str;

    /// Requests a certificate: PEM, the leaf first, or why there is none. Whoever drops the future cancels the request.
    fn sign<'a>(&'a self, wanted: &'a ExternalRequest) -> Signed<'a>;
}

/// The future of [`ClusterSigner::sign`].
pub type Signed<'a> = Pin<Box<dyn Future<Output = Result<Vec<String>, String>> + Send + 'a>>;

/// Why the signer gave no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// A file that the request needs cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
    /// The cluster's signer has given none.
    #[error("{0}")]
    Cluster(String),
    /// No response in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// The signer, or the connection to it, refused the request.
    #[error("{}: {}", describe(.0.code()), reason(.0))]
    Refused(Status),
}

/// The external signer, as configured by flags or the mesh configuration.
#[derive(Debug)]
pub struct ExternalSigners {
    options: SignerOptions,
    /// The cluster's signer, which takes precedence over the configuration.
    cluster: Option<Arc<dyn ClusterSigner>>,
    world: watch::Receiver<Arc<World>>,
    /// The channel to the signer that was used last.
    channel: Mutex<Option<(Arc<ExternalSigner>, Channel)>>,
    places: Semaphore,
}

impl ExternalSigners {
    /// Takes the signer from the flags, or else from the configuration.
    pub fn new(options: SignerOptions, world: watch::Receiver<Arc<World>>) -> Self {
        let cluster = options.cluster.clone();
        Self { options, cluster, world, channel: Mutex::default(), places: Semaphore::new(MAX_ASKED) }
    }

    /// Returns the file with the roots of the signer's certificates.
    pub fn roots(&self) -> Option<&Path> {
        self.options.external_signer_roots.as_deref()
    }

    /// Returns the signer; `None` if the control plane signs itself, and an error if nobody can sign.
    pub fn current(&self) -> Option<Result<Arc<ExternalSigner>, String>> {
        self.current_in(&self.world.borrow())
    }

    /// Like [`current`](Self::current), for this configuration.
    pub(crate) fn current_in(&self, world: &World) -> Option<Result<Arc<ExternalSigner>, String>> {
        if let Some(cluster) = &self.cluster {
            let address = format!("`{}` of the cluster", cluster.name());
            return Some(Ok(Arc::new(ExternalSigner { address, tls: None, timeout: CLUSTER_TIMEOUT })));
        }
        let Some(address) = &self.options.external_signer else { return world.snapshot.mesh.external_signer.clone() };
        let identity = self.options.external_signer_cert.clone().zip(self.options.external_signer_key.clone());
        let tls = SignerTls { roots: self.options.external_signer_ca.clone(), identity, ..SignerTls::default() };
        let (address, timeout) = (address.clone(), ExternalSigner::DEFAULT_TIMEOUT);
        Some(Ok(Arc::new(ExternalSigner { address, tls: Some(tls), timeout })))
    }

    /// Requests a certificate from `signer`. `token`: the workload's own. Dropping the future cancels the call.
    pub(crate) async fn ask(
        &self,
        signer: &Arc<ExternalSigner>,
        wanted: &ExternalRequest,
        token: Option<&str>,
    ) -> Result<Vec<String>, AskError> {
        let end = Instant::now() + signer.timeout;
        let asking = async {
            // The semaphore is never closed.
            let _place = self.places.acquire().await;
            if let Some(cluster) = &self.cluster {
                return cluster.sign(wanted).await.map_err(AskError::Cluster);
            }
            let mut pause = FIRST_PAUSE;
            for _ in 1..MAX_TRIES {
                match self.ask_once(signer, wanted, token, end).await {
                    Err(AskError::Refused(status)) if is_passing(&status) => {
                        tracing::debug!(signer = signer.address, reason = %reason(&status), "asking the external signer again");
                    }
                    result => return result,
                }
                tokio::time::sleep(pause).await;
                pause *= 2;
            }
            self.ask_once(signer, wanted, token, end).await
        };
        tokio::time::timeout_at(end, asking).await.unwrap_or(Err(AskError::Timeout(signer.timeout)))
    }

    async fn ask_once(
        &self,
        signer: &Arc<ExternalSigner>,
        wanted: &ExternalRequest,
        token: Option<&str>,
        end: Instant,
    ) -> Result<Vec<String>, AskError> {
        let validity_duration = i64::try_from(wanted.ttl().as_secs()).unwrap_or(i64::MAX);
        let message = IstioCertificateRequest { csr: wanted.pem().to_owned(), validity_duration, metadata: None };
        let mut request = Request::new(message);
        if let Some(bearer) = self.bearer(signer, token)? {
            request.metadata_mut().insert("authorization", bearer);
        }
        request.set_timeout(end.saturating_duration_since(Instant::now()));
        let client = IstioCertificateServiceClient::new(self.channel(signer));
        let answer = client.max_decoding_message_size(MAX_ANSWER_BYTES).create_certificate(request).await;
        let answer = answer.map_err(|status| match status.code() {
            // tonic's status for a call that exceeded the time limit sent with the request.
            Code::Cancelled | Code::DeadlineExceeded => AskError::Timeout(signer.timeout),
            _ => AskError::Refused(status),
        });
        Ok(answer?.into_inner().cert_chain)
    }

    /// Returns the token that authenticates the caller to the signer, unless its certificate does.
    fn bearer(&self, signer: &ExternalSigner, token: Option<&str>) -> Result<Option<MetadataValue<Ascii>>, AskError> {
        let (token, path) = match &self.options.external_signer_token {
            Some(path) => (read(path)?, path.clone()),
            None => match token.filter(|_| self.options.external_signer_forward_token) {
                Some(token) => (token.to_owned(), PathBuf::from("the workload's token")),
                None => return Ok(None),
            },
        };
        // A token must not be readable on the network; the configuration refuses such a signer already.
        if signer.tls.is_none() && !is_local(&signer.address) {
            let reason = "not sent in plain text".to_owned();
            return Err(AskError::File { path, reason });
        }
        let mut value = MetadataValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| AskError::File { path, reason: "it has characters that no token has".to_owned() })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// Returns the channel to the signer. It is replaced when the settings change, and reconnects by itself.
    fn channel(&self, signer: &Arc<ExternalSigner>) -> Channel {
        let mut held = self.channel.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some((of, channel)) if of == signer => channel.clone(),
            _ => {
                let channel = channel::open(signer.clone());
                *held = Some((signer.clone(), channel.clone()));
                channel
            }
        }
    }
}

/// Whether a retry may succeed.
fn is_passing(status: &Status) -> bool {
    // Without a connection, tonic reports nothing better than `Unknown`.
    matches!(status.code(), Code::Unavailable | Code::Aborted)
        || (status.code() == Code::Unknown && std::error::Error::source(status).is_some())
}

/// Returns the message of a status for people; it is bounded, as it comes from outside.
fn reason(status: &Status) -> String {
    let mut cause: Option<&dyn std::error::Error> = std::error::Error::source(status);
    let mut text = status.message().to_owned();
    while let Some(error) = cause {
        text = error.to_string();
        cause = error.source();
    }
    printable(&text).chars().take(MAX_REASON).collect()
}

fn describe(code: Code) -> &'static str {
    match code {
        Code::Unauthenticated => "it does not accept the control plane's credentials",
        Code::PermissionDenied => "it does not sign this",
        Code::Unimplemented => "it is no certificate service",
        Code::Unavailable | Code::Unknown => "it cannot be reached, or fails",
        _ => "it refuses",
    }
}

fn read(path: &Path) -> Result<String, AskError> {
    let failed = |reason: String| AskError::File { path: path.to_owned(), reason };
    let size = std::fs::metadata(path).map_err(|error| failed(error.to_string()))?.len();
    if size > MAX_FILE_BYTES {
        return Err(failed(format!("{size} bytes; at most {MAX_FILE_BYTES} are read")));
    }
    std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))
}
