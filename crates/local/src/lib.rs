//! `evenkeel up`: a mesh on one Linux machine, without Kubernetes or containers.
//!
//! Read [`up::run`] first: it wires everything. The process the user starts stays outside and supervises the supervisor
//! ([`sandbox`]); that one, inside fresh namespaces, starts the control plane, the gateway and the replicas ([`supervisor`]).

pub mod capture;
pub mod cleanup;
pub mod client;
pub mod exec;
pub mod namespace;
pub mod network;
pub mod pods;
pub mod ports;
pub mod preflight;
pub mod probe;
pub mod process;
pub mod replica;
pub mod sandbox;
pub mod tools;
