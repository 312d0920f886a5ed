//! The authorities between a certificate of version 1 and a root. webpki looks for them only above certificates that it can read, so
//! they are looked for here, by the same rules (RFC 5280 section 6.1): validity, `cA` with its path length, key usage, extended key
//! usage, no critical extension that is not understood, signatures, and with revocation lists the status of each certificate. An
//! authority with name constraints vouches for no certificate of version 1, because that has no names to compare.

use rustls::{CertificateError, Error, RootCertStore};
use rustls_pki_types::{CertificateDer, SignatureVerificationAlgorithm, UnixTime};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Version};

use crate::revocation::RevocationLists;
use crate::signed::{Signed, element};

/// Maximum number of authorities between a leaf and a root, as in webpki.
const MAX_AUTHORITIES: usize = 6;
/// Maximum number of signatures that are verified for one leaf, as in webpki.
const MAX_SIGNATURES: usize = 100;

/// What a peer's certificate is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Usage {
    Server,
    Client,
}

/// What may vouch for a certificate.
pub(crate) struct Authorities<'a> {
    pub(crate) roots: &'a RootCertStore,
    /// The certificates that came with the leaf.
    pub(crate) intermediates: &'a [CertificateDer<'a>],
    pub(crate) usage: Usage,
    /// Revocation lists, and whether only the leaf is looked up in them.
    pub(crate) revocation: Option<(&'a RevocationLists, bool)>,
    pub(crate) algorithms: &'a [&'a dyn SignatureVerificationAlgorithm],
    pub(crate) now: UnixTime,
}

/// A certificate of a chain.
struct Link<'c> {
    der: &'c [u8],
    parsed: &'c X509Certificate<'c>,
}

impl Authorities<'_> {
    /// Whether a chain leads from this certificate to a root; `Ok(false)`: nothing here has its issuer's name.
    pub(crate) fn vouch_for(&self, der: &[u8], parsed: &X509Certificate<'_>) -> Result<bool, Error> {
        self.climb(&Link { der, parsed }, 0, &mut MAX_SIGNATURES.clone())
    }

    /// `below`: the number of authorities below.
    fn climb(&self, link: &Link<'_>, below: usize, signatures: &mut usize) -> Result<bool, Error> {
        let bad = || Error::from(CertificateError::BadEncoding);
        let validity = link.parsed.validity();
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        if self.now.as_secs() < seconds(validity.not_before.timestamp()) {
            return Err(CertificateError::NotValidYet.into());
        }
        if self.now.as_secs() > seconds(validity.not_after.timestamp()) {
            return Err(CertificateError::Expired.into());
        }
        let signed = Signed::certificate(link.der).ok_or_else(bad)?;
        let issuer = link.parsed.issuer().as_raw();
        let (_, name, _) = element(issuer).ok_or_else(bad)?;
        // The reason why the last candidate did not do.
        let mut refused = None;
        for root in self.roots.roots.iter().filter(|root| root.subject.as_ref() == name) {
            let key = root.subject_public_key_info.as_ref();
            if root.name_constraints.is_none() && self.is_signed(&signed, key, signatures)? {
                match self.revocation_of(link, key, below) {
                    Ok(()) => return Ok(true),
                    Err(error) => refused = Some(error),
                }
            } else {
                refused = Some(CertificateError::BadSignature.into())
            }
        }
        for der in self.intermediates.iter().filter(|_| below < MAX_AUTHORITIES) {
            let Ok(([], authority)) = X509Certificate::from_der(der) else { continue };
            if authority.subject().as_raw() != issuer {
                continue;
            }
            match self.by(link, &signed, &Link { der, parsed: &authority }, below, signatures) {
                Ok(true) => return Ok(true),
                Ok(false) => refused = Some(CertificateError::UnknownIssuer.into()),
                Err(error) => refused = Some(error),
            }
        }
        refused.map_or(Ok(false), Err)
    }

    /// Whether this authority has signed the certificate, may do so, and has a chain itself.
    fn by(
        &self,
        link: &Link<'_>,
        signed: &Signed<'_>,
        authority: &Link<'_>,
        below: usize,
        signatures: &mut usize,
    ) -> Result<bool, Error> {
        let (_, key, _) = element(authority.parsed.public_key().raw).ok_or(CertificateError::BadEncoding)?;
        may_sign(authority.parsed, below, self.usage)?;
        if !self.is_signed(signed, key, signatures)? {
            return Err(CertificateError::BadSignature.into());
        }
        if self.looks_up(below) && !signs_lists(authority.parsed) {
            return Err(CertificateError::UnknownRevocationStatus.into());
        }
        self.revocation_of(link, key, below)?;
        self.climb(authority, below + 1, signatures)
    }

    /// `key`: the contents of a SubjectPublicKeyInfo.
    fn is_signed(&self, signed: &Signed<'_>, key: &[u8], signatures: &mut usize) -> Result<bool, Error> {
        // A chain may be made so that there are very many ways.
        *signatures = signatures.checked_sub(1).ok_or(CertificateError::UnknownIssuer)?;
        Ok(signed.is_by(key, self.algorithms))
    }

    fn looks_up(&self, below: usize) -> bool {
        self.revocation.is_some_and(|(_, leaf_only)| below == 0 || !leaf_only)
    }

    fn revocation_of(&self, link: &Link<'_>, key: &[u8], below: usize) -> Result<(), Error> {
        let Some((lists, _)) = self.revocation.filter(|_| self.looks_up(below)) else { return Ok(()) };
        let (_, issuer, _) = element(link.parsed.issuer().as_raw()).ok_or(CertificateError::BadEncoding)?;
        lists.look_up((issuer, link.parsed.raw_serial()), key, self.algorithms, self.now)
    }
}

