//! Envoy xDS v3: protobuf types, JSON form, ADS state machines without I/O, thin client and server.
//!
//! ```text
//!  pb, istio, scope     generated types
//!  resource             a named, versioned resource, encoded once
//!  resource_set         all resources that one proxy should hold: persistent, cheap to copy and to compare
//!  schema, fields, json descriptors: which fields are set, protobuf JSON in and out
//!  server::{delta,sotw} what to send next on one stream        (no I/O, no clock)
//!  client::{delta,sotw} what to subscribe to, what was accepted (no I/O, no clock)
//!  evenkeel             Evenkeel's extensions between proxy and control plane: ages, digests, refusals by name
//!  server::service, client::connection   the same over gRPC
//! ```

#![forbid(unsafe_code)]
// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod ages;
pub mod client;
pub mod digest;
pub mod evenkeel;
pub mod fields;
pub mod istio;
pub mod json;
pub mod metadata;
mod references;
pub mod resource;
pub mod resource_set;
pub mod schema;
pub mod scope;
pub mod server;
#[cfg(test)]
mod simulation;
pub mod type_url;
pub mod typed_struct;

pub use evenkeel_envoy_api as pb;
pub use fields::{UnsupportedField, check_supported};
pub use metadata::Cause;
pub use resource::{Resource, ResourceType, Version};
pub use resource_set::{Difference, ResourceSet};
pub use schema::Schema;

/// The well-known wrapper every xDS resource and extension travels in.
pub use pb::google::protobuf::Any;

/// Wraps a message under its `type.googleapis.com/…` type URL.
pub fn pack<M: prost::Name>(message: &M) -> Any {
    Any { type_url: type_url::of::<M>(), value: message.encode_to_vec() }
}

/// Unwraps a message, checking that the type URL names `M`.
pub fn unpack<M: prost::Name + Default>(any: &Any) -> Result<M, UnpackError> {
    let name = type_url::message_name(&any.type_url);
    if name != M::full_name() {
        return Err(UnpackError::Type { expected: M::full_name(), found: any.type_url.clone() });
    }
    M::decode(&*any.value).map_err(|source| UnpackError::Decode { message: M::full_name(), source })
}

/// Why an [`Any`] does not contain the expected message.
#[derive(Debug, thiserror::Error)]
pub enum UnpackError {
    /// It contains another message.
    #[error("expected a {expected}, found type URL {found:?}")]
    Type {
        /// Full name of the expected message.
        expected: String,
        /// The type URL found.
        found: String,
    },
    /// The bytes are not that message.
    #[error("malformed {message}")]
    Decode {
        /// Full name of the expected message.
        message: String,
        /// The error of the protobuf decoder.
        source: prost::DecodeError,
    },
}
