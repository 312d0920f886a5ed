//! YAML 1.2 (and so JSON) as a tree that knows where each value was written.

mod node;
mod parse;
mod scalar;
#[cfg(test)]
mod tests;

pub use node::{Entry, Mapping, Node, Scalar, ScalarType, Value};
pub use parse::{Parsed, parse, parse_all, parse_as_envoy, parse_within};
