//! The settings of a TLS context in Envoy's terms: plain values, which [`DownstreamTls::new`](crate::DownstreamTls::new) and
//! [`UpstreamTls::new`](crate::UpstreamTls::new) compile.

use std::path::PathBuf;

use crate::pins::Pins;
use crate::revocation::RevocationLists;
use crate::san::SanMatcher;
use crate::sds::SdsSecret;

/// Envoy's `DownstreamTlsContext`.
#[derive(Debug, Clone)]
pub struct DownstreamTlsContext {
    /// Settings both directions share; at least one certificate is required here.
    pub common: CommonTlsContext,
    /// Whether the client must present a certificate.
    pub client_certificate: ClientCertificate,
}

/// Whether a client must present a certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificate {
    /// It is not asked for a certificate (`require_client_certificate` unset, no validation context).
    No,
    /// It may present one, which must then be valid (`require_client_certificate` unset, with a validation context).
    Optional,
    /// It must present one; otherwise the handshake fails.
    Required,
}

/// Envoy's `UpstreamTlsContext`.
#[derive(Debug, Clone)]
pub struct UpstreamTlsContext {
    /// Settings both directions share; without a certificate the client presents none.
    pub common: CommonTlsContext,
    /// Server name to send; none is sent when empty.
    pub sni: String,
}

/// Envoy's `CommonTlsContext`, as far as it is supported.
#[derive(Debug, Clone)]
pub struct CommonTlsContext {
    /// Own certificates. A server may have several, which are chosen by the server name and by the type of their keys;
    /// a client has at most one.
    pub certificates: Vec<CertificateSource>,
    /// How the peer is verified.
    pub validation: Validation,
    /// Protocols to offer (upstream) or to choose from, preferred first (downstream).
    pub alpn: Vec<String>,
    /// Versions and cipher suites.
    pub params: TlsParams,
}

/// Where a certificate and its key come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSource {
    /// Given in the configuration (`tls_certificates`).
    Static {
        /// Chain, leaf first, PEM.
        chain: DataSource,
        /// Key, PEM.
        key: DataSource,
    },
    /// Delivered by a server (`tls_certificate_sds_secret_configs`).
    Sds(SdsSecret),
}

/// Where trusted roots come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TrustSource {
    /// Given in the configuration (`trusted_ca`), PEM.
    Static(DataSource),
    /// Given in the configuration for each trust domain (the validator `SPIFFECertValidatorConfig`), PEM.
    Domains(Vec<(String, Vec<u8>)>),
    /// Delivered by a server (`validation_context_sds_secret_config`, also within `combined_validation_context`).
    Sds(SdsSecret),
}

/// Envoy's `DataSource`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DataSource {
    /// The bytes themselves (`inline_bytes`, `inline_string`).
    Inline(Vec<u8>),
    /// A file, read when the context is compiled and again when it has changed (`filename`).
    File(PathBuf),
}

/// How the peer's certificate is verified.
#[derive(Debug, Clone)]
pub enum Validation {
    /// Nothing is verified, and a client is not asked for a certificate: what Envoy does without a validation context.
    /// Signatures of the handshake are checked even so.
    None,
    /// The chain must end in one of the roots, and one of the names must match.
    Chain {
        /// The roots, with their revocation lists if SDS delivers some.
        trust: TrustSource,
        /// Further checks.
        checks: PeerChecks,
    },
}

/// Checks of a peer's certificate besides its chain (`CertificateValidationContext`).
#[derive(Debug, Clone, Default)]
pub struct PeerChecks {
    /// At least one of these must match a subject alternative name; any name will do when empty, as in Envoy.
    pub subject_alt_names: Vec<SanMatcher>,
    /// The certificates accepted; any will do when there are none.
    pub pins: Pins,
    /// Revocation lists (`crl`). Those delivered together with the roots take precedence.
    pub revocation: Option<RevocationLists>,
    /// Only the leaf's revocation is checked, not that of its issuers (`only_verify_leaf_cert_crl`).
    pub revocation_of_leaf_only: bool,
    /// A client whose certificate does not verify is let in (`trust_chain_verification: ACCEPT_UNTRUSTED`), but not
    /// identified. Servers are always verified.
    pub accept_untrusted: bool,
}

impl PeerChecks {
    /// Whether a context with these checks requires a client's certificate even without
    /// `require_client_certificate`, as in Envoy.
    pub fn require_certificate(&self) -> bool {
        !self.accept_untrusted && (!self.subject_alt_names.is_empty() || !self.pins.is_empty())
    }
}

/// Envoy's `TlsParameters`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TlsParams {
    /// Lowest version; TLS 1.2 when unset.
    pub minimum_version: Option<TlsVersion>,
    /// Highest version; TLS 1.3 when unset.
    pub maximum_version: Option<TlsVersion>,
    /// OpenSSL names of the TLS 1.2 suites to allow; all supported ones when empty. TLS 1.3's are not configurable, as in
    /// Envoy.
    pub cipher_suites: Vec<String>,
    /// Names of the groups for the key exchange, preferred first; all supported ones when empty. P-521, which Envoy has
    /// and rustls has not, counts only as known.
    pub ecdh_curves: Vec<String>,
}

/// A protocol version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// RFC 5246.
    Tls12,
    /// RFC 8446.
    Tls13,
}
