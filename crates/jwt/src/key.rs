//! One public key of a set, and the algorithms that it may verify.

use std::fmt;

use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED, ECDSA_P384_SHA384_FIXED, ECDSA_P521_SHA512_FIXED, ED25519, ParsedPublicKey,
    RSA_PKCS1_2048_8192_SHA256, RSA_PKCS1_2048_8192_SHA384, RSA_PKCS1_2048_8192_SHA512, RSA_PSS_2048_8192_SHA256,
    RSA_PSS_2048_8192_SHA384, RSA_PSS_2048_8192_SHA512, RsaParameters, RsaPublicKeyComponents, VerificationAlgorithm,
};
use serde_json::Value;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::algorithm::Algorithm;
use crate::base64url;
use crate::object::Object;

/// Smallest RSA modulus, in bits (RFC 7518 section 3.3).
const MIN_RSA_BITS: usize = 2048;
/// Maximum size of an RSA modulus, in bits: a larger one makes each token expensive.
const MAX_RSA_BITS: usize = 8192;
/// Bytes of an Ed25519 public key.
const ED25519_BYTES: usize = 32;
/// Maximum length of a `kid` in a set, in bytes.
const MAX_KEY_ID_BYTES: usize = 1024;

/// Why a key of a set is not used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The entry is no JSON object.
    #[error("it is no JSON object")]
    NoObject,
    /// A field is missing or no string.
    #[error("`{0}` is missing or no string")]
    Field(&'static str),
    /// A field is not base64url.
    #[error("`{0}` is not base64url")]
    Base64(&'static str),
    /// `kty` is not supported.
    #[error("`kty: {0}` is not supported; write a public key: RSA, EC or OKP")]
    Type(String),
    /// A secret: whoever can verify with it can also sign.
    #[error(
        "`kty: oct` is a shared secret, with which anyone who can verify tokens can also make them; use a public key"
    )]
    Secret,
    /// `alg` does not belong to the key's type or curve.
    #[error("`alg: {0}` does not belong to a key of this type and curve")]
    Algorithm(String),
    /// `crv` is not supported.
    #[error("`crv: {0}` is not supported; the supported curves are P-256, P-384, P-521 and Ed25519")]
    Curve(String),
    /// The key is for another purpose.
    #[error("it is not for signatures (`use: {0}`)")]
    Purpose(String),
    /// An RSA modulus of a size that is not accepted.
    #[error("the RSA key has {0} bits; accepted are {MIN_RSA_BITS} to {MAX_RSA_BITS}")]
    RsaSize(usize),
    /// A modulus that can be factored (CVE-2017-15361).
    #[error(
        "the RSA key was made by a faulty library, so that it can be broken (ROCA, CVE-2017-15361); make a new one"
    )]
    Roca,
    /// The exponent is neither 3 nor 65537.
    #[error("the exponent `e` is neither 3 nor 65537")]
    Exponent,
    /// The numbers are no valid key: a point is not on its curve, or a number has the wrong length.
    #[error("its numbers are no valid public key")]
    Invalid,
    /// `kid` is longer than [`MAX_KEY_ID_BYTES`].
    #[error("`kid` has more than {MAX_KEY_ID_BYTES} bytes")]
    LongId,
    /// A certificate cannot be read, or has no RSA key.
    #[error("the certificate cannot be read, or does not contain an RSA key")]
    Certificate,
}

impl KeyError {
    /// The reason, without any text of the key: it may be the answer of a server whose answers are nobody's business.
    pub(crate) fn plain(&self) -> String {
        match self {
            Self::Type(_) => "its `kty` is not supported".to_owned(),
            Self::Algorithm(_) => "its `alg` does not belong to a key of this type and curve".to_owned(),
            Self::Curve(_) => "its `crv` is not supported".to_owned(),
            Self::Purpose(_) => "it is not for signatures".to_owned(),
            other => other.to_string(),
        }
    }
}

/// A public key, ready to verify.
pub(crate) struct Key {
    pub(crate) id: Option<Box<str>>,
    /// Whether it has `alg`.
    pub(crate) names_algorithm: bool,
    /// The algorithms that it may verify, each with the key in the form for it.
    uses: Vec<(Algorithm, ParsedPublicKey)>,
}

