//! The HTTP connection manager. [`phases`] is a request's life from top to bottom; the other files are its parts.

mod connection;
mod edits;
mod exchange;
mod failure;
mod identify;
mod log;
mod phases;
mod reply;
mod request;
mod retry;
mod upgrade;

pub(crate) use phases::serve;
