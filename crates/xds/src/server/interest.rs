//! The subscriptions of streams, for the code that changes their resources: streams that a change does not affect are not
//! woken, and the affected ones are found without examining the others.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use imbl::OrdSet;
use imbl::ordset::DiffItem;

use super::key::{Key, hash, keys};
use super::subscription::Subscription;
use crate::{ResourceSet, ResourceType};

/// The subscriptions of a stream. The stream keeps them up to date; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Interest(Arc<InterestState>);

#[derive(Debug, Default)]
struct InterestState {
    asked: Mutex<[TypeInterest; ResourceType::ALL.len()]>,
    /// The index it belongs to, and the number of its stream.
    among: Option<(Interests, u64)>,
}

/// An index of what many streams subscribe to, by name. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Interests(Arc<Mutex<[Subscribers; ResourceType::ALL.len()]>>);

/// The streams that subscribe to one type, by number.
#[derive(Debug, Default)]
struct Subscribers {
    /// Streams that subscribe to everything, or to so many names that these are not indexed.
    wide: BTreeSet<u64>,
    /// The other streams that subscribe to names.
    few: BTreeSet<u64>,
    /// Their names by the hashes of [`hashes`]; a stream is listed once for each name with the hash.
    names: HashMap<u64, Vec<u64>>,
}

/// The subscriptions of one stream for one type.
#[derive(Debug, Clone, Default)]
struct TypeInterest {
    wildcard: bool,
    names: OrdSet<Arc<str>>,
    /// A filter that rules out most other names quickly; `None` if there are too many names for it.
    filter: Option<Filter>,
}

/// A Bloom filter for few names, with one bit per name.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Filter([u64; Filter::WORDS]);

/// All names under which a client may see a difference between two sets: names and aliases of the resources.
#[derive(Debug, Clone)]
pub struct ChangedNames(Arc<[Key]>);

impl ChangedNames {
    /// Whether the two sets are the same.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The names in which `newer` differs from `older`.
    pub fn between(older: &ResourceSet, newer: &ResourceSet) -> Self {
        Self(newer.diff(older).flat_map(keys).collect())
    }
}

impl Interest {
    /// Whether the stream may have to send something because of these changed names.
    pub fn concerned_by(&self, touched: &ChangedNames) -> bool {
        let asked = lock(&self.0.asked);
        touched.0.iter().any(|key| {
            let of = &asked[key.kind.index()];
            let may_be = key.is_any() || of.filter.is_none_or(|filter| filter.may_contain(key.hash));
            of.wildcard || may_be && key.asked(&of.names).next().is_some()
        })
    }

    /// Updates what the stream subscribes to.
    pub(super) fn note(&self, subscriptions: &[Subscription; ResourceType::ALL.len()]) {
        let mut asked = lock(&self.0.asked);
        for (of, subscription) in asked.iter_mut().zip(subscriptions).filter(|(_, subscription)| subscription.requested)
        {
            let same_names = of.names.ptr_eq(subscription.names());
            if same_names && of.wildcard == subscription.wildcard {
                continue;
            }
            let mut now = TypeInterest {
                wildcard: subscription.wildcard,
                names: subscription.names().clone(),
                filter: of.filter,
            };
            if !same_names {
                now.filter = Filter::of(&now.names);
            }
            if let Some((all, stream)) = &self.0.among {
                lock(&all.0)[subscription.kind.index()].replace(*stream, of, &now);
            }
            *of = now;
        }
    }
}

impl Drop for InterestState {
    fn drop(&mut self) {
        let Some((all, stream)) = &self.among else { return };
        let asked = self.asked.get_mut().unwrap_or_else(PoisonError::into_inner);
        for (askers, of) in lock(&all.0).iter_mut().zip(asked) {
            askers.replace(*stream, of, &TypeInterest::default());
        }
    }
}

impl Interests {
    /// Adds a stream, which subscribes to nothing yet.
    pub fn of(&self, stream: u64) -> Interest {
        Interest(Arc::new(InterestState { asked: Mutex::default(), among: Some((self.clone(), stream)) }))
    }

    /// The streams that these changed names may affect, and perhaps a few more;
    /// [`concerned_by`](Interest::concerned_by) decides. In order, each once.
    pub fn concerned_by(&self, touched: &ChangedNames) -> Vec<u64> {
        let all = lock(&self.0);
        let mut streams = Vec::new();
        // A change may affect many names of one type, so the streams affected by any name are added once.
        let (mut wide, mut few) = ([false; ResourceType::ALL.len()], [false; ResourceType::ALL.len()]);
        for key in &*touched.0 {
            let kind = key.kind.index();
            if !std::mem::replace(&mut wide[kind], true) {
                streams.extend(&all[kind].wide);
            }
            match key.is_any() {
                true if std::mem::replace(&mut few[kind], true) => {}
                true => streams.extend(&all[kind].few),
                false => streams.extend(all[kind].names.get(&key.hash).into_iter().flatten()),
            }
        }
        // Release the lock early for streams that update their subscriptions.
        drop(all);
        streams.sort_unstable();
        streams.dedup();
        streams
    }
}

impl TypeInterest {
    /// Whether it has too many names to be indexed.
    fn is_wide(&self) -> bool {
        self.wildcard || self.names.len() > Filter::MAX_NAMES
    }
}

