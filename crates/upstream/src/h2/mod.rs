//! HTTP/2 connections: one driver for both roles.
//!
//! A [`Driver`](driver::Driver) owns the socket and is polled by one task: for a server, the task that accepted the
//! connection ([`Server::poll_accept`]); for a client, a task of its own ([`Client::start`]). Streams are served by
//! whatever tasks hold their [`Stream`] handles, all on the same thread. Driver and handles share [`shared::Core`]: the
//! codec, and what was received for each stream.
//!
//! Stream operations make no system calls. Their output is appended to the connection's single buffer and the driver is
//! woken, which the runtime schedules behind all tasks that are ready at that time. So the output of all those streams
//! is encrypted and written together when the driver runs: small responses to 256 requests leave in a handful of TLS
//! records.
//!
//! Back-pressure: a stream's window is released when its bytes are taken from the handle, the connection's window as
//! soon as bytes are received, so that slow streams, however many, do not stop the others ([`windows`]). What a stream
//! sends beyond its windows is queued in the handle, whose user waits for it ([`Stream::poll_sent`]); waiting streams
//! take turns.

mod client;
mod driver;
mod entry;
mod memory;
mod reset;
mod server;
mod shared;
#[cfg(test)]
mod simulation;
pub mod stats;
mod stream;
#[cfg(test)]
mod tests;
mod windows;

pub use client::{Client, Offer};
pub use driver::Limits;
pub use memory::{Chunk, give_request as recycle, trim};
pub use reset::{Reset, ResetBy};
pub use server::{Accepted, Incoming, Server};
pub use stream::{Answer, Received, Stream};
