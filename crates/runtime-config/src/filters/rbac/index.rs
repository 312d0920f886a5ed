//! Selects the policies of a set that may match, by the peer's name, the path or dynamic metadata, so that a set of a
//! hundred costs about as much as one.
//!
//! Most policies name their principals (`principals: ["cluster.local/ns/a/sa/b"]`), namespaces, paths or the claims of
//! tokens exactly. Such a policy cannot match anything else, so it is indexed by these names and tried only when one of
//! them occurs. A policy without such names is always tried. The index only filters: the policies it selects are
//! evaluated in full, so it cannot change a decision.

use std::borrow::Cow;

use crate::FastMap;
use crate::dynamic_metadata::{DynamicMetadata, MetadataMatcher, ValueMatcher};
use crate::filters::rbac::policy::{Permission, Policy, Principal};
use crate::metadata::MetadataValue;
use crate::string_match::StringMatcher;
use crate::view::PeerIdentity;

/// Sets no larger than this are tried in turn: a lookup costs as much as one policy.
const SMALL_SET: usize = 1;
/// Separates the trust domain from the namespace in a SPIFFE id of a mesh.
const NAMESPACE: &[u8] = b"/ns/";

/// Indices of policies, ascending.
type Numbers = Vec<u32>;
/// Policies by the value they require.
type Filed = FastMap<Box<[u8]>, Numbers>;

/// The index of one set of policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyIndex {
    by_name: Filed,
    /// By prefix of a name, one map per length.
    by_name_prefix: Vec<(usize, Filed)>,
    /// By the namespace in a name.
    by_namespace: Filed,
    by_path: Filed,
    /// By path prefix, one map per length.
    by_prefix: Vec<(usize, Filed)>,
    /// By a text in dynamic metadata, one map for each place.
    by_metadata: Vec<(Place, Filed)>,
    /// Policies that require no value they could be indexed by.
    rest: Numbers,
}

/// A place in dynamic metadata: a filter's name, and keys.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Place {
    filter: Box<str>,
    path: Vec<Box<str>>,
}