impl Subscribers {
    /// Updates the index for a stream.
    fn replace(&mut self, stream: u64, before: &TypeInterest, now: &TypeInterest) {
        let nothing = OrdSet::new();
        let listed = |of: &TypeInterest| if of.is_wide() { nothing.clone() } else { of.names.clone() };
        let (old, new) = (listed(before), listed(now));
        for item in old.diff(&new) {
            match item {
                DiffItem::Add(name) => hashes(name).for_each(|hash| self.add(hash, stream)),
                DiffItem::Remove(name) => hashes(name).for_each(|hash| self.remove(hash, stream)),
            }
        }
        let keep = |streams: &mut BTreeSet<u64>, is_in: bool| {
            if is_in { _ = streams.insert(stream) } else { _ = streams.remove(&stream) }
        };
        keep(&mut self.wide, now.is_wide());
        keep(&mut self.few, !new.is_empty());
    }

    fn add(&mut self, hash: u64, stream: u64) {
        self.names.entry(hash).or_default().push(stream);
    }

    fn remove(&mut self, hash: u64, stream: u64) {
        let Some(streams) = self.names.get_mut(&hash) else { return };
        if let Some(at) = streams.iter().position(|other| *other == stream) {
            streams.swap_remove(at);
        }
        if streams.is_empty() {
            self.names.remove(&hash);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Filter {
    /// With 20 names, as for a sidecar, one in 25 other names passes.
    const WORDS: usize = 8;
    /// Maximum number of names for which a filter is useful: with so many, one in four other names passes.
    const MAX_NAMES: usize = 128;

    /// Makes a filter of these names.
    fn of(names: &OrdSet<Arc<str>>) -> Option<Self> {
        if names.len() > Self::MAX_NAMES {
            return None;
        }
        let mut filter = Self::default();
        names.iter().flat_map(|name| hashes(name)).for_each(|hash| filter.add(hash));
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
    fn may_contain(&self, hash: u64) -> bool {
        let (word, bit) = Self::place(hash);
        self.0[word] & bit != 0
    }
}

/// The hashes of a name with and without a port; one of them is the hash of the key that it matches.
fn hashes(name: &str) -> impl Iterator<Item = u64> + '_ {
    std::iter::once(hash(name)).chain(name.match_indices(':').map(|(at, _)| hash(&name[..at])))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use evenkeel_testkit::Random;

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
                let all = Interests::default();
                let (interest, _other) = (all.of(7), all.of(8));
                let touched = ChangedNames(Arc::new([Key::new(touched.0, &touched.1.into())]));
                assert!(!interest.concerned_by(&touched) && all.concerned_by(&touched).is_empty(), "before it asks");
                interest.note(&subscriptions);
                assert_eq!(interest.concerned_by(&touched), expected, "{kind} {wildcard} {names:?} {touched:?}");
                let found = all.concerned_by(&touched);
                assert!(found.is_empty() || found == [7]);
                assert!(!found.is_empty() || !expected, "{kind} {wildcard} {names:?} {touched:?}");
                drop(interest);
                assert!(all.concerned_by(&touched).is_empty(), "it is gone");
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

    /// Whatever streams subscribe to and unsubscribe from, all that a change concerns are found, and nothing is kept of
    /// closed streams.
    #[test]
    fn streams_are_found_by_what_they_ask_for() {
        let kind = ResourceType::VirtualHost;
        let mut random = Random::new(3);
        let all = Interests::default();
        let mut streams: BTreeMap<u64, (Interest, [Subscription; ResourceType::ALL.len()])> = BTreeMap::new();
        let name = |random: &mut Random| format!("80/h{}{}", random.below(150), [":80", ":81", ""][random.below(3)]);
        let (mut concerned, mut found) = (0, 0);
        for step in 0..3000_u64 {
            let number = random.below(12) as u64;
            let (_, subscriptions) =
                streams.entry(number).or_insert_with(|| (all.of(number), ResourceType::ALL.map(Subscription::new)));
            let subscription = &mut subscriptions[kind.index()];
            subscription.requested = true;
            match random.below(20) {
                0 => _ = streams.remove(&number),
                1 => subscription.set_wildcard(!subscription.wildcard && number == 1),
                2 => subscription.set_names(std::iter::empty(), &Default::default()).map(drop).expect("none"),
                3..10 => subscription.unsubscribe(&name(&mut random)),
                10 => (0..200).for_each(|n| drop(subscription.subscribe(&format!("80/h{n}"), &Default::default()))),
                _ => drop(subscription.subscribe(&name(&mut random), &Default::default()).expect("few names")),
            }
            if let Some((interest, subscriptions)) = streams.get(&number).filter(|_| step % 3 == 0) {
                interest.note(subscriptions);
            }
            let of = if random.below(50) == 0 { "80/*.h".to_owned() } else { format!("80/h{}", random.below(150)) };
            let touched = ChangedNames(Arc::new([Key::new(kind, &of.into())]));
            let candidates = all.concerned_by(&touched);
            for (number, (interest, _)) in &streams {
                let is_one = interest.concerned_by(&touched);
                assert!(!is_one || candidates.contains(number), "step {step}: {touched:?}");
                concerned += usize::from(is_one);
            }
            found += candidates.len();
        }
        assert!(concerned > 1000 && found < concerned * 3, "{found} found, {concerned} concerned");
        streams.clear();
        let left = lock(&all.0);
        assert!(left.iter().all(|of| of.wide.is_empty() && of.few.is_empty() && of.names.is_empty()));
    }
}
