//! Limiters that any number of threads share, each exact: what all of them take together is never more than the limit allows, and no lock is
//! held. The time is an argument; there is no clock here.
//!
//! - [`TokenBucket`]: so many tokens in a time, and a burst (Envoy's `envoy.type.v3.TokenBucket`).
//! - [`Window`]: so many in each window of time, as the rate limit protocol counts them (`RateLimit.unit`).
//! - [`Places`]: so many at a time.

#![forbid(unsafe_code)]

mod places;
mod token_bucket;
mod window;

pub use places::Places;
pub use token_bucket::{Refill, TokenBucket};
pub use window::{Used, Window};
