//! `RouteAction.HashPolicy`, compiled: what of a request its hash is made of.

use regex::bytes::Regex;

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
    /// The value of a cookie.
    Cookie(HashCookie),
    /// The client's address.
    SourceIp,
    /// The first value of a query parameter.
    QueryParameter(Box<str>),
}

/// A cookie that is hashed, and made when the client has none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HashCookie {
    /// Name.
    pub name: Box<str>,
    /// It is made when there is none, for so many seconds; 0: until the browser ends.
    pub ttl_seconds: Option<u64>,
    /// Path; empty: none.
    pub path: Box<str>,
    /// Further attributes; without a value, the name alone.
    pub attributes: Vec<(Box<str>, Box<str>)>,
}

impl HashCookie {
    /// The `set-cookie` value that gives it `value`.
    pub fn set(&self, value: &str) -> String {
        let mut text = format!("{}=\"{value}\"", self.name);
        if let Some(seconds) = self.ttl_seconds.filter(|seconds| *seconds > 0) {
            text.push_str(&format!("; Max-Age={seconds}"));
        }
        if !self.path.is_empty() {
            text.push_str("; Path=");
            text.push_str(&self.path);
        }
        for (name, value) in &self.attributes {
            text.push_str("; ");
            text.push_str(name);
            if !value.is_empty() {
                text.push('=');
                text.push_str(value);
            }
        }
        text.push_str("; HttpOnly");
        text
    }
}
