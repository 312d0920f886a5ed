//! `RouteAction.HashPolicy`, compiled: what of a request its hash is made of.

use regex::bytes::Regex;

use crate::cookie::Cookie;

/// Hash policies, in order. The hashes of those that apply are combined.
pub type HashPolicies = Vec<HashPolicy>;

/// One policy.
#[derive(Debug)]
pub struct HashPolicy {
    /// What is hashed.
    pub source: HashSource,
    /// When there is a hash after this one, the policies that follow are left aside.
    pub terminal: bool,
}

/// What is hashed.
#[derive(Debug)]
pub enum HashSource {
    /// The values of a header.
    Header {
        /// Name (lower case).
        name: Box<str>,
        /// Pattern and substitution each value is rewritten by.
        rewrite: Option<(Regex, Box<str>)>,
    },
    /// The value of a cookie, which is made when the client has none and `ttl_seconds` is given.
    Cookie(Cookie),
    /// The client's address.
    SourceIp,
    /// The first value of a query parameter.
    QueryParameter(Box<str>),
}
