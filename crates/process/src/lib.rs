//! What a long-running process is told by who runs it, and what it tells: [`signals`], the [`manager`] that started it, and, of
//! one that itself starts others, what such a [`service`] says; and that nobody else is told ([`secrets`]); how its [`children`] end with it, and its [`resources`].

pub mod children;
pub mod manager;
pub mod resources;
pub mod secrets;
pub mod service;
pub mod signals;
