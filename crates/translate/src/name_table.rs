//! The DNS table of the agent (Istio's NDS): names of services with their virtual addresses.

use std::collections::BTreeMap;

use evenkeel_model::{EndpointAddress, Service};
use evenkeel_xds::{Resource, ResourceType};
use prost::Message;

use crate::context::Context;
use crate::names::NAME_TABLE;
use crate::plan::{Collection, Output, Part};
use crate::proto::any_named;

/// `istio.networking.nds.v1.NameTable` with its names in order.
#[derive(Clone, PartialEq, Message)]
pub struct NameTable {
    /// Entries by host.
    #[prost(btree_map = "string, message", tag = "1")]
    pub table: BTreeMap<String, NameInfo>,
}

/// `NameTable.NameInfo`.
#[derive(Clone, PartialEq, Message)]
pub struct NameInfo {
    /// Addresses.
    #[prost(string, repeated, tag = "1")]
    pub ips: Vec<String>,
    /// `Kubernetes` for Services, `External` for ServiceEntries.
    #[prost(string, tag = "2")]
    pub registry: String,
    /// A Service's name.
    #[prost(string, tag = "3")]
    pub shortname: String,
    /// A Service's namespace.
    #[prost(string, tag = "4")]
    pub namespace: String,
}

/// The name of a service: an entry of the table, or a table with nothing else in it that answers to the host and its
/// shorter forms.
pub fn of_service(context: Context<'_>, service: &Service, out: &mut Output) {
    let Some(info) = name_info(context, service) else { return };
    let host = service.host.to_string();
    if context.wants_whole_tables() {
        return out.give(Collection::Names, Part::Name(host, info));
    }
    let packed = any_named(NAME_TABLE, &NameTable { table: BTreeMap::from([(host.clone(), info)]) });
    let aliases = service.short_names(&context).into_iter().map(Into::into);
    out.resources.push((ResourceType::NameTable, Resource::new(host, &packed).with_aliases(aliases)));
}

/// The table of one proxy: every service it may call that has an address. As from Istio it has no name.
pub fn table(parts: &[&Part], out: &mut Output) {
    let entry = |part: &&Part| match part {
        Part::Name(host, info) => Some((host.clone(), info.clone())),
        _ => None,
    };
    let table = NameTable { table: parts.iter().filter_map(entry).collect() };
    out.add_packed(ResourceType::NameTable, "", &any_named(NAME_TABLE, &table), None);
}

/// What is known of one service's name; `None` when it has no address.
pub fn name_info(context: Context<'_>, service: &Service) -> Option<NameInfo> {
    let mut ips: Vec<String> = service.vips().map(|vip| vip.to_string()).collect();
    if service.headless {
        let ready = service.ports.iter().flat_map(|p| context.snapshot.endpoints(service, p.number));
        let addresses = ready.filter(|e| e.ready).filter_map(|e| match &e.address {
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
    let kubernetes = service.is_kubernetes();
    Some(match kubernetes {
        true => NameInfo {
            ips,
            registry: "Kubernetes".to_owned(),
            shortname: service.name.to_string(),
            namespace: service.namespace.to_string(),
        },
        false => NameInfo { ips, registry: "External".to_owned(), ..Default::default() },
    })
}