/// The values a policy requires: it can match only if one of them is present.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Keys<'p>(Vec<Key<'p>>);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key<'p> {
    Name(&'p [u8]),
    NamePrefix(&'p [u8]),
    Namespace(Cow<'p, [u8]>),
    Path(&'p [u8]),
    Prefix(&'p [u8]),
    Metadata(Place, &'p [u8]),
}

impl PolicyIndex {
    /// Indexes the policies; each by its principals' names or its paths, whichever distinguishes this set's policies better.
    pub(crate) fn new(policies: &[Policy]) -> Self {
        let mut index = Self::default();
        if policies.len() <= SMALL_SET {
            index.rest = (0..).take(policies.len()).collect();
            return index;
        }
        let names: Vec<_> = policies.iter().map(|policy| Keys::any_of(&policy.principals, of_principal)).collect();
        let paths: Vec<_> = policies.iter().map(|policy| Keys::any_of(&policy.permissions, of_permission)).collect();
        let names_first = distinct(&names) >= distinct(&paths);
        for (number, (names, paths)) in (0..).zip(names.into_iter().zip(paths)) {
            let (first, second) = if names_first { (names, paths) } else { (paths, names) };
            match first.or(second) {
                Some(keys) => keys.0.into_iter().for_each(|key| index.file(key, number)),
                None => index.rest.push(number),
            }
        }
        index
    }

    fn file(&mut self, key: Key<'_>, number: u32) {
        let (map, key): (&mut Filed, Cow<'_, [u8]>) = match key {
            Key::Name(name) => (&mut self.by_name, name.into()),
            Key::NamePrefix(prefix) => (map_of(&mut self.by_name_prefix, &prefix.len()), prefix.into()),
            Key::Namespace(namespace) => (&mut self.by_namespace, namespace),
            Key::Path(path) => (&mut self.by_path, path.into()),
            Key::Prefix(prefix) => (map_of(&mut self.by_prefix, &prefix.len()), prefix.into()),
            Key::Metadata(place, text) => (map_of(&mut self.by_metadata, &place), text.into()),
        };
        let numbers = map.entry((*key).into()).or_default();
        if numbers.last() != Some(&number) {
            numbers.push(number);
        }
    }

    /// The first policy, in order, for which `matches` is true; calls it only for policies that may match this peer, this
    /// path (without its query; `None` if there is no request) and this metadata.
    pub(crate) fn first_match<'p>(
        &self,
        policies: &'p [Policy],
        (peer, path, metadata): (Option<&PeerIdentity>, Option<&[u8]>, Option<&DynamicMetadata>),
        matches: impl Fn(&Policy) -> bool,
    ) -> Option<&'p Policy> {
        let mut first: Option<(u32, &Policy)> = None;
        let mut consider = |numbers: &[u32]| {
            for &number in numbers {
                if first.is_some_and(|(before, _)| before <= number) {
                    return;
                }
                if let Some(policy) = policies.get(number as usize).filter(|policy| matches(policy)) {
                    first = Some((number, policy));
                    return;
                }
            }
        };
        consider(&self.rest);
        if let Some(peer) = peer.filter(|_| self.looks_at_names()) {
            for name in peer.uri_sans.iter().chain(peer.host_names()).chain([&peer.subject]) {
                let name = name.as_bytes();
                if let Some(numbers) = self.by_name.get(name) {
                    consider(numbers);
                }
                for (length, prefixes) in &self.by_name_prefix {
                    if let Some(numbers) = name.get(..*length).and_then(|prefix| prefixes.get(prefix)) {
                        consider(numbers);
                    }
                }
                if !self.by_namespace.is_empty() {
                    let found = namespaces(name).filter_map(|namespace| self.by_namespace.get(namespace));
                    found.for_each(|numbers| consider(numbers));
                }
            }
        }
        if let Some(metadata) = metadata {
            for (place, texts) in &self.by_metadata {
                let mut text = |value: &MetadataValue| {
                    if let MetadataValue::Text(text) = value
                        && let Some(numbers) = texts.get(text.as_bytes())
                    {
                        consider(numbers);
                    }
                };
                match metadata.get(&place.filter, &place.path) {
                    Some(MetadataValue::List(values)) => values.iter().for_each(text),
                    Some(value) => text(value),
                    None => {}
                }
            }
        }
        if let Some(path) = path {
            if let Some(numbers) = self.by_path.get(path) {
                consider(numbers);
            }
            for (length, prefixes) in &self.by_prefix {
                if let Some(numbers) = path.get(..*length).and_then(|prefix| prefixes.get(prefix)) {
                    consider(numbers);
                }
            }
        }
        first.map(|(_, policy)| policy)
    }
}

impl PolicyIndex {
    fn looks_at_names(&self) -> bool {
        !(self.by_name.is_empty() && self.by_name_prefix.is_empty() && self.by_namespace.is_empty())
    }
}

/// The map of one length, or of one place.
fn map_of<'m, K: PartialEq + Clone>(maps: &'m mut Vec<(K, Filed)>, key: &K) -> &'m mut Filed {
    let at = maps.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
        maps.push((key.clone(), Filed::default()));
        maps.len() - 1
    });
    &mut maps[at].1
}

/// Returns the text after each `/ns/` of a name, up to the next slash.
fn namespaces(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    let starts = name.windows(NAMESPACE.len()).enumerate().filter(|(_, part)| *part == NAMESPACE);
    starts.filter_map(|(at, _)| {
        let rest = name.get(at + NAMESPACE.len()..)?;
        rest.get(..rest.iter().position(|byte| *byte == b'/')?)
    })
}

/// The namespace that an expression such as `.*/ns/shop/.*` requires.
fn required_namespace(pattern: &str) -> Option<Vec<u8>> {
    let rest = [".*/ns/", "spiffe://.*/ns/", "spiffe://.+/ns/"].iter().find_map(|start| pattern.strip_prefix(start))?;
    let mut namespace = Vec::new();
    let mut bytes = rest.bytes();
    loop {
        match bytes.next()? {
            b'/' => return Some(namespace),
            b'\\' => match bytes.next()? {
                byte @ (b'-' | b'.') => namespace.push(byte),
                _ => return None,
            },
            byte if byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_' => namespace.push(byte),
            _ => return None,
        }
    }
}

