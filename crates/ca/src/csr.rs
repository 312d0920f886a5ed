//! Checks certificate signing requests (PKCS #10, RFC 2986).

use evenkeel_base::spiffe::SpiffeId;
use rcgen::{CertificateSigningRequestParams, PublicKey, SanType};
use rustls_pki_types::CertificateSigningRequestDer;
use rustls_pki_types::pem::PemObject;

/// Maximum size of a request, in bytes; one with an RSA key of 8192 bits has 3 KB.
pub const MAX_CSR_BYTES: usize = 16 * 1024;

/// Why a request is not signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CsrError {
    /// The request is larger than [`MAX_CSR_BYTES`].
    #[error("the certificate signing request has more than {MAX_CSR_BYTES} bytes")]
    TooLarge,
    /// The request cannot be parsed, or uses something that is not supported.
    #[error("the certificate signing request cannot be used: {0}")]
    Malformed(String),
    /// The signature does not match the key: the request was changed, or the sender does not have the key.
    #[error("the certificate signing request is not signed by the key it holds")]
    Signature,
    /// The request has a subject, which an external signer would copy, and which policies might take for an identity.
    #[error("the certificate signing request has the subject `{0}`, wanted none: the identity is in the URI")]
    Subject(String),
    /// The request is for another identity than the caller's.
    #[error("the certificate signing request asks for {requested}, but the caller is `{authenticated}`")]
    Identity {
        /// The names in the request.
        requested: String,
        /// The identity of the caller.
        authenticated: String,
    },
}

/// Returns the public key of a request in PEM or DER, after checking its signature and that `identity` is its only
/// name.
///
/// Nothing else of the request is used: the authority decides on subject, key usages and extensions.
pub(crate) fn public_key(request: &[u8], identity: &SpiffeId) -> Result<PublicKey, CsrError> {
    checked(request, identity).map(|(_, key)| key)
}

/// Like [`public_key`], for a request in DER.
pub(crate) fn checked(
    request: &[u8],
    identity: &SpiffeId,
) -> Result<(CertificateSigningRequestDer<'static>, PublicKey), CsrError> {
    if request.len() > MAX_CSR_BYTES {
        return Err(CsrError::TooLarge);
    }
    let der = match CertificateSigningRequestDer::from_pem_slice(request) {
        Ok(der) => der,
        Err(_) if request.starts_with(b"-----") => return Err(CsrError::Malformed("the PEM text is damaged".into())),
        Err(_) => CertificateSigningRequestDer::from(request.to_vec()),
    };
    let parsed = CertificateSigningRequestParams::from_der(&der).map_err(|error| match error {
        rcgen::Error::InvalidCertificationRequestSignature => CsrError::Signature,
        other => CsrError::Malformed(other.to_string()),
    })?;
    let identity = identity.to_string();
    match parsed.params.subject_alt_names.as_slice() {
        [SanType::URI(uri)] if uri.as_str() == identity => Ok((der, parsed.public_key)),
        names => Err(CsrError::Identity { requested: describe(names), authenticated: identity }),
    }
}

fn describe(names: &[SanType]) -> String {
    if names.is_empty() {
        return "no name".into();
    }
    let texts = names.iter().map(|name| match name {
        SanType::URI(text) => format!("`{}`", text.as_str()),
        SanType::DnsName(text) => format!("DNS `{}`", text.as_str()),
        SanType::Rfc822Name(text) => format!("e-mail `{}`", text.as_str()),
        SanType::IpAddress(address) => format!("IP `{address}`"),
        _ => "a name of another kind".into(),
    });
    texts.collect::<Vec<_>>().join(" and ")
}
