//! The access log: one [`Record`] per request or connection is formatted as configured, and written to files by one
//! background thread or sent to services ([`grpc`]).
//!
//! A worker formats into its own buffer and hands it over when it is full or a second old, or as set by options
//! ([`FlushOptions`]); the request path never waits for a file or a service.

mod filter;
mod grpc;
mod writer;

use evenkeel_filters::format::Record;
use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_upstream::turn;
use tokio::time::Instant;

use crate::clock::wall_clock;

pub use filter::admits;
pub use grpc::Collectors;
pub use writer::{FlushOptions, LogHandle, LogThread, WorkerLog};

/// The record of a connection, as of now.
pub(crate) fn record_of_connection<'a>(stream: &'a StreamInfo, connection: &'a ConnectionInfo) -> Record<'a> {
    let start = wall_clock(Instant::from_std(stream.times.start()));
    Record::headless(stream, connection, (start, turn::now().into_std()))
}
