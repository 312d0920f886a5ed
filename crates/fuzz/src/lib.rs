//! What is fuzzed: everything that reads bytes from outside, each as one function of bytes that panics when a promise is broken.
//!
//! Two drivers call them. `cargo fuzz` (folder `fuzz/`, nightly toolchain) is guided by coverage and runs for as long as one likes.
//! [`mutate`] is what `make test` has on a stable toolchain: a fixed number of mutations of each target's seeds, the same ones every
//! time.

#![forbid(unsafe_code)]

pub mod mutate;
pub mod targets;
