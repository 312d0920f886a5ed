//! Selects the policies of a set that may match, by the peer's name or the path, so that a set of a hundred costs about
//! as much as one.
//!
//! Most policies name their principals (`principals: ["cluster.local/ns/a/sa/b"]`) or paths exactly. Such a policy
//! cannot match anything else, so it is indexed by these names and tried only when one of them occurs. A policy without
//! such names is always tried. The index only filters: the policies it selects are evaluated in full, so it cannot
//! change a decision.

use crate::FastMap;
use crate::rbac::policy::{Permission, Policy, Principal};
use crate::string_match::StringMatcher;
use crate::view::PeerIdentity;

/// Sets no larger than this are tried in turn: a lookup costs as much as one policy.
const SMALL_SET: usize = 1;

/// Indices of policies, ascending.
type Numbers = Vec<u32>;
/// Policies by the value they require.
type Filed = FastMap<Box<[u8]>, Numbers>;

/// The index of one set of policies.
#[derive(Debug, Default)]
pub(crate) struct PolicyIndex {
    by_name: Filed,
    by_path: Filed,
    /// By path prefix, one map per length.
    by_prefix: Vec<(usize, Filed)>,
    /// Policies that require no value they could be indexed by.
    rest: Numbers,
}

/// The values a policy requires: it can match only if one of them is present.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Keys<'p>(Vec<Key<'p>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Key<'p> {
    Name(&'p [u8]),
    Path(&'p [u8]),
    Prefix(&'p [u8]),
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
        let (map, key) = match key {
            Key::Name(name) => (&mut self.by_name, name),
            Key::Path(path) => (&mut self.by_path, path),
            Key::Prefix(prefix) => {
                let length = prefix.len();
                let at = self.by_prefix.iter().position(|(of, _)| *of == length).unwrap_or_else(|| {
                    self.by_prefix.push((length, Filed::default()));
                    self.by_prefix.len() - 1
                });
                (&mut self.by_prefix[at].1, prefix)
            }
        };
        let numbers = map.entry(key.into()).or_default();
        if numbers.last() != Some(&number) {
            numbers.push(number);
        }
    }

    /// The first policy, in order, for which `matches` is true; calls it only for policies that may match this peer and
    /// path (without its query; `None` if there is no request).
    pub(crate) fn first_match<'p>(
        &self,
        policies: &'p [Policy],
        peer: Option<&PeerIdentity>,
        path: Option<&[u8]>,
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
        if let Some(peer) = peer.filter(|_| !self.by_name.is_empty()) {
            let names = peer.uri_sans.iter().chain(&peer.dns_sans).chain([&peer.subject]);
            names.filter_map(|name| self.by_name.get(name.as_bytes())).for_each(|numbers| consider(numbers));
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
        _ => None,
    }
}

/// The number of distinct values that a set of policies requires.
fn distinct(keys: &[Option<Keys<'_>>]) -> usize {
    keys.iter().flatten().flat_map(|keys| &keys.0).collect::<std::collections::HashSet<_>>().len()
}
