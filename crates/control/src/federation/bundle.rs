//! SPIFFE bundles: JSON documents in which trust domains publish their roots (SPIFFE Trust Domain and Bundle, section 4).

use std::time::Duration;

use evenkeel_tls::{TrustBundle, TrustError};
use serde_json::Value;

/// The `use` of keys that verify X.509 identities; others, such as those of tokens, are ignored.
const X509_USE: &str = "x509-svid";
/// Refresh interval of a bundle that has no refresh hint (section 4.1.3).
const DEFAULT_REFRESH: Duration = Duration::from_secs(5 * 60);
/// Minimum refresh interval, whatever the bundle's hint.
pub(super) const MIN_REFRESH: Duration = Duration::from_secs(1);
/// Maximum refresh interval, whatever the bundle's hint.
const MAX_REFRESH: Duration = Duration::from_secs(60 * 60);

/// The contents of a bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SpiffeBundle {
    /// Roots in PEM. Empty if the trust domain has withdrawn all: then none of its identities is accepted.
    pub roots: String,
    /// The sequence number of its version.
    pub sequence: Option<u64>,
    /// How long until it is fetched again.
    pub refresh: Duration,
}

/// Why a document is not a bundle.
#[derive(Debug, thiserror::Error)]
pub(super) enum BundleError {
    #[error("it is no JSON object")]
    Json,
    #[error("it has no array `keys`")]
    Keys,
    #[error("keys[{0}]: `x5c` has to be an array with one certificate")]
    Chain(usize),
    #[error("the roots cannot be used: the text {0}")]
    Roots(#[from] TrustError),
    #[error("`{0}` is no number")]
    Number(&'static str),
}

pub(super) fn parse(document: &[u8]) -> Result<SpiffeBundle, BundleError> {
    let object = evenkeel_jwt::parse_object(document).ok_or(BundleError::Json)?;
    let keys = object.get("keys").and_then(Value::as_array).ok_or(BundleError::Keys)?;
    let of_identities =
        keys.iter().enumerate().filter(|(_, key)| key.get("use").and_then(Value::as_str) == Some(X509_USE));
    let mut roots = String::new();
    for (index, key) in of_identities {
        roots.push_str(&certificate(key).ok_or(BundleError::Chain(index))?);
    }
    if !roots.is_empty() {
        TrustBundle::from_pem(roots.as_bytes())?;
    }
    let number = |name: &'static str| match object.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(value) => value.as_u64().map(Some).ok_or(BundleError::Number(name)),
    };
    let refresh = number("spiffe_refresh_hint")?.map_or(DEFAULT_REFRESH, Duration::from_secs);
    Ok(SpiffeBundle { roots, sequence: number("spiffe_sequence")?, refresh: refresh.clamp(MIN_REFRESH, MAX_REFRESH) })
}

/// Returns the certificate of a key, in PEM.
fn certificate(key: &Value) -> Option<String> {
    let [Value::String(text)] = key.get("x5c")?.as_array()?.as_slice() else { return None };
    let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/' | '=');
    (!text.is_empty() && text.chars().all(is_base64))
        .then(|| format!("-----BEGIN CERTIFICATE-----\n{text}\n-----END CERTIFICATE-----\n"))
}

#[cfg(test)]
mod tests {
    use evenkeel_testkit::tls::TestCa;
    use serde_json::json;

    use super::*;

    #[test]
    fn only_roots_of_identities_are_read_and_only_whole_documents() {
        let (one, two) = (TestCa::new(), TestCa::new());
        let x5c = |ca: &TestCa| ca.root_pem().lines().filter(|line| !line.starts_with('-')).collect::<String>();
        let key = |ca: &TestCa| json!({"use": "x509-svid", "kty": "EC", "x5c": [x5c(ca)]});
        let check = |document: Value, expected: Result<(usize, Option<u64>, u64), &str>| {
            let found = parse(document.to_string().as_bytes());
            let found =
                found.map(|bundle| (bundle.roots.matches("BEGIN").count(), bundle.sequence, bundle.refresh.as_secs()));
            match (found, expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{document}"),
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{document}: {error}"),
                (found, expected) => panic!("{document}: {found:?}, expected {expected:?}"),
            }
        };
        check(json!({"keys": [key(&one)]}), Ok((1, None, 300)));
        check(
            json!({"keys": [key(&one), key(&two)], "spiffe_sequence": 7, "spiffe_refresh_hint": 60}),
            Ok((2, Some(7), 60)),
        );
        // Without keys nobody is accepted. A document without the field `keys` is an error instead.
        check(json!({"keys": []}), Ok((0, None, 300)));
        check(json!({}), Err("no array `keys`"));
        check(json!({"keys": {}}), Err("no array `keys`"));
        check(json!([]), Err("no JSON object"));
        // Keys for tokens, and keys without a `use`, are not roots.
        check(json!({"keys": [{"use": "jwt-svid", "kid": "a"}, {"x5c": [x5c(&one)]}, key(&two)]}), Ok((1, None, 300)));
        // Refresh intervals are bounded.
        check(json!({"keys": [], "spiffe_refresh_hint": 0}), Ok((0, None, 1)));
        check(json!({"keys": [], "spiffe_refresh_hint": u64::MAX}), Ok((0, None, 3600)));
        check(json!({"keys": [], "spiffe_refresh_hint": -1}), Err("`spiffe_refresh_hint` is no number"));
        check(json!({"keys": [], "spiffe_sequence": "7"}), Err("`spiffe_sequence` is no number"));
        // A damaged key invalidates the document: no bundle is used in part.
        for chain in [
            json!(null),
            json!([]),
            json!("AAAA"),
            json!([x5c(&one), x5c(&two)]),
            json!(["-----END CERTIFICATE-----"]),
            json!([""]),
        ] {
            check(json!({"keys": [key(&two), {"use": "x509-svid", "x5c": chain}]}), Err("keys[1]: `x5c`"));
        }
        check(json!({"keys": [{"use": "x509-svid", "x5c": ["AAAA"]}]}), Err("cannot be used as a root"));
        assert!(parse(b"").is_err() && parse(b"<html>").is_err() && parse(b"\xff").is_err());
    }
}
