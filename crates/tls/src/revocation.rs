//! Certificate revocation lists (RFC 5280 section 5).
//!
//! As in Envoy, a context with such lists accepts a certificate only if a valid list of its issuer does not name it: a
//! missing and an outdated list both refuse it. Of several lists of an issuer the newest one counts that has begun and has not
//! ended, whatever their order: an authority that publishes a list adds it to those that are there.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use rustls::{CertificateError, Error, OtherError, RootCertStore};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, SignatureVerificationAlgorithm, UnixTime};
use webpki::{
    CertRevocationList, EndEntityCert, ExpirationPolicy, KeyUsage, OwnedCertRevocationList, RevocationCheckDepth,
    RevocationOptionsBuilder, UnknownStatusPolicy,
};
use x509_parser::prelude::FromDer;
use x509_parser::revocation_list::CertificateRevocationList;

use crate::peer::rfc2253;
use crate::signed::Signed;

/// Maximum number of lists of one context.
pub const MAX_LISTS: usize = 100;

/// Revocation lists of the issuers of peers' certificates.
#[derive(Clone)]
pub struct RevocationLists {
    encoded: Arc<[CertificateRevocationListDer<'static>]>,
    /// Newest first.
    lists: Arc<[List]>,
}

struct List {
    parsed: CertRevocationList<'static>,
    /// `thisUpdate` and `nextUpdate`, in seconds since 1970.
    begin: u64,
    end: u64,
    /// The CRL number, without leading zeros, behind its length: it tells lists of the same second apart.
    number: (usize, Vec<u8>),
    issuer: String,
    encoded: CertificateRevocationListDer<'static>,
}

impl List {
    fn parse(list: &CertificateRevocationListDer<'static>) -> Result<Self, String> {
        let parsed = OwnedCertRevocationList::from_der(list).map_err(|error| error.to_string())?;
        let (_, times) = CertificateRevocationList::from_der(list).map_err(|error| error.to_string())?;
        let seconds = |time: i64| u64::try_from(time).unwrap_or(0);
        let number = times.crl_number().map(|number| number.to_bytes_be()).unwrap_or_default();
        Ok(Self {
            parsed: parsed.into(),
            begin: seconds(times.last_update().timestamp()),
            // webpki has refused a list without an end.
            end: times.next_update().map_or(0, |end| seconds(end.timestamp())),
            number: (number.len(), number),
            issuer: rfc2253(times.issuer()),
            encoded: list.clone(),
        })
    }

    fn is_valid(&self, now: u64) -> bool {
        (self.begin..self.end).contains(&now)
    }
}

/// Why a PEM text is not a set of revocation lists.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RevocationError {
    /// The text has no list.
    #[error("holds no `BEGIN X509 CRL` section")]
    Empty,
    /// More than [`MAX_LISTS`].
    #[error("holds more than {MAX_LISTS} revocation lists")]
    TooMany,
    /// A list is damaged.
    #[error("revocation list {number} cannot be used: {reason}")]
    Bad {
        /// Place in the text, from 1.
        number: usize,
        /// The error.
        reason: String,
    },
}

impl RevocationLists {
    /// Parses every list of a PEM text.
    pub fn from_pem(text: &[u8]) -> Result<Self, RevocationError> {
        let (mut encoded, mut lists) = (Vec::new(), Vec::new());
        for (index, list) in CertificateRevocationListDer::pem_slice_iter(text).enumerate() {
            let bad = |reason: String| RevocationError::Bad { number: index + 1, reason };
            if index == MAX_LISTS {
                return Err(RevocationError::TooMany);
            }
            let list = list.map_err(|error| bad(error.to_string()))?;
            lists.push(List::parse(&list).map_err(bad)?);
            encoded.push(list);
        }
        lists.sort_by(|a: &List, b| Reverse((a.begin, &a.number)).cmp(&Reverse((b.begin, &b.number))));
        if encoded.is_empty() {
            Err(RevocationError::Empty)
        } else {
            Ok(Self { encoded: encoded.into(), lists: lists.into() })
        }
    }

