//! The control plane process: sources → snapshot → pushes → connections; debug pages.
//!
//! ```text
//! source (directories, feeds), each in its lane        what the objects are, and when a change takes effect
//!         └──────────► configuration ──► world         take over, build the Snapshot, publish
//!                                         │
//!            proxies (translate::Translator: which resources each proxy holds; one set per class, one notice per stream)
//!                                         │
//!   discovery (which clients may subscribe) ─ xds::server (what to send next) ─ listen (15010 plaintext, 15012 TLS)
//!   registration (WorkloadEntries of workloads that register themselves)
//!   authorities (who signs, which roots are trusted)
//!   certificates (Istio's certificate service)        debug (15014: metrics, readiness, pages)
//!   webhooks (15017: sidecars for Pods, configuration before it is stored)
//! ```
//!
//! [`server::run`] wires all of these together.

#![forbid(unsafe_code)]

pub mod authentication;
pub mod authorities;
pub mod barrier;
pub mod certificates;
mod clients;
pub mod configuration;
pub mod debug;
pub mod discovery;
mod environment;
mod external_signer;
mod federation;
pub mod history;
pub mod jwks;
pub mod listen;
pub mod memory;
mod mesh_roots;
pub mod metrics;
pub mod noticed;
mod observe;
pub mod options;
mod places;
mod platform;
mod process_metrics;
pub mod proxies;
pub mod publish;
pub mod quota;
pub mod registration;
mod scope;
pub mod server;
pub mod server_certificate;
mod shrunk;
pub mod source;
pub mod tasks;
pub mod webhooks;
pub mod world;

pub use external_signer::{ClusterSigner, ExternalSigners, Signed, SignerOptions};
pub use mesh_roots::MeshRoots;
pub use options::Options;
pub use platform::Platform;
pub use server::{ControlError, ControlPlane, run, run_on};
