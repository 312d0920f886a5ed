//! `envoy.filters.http.rbac` and `envoy.filters.network.rbac`: role-based access control.

mod filter;
#[cfg(test)]
mod tests;
mod verdict;

use std::borrow::Cow;
use std::net::IpAddr;

use evenkeel_runtime_config::dynamic_metadata::{DynamicMetadata, MetadataMatcher};
use evenkeel_runtime_config::matching::{HeaderMatcher, split_path};
use evenkeel_runtime_config::rbac::policy::{Permission, Policy, Principal};
use evenkeel_runtime_config::rbac::{RbacAction, Rules};
use evenkeel_runtime_config::string_match::StringMatcher;
use evenkeel_runtime_config::view::{ConnectionView, PeerIdentity, RequestView};

pub use filter::{HttpFilter, NetworkFilter, stats};
pub use verdict::Verdict;

/// The input of rules.
#[derive(Debug)]
pub struct Subject<'s, R> {
    /// The connection.
    pub connection: &'s ConnectionView,
    /// The client's address (`remote_ip`); for network filters, the socket's peer.
    pub remote: IpAddr,
    /// The request; `None` for network filters, where rules about requests match nothing.
    pub request: Option<&'s R>,
    /// Dynamic metadata set by earlier filters, of the request or, for network filters, of the connection.
    pub metadata: Option<&'s DynamicMetadata>,
}

/// The outcome of a set of rules.
#[derive(Debug, Clone, Copy)]
pub struct Outcome<'r> {
    /// Whether the subject may pass.
    pub allowed: bool,
    /// The first policy that matched, in the order of names. If no ALLOW policy matched: the one provided for being named then.
    pub policy: Option<&'r Policy>,
}

/// Evaluates rules: ALLOW passes what some policy matches, DENY what none matches, LOG everything.
pub fn evaluate<'r, R: RequestView>(rules: &'r Rules, subject: &Subject<'_, R>) -> Outcome<'r> {
    let evaluation = Evaluation::of(subject);
    let grants = rules.action == RbacAction::Allow;
    let peer = subject.connection.peer.as_deref();
    let policy =
        rules.first_match((peer, evaluation.path, subject.metadata), |policy| evaluation.matches(policy, grants));
    let allowed = match rules.action {
        RbacAction::Allow => policy.is_some(),
        RbacAction::Deny => policy.is_none(),
        RbacAction::Log => true,
    };
    let to_blame = || (rules.action == RbacAction::Allow).then(|| rules.idle()).flatten();
    Outcome { allowed, policy: policy.or_else(to_blame) }
}

/// A [`Subject`] with values that several policies need.
struct Evaluation<'e, R> {
    connection: &'e ConnectionView,
    remote: IpAddr,
    request: Option<&'e R>,
    metadata: Option<&'e DynamicMetadata>,
    /// The request's path without its query.
    path: Option<&'e [u8]>,
}

impl<'e, R: RequestView> Evaluation<'e, R> {
    fn of(subject: &Subject<'e, R>) -> Self {
        let Subject { connection, remote, request, metadata } = *subject;
        Self { connection, remote, request, metadata, path: request.map(|request| split_path(request.path()).0) }
    }

    /// `grants`: a request that matches passes. Of a header with several values the server may take any: a rule that lets
    /// requests pass has to hold for all of them, and one that refuses for some.
    fn matches(&self, policy: &Policy, grants: bool) -> bool {
        policy.permissions.iter().any(|permission| self.has_permission(permission, grants))
            && policy.principals.iter().any(|principal| self.is_principal(principal, grants))
    }

    fn has_header(&self, header: &HeaderMatcher, grants: bool) -> bool {
        self.request
            .is_some_and(|request| if grants { header.matches_every(request) } else { header.matches_some(request) })
    }

    fn has_permission(&self, permission: &Permission, grants: bool) -> bool {
        match permission {
            Permission::Any => true,
            Permission::And(rules) => rules.iter().all(|rule| self.has_permission(rule, grants)),
            Permission::Or(rules) => rules.iter().any(|rule| self.has_permission(rule, grants)),
            Permission::Not(rule) => !self.has_permission(rule, !grants),
            Permission::Header(header) => self.has_header(header, grants),
            Permission::UrlPath(path) => self.path_matches(path),
            Permission::DestinationIp(ranges) => ranges.contains(self.connection.local.ip()),
            Permission::DestinationPort(port) => self.connection.local.port() == *port,
            Permission::DestinationPortRange(start, end) => {
                let port = self.connection.local.port();
                port >= *start && u32::from(port) < *end
            }
            Permission::RequestedServerName(name) => {
                name.matches(self.connection.server_name.as_deref().unwrap_or_default().as_bytes())
            }
            Permission::Metadata(matcher) => self.metadata_matches(matcher),
        }
    }

    fn is_principal(&self, principal: &Principal, grants: bool) -> bool {
        match principal {
            Principal::Any => true,
            Principal::And(ids) => ids.iter().all(|id| self.is_principal(id, grants)),
            Principal::Or(ids) => ids.iter().any(|id| self.is_principal(id, grants)),
            Principal::Not(id) => !self.is_principal(id, !grants),
            Principal::Authenticated(name) => match (&self.connection.peer, name) {
                (None, _) => false,
                (Some(_), None) => true,
                (Some(peer), Some(name)) => is_named(peer, name),
            },
            Principal::DirectRemoteIp(ranges) => ranges.contains(self.connection.direct_remote.ip()),
            Principal::SourceIp(ranges) => ranges.contains(self.connection.remote.ip()),
            Principal::RemoteIp(ranges) => ranges.contains(self.remote),
            Principal::Header(header) => self.has_header(header, grants),
            Principal::UrlPath(path) => self.path_matches(path),
            Principal::Metadata(matcher) => self.metadata_matches(matcher),
        }
    }

    fn metadata_matches(&self, matcher: &MetadataMatcher) -> bool {
        matcher.matches(self.metadata)
    }

    fn path_matches(&self, matcher: &StringMatcher) -> bool {
        self.path.is_some_and(|path| matcher.matches(path))
    }
}

/// Compares URI SANs, then DNS SANs, then the subject: any of them may match, as in Envoy. A DNS name with the form of an
/// identity does not: it would be an identity that nobody has vouched for.
fn is_named(peer: &PeerIdentity, name: &StringMatcher) -> bool {
    let matches = |text: &String| name.matches(text.as_bytes());
    peer.uri_sans.iter().any(matches) || peer.host_names().any(matches) || matches(&peer.subject)
}

/// `rbac_access_denied_matched_policy[NAME]`; whitespace is replaced, since it would break the columns of a log line.
fn denied_details(policy: Option<&Policy>) -> String {
    let name = policy.map_or(Cow::Borrowed("none"), |policy| {
        if policy.name.contains(char::is_whitespace) {
            Cow::Owned(policy.name.replace(char::is_whitespace, "_"))
        } else {
            Cow::Borrowed(&*policy.name)
        }
    });
    format!("rbac_access_denied_matched_policy[{name}]")
}
