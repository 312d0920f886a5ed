//! Finds tokens in a request, in Envoy's order, and removes them.
//!
//! Where Envoy looks at the first of several query parameters or cookies of one name, every one is a token here:
//! a program may read another one than the proxy has verified.

use std::borrow::Cow;

use evenkeel_http::RequestHead;
use evenkeel_jwt::MAX_KEYS;
use evenkeel_runtime_config::cookie;
use evenkeel_runtime_config::jwt_authn::{Issuers, Locations};

/// Maximum number of tokens examined in one request. A request with more is denied.
pub(super) const MAX_TOKENS: usize = 32;
/// Maximum number of keys that are tried for the tokens of a request, together: every key of the largest set once, and one more
/// for each further token. Where bad tokens are ignored, a request could otherwise try each key for each token.
pub(super) const MAX_TRIES: usize = MAX_KEYS + MAX_TOKENS;

/// A token, and where it was.
#[derive(Debug)]
pub(super) struct Found<'h, 'l> {
    /// The token.
    pub(super) text: Cow<'h, [u8]>,
    /// The issuers whose tokens may be there.
    pub(super) issuers: &'l Issuers,
    /// Where.
    pub(super) place: Place<'l>,
}

/// The location of a token.
#[derive(Debug, Clone, Copy)]
pub(super) enum Place<'c> {
    /// A header.
    Header(&'c str),
    /// A query parameter.
    Parameter(&'c str),
    /// A cookie.
    Cookie,
}

/// All tokens of a request. The last one is judged first.
pub(super) fn tokens<'h, 'l>(locations: &'l Locations, head: &'h RequestHead) -> Vec<Found<'h, 'l>> {
    let mut found = Vec::new();
    for location in &locations.headers {
        for value in values(head, location.name.as_bytes()) {
            if let Some(text) = after_prefix(value, location.prefix.as_bytes()) {
                let place = Place::Header(&location.name);
                found.push(Found { text: text.into(), issuers: &location.issuers, place });
            }
        }
    }
    if !locations.parameters.is_empty()
        && let Some(query) = query(head.path())
    {
        for (name, issuers) in &locations.parameters {
            let own = parameters(query).filter(|(key, _)| is_named(key, name));
            let place = Place::Parameter(name);
            found.extend(own.map(|(_, value)| Found { text: decoded(value), issuers, place }));
        }
    }
    for (name, issuers) in &locations.cookies {
        let values = cookie::find_all(head.headers.find_all(b"cookie"), name);
        found.extend(values.map(|value| Found { text: value.into(), issuers, place: Place::Cookie }));
    }
    found
}

fn values<'h>(head: &'h RequestHead, name: &[u8]) -> impl Iterator<Item = &'h [u8]> {
    head.headers.iter().filter(move |(_, own, _)| *own == name).map(|(_, _, value)| value)
}

/// Returns the text after the prefix, which may occur anywhere; `None` if it does not occur. As in Envoy, characters that
/// cannot begin a token are skipped.
fn after_prefix<'h>(value: &'h [u8], prefix: &[u8]) -> Option<&'h [u8]> {
    if prefix.is_empty() {
        return Some(value);
    }
    let at = value.windows(prefix.len()).position(|part| part == prefix)?;
    let rest = value.get(at + prefix.len()..)?;
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    match rest.iter().position(legal) {
        Some(start) => rest.get(start..),
        None => Some(value),
    }
}

/// The query of a path, without `?` and fragment.
fn query(path: &[u8]) -> Option<&[u8]> {
    let start = path.iter().position(|byte| *byte == b'?')?;
    let query = path.get(start + 1..)?;
    Some(query.split(|byte| *byte == b'#').next().unwrap_or_default())
}

fn parameters(query: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    query.split(|byte| *byte == b'&').map(|pair| match pair.iter().position(|byte| *byte == b'=') {
        Some(at) => (&pair[..at], &pair[at + 1..]),
        None => (pair, &[][..]),
    })
}

fn is_named(key: &[u8], name: &str) -> bool {
    key == name.as_bytes() || key.contains(&b'%') && *decoded(key) == *name.as_bytes()
}

/// Without percent-encoding; an incomplete escape stays as it is.
fn decoded(text: &[u8]) -> Cow<'_, [u8]> {
    percent_encoding::percent_decode(text).into()
}

/// Removes a token from where it was. Cookies stay, as in Envoy.
pub(super) fn remove(place: Place<'_>, head: &mut RequestHead) {
    match place {
        Place::Header(name) => head.headers.remove_name(name.as_bytes()),
        Place::Parameter(name) => {
            if let Some(path) = without_parameter(head.path(), name) {
                head.set_path(&path);
            }
        }
        Place::Cookie => {}
    }
}

/// A path without a query parameter; all other bytes stay. `None` if the parameter does not occur.
fn without_parameter(path: &[u8], name: &str) -> Option<Vec<u8>> {
    let query = query(path)?;
    let start = path.iter().position(|byte| *byte == b'?')?;
    let kept = || {
        query.split(|byte| *byte == b'&').filter(|pair| {
            let key = pair.split(|byte| *byte == b'=').next().unwrap_or_default();
            !is_named(key, name)
        })
    };
    if kept().count() == query.split(|byte| *byte == b'&').count() {
        return None;
    }
    let mut shorter = path.get(..start)?.to_vec();
    for (index, pair) in kept().enumerate() {
        shorter.push(if index == 0 { b'?' } else { b'&' });
        shorter.extend_from_slice(pair);
    }
    shorter.extend_from_slice(path.get(start + 1 + query.len()..)?);
    Some(shorter)
}

#[cfg(test)]
mod unit_tests {
    use super::*;

    #[test]
    fn parameters_are_removed_and_the_others_stay_as_they_were() {
        for (path, expected) in [
            ("/a?t=1", Some("/a")),
            ("/a?t=1&b=%20+", Some("/a?b=%20+")),
            ("/a?b=1&t=2&c&t=3", Some("/a?b=1&c")),
            ("/a?%74=1&b", Some("/a?b")),
            ("/a?t", Some("/a")),
            ("/a?t=1#t=2", Some("/a#t=2")),
            ("/a?tt=1", None),
            ("/a?", None),
            ("/a", None),
        ] {
            let found = without_parameter(path.as_bytes(), "t").map(|path| String::from_utf8(path).unwrap());
            assert_eq!(found.as_deref(), expected, "{path}");
        }
    }

    #[test]
    fn prefixes_may_stand_anywhere() {
        for (value, prefix, expected) in [
            ("Bearer abc", "Bearer ", Some("abc")),
            ("Bearer   abc", "Bearer ", Some("abc")),
            ("x Bearer abc", "Bearer ", Some("abc")),
            ("bearer abc", "Bearer ", None),
            ("Bearer", "Bearer ", None),
            ("Bearer ==", "Bearer ", Some("Bearer ==")),
            ("abc", "", Some("abc")),
            ("", "", Some("")),
        ] {
            let found = after_prefix(value.as_bytes(), prefix.as_bytes());
            assert_eq!(found, expected.map(str::as_bytes), "{value:?} {prefix:?}");
        }
    }

    #[test]
    fn escapes_are_decoded_once() {
        for (text, expected) in
            [("a%2Eb", "a.b"), ("%252E", "%2E"), ("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("+", "+")]
        {
            assert_eq!(&*decoded(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }
}
