//! What both protocols share: who subscribed to what, what was sent, what has to go out next.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::status::NackedResource;
use super::{MAX_NACK_BYTES, MAX_NAMES_PER_TYPE, Nack, RequestError, Status, TypeStatus};
use crate::pb::google::rpc;
use crate::{Resource, ResourceSet, ResourceType, Version};

/// One stream, whichever protocol it speaks.
#[derive(Debug, Default)]
pub(super) struct State {
    resources: Option<Arc<ResourceSet>>,
    types: [TypeState; ResourceType::ALL.len()],
    last_nonce: u64,
    settled_generation: u64,
}

/// One type on one stream.
#[derive(Debug, Default)]
pub(super) struct TypeState {
    /// Whether the client asked for the type at all.
    pub requested: bool,
    pub wildcard: bool,
    pub names: BTreeSet<Arc<str>>,
    /// What the client has been sent, or said it held when it connected.
    pub held: BTreeMap<Arc<str>, Held>,
    /// Names to send though the client has this version.
    pub forced: BTreeSet<Arc<str>>,
    /// A response is due even with nothing in it.
    pub owes_reply: bool,
    in_flight: Option<InFlight>,
    /// Nonce of the response sent last, answered or not.
    last_nonce: String,
    acked_version: Option<String>,
    nack: Option<Nack>,
}

#[derive(Clone, Debug)]
pub(super) enum Held {
    /// Sent on this stream.
    Resource(Arc<Resource>),
    /// Held since an earlier stream, by the client's word; `None` if the version is none of ours.
    Version(Option<Version>),
    /// The client was told that there is no such resource.
    Absent,
}

impl Held {
    fn version(&self) -> Option<Version> {
        match self {
            Self::Resource(resource) => Some(resource.version),
            Self::Version(version) => *version,
            Self::Absent => None,
        }
    }
}

#[derive(Debug)]
struct InFlight {
    nonce: String,
    version: String,
    resources: Vec<Arc<Resource>>,
}

/// What one response changes for the client.
#[derive(Debug)]
pub(super) struct Change {
    pub kind: ResourceType,
    pub added: Vec<Arc<Resource>>,
    pub removed: Vec<Arc<str>>,
}

/// How a request's nonce relates to what was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nonce {
    /// It carries none: a first or an unprompted request.
    None,
    /// It answers the response in flight.
    Answer,
    /// It follows a response that was answered before: the client changes what it asks for.
    Current,
    /// It answers one that a newer has replaced.
    Stale,
}

impl State {
    pub fn set_resources(&mut self, resources: &Arc<ResourceSet>) {
        self.resources = Some(resources.clone());
    }

    pub fn of(&mut self, kind: ResourceType) -> &mut TypeState {
        &mut self.types[kind.index()]
    }

    /// Notes the answer a request carries, if any.
    pub fn on_nonce(&mut self, kind: ResourceType, nonce: &str, error: Option<&rpc::Status>) -> Nonce {
        if nonce.is_empty() {
            return Nonce::None;
        }
        let state = self.of(kind);
        let Some(answered) = state.in_flight.take_if(|in_flight| in_flight.nonce == nonce) else {
            return if state.last_nonce == nonce { Nonce::Current } else { Nonce::Stale };
        };
        match error {
            None => {
                state.acked_version = Some(answered.version);
                state.nack = None;
            }
            Some(error) => state.nack = Some(nack(error, answered)),
        }
        Nonce::Answer
    }

    /// The next change to send, in make-before-break order. What it returns counts as sent.
    pub fn next_change(&mut self) -> Option<Change> {
        let change = ResourceType::ALL.into_iter().find_map(|kind| self.ready_change(kind));
        match change {
            Some(change) => {
                self.commit(&change);
                Some(change)
            }
            None => {
                self.note_settled();
                None
            }
        }
    }

