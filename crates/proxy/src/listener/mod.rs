//! The way from an accepted socket to the filter chain that serves it.

pub(crate) mod accept;
pub(crate) mod adopt;
mod connection;
mod detect;
mod establish;
pub(crate) mod filtered;
mod handshake;
mod inspect;
pub(crate) mod log;
mod moving;
mod options;
pub(crate) mod original_dst;
mod proxy_protocol;
mod serve;
pub(crate) mod socket;
mod unix;

pub(crate) use connection::{Downstream, MovingConnection, Terminating};
