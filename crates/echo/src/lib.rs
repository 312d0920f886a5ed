//! Echo servers as Fortio's, for load tests and for workloads of examples.
//!
//! [`options`] says which ports there are. [`http`] echoes requests, with delays, statuses and sizes that their query names
//! ([`choices`]); [`grpc`] answers pings and health checks on the same connections; [`streams`] echoes TCP and UDP, and forwards
//! connections.

#![forbid(unsafe_code)]

mod choices;
mod grpc;
mod http;
mod options;
mod serve;
mod streams;

pub use options::EchoArguments;
pub use serve::{Error, run};
