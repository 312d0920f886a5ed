//! What a stream asks for, told to whoever changes its resources: a stream that a change does not concern is not woken.

use std::collections::BTreeSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash as _, Hasher as _};
use std::ops::Bound;
use std::sync::{Arc, Mutex, PoisonError};

use imbl::OrdSet;

use super::subscription::Subscription;
use crate::{Difference, ResourceSet, ResourceType};

/// What a stream asks for. The stream keeps it up to date; clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Interest(Arc<Mutex<[Asked; ResourceType::ALL.len()]>>);

/// What is asked for of one type.
#[derive(Debug, Clone, Default)]
struct Asked {
    wildcard: bool,
    names: OrdSet<Arc<str>>,
    /// What most other names are told apart by without a look at any of these; `None`: they are too many for that.
    filter: Option<Filter>,
}

/// A Bloom filter of few names, each under one bit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Filter([u64; Filter::WORDS]);

/// Every name under which a client may see that two sets differ: those of the resources, and those they answer to.
#[derive(Debug, Clone)]
pub struct Touched(Arc<[Key]>);

/// One of these names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Key {
    kind: ResourceType,
    name: Arc<str>,
    /// What a name begins with that is this one and a port; of types whose resources answer to that.
    with_port: Option<Box<str>>,
    /// Of the name.
    hash: u64,
}

impl Touched {
    /// The names in which `newer` differs from `older`.
    pub fn between(older: &ResourceSet, newer: &ResourceSet) -> Self {
        Self(newer.diff(older).flat_map(keys).collect())
    }
}

impl Interest {
    /// Whether the stream may have something to say to its client now that these names are touched.
    pub fn concerned_by(&self, touched: &Touched) -> bool {
        let asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        touched.0.iter().any(|key| {
            let of = &asked[key.kind.index()];
            let may_be = key.is_any() || of.filter.is_none_or(|filter| filter.may_have(key.hash));
            of.wildcard || may_be && key.asked(&of.names).next().is_some()
        })
    }

    /// Takes in what the stream asks for now.
    pub(super) fn note(&self, subscriptions: &[Subscription; ResourceType::ALL.len()]) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for (of, subscription) in asked.iter_mut().zip(subscriptions).filter(|(_, subscription)| subscription.requested)
        {
            of.wildcard = subscription.wildcard;
            if !of.names.ptr_eq(subscription.names()) {
                of.names = subscription.names().clone();
                of.filter = Filter::of(&of.names);
            }
        }
    }
}

impl Filter {
    /// Enough that of 20 names, which is what a sidecar asks for, one in 25 others passes.
    const WORDS: usize = 8;
    /// Names for which it is worth while: of so many, one in four others passes.
    const MAX_NAMES: usize = 128;

    /// Names, with and without a port.
    fn of(names: &OrdSet<Arc<str>>) -> Option<Self> {
        if names.len() > Self::MAX_NAMES {
            return None;
        }
        let mut filter = Self::default();
        for name in names {
            filter.add(hash(name));
            name.match_indices(':').for_each(|(at, _)| filter.add(hash(&name[..at])));
        }
        Some(filter)
    }

    fn place(hash: u64) -> (usize, u64) {
        ((hash >> 6) as usize % Self::WORDS, 1 << (hash % 64))
    }

    fn add(&mut self, hash: u64) {
        let (word, bit) = Self::place(hash);
        self.0[word] |= bit;
    }

    /// Whether one of the names may have this hash.
    fn may_have(&self, hash: u64) -> bool {
        let (word, bit) = Self::place(hash);
        self.0[word] & bit != 0
    }
}

fn hash(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

impl Key {
    fn new(kind: ResourceType, name: &Arc<str>) -> Self {
        let with_port = kind.has_aliases().then(|| format!("{name}:").into());
        Self { kind, name: name.clone(), with_port, hash: hash(name) }
    }

    /// Whether it may answer to any name.
    fn is_any(&self) -> bool {
        self.with_port.is_some() && self.name.contains('*')
    }

    /// The names asked for that this one may answer to: itself, itself with a port, or anything if it is a wildcard.
    fn asked<'a>(&self, names: &'a OrdSet<Arc<str>>) -> impl Iterator<Item = &'a Arc<str>> + use<'a, '_> {
        let any = self.is_any();
        let ported = self.with_port.as_deref().filter(|_| !any && !names.is_empty()).into_iter().flat_map(|from| {
            let after = names.range::<_, str>((Bound::Included(from), Bound::Unbounded));
            after.take_while(move |name| name.starts_with(from))
        });
        let itself = names.get(&*self.name).filter(|_| !any);
        itself.into_iter().chain(ported).chain(any.then(|| names.iter()).into_iter().flatten())
    }
}

/// The names a difference may be seen under.
fn keys(difference: Difference<'_>) -> impl Iterator<Item = Key> {
    let aliases = [difference.old, difference.new].into_iter().flatten().flat_map(|resource| resource.aliases());
    std::iter::once(difference.name).chain(aliases).map(move |name| Key::new(difference.kind, name))
}

/// The names asked for that differences may concern.
pub(super) fn affected<'a, 'b>(
    names: &'a OrdSet<Arc<str>>,
    differences: impl Iterator<Item = Difference<'b>>,
) -> BTreeSet<&'a Arc<str>> {
    let mut affected = BTreeSet::new();
    for key in differences.flat_map(keys) {
        affected.extend(key.asked(names));
    }
    affected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_concerned_by_what_it_asks_for() {
        let check =
            |kind: ResourceType, wildcard: bool, names: &[&str], touched: (ResourceType, &str), expected: bool| {
                let mut subscriptions = ResourceType::ALL.map(Subscription::new);
                let subscription = &mut subscriptions[kind.index()];
                subscription.requested = true;
                subscription.set_wildcard(wildcard);
                for name in names {
                    subscription.subscribe(name, &Default::default()).expect("few names");
                }
                let interest = Interest::default();
                let touched = Touched(Arc::new([Key::new(touched.0, &touched.1.into())]));
                assert!(!interest.concerned_by(&touched), "before it asks");
                interest.note(&subscriptions);
                assert_eq!(interest.concerned_by(&touched), expected, "{kind} {wildcard} {names:?} {touched:?}");
            };
        let (cluster, host) = (ResourceType::Cluster, ResourceType::VirtualHost);
        check(cluster, true, &[], (cluster, "a"), true);
        check(cluster, true, &[], (host, "a"), false);
        check(cluster, false, &["a", "b"], (cluster, "b"), true);
        check(cluster, false, &["a", "b"], (cluster, "c"), false);
        check(cluster, false, &["a:80"], (cluster, "a"), false);
        check(host, false, &["80/a.b:80"], (host, "80/a.b"), true);
        check(host, false, &["80/a.bc", "80/a"], (host, "80/a.b"), false);
        check(host, false, &["80/a.b"], (host, "80/*.b"), true);
        check(host, false, &["80/[::1]:80"], (host, "80/[::1]"), true);
        let many: Vec<String> = (0..10_000).map(|name| format!("cluster-{name}")).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        check(cluster, false, &many, (cluster, "cluster-77"), true);
        check(cluster, false, &many, (cluster, "cluster"), false);
    }
}
