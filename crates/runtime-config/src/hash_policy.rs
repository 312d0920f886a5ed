//! `RouteAction.HashPolicy`, compiled: what the hash of a request is computed from.

use regex::bytes::Regex;

use crate::cookie::Cookie;

/// Hash policies, in order. The hashes of those that apply are combined.
pub type HashPolicies = Vec<HashPolicy>;

/// One policy.
#[derive(Debug)]
pub struct HashPolicy {
    /// What is hashed.
    pub source: HashSource,
    /// If there is a hash after this policy, the remaining ones are skipped.
    pub terminal: bool,
}

/// What is hashed.
#[derive(Debug)]
pub enum HashSource {
    /// The values of a header.
    Header {
        /// Name (lower case).
        name: Box<str>,
        /// Pattern and substitution by which each value is rewritten.
        rewrite: Option<(Regex, Box<str>)>,
    },
    /// The value of a cookie, which is generated if the client has none and `ttl_seconds` is set.
    Cookie(Cookie),
    /// The client's address.
    SourceIp,
    /// The first value of a query parameter.
    QueryParameter(Box<str>),
}
