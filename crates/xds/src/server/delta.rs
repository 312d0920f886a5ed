//! The incremental protocol: only what changed, and names of what is gone.

use std::sync::Arc;

use super::state::{Held, Nonce, State};
use super::{RequestError, Status};
use crate::pb::envoy::service::discovery::v3::{self as discovery, DeltaDiscoveryRequest, DeltaDiscoveryResponse};
use crate::{ResourceSet, ResourceType};

/// One delta ADS stream, seen from the server.
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
    pub fn on_request(&mut self, request: &DeltaDiscoveryRequest) -> Result<(), RequestError> {
        let kind = ResourceType::from_type_url(&request.type_url)
            .ok_or_else(|| RequestError::UnknownType(request.type_url.clone()))?;
        // Subscriptions count even beside a stale nonce: delta requests are spontaneous.
        let _: Nonce = self.state.on_nonce(kind, &request.response_nonce, request.error_detail.as_ref());
        let state = self.state.of(kind);
        let first = !state.requested;
        if first {
            state.requested = true;
            state.wildcard = kind.defaults_to_wildcard() && request.resource_names_subscribe.is_empty();
            state.owes_reply = state.wildcard;
        }
        for name in &request.resource_names_subscribe {
            if name == "*" {
                state.owes_reply |= !state.wildcard;
                state.wildcard = true;
                continue;
            }
            let name = state.add_name(kind, name)?;
            // Asking again for a name is asking to be sent it again, or to be told again that it does not exist.
            match state.held.get(&name) {
                Some(Held::Absent) => _ = state.held.remove(&name),
                _ => _ = state.forced.insert(name),
            }
        }
        for name in &request.resource_names_unsubscribe {
            match name.as_str() {
                "*" => state.wildcard = false,
                name => {
                    state.names.remove(name);
                    state.forced.remove(name);
                    let still_wanted = state.wildcard;
                    if !still_wanted || matches!(state.held.get(name), Some(Held::Absent)) {
                        state.held.remove(name);
                    }
                }
            }
        }
        state.drop_unsubscribed();
        if first {
            for (name, version) in &request.initial_resource_versions {
                if state.wildcard || state.names.contains(&**name) {
                    let name: Arc<str> = name.as_str().into();
                    // The client says which version it has: nothing is forced, the comparison decides.
                    state.forced.remove(&name);
                    state.held.insert(name, Held::Version(version.parse().ok()));
                }
            }
        }
        Ok(())
    }

    /// The set the client is to hold from now on; replaces one not sent yet.
    pub fn on_snapshot(&mut self, resources: &Arc<ResourceSet>) {
        self.state.set_resources(resources);
    }

    /// The next response to send, until there is none.
    pub fn poll_response(&mut self) -> Option<DeltaDiscoveryResponse> {
        let change = self.state.next_change()?;
        let (nonce, version) = self.state.send(change.kind, change.added.clone());
        Some(DeltaDiscoveryResponse {
            system_version_info: version,
            resources: change
                .added
                .iter()
                .map(|resource| discovery::Resource {
                    name: resource.name.to_string(),
                    version: resource.version.to_string(),
                    resource: Some(resource.any()),
                    ..Default::default()
                })
                .collect(),
            type_url: change.kind.type_url().to_owned(),
            removed_resources: change.removed.iter().map(|name| name.to_string()).collect(),
            nonce,
            ..Default::default()
        })
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
