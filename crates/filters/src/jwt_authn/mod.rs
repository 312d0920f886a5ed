//! `envoy.filters.http.jwt_authn`: requests have to carry valid tokens (JWT).
//!
//! [`filter`] finds what a request needs and answers those that do not have it; `places` finds tokens in a request;
//! `judge` evaluates a requirement; `accepted` is what a valid token comes to, kept by `cache`; `remote` has the keys
//! of issuers that publish them.

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
