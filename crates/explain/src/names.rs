//! Resolves a host name for a workload, as a lookup in the Pod would: the cluster's names through the Pod's search domains,
//! then the names that the agent's DNS server knows.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_model::{EndpointAddress, Service, Snapshot, Workload};
use evenkeel_translate::name_table::NameTable;
use evenkeel_xds::ResourceType;
use prost::Message;

use crate::proxy::{Proxy, SOMEWHERE};

/// An address, and how it was found.
#[derive(Debug, Clone)]
pub struct Resolved {
    /// The address.
    pub address: IpAddr,
    /// The service that has it, if any.
    pub service: Option<Arc<Service>>,
    /// How it was found, for people.
    pub how: String,
}

/// Resolves a host name as the workload's DNS does.
pub fn resolve(host: &str, workload: &Workload, proxy: Option<&Proxy>, snapshot: &Snapshot) -> Resolved {
    if let Ok(address) = host.parse::<IpAddr>() {
        let service = snapshot.services.iter().find(|service| service.vips().any(|vip| vip == address)).cloned();
        let how = match (&service, snapshot.workload_at(address)) {
            (Some(service), _) => format!("the address of the service {}", service.host),
            (None, Some(pod)) => format!("the address of the Pod {}.{}", pod.pod, pod.namespace),
            (None, None) => "an address that no service has".to_owned(),
        };
        return Resolved { address, service, how };
    }
    let names = candidates(host, &workload.namespace, &snapshot.mesh.cluster_domain);
    let in_cluster = names.iter().find_map(|name| of_cluster(name, snapshot));
    if let Some(found) = in_cluster {
        return found;
    }
    if let Some(found) = proxy.and_then(|proxy| names.iter().find_map(|name| of_agent(name, proxy, snapshot))) {
        return found;
    }
    let service = names.iter().find_map(|name| snapshot.service(name, &*workload.namespace)).cloned();
    let how = format!("not a name of the mesh: DNS decides, and {} stands for what it says", IpAddr::from(SOMEWHERE));
    Resolved { address: SOMEWHERE.into(), service, how }
}

/// The full names that a resolver tries, by the `search` line of a Pod in the namespace.
fn candidates(host: &str, namespace: &str, domain: &str) -> Vec<String> {
    let host = host.to_ascii_lowercase();
    if let Some(absolute) = host.strip_suffix('.') {
        return vec![absolute.to_owned()];
    }
    let suffixes = [format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
    let mut names: Vec<String> = suffixes.iter().map(|suffix| format!("{host}.{suffix}")).collect();
    names.push(host);
    names
}

/// A Kubernetes Service, or a Pod of a headless one.
fn of_cluster(name: &str, snapshot: &Snapshot) -> Option<Resolved> {
    let kubernetes = |name: &str| snapshot.services_of(name).iter().find(|service| service.is_kubernetes()).cloned();
    if let Some(service) = kubernetes(name) {
        let vip = service.vips().next();
        if let Some(address) = vip {
            let how = format!("the cluster address of the Service {}/{}", service.namespace, service.name);
            return Some(Resolved { address, how, service: Some(service) });
        }
        let mut endpoints = endpoints(&service, snapshot).into_iter();
        let address = endpoints.next()?.1;
        let how = format!("a Pod of the headless Service {}/{}", service.namespace, service.name);
        return Some(Resolved { address, how, service: Some(service) });
    }
    let (pod, service) = name.split_once('.')?;
    let service = kubernetes(service).filter(|service| service.headless)?;
    let found = endpoints(&service, snapshot);
    let (_, address) = found.iter().find(|(host_name, _)| host_name.as_deref() == Some(pod))?;
    let how = format!("the Pod {pod} of the headless Service {}/{}", service.namespace, service.name);
    Some(Resolved { address: *address, how, service: Some(service) })
}

fn endpoints(service: &Service, snapshot: &Snapshot) -> Vec<(Option<Arc<str>>, IpAddr)> {
    let all = service.ports.iter().flat_map(|port| snapshot.endpoints(service, port.number));
    let address = |endpoint: &evenkeel_model::Endpoint| match &endpoint.address {
        EndpointAddress::Ip(ip) if endpoint.ready => Some((endpoint.host_name.clone(), *ip)),
        _ => None,
    };
    let mut all: Vec<_> = all.filter_map(address).collect();
    all.sort();
    all.dedup();
    all
}

/// A name that the agent answers, such as that of a ServiceEntry with a virtual address.
fn of_agent(name: &str, proxy: &Proxy, snapshot: &Snapshot) -> Option<Resolved> {
    let tables = proxy.resources.of(ResourceType::NameTable);
    let host = Hostname::parse(name).ok()?;
    for table in tables.values() {
        let table = NameTable::decode(table.any().value.as_slice()).ok()?;
        let parents = name.match_indices('.').map(|(at, _)| format!("*{}", &name[at..]));
        let entry =
            std::iter::once(name.to_owned()).chain(parents).find_map(|name| Some((table.table.get(&name)?, name)));
        if let Some((info, found)) = entry
            && let Some(address) = info.ips.first().and_then(|ip| ip.parse().ok())
        {
            let service = snapshot.service(&found, &*proxy.workload.namespace).cloned();
            let how = match &service {
                Some(service) => format!("the virtual address of {}/{} ({})", service.namespace, service.name, host),
                None => "an address that the agent knows".to_owned(),
            };
            return Some(Resolved { address, service, how });
        }
    }
    None
}
