//! Selects the virtual host and route for a request, and the cluster of a weighted action. Nothing here allocates.

use std::sync::Arc;

use evenkeel_base::grpc;

use crate::demand::Demand;
use crate::matching::split_path;
use crate::route::{ForwardAction, PathMatch, RequireTls, Route, RouteMatch, VirtualHost, WeightedCluster};
use crate::route_table::RouteTable;
use crate::view::RequestView;

/// The result of matching a request against a route table.
#[derive(Debug, Clone, Copy)]
pub enum RouteSelection<'t> {
    /// This route serves it.
    Route(&'t Arc<VirtualHost>, &'t Arc<Route>),
    /// The virtual host requires TLS: 301 to the same URL with `https`.
    TlsRedirect(&'t Arc<VirtualHost>),
    /// No virtual host matches the authority, or none of its routes matches (404, flag `NR`).
    NotFound(Option<&'t Arc<VirtualHost>>),
}

impl RouteTable {
    /// The virtual host for an authority: exact domain, longest `*suffix`, longest `prefix*`, `*`. Case-insensitive.
    pub fn find_virtual_host(&self, authority: &[u8]) -> Option<&Arc<VirtualHost>> {
        let host = if self.ignore_port_in_host_matching { without_port(authority) } else { authority };
        match &self.growing {
            None => self.virtual_hosts.get(*self.domains.find(host)?),
            Some(growing) => growing.find(host),
        }
    }

    /// The virtual host to request from the control plane before a request to this authority can be decided, if any.
    /// Only a response for exactly this host tells what serves it, since a wildcard may hide a closer match.
    pub fn unanswered(&self, authority: &[u8]) -> Option<Demand> {
        let growing = self.growing.as_ref()?;
        let host = if self.ignore_port_in_host_matching { without_port(authority) } else { authority };
        let host = growing.unanswered(host)?;
        Some(Demand::VirtualHost { table: self.name.clone(), host: host.into() })
    }

    /// The route for a request. `random` decides `runtime_fraction`; use the same number for [`ForwardAction::pick_cluster`].
    pub fn select(&self, request: &impl RequestView, random: u64) -> RouteSelection<'_> {
        let Some(host) = self.find_virtual_host(request.authority()) else {
            return RouteSelection::NotFound(None);
        };
        if host.redirects_to_tls(request) {
            return RouteSelection::TlsRedirect(host);
        }
        match host.routes.iter().find(|route| route.matches.matches(request, random)) {
            Some(route) => RouteSelection::Route(host, route),
            None => RouteSelection::NotFound(Some(host)),
        }
    }
}

impl VirtualHost {
    fn redirects_to_tls(&self, request: &impl RequestView) -> bool {
        match self.require_tls {
            RequireTls::None => false,
            RequireTls::All => request.scheme() != b"https",
            RequireTls::ExternalOnly => {
                request.scheme() != b"https"
                    && request.header("x-envoy-internal").is_none_or(|internal| &*internal != b"true")
            }
        }
    }
}

impl RouteMatch {
    /// Whether the route matches the request.
    pub fn matches(&self, request: &impl RequestView, random: u64) -> bool {
        let (path, query) = split_path(request.path());
        self.path.matches(path, self.case_sensitive, request)
            && random % 1_000_000 < u64::from(self.fraction_ppm)
            && (!self.grpc_only || is_grpc(request))
            && self.headers.iter().all(|header| header.matches(request))
            && self.query_parameters.iter().all(|parameter| parameter.matches(query))
            && self.dynamic_metadata.iter().all(|metadata| metadata.matches(request.dynamic_metadata()))
    }
}

impl PathMatch {
    fn matches(&self, path: &[u8], case_sensitive: bool, request: &impl RequestView) -> bool {
        match self {
            Self::Prefix(prefix) => starts_with(path, prefix.as_bytes(), case_sensitive),
            Self::Exact(exact) => equal(path, exact.as_bytes(), case_sensitive),
            Self::Regex(regex) => regex.is_match(path),
            Self::SeparatedPrefix(prefix) => {
                starts_with(path, prefix.as_bytes(), case_sensitive)
                    && path.get(prefix.len()).is_none_or(|&next| next == b'/')
            }
            Self::Connect => request.method() == b"CONNECT",
        }
    }
}

impl ForwardAction {
    /// The cluster for a random number, by weight. `None` only without clusters, which the compiler rejects.
    pub fn pick_cluster(&self, random: u64) -> Option<&WeightedCluster> {
        let mut point = random % u64::from(self.total_weight.max(1));
        for cluster in &self.clusters {
            match point.checked_sub(u64::from(cluster.weight)) {
                None => return Some(cluster),
                Some(rest) => point = rest,
            }
        }
        self.clusters.last()
    }
}

/// Whether the request is gRPC, by its content type.
pub fn is_grpc(request: &impl RequestView) -> bool {
    request.header("content-type").is_some_and(|kind| grpc::is_grpc(&kind))
}

fn starts_with(value: &[u8], prefix: &[u8], case_sensitive: bool) -> bool {
    value.get(..prefix.len()).is_some_and(|head| equal(head, prefix, case_sensitive))
}

fn equal(a: &[u8], b: &[u8], case_sensitive: bool) -> bool {
    if case_sensitive { a == b } else { a.eq_ignore_ascii_case(b) }
}

/// An authority without its port: `[::1]:80` → `[::1]`, `host:80` → `host`.
pub fn without_port(authority: &[u8]) -> &[u8] {
    let Some(colon) = authority.iter().rposition(|&b| b == b':') else { return authority };
    let (host, port) = (&authority[..colon], &authority[colon + 1..]);
    // A bare IPv6 address has no port.
    let bracketed = !host.contains(&b':') || host.ends_with(b"]");
    if bracketed && port.iter().all(u8::is_ascii_digit) { host } else { authority }
}
