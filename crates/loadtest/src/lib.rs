//! Load tests with Fortio's flags, output and JSON, in an open loop.
//!
//! A run goes from [`flags`] over [`setup`], which makes a [`worker::Plan`] and a [`codec::Codec`] of them, to [`run`], whose threads
//! have a [`worker`] each; [`outcome`] is what they count in a [`tally`], and [`summary`] makes the [`results`] of it. Each connection has
//! a caller with a [`schedule`] of its own, and a request's latency counts from when it was due, not from when it was sent: the time
//! that it waited for the response before it belongs to it ("coordinated omission").

#![forbid(unsafe_code)]

mod codec;
mod command;
mod compare;
mod curl;
mod error;
pub mod flags;
pub mod go_numbers;
pub mod grpc;
pub mod histogram;
mod link;
mod live;
mod outcome;
mod page;
mod request;
pub mod results;
mod run;
mod schedule;
mod serve;
mod setup;
mod summary;
mod tally;
mod target;
mod text;
mod tls;
mod transport;
mod worker;

pub use command::{LoadArguments, run};
