//! Protocol versions and cipher suites of a context.

use std::sync::Arc;

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::kx_group;
use rustls::{CipherSuite, SupportedProtocolVersion, version};

use crate::config::{TlsParams, TlsVersion};
use crate::error::ConfigError;
use crate::provider::provider;

/// `TlsParams` in rustls' terms.
pub(crate) struct Suites {
    pub(crate) provider: Arc<CryptoProvider>,
    pub(crate) versions: &'static [&'static SupportedProtocolVersion],
}

static TLS12: [&SupportedProtocolVersion; 1] = [&version::TLS12];
static TLS13: [&SupportedProtocolVersion; 1] = [&version::TLS13];
static BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

impl Suites {
    pub(crate) fn new(params: &TlsParams) -> Result<Self, ConfigError> {
        let minimum = params.minimum_version.unwrap_or(TlsVersion::Tls12);
        let maximum = params.maximum_version.unwrap_or(TlsVersion::Tls13);
        let versions: &[_] = match (minimum, maximum) {
            (TlsVersion::Tls12, TlsVersion::Tls12) => &TLS12,
            (TlsVersion::Tls12, TlsVersion::Tls13) => &BOTH,
            (TlsVersion::Tls13, TlsVersion::Tls13) => &TLS13,
            (TlsVersion::Tls13, TlsVersion::Tls12) => {
                return Err(ConfigError::Versions { minimum: "TLSv1_3", maximum: "TLSv1_2" });
            }
        };
        let tls12 = minimum == TlsVersion::Tls12;
        let provider = restrict(&params.cipher_suites, tls12, maximum)?;
        Ok(Self { provider: with_groups(provider, &params.ecdh_curves)?, versions })
    }
}

/// The provider with only those TLS 1.2 suites that are listed.
fn restrict(names: &[String], tls12: bool, maximum: TlsVersion) -> Result<Arc<CryptoProvider>, ConfigError> {
    if names.is_empty() || !tls12 {
        return Ok(provider());
    }
    let mut allowed = Vec::new();
    for name in names {
        match openssl_suite(name) {
            Some(KnownSuite::Supported(suite)) => allowed.push(suite),
            Some(KnownSuite::Outdated) => {}
            None => return Err(ConfigError::UnknownCipherSuite(name.clone())),
        }
    }
    // A list of only outdated suites is harmless as long as TLS 1.3 is allowed; otherwise no handshake could succeed.
    if allowed.is_empty() && maximum == TlsVersion::Tls12 {
        return Err(ConfigError::NoCipherSuite(names.to_vec()));
    }
    let mut provider = (*provider()).clone();
    provider.cipher_suites.retain(|suite| suite.tls13().is_some() || allowed.contains(&suite.suite()));
    Ok(Arc::new(provider))
}

/// The provider with only those groups for the key exchange that are listed, in that order.
fn with_groups(provider: Arc<CryptoProvider>, names: &[String]) -> Result<Arc<CryptoProvider>, ConfigError> {
    if names.is_empty() {
        return Ok(provider);
    }
    let mut groups = Vec::new();
    for name in names {
        match name.as_str() {
            "X25519" => groups.push(kx_group::X25519),
            "P-256" => groups.push(kx_group::SECP256R1),
            "P-384" => groups.push(kx_group::SECP384R1),
            "X25519MLKEM768" => groups.push(kx_group::X25519MLKEM768),
            // rustls has no implementation of it.
            "P-521" => {}
            _ => return Err(ConfigError::UnknownCurve(name.clone())),
        }
    }
    if groups.is_empty() {
        return Err(ConfigError::NoCurve(names.to_vec()));
    }
    Ok(Arc::new(CryptoProvider { kx_groups: groups, ..(*provider).clone() }))
}

enum KnownSuite {
    Supported(CipherSuite),
    /// Without forward secrecy or authenticated encryption: never offered, whatever the list says.
    Outdated,
}

/// The suites Envoy's BoringSSL knows, by their OpenSSL names.
fn openssl_suite(name: &str) -> Option<KnownSuite> {
    use CipherSuite as S;
    Some(match name {
        "ECDHE-ECDSA-AES128-GCM-SHA256" => KnownSuite::Supported(S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        "ECDHE-ECDSA-AES256-GCM-SHA384" => KnownSuite::Supported(S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        "ECDHE-ECDSA-CHACHA20-POLY1305" => KnownSuite::Supported(S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
        "ECDHE-RSA-AES128-GCM-SHA256" => KnownSuite::Supported(S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256),
        "ECDHE-RSA-AES256-GCM-SHA384" => KnownSuite::Supported(S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384),
        "ECDHE-RSA-CHACHA20-POLY1305" => KnownSuite::Supported(S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256),
        "AES128-GCM-SHA256"
        | "AES256-GCM-SHA384"
        | "AES128-SHA"
        | "AES256-SHA"
        | "ECDHE-ECDSA-AES128-SHA"
        | "ECDHE-ECDSA-AES256-SHA"
        | "ECDHE-RSA-AES128-SHA"
        | "ECDHE-RSA-AES256-SHA"
        | "DES-CBC3-SHA" => KnownSuite::Outdated,
        _ => return None,
    })
}

/// The OpenSSL name of a negotiated suite, as Envoy logs it (`%DOWNSTREAM_TLS_CIPHER%`).
pub(crate) fn openssl_name(suite: CipherSuite) -> &'static str {
    use CipherSuite as S;
    match suite {
        S::TLS13_AES_128_GCM_SHA256 => "TLS_AES_128_GCM_SHA256",
        S::TLS13_AES_256_GCM_SHA384 => "TLS_AES_256_GCM_SHA384",
        S::TLS13_CHACHA20_POLY1305_SHA256 => "TLS_CHACHA20_POLY1305_SHA256",
        S::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 => "ECDHE-ECDSA-AES128-GCM-SHA256",
        S::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 => "ECDHE-ECDSA-AES256-GCM-SHA384",
        S::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-ECDSA-CHACHA20-POLY1305",
        S::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 => "ECDHE-RSA-AES128-GCM-SHA256",
        S::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 => "ECDHE-RSA-AES256-GCM-SHA384",
        S::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 => "ECDHE-RSA-CHACHA20-POLY1305",
        _ => "unknown",
    }
}
