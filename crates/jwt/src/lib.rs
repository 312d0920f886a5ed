//! JSON Web Tokens (RFC 7519) and key sets (RFC 7517): parsing, and verification of signatures and claims. There is no
//! I/O and no clock here; bytes and the time are arguments.
//!
//! What a token says of itself never chooses how it is verified: a key is used only with the algorithms of its type,
//! curve and `alg`, and keys come from the [`Jwks`] of the caller alone. `none` is no algorithm, HMAC is never verified
//! (a key that verifies could also sign), and `jwk`, `jku`, `x5c` and `x5u` in a token's header are not read.
//!
//! [`Status`] has Envoy's names and texts, which clients see.

#![forbid(unsafe_code)]
// Nothing here panics on bytes from outside.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

mod algorithm;
mod audience;
mod base64url;
mod jwks;
mod key;
mod object;
mod status;
#[cfg(test)]
mod tests;
mod token;

pub use algorithm::Algorithm;
pub use audience::Audiences;
pub use jwks::{Jwks, JwksError, MAX_JWKS_BYTES, MAX_KEYS};
pub use key::KeyError;
pub use object::{Object, parse_object};
pub use status::Status;
pub use token::{MAX_TOKEN_BYTES, Times, Token};

/// base64url without padding, as in tokens.
pub fn base64url(bytes: &[u8]) -> String {
    use base64::Engine;
    base64::prelude::BASE64_URL_SAFE_NO_PAD.encode(bytes)
}

/// A short name for some text, the same everywhere: the first 128 bits of its SHA-256 in hexadecimal.
pub fn digest(text: &[u8]) -> String {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text);
    digest.as_ref().iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}
