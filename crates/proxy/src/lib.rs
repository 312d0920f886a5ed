//! The proxy: workers, load balancing between them, listeners, request phases, upstream pools, access log, xDS
//! subscription, admin.
//!
//! Start with [`run`](mod@run), which wires everything: one control thread (`state`, `subscribe`, `dns`, `admin`)
//! builds the configuration and hands it to the worker threads of the [`pool`], which serve traffic.

// Nothing here panics on external input: even states that should be impossible are handled as errors.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access_log;
mod admin;
pub mod balance;
pub mod bootstrap;
pub mod callouts;
mod certificate_files;
mod clock;
mod connection_record;
mod control_stats;
mod dns;
mod dns_cache;
mod edges;
mod endpoint_state;
pub mod handover;
mod http;
mod inherit;
mod listener;
pub mod logging;
pub mod memory;
mod observers;
pub mod options;
mod overload;
mod own_workload;
pub mod pool;
mod readiness;
pub mod recent;
mod reporters;
mod resolver;
pub mod run;
mod scope;
mod services;
mod settle;
mod state;
mod stats;
mod stats_config;
mod stats_sinks;
pub mod stderr;
mod subscribe;
pub mod tap;
mod tcp;
mod throttling;
mod udp;
mod worker;

pub use options::{Options, Settings};
pub use run::{HotRestartState, Program, RunError, run, run_in, run_until};
