//! The state-of-the-world protocol, seen from the client.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use super::{Received, Rejected, ResponseError, SPEAKING_ORDER, Update, error_detail, resource_name};
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::pb::google::rpc;
use crate::{Cause, ResourceType};

/// One state-of-the-world ADS subscriber.
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
    /// Accepted resources, each with the version of the response it came in.
    held: BTreeMap<String, String>,
    /// Resources that were listed and refused. The applier may still use an earlier version, so it must be told when
    /// they are gone.
    refused: BTreeSet<String>,
    started: bool,
    /// Whether a request is due: names have changed, or a response must be answered.
    due: bool,
    version: String,
    nonce: String,
    error: Option<rpc::Status>,
}

impl Client {
    /// A client without subscriptions.
    pub fn new(node: Node) -> Self {
        Self { node, node_sent: false, types: Default::default() }
    }

    /// Subscribes to everything of a type.
    pub fn subscribe_all(&mut self, kind: ResourceType) {
        let state = &mut self.types[kind.index()];
        state.due |= !state.wildcard;
        state.wildcard = true;
    }

    /// Replaces the subscribed names of a type.
    pub fn set_names<'a>(&mut self, kind: ResourceType, names: impl IntoIterator<Item = &'a str>) {
        let state = &mut self.types[kind.index()];
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        if names != state.names {
            state.due = true;
            state.names = names;
            if !state.wildcard {
                state.held.retain(|name, _| state.names.contains(name));
                state.refused.retain(|name| state.names.contains(name));
            }
        }
    }

    /// Asks for one more name.
    pub fn subscribe(&mut self, kind: ResourceType, name: &str) {
        let state = &mut self.types[kind.index()];
        state.names.insert(name.to_owned());
        state.due = true;
    }

    /// Unsubscribes from a name.
    pub fn unsubscribe(&mut self, kind: ResourceType, name: &str) {
        let state = &mut self.types[kind.index()];
        state.due |= state.names.remove(name);
        if !state.wildcard {
            state.held.remove(name);
            state.refused.remove(name);
        }
    }

    /// A new stream begins: subscribes to everything again.
    pub fn on_connect(&mut self) {
        self.node_sent = false;
        for state in &mut self.types {
            state.started = false;
            state.due = state.wildcard || !state.names.is_empty();
            state.nonce.clear();
            state.error = None;
        }
    }

    /// Processes a response. A resource without a readable name is passed on with an empty name, so that the applier
    /// refuses it with the decoder's reason.
    pub fn on_response(&mut self, response: DiscoveryResponse) -> Result<Update, ResponseError> {
        let kind = ResourceType::from_type_url(&response.type_url)
            .filter(|kind| self.types[kind.index()].started)
            .ok_or(ResponseError::Unexpected(response.type_url))?;
        let state = &self.types[kind.index()];
        let added: Vec<Received> = response
            .resources
            .into_iter()
            .map(|any| Received {
                name: resource_name(kind, &any).unwrap_or_default(),
                version: response.version_info.clone(),
                any,
                cause: Cause::default(),
                first: false,
            })
            .collect();
        // Only a full list shows which resources are gone.
        let names: HashSet<&str> = added.iter().map(|received| received.name.as_str()).collect();
        let gone = |name: &&String| state.wildcard && !names.contains(name.as_str());
        let listed = state.held.keys().chain(state.refused.iter().filter(|name| !state.held.contains_key(*name)));
        let removed = listed.filter(gone).cloned().collect();
        Ok(Update { kind, added, removed, nonce: response.nonce, version: response.version_info })
    }

    /// Accepts an update, or refuses the named resources.
    pub fn answer(&mut self, update: &Update, rejected: &[Rejected]) {
        let state = &mut self.types[update.kind.index()];
        let refused = |name: &str| rejected.iter().any(|rejected| rejected.name == name);
        for received in &update.added {
            let wanted = state.wildcard || state.names.contains(&received.name);
            if refused(&received.name) {
                state.refused.insert(received.name.clone());
            } else if wanted {
                state.held.insert(received.name.clone(), received.version.clone());
                state.refused.remove(&received.name);
            }
        }
        for name in update.removed.iter().filter(|name| !refused(name)) {
            state.held.remove(name);
            state.refused.remove(name);
        }
        if rejected.is_empty() {
            state.version.clone_from(&update.version);
        }
        state.nonce.clone_from(&update.nonce);
        state.error = error_detail(rejected);
        state.due = true;
    }

    /// The next request to send, until there is none.
    pub fn poll_request(&mut self) -> Option<DiscoveryRequest> {
        let starting = ResourceType::ALL.into_iter().filter(|kind| !self.types[kind.index()].started);
        let mut order = starting.chain(SPEAKING_ORDER);
        let kind = order.find(|kind| self.types[kind.index()].due)?;
        let state = &mut self.types[kind.index()];
        state.due = false;
        state.started = true;
        // Send "*" only if an empty list does not already mean everything: old servers do not know "*".
        let star = state.wildcard && (!state.names.is_empty() || !kind.defaults_to_wildcard());
        let mut request = DiscoveryRequest {
            version_info: state.version.clone(),
            resource_names: star.then(|| "*".to_owned()).into_iter().chain(state.names.iter().cloned()).collect(),
            type_url: kind.type_url().to_owned(),
            response_nonce: state.nonce.clone(),
            error_detail: state.error.take(),
            ..Default::default()
        };
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
