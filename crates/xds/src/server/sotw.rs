//! The state-of-the-world protocol: every response of CDS and LDS lists all there is.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::state::{Held, Nonce, State};
use super::{RequestError, Status};
use crate::pb::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
use crate::{Resource, ResourceSet, ResourceType};

/// One state-of-the-world ADS stream, seen from the server.
#[derive(Debug, Default)]
pub struct Stream {
    state: State,
}

impl Stream {
    /// A stream nobody has asked anything on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes a request in; then poll for responses.
    pub fn on_request(&mut self, request: &DiscoveryRequest) -> Result<(), RequestError> {
        let kind = ResourceType::from_type_url(&request.type_url)
            .ok_or_else(|| RequestError::UnknownType(request.type_url.clone()))?;
        let nonce = self.state.on_nonce(kind, &request.response_nonce, request.error_detail.as_ref());
        if nonce == Nonce::Stale {
            // A newer response is under way; its answer will carry the client's names as they are by then.
            return Ok(());
        }
        let state = self.state.of(kind);
        let first = !state.requested;
        let explicit_wildcard = request.resource_names.iter().any(|name| name == "*");
        let legacy_wildcard =
            kind.defaults_to_wildcard() && request.resource_names.is_empty() && (first || state.wildcard);
        let wildcard = explicit_wildcard || legacy_wildcard;
        let before = std::mem::take(&mut state.names);
        for name in request.resource_names.iter().filter(|name| *name != "*") {
            state.add_name(kind, name)?;
        }
        let asks_more = first || (wildcard && !state.wildcard) || !state.names.is_subset(&before);
        state.requested = true;
        state.wildcard = wildcard;
        state.drop_unsubscribed();
        let added: BTreeSet<_> = state.names.difference(&before).cloned().collect();
        for name in added {
            state.held.remove(&name);
        }
        // A client that asks for nothing is owed nothing.
        state.owes_reply |= asks_more && (state.wildcard || !state.names.is_empty());
        Ok(())
    }

    /// The set the client is to hold from now on; replaces one not sent yet.
    pub fn on_snapshot(&mut self, resources: &Arc<ResourceSet>) {
        self.state.set_resources(resources);
    }

    /// The next response to send, until there is none.
    pub fn poll_response(&mut self) -> Option<DiscoveryResponse> {
        loop {
            let owed = ResourceType::ALL.map(|kind| self.state.of(kind).owes_reply);
            let change = self.state.next_change()?;
            let kind = change.kind;
            let full_state = self.state.of(kind).wildcard;
            if !full_state && change.added.is_empty() && !owed[kind.index()] {
                // Named types have no way to say "gone"; the client stops asking when nothing refers to it.
                continue;
            }
            let resources = if full_state { self.held(kind) } else { change.added };
            let (nonce, version_info) = self.state.send(kind, resources.clone());
            return Some(DiscoveryResponse {
                version_info,
                resources: resources.iter().map(|resource| resource.any()).collect(),
                type_url: kind.type_url().to_owned(),
                nonce,
                ..Default::default()
            });
        }
    }

    fn held(&mut self, kind: ResourceType) -> Vec<Arc<Resource>> {
        let held = self.state.of(kind).held.values();
        held.filter_map(|held| match held {
            Held::Resource(resource) => Some(resource.clone()),
            // State-of-the-world clients do not announce what they hold, and an absent name is not listed.
            Held::Version(_) | Held::Absent => None,
        })
        .collect()
    }

    /// What an operator sees of it.
    pub fn status(&self) -> Status {
        self.state.status()
    }

    /// Checks what must hold after every step.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        self.state.check_invariants();
    }
}
