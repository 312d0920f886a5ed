//! Checks of certificates that an operator provides: may they sign, and do they lead to a root?

use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Most certificates between a workload's and the root, in certificates.
const MAX_INTERMEDIATES: usize = 5;

/// Whether the first certificate of a PEM text may sign others.
pub(crate) fn is_authority(pem: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
    X509Certificate::from_der(&der).is_ok_and(|(_, certificate)| certificate.is_ca())
}

/// The certificates to send along with a leaf that `cert` signs, from `cert` up to the one below a root, PEM; empty when
/// `cert` is a root itself. `None` when no chain leads to a root.
pub(crate) fn intermediates(cert: &str, chain: &str, roots: &str) -> Option<Vec<String>> {
    let (chain, roots) = (parse(chain), parse(roots));
    let mut current = CertificateDer::from_pem_slice(cert.as_bytes()).ok()?;
    let mut sent = Vec::new();
    loop {
        if roots.contains(&current) {
            return Some(sent);
        }
        if sent.len() == MAX_INTERMEDIATES {
            return None;
        }
        sent.push(to_pem(&current));
        if roots.iter().any(|root| is_signed_by(&current, root)) {
            return Some(sent);
        }
        let issuer = chain.iter().find(|issuer| **issuer != current && is_signed_by(&current, issuer))?;
        current = issuer.clone();
    }
}

fn parse(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

fn is_signed_by(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let (Ok((_, certificate)), Ok((_, issuer))) =
        (X509Certificate::from_der(certificate), X509Certificate::from_der(issuer))
    else {
        return false;
    };
    certificate.issuer() == issuer.subject() && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let unix = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", certificate.as_ref()), unix)
}
