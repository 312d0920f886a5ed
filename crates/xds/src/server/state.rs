//! The part that both protocols share: what to send next, in which order, and what an answer means.

use std::cell::OnceCell;
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use prost::Message as _;

use super::MAX_NACK_BYTES;
use super::interest::Interest;
use super::refusal::named_in;
use super::status::{Divergence, Nack, NackedResource, Status, TypeStatus};
use super::subscription::{Allowed, Change, Held, InFlight, MAX_RESPONSE_BYTES, Subscription};
use crate::evenkeel::{self, Rejections};
use crate::pb::google::rpc;
use crate::resource_set::TypeSet;
use crate::{Resource, ResourceSet, ResourceType, Version};

/// Maximum number of resources named for a rejection.
const MAX_NAMED_RESOURCES: usize = 100;

/// One stream, whichever protocol it speaks.
#[derive(Debug)]
pub(super) struct State {
    resources: Option<Arc<ResourceSet>>,
    subscriptions: [Subscription; ResourceType::ALL.len()],
    counts: [Counts; ResourceType::ALL.len()],
    last_nonce: u64,
    settled_generation: u64,
    /// Types whose digest is wrong, and whose resources the client must list.
    to_list: BTreeSet<ResourceType>,
    /// Whether there were changes that the protocol cannot express.
    unsaid: bool,
    divergence: Option<Arc<Divergence>>,
}

/// Counters and other status of one type.
#[derive(Debug, Default)]
struct Counts {
    pushes: u64,
    resources: u64,
    bytes: u64,
    rejects: u64,
    acked_generation: Option<u64>,
    nack: Option<Arc<Nack>>,
    ages: Option<Arc<evenkeel::Ages>>,
    reports: u64,
}

impl Default for State {
    fn default() -> Self {
        Self {
            resources: None,
            subscriptions: ResourceType::ALL.map(Subscription::new),
            counts: Default::default(),
            last_nonce: 0,
            settled_generation: 0,
            to_list: BTreeSet::new(),
            unsaid: false,
            divergence: None,
        }
    }
}

/// How a request's nonce relates to the responses sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nonce {
    /// It has none: a first or an unprompted request.
    None,
    /// It answers the response in flight.
    Answer,
    /// It is that of a response that was already answered, so the client changes its subscriptions.
    Current,
    /// It answers a response that a newer one has replaced.
    Stale,
}

/// A change with the further content of its response.
#[derive(Debug)]
pub(super) struct Push {
    pub change: Change,
    pub nonce: u64,
    pub generation: u64,
    /// Everything that a state-of-the-world client of a whole type should hold.
    pub listing: Option<TypeSet>,
}

impl State {
    pub fn set_resources(&mut self, resources: &Arc<ResourceSet>) {
        for subscription in self.subscriptions.iter_mut().filter(|s| !s.refusals.is_empty()) {
            let target = resources.type_set(subscription.kind);
            let kind = subscription.kind;
            let version = |name: &str| target.lookup(kind, name).map(|resource| resource.version);
            for name in subscription.refusals.drop_outdated(version) {
                subscription.withdraw(&name);
            }
        }
        self.resources = Some(resources.clone());
    }

    /// The subscription of one type and its target, which is empty before the first set.
    pub fn of(&mut self, kind: ResourceType) -> (&mut Subscription, TypeSet) {
        let target = self.resources.as_ref().map(|set| set.type_set(kind).clone()).unwrap_or_default();
        (&mut self.subscriptions[kind.index()], target)
    }

    /// Publishes what the stream subscribes to.
    pub fn note_interest(&self, interest: &Interest) {
        interest.note(&self.subscriptions);
    }

    /// The memory that the subscribed names use, in bytes.
    pub fn name_bytes(&self) -> usize {
        self.subscriptions.iter().map(Subscription::name_bytes).sum()
    }

    /// Whether this is the set that the client should hold.
    pub fn is_target(&self, resources: &Arc<ResourceSet>) -> bool {
        self.resources.as_ref().is_some_and(|aim| Arc::ptr_eq(aim, resources))
    }