impl Key {
    /// A key of a set (RFC 7517 section 4).
    pub(crate) fn parse(value: &Value) -> Result<Self, KeyError> {
        let Value::Object(object) = value else { return Err(KeyError::NoObject) };
        let kind = field(object, "kty")?;
        if kind == "oct" {
            return Err(KeyError::Secret);
        }
        purpose(object)?;
        let id = match object.get("kid").and_then(Value::as_str) {
            Some(id) if id.len() > MAX_KEY_ID_BYTES => return Err(KeyError::LongId),
            id => id.filter(|id| !id.is_empty()).map(Into::into),
        };
        let uses = match kind {
            "RSA" => rsa(object)?,
            "EC" => elliptic(object)?,
            "OKP" => edwards(object)?,
            other => return Err(KeyError::Type(other.to_owned())),
        };
        Ok(Self { id, names_algorithm: object.contains_key("alg"), uses })
    }

    /// The RSA key of a certificate in PEM.
    pub(crate) fn of_certificate(id: &str, pem: &str) -> Result<Self, KeyError> {
        let (_, pem) = x509_parser::pem::parse_x509_pem(pem.as_bytes()).map_err(|_| KeyError::Certificate)?;
        let (_, certificate) = X509Certificate::from_der(&pem.contents).map_err(|_| KeyError::Certificate)?;
        let Ok(PublicKey::RSA(key)) = certificate.public_key().parsed() else { return Err(KeyError::Certificate) };
        let uses = rsa_uses(key.modulus, key.exponent, &Algorithm::RSA)?;
        Ok(Self { id: Some(id.into()), names_algorithm: false, uses })
    }

    /// The key in the form for this algorithm, if it may verify it.
    pub(crate) fn for_algorithm(&self, algorithm: Algorithm) -> Option<&ParsedPublicKey> {
        self.uses.iter().find(|(own, _)| *own == algorithm).map(|(_, key)| key)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let uses: Vec<_> = self.uses.iter().map(|(algorithm, _)| algorithm).collect();
        f.debug_struct("Key").field("id", &self.id).field("uses", &uses).finish()
    }
}

fn field<'o>(object: &'o Object, name: &'static str) -> Result<&'o str, KeyError> {
    object.get(name).and_then(Value::as_str).ok_or(KeyError::Field(name))
}

/// `use` and `key_ops` (RFC 7517 sections 4.2 and 4.3).
fn purpose(object: &Object) -> Result<(), KeyError> {
    match object.get("use") {
        None => {}
        Some(Value::String(purpose)) if purpose == "sig" => {}
        Some(other) => return Err(KeyError::Purpose(other.as_str().unwrap_or("?").to_owned())),
    }
    match object.get("key_ops") {
        None => Ok(()),
        Some(Value::Array(operations)) if operations.iter().any(|operation| operation == "verify") => Ok(()),
        Some(_) => Err(KeyError::Purpose("key_ops without verify".to_owned())),
    }
}

/// Returns the algorithms of `possible` that the key's `alg` allows; all if it has none.
fn allowed(object: &Object, possible: &[Algorithm]) -> Result<Vec<Algorithm>, KeyError> {
    let named = match object.get("alg") {
        None => return Ok(possible.to_vec()),
        Some(named) => named.as_str().unwrap_or("?"),
    };
    match Algorithm::named(named).filter(|algorithm| possible.contains(algorithm)) {
        Some(algorithm) => Ok(vec![algorithm]),
        None => Err(KeyError::Algorithm(named.to_owned())),
    }
}

fn bytes(object: &Object, name: &'static str) -> Result<Vec<u8>, KeyError> {
    base64url::decode(field(object, name)?).ok_or(KeyError::Base64(name))
}

fn rsa(object: &Object) -> Result<Vec<(Algorithm, ParsedPublicKey)>, KeyError> {
    let algorithms = allowed(object, &Algorithm::RSA)?;
    rsa_uses(&bytes(object, "n")?, &bytes(object, "e")?, &algorithms)
}

fn rsa_uses(
    modulus: &[u8],
    exponent: &[u8],
    algorithms: &[Algorithm],
) -> Result<Vec<(Algorithm, ParsedPublicKey)>, KeyError> {
    let (modulus, exponent) = (without_zeros(modulus), without_zeros(exponent));
    let leading = modulus.first().map_or(0, |first| first.leading_zeros() as usize);
    let bits = modulus.len() * 8 - leading;
    if !(MIN_RSA_BITS..=MAX_RSA_BITS).contains(&bits) {
        return Err(KeyError::RsaSize(bits));
    }
    if !matches!(exponent, [3] | [1, 0, 1]) {
        return Err(KeyError::Exponent);
    }
    if is_of_roca(modulus) {
        return Err(KeyError::Roca);
    }
    let components = RsaPublicKeyComponents { n: modulus, e: exponent };
    let ready = |algorithm: &Algorithm| {
        let parameters = rsa_parameters(*algorithm).ok_or(KeyError::Invalid)?;
        let key = components.to_parsed_public_key(parameters).map_err(|_| KeyError::Invalid)?;
        Ok((*algorithm, key))
    };
    algorithms.iter().map(ready).collect()
}

