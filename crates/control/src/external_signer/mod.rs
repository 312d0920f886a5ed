//! A certificate service that signs in place of the control plane, as for Istio's registration authority.
//!
//! ```text
//!  agent ── CSR, token ──► Certificates    who is it? is the request for that identity, signed by its key?
//!                            │ ask         TLS, own token or certificate; a limit for everything
//!                            ▼
//!                          the signer
//!                            │ accept      (evenkeel_ca::external) the identity, key, lifetime asked for; a trusted root
//!                            ▼
//!  agent ◄── chain, the mesh's roots ── ledger
//! ```
//!
//! Which signer that is, the flags say or else `MeshConfig.ca`, whenever a certificate is asked for. When what they say cannot be used,
//! nobody signs: the control plane's own authority does not stand in.

mod channel;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
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

/// Requests at the signer at the same time; further ones wait within their own time limit.
const MAX_ASKED: usize = 64;
/// Tries of one request.
const MAX_TRIES: u32 = 3;
/// Pause before the second try; twice as long before the third.
const FIRST_PAUSE: Duration = Duration::from_millis(200);
/// Largest answer, in bytes.
const MAX_ANSWER_BYTES: usize = 256 * 1024;
/// Largest token, certificate or key that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1024 * 1024;
/// Characters of what the signer says that are passed on.
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
}

impl SignerOptions {
    /// The same as arguments of a control plane that another process starts, from another directory.
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

/// A certificate that the signer did not give.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// What it needs cannot be read.
    #[error("{path}: {reason}")]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// No answer in time.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// It, or the way to it, says no.
    #[error("{}: {}", describe(.0.code()), reason(.0))]
    Refused(Status),
}

/// Who signs in place of the control plane.
#[derive(Debug)]
pub struct ExternalSigners {
    options: SignerOptions,
    world: watch::Receiver<Arc<World>>,
    /// The way to the signer that was asked last.
    channel: Mutex<Option<(Arc<ExternalSigner>, Channel)>>,
    places: Semaphore,
}

impl ExternalSigners {
    /// As the flags say, or else the configuration.
    pub fn new(options: SignerOptions, world: watch::Receiver<Arc<World>>) -> Self {
        Self { options, world, channel: Mutex::default(), places: Semaphore::new(MAX_ASKED) }
    }

    /// The file with the roots of its certificates.
    pub fn roots(&self) -> Option<&Path> {
        self.options.external_signer_roots.as_deref()
    }

    /// The signer; none if the control plane signs itself, and an error if nobody does.
    pub fn current(&self) -> Option<Result<Arc<ExternalSigner>, String>> {
        self.current_in(&self.world.borrow())
    }

    /// The same, if the configuration is this.
    pub(crate) fn current_in(&self, world: &World) -> Option<Result<Arc<ExternalSigner>, String>> {
        let Some(address) = &self.options.external_signer else { return world.snapshot.mesh.external_signer.clone() };
        let identity = self.options.external_signer_cert.clone().zip(self.options.external_signer_key.clone());
        let tls = SignerTls { roots: self.options.external_signer_ca.clone(), identity, ..SignerTls::default() };
        let (address, timeout) = (address.clone(), ExternalSigner::DEFAULT_TIMEOUT);
        Some(Ok(Arc::new(ExternalSigner { address, tls: Some(tls), timeout })))
    }

    /// Has `signer` sign. `token`: the workload's own. When the future is dropped, so is the call.
    pub(crate) async fn ask(
        &self,
        signer: &Arc<ExternalSigner>,
        wanted: &ExternalRequest,
        token: Option<&str>,
    ) -> Result<Vec<String>, AskError> {
        let end = Instant::now() + signer.timeout;
        let asking = async {
            // It is never closed.
            let _place = self.places.acquire().await;
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
            // tonic's word for the limit that went along with the request.
            Code::Cancelled | Code::DeadlineExceeded => AskError::Timeout(signer.timeout),
            _ => AskError::Refused(status),
        });
        Ok(answer?.into_inner().cert_chain)
    }

    /// What the signer knows the caller by, if not by its certificate.
    fn bearer(&self, signer: &ExternalSigner, token: Option<&str>) -> Result<Option<MetadataValue<Ascii>>, AskError> {
        let (token, path) = match &self.options.external_signer_token {
            Some(path) => (read(path)?, path.clone()),
            None => match token.filter(|_| self.options.external_signer_forward_token) {
                Some(token) => (token.to_owned(), PathBuf::from("the workload's token")),
                None => return Ok(None),
            },
        };
        // A token is not for everybody on the way; the configuration refuses such a signer already.
        if signer.tls.is_none() && !is_local(&signer.address) {
            let reason = "not sent in plain text".to_owned();
            return Err(AskError::File { path, reason });
        }
        let mut value = MetadataValue::try_from(format!("Bearer {}", token.trim()))
            .map_err(|_| AskError::File { path, reason: "it has characters that no token has".to_owned() })?;
        value.set_sensitive(true);
        Ok(Some(value))
    }

    /// The way to the signer, which is opened anew when the settings change, and by itself when it is lost.
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

/// Whether it may be otherwise a moment later.
fn is_passing(status: &Status) -> bool {
    // Without a connection, tonic has no better word than that it does not know.
    matches!(status.code(), Code::Unavailable | Code::Aborted)
        || (status.code() == Code::Unknown && std::error::Error::source(status).is_some())
}

/// What a status says, for people; it comes from elsewhere, and is bounded.
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
