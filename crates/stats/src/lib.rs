//! Per-worker counters, gauges and histograms; Prometheus text.
//!
//! A [`Scope`] is a named group of metrics (one cluster, one listener) with a fixed [`Layout`]. Every thread that counts in
//! it asks for its own [`Writer`], a shard nobody else writes, so counting is a plain load and store: no lock, no
//! read-modify-write, no shared cache line. A scrape adds the shards up. The registry holds scopes weakly: a scope whose last
//! owner is gone (its cluster was removed) is no longer reported.

#![forbid(unsafe_code)]
// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

mod histogram;
mod layout;
mod registry;
mod render;
mod scope;

pub use histogram::{BUCKET_BOUNDS, HistogramSnapshot};
pub use layout::Layout;
pub use registry::{Registry, Sample, Value};
pub use scope::{Scope, ScopeName, Writer};
