//! `evenkeel bench`: published experiments with sidecars, repeated on this machine. Read [`run::Session`] first.
//!
//! An experiment is a list of cells ([`plan`]). Each cell is a load on a namespace of a mesh, which `evenkeel up` runs as a
//! child process. Samples go to a file as they are measured ([`record`]), from which tables, charts and comparisons follow.

#![forbid(unsafe_code)]

mod balance;
mod command;
mod compare;
mod error;
mod interrupt;
mod latency;
mod load;
mod machine;
mod manifests;
mod metric;
mod page;
mod plan;
mod processes;
mod progress;
mod published;
mod record;
mod run;
mod scaling;
mod setup;
mod table;
mod telemetry;
mod testbed;
mod throughput;
mod workers;

pub use command::{BenchCommand, EXAMPLES, run};
pub use error::BenchError;
