//! An issuer with one RSA key, a token of his, and the filter that checks it, as the control plane writes it.

use anyhow::{Context, Result};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair, KeySize};
use aws_lc_rs::signature::{KeyPair as _, RSA_PKCS1_SHA256};
use evenkeel_jwt::base64url;

const HEADER: &str = r#"{"alg":"RS256","kid":"bench","typ":"JWT"}"#;
/// Claims of a usual size. They expire in 2100.
const CLAIMS: &str = r#"{"iss":"https://issuer.bench","sub":"248289761001","aud":"bench","exp":4102444800,"iat":1700000000,"scope":"read write","groups":["developers","operators"],"email":"somebody@example.com"}"#;

/// The filter, and a token that it accepts.
#[derive(Debug, Clone)]
pub struct Issuer {
    jwks: String,
    /// A token.
    pub token: String,
}

impl Issuer {
    /// A new key, and a token that it has signed.
    pub fn new() -> Result<Self> {
        let pair = KeyPair::generate(KeySize::Rsa2048).context("an RSA key")?;
        let (modulus, exponent) = numbers(pair.public_key().as_ref()).context("a public key")?;
        let jwks = format!(
            r#"{{"keys":[{{"kty":"RSA","kid":"bench","alg":"RS256","n":"{}","e":"{}"}}]}}"#,
            base64url(modulus),
            base64url(exponent)
        );
        let input = format!("{}.{}", base64url(HEADER.as_bytes()), base64url(CLAIMS.as_bytes()));
        let mut signature = vec![0; pair.public_modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), input.as_bytes(), &mut signature).context("a signature")?;
        Ok(Self { jwks, token: format!("{input}.{}", base64url(&signature)) })
    }

    /// The HTTP filter, as istiod writes it for one rule.
    pub fn http_filter(&self) -> String {
        format!(
            r#"
          - name: envoy.filters.http.jwt_authn
            typed_config:
              "@type": type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.JwtAuthentication
              bypass_cors_preflight: true
              providers:
                origins-0:
                  issuer: https://issuer.bench
                  audiences: [bench]
                  forward: true
                  payload_in_metadata: payload
                  normalize_payload_in_metadata: {{space_delimited_claims: [permission, scope]}}
                  local_jwks: {{inline_string: '{}'}}
              rules:
              - match: {{prefix: /}}
                requires: {{requires_any: {{requirements: [{{provider_name: origins-0}}, {{allow_missing: {{}}}}]}}}}"#,
            self.jwks
        )
    }
}

/// Modulus and exponent of an `RSAPublicKey` in DER (RFC 8017 appendix A.1.1).
fn numbers(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (sequence, _) = element(der)?;
    let (modulus, rest) = element(sequence)?;
    let (exponent, _) = element(rest)?;
    Some((modulus.strip_prefix(&[0]).unwrap_or(modulus), exponent))
}

/// The content of the first element, and what follows it.
fn element(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, start) = match *der.get(1)? {
        short @ 0..=0x7f => (usize::from(short), 2),
        long => {
            let count = usize::from(long & 0x7f);
            let bytes = der.get(2..2 + count)?;
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), 2 + count)
        }
    };
    der.get(start..)?.split_at_checked(length)
}

#[cfg(test)]
mod tests {
    use evenkeel_jwt::{Jwks, Token};

    use super::Issuer;

    #[test]
    fn the_token_is_valid() {
        let issuer = Issuer::new().unwrap();
        let token = Token::parse(issuer.token.as_bytes()).unwrap();
        assert_eq!(Jwks::parse(issuer.jwks.as_bytes()).unwrap().verify(&token), Ok(()));
        assert!(issuer.http_filter().contains(&issuer.jwks));
    }
}
