//! Tests against a real API server.

mod addresses;
/// What every backend of the store does.
#[path = "../../../store/tests/it/backend.rs"]
mod backend;
mod certificate_requests;
mod cluster;
mod discovery;
mod fixture;
mod gateway_status;
mod gateways;
mod interruptions;
mod lease;
mod mesh;
mod objects;
mod ownership;
mod parity;
mod port_forward;
mod remote;
mod replica;
mod revisions;
mod root_certificates;
mod secrets;
mod serving;
mod status;
mod store_backend;
mod token_review;
mod webhooks;
