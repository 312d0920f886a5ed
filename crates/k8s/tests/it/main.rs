//! Tests against a real API server.

mod fixture;
mod token_review;