    /// Says which lists do not count at `now`, and which ones count instead of others of the same issuer.
    pub fn remarks(&self, now: SystemTime) -> Vec<String> {
        let now = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let mut issuers: BTreeMap<&str, Vec<&List>> = BTreeMap::new();
        for list in self.lists.iter() {
            issuers.entry(&list.issuer).or_default().push(list);
        }
        let mut remarks = Vec::new();
        for (issuer, lists) in issuers {
            let is_future = lists.iter().filter(|list| list.begin > now).count();
            if is_future > 0 {
                remarks
                    .push(format!("{is_future} of `{issuer}` do not count yet, as their thisUpdate is in the future"));
            }
            match lists.iter().find(|list| list.is_valid(now)) {
                None => remarks.push(format!("none of `{issuer}` is valid, so its certificates are refused")),
                Some(_) if lists.len() > 1 => {
                    remarks.push(format!("of {} of `{issuer}` the newest valid one counts", lists.len()));
                }
                Some(_) => {}
            }
        }
        remarks
    }

    /// The lists in DER.
    pub(crate) fn encoded(&self) -> &[CertificateRevocationListDer<'static>] {
        &self.encoded
    }

    /// The lists that have begun, those that have not ended first, and of these the newest first: webpki takes the first one
    /// that fits.
    fn in_order(&self, now: u64) -> Vec<&List> {
        let begun = || self.lists.iter().filter(move |list| list.begin <= now);
        let (valid, ended) = (begun().filter(|list| now < list.end), begun().filter(|list| now >= list.end));
        valid.chain(ended).collect()
    }

    /// Checks the revocation of a certificate, whose chain has been verified.
    pub(crate) fn check(
        &self,
        (end_entity, usage): (&CertificateDer<'_>, KeyUsage),
        intermediates: &[CertificateDer<'_>],
        roots: &RootCertStore,
        leaf_only: bool,
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
    ) -> Result<(), Error> {
        let lists: Vec<_> = self.in_order(now.as_secs()).into_iter().map(|list| &list.parsed).collect();
        let depth = if leaf_only { RevocationCheckDepth::EndEntity } else { RevocationCheckDepth::Chain };
        let options = RevocationOptionsBuilder::new(&lists)
            // No list has begun.
            .map_err(|_| CertificateError::UnknownRevocationStatus)?
            .with_depth(depth)
            .with_status_policy(UnknownStatusPolicy::Deny)
            .with_expiration_policy(ExpirationPolicy::Enforce)
            .build();
        let end_entity = EndEntityCert::try_from(end_entity).map_err(refusal)?;
        let anchors = &roots.roots;
        let verified = end_entity.verify_for_usage(algorithms, anchors, intermediates, now, usage, Some(options), None);
        verified.map(drop).map_err(refusal)
    }
}

impl RevocationLists {
    /// Looks up a certificate that webpki does not read, by the contents of its issuer's name and of its serial number. `key`: the
    /// contents of the issuer's SubjectPublicKeyInfo, which has to have signed the list.
    pub(crate) fn look_up(
        &self,
        (issuer, serial): (&[u8], &[u8]),
        key: &[u8],
        algorithms: &[&dyn SignatureVerificationAlgorithm],
        now: UnixTime,
    ) -> Result<(), Error> {
        let lists = self.in_order(now.as_secs());
        // A list with a scope of its own may leave out this certificate.
        let fits = |list: &&&List| list.parsed.issuer() == issuer && list.parsed.issuing_distribution_point().is_none();
        let list = lists.iter().find(fits).ok_or(CertificateError::UnknownRevocationStatus)?;
        if !list.is_valid(now.as_secs()) {
            return Err(CertificateError::ExpiredRevocationList.into());
        }
        if !Signed::list(&list.encoded).is_some_and(|signed| signed.is_by(key, algorithms)) {
            return Err(CertificateError::UnknownRevocationStatus.into());
        }
        match list.parsed.find_serial(serial).map_err(refusal)? {
            Some(_) => Err(CertificateError::Revoked.into()),
            None => Ok(()),
        }
    }
}

fn refusal(error: webpki::Error) -> Error {
    Error::InvalidCertificate(match error {
        webpki::Error::CertRevoked => CertificateError::Revoked,
        webpki::Error::UnknownRevocationStatus => CertificateError::UnknownRevocationStatus,
        webpki::Error::CrlExpired { .. } => CertificateError::ExpiredRevocationList,
        other => CertificateError::Other(OtherError(Arc::new(other))),
    })
}

impl fmt::Debug for RevocationLists {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevocationLists").field("lists", &self.encoded.len()).finish()
    }
}
