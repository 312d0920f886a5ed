//! Types that all crates use: positions in files, sources of objects, diagnostics, YAML with spans, durations, SPIFFE ids, CIDRs,
//! limits.

#![forbid(unsafe_code)]
// Nothing here panics on bytes from outside: states that should be impossible are errors, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod cidr;
pub mod diagnostic;
pub mod duration;
pub mod files;
pub mod grpc;
pub mod hostname;
pub mod limits;
pub mod line_diff;
pub mod local_host;
pub mod mutual_addresses;
pub mod re2;
mod render;
pub mod replica;
pub mod runtime_key;
pub mod source;
pub mod span;
pub mod spiffe;
pub mod suggest;
pub mod terminal;
pub mod yaml;

pub use diagnostic::{Diagnostic, Diagnostics, Severity};
pub use render::Sources;
pub use source::{ObjectRef, Rank, SourceId};
pub use span::{APPLIED_FROM, Span, Spanned};
