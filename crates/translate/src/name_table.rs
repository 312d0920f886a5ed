//! The agent's DNS name table (Istio's NDS): names of services with their virtual addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_model::{Endpoint, EndpointAddress, Service};
use evenkeel_xds::{Resource, ResourceType};
use prost::Message;

use crate::context::Context;
use crate::names::NAME_TABLE;
use crate::output::{Collection, NameInfo, Output, Part};
use crate::proto::any_named;

/// `istio.networking.nds.v1.NameTable` with its names in order.
#[derive(Clone, PartialEq, Message)]
pub struct NameTable {
    /// Entries by host.
    #[prost(btree_map = "string, message", tag = "1")]
    pub table: BTreeMap<String, NameInfo>,
}

/// The entry of a service that has virtual addresses.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output) {
    if !service.headless {
        names(context, service, out);
    }
}

/// The entry of a Service that is another name of a host: the addresses of that host. In a cluster its DNS server
/// answers so, with a CNAME.
pub fn of_alias(context: Context<'_>, alias: &Service, out: &mut Output) {
    if !context.is_sidecar() {
        return;
    }
    let Some(target) = context.destination(&alias.host) else { return };
    let ips: Vec<String> = context.vips(target).map(|vip| vip.to_string()).collect();
    if !ips.is_empty() {
        let info = NameInfo { ips, ..of_kubernetes(alias, alias.name.to_string()) };
        give(context, alias.host.to_string(), info, alias.short_names(&context), out);
    }
}

/// The entries of a headless service, whose addresses are those of its endpoints, and of its Pods.
pub fn of_endpoints(context: Context<'_>, service: &Service, out: &mut Output) {
    if service.headless {
        names(context, service, out);
    }
}

/// Adds entries to the table, or for each entry a table of its own with the host and its short forms as aliases.
fn names(context: Context<'_>, service: &Service, out: &mut Output) {
    let Some(info) = name_info(context, service) else { return };
    let short_names = service.short_names(&context);
    for (pod, info) in pods(context, service) {
        let under = short_names.iter().map(|name| format!("{pod}.{name}")).collect();
        give(context, format!("{pod}.{}", service.host), info, under, out);
    }
    give(context, service.host.to_string(), info, short_names, out);
}

fn give(context: Context<'_>, host: String, info: NameInfo, aliases: Vec<String>, out: &mut Output) {
    if context.wants_whole_tables() {
        return out.give(Collection::Names, Part::Name(host, info));
    }
    let packed = any_named(NAME_TABLE, &NameTable { table: BTreeMap::from([(host.clone(), info)]) });
    let aliases = aliases.into_iter().map(Into::into);
    out.resources.push((ResourceType::NameTable, Resource::new(host, &packed).with_aliases(aliases)));
}

/// The Pods that have a name under that of a headless Service, as those of a StatefulSet: `web-0.web.shop.svc.cluster.local`.
fn pods(context: Context<'_>, service: &Service) -> BTreeMap<Arc<str>, NameInfo> {
    let mut found: BTreeMap<Arc<str>, NameInfo> = BTreeMap::new();
    if !service.headless || !service.is_kubernetes() {
        return found;
    }
    for endpoint in ready_endpoints(context, service) {
        let (Some(pod), EndpointAddress::Ip(ip)) = (&endpoint.host_name, &endpoint.address) else { continue };
        let info =
            found.entry(pod.clone()).or_insert_with(|| of_kubernetes(service, format!("{pod}.{}", service.name)));
        info.ips.push(ip.to_string());
    }
    for info in found.values_mut() {
        info.ips.sort();
        info.ips.dedup();
    }
    found
}

/// The ready endpoints of all its ports.
fn ready_endpoints<'a>(context: Context<'a>, service: &'a Service) -> impl Iterator<Item = &'a Endpoint> {
    let all = service.ports.iter().flat_map(move |port| context.snapshot.endpoints(service, port.number));
    all.filter(|endpoint| endpoint.ready)
}

fn of_kubernetes(service: &Service, shortname: String) -> NameInfo {
    let namespace = service.namespace.to_string();
    NameInfo { ips: Vec::new(), registry: "Kubernetes".to_owned(), shortname, namespace }
}

/// The table of one proxy, with every service it may call that has an address. As in Istio it has no name.
pub fn table(parts: &[&Part], out: &mut Output) {
    let entry = |part: &&Part| match part {
        Part::Name(host, info) => Some((host.clone(), info.clone())),
        _ => None,
    };
    let table = NameTable { table: parts.iter().filter_map(entry).collect() };
    out.add_packed(ResourceType::NameTable, "", &any_named(NAME_TABLE, &table), None);
}

/// The entry for one service; `None` if it has no address.
pub fn name_info(context: Context<'_>, service: &Service) -> Option<NameInfo> {
    let mut ips: Vec<String> = context.vips(service).map(|vip| vip.to_string()).collect();
    if service.headless && service.is_kubernetes() {
        let addresses = ready_endpoints(context, service).filter_map(|e| match &e.address {
            EndpointAddress::Ip(ip) => Some(ip.to_string()),
            _ => None,
        });
        ips.extend(addresses);
        ips.sort();
        ips.dedup();
    }
    if ips.is_empty() {
        return None;
    }
    Some(match service.is_kubernetes() {
        true => NameInfo { ips, ..of_kubernetes(service, service.name.to_string()) },
        false => NameInfo { ips, registry: "External".to_owned(), ..Default::default() },
    })
}
