//! HTTP/1 and HTTP/2 ([`h2`]) codecs without I/O, paths and their normalization, bodies, upgrades.
//!
//! The codecs turn bytes into heads and body ranges, and heads and body pieces into bytes. A head is copied once into an arena that is
//! reused from message to message ([`Headers`]), so a codec in its steady state allocates nothing. Framing is never passed on:
//! parsing removes it (`content-length`, `transfer-encoding`, `connection`) and encoding generates it, so two peers cannot
//! disagree about where a message ends.

#![forbid(unsafe_code)]
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
pub use headers::{Headers, reads_as};
pub use names::HeaderId;
pub use parse::{
    HeadScan, Limits, RequestInfo, RequestRules, ResponseInfo, ResponseRules, parse_request, parse_response,
};
pub use underscores::Underscores;
