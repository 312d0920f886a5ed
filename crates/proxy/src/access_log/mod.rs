//! The access log: one [`Record`] per request or connection, formatted as configured, written by one background thread.
//!
//! A worker formats into a buffer of its own and hands it over when it is full or a second old, as Envoy does; the
//! request path never waits for a file.

mod format;
mod record;
mod time;
mod writer;

pub use format::{format, format_header, format_line};
pub use record::{HeadLookup, NoHead, Record};
pub use writer::{LogHandle, LogThread, WorkerLog};

use evenkeel_filters::ResponseFlags;
use evenkeel_runtime_config::access_log::LogFilter;

/// Whether a filter lets a record through.
fn admits(filter: &LogFilter, flags: ResponseFlags) -> bool {
    match filter {
        LogFilter::All => true,
        LogFilter::ResponseFlags(wanted) if wanted.is_empty() => !flags.is_empty(),
        LogFilter::ResponseFlags(wanted) => flags.short_names().any(|name| wanted.iter().any(|w| **w == *name)),
    }
}