    fn get(&self, kind: ResourceType) -> &Subscription {
        &self.subscriptions[kind.index()]
    }

    /// Processes the answer in a request, if it has one.
    pub fn on_nonce(&mut self, kind: ResourceType, nonce: &str, error: Option<&rpc::Status>, now: Duration) -> Nonce {
        if nonce.is_empty() {
            return Nonce::None;
        }
        let subscription = &mut self.subscriptions[kind.index()];
        let Some(sent) = subscription.in_flight.take_if(|in_flight| in_flight.nonce.to_string() == nonce) else {
            return if subscription.last_nonce.to_string() == nonce { Nonce::Current } else { Nonce::Stale };
        };
        match error {
            None => self.on_ack(kind, sent),
            Some(error) => self.on_nack(kind, sent, error, now),
        }
        Nonce::Answer
    }

    fn on_ack(&mut self, kind: ResourceType, sent: InFlight) {
        let subscription = &mut self.subscriptions[kind.index()];
        let counts = &mut self.counts[kind.index()];
        if !subscription.refusals.is_empty() {
            for (name, _, _) in subscription.contents(&sent) {
                subscription.refusals.accept(&name);
            }
        }
        counts.acked_generation = Some(sent.generation);
        if let Some(listing) = sent.listing {
            subscription.listed = listing;
        }
        counts.nack = match counts.nack.take() {
            Some(nack) if !subscription.refusals.is_empty() => {
                let searching = subscription.refusals.is_searching();
                let resources = if searching { nack.resources.clone() } else { limited(refused(subscription)) };
                let now = Nack { searching, resources, ..(*nack).clone() };
                Some(if now == *nack { nack } else { Arc::new(now) })
            }
            _ => None,
        };
    }

    /// Finds out what was refused: from the list of names if the client is one of ours, from the names in its message,
    /// or by sending halves. Resources that were not refused are sent again, unless the client said that it holds them.
    fn on_nack(&mut self, kind: ResourceType, sent: InFlight, error: &rpc::Status, now: Duration) {
        let (subscription, target) = self.of(kind);
        let mut contents = subscription.contents(&sent);
        // A client holds nothing for a name it unsubscribed from.
        contents.retain(|(name, _, _)| subscription.wants(name));
        let added: Vec<_> = contents
            .iter()
            .filter_map(|(name, held, resource)| Some((name.clone(), *held, resource.clone()?)))
            .collect();
        let exact = rejections(error);
        let names = added.iter().map(|(name, _, _)| name);
        let bad = match &exact {
            Some(listed) => names.filter(|name| listed.iter().any(|bad| **bad == ***name)).cloned().collect(),
            None if added.len() == 1 => names.cloned().collect(),
            None => named_in(&error.message, names),
        };
        if exact.is_none() && !added.is_empty() {
            // It is not known whether the rest of the response was accepted.
            let removed = contents.iter().filter(|(_, _, resource)| resource.is_none());
            removed.for_each(|(name, _, _)| subscription.correct(name, Held::Unknown));
        }
        let mut suspects = Vec::new();
        for (name, held, resource) in &added {
            if bad.contains(name) {
                subscription.correct(name, *held);
                if target.lookup(kind, name).is_some_and(|now| now.version == resource.version) {
                    subscription.refusals.refuse(name, resource, now)
                } else {
                    // The resource has changed since it was sent.
                    subscription.withdraw(name)
                }
            } else if exact.is_none() {
                subscription.correct(name, Held::Unknown);
                suspects.push(name.clone());
            } else {
                subscription.refusals.accept(name);
            }
        }
        if bad.is_empty() && suspects.len() > 1 {
            subscription.refusals.search(suspects);
        }
        let message = one_line(&error.message);
        let resources = if bad.is_empty() {
            added.iter().map(|(name, _, resource)| nacked(name, resource, 1)).collect()
        } else {
            refused(subscription)
        };
        let searching = subscription.refusals.is_searching();
        let nack = Nack { message, version: sent.generation.to_string(), resources: limited(resources), searching };
        let counts = &mut self.counts[kind.index()];
        counts.rejects += 1;
        counts.nack = Some(Arc::new(nack));
    }

