//! One type on one stream: what the client subscribes to, what it holds, and how that differs from what it should hold.
//!
//! What a client holds is not recorded name by name. It is the set that it was last updated to (a persistent map,
//! shared with all streams in the same state), plus the few names that differ from it. So an up-to-date stream costs
//! nothing per resource, and changes are found as the difference of two maps.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use imbl::OrdSet;

use super::key::affected;
use super::refusal::Refusals;
use super::{MAX_NAME_BYTES, MAX_NAMES_PER_TYPE, RequestError};
use crate::resource_set::{TypeSet, differences};
use crate::{Resource, ResourceType, Version};

/// Maximum size of one response, in bytes, unless a single resource is larger; the rest goes into the next one, after the answer.
/// gRPC's own clients, among them Istio's agent, refuse messages of more than 4 MiB. The rest of the 4 MiB is for the head.
/// Lists that a state-of-the-world client takes for complete cannot be divided.
pub(super) const MAX_RESPONSE_BYTES: usize = 4 * 1024 * 1024 - 64 * 1024;

/// Bytes of a resource in a response beside its content and its name, at most: tags, lengths, the cause.
const RESOURCE_OVERHEAD: usize = 128;

/// Memory that a name uses beside its own bytes, in bytes: its entries among the subscribed names and the pending ones.
const NAME_OVERHEAD: usize = 64;

/// Memory that a name uses, in bytes; less if a resource has the name, which many streams then share.
fn cost(name: &str) -> usize {
    name.len() + NAME_OVERHEAD
}

/// One type on one stream.
#[derive(Debug)]
pub(super) struct Subscription {
    pub kind: ResourceType,
    /// Whether the client has requested the type at all.
    pub requested: bool,
    pub wildcard: bool,
    names: OrdSet<Arc<str>>,
    /// See [`name_bytes`](Self::name_bytes).
    name_bytes: usize,
    /// What the client holds of its subscribed names, except for names in `behind`.
    seen: TypeSet,
    behind: BTreeMap<Arc<str>, PendingName>,
    pub refusals: Refusals,
    /// Nonce of the response sent last, answered or not.
    pub last_nonce: u64,
    pub in_flight: Option<InFlight>,
    /// Whether a response is due even if it is empty.
    pub owes_reply: bool,
    /// The last list that a state-of-the-world client has accepted.
    pub listed: TypeSet,
}

/// A name for which the client's state differs from `seen`.
#[derive(Clone, Copy, Debug)]
struct PendingName {
    held: Held,
    /// Whether to send it even if the client holds this version.
    forced: bool,
}

/// The client's state for a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Held {
    /// It holds nothing, and was not told that the resource does not exist.
    Nothing,
    /// It holds nothing, and was told that the resource does not exist.
    Absent,
    Version(Version),
    /// It holds a resource whose version is not known: one in another format, or one of two versions.
    Unknown,
}

/// A response that is not answered yet.
#[derive(Debug)]
pub(super) struct InFlight {
    pub nonce: u64,
    pub generation: u64,
    pub since: Duration,
    /// `seen` before and after it was sent.
    from: TypeSet,
    to: TypeSet,
    /// Names that were sent beside the difference of `from` and `to`, and what the client held before.
    besides: Vec<(Arc<str>, Held)>,
    /// Names in the difference of `from` and `to` that were not sent.
    without: BTreeSet<Arc<str>>,
    /// Whether the response updates from `from` to `to`; a response with single names leaves the rest as it is.
    pub whole: bool,
    /// The listing that a state-of-the-world client was sent.
    pub listing: Option<TypeSet>,
}

/// One resource of a response, under the name by which the client subscribed.
#[derive(Clone, Debug)]
pub(super) struct OfferedResource {
    pub asked: Arc<str>,
    pub resource: Arc<Resource>,
}

/// What one response changes for the client.
#[derive(Debug)]
pub(super) struct Change {
    pub kind: ResourceType,
    pub added: Vec<OfferedResource>,
    pub removed: Vec<Arc<str>>,
    /// Names that were requested and do not exist.
    pub absent: Vec<Arc<str>>,
}

