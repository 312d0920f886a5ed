//! The incremental protocol, seen from the client.

use std::collections::{BTreeMap, BTreeSet};

use super::{Received, Rejected, ResponseError, SPEAKING_ORDER, Update, error_detail};
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use crate::pb::google::rpc;
use crate::{ResourceType, metadata};

/// One delta ADS subscriber.
#[derive(Debug)]
pub struct Client {
    node: Node,
    node_sent: bool,
    types: [TypeState; ResourceType::ALL.len()],
}

#[derive(Debug, Default)]
struct TypeState {
    wildcard: bool,
    names: BTreeSet<String>,
    /// Accepted resources and their versions.
    held: BTreeMap<String, String>,
    /// Received and refused. The applier may still have a use for them, and must hear when they are gone.
    refused: BTreeSet<String>,
    /// Whether this stream has carried a request of the type.
    started: bool,
    to_subscribe: BTreeSet<String>,
    to_unsubscribe: BTreeSet<String>,
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct Answer {
    nonce: String,
    error: Option<rpc::Status>,
}

impl TypeState {
    fn is_subscribed(&self) -> bool {
        self.wildcard || !self.names.is_empty()
    }
}

impl Client {
    /// A client that has asked for nothing.
    pub fn new(node: Node) -> Self {
        Self { node, node_sent: false, types: Default::default() }
    }

    /// Asks for everything of a type.
    pub fn subscribe_all(&mut self, kind: ResourceType) {
        let state = &mut self.types[kind.index()];
        if !state.wildcard {
            state.wildcard = true;
            if state.started {
                state.to_subscribe.insert("*".to_owned());
            }
        }
    }

    /// Replaces the names asked for of a type.
    pub fn set_names<'a>(&mut self, kind: ResourceType, names: impl IntoIterator<Item = &'a str>) {
        let state = &mut self.types[kind.index()];
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        for gone in state.names.difference(&names) {
            if !state.to_subscribe.remove(gone) {
                state.to_unsubscribe.insert(gone.clone());
            }
            if !state.wildcard {
                state.held.remove(gone);
                state.refused.remove(gone);
            }
        }
        for new in names.difference(&state.names) {
            // A name dropped and taken up again before the server heard of it has lost what was held: ask anew.
            state.to_unsubscribe.remove(new);
            state.to_subscribe.insert(new.clone());
        }
        state.names = names;
    }

    /// A new stream begins: everything is asked for again, with the versions held.
    pub fn on_connect(&mut self) {
        self.node_sent = false;
        for state in &mut self.types {
            state.started = false;
            state.to_subscribe.clear();
            state.to_unsubscribe.clear();
            state.answers.clear();
        }
    }

    /// Takes a response in.
    pub fn on_response(&mut self, response: DeltaDiscoveryResponse) -> Result<Update, ResponseError> {
        let kind = ResourceType::from_type_url(&response.type_url)
            .filter(|kind| self.types[kind.index()].started)
            .ok_or(ResponseError::Unexpected(response.type_url))?;
        let mut added = Vec::with_capacity(response.resources.len());
        let mut removed = response.removed_resources;
        for resource in response.resources {
            let (cause, _) = metadata::read(resource.metadata.as_ref());
            match resource.resource {
                Some(any) => added.push(Received { name: resource.name, version: resource.version, any, cause }),
                // How VHDS says that there is no such host.
                None => removed.push(resource.name),
            }
        }
        Ok(Update { kind, added, removed, nonce: response.nonce, version: response.system_version_info })
    }

    /// Accepts an update, or refuses the resources named.
    pub fn answer(&mut self, update: &Update, rejected: &[Rejected]) {
        let state = &mut self.types[update.kind.index()];
        for received in &update.added {
            let wanted = state.wildcard || state.names.contains(&received.name);
            if rejected.iter().any(|rejected| rejected.name == received.name) {
                state.refused.insert(received.name.clone());
            } else if wanted {
                state.held.insert(received.name.clone(), received.version.clone());
                state.refused.remove(&received.name);
            }
        }
        for name in &update.removed {
            if !rejected.iter().any(|rejected| rejected.name == *name) {
                state.held.remove(name);
                state.refused.remove(name);
            }
        }
        state.answers.push(Answer { nonce: update.nonce.clone(), error: error_detail(rejected) });
    }

    /// The next request to send, until there is none.
    pub fn poll_request(&mut self) -> Option<DeltaDiscoveryRequest> {
        let starting = ResourceType::ALL.into_iter().filter(|kind| !self.types[kind.index()].started);
        let order: Vec<ResourceType> = starting.chain(SPEAKING_ORDER).collect();
        let (kind, mut request) =
            order.into_iter().find_map(|kind| Some((kind, self.types[kind.index()].next_request(kind)?)))?;
        request.type_url = kind.type_url().to_owned();
        if !self.node_sent {
            self.node_sent = true;
            request.node = Some(self.node.clone());
        }
        Some(request)
    }

    pub(super) fn held_map(&self, kind: ResourceType) -> &BTreeMap<String, String> {
        &self.types[kind.index()].held
    }
}

impl TypeState {
    fn next_request(&mut self, kind: ResourceType) -> Option<DeltaDiscoveryRequest> {
        if !self.started {
            return self.is_subscribed().then(|| self.first_request(kind));
        }
        let answer = (!self.answers.is_empty()).then(|| self.answers.remove(0));
        if answer.is_none() && self.to_subscribe.is_empty() && self.to_unsubscribe.is_empty() {
            return None;
        }
        let (response_nonce, error_detail) = answer.map(|a| (a.nonce, a.error)).unwrap_or_default();
        Some(DeltaDiscoveryRequest {
            resource_names_subscribe: std::mem::take(&mut self.to_subscribe).into_iter().collect(),
            resource_names_unsubscribe: std::mem::take(&mut self.to_unsubscribe).into_iter().collect(),
            response_nonce,
            error_detail,
            ..Default::default()
        })
    }

    fn first_request(&mut self, kind: ResourceType) -> DeltaDiscoveryRequest {
        self.started = true;
        self.to_subscribe.clear();
        self.to_unsubscribe.clear();
        // "*" only where the empty list does not already mean everything: old servers know no "*".
        let star = self.wildcard && (!self.names.is_empty() || !kind.defaults_to_wildcard());
        DeltaDiscoveryRequest {
            resource_names_subscribe: star
                .then(|| "*".to_owned())
                .into_iter()
                .chain(self.names.iter().cloned())
                .collect(),
            // A refused one has no version: it comes again, or is said to be gone.
            initial_resource_versions: (self.refused.iter().map(|name| (name.clone(), String::new())))
                .chain(self.held.iter().map(|(name, version)| (name.clone(), version.clone())))
                .collect(),
            ..Default::default()
        }
    }
}
