//! The mesh's certificate authority: root, signing, workload tokens, trust bundle.
//!
//! [`Authority`] signs workload certificates for identities that its caller has authenticated. [`rotation`] changes from one
//! authority to the next without an outage. [`tokens::TokenKey`] issues and verifies the tokens with which workloads
//! authenticate. Both keep their key in the state directory, in a file that only its owner can read. The time is always an
//! argument.

#![forbid(unsafe_code)]

pub mod authority;
mod csr;
pub mod external;
pub mod files;
mod plugged;
pub mod rotation;
pub mod tokens;

pub use authority::{Authority, DEFAULT_TTL, IssuedCertificate, MAX_TTL, MIN_TTL, ServerCertificate, SignError};
pub use csr::CsrError;
pub use evenkeel_store::SecretError as KeyFileError;
pub use files::AuthorityError;
pub use plugged::{CERT_CHAIN_FILE, CRL_FILE, PluggedFiles, ROOT_CERT_FILE};
pub use tokens::{TokenError, TokenKey, Workload};
