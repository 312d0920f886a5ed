//! A certificate chain with its private key.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::sign::CertifiedKey;
use rustls::{InconsistentKeys, SignatureAlgorithm};
use rustls_pki_types::pem::{self, PemObject};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::peer::{PeerCertificate, SanError};
use crate::provider::provider;
use crate::version1::Version1;

/// Maximum number of certificates in one chain.
pub const MAX_CHAIN_CERTIFICATES: usize = 10;

/// A certificate chain, leaf first, and the key of its leaf; ready to be used in handshakes.
pub struct Identity {
    key: Arc<CertifiedKey>,
    leaf: Arc<PeerCertificate>,
}

/// How well a certificate's names match, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum NameMatch {
    /// The name itself.
    Exact,
    /// `*.` and the rest of the name.
    Wildcard,
}

/// Why PEM texts do not make an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdentityError {
    /// The text has no certificate.
    #[error("certificate_chain holds no `BEGIN CERTIFICATE` section")]
    NoCertificate,
    /// The chain is longer than [`MAX_CHAIN_CERTIFICATES`].
    #[error("certificate_chain holds more than {MAX_CHAIN_CERTIFICATES} certificates")]
    TooManyCertificates,
    /// A certificate is damaged.
    #[error("certificate {number} of certificate_chain cannot be parsed: {reason}")]
    BadCertificate {
        /// Place in the chain, from 1.
        number: usize,
        /// The error.
        reason: String,
    },
    /// The text has no key.
    #[error("private_key holds no `BEGIN PRIVATE KEY` section")]
    NoKey,
    /// The key is protected by a passphrase.
    #[error("private_key is encrypted; remove the passphrase (openssl pkcs8 -topk8 -nocrypt)")]
    EncryptedKey,
    /// The key is damaged, or of a kind that is not supported.
    #[error("private_key cannot be used: {0}")]
    BadKey(String),
    /// The key is not the one in the leaf certificate.
    #[error("private_key does not belong to the first certificate of certificate_chain ({subject})")]
    KeyMismatch {
        /// The purpose of the certificate.
        subject: String,
    },
    /// The leaf has expired.
    #[error("the certificate of {subject} expired on {not_after}")]
    Expired {
        /// The purpose of the certificate.
        subject: String,
        /// The end of its validity, for messages.
        not_after: String,
    },
    /// The leaf is not valid yet.
    #[error("the certificate of {subject} is not valid before {not_before}; check this machine's clock")]
    NotYetValid {
        /// The purpose of the certificate.
        subject: String,
        /// The beginning of its validity, for messages.
        not_before: String,
    },
}

impl Identity {
    /// Parses a PEM chain (leaf first) and a PEM key (PKCS #8, PKCS #1 or SEC 1), and checks that they belong together and
    /// that the leaf is valid at `now`.
    pub fn from_pem(chain: &[u8], key: &[u8], now: SystemTime) -> Result<Self, IdentityError> {
        let identity = Self::parse(chain, key)?;
        let leaf = &identity.leaf;
        if leaf.not_after() <= now {
            return Err(IdentityError::Expired {
                subject: leaf.display_name(),
                not_after: leaf.not_after_text().to_owned(),
            });
        }
        // Machines' clocks often differ a little, so our own certificate gets some tolerance; rustls has none when it
        // verifies a peer.
        if leaf.not_before() > now + CLOCK_SKEW {
            return Err(IdentityError::NotYetValid {
                subject: leaf.display_name(),
                not_before: leaf.not_before_text().to_owned(),
            });
        }
        Ok(identity)
    }

    /// Like [`from_pem`](Self::from_pem), but at any time.
    pub fn parse(chain: &[u8], key: &[u8]) -> Result<Self, IdentityError> {
        let certificates = certificates(chain)?;
        let leaf = match certificates.first() {
            Some(_) => PeerCertificate::parse(&certificates)
                .map_err(|SanError(reason)| IdentityError::BadCertificate { number: 1, reason })?,
            None => return Err(IdentityError::NoCertificate),
        };
        let bad = |error: rustls::Error| {
            IdentityError::BadKey(match error {
                rustls::Error::General(reason) => reason,
                other => other.to_string(),
            })
        };
        let key = provider().key_provider.load_private_key(private_key(key)?).map_err(bad)?;
        let key = CertifiedKey::new(certificates, key);
        match belongs(&key) {
            Ok(true) => {}
            Ok(false) => return Err(IdentityError::KeyMismatch { subject: leaf.display_name() }),
            Err(error) => return Err(IdentityError::BadCertificate { number: 1, reason: error.to_string() }),
        }
        Ok(Self { key: Arc::new(key), leaf: Arc::new(leaf) })
    }

