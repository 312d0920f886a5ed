//! The claims of a token that decide whether it is worth a question, read without verifying anything.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use serde_json::Value;

/// The audiences of a token, and when it ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claims {
    pub(super) audiences: Vec<String>,
    pub(super) end: SystemTime,
}

impl Claims {
    /// Reads a JSON Web Token in compact form (RFC 7519); `None`: it is none, or has no end.
    pub(super) fn read(token: &str) -> Option<Self> {
        let mut parts = token.split('.');
        let (_, payload, _) = (parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let payload = BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?;
        let claims: Value = serde_json::from_slice(&payload).ok()?;
        let end = UNIX_EPOCH.checked_add(Duration::from_secs(claims.get("exp")?.as_u64()?))?;
        Some(Self { audiences: audiences(claims.get("aud")), end })
    }
}

/// One audience, or a list of them (RFC 7519 section 4.1.3).
fn audiences(claim: Option<&Value>) -> Vec<String> {
    match claim {
        Some(Value::String(audience)) => vec![audience.clone()],
        Some(Value::Array(list)) => list.iter().filter_map(|audience| audience.as_str().map(str::to_owned)).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_text_is_a_token_or_not() {
        let check = |token: &str, expected: Option<&str>| {
            let claims = Claims::read(token).map(|claims| {
                let end = claims.end.duration_since(UNIX_EPOCH).expect("after it").as_secs();
                format!("{} {end}", claims.audiences.join(","))
            });
            assert_eq!(claims.as_deref(), expected, "{token}");
        };
        let token = |payload: &str| format!("e30.{}.c2ln", BASE64_URL_SAFE_NO_PAD.encode(payload));
        check(&token(r#"{"aud":["a","b"],"exp":7}"#), Some("a,b 7"));
        check(&token(r#"{"aud":"a","exp":7}"#), Some("a 7"));
        check(&token(r#"{"exp":7}"#), Some(" 7"));
        check(&token(r#"{"aud":["a"]}"#), None);
        check(&token(r#"{"aud":["a"],"exp":-1}"#), None);
        check(&token(r#"{"aud":["a"],"exp":18446744073709551615}"#), None);
        check(&token("[]"), None);
        check(&(token(r#"{"exp":7}"#) + ".more"), None);
        for text in ["", ".", "..", "a.b", "a.%.c", "a.e30.c"] {
            check(text, None);
        }
    }
}
