//! An authority that the operator provides: reads its files, and checks that they can sign and chain to a root.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use aws_lc_rs::digest;
use evenkeel_store::{Store, read_secret};
use pem::{EncodeConfig, LineEnding, Pem};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::files::{AuthorityError, CA_CERT_FILE, CA_KEY_FILE, hex, io_error, read_optional};

/// File name of the roots, as in Istio.
pub const ROOT_CERT_FILE: &str = "root-cert.pem";
/// File name of the certificates between the authority's and the root.
pub const CERT_CHAIN_FILE: &str = "cert-chain.pem";
/// File name of the revocation lists for the mesh's certificates.
pub const CRL_FILE: &str = "ca-crl.pem";
/// File names of a Secret of type `kubernetes.io/tls`: chain, key, roots.
const SECRET_FILES: [&str; 3] = ["tls.crt", "tls.key", "ca.crt"];

/// Maximum number of certificates between a workload's and the root.
const MAX_INTERMEDIATES: usize = 5;

/// The files of an authority, as PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub struct PluggedFiles {
    /// The signing certificate.
    pub certificate: String,
    /// Its key.
    pub key: String,
    /// The roots that peers should trust.
    pub roots: String,
    /// The certificates between it and a root; may be empty, and may contain it and the root.
    pub chain: String,
    /// Revocation lists, if there are any.
    pub revocation_lists: Option<String>,
    pub(crate) certificate_path: PathBuf,
    pub(crate) roots_path: PathBuf,
}

impl PluggedFiles {
    /// Reads a directory with Istio's file names (`ca-cert.pem`, `ca-key.pem`, `root-cert.pem`, optionally `cert-chain.pem`
    /// and `ca-crl.pem`), or with those of a TLS Secret (`tls.crt`, `tls.key`, `ca.crt`, optionally `ca-crl.pem`).
    ///
    /// # Errors
    /// When a file cannot be read. The contents are not checked.
    pub fn read(folder: &Path) -> Result<Self, AuthorityError> {
        let path = |name: &str| folder.join(name);
        let is_secret = !path(CA_CERT_FILE).exists() && path(SECRET_FILES[0]).exists();
        let [certificate_path, key_path, roots_path] =
            if is_secret { SECRET_FILES.map(path) } else { [CA_CERT_FILE, CA_KEY_FILE, ROOT_CERT_FILE].map(path) };
        let certificate = fs::read_to_string(&certificate_path).map_err(io_error(&certificate_path))?;
        let key = read_secret(&key_path)?.ok_or(AuthorityError::KeyMissing(key_path))?;
        let roots = fs::read_to_string(&roots_path).map_err(io_error(&roots_path))?;
        let chain =
            if is_secret { certificate.clone() } else { read_optional(&path(CERT_CHAIN_FILE))?.unwrap_or_default() };
        let lists = read_optional(&path(CRL_FILE))?.filter(|lists| !lists.trim().is_empty());
        Ok(Self { certificate, key, roots, chain, revocation_lists: lists, certificate_path, roots_path })
    }

    /// Reads an authority of the store, which has Istio's names.
    pub(crate) fn stored(store: &Store, folder: &str) -> Result<Self, AuthorityError> {
        let key = |name: &str| format!("{folder}/{name}");
        let optional = |name: &str| store.text(&key(name)).map_err(io_error(&store.place(&key(name))));
        let text = |name: &str| {
            let missing = || io_error(&store.place(&key(name)))(ErrorKind::NotFound.into());
            optional(name)?.ok_or_else(missing)
        };
        let secret = store.secret(&key(CA_KEY_FILE))?;
        Ok(Self {
            certificate: text(CA_CERT_FILE)?,
            key: secret.ok_or_else(|| AuthorityError::KeyMissing(store.place(&key(CA_KEY_FILE))))?,
            roots: text(ROOT_CERT_FILE)?,
            chain: optional(CERT_CHAIN_FILE)?.unwrap_or_default(),
            revocation_lists: optional(CRL_FILE)?.filter(|lists| !lists.trim().is_empty()),
            certificate_path: store.place(&key(CA_CERT_FILE)),
            roots_path: store.place(&key(ROOT_CERT_FILE)),
        })
    }

    pub(crate) fn made(certificate: String, key: String, roots: String, chain: String) -> Self {
        let (certificate_path, roots_path) = (CA_CERT_FILE.into(), ROOT_CERT_FILE.into());
        Self { certificate, key, roots, chain, revocation_lists: None, certificate_path, roots_path }
    }

