//! The one cryptography provider: aws-lc-rs, with the suites in our order.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
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
        if SERVES.load(Relaxed) {
            gather_entropy(&provider);
        }
        Arc::new(provider)
    };
    PROVIDER.get_or_init(make).clone()
}

/// Whether the process is a server: see [`will_serve`].
static SERVES: AtomicBool = AtomicBool::new(false);

/// Has the random generator seeded as soon as TLS is configured, instead of during the first handshake. For servers only: AWS-LC
/// aborts a process that exits while a thread seeds the generator, as a short command would.
pub fn will_serve() {
    SERVES.store(true, Relaxed);
}

/// Draws a first random byte on a thread of its own. AWS-LC seeds its generator from the processor's jitter then, which takes some
/// 400 million instructions; a worker's first handshake would do it otherwise, while all of the worker's connections wait.
fn gather_entropy(provider: &CryptoProvider) {
    let random = provider.secure_random;
    // Without the thread, and if the generator fails, the first handshake tries it.
    let _ = std::thread::Builder::new().name("entropy".into()).spawn(move || random.fill(&mut [0]));
}
