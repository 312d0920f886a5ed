//! A token: header, claims and signature.

use serde_json::Value;

use crate::algorithm::Algorithm;
use crate::base64url;
use crate::object::{Object, parse_object};
use crate::status::Status;

/// Maximum length of a token, in bytes. A longer one is [`Status::BadFormat`].
pub const MAX_TOKEN_BYTES: usize = 32 * 1024;

/// A token in the form `HEADER.PAYLOAD.SIGNATURE` that was parsed and not verified.
#[derive(Debug)]
pub struct Token<'t> {
    /// The signed part: `HEADER.PAYLOAD`.
    pub(crate) signed: &'t str,
    /// The payload as it was sent.
    pub payload: &'t str,
    pub(crate) algorithm: Algorithm,
    pub(crate) key_id: Option<String>,
    /// The header.
    pub header: Object,
    /// The claims.
    pub claims: Object,
    pub(crate) signature: Vec<u8>,
    /// The times in the claims.
    pub times: Times,
}

/// The times in a token's claims, in seconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// `nbf`.
    pub not_before: Option<u64>,
    /// `exp`.
    pub expires: Option<u64>,
}

impl Times {
    /// Whether the token is valid at `now`, if clocks differ by up to `skew` seconds.
    pub fn check(&self, now: u64, skew: u64) -> Result<(), Status> {
        if self.not_before.is_some_and(|start| now.saturating_add(skew) < start) {
            return Err(Status::NotYetValid);
        }
        match self.expires {
            Some(end) if now > end.saturating_add(skew) => Err(Status::Expired),
            _ => Ok(()),
        }
    }
}

impl<'t> Token<'t> {
    /// Parses a token. Its contents must not be trusted before [`crate::Jwks::verify`] accepts its signature.
    pub fn parse(text: &'t [u8]) -> Result<Self, Status> {
        if text.len() > MAX_TOKEN_BYTES {
            return Err(Status::BadFormat);
        }
        let text = std::str::from_utf8(text).map_err(|_| Status::BadFormat)?;
        let mut parts = text.split('.');
        let (Some(header), Some(payload), Some(signature), None) =
            (parts.next(), parts.next(), parts.next(), parts.next())
        else {
            return Err(Status::BadFormat);
        };
        if header.is_empty() || payload.is_empty() || signature.is_empty() {
            return Err(Status::BadFormat);
        }
        let signed = text.get(..header.len() + 1 + payload.len()).ok_or(Status::BadFormat)?;

        let header = base64url::decode(header).ok_or(Status::HeaderBadBase64)?;
        let header = parse_object(&header).ok_or(Status::HeaderBadJson)?;
        let Some(Value::String(algorithm)) = header.get("alg") else { return Err(Status::HeaderBadAlg) };
        let algorithm = Algorithm::named(algorithm).ok_or(Status::HeaderNotImplementedAlg)?;
        let key_id = string(&header, "kid", Status::HeaderBadKid)?.filter(|id| !id.is_empty()).map(str::to_owned);
        if header.contains_key("crit") {
            return Err(Status::HeaderCritical);
        }

        let claims = base64url::decode(payload).ok_or(Status::PayloadBadBase64)?;
        let claims = parse_object(&claims).ok_or(Status::PayloadBadJson)?;
        string(&claims, "iss", Status::IssNotString)?;
        string(&claims, "sub", Status::SubNotString)?;
        time(&claims, "iat", (Status::IatNotInteger, Status::IatOutOfRange))?;
        let not_before = time(&claims, "nbf", (Status::NbfNotInteger, Status::NbfOutOfRange))?;
        let expires = time(&claims, "exp", (Status::ExpNotInteger, Status::ExpOutOfRange))?;
        string(&claims, "jti", Status::JtiNotString)?;
        match claims.get("aud") {
            None | Some(Value::String(_)) => {}
            Some(Value::Array(list)) if list.iter().all(Value::is_string) => {}
            Some(_) => return Err(Status::AudNotString),
        }
        let signature = base64url::decode(signature).ok_or(Status::SignatureBadBase64)?;
        let times = Times { not_before, expires };
        Ok(Self { signed, payload, algorithm, key_id, header, claims, signature, times })
    }

    /// `iss`; empty if there is none.
    pub fn issuer(&self) -> &str {
        self.claims.get("iss").and_then(Value::as_str).unwrap_or_default()
    }

    /// `sub`; empty if there is none.
    pub fn subject(&self) -> &str {
        self.claims.get("sub").and_then(Value::as_str).unwrap_or_default()
    }

    /// The token's `kid`.
    pub fn key_id(&self) -> Option<&str> {
        self.key_id.as_deref()
    }

    /// `aud`.
    pub fn audiences(&self) -> impl Iterator<Item = &str> {
        let (one, list) = match self.claims.get("aud") {
            Some(Value::String(one)) => (Some(one.as_str()), None),
            Some(Value::Array(list)) => (None, Some(list)),
            _ => (None, None),
        };
        one.into_iter().chain(list.into_iter().flatten().filter_map(Value::as_str))
    }
}

fn string<'o>(object: &'o Object, name: &str, otherwise: Status) -> Result<Option<&'o str>, Status> {
    match object.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(otherwise),
    }
}

/// A time in whole seconds; a fraction is cut off, as in Envoy.
fn time(object: &Object, name: &str, (no_number, out_of_range): (Status, Status)) -> Result<Option<u64>, Status> {
    // The first number that is too large for 64 bits.
    const LIMIT: f64 = 18_446_744_073_709_551_616.0;
    match object.get(name) {
        None => Ok(None),
        Some(Value::Number(number)) => match number.as_f64() {
            // In range, so the cast is exact but for the fraction.
            Some(seconds) if (0.0..LIMIT).contains(&seconds) => Ok(Some(seconds as u64)),
            _ => Err(out_of_range),
        },
        Some(_) => Err(no_number),
    }
}