    /// Processes a client's report of what it holds and how old changes were. After a wrong digest the client is asked
    /// for a list, and what the list shows to be wrong is sent again.
    pub fn on_report(&mut self, report: &evenkeel::Report) {
        for of in &report.types {
            let Some(kind) = ResourceType::from_type_url(&of.type_url) else { continue };
            let counts = &mut self.counts[kind.index()];
            if let Some(ages) = &of.ages {
                counts.ages = Some(Arc::new(ages.clone()));
                counts.reports += 1;
            }
            let subscription = &mut self.subscriptions[kind.index()];
            let last_nonce =
                if subscription.last_nonce == 0 { String::new() } else { subscription.last_nonce.to_string() };
            // While a response is in flight, both digests may be right.
            if !subscription.requested || subscription.in_flight.is_some() || of.nonce != last_nonce {
                continue;
            }
            let known: Option<Vec<(Arc<str>, Version)>> =
                subscription.holdings().map(|(name, version)| Some((name.clone(), version?))).collect();
            let Some(known) = known else { continue };
            let digest = crate::digest::of(known.iter().map(|(name, version)| (name, version.to_string())));
            if digest == of.digest {
                continue;
            }
            if !of.is_listing {
                self.to_list.insert(kind);
                continue;
            }
            let names = correct(subscription, &known, &of.held);
            let before = self.divergence.as_ref().map_or(0, |divergence| divergence.number);
            self.divergence = Some(Arc::new(Divergence { number: before + 1, kind, names }));
        }
    }

    /// The types whose resources the client must list.
    pub fn take_listing_requests(&mut self) -> BTreeSet<ResourceType> {
        std::mem::take(&mut self.to_list)
    }

    /// The next push in make-before-break order, recorded as sent. `full_listings`: whether each response has
    /// everything that the client wants of a type, if the client takes missing resources for removed: for clusters and
    /// listeners, and for whole types.
    pub fn next_push(&mut self, now: Duration, full_listings: bool) -> Option<Push> {
        let resources = self.resources.clone()?;
        loop {
            self.unsaid = false;
            let push = ResourceType::ALL.into_iter().find_map(|kind| self.ready(kind, &resources, now, full_listings));
            if push.is_some() {
                return push;
            }
            // Another type may have waited for a change that needed no response.
            if !self.unsaid {
                self.note_settled(&resources);
                return None;
            }
        }
    }

    fn ready(
        &mut self,
        kind: ResourceType,
        resources: &Arc<ResourceSet>,
        now: Duration,
        full_listings: bool,
    ) -> Option<Push> {
        if !self.get(kind).requested || self.get(kind).in_flight.is_some() {
            return None;
        }
        // Make first: send a listener or route only after the resources that it names.
        if users(ResourceType::Cluster).contains(&kind) && self.targets_pending(resources) {
            return None;
        }
        // Break last: remove a cluster or a secret, or say that there is none, when nothing that the client holds can name it any
        // more. The types that can name it are checked only if there is something to say.
        let target = resources.type_set(kind);
        let (before, from) = self.subscriptions.split_at_mut(kind.index());
        let (subscription, after) = from.split_first_mut()?;
        let others = || before.iter().chain(&*after).filter(|other| users(kind).contains(&other.kind));
        let known = OnceCell::new();
        let absences = || *known.get_or_init(|| !others().any(|user| is_pending(user, resources)));
        // A client that has rejected a listener or route continues with the version before.
        let removals = || absences() && !others().any(Subscription::refuses);
        let (change, mut in_flight) = loop {
            let owed = subscription.owes_reply;
            let is_list = full_listings && subscription.is_listed_whole();
            let max_bytes = if is_list { usize::MAX } else { MAX_RESPONSE_BYTES };
            let allowed = Allowed { removals: &removals, absences: &absences, now, max_bytes };
            let (change, in_flight) = subscription.take(target, allowed)?;
            // State of the world cannot express the removal of names of other types. The client unsubscribes when
            // nothing refers to them.
            if !full_listings || subscription.is_listed_whole() || !change.added.is_empty() || owed {
                break (change, in_flight);
            }
            self.unsaid = true;
        };
        self.last_nonce += 1;
        in_flight.nonce = self.last_nonce;
        in_flight.generation = resources.generation;
        in_flight.since = now;
        if full_listings && subscription.is_listed_whole() {
            in_flight.listing = Some(subscription.listing(target));
        }
        let push = Push {
            nonce: in_flight.nonce,
            generation: in_flight.generation,
            listing: in_flight.listing.clone(),
            change,
        };
        subscription.last_nonce = push.nonce;
        subscription.in_flight = Some(in_flight);
        self.warm(&push.change);
        let counts = &mut self.counts[kind.index()];
        counts.pushes += 1;
        counts.resources += push.change.added.len() as u64;
        counts.bytes += push.change.added.iter().map(|offer| offer.resource.encoded_len() as u64).sum::<u64>();
        Some(push)
    }

