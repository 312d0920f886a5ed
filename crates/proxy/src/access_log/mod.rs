//! The access log: one [`Record`] per request or connection is formatted as configured, and written to files by one
//! background thread or sent to services ([`grpc`]).
//!
//! A worker formats into its own buffer and hands it over when it is full or a second old, or as set by options
//! ([`FlushOptions`]); the request path never waits for a file or a service.

mod filter;
mod grpc;
mod writer;

use std::cell::RefCell;
use std::sync::Arc;

use evenkeel_filters::format::Record;
use evenkeel_runtime_config::access_log::AccessLog;

use crate::observers::Observer;

pub use filter::admits;
pub use grpc::Collectors;
pub use writer::{FlushOptions, LogHandle, LogThread, WorkerLog};

/// Writes the entries of access logs.
pub(crate) struct Lines<'l, L> {
    pub(crate) log: &'l RefCell<WorkerLog>,
    pub(crate) logs: L,
}

impl<'c, L: Iterator<Item = &'c Arc<AccessLog>>> Observer for Lines<'_, L> {
    #[inline]
    fn ended(&mut self, end: &Record<'_>) {
        for log in &mut self.logs {
            self.log.borrow_mut().write(log, end);
        }
    }
}