    /// Returns the contents of the leaf certificate.
    pub fn certificate(&self) -> &Arc<PeerCertificate> {
        &self.leaf
    }

    /// Returns when the leaf expires.
    pub fn not_after(&self) -> SystemTime {
        self.leaf.not_after()
    }

    /// The share of the leaf's lifetime that has passed at `now`, from 0 to 1.
    pub fn age(&self, now: SystemTime) -> f64 {
        let lifetime = self.leaf.not_after().duration_since(self.leaf.not_before()).unwrap_or_default();
        let passed = now.duration_since(self.leaf.not_before()).unwrap_or_default();
        if lifetime.is_zero() { 1.0 } else { (passed.as_secs_f64() / lifetime.as_secs_f64()).min(1.0) }
    }

    pub(crate) fn has_ecdsa_key(&self) -> bool {
        self.key.key.algorithm() == SignatureAlgorithm::ECDSA
    }

    /// How the certificate's DNS names cover a server name.
    pub(crate) fn names_match(&self, server_name: Option<&str>) -> Option<NameMatch> {
        let wanted = server_name?;
        let covers = |name: &String| match name.strip_prefix('*') {
            None => name.eq_ignore_ascii_case(wanted).then_some(NameMatch::Exact),
            Some(suffix) => {
                // A wildcard stands for one label (RFC 6125 section 6.4.3).
                let at = wanted.find('.')?;
                (at > 0 && wanted[at..].eq_ignore_ascii_case(suffix)).then_some(NameMatch::Wildcard)
            }
        };
        self.leaf.dns_sans.iter().filter_map(covers).min()
    }

    pub(crate) fn certified_key(&self) -> Arc<CertifiedKey> {
        self.key.clone()
    }
}

impl fmt::Debug for Identity {
    /// Names the certificate; the key is never printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity").field("leaf", &self.leaf.display_name()).finish_non_exhaustive()
    }
}

/// How far another machine's clock may be ahead of ours.
const CLOCK_SKEW: Duration = Duration::from_secs(60);

/// Whether the key is the one in the leaf.
fn belongs(key: &CertifiedKey) -> Result<bool, rustls::Error> {
    // rustls reads only certificates of version 3.
    if let (Some(leaf), Some(own)) = (key.cert.first().and_then(Version1::read), key.key.public_key()) {
        return Ok(leaf.public_key() == own);
    }
    match key.keys_match() {
        // Some keys do not tell their public half. As rustls does, such a key is believed.
        Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(true),
        Err(rustls::Error::InconsistentKeys(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn certificates(text: &[u8]) -> Result<Vec<CertificateDer<'static>>, IdentityError> {
    let mut chain = Vec::new();
    for certificate in CertificateDer::pem_slice_iter(text) {
        let bad =
            |error: pem::Error| IdentityError::BadCertificate { number: chain.len() + 1, reason: error.to_string() };
        let certificate = certificate.map_err(bad)?;
        if chain.len() == MAX_CHAIN_CERTIFICATES {
            return Err(IdentityError::TooManyCertificates);
        }
        chain.push(certificate);
    }
    Ok(chain)
}

fn private_key(text: &[u8]) -> Result<PrivateKeyDer<'static>, IdentityError> {
    let mentions = |needle: &[u8]| text.windows(needle.len()).any(|window| window == needle);
    PrivateKeyDer::from_pem_slice(text).map_err(|error| match error {
        _ if mentions(b"ENCRYPTED") => IdentityError::EncryptedKey,
        pem::Error::NoItemsFound => IdentityError::NoKey,
        other => IdentityError::BadKey(other.to_string()),
    })
}
