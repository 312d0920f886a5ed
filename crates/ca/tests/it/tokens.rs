use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use evenkeel_ca::{TokenError, TokenKey, Workload};

use crate::{HOUR, now};

fn web() -> Workload {
    Workload { namespace: "default".into(), service_account: "web".into(), pod: "web-0".into() }
}

fn key() -> TokenKey {
    TokenKey::open(tempfile::tempdir().unwrap().path()).unwrap()
}

#[test]
fn a_token_says_whom_it_was_made_for() {
    let key = key();
    let token = key.mint(&web(), HOUR, now()).unwrap();
    let workload = key.verify(&token, now()).unwrap();
    assert_eq!(workload, web());
    let id = workload.spiffe_id("cluster.local").unwrap();
    assert_eq!(id.to_string(), "spiffe://cluster.local/ns/default/sa/web");
}

#[test]
fn the_claims_are_those_of_kubernetes() {
    let token = key().mint(&web(), HOUR, now()).unwrap();
    let claims: serde_json::Value = jsonwebtoken::dangerous::insecure_decode(&token).unwrap().claims;
    assert_eq!(claims["aud"], serde_json::json!(["istio-ca"]));
    assert_eq!(claims["sub"], "system:serviceaccount:default:web");
    assert_eq!(
        claims["kubernetes.io"],
        serde_json::json!({"namespace": "default", "pod": {"name": "web-0"}, "serviceaccount": {"name": "web"}})
    );
    assert_eq!(claims["exp"].as_u64().unwrap() - claims["iat"].as_u64().unwrap(), 3600);
}

#[test]
fn the_key_outlives_the_process_and_is_kept_private() {
    let state = tempfile::tempdir().unwrap();
    let token = TokenKey::open(state.path()).unwrap().mint(&web(), HOUR, now()).unwrap();
    assert_eq!(TokenKey::open(state.path()).unwrap().verify(&token, now()).unwrap(), web());
    let path = state.path().join("token-key.pem");
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    assert!(matches!(TokenKey::open(state.path()), Err(TokenError::KeyFile(_))));
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert!(matches!(TokenKey::open(state.path()), Err(TokenError::Key(_))));
}

#[test]
fn tokens_count_for_their_time_only() {
    let (key, start) = (key(), now());
    let token = key.mint(&web(), HOUR, start).unwrap();
    let second = Duration::from_secs(1);
    assert!(matches!(key.verify(&token, start - 11 * second), Err(TokenError::NotYetValid)));
    assert!(key.verify(&token, start - 9 * second).is_ok());
    assert!(key.verify(&token, start + HOUR + 9 * second).is_ok());
    let error = key.verify(&token, start + HOUR + 70 * second).unwrap_err();
    assert!(matches!(error, TokenError::Expired(ago) if (69..=71).contains(&ago.as_secs())), "{error}");
}

#[test]
fn forged_tokens_are_refused() {
    let key = key();
    let token = key.mint(&web(), HOUR, now()).unwrap();
    assert!(matches!(self::key().verify(&token, now()), Err(TokenError::Signature)), "another control plane's");

    let parts: Vec<&str> = token.split('.').collect();
    let check = |forged: String| {
        let error = key.verify(&forged, now()).unwrap_err();
        assert!(matches!(error, TokenError::Signature | TokenError::Malformed(_) | TokenError::TooLong), "{error}");
    };
    let other = key.mint(&Workload { namespace: "kube-system".into(), ..web() }, HOUR, now()).unwrap();
    let other: Vec<&str> = other.split('.').collect();
    check(format!("{}.{}.{}", parts[0], other[1], parts[2]));
    // `{"alg":"none"}` and `{"alg":"HS256"}`.
    check(format!("eyJhbGciOiJub25lIn0.{}.", parts[1]));
    check(format!("eyJhbGciOiJIUzI1NiJ9.{}.{}", parts[1], parts[2]));
    check(String::new());
    check("a.b.c".into());
    check("é".repeat(100));
    check("a".repeat(20_000));
    for index in 0..token.len() {
        check(token[..index].to_owned());
    }
}
