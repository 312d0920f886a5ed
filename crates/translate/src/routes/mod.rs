//! Route configurations of sidecars and gateways.

pub mod gateway;
pub mod inbound;
pub mod outbound;

pub mod action;
mod headers;
mod matches;
mod virtual_service;

use std::collections::HashSet;

use evenkeel_base::Span;

use crate::context::Context;
use crate::pb::config::route::{Route, RouteConfiguration, VirtualHost, route, virtual_host::TlsRequirementType};
use crate::proto::u32_value;

/// A route configuration and where the user asked for it.
pub type Generated = (RouteConfiguration, Option<Span>);

/// Envoy's limit of a direct response's body, in bytes, unless the route configuration raises it.
const DEFAULT_DIRECT_RESPONSE_BYTES: usize = 4096;
/// The raised limit, in bytes, as Istio sets it.
const MAX_DIRECT_RESPONSE_BYTES: u32 = 1024 * 1024;

/// All route configurations a proxy may ask for, by name.
pub fn route_configurations(context: Context<'_>) -> Vec<Generated> {
    match context.is_sidecar() {
        true => outbound::route_configurations(context),
        false => gateway::route_configurations(context),
    }
}

/// Puts virtual hosts together. A domain may appear only once: the first virtual host that has it keeps it, and one that
/// has none left is dropped.
fn configuration(name: String, hosts: Vec<VirtualHost>) -> RouteConfiguration {
    let mut taken = HashSet::new();
    let keep = |mut host: VirtualHost| {
        host.domains.retain(|domain| taken.insert(domain.clone()));
        (!host.domains.is_empty()).then_some(host)
    };
    let virtual_hosts: Vec<VirtualHost> = hosts.into_iter().filter_map(keep).collect();
    let large = virtual_hosts.iter().flat_map(|h| &h.routes).any(|r| body_bytes(r) > DEFAULT_DIRECT_RESPONSE_BYTES);
    RouteConfiguration {
        name,
        virtual_hosts,
        ignore_port_in_host_matching: true,
        max_direct_response_body_size_bytes: large.then(|| u32_value(MAX_DIRECT_RESPONSE_BYTES)),
        ..Default::default()
    }
}

fn virtual_host(name: String, domains: Vec<String>, routes: Vec<Route>) -> VirtualHost {
    VirtualHost { name, domains, routes, include_request_attempt_count: true, ..Default::default() }
}

/// A virtual host that sends plain requests to `https`.
fn require_tls(host: VirtualHost) -> VirtualHost {
    VirtualHost { require_tls: TlsRequirementType::All as i32, ..host }
}

fn body_bytes(route: &Route) -> usize {
    use crate::pb::core::data_source::Specifier;
    let Some(route::Action::DirectResponse(response)) = &route.action else { return 0 };
    match response.body.as_ref().and_then(|b| b.specifier.as_ref()) {
        Some(Specifier::InlineBytes(bytes)) => bytes.len(),
        Some(Specifier::InlineString(text)) => text.len(),
        _ => 0,
    }
}
