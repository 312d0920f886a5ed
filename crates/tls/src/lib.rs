//! rustls configuration, SPIFFE verification, SNI, certificate store.
//!
//! [`config`] describes a TLS context in Envoy's terms. [`secrets::SecretStore`] holds the certificates that contexts name; they can be
//! replaced at any time. [`DownstreamTls`] and [`UpstreamTls`] combine the two and drive handshakes. A new certificate takes effect with
//! the next handshake; existing connections keep the one they began with.
//!
//! There is one TLS stack (rustls) on one provider (aws-lc-rs), and nothing here turns signature checks off.

#![forbid(unsafe_code)]
// Nothing here panics on bytes from outside: states that should be impossible are errors, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod authorities;
pub mod chain;
pub mod config;
pub mod downstream;
pub mod error;
mod files;
pub mod hello;
pub mod identity;
pub mod peer;
mod pem_form;
pub mod pins;
mod provider;
pub mod revocation;
pub mod san;
pub mod sds;
pub mod secrets;
pub mod session;
mod signed;
pub mod slot;
pub mod stream;
mod suites;
pub mod tickets;
pub mod trust;
mod untrusted;
pub mod upstream;
mod verified_chains;
mod verify;
mod version1;

pub use chain::{ChainError, verify_chain};
pub use downstream::DownstreamTls;
pub use error::SanMismatch;
pub use error::{ConfigError, FailedHandshake, HandshakeError};
pub use files::{FileChange, read_file};
pub use hello::{ClientHello, ClientHelloReader, Inspection};
pub use identity::{Identity, IdentityError};
pub use peer::{PeerCertificate, is_host_name, printable};
pub use pem_form::pem_urlencoded;
pub use pins::{PinError, Pins};
pub use revocation::{RevocationError, RevocationLists};
pub use san::{SanKind, SanMatcher, StringPattern};
pub use sds::{SdsSecret, SdsServer};
pub use secrets::SecretStore;
pub use session::Session;
pub use stream::TlsStream;
pub use trust::{TrustBundle, TrustError};
pub use upstream::{Called, UpstreamTls};
pub use verify::optional_clients;
