//! `evenkeel-lab`: measures how fast, and at what cost, a change reaches every proxy.
//!
//! ```text
//!  mesh      YAML, one file per service ──► directory ──► server     the control plane under test, a child process
//!                                                           │ ADS
//!            changes  expected effect of each change ◄── fleet of proxies   thousands, one task each (wire, resources)
//!                                                           └─── gateway  a real `evenkeel proxy`, called over HTTP
//!  scenario  the sequence of changes ──► results ──► table, JSON, plot
//! ```
//!
//! The lab drives the server only from outside, with files and xDS clients, and measures it through `/proc`. Any other xDS server can
//! take its place.

#![forbid(unsafe_code)]

mod api_server;
mod bars;
mod changes;
mod command;
mod error;
mod figures;
mod fleet;
mod mesh;
mod namespace;
mod options;
mod output;
mod process;
mod progress;
mod proxy;
mod published;
mod real_proxy;
mod report;
mod resources;
pub mod results;
mod run;
mod scenario;
mod server;
mod table;
mod testbed;
mod types;
mod wire;
mod writer;

pub use command::Command;
pub use error::LabError;
pub use options::{Options, Output};
pub use run::run;