impl Change {
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.absent.is_empty()
    }
}

/// A difference between what the client holds and the target in one name.
struct NameDiff<'a> {
    name: &'a Arc<str>,
    held: Held,
    target: Option<&'a Arc<Resource>>,
    forced: bool,
}

/// The changes that may be sent now.
#[derive(Clone, Copy)]
pub(super) struct Allowed<'a> {
    /// Whether removals are allowed; called only if there is something to remove.
    pub removals: &'a dyn Fn() -> bool,
    /// Whether the client may be told that a name it asks for, and of which it holds nothing, does not exist; called only
    /// if there is such a name.
    pub absences: &'a dyn Fn() -> bool,
    pub now: Duration,
    /// Size at which the rest is left for another response, in bytes.
    pub max_bytes: usize,
}

impl Subscription {
    pub fn new(kind: ResourceType) -> Self {
        Self {
            kind,
            requested: false,
            wildcard: false,
            names: OrdSet::new(),
            name_bytes: 0,
            seen: TypeSet::default(),
            behind: BTreeMap::new(),
            refusals: Refusals::default(),
            last_nonce: 0,
            in_flight: None,
            owes_reply: false,
            listed: TypeSet::default(),
        }
    }

    pub fn names(&self) -> &OrdSet<Arc<str>> {
        &self.names
    }

    /// The memory that the names use, in bytes.
    pub fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    pub fn wants(&self, name: &str) -> bool {
        self.wildcard || self.names.contains(name)
    }

    /// Adds a name; an error above the limit. Returns whether it is new.
    pub fn subscribe(&mut self, name: &str, target: &TypeSet) -> Result<bool, RequestError> {
        if self.names.contains(name) {
            return Ok(false);
        }
        if self.names.len() >= MAX_NAMES_PER_TYPE {
            return Err(RequestError::TooManyNames { kind: self.kind });
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(RequestError::NameTooLong { kind: self.kind, bytes: name.len() });
        }
        // Use the set's own copy of the name if it has one, because thousands of streams subscribe to the same names.
        let name = target.resources.get_key_value(name).map_or_else(|| Arc::from(name), |(name, _)| name.clone());
        if !self.wildcard {
            self.behind.insert(name.clone(), PendingName { held: Held::Nothing, forced: false });
        } else if self.held(&name) == Held::Nothing {
            // The client did not have the resource under this name before.
            self.behind.entry(name.clone()).or_insert(PendingName { held: Held::Nothing, forced: false });
        }
        self.name_bytes += cost(&name);
        self.names.insert(name);
        Ok(true)
    }

    /// A name is requested again: sends the resource again, or that it does not exist.
    pub fn ask_again(&mut self, name: &str) {
        let Some(name) = self.names.get(name).cloned() else { return };
        // A client that drops a name and subscribes to it again in one request has lost the resource.
        let held = match self.held(&name) {
            Held::Absent | Held::Nothing => Held::Nothing,
            Held::Version(_) | Held::Unknown => Held::Unknown,
        };
        self.refusals.forget(&name);
        self.behind.insert(name, PendingName { held, forced: true });
    }

    /// Removes a name.
    pub fn unsubscribe(&mut self, name: &str) {
        let held = self.held(name);
        match self.names.remove(name) {
            Some(name) => self.name_bytes -= cost(&name),
            None => return,
        }
        match (self.wildcard, held) {
            (true, Held::Absent | Held::Nothing) => _ = self.behind.remove(name),
            (true, _) => {}
            (false, _) => self.drop_unwanted(),
        }
    }

    /// Subscribes to everything, or only to the names from now on.
    pub fn set_wildcard(&mut self, wildcard: bool) {
        if wildcard == self.wildcard {
            return;
        }
        if wildcard {
            // The client holds what it was subscribed to before, and nothing of the rest.
            let mut seen = TypeSet::default();
            for name in &self.names {
                if let Some(resource) = self.seen.resources.get(name) {
                    seen.insert(resource.clone());
                }
            }
            self.seen = seen;
        }
        self.wildcard = wildcard;
        self.drop_unwanted();
    }

