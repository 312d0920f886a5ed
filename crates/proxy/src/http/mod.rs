//! The HTTP connection manager. [`phases`] is a request's life from top to bottom; the other files are its parts.

pub(crate) mod affinity;
mod between_proxies;
pub(crate) mod call;
mod client_cert;
mod clock;
mod collect;
mod connection;
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
mod identify;
mod lending;
mod log;
mod mirror;
mod origin;
mod phases;
mod reply;
mod request;
mod respond;
mod retry;
mod streamed;
mod upstream;
mod websocket;

pub(crate) use connection::serve;
pub(crate) use edits::add_headers;
pub(crate) use failure::Failure;
pub(crate) use retry::announce_timeout;
