//! Loads for measurements, and the servers that answer them.
//!
//! [`open_loop`] sends requests when they are due, whatever the answers do; [`streams`] receives bytes as fast as they come;
//! [`http2_client`] opens streams one after the other. The servers of [`backend`] are as cheap as possible, so that what is between a
//! load and them is the bottleneck. All of it is single-threaded and blocks in epoll(7), so that a caller decides on which core it runs.

#![forbid(unsafe_code)]

pub mod backend;
pub mod epoll;
mod error;
pub mod frames;
pub mod http2_client;
pub mod open_loop;
mod requests;
pub mod streams;

pub use error::LoadError;
pub use requests::{Requests, Work, answer_end};