    /// Replaces all names; returns whether one is new.
    pub fn set_names<'a>(
        &mut self,
        names: impl Iterator<Item = &'a str>,
        target: &TypeSet,
    ) -> Result<bool, RequestError> {
        let wanted: BTreeSet<&str> = names.collect();
        if !self.names.iter().all(|name| wanted.contains(&**name)) {
            self.names = self.names.iter().filter(|name| wanted.contains(&***name)).cloned().collect();
            self.name_bytes = self.names.iter().map(|name| cost(name)).sum();
        }
        self.drop_unwanted();
        let mut more = false;
        for name in wanted {
            more |= self.subscribe(name, target)?;
        }
        Ok(more)
    }

    fn drop_unwanted(&mut self) {
        if !self.wildcard {
            let names = &self.names;
            self.behind.retain(|name, _| names.contains(name));
            self.refusals.retain(|name| names.contains(name));
        }
    }

    /// Sets what the client says it holds from an earlier stream; called before anything is sent.
    pub fn resume<'a>(&mut self, versions: impl Iterator<Item = (&'a str, &'a str)>, target: &TypeSet) {
        let announced: BTreeMap<&str, Held> = versions
            .map(|(name, version)| (name, version.parse().map_or(Held::Unknown, Held::Version)))
            .filter(|(name, _)| self.wants(name))
            .collect();
        if !self.wildcard {
            // All subscribed names are in `behind` by now.
            self.seen = target.clone();
        }
        if announced.is_empty() {
            return;
        }
        let held_of = |name: &str| announced.get(name).copied().unwrap_or(Held::Nothing);
        self.seen = target.clone();
        let agrees =
            |held: Held, target: Option<&Arc<Resource>>| target.map(|r| Held::Version(r.version)) == Some(held);
        if self.wildcard {
            for (name, resource) in target.resources.iter().filter(|(name, _)| !self.names.contains(*name)) {
                let held = held_of(name);
                if !agrees(held, Some(resource)) {
                    self.behind.insert(name.clone(), PendingName { held, forced: false });
                }
            }
            for (name, held) in &announced {
                if !target.resources.contains_key(*name) && !self.names.contains(*name) {
                    self.behind.insert((*name).into(), PendingName { held: *held, forced: false });
                }
            }
        }
        for name in &self.names {
            let held = held_of(name);
            if agrees(held, target.lookup(self.kind, name)) {
                _ = self.behind.remove(name)
            } else {
                _ = self.behind.insert(name.clone(), PendingName { held, forced: false })
            }
        }
    }

    /// Returns the client's state for a name, as far as it is known.
    pub fn held(&self, name: &str) -> Held {
        if let Some(behind) = self.behind.get(name) {
            return behind.held;
        }
        let explicit = self.names.contains(name);
        let seen = if explicit { self.seen.lookup(self.kind, name) } else { self.seen.resources.get(name) };
        match seen {
            Some(resource) if explicit || self.wildcard => Held::Version(resource.version),
            None if explicit && !self.wildcard => Held::Absent,
            _ => Held::Nothing,
        }
    }

    /// Sends a name again even though the client holds it.
    pub fn force(&mut self, name: &Arc<str>) {
        if !self.wants(name) {
            return;
        }
        let held = self.held(name);
        if matches!(held, Held::Version(_) | Held::Unknown) {
            self.behind.insert(name.clone(), PendingName { held, forced: true });
        }
    }

    /// The version that the client refused is not the target any more. The client gets a response even if the target is
    /// what it holds, because until then it reports the refusal.
    pub fn withdraw(&mut self, name: &Arc<str>) {
        if self.wants(name) {
            self.behind.insert(name.clone(), PendingName { held: self.held(name), forced: true });
        }
    }

    /// Records that the client holds something else for a name than was recorded.
    pub fn correct(&mut self, name: &Arc<str>, held: Held) {
        if self.wants(name) || !matches!(held, Held::Nothing) {
            self.behind.insert(name.clone(), PendingName { held, forced: false });
        }
    }

    /// All names in which the client differs from the target, including refused ones.
    fn name_diffs<'a>(&'a self, target: &'a TypeSet) -> impl Iterator<Item = NameDiff<'a>> {
        let known = self.behind.iter().map(|(name, behind)| NameDiff {
            name,
            held: behind.held,
            target: self.target(target, name),
            forced: behind.forced,
        });
        let named = !self.names.is_empty() && self.kind.has_aliases();
        let all = self.wildcard || !named;
        // Most sets are the one that the client was last updated to; checking that is cheaper than to begin a
        // comparison.
        let same = self.seen.resources.ptr_eq(&target.resources);
        let differing = (!same).then(|| differences(self.kind, &self.seen.resources, &target.resources));
        let fresh = differing
            .into_iter()
            .flatten()
            .filter(move |d| all && self.wants(d.name) && !(named && self.names.contains(d.name)))
            .filter(|d| !self.behind.contains_key(d.name))
            .map(|d| NameDiff {
                name: d.name,
                held: d.old.map_or(Held::Nothing, |old| Held::Version(old.version)),
                target: d.new,
                forced: false,
            });
        known
            .chain(fresh)
            .chain((named && !same).then(|| self.renamed(target)).into_iter().flatten())
            .filter(|diff| diff.is_different())
    }

    /// Subscribed names that now belong to another resource, or to none.
    fn renamed<'a>(&'a self, target: &'a TypeSet) -> Vec<NameDiff<'a>> {
        let affected = affected(&self.names, differences(self.kind, &self.seen.resources, &target.resources));
        let diff = |name: &'a Arc<str>| {
            let (old, new) = (self.seen.lookup(self.kind, name), target.lookup(self.kind, name));
            let differs = old.map(|r| r.version) != new.map(|r| r.version) && !self.behind.contains_key(name);
            let held = old.map_or(Held::Absent, |old| Held::Version(old.version));
            differs.then_some(NameDiff { name, held, target: new, forced: false })
        };
        affected.into_iter().filter_map(diff).collect()
    }

    fn target<'a>(&self, target: &'a TypeSet, name: &str) -> Option<&'a Arc<Resource>> {
        if self.names.contains(name) { target.lookup(self.kind, name) } else { target.resources.get(name) }
    }

    /// Whether the client has refused a version of a resource that it still subscribes to.
    pub fn refuses(&self) -> bool {
        !self.refusals.is_empty()
    }

    /// Whether there is anything to add, and anything to remove, apart from refused versions.
    pub fn outstanding(&self, target: &TypeSet) -> (bool, bool) {
        let (mut adds, mut removes) = (false, false);
        if !self.requested {
            return (adds, removes);
        }
        for diff in self.name_diffs(target).filter(|diff| !self.refusals.holds_back(diff.name, diff.target)) {
            match diff.target {
                Some(_) => adds = true,
                None => removes = true,
            }
            if adds && removes {
                break;
            }
        }
        (adds, removes)
    }

    /// Whether there is a resource to send of which the client holds nothing, apart from refused versions.
    pub fn has_unsent(&self, target: &TypeSet) -> bool {
        let owed = |diff: NameDiff<'_>| {
            diff.target.is_some()
                && matches!(diff.held, Held::Nothing | Held::Absent)
                && !self.refusals.holds_back(diff.name, diff.target)
        };
        self.requested && self.name_diffs(target).any(owed)
    }

    /// The content of the next response, recorded as sent; `None` if there is nothing to send.
    pub fn take(&mut self, target: &TypeSet, allowed: Allowed<'_>) -> Option<(Change, InFlight)> {
        if !self.requested || self.in_flight.is_some() {
            return None;
        }
        while let Some(group) = self.refusals.next_group() {
            let (change, in_flight) = self.take_names(&group, target, allowed);
            if !change.is_empty() {
                return Some((change, in_flight));
            }
        }
        let (change, in_flight) = self.take_all(target, allowed);
        if !change.is_empty() || self.owes_reply {
            self.owes_reply = false;
            return Some((change, in_flight));
        }
        // There is nothing new, so refused resources that are due are offered again. They are sent separately, so that
        // a refusal affects no other resource.
        let due = self.refusals.due(allowed.now);
        let (change, in_flight) = self.take_names(&due, target, allowed);
        if change.is_empty() {
            // The client no longer subscribes to the name, or the version has changed.
            due.iter().for_each(|name| self.refusals.forget(name));
            return None;
        }
        Some((change, in_flight))
    }

    fn take_all(&mut self, target: &TypeSet, allowed: Allowed<'_>) -> (Change, InFlight) {
        let mut change = Change { kind: self.kind, added: Vec::new(), removed: Vec::new(), absent: Vec::new() };
        let mut besides = Vec::new();
        let mut left: Vec<(Arc<str>, PendingName)> = Vec::new();
        let mut bytes = 0;
        for diff in self.name_diffs(target) {
            let size = diff.size();
            let held_back = self.refusals.holds_back(diff.name, diff.target)
                || !diff.is_allowed(allowed)
                || (bytes + size > allowed.max_bytes && !change.is_empty());
            if held_back {
                left.push((diff.name.clone(), PendingName { held: diff.held, forced: diff.forced }));
                continue;
            }
            bytes += size;
            if self.behind.contains_key(diff.name) {
                besides.push((diff.name.clone(), diff.held));
            }
            diff.put_into(&mut change);
        }
        let without = left.iter().map(|(name, _)| name.clone()).collect();
        self.behind = left.into_iter().collect();
        let from = std::mem::replace(&mut self.seen, target.clone());
        let in_flight = InFlight::new(from, target.clone(), besides, without, true);
        (change, in_flight)
    }

    /// Like [`take_all`](Self::take_all), but only for these names, in which the client differs from the target.
    fn take_names(&mut self, names: &[Arc<str>], target: &TypeSet, allowed: Allowed<'_>) -> (Change, InFlight) {
        let mut change = Change { kind: self.kind, added: Vec::new(), removed: Vec::new(), absent: Vec::new() };
        let mut besides = Vec::new();
        for name in names {
            let Some(behind) = self.behind.get(name).copied() else { continue };
            let diff = NameDiff { name, held: behind.held, target: self.target(target, name), forced: behind.forced };
            if !diff.is_different() || !diff.is_allowed(allowed) {
                continue;
            }
            besides.push((name.clone(), behind.held));
            diff.put_into(&mut change);
        }
        // From now on the client counts as holding the target's versions of these names.
        for (name, _) in &besides {
            match self.target(target, name).cloned() {
                Some(resource) if self.seen_as(name) == Some(resource.version) => _ = self.behind.remove(name),
                Some(resource) => {
                    let held = Held::Version(resource.version);
                    self.behind.insert(name.clone(), PendingName { held, forced: false });
                }
                None => {
                    let held = if self.names.contains(name) { Held::Absent } else { Held::Nothing };
                    self.behind.insert(name.clone(), PendingName { held, forced: false });
                }
            }
        }
        (change, InFlight::new(self.seen.clone(), target.clone(), besides, BTreeSet::new(), false))
    }

    fn seen_as(&self, name: &str) -> Option<Version> {
        self.target(&self.seen, name).map(|resource| resource.version)
    }

    /// The content of a response: each name, what the client held before, and the resource sent.
    pub fn contents(&self, sent: &InFlight) -> Vec<(Arc<str>, Held, Option<Arc<Resource>>)> {
        let of = |name: &Arc<str>, held| (name.clone(), held, self.target(&sent.to, name).cloned());
        let mut all: Vec<_> = sent.besides.iter().map(|(name, held)| of(name, *held)).collect();
        if sent.whole {
            let besides: BTreeSet<Arc<str>> = sent.besides.iter().map(|(name, _)| name.clone()).collect();
            let new = |name: &Arc<str>| !besides.contains(name) && !sent.without.contains(name);
            let before = Self { seen: sent.from.clone(), ..self.without_state() };
            all.extend(before.name_diffs(&sent.to).filter(|diff| new(diff.name)).map(|diff| of(diff.name, diff.held)));
        }
        all
    }

    fn without_state(&self) -> Self {
        Self {
            requested: true,
            wildcard: self.wildcard,
            names: self.names.clone(),
            name_bytes: self.name_bytes,
            ..Self::new(self.kind)
        }
    }

    /// Whether a state-of-the-world client treats resources that a response leaves out as removed. It does so for
    /// wildcard subscriptions, and for clusters and listeners also when it subscribed by name (the xDS protocol,
    /// "Grouping Resources into Responses").
    pub fn is_listed_whole(&self) -> bool {
        self.wildcard || matches!(self.kind, ResourceType::Cluster | ResourceType::Listener)
    }

    fn seen_by_name(&self) -> TypeSet {
        let mut named = TypeSet::default();
        let found = self.names.iter().filter_map(|name| self.seen.resources.get(name));
        found.for_each(|resource| named.insert(resource.clone()));
        named
    }

    /// The full listing that a state-of-the-world client is sent with a change: everything that it holds afterwards.
    /// Names that are held back are listed in the version that the client holds.
    pub fn listing(&self, target: &TypeSet) -> TypeSet {
        let mut listing = if self.wildcard { self.seen.clone() } else { self.seen_by_name() };
        for (name, behind) in &self.behind {
            let sent = target.resources.get(name).filter(|r| behind.held == Held::Version(r.version));
            match sent.or_else(|| self.listed.resources.get(name)) {
                Some(resource) => listing.insert(resource.clone()),
                None => _ = listing.remove(name),
            }
        }
        listing
    }

    /// Every name that the client holds, with its version; `None` if the version is unknown.
    pub fn holdings(&self) -> impl Iterator<Item = (&Arc<str>, Option<Version>)> {
        let version = |held: Held| match held {
            Held::Version(version) => Some(Some(version)),
            Held::Unknown => Some(None),
            Held::Nothing | Held::Absent => None,
        };
        let seen = self.seen.resources.keys().filter(|name| self.wildcard && !self.behind.contains_key(*name));
        let seen = seen.filter(|name| !self.names.contains(*name));
        let besides = self.behind.keys().filter(|name| !self.names.contains(*name));
        let all = seen.chain(besides).chain(self.names.iter());
        all.filter_map(move |name| Some((name, version(self.held(name))?)))
    }

    /// Checks what must hold after every step.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        let kind = self.kind;
        assert!(self.requested || self.behind.is_empty(), "{kind}: sent without a request");
        assert!(self.requested || self.in_flight.is_none(), "{kind}: in flight without a request");
        let bytes: usize = self.names.iter().map(|name| cost(name)).sum();
        assert_eq!(self.name_bytes, bytes, "{kind}: names");
    }
}

