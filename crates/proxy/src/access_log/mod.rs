//! The access log: one [`Record`] per request or connection, formatted as configured, written by one background thread.
//!
//! A worker formats into a buffer of its own and hands it over when it is full or a second old, as Envoy does; the
//! request path never waits for a file.

mod filter;
mod format;
mod record;
mod time;
mod writer;

pub use filter::admits;
pub use format::{format, format_header, format_line};
pub use record::{HeadLookup, NoHead, Record};
pub use writer::{LogHandle, LogThread, WorkerLog};
