//! Issuers of JSON Web Tokens, good and bad: keys of each type, and tokens with any header, payload and signature.

use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{KeyPair as RsaKeyPair, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING, EcdsaKeyPair,
    EcdsaSigningAlgorithm, Ed25519KeyPair, KeyPair, RSA_PKCS1_SHA256, RSA_PKCS1_SHA384, RSA_PKCS1_SHA512,
    RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaEncoding,
};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;

/// base64url without padding.
pub fn base64url(bytes: impl AsRef<[u8]>) -> String {
    BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A key that signs tokens.
pub struct Signer {
    /// Its `kid`.
    pub id: &'static str,
    key: Key,
}

enum Key {
    Rsa(Box<RsaKeyPair>),
    Ec { pair: Box<EcdsaKeyPair>, curve: &'static str },
    Ed25519(Ed25519KeyPair),
}

impl Signer {
    /// An RSA key of 2048 bits.
    pub fn rsa(id: &'static str) -> Self {
        Self { id, key: Key::Rsa(Box::new(RsaKeyPair::generate(KeySize::Rsa2048).expect("an RSA key"))) }
    }

    /// A key on `P-256`, `P-384` or `P-521`.
    pub fn ec(id: &'static str, curve: &'static str) -> Self {
        let algorithm: &'static EcdsaSigningAlgorithm = match curve {
            "P-256" => &ECDSA_P256_SHA256_FIXED_SIGNING,
            "P-384" => &ECDSA_P384_SHA384_FIXED_SIGNING,
            _ => &ECDSA_P521_SHA512_FIXED_SIGNING,
        };
        let pair = Box::new(EcdsaKeyPair::generate(algorithm).expect("an EC key"));
        Self { id, key: Key::Ec { pair, curve } }
    }

    /// An Ed25519 key.
    pub fn ed25519(id: &'static str) -> Self {
        Self { id, key: Key::Ed25519(Ed25519KeyPair::generate().expect("an Ed25519 key")) }
    }

    /// The public key's fields as in a JWK, without `kid` and `alg`.
    pub fn fields(&self) -> String {
        match &self.key {
            Key::Rsa(pair) => {
                let (modulus, exponent) = rsa_numbers(pair.public_key().as_ref());
                format!(r#""kty":"RSA","n":"{}","e":"{}""#, base64url(modulus), base64url(exponent))
            }
            Key::Ec { pair, curve } => {
                let point = &pair.public_key().as_ref()[1..];
                let (x, y) = point.split_at(point.len() / 2);
                format!(r#""kty":"EC","crv":"{curve}","x":"{}","y":"{}""#, base64url(x), base64url(y))
            }
            Key::Ed25519(pair) => {
                format!(r#""kty":"OKP","crv":"Ed25519","x":"{}""#, base64url(pair.public_key().as_ref()))
            }
        }
    }

    /// The public key as a JWK with its `kid`.
    pub fn jwk(&self) -> String {
        format!(r#"{{{},"kid":"{}"}}"#, self.fields(), self.id)
    }

    /// Returns its default signing algorithm.
    pub fn algorithm(&self) -> &'static str {
        match &self.key {
            Key::Rsa(_) => "RS256",
            Key::Ec { curve: "P-256", .. } => "ES256",
            Key::Ec { curve: "P-384", .. } => "ES384",
            Key::Ec { .. } => "ES512",
            Key::Ed25519(_) => "EdDSA",
        }
    }

    /// A token with this payload.
    pub fn token(&self, payload: &str) -> String {
        let header = format!(r#"{{"alg":"{}","kid":"{}","typ":"JWT"}}"#, self.algorithm(), self.id);
        self.signed(&header, payload)
    }

    /// Returns a token with this header and payload, signed with this key, whatever `alg` is.
    pub fn signed(&self, header: &str, payload: &str) -> String {
        self.signed_by(self.algorithm(), header, payload)
    }

    /// A token with this header and payload, signed with an algorithm of the key's type.
    pub fn signed_by(&self, algorithm: &str, header: &str, payload: &str) -> String {
        let input = format!("{}.{}", base64url(header), base64url(payload));
        let signature = self.signature(algorithm, input.as_bytes());
        format!("{input}.{}", base64url(signature))
    }

    /// The signature of some bytes.
    pub fn signature(&self, algorithm: &str, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match &self.key {
            Key::Rsa(pair) => {
                let encoding: &'static dyn RsaEncoding = match algorithm {
                    "RS384" => &RSA_PKCS1_SHA384,
                    "RS512" => &RSA_PKCS1_SHA512,
                    "PS256" => &RSA_PSS_SHA256,
                    "PS384" => &RSA_PSS_SHA384,
                    "PS512" => &RSA_PSS_SHA512,
                    _ => &RSA_PKCS1_SHA256,
                };
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(encoding, &random, message, &mut signature).expect("a signature");
                signature
            }
            Key::Ec { pair, .. } => pair.sign(&random, message).expect("a signature").as_ref().to_vec(),
            Key::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
        }
    }
}

/// A key set.
pub fn jwks(signers: &[&Signer]) -> String {
    let keys: Vec<_> = signers.iter().map(|signer| signer.jwk()).collect();
    format!(r#"{{"keys":[{}]}}"#, keys.join(","))
}

/// Modulus and exponent of an `RSAPublicKey` in DER (RFC 8017 appendix A.1.1).
fn rsa_numbers(der: &[u8]) -> (&[u8], &[u8]) {
    let (sequence, _) = element(der);
    let (modulus, rest) = element(sequence);
    let (exponent, _) = element(rest);
    (modulus.strip_prefix(&[0]).unwrap_or(modulus), exponent)
}

/// The content of the first element, and what follows it.
fn element(der: &[u8]) -> (&[u8], &[u8]) {
    let (length, start) = match der[1] {
        short @ 0..=0x7f => (usize::from(short), 2),
        long => {
            let count = usize::from(long & 0x7f);
            let bytes = &der[2..2 + count];
            (bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte)), 2 + count)
        }
    };
    der[start..].split_at(length)
}
