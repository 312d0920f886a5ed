//! Policies: permissions and principals, and how they match.

use std::sync::{Arc, OnceLock};

use crate::dynamic_metadata::{FilterMetadata, MetadataMatcher};
use crate::matching::{CidrSet, HeaderMatcher};
use crate::string_match::StringMatcher;

/// A policy matches when some permission and some principal match.
#[derive(Debug)]
pub struct Policy {
    /// Name: `ns[foo]-policy[bar]-rule[0]` from Istio.
    pub name: Arc<str>,
    /// Any of these.
    pub permissions: Vec<Permission>,
    /// Any of these.
    pub principals: Vec<Principal>,
    /// The dynamic metadata of its decisions.
    pub metadata: OutcomeMetadata,
}

impl Policy {
    pub(super) fn reads_metadata(&self) -> bool {
        self.permissions.iter().any(Permission::reads_metadata) || self.principals.iter().any(Principal::reads_metadata)
    }

    /// Whether the value of this header decides, and not only whether there is one.
    pub(super) fn reads_header(&self, name: &str) -> bool {
        self.permissions.iter().any(|permission| permission.reads_header(name))
            || self.principals.iter().any(|principal| principal.reads_header(name))
    }
}

/// `Permission`.
#[derive(Debug)]
pub enum Permission {
    /// Everything.
    Any,
    /// All of them.
    And(Vec<Permission>),
    /// One of them.
    Or(Vec<Permission>),
    /// Not it.
    Not(Box<Permission>),
    /// A request header.
    Header(HeaderMatcher),
    /// The path without its query.
    UrlPath(StringMatcher),
    /// The address dialled.
    DestinationIp(CidrSet),
    /// The port dialled.
    DestinationPort(u16),
    /// Ports `[start, end)`; `end` may be 65536.
    DestinationPortRange(u16, u32),
    /// SNI.
    RequestedServerName(StringMatcher),
    /// Dynamic metadata of earlier filters.
    Metadata(MetadataMatcher),
}

impl Permission {
    pub(super) fn reads_metadata(&self) -> bool {
        match self {
            Self::Metadata(_) => true,
            Self::And(all) | Self::Or(all) => all.iter().any(Self::reads_metadata),
            Self::Not(inner) => inner.reads_metadata(),
            _ => false,
        }
    }

    fn reads_header(&self, name: &str) -> bool {
        match self {
            Self::Header(matcher) => matcher.reads(name),
            Self::And(all) | Self::Or(all) => all.iter().any(|one| one.reads_header(name)),
            Self::Not(inner) => inner.reads_header(name),
            _ => false,
        }
    }
}

/// `Principal`.
#[derive(Debug)]
pub enum Principal {
    /// Everyone.
    Any,
    /// All of them.
    And(Vec<Principal>),
    /// One of them.
    Or(Vec<Principal>),
    /// Not it.
    Not(Box<Principal>),
    /// A verified peer certificate with a URI SAN, else DNS SAN, else subject that matches; `None`: any verified peer.
    Authenticated(Option<StringMatcher>),
    /// Peer of the socket.
    DirectRemoteIp(CidrSet),
    /// Peer as PROXY protocol says, whatever `x-forwarded-for` does (`source_ip`).
    SourceIp(CidrSet),
    /// Peer as `x-forwarded-for` or PROXY protocol say.
    RemoteIp(CidrSet),
    /// A request header.
    Header(HeaderMatcher),
    /// The path without its query.
    UrlPath(StringMatcher),
    /// Dynamic metadata of earlier filters.
    Metadata(MetadataMatcher),
}

impl Principal {
    pub(super) fn reads_metadata(&self) -> bool {
        match self {
            Self::Metadata(_) => true,
            Self::And(all) | Self::Or(all) => all.iter().any(Self::reads_metadata),
            Self::Not(inner) => inner.reads_metadata(),
            _ => false,
        }
    }

    fn reads_header(&self, name: &str) -> bool {
        match self {
            Self::Header(matcher) => matcher.reads(name),
            Self::And(all) | Self::Or(all) => all.iter().any(|one| one.reads_header(name)),
            Self::Not(inner) => inner.reads_header(name),
            _ => false,
        }
    }
}

/// Dynamic metadata of all possible outcomes, each created on first use.
#[derive(Debug, Default)]
pub struct OutcomeMetadata {
    pub(super) allowed: OnceLock<Arc<FilterMetadata>>,
    pub(super) denied: OnceLock<Arc<FilterMetadata>>,
}
