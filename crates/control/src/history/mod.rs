//! What was written when, and what each proxy ran: kept in the state directory, and played back.
//!
//! Resources are a function of the files, the addresses allotted so far and the proxy. So it is enough to keep those: the
//! log holds texts of files (those of Secrets are left out), and `replay` makes from them, by the same code, the same bytes that proxies were sent.
//! [`answer`] is what `evenkeel history` prints, of a directory or of a running control plane.

pub mod answer;
mod error;
pub mod log;
pub mod past;
mod redact;
mod replay;
mod seen;
#[cfg(test)]
mod tests;

pub use answer::answer;
pub use error::HistoryError;
pub use log::{EventLog, Refused, Run, Running};
pub use past::{Past, ResourceAt};