/// The keys of a matcher of metadata, which an absent value does not match.
fn of_metadata(matcher: &MetadataMatcher) -> Option<Keys<'_>> {
    if matcher.invert {
        return None;
    }
    let mut texts = Vec::new();
    required_texts(&matcher.value, &mut texts)?;
    let place = Place { filter: matcher.filter.clone(), path: matcher.path.clone() };
    Some(Keys(texts.into_iter().map(|text| Key::Metadata(place.clone(), text)).collect()))
}

/// Adds the texts of which a value, or an element of a list, has to be one. `None`: it may be something else.
fn required_texts<'p>(matcher: &'p ValueMatcher, texts: &mut Vec<&'p [u8]>) -> Option<()> {
    match matcher {
        ValueMatcher::String(StringMatcher::Exact { value, ignore_case: false }) => texts.push(value),
        ValueMatcher::OneOf(inner) if !matches!(**inner, ValueMatcher::OneOf(_)) => required_texts(inner, texts)?,
        ValueMatcher::Or(any) if !any.is_empty() => {
            any.iter().try_for_each(|matcher| required_texts(matcher, texts))?;
        }
        _ => return None,
    }
    Some(())
}

impl<'p> Keys<'p> {
    /// The keys of a disjunction: each part must have keys, and any of them suffices.
    fn any_of<T>(parts: &'p [T], keys: fn(&'p T) -> Option<Self>) -> Option<Self> {
        let mut all = Vec::new();
        for part in parts {
            all.append(&mut keys(part)?.0);
        }
        Some(Self(all)).filter(|keys| !keys.0.is_empty())
    }

    /// The keys of a conjunction: those of the most selective part.
    fn all_of<T>(parts: &'p [T], keys: fn(&'p T) -> Option<Self>) -> Option<Self> {
        parts.iter().filter_map(keys).min_by_key(|keys| keys.0.len())
    }
}

fn of_principal(principal: &Principal) -> Option<Keys<'_>> {
    match principal {
        Principal::And(ids) => Keys::all_of(ids, of_principal),
        Principal::Or(ids) => Keys::any_of(ids, of_principal),
        Principal::Authenticated(Some(StringMatcher::Exact { value, ignore_case: false })) => {
            Some(Keys(vec![Key::Name(value)]))
        }
        Principal::Authenticated(Some(StringMatcher::Prefix { value, ignore_case: false })) => {
            Some(Keys(vec![Key::NamePrefix(value)]))
        }
        Principal::Authenticated(Some(StringMatcher::Regex(regex))) => {
            let namespace = required_namespace(regex.as_str())?;
            Some(Keys(vec![Key::Namespace(namespace.into())]))
        }
        Principal::Metadata(matcher) => of_metadata(matcher),
        _ => None,
    }
}

fn of_permission(permission: &Permission) -> Option<Keys<'_>> {
    match permission {
        Permission::And(rules) => Keys::all_of(rules, of_permission),
        Permission::Or(rules) => Keys::any_of(rules, of_permission),
        Permission::UrlPath(StringMatcher::Exact { value, ignore_case: false }) => Some(Keys(vec![Key::Path(value)])),
        Permission::UrlPath(StringMatcher::Prefix { value, ignore_case: false }) => {
            Some(Keys(vec![Key::Prefix(value)]))
        }
        Permission::Metadata(matcher) => of_metadata(matcher),
        _ => None,
    }
}

