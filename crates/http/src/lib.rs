//! HTTP/1 and HTTP/2 ([`h2`]) codecs without I/O, paths and their normalization, bodies, upgrades.
//!
//! Bytes in, heads and body ranges out; heads and body pieces in, bytes out. A head is copied once into an arena that
//! is reused from message to message ([`Headers`]), so in the steady state nothing is allocated. Framing
//! (`content-length`, `transfer-encoding`, `connection`) is never passed on: it is removed on parsing and written anew
//! on encoding, so two peers cannot disagree about where a message ends.

// Nothing here panics on bytes from outside: states that should be impossible are errors, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod body;
mod bytes;
pub mod encode;
mod error;
mod framing;
pub mod h2;
mod head;
mod headers;
mod names;
mod parse;
pub mod path;
mod underscores;

pub use body::{BodyDecoder, Decoded};
pub use error::{BodyError, HeadError};
pub use framing::Framing;
pub use head::{RequestHead, ResponseHead, Version};
pub use headers::Headers;
pub use names::HeaderId;
pub use parse::{HeadScan, Limits, RequestInfo, RequestRules, ResponseInfo, parse_request, parse_response};
pub use underscores::Underscores;
