//! The history of the configuration and of what each proxy ran: kept in the state directory, and replayed to answer queries.
//!
//! Resources are a function of the files, the assigned addresses and the proxy, so it is enough to keep those. The log holds
//! the texts of files (without Secrets), and `replay` runs the same code over them and so produces the same bytes that
//! proxies were sent. [`answer`] is what `evenkeel history` prints, from a directory or from a running control plane.

pub mod answer;
mod applied;
mod error;
pub mod log;
pub mod object;
pub mod past;
pub mod recall;
mod redact;
mod replay;
mod seen;
#[cfg(test)]
mod tests;
pub mod timeline;

pub use answer::{HistoryQuery, answer};
pub use error::HistoryError;
pub use log::{EventLog, Refused, Run, Running};
pub use past::{Past, ResourceAt};
