//! Istio's certificate service: a workload proves who it is by a token, and gets its request signed for that identity.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_ca::{Authority, CsrError, DEFAULT_TTL, SignError, TokenKey};
use evenkeel_xds::istio::auth::istio_certificate_service_server::IstioCertificateService;
use evenkeel_xds::istio::auth::{IstioCertificateRequest, IstioCertificateResponse};
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status};

use crate::metrics::Metrics;

/// The service over an authority and the key that tokens are checked with.
pub struct Certificates {
    authority: Arc<Authority>,
    tokens: Arc<TokenKey>,
    trust_domain: Arc<str>,
    metrics: Arc<Metrics>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Certificates")
    }
}

impl Certificates {
    /// Signs with `authority` for identities of `trust_domain`.
    pub fn new(
        authority: Arc<Authority>,
        tokens: Arc<TokenKey>,
        trust_domain: Arc<str>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self { authority, tokens, trust_domain, metrics }
    }

    /// The identity that the bearer token stands for.
    fn authenticate(&self, metadata: &MetadataMap) -> Result<SpiffeId, Status> {
        let token = bearer(metadata).ok_or_else(|| {
            Status::unauthenticated("a certificate request needs the metadata `authorization: Bearer TOKEN`")
        })?;
        let workload = self
            .tokens
            .verify(token, SystemTime::now())
            .map_err(|error| Status::unauthenticated(format!("the token is not accepted: {error}")))?;
        workload
            .spiffe_id(&self.trust_domain)
            .map_err(|error| Status::unauthenticated(format!("the token names no identity: {error}")))
    }

    fn issue(&self, request: &IstioCertificateRequest, identity: &SpiffeId) -> Result<Vec<String>, Status> {
        let wished = u64::try_from(request.validity_duration).ok().filter(|seconds| *seconds > 0);
        let ttl = wished.map_or(DEFAULT_TTL, Duration::from_secs);
        let issued = self
            .authority
            .sign(request.csr.as_bytes(), identity, ttl, SystemTime::now())
            .map_err(|error| self.refusal(&error))?;
        // Leaf first, root last, as Istio's agent expects.
        let mut chain = issued.chain;
        chain.push(self.authority.trust_bundle_pem().to_owned());
        Ok(chain)
    }

    fn refusal(&self, error: &SignError) -> Status {
        match error {
            SignError::Csr(CsrError::Identity { .. }) => {
                self.metrics.csr_forbidden.fetch_add(1, Relaxed);
                Status::permission_denied(error.to_string())
            }
            SignError::Csr(_) => {
                self.metrics.csr_unreadable.fetch_add(1, Relaxed);
                Status::invalid_argument(error.to_string())
            }
            _ => Status::internal(error.to_string()),
        }
    }
}

#[tonic::async_trait]
impl IstioCertificateService for Certificates {
    async fn create_certificate(
        &self,
        request: Request<IstioCertificateRequest>,
    ) -> Result<Response<IstioCertificateResponse>, Status> {
        self.metrics.csr.fetch_add(1, Relaxed);
        let identity = self.authenticate(request.metadata()).inspect_err(|status| {
            self.metrics.csr_unauthenticated.fetch_add(1, Relaxed);
            tracing::warn!(reason = status.message(), "certificate request refused");
        })?;
        let cert_chain = self.issue(request.get_ref(), &identity).inspect_err(|status| {
            tracing::warn!(%identity, reason = status.message(), "certificate request refused");
        })?;
        self.metrics.csr_issued.fetch_add(1, Relaxed);
        tracing::info!(%identity, "certificate issued");
        Ok(Response::new(IstioCertificateResponse { cert_chain }))
    }
}

/// The token of `authorization: Bearer TOKEN`; the scheme in any case (RFC 9110 section 11.1).
fn bearer(metadata: &MetadataMap) -> Option<&str> {
    let (scheme, token) = metadata.get("authorization")?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}
