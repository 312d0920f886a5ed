//! String, header, query and address matchers shared by routes and RBAC
//! (`envoy.type.matcher.v3.StringMatcher`, `envoy.config.route.v3.HeaderMatcher`).

use std::net::IpAddr;

use ipnet::IpNet;
use regex::bytes::Regex;

/// `envoy.type.matcher.v3.StringMatcher`, compiled. With `ignore_case` the patterns are stored in lower case.
#[derive(Debug, Clone)]
pub enum StringMatcher {
    /// The whole value.
    Exact { /** Expected value. */ value: Box<[u8]>, /** ASCII case-insensitive. */ ignore_case: bool },
    /// A prefix of the value.
    Prefix { /** Expected prefix. */ value: Box<[u8]>, /** ASCII case-insensitive. */ ignore_case: bool },
    /// A suffix of the value.
    Suffix { /** Expected suffix. */ value: Box<[u8]>, /** ASCII case-insensitive. */ ignore_case: bool },
    /// A part of the value.
    Contains { /** Expected part. */ value: Box<[u8]>, /** ASCII case-insensitive. */ ignore_case: bool },
    /// RE2-style regular expression over the whole value (anchored at both ends).
    Regex(Regex),
}

/// `envoy.config.route.v3.HeaderMatcher`. A pseudo header name (`:method`, `:path`, `:authority`, `:scheme`) is resolved
/// by the request view.
#[derive(Debug, Clone)]
pub struct HeaderMatcher {
    /// Lower-case header name.
    pub name: Box<str>,
    /// What the value must be.
    pub value: HeaderValueMatcher,
    /// The match is inverted.
    pub invert: bool,
    /// An absent header is treated as an empty value.
    pub treat_missing_as_empty: bool,
}

/// What a header's value must be. Several values of one name are joined with `,` first, as Envoy does.
#[derive(Debug, Clone)]
pub enum HeaderValueMatcher {
    /// The header is there (`true`) or is absent (`false`).
    Present(bool),
    /// The value matches.
    String(StringMatcher),
    /// The value is a whole number within `[start, end)`.
    Range { /** First value inside. */ start: i64, /** First value beyond. */ end: i64 },
}

/// `envoy.config.route.v3.QueryParameterMatcher`.
#[derive(Debug, Clone)]
pub struct QueryParameterMatcher {
    /// Parameter name, compared as it stands in the query string.
    pub name: Box<str>,
    /// `None`: the parameter only has to be present.
    pub value: Option<StringMatcher>,
}

/// A set of CIDR ranges.
#[derive(Debug, Clone, Default)]
pub struct CidrSet(pub Vec<IpNet>);

impl CidrSet {
    /// Whether `address` lies in one of the ranges. IPv4-mapped IPv6 addresses count as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(&address))
    }
}