    fn ready_change(&self, kind: ResourceType) -> Option<Change> {
        let state = &self.types[kind.index()];
        if state.in_flight.is_some() {
            return None;
        }
        let mut change = self.pending(kind)?;
        match kind {
            // Break last: a cluster goes when no listener or route the client holds can name it any more.
            ResourceType::Cluster | ResourceType::Endpoint if self.users_behind() => change.removed.clear(),
            // Make first: what a listener or route names is on its way already.
            ResourceType::Listener | ResourceType::Route if self.targets_behind() => return None,
            _ => {}
        }
        let worth_sending = state.owes_reply || !change.added.is_empty() || !change.removed.is_empty();
        worth_sending.then_some(change)
    }

    /// How what the client holds of a type differs from what it should hold. `None` when it never asked.
    fn pending(&self, kind: ResourceType) -> Option<Change> {
        let state = &self.types[kind.index()];
        let resources = self.resources.as_ref().filter(|_| state.requested)?;
        let all = resources.of(kind);
        let differs = |name: &str, resource: &Resource| {
            state.forced.contains(name) || state.held.get(name).and_then(Held::version) != Some(resource.version)
        };
        let mut added = Vec::new();
        if state.wildcard {
            added.extend(all.iter().filter(|(name, resource)| differs(name, resource)).map(|(_, r)| r.clone()));
        } else {
            let wanted = state.names.iter().filter_map(|name| all.get(name));
            added.extend(wanted.filter(|resource| differs(&resource.name, resource)).cloned());
        }
        let gone = |name: &&Arc<str>| !all.contains_key(*name);
        let held = state.held.iter().filter(|(_, held)| !matches!(held, Held::Absent)).map(|(name, _)| name);
        let mut removed: Vec<Arc<str>> = held.filter(gone).cloned().collect();
        let never_told = |name: &&Arc<str>| !state.held.contains_key(*name);
        removed.extend(state.names.iter().filter(gone).filter(never_told).cloned());
        Some(Change { kind, added, removed })
    }

    /// Whether listeners or routes are still to be sent or answered.
    fn users_behind(&self) -> bool {
        [ResourceType::Listener, ResourceType::Route].into_iter().any(|kind| {
            self.types[kind.index()].in_flight.is_some()
                || self.pending(kind).is_some_and(|change| !change.added.is_empty() || !change.removed.is_empty())
        })
    }

    /// Whether clusters are still to be sent or answered, or endpoints were asked for and never sent.
    fn targets_behind(&self) -> bool {
        let clusters = &self.types[ResourceType::Cluster.index()];
        let endpoints = &self.types[ResourceType::Endpoint.index()];
        clusters.in_flight.is_some()
            || self.pending(ResourceType::Cluster).is_some_and(|change| !change.added.is_empty())
            || self
                .pending(ResourceType::Endpoint)
                .is_some_and(|change| change.added.iter().any(|resource| !endpoints.held.contains_key(&resource.name)))
    }

    fn commit(&mut self, change: &Change) {
        let state = self.of(change.kind);
        state.owes_reply = false;
        for resource in &change.added {
            state.forced.remove(&resource.name);
            state.held.insert(resource.name.clone(), Held::Resource(resource.clone()));
        }
        for name in &change.removed {
            if state.names.contains(name) {
                state.held.insert(name.clone(), Held::Absent);
            } else {
                state.held.remove(name);
            }
        }
        // A client that replaces a cluster or a listener waits for its endpoints or routes anew, without asking for them
        // again: it never unsubscribed (Envoy, "warming"). One that has asked for none yet is spared the decoding.
        if change.kind == ResourceType::Cluster && self.of(ResourceType::Endpoint).requested {
            self.force(ResourceType::Endpoint, change.added.iter().flat_map(|r| r.references()));
        }
        if change.kind == ResourceType::Listener && self.of(ResourceType::Route).requested {
            self.force(ResourceType::Route, change.added.iter().flat_map(|r| r.references()));
        }
    }

