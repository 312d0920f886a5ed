//! Kubernetes: the only crate that knows its client.

#![forbid(unsafe_code)]

pub mod certificate_requests;
pub mod client;
pub mod cluster;
mod convert;
mod definition_gaps;
mod deployed;
mod discovery;
pub mod gateways;
pub mod last_objects;
pub mod lease;
mod localities;
pub mod node_pods;
mod notes;
pub mod ownership;
pub mod pod_rules;
pub mod port_forward;
pub mod reading;
mod reason;
pub mod remote;
pub mod replica;
pub mod revision;
pub mod root_certificates;
mod secret_names;
mod secrets;
pub mod source;
pub mod status;
pub mod store_backend;
pub mod token_review;
pub mod trust_bundles;
mod watch;
mod watched;
pub mod webhooks;
