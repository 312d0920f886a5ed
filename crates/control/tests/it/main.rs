//! The control plane over real sockets, with a real xDS client.

mod certificates;
mod configuration;
mod envoy;
mod fixture;
mod startup;
mod streams;
