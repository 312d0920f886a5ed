//! Tests against a real API server.

/// What every backend of the store does.
#[path = "../../../store/tests/it/backend.rs"]
mod backend;
mod fixture;
mod lease;
mod replica;
mod status;
mod store_backend;
mod token_review;