    fn force<'a>(&mut self, kind: ResourceType, names: impl Iterator<Item = &'a Arc<str>>) {
        let state = self.of(kind);
        for name in names {
            if state.names.contains(name) && matches!(state.held.get(name), Some(Held::Resource(_) | Held::Version(_)))
            {
                state.forced.insert(name.clone());
            }
        }
    }

    /// Notes what was just sent as in flight, and gives its nonce and version.
    pub fn send(&mut self, kind: ResourceType, resources: Vec<Arc<Resource>>) -> (String, String) {
        self.last_nonce += 1;
        let nonce = self.last_nonce.to_string();
        let version = self.resources.as_ref().map_or(0, |set| set.generation).to_string();
        let state = self.of(kind);
        state.last_nonce.clone_from(&nonce);
        state.in_flight = Some(InFlight { nonce: nonce.clone(), version: version.clone(), resources });
        (nonce, version)
    }

    fn note_settled(&mut self) {
        let Some(resources) = &self.resources else { return };
        let any_requested = self.types.iter().any(|state| state.requested);
        let settled = ResourceType::ALL.into_iter().all(|kind| {
            self.types[kind.index()].in_flight.is_none()
                && self.pending(kind).is_none_or(|change| change.added.is_empty() && change.removed.is_empty())
        });
        if any_requested && settled {
            self.settled_generation = resources.generation;
        }
    }

    pub fn status(&self) -> Status {
        let types = ResourceType::ALL.into_iter().map(|kind| (kind, &self.types[kind.index()]));
        Status {
            settled_generation: self.settled_generation,
            types: types
                .filter(|(_, state)| state.requested)
                .map(|(kind, state)| TypeStatus {
                    kind: kind.short_name(),
                    wildcard: state.wildcard,
                    names: state.names.len(),
                    sent: state.held.values().filter(|held| !matches!(held, Held::Absent)).count(),
                    acked_version: state.acked_version.clone(),
                    in_flight_version: state.in_flight.as_ref().map(|in_flight| in_flight.version.clone()),
                    nack: state.nack.clone(),
                })
                .collect(),
        }
    }

    /// Checks what must hold after every step.
    #[cfg(test)]
    pub fn check_invariants(&self) {
        for kind in ResourceType::ALL {
            let state = &self.types[kind.index()];
            assert!(state.requested || state.held.is_empty(), "{kind}: sent without a request");
            assert!(state.requested || state.in_flight.is_none(), "{kind}: in flight without a request");
            for name in state.held.keys() {
                assert!(state.wildcard || state.names.contains(name), "{kind}: holds {name}, which nobody asked for");
            }
        }
    }
}

impl TypeState {
    /// Adds a name; refuses beyond the limit.
    pub fn add_name(&mut self, kind: ResourceType, name: &str) -> Result<Arc<str>, RequestError> {
        if self.names.len() >= MAX_NAMES_PER_TYPE {
            return Err(RequestError::TooManyNames { kind });
        }
        let name: Arc<str> = name.into();
        self.names.insert(name.clone());
        Ok(name)
    }

    /// Forgets what is no longer subscribed to.
    pub fn drop_unsubscribed(&mut self) {
        if !self.wildcard {
            self.held.retain(|name, _| self.names.contains(name));
            self.forced.retain(|name| self.names.contains(name));
        }
    }
}

fn nack(error: &rpc::Status, refused: InFlight) -> Nack {
    let mut message = error.message.clone();
    if message.len() > MAX_NACK_BYTES {
        message.truncate(message.floor_char_boundary(MAX_NACK_BYTES));
    }
    let resources = refused.resources.iter().map(|resource| NackedResource {
        name: resource.name.to_string(),
        origin: resource.origin.as_deref().map(str::to_owned),
    });
    Nack { message, version: refused.version, resources: resources.collect() }
}
