//! Pins: the certificates that are accepted of a peer, by hash.

use std::fmt;

use aws_lc_rs::digest;
use rustls_pki_types::CertificateDer;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer;

/// Maximum number of pins of one context.
pub const MAX_PINS: usize = 1000;

type Sha256 = [u8; 32];

/// Hashes of accepted leaf certificates (`verify_certificate_hash`) and of accepted keys (`verify_certificate_spki`). A
/// certificate that either list names is accepted.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Pins {
    certificates: Vec<Sha256>,
    keys: Vec<Sha256>,
}

/// Why a text is not a pin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// Not the hash of a certificate.
    #[error("`{0}` is not a SHA-256 hash in hexadecimal: 64 digits, or 32 pairs of digits with colons between them")]
    Hash(String),
    /// Not the hash of a key.
    #[error("`{0}` is not a SHA-256 hash in base64 (44 characters)")]
    Key(String),
    /// Too many.
    #[error("holds more than {MAX_PINS} hashes")]
    TooMany,
}

/// A certificate that no pin names.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "none of the {pins} pinned certificates and keys is the one presented (SHA-256 of the certificate: {presented})"
)]
pub struct PinMismatch {
    pins: usize,
    presented: String,
}

impl Pins {
    /// Reads both lists. Hashes of certificates are in hexadecimal, hashes of keys (of the `SubjectPublicKeyInfo`) in
    /// base64, as Envoy wants them.
    pub fn new<'t>(
        certificates: impl IntoIterator<Item = &'t str>,
        keys: impl IntoIterator<Item = &'t str>,
    ) -> Result<Self, PinError> {
        let certificates = certificates.into_iter().map(hex).collect::<Result<Vec<_>, _>>()?;
        let keys = keys.into_iter().map(base64).collect::<Result<Vec<_>, _>>()?;
        if certificates.len() + keys.len() > MAX_PINS {
            Err(PinError::TooMany)
        } else {
            Ok(Self { certificates, keys })
        }
    }

    /// The pins of both.
    pub fn and(mut self, mut other: Self) -> Self {
        self.certificates.append(&mut other.certificates);
        self.keys.append(&mut other.keys);
        self
    }

    /// Whether there are none, so that every certificate is accepted.
    pub fn is_empty(&self) -> bool {
        self.certificates.is_empty() && self.keys.is_empty()
    }

    /// Checks a leaf certificate.
    pub(crate) fn check(&self, leaf: &CertificateDer<'_>) -> Result<(), PinMismatch> {
        let certificate = sha256(leaf);
        if self.is_empty() || self.certificates.contains(&certificate) {
            return Ok(());
        }
        let key = X509Certificate::from_der(leaf).ok().map(|(_, parsed)| sha256(parsed.public_key().raw));
        if key.is_some_and(|key| self.keys.contains(&key)) {
            Ok(())
        } else {
            Err(PinMismatch { pins: self.certificates.len() + self.keys.len(), presented: text(&certificate) })
        }
    }
}

fn sha256(bytes: &[u8]) -> Sha256 {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    hash
}

fn text(hash: &Sha256) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `64 digits` or `XX:XX:…`.
fn hex(written: &str) -> Result<Sha256, PinError> {
    let bad = || PinError::Hash(written.to_owned());
    let pairs_apart = written.len() == 95 && written.bytes().skip(2).step_by(3).all(|byte| byte == b':');
    let digits: Vec<u32> = match written.len() {
        95 if pairs_apart => written.chars().filter(|c| *c != ':').map_while(|c| c.to_digit(16)).collect(),
        64 => written.chars().map_while(|c| c.to_digit(16)).collect(),
        _ => return Err(bad()),
    };
    let bytes = digits.chunks_exact(2).filter_map(|pair| match pair {
        [high, low] => u8::try_from(high * 16 + low).ok(),
        _ => None,
    });
    Sha256::try_from(bytes.collect::<Vec<u8>>()).map_err(|_| bad())
}

/// 44 characters of base64 (RFC 4648 section 4), of which the last is `=`.
fn base64(written: &str) -> Result<Sha256, PinError> {
    let bad = || PinError::Key(written.to_owned());
    let characters = written.strip_suffix('=').filter(|rest| rest.len() == 43).ok_or_else(bad)?;
    let (mut bytes, mut bits, mut held) = (Vec::with_capacity(32), 0_u32, 0_u32);
    for byte in characters.bytes() {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err(bad()),
        };
        bits = (bits << 6 | u32::from(value)) & 0xffff;
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push((bits >> held & 0xff) as u8);
        }
    }
    Sha256::try_from(bytes).map_err(|_| bad())
}

impl fmt::Debug for Pins {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let texts = |hashes: &[Sha256]| hashes.iter().map(text).collect::<Vec<_>>();
        f.debug_struct("Pins")
            .field("certificates", &texts(&self.certificates))
            .field("keys", &texts(&self.keys))
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_are_read_in_envoys_forms() {
        let hash = "E3:B0:C4:42:98:FC:1C:14:9A:FB:F4:C8:99:6F:B9:24:27:AE:41:E4:64:9B:93:4C:A4:95:99:1B:78:52:B8:55";
        let plain = hash.replace(':', "");
        let key = "47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=";
        let of_nothing = sha256(b"");
        assert_eq!(Pins::new([hash, &plain], [key]).map(|p| (p.certificates, p.keys)), {
            Ok((vec![of_nothing, of_nothing], vec![of_nothing]))
        });
        let shifted = hash.replacen(":B0", "B0:", 1);
        for bad in ["", "abc", &plain[1..], &plain.replace('E', "G"), &shifted, key] {
            assert_eq!(Pins::new([bad], []), Err(PinError::Hash(bad.to_owned())), "{bad}");
        }
        for bad in ["", &key[1..], &key.replace('+', "-"), hash] {
            assert_eq!(Pins::new([], [bad]), Err(PinError::Key(bad.to_owned())), "{bad}");
        }
        assert_eq!(Pins::new(std::iter::repeat_n(plain.as_str(), MAX_PINS + 1), []), Err(PinError::TooMany));
    }
}
