//! The proxy's heap: for idle connections, for slow ones, and after thousands of configuration changes. A separate binary,
//! because the allocator sees everything a process does; its tests take turns.

use std::sync::{Mutex, MutexGuard, PoisonError};

use evenkeel_testkit::{Identity, TestCa};

mod counting;
#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "shared with the other test binary, which uses all of it")]
mod harness;
mod idle;
mod slow;
mod swaps;

/// Held by the test that is measuring.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The transport socket of a filter chain that asks for certificates of `ca`.
fn mutual_tls(ca: &TestCa, server: &Identity) -> String {
    format!(
        r#"  transport_socket:
    name: tls
    typed_config:
      "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext
      require_client_certificate: true
      common_tls_context:
        tls_certificates:
        - certificate_chain: {{inline_string: {:?}}}
          private_key: {{inline_string: {:?}}}
        validation_context: {{trusted_ca: {{inline_string: {:?}}}}}
"#,
        server.cert_pem,
        server.key_pem,
        ca.root_pem(),
    )
}