/// Whether an authority's certificate lets it sign certificates with so many authorities below it, for this usage.
fn may_sign(authority: &X509Certificate<'_>, below: usize, usage: Usage) -> Result<(), Error> {
    let bad = |_| CertificateError::BadEncoding;
    if authority.version() != X509Version::V3 {
        return Err(CertificateError::UnknownIssuer.into());
    }
    let limits = authority.basic_constraints().map_err(bad)?.map(|limits| limits.value);
    let Some(limits) = limits.filter(|limits| limits.ca) else {
        return Err(CertificateError::UnknownIssuer.into());
    };
    let deepest =
        limits.path_len_constraint.map_or(usize::MAX, |deepest| usize::try_from(deepest).unwrap_or(usize::MAX));
    let signs = authority.key_usage().map_err(bad)?.is_none_or(|usage| usage.value.key_cert_sign());
    let purposes = authority.extended_key_usage().map_err(bad)?.map(|purposes| purposes.value);
    let is_for_it = purposes.is_none_or(|purposes| match usage {
        Usage::Server => purposes.server_auth,
        Usage::Client => purposes.client_auth,
    });
    let is_constrained = authority.name_constraints().map_err(bad)?.is_some();
    if below > deepest || !signs || !is_for_it || is_constrained {
        return Err(CertificateError::InvalidPurpose.into());
    }
    let is_known = |extension: &ParsedExtension<'_>| {
        matches!(
            extension,
            ParsedExtension::BasicConstraints(_)
                | ParsedExtension::KeyUsage(_)
                | ParsedExtension::ExtendedKeyUsage(_)
                | ParsedExtension::SubjectAlternativeName(_)
                | ParsedExtension::SubjectKeyIdentifier(_)
                | ParsedExtension::AuthorityKeyIdentifier(_)
        )
    };
    let mut critical = authority.extensions().iter().filter(|extension| extension.critical);
    if critical.all(|extension| is_known(extension.parsed_extension())) {
        Ok(())
    } else {
        Err(CertificateError::UnhandledCriticalExtension.into())
    }
}

/// Whether an authority signs revocation lists.
fn signs_lists(authority: &X509Certificate<'_>) -> bool {
    authority.key_usage().is_ok_and(|usage| usage.is_none_or(|usage| usage.value.crl_sign()))
}
