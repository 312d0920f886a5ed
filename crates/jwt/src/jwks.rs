//! Key sets.

use serde_json::Value;

use crate::algorithm::Algorithm;
use crate::key::{Key, KeyError};
use crate::object;
use crate::status::Status;
use crate::token::Token;

/// Maximum size of a key set, in bytes.
pub const MAX_JWKS_BYTES: usize = 256 * 1024;
/// Maximum number of keys in a set. A token without `kid` is verified with each key in turn.
pub const MAX_KEYS: usize = 100;
/// Bytes of an Ed25519 signature.
const ED25519_SIGNATURE_BYTES: usize = 64;

/// A key set, ready to verify.
#[derive(Debug, Default)]
pub struct Jwks {
    keys: Vec<Key>,
    /// The entries that are not used, by their index.
    pub skipped: Vec<(usize, KeyError)>,
}

/// Why a text is no usable key set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JwksError {
    /// Over [`MAX_JWKS_BYTES`].
    #[error("it has {0} bytes; at most {MAX_JWKS_BYTES} are read")]
    TooLarge(usize),
    /// Over [`MAX_KEYS`].
    #[error("it has {0} keys; at most {MAX_KEYS} are used")]
    TooManyKeys(usize),
    /// Not JSON, or a name occurs twice.
    #[error("it is not valid JSON: {0}")]
    Json(String),
    /// Not an object with `keys`.
    #[error("it is no JSON object with the list `keys` (RFC 7517)")]
    NoKeys,
    /// `keys` is no list.
    #[error("`keys` is no list")]
    BadKeys,
    /// No key can be used.
    #[error("it has no usable key{}", first(.0))]
    NoValidKeys(Vec<(usize, KeyError)>),
}

fn first(skipped: &[(usize, KeyError)]) -> String {
    skipped.first().map(|(index, error)| format!("; keys[{index}]: {error}")).unwrap_or_default()
}

impl JwksError {
    /// The reason, without any text of the set, for sets that a server has sent: whoever chooses the server may not be allowed
    /// to read its answers.
    pub fn plain(&self) -> String {
        match self {
            Self::Json(_) => "it is not valid JSON".to_owned(),
            Self::NoValidKeys(skipped) => {
                let first = skipped.first().map(|(index, error)| format!("; keys[{index}]: {}", error.plain()));
                format!("it has no usable key{}", first.unwrap_or_default())
            }
            other => other.to_string(),
        }
    }

    /// The status of tokens that should be verified with the set.
    pub fn status(&self) -> Status {
        match self {
            Self::Json(_) => Status::JwksParseError,
            Self::NoKeys => Status::JwksNoKeys,
            Self::BadKeys => Status::JwksBadKeys,
            Self::TooLarge(_) | Self::TooManyKeys(_) | Self::NoValidKeys(_) => Status::NoValidKeys,
        }
    }
}

impl Jwks {
    /// Parses a set: `{"keys": [KEY, …]}` (RFC 7517), or `{"KID": "CERTIFICATE", …}` as Google publishes. Keys that
    /// cannot be used are skipped; one at least must be usable.
    pub fn parse(text: &[u8]) -> Result<Self, JwksError> {
        if text.len() > MAX_JWKS_BYTES {
            return Err(JwksError::TooLarge(text.len()));
        }
        let value = object::parse(text).map_err(|error| JwksError::Json(error.to_string()))?;
        let Value::Object(object) = value else { return Err(JwksError::NoKeys) };
        let parsed: Vec<Result<Key, KeyError>> = match object.get("keys") {
            Some(Value::Array(entries)) => {
                Self::check_count(entries.len())?;
                entries.iter().map(Key::parse).collect()
            }
            Some(_) => return Err(JwksError::BadKeys),
            None if !object.is_empty() && object.values().all(is_certificate) => {
                Self::check_count(object.len())?;
                let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                object.iter().map(|(id, value)| Key::of_certificate(id, &text(value))).collect()
            }
            None => return Err(JwksError::NoKeys),
        };
        let mut set = Self::default();
        for (index, key) in parsed.into_iter().enumerate() {
            match key {
                Ok(key) => set.keys.push(key),
                Err(error) => set.skipped.push((index, error)),
            }
        }
        if set.keys.is_empty() { Err(JwksError::NoValidKeys(set.skipped)) } else { Ok(set) }
    }

    fn check_count(count: usize) -> Result<(), JwksError> {
        if count > MAX_KEYS { Err(JwksError::TooManyKeys(count)) } else { Ok(()) }
    }

    /// Verifies a token's signature. If the token names a key, keys of other names are not tried.
    pub fn verify(&self, token: &Token<'_>) -> Result<(), Status> {
        let mut tries = self.keys.len();
        self.verify_within(token, &mut tries)
    }

    /// The same, with at most `tries` keys, which are used up. Beyond them the token is not valid.
    pub fn verify_within(&self, token: &Token<'_>, tries: &mut usize) -> Result<(), Status> {
        let mut tried = false;
        for key in self.keys.iter().filter(|key| fits(key, token)) {
            let ready = key.for_algorithm(token.algorithm);
            // As in Envoy, only a key with `alg` can mismatch.
            tried |= ready.is_some() || !key.names_algorithm;
            let Some(ready) = ready else { continue };
            if token.algorithm == Algorithm::EdDsa && token.signature.len() != ED25519_SIGNATURE_BYTES {
                return Err(Status::Ed25519SignatureWrongLength);
            }
            *tries = tries.checked_sub(1).ok_or(Status::VerificationFail)?;
            if ready.verify_sig(token.signed.as_bytes(), &token.signature).is_ok() {
                return Ok(());
            }
        }
        Err(if tried { Status::VerificationFail } else { Status::KidAlgMismatch })
    }

    /// Whether a key has this name, or some key has none.
    pub fn may_have(&self, key_id: &str) -> bool {
        self.keys.iter().any(|key| key.id.as_deref().is_none_or(|own| own == key_id))
    }

    /// Number of usable keys.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Whether there are no usable keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

fn fits(key: &Key, token: &Token<'_>) -> bool {
    match (&key.id, &token.key_id) {
        (Some(own), Some(wanted)) => **own == **wanted,
        _ => true,
    }
}

fn is_certificate(value: &Value) -> bool {
    let Some(text) = value.as_str() else { return false };
    text.starts_with("-----BEGIN CERTIFICATE-----\n") && text.ends_with("\n-----END CERTIFICATE-----\n")
}
