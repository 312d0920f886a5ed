//! The state-of-the-world protocol: every response of CDS and LDS lists all resources.

use std::sync::Arc;
use std::time::Duration;

use super::interest::Interest;
use super::response::{Response, WireProtocol};
use super::state::{Nonce, State};
use super::{Announcement, RequestError, Status};
use crate::pb::envoy::service::discovery::v3::DiscoveryRequest;
use crate::{ResourceSet, ResourceType};

/// One state-of-the-world ADS stream, seen from the server. Times count from its beginning.
#[derive(Debug, Default)]
pub struct Stream {
    state: State,
    announcement: Announcement,
}

impl Stream {
    /// A stream without requests yet.
    pub fn new(announcement: Announcement) -> Self {
        Self { state: State::default(), announcement }
    }

    /// Processes a request; then poll for responses.
    pub fn on_request(&mut self, request: &DiscoveryRequest, now: Duration) -> Result<(), RequestError> {
        let kind = ResourceType::from_type_url(&request.type_url)
            .ok_or_else(|| RequestError::UnknownType(request.type_url.clone()))?;
        let nonce = self.state.on_nonce(kind, &request.response_nonce, request.error_detail.as_ref(), now);
        if nonce == Nonce::Stale {
            // A newer response is in flight; its answer will carry the client's names.
            return Ok(());
        }
        let (subscription, target) = self.state.of(kind);
        let first = !subscription.requested;
        let explicit_wildcard = request.resource_names.iter().any(|name| name == "*");
        let legacy_wildcard =
            kind.defaults_to_wildcard() && request.resource_names.is_empty() && (first || subscription.wildcard);
        let wildcard = explicit_wildcard || legacy_wildcard;
        let asks_all = wildcard && !subscription.wildcard;
        subscription.requested = true;
        subscription.set_wildcard(wildcard);
        let names = request.resource_names.iter().map(String::as_str).filter(|name| *name != "*");
        let asks_more = subscription.set_names(names, &target)?;
        if first {
            subscription.resume(std::iter::empty(), &target);
        }
        // A client without subscriptions needs no response.
        let asks = subscription.wildcard || !subscription.names().is_empty();
        subscription.owes_reply |= asks && (first || asks_all || asks_more);
        Ok(())
    }

    /// Sets what the client should hold from now on; replaces a set not sent yet. The first one must be set before the
    /// first request.
    pub fn on_snapshot(&mut self, resources: &Arc<ResourceSet>) {
        if !self.state.is_target(resources) {
            self.state.set_resources(resources);
        }
    }

    /// Publishes what the stream subscribes to.
    pub fn note_interest(&self, interest: &Interest) {
        self.state.note_interest(interest);
    }

    /// The memory that the subscribed names use, in bytes.
    pub fn name_bytes(&self) -> usize {
        self.state.name_bytes()
    }

    /// The next response to send, until there is none.
    pub fn poll_response(&mut self, now: Duration) -> Option<Response> {
        let push = self.state.next_push(now, true)?;
        Some(Response::new(WireProtocol::Sotw, push, &self.announcement))
    }

    /// When to poll again even if nothing happens.
    pub fn next_timer(&self, now: Duration) -> Option<Duration> {
        self.state.next_timer(now)
    }

    /// The status for operators.
    pub fn status(&self) -> Status {
        self.state.status()
    }

    /// Checks what must hold after every step.
    #[cfg(test)]
    pub(crate) fn check_invariants(&self) {
        self.state.check_invariants();
    }
}
