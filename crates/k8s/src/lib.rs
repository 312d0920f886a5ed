//! Kubernetes: the only crate that knows its client.

#![forbid(unsafe_code)]

pub mod lease;
pub mod replica;
pub mod status;
pub mod store_backend;
pub mod token_review;
