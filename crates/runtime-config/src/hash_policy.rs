//! `RouteAction.HashPolicy`, compiled: what the hash of a request is computed from.

use evenkeel_base::re2::Regex;

use crate::cookie::Cookie;

/// Hash policies, in order. The hashes of those that apply are combined.
pub type HashPolicies = Vec<HashPolicy>;

/// One policy.
#[derive(Debug)]
pub struct HashPolicy {
    /// The input of the hash.
    pub source: HashSource,
    /// Whether the remaining policies are skipped if there is a hash after this one.
    pub terminal: bool,
}

/// The input of a hash.
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
