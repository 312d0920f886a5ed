//! `envoy.config.route.v3.RateLimit`, compiled: what describes a request to filters that limit rates.

use std::sync::Arc;

use crate::matching::{HeaderMatcher, QueryParameterMatcher};

/// Makes a descriptor of a request: an entry for each action. A request of which one entry cannot be made has no such descriptor.
#[derive(Debug)]
pub struct Description {
    /// Filters of the same stage use it.
    pub stage: u32,
    /// What each entry is made of.
    pub actions: Vec<Action>,
}

/// The descriptions of a route and of its virtual host.
#[derive(Debug, Default)]
pub struct RouteRateLimits {
    /// The route's own.
    pub own: Vec<Description>,
    /// The virtual host's.
    pub of_host: Arc<[Description]>,
    /// Whether the virtual host's apply beside the route's own (`include_vh_rate_limits`).
    pub includes_host: bool,
}

/// `vh_rate_limits`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostDescriptions {
    /// If the route has none.
    Override,
    /// All.
    Include,
    /// None.
    Ignore,
}

/// What an entry of a descriptor is made of.
#[derive(Debug)]
pub enum Action {
    /// This key and value.
    Generic(Box<str>, Box<str>),
    /// A header's value.
    Header {
        /// The header, in lower case.
        name: Box<str>,
        /// The entry's key.
        key: Box<str>,
        /// Whether the entry is left out if there is no such header; otherwise there is no descriptor.
        optional: bool,
    },
    /// A query parameter's value.
    Query {
        /// The parameter.
        name: Box<str>,
        /// The entry's key.
        key: Box<str>,
        /// Whether the entry is left out if there is no such parameter; otherwise there is no descriptor.
        optional: bool,
    },
    /// The client's address (`remote_address`).
    Client,
    /// The network of the client's address (`masked_remote_address`): bits of IPv4 and IPv6.
    ClientNetwork(u8, u8),
    /// The cluster that the route leads to (`destination_cluster`).
    Cluster,
    /// This key and value, if the request matches.
    Match {
        /// The entry's key.
        key: Box<str>,
        /// The entry's value.
        value: Box<str>,
        /// Whether the request has to match, or must not.
        expected: bool,
        /// What is matched.
        matched: Matched,
    },
}

/// What a request is matched by.
#[derive(Debug)]
pub enum Matched {
    /// All of these headers.
    Headers(Vec<HeaderMatcher>),
    /// All of these query parameters.
    Query(Vec<QueryParameterMatcher>),
}

impl Action {
    /// Whether the entry may depend on the value of this header, or of the query parameter NAME for `?NAME`.
    pub fn reads(&self, name: &str) -> bool {
        let is_query = |parameter: &str| name.strip_prefix('?') == Some(parameter);
        match self {
            Self::Header { name: read, .. } => **read == *name,
            Self::Query { name: read, .. } => is_query(read),
            Self::Match { matched: Matched::Headers(headers), .. } => {
                headers.iter().any(|header| *header.name == *name)
            }
            Self::Match { matched: Matched::Query(parameters), .. } => {
                parameters.iter().any(|parameter| is_query(&parameter.name))
            }
            Self::Generic(..) | Self::Client | Self::ClientNetwork(..) | Self::Cluster => false,
        }
    }
}
