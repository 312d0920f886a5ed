//! Istio's certificate service: a workload authenticates with a token, and its signing request is signed for the identity in
//! the token.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_ca::external::ExternalRequest;
use evenkeel_ca::rotation::{EXTERNAL, Record, Signing};
use evenkeel_ca::tokens::{ACCOUNT_PREFIX, GROUP_PREFIX, MAX_TOKEN_BYTES};
use evenkeel_ca::{CsrError, DEFAULT_TTL, IssuedCertificate, SignError, Workload};
use evenkeel_model::ExternalSigner;
use evenkeel_tls::TrustBundle;
use evenkeel_xds::istio::auth::istio_certificate_service_server::IstioCertificateService;
use evenkeel_xds::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};
use http::HeaderMap;
use tokio::sync::watch;
use tonic::{Code, Extensions, Request, Response, Status};

use crate::authentication::{Presented, TokenAuthenticator, TokenRefusal, bearer};
use crate::authorities::{self, Authorities};
use crate::listen::Peer;
use crate::metrics::{Metrics, plane};
use crate::quota::{Rate, host};
use crate::world::World;

/// Path of the service's only method.
pub const METHOD: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
/// Maximum size of a request, in bytes: a signing request ([`evenkeel_ca::MAX_CSR_BYTES`]) and what Istio's agents add to it.
pub const MAX_MESSAGE_BYTES: usize = 32 * 1024;
/// Requests without a valid token that are processed per client address: the burst, and the interval after which one more is
/// allowed. Beyond it a connection's first token is still verified.
const REFUSALS: (u32, Duration) = (50, Duration::from_millis(200));
/// Certificates issued per pod: the burst, and the interval after which one more is allowed.
const ISSUED: (u32, Duration) = (30, Duration::from_secs(1));
/// Maximum number of addresses, and of pods, for which these rates are tracked.
const MAX_REMEMBERED: usize = 50_000;
/// How long the control plane waits for a running Pod to appear in its configuration.
const POD_TIMEOUT: Duration = Duration::from_secs(2);

/// The caller that requests a certificate, as identified by the token in the call's metadata.
#[derive(Debug, Clone)]
struct Caller {
    identity: SpiffeId,
    workload: Workload,
    address: IpAddr,
}

impl Caller {
    /// The caller's name in the ledger: POD.NAMESPACE, with its address where several machines use the same token or account.
    fn name(&self) -> String {
        let Workload { namespace, pod, .. } = &self.workload;
        if pod.starts_with(GROUP_PREFIX) || pod.starts_with(ACCOUNT_PREFIX) {
            format!("{pod}@{}.{namespace}", self.address)
        } else {
            format!("{pod}.{namespace}")
        }
    }
}

/// The token of an xDS stream without a client certificate, which has not been verified, and the cluster that it is said to be from.
#[derive(Clone)]
pub struct StreamToken {
    token: Arc<str>,
    cluster: Arc<str>,
}

impl std::fmt::Debug for StreamToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamToken")
    }
}

/// The certificate service, with the authorities that sign and who verifies tokens.
pub struct Certificates {
    authorities: Arc<Authorities>,
    tokens: Arc<dyn TokenAuthenticator>,
    trust_domain: Arc<str>,
    metrics: Arc<Metrics>,
    refusals: Rate<IpAddr>,
    /// Rate per namespace and pod.
    issued: Rate<(String, String)>,
    /// The longest lifetime of a certificate.
    max_ttl: Duration,
    /// The world with the Pods for which tokens are valid; `None`: tokens are valid for any Pod.
    pods: Option<watch::Receiver<Arc<World>>>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates")
    }
}

impl Certificates {
    /// Creates a service that signs with `authorities` for identities of `trust_domain`.
    pub fn new(
        authorities: Arc<Authorities>,
        tokens: Arc<dyn TokenAuthenticator>,
        trust_domain: Arc<str>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let refusals = Rate::new(REFUSALS.0, REFUSALS.1, MAX_REMEMBERED);
        let issued = Rate::new(ISSUED.0, ISSUED.1, MAX_REMEMBERED);
        Self { authorities, tokens, trust_domain, metrics, refusals, issued, max_ttl: DEFAULT_TTL, pods: None }
    }

    /// Limits the lifetime of certificates.
    #[must_use]
    pub fn lasting_at_most(self, max_ttl: Duration) -> Self {
        Self { max_ttl, ..self }
    }

    /// Makes a token invalid once its Pod is gone.
    #[must_use]
    pub fn of_running_pods(self, pods: watch::Receiver<Arc<World>>) -> Self {
        Self { pods: Some(pods), ..self }
    }

