//! A long-running process and its environment: [`signals`] it receives; the service [`manager`] that it reports to; the same
//! protocol as a supervisor receives it from a [`service`]; protection of its memory ([`secrets`]); how its [`children`] end with
//! it; its [`resources`]; what it gives up by itself ([`confinement`]).

pub mod children;
pub mod confinement;
pub mod manager;
pub mod resources;
pub mod secrets;
pub mod service;
pub mod signals;
