//! The one cryptography provider: aws-lc-rs, with the suites in our order.

use std::sync::{Arc, OnceLock};

use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};

/// The provider, made once per process. X25519MLKEM768 is its first key exchange group.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    static PROVIDER: OnceLock<Arc<CryptoProvider>> = OnceLock::new();
    let make = || {
        let mut provider = aws_lc_rs::default_provider();
        // AES-128-GCM comes first, as in Envoy on machines with AES instructions. It needs fewer rounds than AES-256,
        // rustls' first choice, and the P-256 identities are not stronger.
        provider.cipher_suites.sort_by_key(|suite| *suite != cipher_suite::TLS13_AES_128_GCM_SHA256);
        Arc::new(provider)
    };
    PROVIDER.get_or_init(make).clone()
}

#[cfg(test)]
mod tests {
    /// With it, a process would spend some 400 million instructions at its first handshake, while all connections of that
    /// worker wait.
    #[test]
    fn aws_lc_is_built_without_the_processors_jitter() {
        let _linked = super::provider();
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let program = String::from_utf8_lossy(&program);
        // The names of functions are backwards here, so that they are not in the program for being looked for.
        let has = |name: &str| program.contains(&name.chars().rev().collect::<String>());
        assert!(has("dnarsys_OTPYRC"), "this program has no names of AWS-LC's functions");
        assert!(!has("yportne_daer_tnej"), "AWS_LC_SYS_NO_JITTER_ENTROPY is not set: see .cargo/config.toml");
    }
}