/// Small primes modulo which a modulus of the ROCA kind is a power of 65537, and others are so by chance only, all of them
/// together once in 2^27 moduli.
const ROCA_PRIMES: [u32; 17] = [11, 13, 17, 19, 37, 53, 61, 71, 73, 79, 97, 103, 107, 109, 127, 151, 157];

/// Whether the primes of a modulus have the structure of CVE-2017-15361 ("The Return of Coppersmith's Attack", section 2.4).
fn is_of_roca(modulus: &[u8]) -> bool {
    ROCA_PRIMES.iter().all(|&prime| {
        let rest = modulus.iter().fold(0, |rest, byte| (rest * 256 + u32::from(*byte)) % prime);
        let mut power = 1;
        (0..prime).any(|_| {
            power = power * 65_537 % prime;
            power == rest
        })
    })
}

fn rsa_parameters(algorithm: Algorithm) -> Option<&'static RsaParameters> {
    Some(match algorithm {
        Algorithm::Rs256 => &RSA_PKCS1_2048_8192_SHA256,
        Algorithm::Rs384 => &RSA_PKCS1_2048_8192_SHA384,
        Algorithm::Rs512 => &RSA_PKCS1_2048_8192_SHA512,
        Algorithm::Ps256 => &RSA_PSS_2048_8192_SHA256,
        Algorithm::Ps384 => &RSA_PSS_2048_8192_SHA384,
        Algorithm::Ps512 => &RSA_PSS_2048_8192_SHA512,
        _ => return None,
    })
}

fn without_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    number.get(zeros..).unwrap_or_default()
}

/// Reads an elliptic curve key. As in Envoy, `alg` determines the curve if `crv` does not; if neither does, it is P-256.
fn elliptic(object: &Object) -> Result<Vec<(Algorithm, ParsedPublicKey)>, KeyError> {
    let curve = match object.get("crv") {
        Some(curve) => curve.as_str().ok_or(KeyError::Field("crv"))?,
        None => match object.get("alg").and_then(Value::as_str) {
            None | Some("ES256") => "P-256",
            Some("ES384") => "P-384",
            Some("ES512") => "P-521",
            Some(other) => return Err(KeyError::Algorithm(other.to_owned())),
        },
    };
    let (algorithm, verification, length): (_, &'static dyn VerificationAlgorithm, usize) = match curve {
        "P-256" => (Algorithm::Es256, &ECDSA_P256_SHA256_FIXED, 32),
        "P-384" => (Algorithm::Es384, &ECDSA_P384_SHA384_FIXED, 48),
        "P-521" => (Algorithm::Es512, &ECDSA_P521_SHA512_FIXED, 66),
        other => return Err(KeyError::Curve(other.to_owned())),
    };
    allowed(object, &[algorithm])?;
    // An uncompressed point (SEC 1 section 2.3.3).
    let mut point = vec![4];
    for name in ["x", "y"] {
        let number = bytes(object, name)?;
        let number = without_zeros(&number);
        let padding = length.checked_sub(number.len()).ok_or(KeyError::Invalid)?;
        point.resize(point.len() + padding, 0);
        point.extend_from_slice(number);
    }
    let key = ParsedPublicKey::new(verification, point).map_err(|_| KeyError::Invalid)?;
    Ok(vec![(algorithm, key)])
}

fn edwards(object: &Object) -> Result<Vec<(Algorithm, ParsedPublicKey)>, KeyError> {
    allowed(object, &[Algorithm::EdDsa])?;
    match field(object, "crv")? {
        "Ed25519" => {}
        other => return Err(KeyError::Curve(other.to_owned())),
    }
    let point = bytes(object, "x")?;
    if point.len() != ED25519_BYTES {
        return Err(KeyError::Invalid);
    }
    let key = ParsedPublicKey::new(&ED25519, point).map_err(|_| KeyError::Invalid)?;
    Ok(vec![(Algorithm::EdDsa, key)])
}
