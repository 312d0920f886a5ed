//! Tests against a real API server.

mod fixture;
mod lease;
mod status;
mod token_review;