    /// Checks the token of a peer's call when its head has arrived, before any byte of the body is buffered. Stores the caller
    /// in `extensions` for the service, unless the verdict needs I/O: then the service asks for it.
    pub fn admit(&self, peer: &Peer, metadata: &HeaderMap, extensions: &mut Extensions) -> Result<(), Status> {
        let (address, now) = (host(peer.address.ip()), Instant::now());
        self.metrics.plane.inc(plane::Counter::citadel_server_csr_count);
        // Many may share an address. So the first token of each connection is always verified: that costs the control plane
        // less than the handshake before it.
        if peer.refused.load(Ordering::Relaxed) > 0 && self.refusals.is_over(&address, now) {
            self.metrics.plane.inc(plane::Counter::evenkeel_csr_throttled);
            tracing::debug!(%address, "certificate request not looked at");
            return Err(Status::resource_exhausted(
                "too many certificate requests without a valid token; come again later",
            ));
        }
        let verdict = token(metadata).and_then(|token| match self.tokens.verdict(token, SystemTime::now()) {
            Some(verdict) => self.caller(address, verdict, now).map(Some),
            None => Ok(None),
        });
        if let Some(caller) = verdict.inspect_err(|status| self.note_refusal(peer, status, now))? {
            extensions.insert(caller);
        }
        Ok(())
    }

    /// Checks that the head of an xDS stream without a client certificate has a token, and stores it in `extensions` for
    /// [`Self::identify`], which verifies it before anything is served.
    pub fn admit_stream(&self, peer: &Peer, metadata: &HeaderMap, extensions: &mut Extensions) -> Result<(), Status> {
        let presented = Presented::of(metadata).ok_or_else(|| {
            Status::unauthenticated(
                "xDS over TLS needs the workload's certificate (istio.v1.auth.IstioCertificateService issues it), or `authorization: Bearer TOKEN` with its token for the audience `istio-ca`",
            )
        })?;
        let address = host(peer.address.ip());
        if peer.refused.load(Ordering::Relaxed) > 0 && self.refusals.is_over(&address, Instant::now()) {
            return Err(Status::resource_exhausted("too many calls without a valid token; come again later"));
        }
        // What nobody has to be asked about is refused before any byte of the stream is buffered.
        let refused = match self.tokens.verdict(presented, SystemTime::now()) {
            _ if presented.token.len() > MAX_TOKEN_BYTES => {
                Some(format!("the token has more than {MAX_TOKEN_BYTES} bytes"))
            }
            Some(Err(TokenRefusal::Invalid(reason))) => Some(format!("the token is not accepted: {reason}")),
            _ => None,
        };
        if let Some(reason) = refused {
            let status = Status::unauthenticated(reason);
            self.note_refusal(peer, &status, Instant::now());
            return Err(status);
        }
        extensions.insert(StreamToken { token: presented.token.into(), cluster: presented.cluster.into() });
        Ok(())
    }

    /// Returns the identity that the token of an xDS stream proves.
    pub async fn identify(&self, peer: &Peer, token: &StreamToken) -> Result<SpiffeId, Status> {
        let now = SystemTime::now();
        let presented = Presented { token: &token.token, cluster: &token.cluster };
        let verdict = match self.tokens.verdict(presented, now) {
            Some(verdict) => verdict,
            None => self.tokens.review(presented, now).await,
        };
        let workload = self.verified(verdict).inspect_err(|status| self.note_refusal(peer, status, Instant::now()));
        let workload = workload?;
        let identity = self.identity(&workload)?;
        // A token that is bound to a Pod is worth nothing once the Pod is gone.
        if !workload.pod.starts_with(ACCOUNT_PREFIX) {
            self.runs(&workload).await?;
        }
        Ok(identity)
    }

    /// Verifies the token of a call about which [`Self::admit`] could not decide.
    async fn review(&self, request: &Request<IstioCertificateRequest>) -> Result<Caller, Status> {
        let peer = request.extensions().get::<Peer>();
        let peer = peer.ok_or_else(|| Status::unauthenticated("nobody knows where this call comes from"))?;
        let caller = async {
            let token = token(request.metadata().as_ref())?;
            let verdict = self.tokens.review(token, SystemTime::now()).await;
            self.caller(host(peer.address.ip()), verdict, Instant::now())
        };
        caller.await.inspect_err(|status| self.note_refusal(peer, status, Instant::now()))
    }

