//! What a long-running process is told by who runs it, and what it tells: [`signals`], the [`manager`] that started it, and, of
//! one that itself starts others, what such a [`service`] says; and that nobody else is told ([`secrets`]).

pub mod manager;
pub mod secrets;
pub mod service;
pub mod signals;
