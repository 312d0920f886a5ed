//! Workload tokens, with which a workload proves its namespace, service account and pod before it has a certificate.
//!
//! They are JWTs (RFC 7519, ES256) with the claims of Kubernetes' projected service account tokens, so that the same
//! checks work in a cluster, where the API server makes them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_base::spiffe::{SpiffeError, SpiffeId};
use evenkeel_store::{Readers, SecretError, Store};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey, Header, Validation};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256};
use serde::{Deserialize, Serialize};

/// Audience of the tokens, as in Istio.
pub const AUDIENCE: &str = "istio-ca";
/// Issuer of the tokens.
pub const ISSUER: &str = "https://evenkeel.local";
/// File name of the key in the state directory; its mode is 0600.
pub const TOKEN_KEY_FILE: &str = "token-key.pem";
/// Prefix of a WorkloadGroup's name in [`Workload::pod`], for workloads that are not Pods. No Pod has such a name.
pub const GROUP_PREFIX: &str = "workloadgroup/";
/// Prefix of a service account's name in [`Workload::pod`], for tokens that are bound to no Pod. No Pod has such a name.
pub const ACCOUNT_PREFIX: &str = "serviceaccount/";
/// Maximum length of a token, in bytes.
pub const MAX_TOKEN_BYTES: usize = 16 * 1024;
/// How far the issuer's clock may be ahead or behind.
const CLOCK_SKEW: Duration = Duration::from_secs(10);

/// The key that signs and verifies tokens.
pub struct TokenKey {
    signing: EncodingKey,
    verifying: DecodingKey,
}

/// Without the key.
impl std::fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenKey")
    }
}

/// The workload that a token was issued to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Workload {
    /// Namespace of the pod and its service account.
    pub namespace: String,
    /// Service account.
    pub service_account: String,
    /// Name of the pod.
    pub pod: String,
}

/// Why a token is not accepted, or cannot be issued.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The key file cannot be used.
    #[error(transparent)]
    KeyFile(#[from] SecretError),
    /// The key file holds no ECDSA P-256 key.
    #[error("{TOKEN_KEY_FILE}: not an ECDSA P-256 key in PKCS #8: {0}")]
    Key(#[source] rcgen::Error),
    /// The token is longer than [`MAX_TOKEN_BYTES`].
    #[error("the token has more than {MAX_TOKEN_BYTES} bytes")]
    TooLong,
    /// It is not a token, or not one for this purpose.
    #[error("the token is not acceptable: {0}")]
    Malformed(String),
    /// Another key signed it, or it was changed.
    #[error("the token's signature is not valid: another control plane signed the token, or it was changed")]
    Signature,
    /// It has expired.
    #[error("the token expired {} s ago", .0.as_secs())]
    Expired(Duration),
    /// It is not valid yet.
    #[error("the token is not valid yet; check the clocks")]
    NotYetValid,
    /// Its subject contradicts its other claims.
    #[error("the token's subject `{0}` is not `system:serviceaccount:NAMESPACE:NAME` of its other claims")]
    Subject(String),
    /// It could not be signed.
    #[error("the token could not be signed: {0}")]
    Signing(#[source] jsonwebtoken::errors::Error),
}

#[derive(Serialize, Deserialize)]
struct Claims {
    iss: String,
    aud: Vec<String>,
    sub: String,
    iat: u64,
    nbf: u64,
    exp: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Serialize, Deserialize)]
struct Kubernetes {
    namespace: String,
    pod: Named,
    serviceaccount: Named,
}

#[derive(Serialize, Deserialize)]
struct Named {
    name: String,
}

impl TokenKey {
    /// Opens the key in the state directory; creates one if there is none.
    pub fn open(state: impl Into<Store>) -> Result<Self, TokenError> {
        let store = state.into();
        let key = match store.secret(TOKEN_KEY_FILE)? {
            Some(pem) => {
                KeyPair::from_pkcs8_pem_and_sign_algo(&pem, &PKCS_ECDSA_P256_SHA256).map_err(TokenError::Key)?
            }
            None => {
                let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(TokenError::Key)?;
                let path = store.place(TOKEN_KEY_FILE);
                let written = store.put(TOKEN_KEY_FILE, key.serialize_pem().as_bytes(), Readers::Owner);
                written.map_err(|source| SecretError::Io { path, source })?;
                key
            }
        };
        let signing = EncodingKey::from_ec_der(key.serialized_der());
        Ok(Self { signing, verifying: DecodingKey::from_ec_der(key.public_key_raw()) })
    }

    /// Issues a token that is valid from `now` for `ttl`.
    pub fn mint(&self, workload: &Workload, ttl: Duration, now: SystemTime) -> Result<String, TokenError> {
        let seconds = unix(now);
        let claims = Claims {
            iss: ISSUER.into(),
            aud: vec![AUDIENCE.into()],
            sub: workload.subject(),
            iat: seconds,
            nbf: seconds,
            exp: seconds.saturating_add(ttl.as_secs()),
            kubernetes: Kubernetes {
                namespace: workload.namespace.clone(),
                pod: Named { name: workload.pod.clone() },
                serviceaccount: Named { name: workload.service_account.clone() },
            },
        };
        jsonwebtoken::encode(&Header::new(Algorithm::ES256), &claims, &self.signing).map_err(TokenError::Signing)
    }

    /// Verifies a token's signature, audience, issuer and times, and returns the workload it was issued to.
    pub fn verify(&self, token: &str, now: SystemTime) -> Result<Workload, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::TooLong);
        }
        let mut validation = Validation::new(Algorithm::ES256);
        validation.set_audience(&[AUDIENCE]);
        validation.set_issuer(&[ISSUER]);
        validation.set_required_spec_claims(&["exp", "nbf", "aud", "iss", "sub"]);
        // The library would use the system's clock; here the time is an argument.
        validation.validate_exp = false;
        validation.validate_nbf = false;
        let claims = jsonwebtoken::decode::<Claims>(token, &self.verifying, &validation).map_err(refused)?.claims;
        let (now, skew) = (unix(now), CLOCK_SKEW.as_secs());
        if claims.exp.saturating_add(skew) <= now {
            return Err(TokenError::Expired(Duration::from_secs(now - claims.exp)));
        }
        if claims.nbf > now.saturating_add(skew) {
            return Err(TokenError::NotYetValid);
        }
        let Kubernetes { namespace, pod, serviceaccount } = claims.kubernetes;
        let workload = Workload { namespace, service_account: serviceaccount.name, pod: pod.name };
        if workload.subject() == claims.sub { Ok(workload) } else { Err(TokenError::Subject(claims.sub)) }
    }
}

impl Workload {
    /// Returns the SPIFFE id of the service account.
    pub fn spiffe_id(&self, trust_domain: &str) -> Result<SpiffeId, SpiffeError> {
        SpiffeId::new(trust_domain, &self.namespace, &self.service_account)
    }

    fn subject(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.service_account)
    }
}

fn refused(error: jsonwebtoken::errors::Error) -> TokenError {
    match error.kind() {
        ErrorKind::InvalidSignature => TokenError::Signature,
        ErrorKind::InvalidAudience => TokenError::Malformed(format!("its audience is not `{AUDIENCE}`")),
        ErrorKind::InvalidIssuer => TokenError::Malformed(format!("its issuer is not `{ISSUER}`")),
        _ => TokenError::Malformed(error.to_string()),
    }
}

fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}
