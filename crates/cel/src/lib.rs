//! Expressions of the Common Expression Language (CEL) over [attributes] of requests and connections, under Envoy's names.
//!
//! An [`Expression`] is compiled when a configuration arrives, and [evaluated](Expression::evaluate) for each request or connection. Parsing
//! is the crate `cel`'s. Evaluation is ours: it counts its steps and ends after [`MAX_STEPS`], never panics, and asks for those attributes
//! only that the expression names.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing))]

pub mod attributes;
mod compile;
mod evaluate;
mod functions;
mod operators;
#[cfg(test)]
mod tests;
mod time;
mod tree;
mod value;

pub use compile::{CompileError, MAX_BYTES, MAX_DEPTH, MAX_NODES};
pub use evaluate::Attributes;
pub use tree::{Attribute, Expression};
pub use value::{Failure, MAX_STEPS, Value};
