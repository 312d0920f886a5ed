//! `evenkeel lab`: how fast, and at what cost, a change reaches every proxy.
//!
//! ```text
//!  mesh      YAML, one file per service ──► directory ──► server     the control plane under test, a child process
//!                                                           │ ADS
//!            changes  what each change must bring ◄── fleet of proxies   thousands, one task each (wire, resources)
//!                                                           └─── gateway  a real `evenkeel proxy`, called over HTTP
//!  scenario  what is played on this stage ──► results ──► table, JSON, plot
//! ```
//!
//! The server is driven from outside only: it sees files and xDS clients, and is measured from `/proc`. So any other xDS
//! server can stand in its place.

mod bars;
mod changes;
mod command;
mod error;
mod figures;
mod fleet;
mod mesh;
mod options;
mod output;
mod plot;
mod process;
mod progress;
mod proxy;
mod real_proxy;
mod report;
mod resources;
pub mod results;
mod run;
mod scenario;
mod server;
pub mod statistics;
mod table;
mod testbed;
mod types;
mod wire;

pub use command::Command;
pub use error::LabError;
pub use options::{Options, Output};
pub use run::run;
