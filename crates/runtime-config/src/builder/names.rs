//! The references between resources, along which a change propagates, and from them the names that are requested and still awaited.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_xds::ResourceType;
use rustc_hash::FxBuildHasher;

use super::{Interest, Reference, Source};

/// A resource that refers to a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Holder {
    /// Requested from the start.
    Basis,
    /// A worker needs it.
    Demand,
    /// The cluster of this name is requested, and its endpoints nearly always have the same name.
    Likely,
    Cluster(Arc<str>),
    Listener(Arc<str>),
    Table(Arc<str>),
    /// By table and host.
    VirtualHost(Arc<str>, Arc<str>),
}

/// A reference's target: resource type, name, and source.
pub(super) type Name = (ResourceType, Arc<str>, Source);

/// All references of one holder, each with its `initial_fetch_timeout`.
pub(super) type References = BTreeMap<Name, Option<Duration>>;

/// A name that is subscribed to from now on, or no longer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SubscriptionChange {
    /// Type of the resource.
    pub kind: ResourceType,
    /// Its name.
    pub name: Arc<str>,
    /// Its source.
    pub source: Source,
    /// Whether it is subscribed to now, rather than before.
    pub wanted: bool,
}

/// All names, and their holders.
#[derive(Debug, Default)]
pub(super) struct Names {
    all: BTreeMap<Name, Named>,
    /// Names requested without a first response yet.
    missing: BTreeSet<Name>,
    missing_changed: bool,
    /// Of the names changed since the last call of [`Names::take_asked`]: whether they were requested then.
    asked_before: BTreeMap<Name, bool>,
}

#[derive(Debug, Default)]
struct Named {
    holders: HashSet<Holder, FxBuildHasher>,
    /// Number of holders per timeout.
    timeouts: Vec<(Option<Duration>, usize)>,
    asked: bool,
}

impl Named {
    /// The shortest timeout of all holders applies.
    fn timeout(&self) -> Option<Duration> {
        self.timeouts.iter().filter_map(|(timeout, _)| *timeout).min()
    }

    fn count(&mut self, timeout: Option<Duration>) {
        match self.timeouts.iter_mut().find(|(known, _)| *known == timeout) {
            Some((_, count)) => *count += 1,
            None => self.timeouts.push((timeout, 1)),
        }
    }

    fn discount(&mut self, timeout: Option<Duration>) {
        if let Some(at) = self.timeouts.iter().position(|(known, _)| *known == timeout) {
            self.timeouts[at].1 -= 1;
            if self.timeouts[at].1 == 0 {
                self.timeouts.swap_remove(at);
            }
        }
    }
}

impl Names {
    /// Adds a reference of `holder`.
    pub fn add(&mut self, name: Name, holder: Holder, timeout: Option<Duration>) {
        let is_missing = self.missing.contains(&name);
        let named = self.all.entry(name).or_default();
        let before = named.timeout();
        if named.holders.insert(holder) {
            named.count(timeout);
            self.missing_changed |= is_missing && before != named.timeout();
        }
    }

    /// Removes a reference of `holder`, if it has one.
    pub fn remove(&mut self, name: &Name, holder: &Holder, timeout: Option<Duration>) {
        let Some(named) = self.all.get_mut(name) else { return };
        let before = named.timeout();
        if named.holders.remove(holder) {
            named.discount(timeout);
            self.missing_changed |= before != named.timeout() && self.missing.contains(name);
        }
    }

    /// Updates the timeout of one holder.
    pub fn retime(&mut self, name: &Name, before: Option<Duration>, now: Option<Duration>) {
        if let Some(named) = self.all.get_mut(name) {
            named.discount(before);
            named.count(now);
            self.missing_changed |= self.missing.contains(name);
        }
    }

    /// The sources of this name.
    pub fn sources(&self, kind: ResourceType, name: &Arc<str>) -> Vec<Source> {
        self.of(kind, name).map(|((_, _, source), _)| source.clone()).collect()
    }

    /// Whether the name has or had holders and was not dropped yet.
    pub fn knows(&self, kind: ResourceType, name: &Arc<str>) -> bool {
        self.of(kind, name).next().is_some()
    }

