//! String, header, query and address matchers shared by routes and RBAC
//! (`envoy.type.matcher.v3.StringMatcher`, `envoy.config.route.v3.HeaderMatcher`).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::string_match::StringMatcher;
use crate::view::RequestView;

/// `envoy.config.route.v3.HeaderMatcher`. A pseudo header name (`:method`, `:path`, `:authority`, `:scheme`) is resolved
/// by the request view.
#[derive(Debug, Clone)]
pub struct HeaderMatcher {
    /// Lower-case header name.
    pub name: Box<str>,
    /// The condition on its value.
    pub value: HeaderValueMatcher,
    /// The match is inverted.
    pub invert: bool,
    /// An absent header is treated as an empty value.
    pub treat_missing_as_empty: bool,
}

/// The condition on a header's value. Of several values of one name, any may satisfy it, each by itself; inverted, none may.
#[derive(Debug, Clone)]
pub enum HeaderValueMatcher {
    /// The header is present (`true`) or absent (`false`).
    Present(bool),
    /// The value matches.
    String(StringMatcher),
    /// The value is a whole number within `[start, end)`.
    Range {
        /** First value inside. */
        start: i64,
        /** First value beyond. */
        end: i64,
    },
}

/// `envoy.config.route.v3.QueryParameterMatcher`.
#[derive(Debug, Clone)]
pub struct QueryParameterMatcher {
    /// Parameter name, compared undecoded.
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

impl HeaderMatcher {
    /// Whether the value of this header decides, and not only whether there is one.
    pub fn reads(&self, name: &str) -> bool {
        *self.name == *name && !matches!(self.value, HeaderValueMatcher::Present(_))
    }

    /// Whether the request's header matches, by any of its values. A value matcher never matches an absent header, inverted or not, unless
    /// `treat_missing_as_empty` is set.
    pub fn matches(&self, request: &impl RequestView) -> bool {
        self.judge(request.any_value(&self.name, |value| self.wants(value)))
    }

    /// Whether the header matches whichever of its values a server takes: what a rule that lets requests pass has to ask,
    /// because a further line would otherwise be a value that no rule has seen.
    pub fn matches_every(&self, request: &impl RequestView) -> bool {
        // An inverted matcher wants that no value satisfies the condition.
        if self.invert {
            self.matches(request)
        } else {
            self.judge(request.any_value(&self.name, |value| !self.wants(value)).map(|unwanted| !unwanted))
        }
    }

    /// Whether a header with these values matches; without values it is absent.
    pub fn matches_values<'v>(&self, values: impl IntoIterator<Item = &'v [u8]>) -> bool {
        let mut values = values.into_iter().peekable();
        let wanted = values.peek().is_some().then(|| values.any(|value| self.wants(value)));
        self.judge(wanted)
    }

    /// Whether the header matches by some value that a server may take: what a rule that refuses requests has to ask.
    pub fn matches_some(&self, request: &impl RequestView) -> bool {
        if self.invert {
            self.judge(request.any_value(&self.name, |value| !self.wants(value)).map(|unwanted| !unwanted))
        } else {
            self.matches(request)
        }
    }

    /// As [`Self::matches_some`], of these values.
    pub fn matches_some_value<'v>(&self, values: impl IntoIterator<Item = &'v [u8]>) -> bool {
        if !self.invert {
            return self.matches_values(values);
        }
        let mut values = values.into_iter().peekable();
        let wanted = values.peek().is_some().then(|| values.all(|value| self.wants(value)));
        self.judge(wanted)
    }

    /// As [`Self::matches_every`], of these values.
    pub fn matches_every_value<'v>(&self, values: impl IntoIterator<Item = &'v [u8]>) -> bool {
        if self.invert {
            return self.matches_values(values);
        }
        let mut values = values.into_iter().peekable();
        let wanted = values.peek().is_some().then(|| values.all(|value| self.wants(value)));
        self.judge(wanted)
    }

    /// `wanted`: whether a value satisfies the condition; `None`: there is no value.
    fn judge(&self, wanted: Option<bool>) -> bool {
        let matched = match (&self.value, wanted) {
            (HeaderValueMatcher::Present(present), wanted) => {
                (wanted.is_some() || self.treat_missing_as_empty) == *present
            }
            (_, Some(wanted)) => wanted,
            (_, None) if self.treat_missing_as_empty => self.wants(b""),
            (_, None) => return false,
        };
        matched != self.invert
    }

    fn wants(&self, value: &[u8]) -> bool {
        match &self.value {
            HeaderValueMatcher::Present(present) => *present,
            HeaderValueMatcher::String(matcher) => matcher.matches(value),
            HeaderValueMatcher::Range { start, end } => integer(value).is_some_and(|n| (*start..*end).contains(&n)),
        }
    }
}

fn integer(value: &[u8]) -> Option<i64> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

impl QueryParameterMatcher {
    /// Whether the query string (without `?`) has a matching parameter; its first value counts, undecoded.
    pub fn matches(&self, query: &[u8]) -> bool {
        let Some(value) = query_parameter(query, self.name.as_bytes()) else { return false };
        self.value.as_ref().is_none_or(|matcher| matcher.matches(value))
    }
}

/// The first value of a query parameter, undecoded; empty if it has no `=`.
pub fn query_parameter<'q>(query: &'q [u8], name: &[u8]) -> Option<&'q [u8]> {
    query.split(|&b| b == b'&').find_map(|pair| {
        let (key, value) = match pair.iter().position(|&b| b == b'=') {
            Some(at) => (&pair[..at], &pair[at + 1..]),
            None => (pair, &b""[..]),
        };
        (key == name).then_some(value)
    })
}

/// Splits `:path` into the path that routes match and the query string without `?`. The fragment belongs to neither.
pub fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    let path = match path.iter().position(|&b| b == b'#') {
        Some(at) => &path[..at],
        None => path,
    };
    match path.iter().position(|&b| b == b'?') {
        Some(at) => (&path[..at], &path[at + 1..]),
        None => (path, b""),
    }
}
