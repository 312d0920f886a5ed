//! The proxy: workers, balance, listeners, request phases, upstream pools, access log, xDS subscription, admin.
//!
//! Start with [`run`](mod@run), which wires it all: one control thread (`state`, `subscribe`, `dns`, `admin`) builds the
//! configuration and hands it to the threads of the [`pool`], which serve.

// Nothing here panics on bytes from outside: what cannot be is an error, too.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used, clippy::panic))]

pub mod access_log;
mod admin;
pub mod balance;
pub mod bootstrap;
pub mod callouts;
mod certificate_files;
mod control_stats;
mod dns;
pub mod handover;
mod http;
mod inherit;
mod listener;
pub mod logging;
pub mod memory;
pub mod options;
mod overload;
pub mod pool;
mod readiness;
pub mod run;
mod scope;
mod settle;
mod state;
mod stats;
pub mod stderr;
mod subscribe;
mod tcp;
mod worker;

pub use options::{Options, Settings};
pub use run::{Place, Program, RunError, run, run_in, run_until};