    /// Whether the name has any holder, from whichever source.
    pub fn has(&self, kind: ResourceType, name: &Arc<str>) -> bool {
        self.of(kind, name).any(|(_, named)| !named.holders.is_empty())
    }

    /// Whether the name is requested.
    pub fn asks(&self, kind: ResourceType, name: &Arc<str>) -> bool {
        self.of(kind, name).any(|(_, named)| named.asked)
    }

    /// The holders of the name.
    pub fn holders(&self, kind: ResourceType, name: &Arc<str>) -> Vec<Holder> {
        self.of(kind, name).flat_map(|(_, named)| &named.holders).cloned().collect()
    }

    fn of(&self, kind: ResourceType, name: &Arc<str>) -> impl Iterator<Item = (&Name, &Named)> {
        let from = (kind, name.clone(), Source::Ads);
        self.all.range(from..).take_while(move |((k, n, _), _)| *k == kind && n == name)
    }

    /// Updates whether a name is requested, and whether it had a first response. A name without holders is dropped.
    pub fn note(&mut self, name: &Name, asked: bool, answered: bool) {
        let Some(named) = self.all.get_mut(name) else { return };
        // A name that is only likely to be referred to is not waited for.
        let answered = answered || named.holders.iter().all(|holder| *holder == Holder::Likely);
        let unused = named.holders.is_empty();
        let asked = asked && !unused;
        let before = std::mem::replace(&mut named.asked, asked);
        if before != asked {
            self.asked_before.entry(name.clone()).or_insert(before);
        }
        if unused {
            self.all.remove(name);
        }
        self.missing_changed |=
            if asked && !answered { self.missing.insert(name.clone()) } else { self.missing.remove(name) };
    }

    /// All references, with their holders.
    #[cfg(debug_assertions)]
    pub fn edges(&self) -> BTreeMap<Name, BTreeSet<Holder>> {
        self.all.iter().map(|(name, named)| (name.clone(), named.holders.iter().cloned().collect())).collect()
    }

    /// The names requested.
    pub fn interest(&self) -> Interest {
        let asked = self.all.iter().filter(|(_, named)| named.asked);
        Interest::of(asked.map(|(name, named)| (name.0, reference(name, named))))
    }

    /// The names requested that had no first response yet.
    pub fn missing(&self) -> Interest {
        let missing = self.missing.iter().filter_map(|name| Some((name.0, reference(name, self.all.get(name)?))));
        Interest::of(missing)
    }

    /// Whether [`Self::missing`] changed since this was last called.
    pub fn take_missing_changed(&mut self) -> bool {
        std::mem::take(&mut self.missing_changed)
    }

    /// Changes of [`Self::interest`] since this was last called.
    pub fn take_asked(&mut self) -> Vec<SubscriptionChange> {
        let changed = std::mem::take(&mut self.asked_before);
        let asked = changed.into_iter().filter_map(|(key, before)| {
            let wanted = self.all.get(&key).is_some_and(|named| named.asked);
            let (kind, name, source) = key;
            (before != wanted).then_some(SubscriptionChange { kind, name, source, wanted })
        });
        asked.collect()
    }
}

fn reference((_, name, source): &Name, named: &Named) -> Reference {
    Reference { name: name.clone(), source: source.clone(), initial_fetch_timeout: named.timeout() }
}

impl Interest {
    fn of(all: impl Iterator<Item = (ResourceType, Reference)>) -> Self {
        let mut interest = Self::default();
        for (kind, reference) in all {
            match kind {
                ResourceType::Cluster => interest.clusters.push(reference),
                ResourceType::Listener => interest.listeners.push(reference),
                ResourceType::VirtualHost => interest.virtual_hosts.push(reference),
                ResourceType::Endpoint => interest.endpoints.push(reference),
                ResourceType::Route => interest.routes.push(reference),
                ResourceType::Secret => interest.secrets.push(reference),
                ResourceType::ExtensionConfig => interest.extensions.push(reference),
                ResourceType::NameTable | ResourceType::ProxyConfig => {}
            }
        }
        interest
    }

    #[cfg(debug_assertions)]
    pub(super) fn of_references(references: &References) -> Self {
        Self::of(references.iter().map(|((kind, name, source), timeout)| {
            (*kind, Reference { name: name.clone(), source: source.clone(), initial_fetch_timeout: *timeout })
        }))
    }
}