    /// Counts a refused call, and logs it unless its address has too many of them.
    fn note_refusal(&self, peer: &Peer, status: &Status, now: Instant) {
        let (address, reason) = (host(peer.address.ip()), status.message());
        let mut is_logged = true;
        if status.code() == Code::Unauthenticated {
            peer.refused.fetch_add(1, Ordering::Relaxed);
            is_logged = self.refusals.note(address, now);
            self.metrics.plane.inc(plane::Counter::citadel_server_authentication_failure_count);
        }
        if is_logged {
            tracing::warn!(%address, reason, "certificate request refused")
        } else {
            tracing::debug!(%address, reason, "certificate request refused")
        }
    }

    /// Returns the caller that a verdict about its token identifies.
    fn caller(&self, address: IpAddr, verdict: Result<Workload, TokenRefusal>, now: Instant) -> Result<Caller, Status> {
        let workload = self.verified(verdict)?;
        let identity = self.identity(&workload)?;
        if !self.issued.note((workload.namespace.clone(), workload.pod.clone()), now) {
            self.metrics.plane.inc(plane::Counter::evenkeel_csr_throttled);
            return Err(Status::resource_exhausted("too many certificate requests of this pod; come again later"));
        }
        Ok(Caller { identity, workload, address })
    }

    fn verified(&self, verdict: Result<Workload, TokenRefusal>) -> Result<Workload, Status> {
        verdict.map_err(|refusal| match refusal {
            TokenRefusal::Invalid(reason) => Status::unauthenticated(format!("the token is not accepted: {reason}")),
            TokenRefusal::Unavailable(reason) => Status::unavailable(format!("the token cannot be verified: {reason}")),
        })
    }

    fn identity(&self, workload: &Workload) -> Result<SpiffeId, Status> {
        workload
            .spiffe_id(&self.trust_domain)
            .inspect_err(|_| self.metrics.plane.inc(plane::Counter::citadel_server_id_extraction_err_count))
            .map_err(|error| Status::unauthenticated(format!("the token names no identity: {error}")))
    }

    /// Checks that the token's Pod exists and has that service account. Waits a moment for it, as its first request may come
    /// before the Pod is known.
    async fn runs(&self, workload: &Workload) -> Result<(), Status> {
        let Some(mut pods) = self.pods.clone() else { return Ok(()) };
        let (namespace, pod) = (workload.namespace.as_str().into(), workload.pod.as_str().into());
        let is_there = |world: &Arc<World>| {
            if let Some(name) = workload.pod.strip_prefix(GROUP_PREFIX) {
                return has_group(world, workload, name);
            }
            let known = world.snapshot.workload(&namespace, &pod);
            known.is_some_and(|known| *known.service_account == *workload.service_account)
        };
        match tokio::time::timeout(POD_TIMEOUT, pods.wait_for(is_there)).await {
            Ok(Ok(_)) => Ok(()),
            _ => {
                let account = &workload.service_account;
                let reason = match workload.pod.strip_prefix(GROUP_PREFIX) {
                    Some(group) => format!("there is no WorkloadGroup {namespace}/{group} of `{account}`"),
                    None => format!("the token's Pod {namespace}/{pod} is not running as `{account}`"),
                };
                Err(Status::unauthenticated(reason))
            }
        }
    }

    async fn issue(&self, request: &Request<IstioCertificateRequest>, caller: &Caller) -> Result<Vec<String>, Status> {
        let message = request.get_ref();
        let wished = u64::try_from(message.validity_duration).ok().filter(|seconds| *seconds > 0);
        let ttl = wished.map_or(DEFAULT_TTL, Duration::from_secs).min(self.max_ttl);
        match self.authorities.signers().current() {
            None => self.sign(message, caller, ttl),
            Some(Ok(signer)) => {
                let token = bearer(request.metadata().as_ref());
                self.forward(&signer, message, caller, (ttl, token)).await
            }
            Some(Err(reason)) => Err(Status::unavailable(format!("no external signer: {reason}"))),
        }
    }

