//! HTTP/2 connections: one driver for both roles.
//!
//! A [`Driver`](driver::Driver) owns the socket, and one task polls it: a server's is the task that accepted the connection
//! ([`Server::poll_accept`]), a client's is its own ([`Client::start`]). Streams are served by whatever tasks hold their [`Stream`]
//! handles, all on the same thread. What both sides touch is [`shared::Core`]: the codec, and what was received for each stream.
//!
//! Nothing a stream does makes a system call. Its output is appended to the connection's one buffer and the driver is woken,
//! which the runtime puts behind all tasks that are ready at that time: so whatever those streams have to say is encrypted
//! and written at once, when the driver's turn comes. Small answers to 256 requests leave in a handful of TLS records.
//!
//! Back-pressure: a stream's window is given back when its bytes are taken out of the handle, the connection's when they
//! are received, so that slow streams, however many, do not stop the others ([`windows`]). What a stream sends beyond its
//! windows waits in the handle, whose user waits for it ([`Stream::poll_sent`]); streams that wait take turns.

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
