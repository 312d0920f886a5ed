//! The HTTP connection manager. [`phases`] is a request's life from top to bottom; the other files are its parts.

mod active_stream;
pub(crate) mod affinity;
pub(crate) mod call;
mod clock;
mod collect;
mod connection;
mod context;
mod decide;
mod downstream;
mod edits;
mod exchange;
mod failure;
mod filters;
mod forward;
mod framed;
mod grpc;
mod hold;
mod http1;
mod http2;
mod lending;
mod log;
mod mirror;
mod pause;
mod phases;
mod reply;
mod request;
mod respond;
mod retry;
mod streamed;
mod try_filters;
mod upstream;
mod websocket;

pub(crate) use connection::serve;
pub(crate) use edits::add_headers;
pub(crate) use failure::Failure;
