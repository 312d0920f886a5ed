//! The JSON form of protobuf messages, with the field names of the `.proto` files as Envoy prints them, and reading
//! it back from YAML or JSON text with positions.

mod read;
mod write;

pub use read::{Read, read_message, read_text};
pub use write::{any_to_json, message_to_json, to_json};
