//! The control plane process: sources to snapshot to push queue to connections; debug endpoints.
//!
//! ```text
//! source::files ─ source::watch ─ source::debounce     what is written, and when it is acted on
//!         └──────────► configuration ──► world         read, build the Snapshot, publish
//!                                         │
//!            proxies (translate::Translator: who is to hold what; one set per class, one notice per stream)
//!                                         │
//!   discovery (who may ask) ─ xds::server (what to send next) ─ listen (15010 plain, 15012 TLS)
//!   certificates (Istio's certificate service)        debug (15014: metrics, readiness, pages)
//! ```
//!
//! [`server::run`] wires these together and nothing else does.

#![forbid(unsafe_code)]

pub mod certificates;
mod clients;
pub mod configuration;
pub mod debug;
pub mod discovery;
pub mod history;
pub mod lease;
pub mod listen;
pub mod memory;
pub mod metrics;
mod observe;
pub mod options;
mod process_metrics;
pub mod proxies;
pub mod publish;
pub mod quota;
mod scope;
pub mod server;
pub mod server_certificate;
mod shrunk;
pub mod source;
pub mod world;

pub use options::Options;
pub use server::{ControlError, ControlPlane, run};
