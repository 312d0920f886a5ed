//! The record of a connection at a moment, for logs and format strings.

use evenkeel_filters::format::Record;
use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_upstream::turn;
use tokio::time::Instant;

use crate::clock::wall_clock;

/// The record of a connection, as of now.
pub(crate) fn record_of_connection<'a>(stream: &'a StreamInfo, connection: &'a ConnectionInfo) -> Record<'a> {
    let start = wall_clock(Instant::from_std(stream.times.start()));
    Record::headless(stream, connection, (start, turn::now().into_std()))
}
