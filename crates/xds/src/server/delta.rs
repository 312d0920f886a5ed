//! The incremental protocol: only what changed, and names of what is gone.

use std::sync::Arc;
use std::time::Duration;

use super::interest::Interest;
use super::response::{Response, WireProtocol};
use super::state::{Nonce, State};
use super::{Announcement, RequestError, Status};
use crate::evenkeel::Report;
use crate::pb::envoy::service::discovery::v3::DeltaDiscoveryRequest;
use crate::{ResourceSet, ResourceType, type_url};

/// One delta ADS stream, seen from the server. Times count from its beginning.
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
    pub fn on_request(&mut self, request: &DeltaDiscoveryRequest, now: Duration) -> Result<(), RequestError> {
        if request.type_url == type_url::REPORT {
            if let Some(report) = Report::in_status(request.error_detail.as_ref()) {
                self.state.on_report(&report);
            }
            return Ok(());
        }
        let kind = ResourceType::from_type_url(&request.type_url)
            .ok_or_else(|| RequestError::UnknownType(request.type_url.clone()))?;
        // Subscriptions count even with a stale nonce, because delta requests are spontaneous.
        let _: Nonce = self.state.on_nonce(kind, &request.response_nonce, request.error_detail.as_ref(), now);
        let (subscription, target) = self.state.of(kind);
        let first = !subscription.requested;
        if first {
            subscription.requested = true;
            subscription.set_wildcard(kind.defaults_to_wildcard() && request.resource_names_subscribe.is_empty());
            subscription.owes_reply = subscription.wildcard;
        }
        for name in &request.resource_names_subscribe {
            if name == "*" {
                subscription.owes_reply |= !subscription.wildcard;
                subscription.set_wildcard(true);
            } else if !subscription.subscribe(name, &target)? {
                subscription.ask_again(name);
            }
        }
        for name in &request.resource_names_unsubscribe {
            match name.as_str() {
                "*" => subscription.set_wildcard(false),
                name => subscription.unsubscribe(name),
            }
        }
        if first {
            let versions = request.initial_resource_versions.iter();
            subscription.resume(versions.map(|(name, version)| (name.as_str(), version.as_str())), &target);
        }
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
        let listed = self.state.take_listing_requests();
        if !listed.is_empty() {
            return Some(Response::listing_request(listed.into_iter()));
        }
        let push = self.state.next_push(now, false)?;
        Some(Response::new(WireProtocol::Delta, push, &self.announcement))
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