/// The number of distinct values that a set of policies requires.
fn distinct(keys: &[Option<Keys<'_>>]) -> usize {
    keys.iter().flatten().flat_map(|keys| &keys.0).collect::<std::collections::HashSet<_>>().len()
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::filters::rbac::policy::OutcomeMetadata;
    use evenkeel_base::re2::Regex;

    fn exact(text: &str) -> StringMatcher {
        StringMatcher::Exact { value: text.as_bytes().into(), ignore_case: false }
    }

    fn regex(text: &str) -> Principal {
        Principal::Authenticated(Some(StringMatcher::Regex(Regex::whole(text).unwrap())))
    }

    fn claim(name: &str, value: ValueMatcher) -> Principal {
        let path = vec!["payload".into(), name.into()];
        Principal::Metadata(MetadataMatcher { filter: "jwt".into(), path, value, invert: false })
    }

    fn policy(number: usize, principal: Principal) -> Policy {
        Policy {
            name: number.to_string().into(),
            permissions: vec![Permission::Any],
            principals: vec![Principal::And(vec![principal])],
            metadata: OutcomeMetadata::default(),
        }
    }

    fn list(text: &str) -> ValueMatcher {
        let text = || ValueMatcher::String(exact(text));
        ValueMatcher::Or(vec![ValueMatcher::OneOf(Box::new(text())), text()])
    }

    /// Returns how many of a hundred policies are tried.
    fn tried(make: impl Fn(usize) -> Principal) -> usize {
        let policies: Vec<Policy> = (0..100).map(|number| policy(number, make(number))).collect();
        let index = PolicyIndex::new(&policies);
        let uri_sans = vec!["spiffe://cluster.local/ns/n7/sa/web".to_owned()];
        let peer = PeerIdentity { uri_sans, ..PeerIdentity::default() };
        let mut metadata = DynamicMetadata::default();
        let text = |text: &str| MetadataValue::Text(text.into());
        let payload = MetadataValue::Object(vec![
            ("aud".into(), MetadataValue::List(vec![text("a7"), text("a9"), MetadataValue::Null])),
            ("iss".into(), text("i7")),
        ]);
        metadata.merge("jwt", &[("payload".into(), payload)]);
        let count = Cell::new(0);
        let found = index.first_match(&policies, (Some(&peer), None, Some(&metadata)), |_| {
            count.set(count.get() + 1);
            false
        });
        assert!(found.is_none());
        // Without a peer and without metadata none of them matches.
        assert!(index.first_match(&policies, (None, None, None), |_| true).is_none() || count.get() == 100);
        count.get()
    }

    #[test]
    fn only_policies_that_may_match_are_tried() {
        let prefix = |text: String| {
            Principal::Authenticated(Some(StringMatcher::Prefix {
                value: text.into_bytes().into(),
                ignore_case: false,
            }))
        };
        for (what, count, expected) in [
            ("namespaces", tried(|n| regex(&format!(".*/ns/n{n}/.*"))), 1),
            ("escaped namespaces", tried(|n| regex(&format!(r".*/ns/n\-{n}/.*"))), 0),
            ("namespaces of identities", tried(|n| regex(&format!("spiffe://.*/ns/n{n}/.*"))), 1),
            ("accounts", tried(|n| regex(&format!("spiffe://.+/ns/n{n}/(.+/|)sa/web(/.+)?"))), 1),
            ("trust domains", tried(|n| prefix(format!("spiffe://d{n}/"))), 0),
            ("the trust domain", tried(|_| prefix("spiffe://cluster.local/".into())), 100),
            ("issuers", tried(|n| claim("iss", ValueMatcher::String(exact(&format!("i{n}"))))), 1),
            ("audiences", tried(|n| claim("aud", list(&format!("a{n}")))), 2),
            ("other claims", tried(|n| claim("sub", list(&format!("a{n}")))), 0),
            // These may match any name.
            ("open namespaces", tried(|n| regex(&format!(".*/ns/n{n}.*/.*"))), 100),
            ("claims by prefix", tried(|_| claim("iss", ValueMatcher::Present(true))), 100),
            ("exclusions", tried(|n| Principal::Not(Box::new(claim("iss", list(&format!("i{n}")))))), 100),
        ] {
            assert_eq!(count, expected, "{what}");
        }
    }
}
