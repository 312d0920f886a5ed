//! How a long-running process communicates with whoever runs it: [`signals`] it receives, notifications to the service
//! [`manager`] that started it, and notifications from a [`service`] that it started itself. [`secrets`] keeps its
//! memory from everybody else.

pub mod manager;
pub mod secrets;
pub mod service;
pub mod signals;
