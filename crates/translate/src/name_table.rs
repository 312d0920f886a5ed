//! The agent's DNS name table (Istio's NDS): names of services with their virtual addresses.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_model::{Endpoint, EndpointAddress, Service};
use evenkeel_xds::{Resource, ResourceType};
use prost::Message;

use crate::context::Context;
use crate::names::NAME_TABLE;
use crate::output::{Collection, NameAlias, NameInfo, Output, Part};
use crate::proto::any_named;

/// `istio.networking.nds.v1.NameTable` with its names in order.
#[derive(Clone, PartialEq, Message)]
pub struct NameTable {
    /// Entries by host.
    #[prost(btree_map = "string, message", tag = "1")]
    pub table: BTreeMap<String, NameInfo>,
    /// Evenkeel's own, which Istio's agent ignores: names that are answered with a CNAME.
    #[prost(btree_map = "string, message", tag = "100")]
    pub aliases: BTreeMap<String, NameAlias>,
}

/// The entry of a service that has virtual addresses.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if !service.headless {
        names(context, service, out);
    }
}

/// The entry of a Service that is another name of a host: the virtual addresses of that host. If the mesh has none for
/// it, agents answer with a CNAME and look up the host, as a cluster's DNS server does.
pub fn of_alias(context: Context<'_>, alias: &Service, out: &mut Output<'_>) {
    if !context.is_sidecar() {
        return;
    }
    let target = context.destination(&alias.host).into_iter();
    let ips: Vec<String> = target.flat_map(|target| context.vips(target)).map(|vip| vip.to_string()).collect();
    let (host, of_alias) = (alias.host.to_string(), of_kubernetes(alias, alias.name.to_string()));
    let part = match &alias.alias_of {
        Some(target) if ips.is_empty() => {
            let NameInfo { shortname, namespace, .. } = of_alias;
            Part::Alias(host, NameAlias { target: target.to_string(), shortname, namespace })
        }
        _ => Part::Name(host, NameInfo { ips, ..of_alias }),
    };
    give(context, part, alias.short_names(&context), out);
}

/// The entries of a headless service, whose addresses are those of its endpoints, and of its Pods.
pub fn of_endpoints(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    if service.headless {
        names(context, service, out);
    }
}

/// Adds entries to the table, or for each entry a table of its own with the host and its short forms as aliases.
fn names(context: Context<'_>, service: &Service, out: &mut Output<'_>) {
    let Some(info) = name_info(context, service) else { return };
    // As in Istio, agents know the short names of Kubernetes Services only.
    let short_names = if service.is_kubernetes() { service.short_names(&context) } else { Vec::new() };
    for (pod, info) in pods(context, service) {
        let under = short_names.iter().map(|name| format!("{pod}.{name}")).collect();
        give(context, Part::Name(format!("{pod}.{}", service.host), info), under, out);
    }
    give(context, Part::Name(service.host.to_string(), info), short_names, out);
}

fn give(context: Context<'_>, part: Part, short_names: Vec<String>, out: &mut Output<'_>) {
    if context.wants_whole_tables() {
        return out.give(Collection::Names, part);
    }
    let (Part::Name(host, _) | Part::Alias(host, _)) = &part else { return };
    let packed = any_named(NAME_TABLE, &table_of(&[&part]));
    let short_names = short_names.into_iter().map(Into::into);
    out.resources.push((ResourceType::NameTable, Resource::new(host.clone(), &packed).with_aliases(short_names)));
}

fn table_of(parts: &[&Part]) -> NameTable {
    let mut all = NameTable::default();
    for part in parts {
        match part {
            Part::Name(host, info) => _ = all.table.insert(host.clone(), info.clone()),
            Part::Alias(host, alias) => _ = all.aliases.insert(host.clone(), alias.clone()),
            _ => {}
        }
    }
    all
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
    // A name must not lead to an address that means something else here.
    all.filter(move |endpoint| endpoint.ready && context.is_offered(service, endpoint) && context.is_near(endpoint))
}

fn of_kubernetes(service: &Service, shortname: String) -> NameInfo {
    let namespace = service.namespace.to_string();
    NameInfo { ips: Vec::new(), registry: "Kubernetes".to_owned(), shortname, namespace }
}

/// The table of one proxy, with every service it may call that has an address. As in Istio it has no name.
pub fn table(parts: &[&Part], out: &mut Output<'_>) {
    out.add_packed(ResourceType::NameTable, "", &any_named(NAME_TABLE, &table_of(parts)), None);
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
    Some(if service.is_kubernetes() {
        NameInfo { ips, ..of_kubernetes(service, service.name.to_string()) }
    } else {
        NameInfo { ips, registry: "External".to_owned(), ..Default::default() }
    })
}
