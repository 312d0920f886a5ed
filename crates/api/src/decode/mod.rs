//! Decodes YAML nodes into typed values, and reports every mistake.
//!
//! A struct is declared with `object!`, an enumeration with `choices!`. Each field of the original API appears in the
//! table of its struct: either with the Rust field it fills, or in one of the lists of what is known but does not work.

mod context;
#[macro_use]
pub(crate) mod macros;
mod protobuf_json;
mod schema;
mod values;

pub use context::Context;
pub(crate) use protobuf_json::documented;
pub use schema::{Field, Schema, Status};
pub(crate) use values::parsed;
pub use values::{
    AnyFields, Anything, Decimal, HeaderName, IntOrString, Key, Label, MatchName, Port, Quantity, QuotedPort, RegexText,
};

use evenkeel_base::yaml::Node;

/// A type that can be read from YAML.
pub trait Decode: Sized {
    /// What values are accepted.
    fn schema() -> Schema;

    /// Reads it. `None` = it cannot be used, and at least one error says why.
    fn decode(node: &Node, cx: &mut Context) -> Option<Self>;

    /// The value of a field that is not there. `None` = the field is required.
    fn absent() -> Option<Self> {
        None
    }
}
