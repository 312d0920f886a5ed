//! Fuzz targets: every parser of external input, each as a function of bytes that panics when an invariant is violated.
//!
//! Two drivers call them. `cargo fuzz` (folder `fuzz/`, nightly toolchain) is guided by coverage and runs for as long as you like.
//! [`mutate`] is used by `make test` on a stable toolchain: it runs a fixed number of mutations of each target's seeds, the same
//! ones every time.

#![forbid(unsafe_code)]

pub mod mutate;
pub mod targets;