    /// Returns the id of the authority ([`Authority::id`](crate::Authority::id)).
    pub fn id(&self) -> Option<String> {
        fingerprint(&self.certificate)
    }
}

impl std::fmt::Debug for PluggedFiles {
    /// The key is never printed.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PluggedFiles").field("id", &self.id()).finish_non_exhaustive()
    }
}

/// Returns the SHA-256 of the first certificate of a PEM text, in lower-case hexadecimal.
pub(crate) fn fingerprint(pem: &str) -> Option<String> {
    let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
    Some(hex(digest::digest(&digest::SHA256, &der).as_ref()))
}

/// Returns the authority key identifier of a certificate, in lower-case hexadecimal.
pub(crate) fn authority_key_id(der: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = X509Certificate::from_der(der).ok()?;
    certificate.extensions().iter().find_map(|extension| match extension.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| hex(id.0)),
        _ => None,
    })
}

/// Whether the first certificate of a PEM text is a CA certificate.
pub(crate) fn is_authority(pem: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return false };
    X509Certificate::from_der(&der).is_ok_and(|(_, certificate)| certificate.is_ca())
}

/// Returns the certificates to send with a leaf that `cert` signs, from `cert` up to the one below a root, in PEM; empty when
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

pub(crate) fn parse(pem: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).filter_map(Result::ok).collect()
}

/// Returns which authority's list is missing in `lists`, given the certificates that an authority signs and its own, or why
/// the lists cannot be parsed.
pub(crate) fn missing_list(cert: &str, chain: &str, roots: &str, lists: &str) -> Option<String> {
    let mut issuers = Vec::new();
    for list in CertificateRevocationListDer::pem_slice_iter(lists.as_bytes()) {
        let list = match list {
            Ok(list) => list,
            Err(error) => return Some(format!("a list cannot be read: {error}")),
        };
        match CertificateRevocationList::from_der(&list) {
            Ok((_, list)) => issuers.push(list.issuer().to_string()),
            Err(error) => return Some(format!("a list cannot be read: {error}")),
        }
    }
    // Each certificate below the root is checked against the list of its issuer.
    let (mut wanted, mut current) = (Vec::new(), CertificateDer::from_pem_slice(cert.as_bytes()).ok());
    let (chain, roots) = (parse(chain), parse(roots));
    while let Some(der) = current.take() {
        let Ok((_, certificate)) = X509Certificate::from_der(&der) else { break };
        wanted.push(certificate.subject().to_string());
        if roots.contains(&der) || wanted.len() > MAX_INTERMEDIATES {
            break;
        }
        let mut above = roots.iter().chain(&chain);
        current = above.find(|issuer| **issuer != der && is_signed_by(&der, issuer)).cloned();
    }
    let missing = wanted.into_iter().find(|name| !issuers.contains(name))?;
    Some(format!("there is no revocation list of `{missing}`"))
}

/// Returns when the first authority has no valid revocation list any more, in seconds since 1970. Of several lists of an
/// authority the one that ends last counts.
pub(crate) fn lists_end(lists: &str) -> Option<u64> {
    let mut ends: BTreeMap<String, u64> = BTreeMap::new();
    for list in CertificateRevocationListDer::pem_slice_iter(lists.as_bytes()).filter_map(Result::ok) {
        let Ok((_, list)) = CertificateRevocationList::from_der(&list) else { continue };
        let Some(end) = list.next_update().and_then(|end| u64::try_from(end.timestamp()).ok()) else { continue };
        let last = ends.entry(list.issuer().to_string()).or_default();
        *last = end.max(*last);
    }
    ends.into_values().min()
}

fn is_signed_by(certificate: &CertificateDer<'_>, issuer: &CertificateDer<'_>) -> bool {
    let (Ok((_, certificate)), Ok((_, issuer))) =
        (X509Certificate::from_der(certificate), X509Certificate::from_der(issuer))
    else {
        return false;
    };
    certificate.issuer() == issuer.subject() && certificate.verify_signature(Some(issuer.public_key())).is_ok()
}

pub(crate) fn to_pem(certificate: &CertificateDer<'_>) -> String {
    let unix = EncodeConfig::new().set_line_ending(LineEnding::LF);
    pem::encode_config(&Pem::new("CERTIFICATE", certificate.as_ref()), unix)
}
