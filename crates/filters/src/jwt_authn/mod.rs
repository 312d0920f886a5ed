//! `envoy.filters.http.jwt_authn`: requests have to carry valid tokens (JWT).
//!
//! [`filter`] finds the requirement of a request and answers requests that do not meet it; `places` finds tokens in a
//! request; `judge` evaluates a requirement; `accepted` has the effects of a valid token, kept by `cache`; `remote` fetches
//! the keys of issuers that publish them.

mod accepted;
mod cache;
mod counts;
mod filter;
mod judge;
mod places;
mod remote;
#[cfg(test)]
mod tests;

pub use filter::HttpFilter;
