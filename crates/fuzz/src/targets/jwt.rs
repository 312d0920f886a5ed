//! Tokens and key sets, which clients and issuers write.

use evenkeel_jwt::{Jwks, Token};

use super::Target;

/// A token. What is accepted has two dots, is base64url, and is parsed alike when it is written again.
pub const TOKEN: Target = Target {
    name: "jwt_token",
    run: token,
    seeds: &[
        b"eyJhbGciOiJFUzI1NiIsImtpZCI6InAyNTYiLCJ0eXAiOiJKV1QifQ.eyJpc3MiOiJtZSIsInN1YiI6InlvdSIsImF1ZCI6WyJhIiwiYiJdLCJleHAiOjQxMDI0NDQ4MDB9.HJO-8xRhTWVqc0pTnj2lZ0cSergQ5corKDzPbmuki4DaBOdKMpxekVjYwWlkKmxOv_BkzSZRClDc6Ddo_u7rdA",
        b"eyJhbGciOiJub25lIn0.e30.AA",
        b"eyJhbGciOiJSUzI1NiJ9.eyJleHAiOjEuNWU5LCJuYmYiOi0xfQ.AA",
    ],
    mutations: 20_000,
};

/// A key set. What is accepted has a key, and no token that was not signed passes.
pub const JWKS: Target = Target {
    name: "jwt_jwks",
    run: jwks,
    seeds: &[
        br#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo","kid":"a"}]}"#,
        br#"{"keys":[{"kty":"EC","crv":"P-256","x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#,
        br#"{"keys":[{"kty":"RSA","e":"AQAB","n":"0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw","alg":"RS256"}]}"#,
        br#"{"a":"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"}"#,
    ],
    mutations: 5_000,
};

fn token(data: &[u8]) {
    let Ok(token) = Token::parse(data) else { return };
    assert_eq!(data.iter().filter(|byte| **byte == b'.').count(), 2, "a token has three parts");
    assert!(data.is_ascii(), "a token is ASCII");
    let again = Token::parse(data).expect("the same token");
    assert_eq!((again.claims, again.times), (token.claims, token.times));
}

fn jwks(data: &[u8]) {
    let Ok(set) = Jwks::parse(data) else { return };
    assert!(!set.is_empty(), "an accepted set has a key");
    for algorithm in ["RS256", "PS512", "ES256", "ES384", "ES512", "EdDSA", "HS256"] {
        let header = evenkeel_jwt::base64url(format!(r#"{{"alg":"{algorithm}"}}"#).as_bytes());
        for signature in ["AA".to_owned(), "A".repeat(86), "A".repeat(342)] {
            let text = format!("{header}.e30.{signature}");
            if let Ok(token) = Token::parse(text.as_bytes()) {
                assert!(set.verify(&token).is_err(), "a signature of zeros passed");
            }
        }
    }
}
