//! Route configurations of sidecars and gateways.

pub mod gateway;
pub mod inbound;
pub mod outbound;

pub mod action;
pub mod filters;
mod headers;
pub mod matches;
pub mod route_set;

use std::collections::HashSet;
use std::sync::Arc;

use evenkeel_base::Span;
use evenkeel_xds::ResourceType;
use prost::Message;

use crate::context::Context;
use crate::finish::{self, host_resource};
use crate::output::{Collection, HostPart, Output, Part};
use crate::pb::config::route::{Route, RouteConfiguration, Vhds, VirtualHost, route, virtual_host::TlsRequirementType};
use crate::proto::{ads, u32_value};

/// Envoy's default limit of a direct response's body, in bytes.
const DEFAULT_DIRECT_RESPONSE_BYTES: usize = 4096;
/// The raised limit, in bytes, as Istio sets it.
const MAX_DIRECT_RESPONSE_BYTES: u32 = 1024 * 1024;

/// Adds a virtual host to a route configuration. Clients that do not want whole tables get it as a separate resource
/// named `TABLE/DOMAIN`, unless it matches all hosts: then it stays inside, so that a client without the others decides
/// as if it had them all.
fn give_host(
    context: Context<'_>,
    table: &Arc<str>,
    host: &VirtualHost,
    ruled_by: Option<Span>,
    service: Option<Span>,
    out: &mut Output<'_>,
) {
    let host = &*finish::virtual_host(context.patches(), table, host);
    let whole = context.wants_whole_tables() || context.is_sidecar() && context.is_for_all_ports(table);
    let inside = whole || host.domains.iter().any(|domain| domain == "*");
    if let (false, Some((first, others))) = (inside, host.domains.split_first()) {
        let aliases = others.iter().map(|domain| format!("{table}/{domain}").into());
        let origin = ruled_by.as_ref().or(service.as_ref()).cloned();
        let resource = host_resource(format!("{table}/{first}"), host, origin).with_aliases(aliases);
        out.resources.push((ResourceType::VirtualHost, resource));
    }
    let part = HostPart {
        domains: host.domains.clone(),
        encoded: inside.then(|| host.encode_to_vec()),
        large: host.routes.iter().any(|route| body_bytes(route) > DEFAULT_DIRECT_RESPONSE_BYTES),
        ruled_by,
        service,
    };
    out.give(Collection::Routes(table.clone()), Part::VirtualHost(part));
}

/// Assembles a route configuration from encoded virtual hosts and `last`. A domain may appear only once: the first
/// virtual host that has it keeps it, and a virtual host without domains left is dropped.
fn put_together(context: Context<'_>, name: &str, hosts: &[&HostPart], last: Option<VirtualHost>) -> Vec<u8> {
    // An encoded message is a sequence of fields, so concatenated messages are merged.
    let mut value = RouteConfiguration { name: name.to_owned(), ..Default::default() }.encode_to_vec();
    let mut taken = HashSet::new();
    for host in hosts {
        let Some(encoded) = &host.encoded else { continue };
        match host.domains.iter().filter(|domain| taken.insert(domain.as_str())).count() {
            0 => {}
            kept if kept == host.domains.len() => put_host(&mut value, encoded),
            _ => {
                let before = hosts.iter().take_while(|other| !std::ptr::eq(**other, *host));
                let others: HashSet<_> = before.filter(|o| o.encoded.is_some()).flat_map(|o| &o.domains).collect();
                // It was encoded here.
                let Ok(mut fewer) = VirtualHost::decode(encoded.as_slice()) else { continue };
                fewer.domains.retain(|domain| !others.contains(domain));
                put_host(&mut value, &fewer.encode_to_vec());
            }
        }
    }
    if let Some(last) = last {
        let mut last = finish::virtual_host(context.patches(), name, &last).into_owned();
        last.domains.retain(|domain| !taken.contains(domain.as_str()));
        if !last.domains.is_empty() {
            put_host(&mut value, &last.encode_to_vec());
        }
    }
    // Virtual hosts that are separate resources may each need the table's larger limit.
    let large = !context.wants_whole_tables() || hosts.iter().any(|host| host.large);
    let by_port = context.is_sidecar() && context.is_for_all_ports(name);
    let grows = !context.wants_whole_tables() && !outbound::is_of_one_service(name) && !by_port;
    let rest = RouteConfiguration {
        ignore_port_in_host_matching: !by_port,
        max_direct_response_body_size_bytes: large.then(|| u32_value(MAX_DIRECT_RESPONSE_BYTES)),
        vhds: grows.then(|| Vhds { config_source: Some(ads()) }),
        ..Default::default()
    };
    value.extend(rest.encode_to_vec());
    value
}

/// Field `virtual_hosts` of a route configuration.
fn put_host(value: &mut Vec<u8>, encoded: &[u8]) {
    const VIRTUAL_HOSTS: u32 = 2;
    prost::encoding::encode_key(VIRTUAL_HOSTS, prost::encoding::WireType::LengthDelimited, value);
    prost::encoding::encode_varint(encoded.len() as u64, value);
    value.extend_from_slice(encoded);
}

/// The virtual hosts among parts.
fn hosts_of<'a>(parts: &[&'a Part]) -> Vec<&'a HostPart> {
    let host = |part: &&'a Part| match part {
        Part::VirtualHost(host) => Some(host),
        _ => None,
    };
    parts.iter().filter_map(host).collect()
}

fn virtual_host(context: Context<'_>, name: String, domains: Vec<String>, routes: Vec<Route>) -> VirtualHost {
    let include_request_attempt_count = !context.options().no_attempt_count;
    VirtualHost { name, domains, routes, include_request_attempt_count, ..Default::default() }
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
