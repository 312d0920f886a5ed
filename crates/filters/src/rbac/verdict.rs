//! The verdict of a filter's enforced rules about a request or a connection.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::rbac::RbacFilter;
use evenkeel_runtime_config::view::{ConnectionView, RequestView};

use super::{Outcome, Subject, evaluate};

/// The result of a filter's enforced rules, and the reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the request or connection may pass.
    pub allowed: bool,
    /// The policy that decided; `None`: none matched.
    pub policy: Option<Arc<str>>,
}

impl Verdict {
    pub(super) fn of<R: RequestView>(filter: &RbacFilter, subject: &Subject<'_, R>) -> Self {
        let outcome = match &filter.rules {
            None => Outcome { allowed: true, policy: None },
            Some(rules) => evaluate(rules, subject),
        };
        Self { allowed: outcome.allowed, policy: outcome.policy.map(|policy| policy.name.clone()) }
    }
}

impl<'s> Subject<'s, NoRequest> {
    pub(super) fn of_connection(connection: &'s ConnectionView, metadata: Option<&'s DynamicMetadata>) -> Self {
        Self { connection, remote: connection.remote.ip(), request: None, metadata }
    }
}

/// The request of a network filter: there never is one.
#[derive(Debug)]
pub struct NoRequest(Infallible);

impl RequestView for NoRequest {
    fn method(&self) -> &[u8] {
        match self.0 {}
    }

    fn path(&self) -> &[u8] {
        match self.0 {}
    }

    fn authority(&self) -> &[u8] {
        match self.0 {}
    }

    fn scheme(&self) -> &[u8] {
        match self.0 {}
    }

    fn header(&self, _name: &str) -> Option<Cow<'_, [u8]>> {
        match self.0 {}
    }

    fn any_value(&self, _name: &str, _wanted: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        match self.0 {}
    }
}