impl InFlight {
    fn new(
        from: TypeSet,
        to: TypeSet,
        besides: Vec<(Arc<str>, Held)>,
        without: BTreeSet<Arc<str>>,
        whole: bool,
    ) -> Self {
        Self { nonce: 0, generation: 0, since: Duration::ZERO, from, to, besides, without, whole, listing: None }
    }
}

impl NameDiff<'_> {
    /// Whether it may be sent now.
    fn is_allowed(&self, allowed: Allowed<'_>) -> bool {
        match (self.target, self.held) {
            (Some(_), _) => true,
            (None, Held::Nothing | Held::Absent) => (allowed.absences)(),
            (None, Held::Version(_) | Held::Unknown) => (allowed.removals)(),
        }
    }

    /// Its bytes in a response, at most.
    fn size(&self) -> usize {
        // The name may be in it twice, as that of a resource that does not exist and as its alias.
        self.target.map_or(self.name.len(), |resource| resource.encoded_len()) + self.name.len() + RESOURCE_OVERHEAD
    }

    /// Whether there is really a difference, which must be sent.
    fn is_different(&self) -> bool {
        match (self.target, self.held) {
            (None, Held::Absent) => false,
            (None, _) => true,
            (Some(target), Held::Version(version)) => self.forced || target.version != version,
            (Some(_), _) => true,
        }
    }

    fn put_into(&self, change: &mut Change) {
        match (self.target, self.held) {
            (Some(resource), _) => {
                change.added.push(OfferedResource { asked: self.name.clone(), resource: resource.clone() });
            }
            (None, Held::Nothing | Held::Absent) => change.absent.push(self.name.clone()),
            (None, _) => change.removed.push(self.name.clone()),
        }
    }
}
