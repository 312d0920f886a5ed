//! The workload's certificate: requests it, renews it and publishes it.

use std::io;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use aws_lc_rs::rand;
use evenkeel_tls::config::CertificateSource;
use evenkeel_tls::slot::Slot;
use evenkeel_tls::{ConfigError, Identity, IdentityError, SecretStore};
use evenkeel_xds::client::Backoff;
use evenkeel_xds::istio::auth::IstioCertificateRequest;
use evenkeel_xds::istio::auth::istio_certificate_service_client::IstioCertificateServiceClient;
use rcgen::{CertificateParams, DistinguishedName, KeyPair, SanType};
use tokio::sync::{mpsc, watch};
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::channel::{self, ChannelError};
use crate::options::{Options, OptionsError};
use crate::sds::{PemBundle, Secrets};
use crate::source::{self, CertificatePlace, Material};
use crate::trust::{self, Bundle, ControlPlaneRoots, Pushed, Trust};
use crate::{Task, grpc, node_message};

/// Share of a certificate's lifetime after which it is renewed, as by Istio's agent: half of it is left for a control plane that
/// cannot be reached.
const RENEW_AT: f64 = 0.5;
/// Random share by which the renewal is earlier or later, so that workloads started together do not renew together.
const RENEW_JITTER: f64 = 0.05;
/// Random time within which certificates are replaced after the authority has changed, so that not all workloads ask at once.
const REPLACE_WITHIN: Duration = Duration::from_secs(3);
/// Minimum time between two renewals, whatever the certificates' lifetime.
const MIN_RENEWAL: Duration = Duration::from_secs(1);
/// How often the root file is checked for new roots.
const ROOT_CHECK: Duration = Duration::from_secs(2);
/// How long the control plane may take to sign.
const SIGN_TIMEOUT: Duration = Duration::from_secs(10);

/// The certificate in force, for status reports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CurrentCertificate {
    /// The SPIFFE id in it.
    pub identity: String,
    /// End of its validity.
    pub not_after: SystemTime,
}