    /// Sends endpoints or routes again after their cluster or listener was replaced. The client waits for them anew but
    /// does not request them, because it never unsubscribed (Envoy, "warming"). If it has not subscribed to any yet,
    /// nothing is decoded.
    fn warm(&mut self, change: &Change) {
        let kind = match change.kind {
            ResourceType::Cluster => ResourceType::Endpoint,
            ResourceType::Listener => ResourceType::Route,
            _ => return,
        };
        let subscription = &mut self.subscriptions[kind.index()];
        if subscription.requested {
            for name in change.added.iter().flat_map(|offer| offer.resource.references()) {
                subscription.force(name);
            }
        }
    }

    /// Whether clusters are still to be sent or acknowledged, or subscribed endpoints were never sent. A client that
    /// takes all endpoints, by name or not, receives those of a cluster right after the cluster on the stream, so the
    /// users of the cluster can be sent before its acknowledgement.
    fn targets_pending(&self, resources: &ResourceSet) -> bool {
        let clusters = self.get(ResourceType::Cluster);
        let endpoints = self.get(ResourceType::Endpoint);
        (clusters.in_flight.is_some() && !endpoints.wildcard)
            || clusters.outstanding(resources.type_set(ResourceType::Cluster)).0
            || endpoints.has_unsent(resources.type_set(ResourceType::Endpoint))
    }

    fn note_settled(&mut self, resources: &ResourceSet) {
        if self.settled_generation == resources.generation {
            return;
        }
        let any_requested = self.subscriptions.iter().any(|subscription| subscription.requested);
        // Resources that a rejected version keeps in use are not waited for.
        let is_kept = |kind| self.subscriptions.iter().any(|user| users(kind).contains(&user.kind) && user.refuses());
        let settled = self.subscriptions.iter().all(|subscription| {
            let (adds, removes) = subscription.outstanding(resources.type_set(subscription.kind));
            let removes = removes && !is_kept(subscription.kind);
            subscription.in_flight.is_none() && !subscription.refusals.is_searching() && !adds && !removes
        });
        if any_requested && settled {
            self.settled_generation = resources.generation;
        }
    }

    /// When to poll again even if nothing happens, to offer refused resources again.
    pub fn next_timer(&self, now: Duration) -> Option<Duration> {
        self.subscriptions.iter().filter_map(|s| s.refusals.next_due()).filter(|due| *due > now).min()
    }

    pub fn status(&self) -> Status {
        let of = |(subscription, counts): (&Subscription, &Counts)| TypeStatus {
            kind: subscription.kind,
            wildcard: subscription.wildcard,
            names: subscription.names().len(),
            acked_version: counts.acked_generation,
            in_flight_version: subscription.in_flight.as_ref().map(|in_flight| in_flight.generation),
            waiting_since: subscription.in_flight.as_ref().map(|in_flight| in_flight.since),
            pushes: counts.pushes,
            resources_sent: counts.resources,
            bytes_sent: counts.bytes,
            rejects: counts.rejects,
            nack: counts.nack.clone().filter(|_| !subscription.refusals.is_empty()),
            ages: counts.ages.clone(),
            reports: counts.reports,
        };
        let all = self.subscriptions.iter().zip(&self.counts).filter(|(subscription, _)| subscription.requested);
        Status {
            settled_generation: self.settled_generation,
            roots: self.held_roots(),
            types: all.map(of).collect(),
            divergence: self.divergence.clone(),
        }
    }

