//! Kubernetes: the only crate that knows its client.

#![forbid(unsafe_code)]

pub mod token_review;
