//! A long-running process and its environment: [`signals`] it receives; the service [`manager`] that it reports to; the same
//! protocol as a supervisor receives it from a [`service`]; and protection of its memory ([`secrets`]).

pub mod manager;
pub mod secrets;
pub mod service;
pub mod signals;
