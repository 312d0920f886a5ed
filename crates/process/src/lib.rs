//! A long-running process and its environment: the [`signals`] it receives; the service [`manager`] that it reports to, and
//! the receiving side of that protocol for a supervisor ([`service`]); protection of its memory ([`secrets`]); [`children`]
//! that end with it; its [`resources`]; and its [`confinement`]. Also the [`newest`] connections of a listener to anybody, and
//! pages compressed for clients ([`gzip`]).

pub mod children;
pub mod confinement;
pub mod gzip;
pub mod manager;
pub mod newest;
pub mod resources;
pub mod secrets;
pub mod service;
pub mod signals;
