//! Every user-facing kind: YAML with source spans to typed values and diagnostics
//!
//! Start at [`load`]. A kind is declared once, as a table of its fields ([`decode`]): the table decodes, names what is
//! unknown or not supported, and is the schema.

#[macro_use]
pub mod decode;
pub mod istio;
pub mod kubernetes;
mod load;
mod object;
mod resource;

pub use load::{load, unreadable};
pub use object::{Object, ObjectMeta, ObjectName, OwnerReference};
pub use resource::{Kind, Resource};