    /// The version of the roots that the client holds; `None` if that is not known.
    fn held_roots(&self) -> Option<Version> {
        let subscription = &self.subscriptions[ResourceType::ProxyConfig.index()];
        match subscription.held("") {
            Held::Version(version) if subscription.in_flight.is_none() => Some(version),
            _ => None,
        }
    }

    /// Checks what must hold after every step.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        self.subscriptions.iter().for_each(Subscription::check_invariants);
    }
}

/// The types whose resources name those of this type.
fn users(kind: ResourceType) -> &'static [ResourceType] {
    match kind {
        ResourceType::Cluster | ResourceType::Endpoint => {
            &[ResourceType::Listener, ResourceType::Route, ResourceType::VirtualHost]
        }
        ResourceType::Secret => &[ResourceType::Cluster, ResourceType::Listener],
        ResourceType::ExtensionConfig => &[ResourceType::Listener],
        _ => &[],
    }
}

/// Whether something of this type still has to be sent or answered. Removals of what others name are not counted: they wait
/// themselves.
fn is_pending(subscription: &Subscription, resources: &ResourceSet) -> bool {
    let (adds, removes) = subscription.outstanding(resources.type_set(subscription.kind));
    subscription.in_flight.is_some() || adds || (removes && users(subscription.kind).is_empty())
}

/// Corrects the record of what the client holds, and returns the names that differed.
fn correct(
    subscription: &mut Subscription,
    known: &[(Arc<str>, Version)],
    held: &HashMap<String, String>,
) -> Vec<String> {
    let mut wrong = Vec::new();
    for (name, version) in known {
        let there = match held.get(&**name).map(|text| text.parse()) {
            Some(Ok(there)) if there == *version => continue,
            Some(Ok(there)) => Held::Version(there),
            Some(Err(_)) => Held::Unknown,
            None => Held::Nothing,
        };
        subscription.correct(name, there);
        wrong.push(name.to_string());
    }
    let names: BTreeSet<&str> = known.iter().map(|(name, _)| &**name).collect();
    for name in held.keys().filter(|name| !names.contains(name.as_str())) {
        subscription.correct(&name.as_str().into(), Held::Unknown);
        wrong.push(name.clone());
    }
    wrong.sort();
    wrong
}

/// The names that one of our clients refused; it holds the rest of the response.
fn rejections(error: &rpc::Status) -> Option<Vec<String>> {
    let detail = error.details.iter().find(|any| any.type_url == crate::type_url::REJECTIONS)?;
    Rejections::decode(&*detail.value).ok().map(|message| message.names)
}

/// A client's message in one line, for logs and tables: Envoy writes a line for each listener.
fn one_line(message: &str) -> String {
    let message = message.get(..message.floor_char_boundary(MAX_NACK_BYTES)).unwrap_or_default();
    let lines = message.split(char::is_control).map(str::trim).filter(|line| !line.is_empty());
    lines.collect::<Vec<_>>().join("; ")
}

fn refused(subscription: &Subscription) -> Vec<NackedResource> {
    let one = |(name, refused): (&Arc<str>, &super::refusal::Refused)| NackedResource {
        name: name.to_string(),
        origin: refused.origin.as_deref().map(str::to_owned),
        times: refused.times,
    };
    subscription.refusals.all().map(one).collect()
}

fn nacked(name: &str, resource: &Resource, times: u32) -> NackedResource {
    NackedResource { name: name.to_owned(), origin: resource.origin.as_deref().map(str::to_owned), times }
}

fn limited(mut resources: Vec<NackedResource>) -> Vec<NackedResource> {
    resources.truncate(MAX_NAMED_RESOURCES);
    resources
}