/// Why the workload could not get a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The options do not make an identity.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// A file cannot be read, or written.
    #[error("{path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The token has characters that a header must not have.
    #[error("{0}: not a token")]
    Token(PathBuf),
    /// The control plane cannot be reached.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// The control plane refused.
    #[error("the control plane signed no certificate: {}: {}", .0.code(), .0.message())]
    Refused(tonic::Status),
    /// The control plane's answer has no certificate.
    #[error("the control plane answered without a certificate chain")]
    Empty,
    /// The certificate is not usable.
    #[error("the control plane sent a certificate that cannot be used: {0}")]
    Unusable(#[from] IdentityError),
    /// The certificate is for another identity.
    #[error("the control plane sent a certificate for {received}, wanted {wanted}")]
    Identity {
        /// Name in the certificate.
        received: String,
        /// The requested name.
        wanted: String,
    },
    /// The key or request could not be made.
    #[error("cannot make a key or a signing request: {0}")]
    Request(#[from] rcgen::Error),
}

/// Gets one workload's certificate and renews it.
pub struct CertificateRenewer {
    options: Options,
    /// For the proxy.
    secrets: Secrets,
    /// For the agent's own stream. Holding a slot keeps the value in the store.
    store: SecretStore,
    _slot: Slot<Identity>,
    current: watch::Sender<Option<CurrentCertificate>>,
    renew_at: SystemTime,
    trust: Trust,
    control_plane: ControlPlaneRoots,
    pushed: mpsc::Receiver<Pushed>,
    place: CertificatePlace,
    /// The secrets of another SDS server, if the certificate comes from one.
    external: Option<External>,
    /// Counts certificates that the proxy uses.
    renewed: watch::Sender<u64>,
    material: Option<PemBundle>,
    /// Whether the files for gRPC programs are older than `material`.
    unwritten: bool,
}

impl From<(PathBuf, io::Error)> for CertificateError {
    fn from((path, source): (PathBuf, io::Error)) -> Self {
        Self::File { path, source }
    }
}

impl CertificateRenewer {
    /// Makes a renewer without a certificate yet. It publishes to `secrets` and `store` and reports to `current`.
    pub fn new(
        options: Options,
        secrets: Secrets,
        store: SecretStore,
        current: watch::Sender<Option<CurrentCertificate>>,
        (pushed, control_plane): (mpsc::Receiver<Pushed>, ControlPlaneRoots),
    ) -> Result<Self, ConfigError> {
        let slot = store.identity(&CertificateSource::Sds(channel::certificate_secret()))?;
        let renew_at = SystemTime::UNIX_EPOCH;
        let (mut trust, renewed) = (Trust::new(options.further_roots()), watch::Sender::new(0));
        trust.tell_apart(&trust::remembered_domains(&options.state));
        let place = CertificatePlace::of(&options);
        Ok(Self {
            place,
            external: None,
            options,
            secrets,
            store,
            _slot: slot,
            current,
            renew_at,
            trust,
            control_plane,
            pushed,
            renewed,
            material: None,
            unwritten: false,
        })
    }

    /// Changes whenever the proxy uses a new certificate.
    pub fn renewals(&self) -> watch::Receiver<u64> {
        self.renewed.subscribe()
    }

    /// Gets a certificate, trying until there is one.
    pub async fn obtain(&mut self) {
        if let (CertificatePlace::Sds(socket), None) = (&self.place, &self.external) {
            tracing::info!(socket = %socket.display(), "the certificate comes from another SDS server");
            self.external = Some(External::follow(socket.clone(), &self.options));
        }
        let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
        loop {
            match self.try_obtain().await {
                Ok(()) => return,
                Err(error) => {
                    let wait = backoff.next_wait();
                    tracing::warn!(%error, ?wait, "no certificate; trying again");
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }

    /// Renews the certificate and follows the root file until the future is dropped.
    pub async fn keep(mut self) {
        loop {
            let due = self.renew_at.duration_since(SystemTime::now()).unwrap_or_default();
            tokio::select! {
                () = tokio::time::sleep(due.min(ROOT_CHECK)) => {}
                () = External::changed(&mut self.external) => {
                    self.obtain().await;
                    continue;
                }
                Some(pushed) = self.pushed.recv() => {
                    self.take_bundle(pushed).await;
                    continue;
                }
            }
            if self.unwritten {
                self.write_files();
            }
            if SystemTime::now() >= self.renew_at || self.files_have_changed() {
                self.obtain().await;
            } else if let Err(error) = self.follow_roots() {
                tracing::warn!(%error, "the root file is not usable; the previous roots stay in use");
            }
        }
    }

    async fn try_obtain(&mut self) -> Result<(), CertificateError> {
        let (mut material, identity) = match &self.place {
            CertificatePlace::ControlPlane => request(&self.options, &self.control_plane).await?,
            CertificatePlace::Files(files) => usable(files.read()?)?,
            CertificatePlace::Sds(_) => usable(External::material(&mut self.external).await)?,
        };
        let is_ours = self.place == CertificatePlace::ControlPlane;
        let answered = is_ours.then(|| std::mem::take(&mut material.roots));
        if let Some(answered) = &answered {
            self.trust.replace(answered);
        }
        material.control_plane_roots = self.trust.roots(&read(&self.options.root_cert)?);
        if is_ours {
            material.roots = self.trust.of_peers(&material.control_plane_roots);
            material.domains = self.trust.domains(&material.roots);
        }
        // Counted from now: the certificate's validity begins a little earlier, for peers whose clock is slow.
        let now = SystemTime::now();
        let lifetime = identity.not_after().duration_since(now).unwrap_or_default();
        let share = RENEW_AT + RENEW_JITTER * (2.0 * random_share() - 1.0);
        // The program that keeps the certificate elsewhere renews it; an expired one is logged.
        let share = if is_ours { share } else { 1.0 };
        self.renew_at = now + lifetime.mul_f64(share).max(MIN_RENEWAL);
        let current =
            CurrentCertificate { identity: identity.certificate().display_name(), not_after: identity.not_after() };
        tracing::info!(identity = current.identity, ?lifetime, "certificate received");
        let published = self.publish(material)?;
        if let Some(answered) = &answered {
            self.remember(answered);
        }
        self.current.send_replace(Some(current));
        // Streams present the new certificate once the proxy does, so that the control plane knows that nobody presents the
        // old one.
        if let Err(reason) = self.secrets.confirmed(published).await {
            tracing::warn!(reason, "the proxy does not confirm the new certificate");
            return Ok(());
        }
        self.renewed.send_modify(|count| *count = count.wrapping_add(1));
        Ok(())
    }

    /// Hands roots of the control plane to the proxy, and asks for a new certificate if that in use is of an authority that is
    /// being replaced.
    async fn take_bundle(&mut self, Pushed { bundle, confirmed }: Pushed) {
        let result = self.trust_bundle(&bundle).await;
        if let Err(reason) = &result {
            tracing::warn!(reason, "the control plane's roots are not in use");
        }
        let is_trusted = result.is_ok();
        // Nobody waits when the stream has ended; the next one brings the roots again.
        let _ = confirmed.send(result);
        let signer = self.material.as_ref().and_then(PemBundle::authority_key_id);
        if is_trusted
            && self.place == CertificatePlace::ControlPlane
            && bundle.signer.is_some()
            && signer.is_some()
            && bundle.signer != signer
        {
            let soon = SystemTime::now() + REPLACE_WITHIN.mul_f64(random_share());
            self.renew_at = self.renew_at.min(soon);
        }
    }

    async fn trust_bundle(&mut self, bundle: &Bundle) -> Result<(), String> {
        let Some(material) = self.material.clone() else { return Err("there is no certificate yet".into()) };
        self.trust.replace(&bundle.roots);
        self.trust.tell_apart(&bundle.domains);
        let file = read(&self.options.root_cert).map_err(|error| error.to_string())?;
        let roots = self.trust.roots(&file);
        let of_peers = self.trust.of_peers(&roots);
        let next = match self.place {
            CertificatePlace::ControlPlane => PemBundle {
                domains: self.trust.domains(&of_peers),
                roots: of_peers,
                lists: bundle.lists.clone(),
                control_plane_roots: roots,
                ..material.clone()
            },
            // The issuer of the certificate determines which roots workloads trust.
            _ => PemBundle { control_plane_roots: roots, ..material.clone() },
        };
        if next != material {
            tracing::info!("the control plane has changed the trusted roots, or revocation lists");
            self.publish(next).map_err(|error| error.to_string())?;
        }
        self.remember(&bundle.roots);
        if let Err(error) = trust::remember_domains(&self.options.state, &bundle.domains) {
            tracing::warn!(%error, "cannot write the trust domains; they count until the agent ends");
        }
        self.secrets.confirmed(self.secrets.generation()).await?;
        if self.options.grpc_bootstrap.is_some() {
            // gRPC programs check the files only periodically.
            tokio::time::sleep(grpc::REFRESH).await;
        }
        Ok(())
    }

    fn remember(&self, bundle: &str) {
        if let Err(error) = trust::remember(&self.options.state, bundle) {
            tracing::warn!(%error, "cannot write the control plane's roots; they count until the agent ends");
        }
    }

    /// Whether the files that the certificate comes from are others. Half of what was written is not used: then certificate and key
    /// do not belong together.
    fn files_have_changed(&self) -> bool {
        let CertificatePlace::Files(files) = &self.place else { return false };
        let Ok(found) = files.read() else { return false };
        let known = self.material.as_ref();
        let is_known = known
            .is_some_and(|known| (&known.chain, &known.key, &known.roots) == (&found.chain, &found.key, &found.roots));
        !is_known && usable(found).is_ok()
    }

    /// Trusts a root that the operator adds to the file at once, not only with the next certificate.
    fn follow_roots(&mut self) -> Result<(), CertificateError> {
        let Some(material) = self.material.clone() else { return Ok(()) };
        let file = read(&self.options.root_cert)?;
        let roots = self.trust.roots(&file);
        if roots != material.control_plane_roots && evenkeel_tls::TrustBundle::from_pem(roots.as_bytes()).is_ok() {
            tracing::info!("the trusted roots have changed");
            let (of_peers, domains) = match self.place {
                CertificatePlace::ControlPlane => {
                    let of_peers = self.trust.of_peers(&roots);
                    let domains = self.trust.domains(&of_peers);
                    (of_peers, domains)
                }
                _ => (material.roots.clone(), material.domains.clone()),
            };
            self.publish(PemBundle { roots: of_peers, domains, control_plane_roots: roots, ..material })?;
        }
        Ok(())
    }

    /// Publishes the secrets and returns their generation.
    fn publish(&mut self, mut material: PemBundle) -> Result<u64, CertificateError> {
        if self.options.envoy.is_some() && material.lists.is_some() && !material.domains.is_empty() {
            tracing::error!(
                "Envoy checks no revocation lists beside roots of other trust domains: peers of these are refused"
            );
            material.domains.clear();
        }
        let secret = channel::certificate_secret();
        self.store.set_identity(&secret, material.chain.as_bytes(), material.key.as_bytes())?;
        // Publish before any file is written: what the proxy uses must not depend on the disk.
        let generation = self.secrets.publish(&material);
        self.control_plane.set(&material.control_plane_roots);
        self.material = Some(material);
        self.write_files();
        Ok(generation)
    }

    /// Writes the certificate for programs that read it from files: those that use gRPC, and of `OUTPUT_CERTS`. A failed write is tried again; until then
    /// they use the previous certificate.
    fn write_files(&mut self) {
        let Some(material) = &self.material else { return };
        let mut folders = Vec::new();
        folders.extend(self.options.grpc_bootstrap.is_some().then(|| self.options.state.clone()));
        folders.extend(self.options.output_certs());
        let written = folders.iter().try_for_each(|folder| grpc::write_certificate(folder, material));
        if let Err((path, error)) = &written
            && !self.unwritten
        {
            tracing::error!(path = %path.display(), %error, "cannot write the certificate for programs; trying again");
        }
        self.unwritten = written.is_err();
    }
}

/// The secrets of another SDS server.
struct External {
    material: watch::Receiver<Option<Material>>,
    _task: Task,
}

impl External {
    fn follow(socket: PathBuf, options: &Options) -> Self {
        let (sender, material) = watch::channel(None);
        let names = (options.sds_certificate_name.clone(), options.sds_roots_name.clone());
        let node = node_message(options).unwrap_or_default();
        Self { material, _task: Task::spawn(source::follow(socket, names, node, sender)) }
    }

    /// Waits for secrets that have not been applied yet; never completes without such a server.
    async fn changed(this: &mut Option<Self>) {
        let has_changed = match this {
            Some(this) => this.material.changed().await.is_ok(),
            None => false,
        };
        if !has_changed {
            std::future::pending::<()>().await;
        }
    }

    async fn material(this: &mut Option<Self>) -> Material {
        let Some(this) = this else { return std::future::pending().await };
        match this.material.wait_for(Option::is_some).await.map(|material| material.clone()) {
            Ok(Some(material)) => material,
            _ => std::future::pending().await,
        }
    }
}

/// Checks secrets that do not come from the control plane.
fn usable(material: Material) -> Result<(PemBundle, Identity), CertificateError> {
    let Material { chain, key, mut roots, domains, lists } = material;
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), SystemTime::now())?;
    if !domains.is_empty() {
        roots = trust::roots_of_own(&identity.certificate().display_name(), &domains);
    }
    Ok((PemBundle { chain, key, roots, domains, lists, control_plane_roots: String::new() }, identity))
}

/// Makes a key, requests a certificate for it, and checks the answer.
async fn request(options: &Options, roots: &ControlPlaneRoots) -> Result<(PemBundle, Identity), CertificateError> {
    let wanted = options.identity()?.to_string();
    let key = KeyPair::generate_for(options.key_curve.algorithm())?;
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.subject_alt_names = vec![SanType::URI(wanted.as_str().try_into()?)];
    let csr = params.serialize_request(&key)?.pem()?;

    let chain = sign(options, roots, csr).await?;
    // Leaf first, root last.
    let (root, chain) = chain.split_last().ok_or(CertificateError::Empty)?;
    let chain: String = chain.iter().map(|certificate| with_newline(certificate)).collect();
    let key = key.serialize_pem();
    let identity = Identity::from_pem(chain.as_bytes(), key.as_bytes(), SystemTime::now())?;
    let received = identity.certificate().display_name();
    if received != wanted {
        return Err(CertificateError::Identity { received, wanted });
    }
    let (roots, lists) = (trust::merge_roots(&[root]), trust::lists(root));
    let domains = Vec::new();
    Ok((PemBundle { chain, key, roots, domains, lists, control_plane_roots: String::new() }, identity))
}

async fn sign(options: &Options, roots: &ControlPlaneRoots, csr: String) -> Result<Vec<String>, CertificateError> {
    // The token is read each time, because a cluster replaces it about every hour.
    let token = read(&options.token)?;
    let bearer = MetadataValue::try_from(format!("Bearer {}", token.trim()))
        .map_err(|_| CertificateError::Token(options.token.clone()))?;
    let channel = channel::connect_for_certificate(options, roots).await?;
    let validity_duration = i64::try_from(options.certificate_ttl_s).unwrap_or(i64::MAX);
    let mut request = Request::new(IstioCertificateRequest { csr, validity_duration, metadata: None });
    request.metadata_mut().insert("authorization", bearer);
    // A control plane of several clusters has to know who has issued the token.
    if let Ok(cluster) = MetadataValue::try_from(options.cluster_id.as_str()) {
        request.metadata_mut().insert("clusterid", cluster);
    }
    request.set_timeout(SIGN_TIMEOUT);
    let response = IstioCertificateServiceClient::new(channel).create_certificate(request).await;
    Ok(response.map_err(CertificateError::Refused)?.into_inner().cert_chain)
}

/// Reads a small local file on the runtime's thread: a blocking thread would stay alive, and so would its memory.
fn read(path: &std::path::Path) -> Result<String, CertificateError> {
    std::fs::read_to_string(path).map_err(|source| CertificateError::File { path: path.to_owned(), source })
}

fn with_newline(text: &str) -> String {
    format!("{}\n", text.trim_end())
}

/// A random number from 0 to 1.
fn random_share() -> f64 {
    let mut bytes = [0; 4];
    match rand::fill(&mut bytes) {
        Ok(()) => f64::from(u32::from_le_bytes(bytes)) / f64::from(u32::MAX),
        Err(_) => 0.5,
    }
}
