//! The server side of ADS: what to send next on one stream.
//!
//! [`delta::Stream`] and [`sotw::Stream`] are state machines without I/O or clock: requests, resource sets and the time
//! since the stream began go in, responses come out. At most one response per type is in flight; changes in the
//! meantime are merged, and the next response has the latest state. [`service`] connects them to gRPC.
//!
//! ```text
//!  subscription  one type: subscribed names, held resources, and their difference
//!  interest      subscribed names, for the code that changes resources
//!  refusal       resources that the client rejected: finds them, holds them back, offers them again
//!  state         the order of types (make before break), and the meaning of answers
//!  response      bytes, shared between streams
//! ```

pub mod delta;
pub mod grpc;
mod interest;
mod key;
mod published;
mod refusal;
mod response;
pub mod service;
pub mod sotw;
mod state;
mod status;
mod stream;
mod subscription;
#[cfg(test)]
mod tests;

pub use interest::{ChangedNames, Interest, Interests};
pub use published::Published;
pub use refusal::{REOFFER_FIRST, REOFFER_MAX};
pub use response::{Announcement, Response};
pub use service::{AdsServer, AdsService};
pub use status::{Divergence, Nack, NackedResource, Status, TypeStatus};
pub use stream::{Resources, Session, Source};

/// A request that the server cannot answer for its type; the stream continues.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// A type that this server does not have.
    #[error("unknown resource type {0:?}")]
    UnknownType(String),
    /// More names than one stream may subscribe to.
    #[error("more than {limit} {kind} names subscribed on one stream", limit = MAX_NAMES_PER_TYPE)]
    TooManyNames {
        /// The requested type.
        kind: crate::ResourceType,
    },
    /// A name that is too long for any resource.
    #[error("a {kind} name of {bytes} bytes; at most {limit} are accepted", limit = MAX_NAME_BYTES)]
    NameTooLong {
        /// The requested type.
        kind: crate::ResourceType,
        /// Its length.
        bytes: usize,
    },
}

/// Names one stream may subscribe to per type.
pub const MAX_NAMES_PER_TYPE: usize = 100_000;
/// Maximum length of a subscribed name, in bytes: enough for a route table and a host, or for two paths.
pub const MAX_NAME_BYTES: usize = 1024;
/// Bytes kept of a client's rejection message.
pub const MAX_NACK_BYTES: usize = 16 * 1024;
