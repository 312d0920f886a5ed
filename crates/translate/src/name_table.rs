//! The DNS table of the agent (Istio's NDS): names of services with their virtual addresses.

use std::collections::BTreeMap;

use evenkeel_model::EndpointAddress;
use prost::Message;

use crate::context::Context;
use crate::names::NAME_TABLE;
use crate::pb::google::protobuf::Any;
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

/// The table of one proxy, packed.
pub fn packed(context: Context<'_>) -> Any {
    any_named(NAME_TABLE, &name_table(context))
}

/// The table of one proxy: every service it may call that has an address.
pub fn name_table(context: Context<'_>) -> NameTable {
    let mut table = BTreeMap::new();
    for service in context.services() {
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
            continue;
        }
        let kubernetes = !service.short_names(&service.namespace).is_empty();
        let info = match kubernetes {
            true => NameInfo {
                ips,
                registry: "Kubernetes".to_owned(),
                shortname: service.name.to_string(),
                namespace: service.namespace.to_string(),
            },
            false => NameInfo { ips, registry: "External".to_owned(), ..Default::default() },
        };
        table.insert(service.host.to_string(), info);
    }
    NameTable { table }
}
