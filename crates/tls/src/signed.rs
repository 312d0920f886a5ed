//! What is signed in certificates and revocation lists: their outer parts, and the verification of their signatures.

use rustls_pki_types::{SignatureVerificationAlgorithm, SubjectPublicKeyInfoDer};
use webpki::RawPublicKeyEntity;

const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
/// The version of certificates, which version 1 leaves out.
const VERSION: u8 = 0xa0;

/// The outer parts of a certificate or a list.
pub(crate) struct Signed<'c> {
    /// What is signed.
    message: &'c [u8],
    /// The contents of the AlgorithmIdentifier.
    algorithm: &'c [u8],
    signature: &'c [u8],
}

impl<'c> Signed<'c> {
    /// Reads a certificate, whose signed part has to name the same algorithm (RFC 5280 section 4.1.1.2).
    pub(crate) fn certificate(der: &'c [u8]) -> Option<Self> {
        let (signed, fields) = Self::read(der)?;
        let fields = match element(fields)? {
            (VERSION, _, rest) => rest,
            _ => fields,
        };
        let (INTEGER, _, rest) = element(fields)? else { return None };
        let (SEQUENCE, inner, _) = element(rest)? else { return None };
        (inner == signed.algorithm).then_some(signed)
    }

    /// Reads a list, of which webpki has compared the algorithms.
    pub(crate) fn list(der: &'c [u8]) -> Option<Self> {
        Self::read(der).map(|(signed, _)| signed)
    }

    /// The parts, and the fields of what is signed.
    fn read(der: &'c [u8]) -> Option<(Self, &'c [u8])> {
        let (SEQUENCE, whole, []) = element(der)? else { return None };
        let (SEQUENCE, fields, rest) = element(whole)? else { return None };
        let message = whole.get(..whole.len() - rest.len())?;
        let (SEQUENCE, algorithm, rest) = element(rest)? else { return None };
        let (BIT_STRING, [0, signature @ ..], []) = element(rest)? else { return None };
        Some((Self { message, algorithm, signature }, fields))
    }

    /// Whether the key signed it. `key`: the contents of a SubjectPublicKeyInfo, as webpki keeps them of a root.
    pub(crate) fn is_by(&self, key: &[u8], algorithms: &[&dyn SignatureVerificationAlgorithm]) -> bool {
        let Some(whole) = sequence(key) else { return false };
        let whole = SubjectPublicKeyInfoDer::from(whole);
        let Ok(key) = RawPublicKeyEntity::try_from(&whole) else { return false };
        let mut fitting = algorithms.iter().filter(|known| known.signature_alg_id().as_ref() == self.algorithm);
        fitting.any(|algorithm| key.verify_signature(*algorithm, self.message, self.signature).is_ok())
    }
}

/// The tag and the contents of the first DER element, and what follows it. Lists may be long.
pub(crate) fn element(der: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (tag, length, rest) = match der {
        [tag, short @ 0..=0x7f, rest @ ..] => (*tag, usize::from(*short), rest),
        [tag, 0x81, length, rest @ ..] => (*tag, usize::from(*length), rest),
        [tag, 0x82, high, low, rest @ ..] => (*tag, usize::from(*high) << 8 | usize::from(*low), rest),
        [tag, 0x83, high, middle, low, rest @ ..] => {
            (*tag, usize::from(*high) << 16 | usize::from(*middle) << 8 | usize::from(*low), rest)
        }
        _ => return None,
    };
    Some((tag, rest.get(..length)?, rest.get(length..)?))
}

/// The contents as a DER sequence; a key has less than 64 KiB.
fn sequence(contents: &[u8]) -> Option<Vec<u8>> {
    let [high, low] = u16::try_from(contents.len()).ok()?.to_be_bytes();
    let head: &[u8] = match (high, low) {
        (0, low @ 0..=0x7f) => &[SEQUENCE, low],
        (0, low) => &[SEQUENCE, 0x81, low],
        (high, low) => &[SEQUENCE, 0x82, high, low],
    };
    Some([head, contents].concat())
}
