//! The agent against a control plane made of the project's own parts: real sockets, real TLS, real Envoy.

mod bootstrap;
mod health;
mod lifecycle;
mod sds;
mod source;
mod status_port;
mod support;
mod upgrade;