    /// Forwards the request to the external signer, and returns a certificate only if it is exactly what the caller may have.
    async fn forward(
        &self,
        signer: &Arc<ExternalSigner>,
        request: &IstioCertificateRequest,
        caller: &Caller,
        (ttl, token): (Duration, Option<&str>),
    ) -> Result<Vec<String>, Status> {
        let wanted = ExternalRequest::new(request.csr.as_bytes(), &caller.identity, ttl)
            .map_err(|error| self.refusal(&SignError::Csr(error)))?;
        let answer = self.authorities.signers().ask(signer, &wanted, token).await.map_err(|error| {
            self.metrics.plane.inc(plane::Counter::evenkeel_external_signer_failures);
            self.metrics.plane.inc(plane::Counter::citadel_server_csr_sign_err_count);
            Status::unavailable(format!("the external signer {}: {error}", signer.address))
        })?;
        let now = SystemTime::now();
        let signed = self.authorities.sign(now, |signing| {
            let issued = wanted.accept(&answer, &trusted(signing)?, now).map_err(|error| error.to_string())?;
            let record = self.record(caller, EXTERNAL, signing, &issued, now);
            let mut chain = issued.chain;
            chain.push(signing.trust());
            Ok::<_, String>(((chain, issued.not_before), record))
        });
        let (chain, not_before) = signed.map_err(|reason| {
            self.metrics.plane.inc(plane::Counter::evenkeel_external_signer_bad_answers);
            Status::internal(format!("the answer of the external signer {} is refused: {reason}", signer.address))
        })?;
        // The signer's clock may be a little ahead, and peers reject a certificate that is not valid yet.
        tokio::time::sleep(not_before.duration_since(now).unwrap_or_default()).await;
        Ok(chain)
    }

    /// Records a certificate in the ledger: `signer` has signed it, while these roots were distributed.
    fn record(
        &self,
        caller: &Caller,
        signer: &str,
        signing: &Signing,
        issued: &IssuedCertificate,
        now: SystemTime,
    ) -> Record {
        Record::Issued {
            name: caller.name(),
            identity: caller.identity.to_string(),
            signer: signer.to_owned(),
            serial: issued.serial.clone(),
            bundle: signing.version.clone(),
            at: authorities::millis(now),
            end: authorities::unix(issued.not_after),
            pod: self.authorities.has_pod(&caller.workload.namespace, &caller.workload.pod),
        }
    }

    fn sign(&self, request: &IstioCertificateRequest, caller: &Caller, ttl: Duration) -> Result<Vec<String>, Status> {
        let now = SystemTime::now();
        let signed = self.authorities.sign(now, |signing| {
            let issued = signing.active.sign(request.csr.as_bytes(), &caller.identity, ttl, now)?;
            let record = self.record(caller, signing.active.id(), signing, &issued, now);
            // Leaf first, roots last, as Istio's agent expects.
            let mut chain = issued.chain;
            chain.push(signing.trust());
            Ok((chain, record))
        });
        signed.map_err(|error: SignError| self.refusal(&error))
    }

    fn refusal(&self, error: &SignError) -> Status {
        match error {
            SignError::Csr(CsrError::Identity { .. }) => {
                self.metrics.plane.inc(plane::Counter::evenkeel_csr_forbidden);
                Status::permission_denied(error.to_string())
            }
            SignError::Csr(_) => {
                self.metrics.plane.inc(plane::Counter::citadel_server_csr_parsing_err_count);
                Status::invalid_argument(error.to_string())
            }
            _ => {
                self.metrics.plane.inc(plane::Counter::citadel_server_csr_sign_err_count);
                Status::internal(error.to_string())
            }
        }
    }
}

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        let caller = match request.extensions().get::<Caller>() {
            Some(caller) => caller.clone(),
            None => self.review(&request).await?,
        };
        let identity = &caller.identity;
        self.runs(&caller.workload).await.inspect_err(|status| {
            self.metrics.plane.inc(plane::Counter::citadel_server_authentication_failure_count);
            tracing::warn!(%identity, reason = status.message(), "certificate request refused");
        })?;
        let cert_chain = self.issue(&request, &caller).await.inspect_err(|status| {
            tracing::warn!(%identity, reason = status.message(), "certificate request refused");
        })?;
        self.metrics.plane.inc(plane::Counter::citadel_server_success_cert_issuance_count);
        tracing::info!(%identity, "certificate issued");
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

/// Returns the roots that peers trust.
fn trusted(signing: &Signing) -> Result<TrustBundle, String> {
    let trust = TrustBundle::from_pem(signing.roots.as_bytes()).map_err(|error| error.to_string())?;
    match &signing.revocation_lists {
        None => Ok(trust),
        Some(lists) => trust.with_revocation_lists(lists.as_bytes()).map_err(|error| error.to_string()),
    }
}

/// Whether there is a WorkloadGroup of this name whose workloads have the service account of the token.
fn has_group(world: &World, workload: &Workload, name: &str) -> bool {
    let group = world.snapshot.workload_group(&workload.namespace, name).and_then(|group| group.spec());
    group.is_some_and(|spec| {
        let account = spec.template.service_account.as_ref().map_or("default", |account| &account.0);
        account == workload.service_account
    })
}

fn token(metadata: &HeaderMap) -> Result<Presented<'_>, Status> {
    let missing = || Status::unauthenticated("a certificate request needs the metadata `authorization: Bearer TOKEN`");
    Presented::of(metadata).ok_or_else(missing)
}
