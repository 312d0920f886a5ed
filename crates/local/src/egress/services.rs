//! The names of the mesh's Services, for the cluster's name server, and the mesh's policy for programs without a sidecar.
//!
//! In a cluster the name server watches the control plane. Here the control plane is asked on demand, at most once per
//! second.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::dns::{AliasEntry, Authority, HostEntry, SearchDomain, Table, endpoint_name};
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::rules::network;
use crate::addresses::{BRIDGE_ADDRESS, CLUSTER_DOMAIN, POD_PREFIX};
use crate::cluster::{Cluster, Registered, Service, fetch};

/// How long an answer of the control plane is cached.
const FRESH: Duration = Duration::from_secs(1);

/// A cache of the control plane's last answer.
#[derive(Debug, Default)]
pub struct Services(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    book: Arc<ServiceSnapshot>,
    generation: Option<u64>,
    asked: Option<Instant>,
}

impl Services {
    /// The present services; the last known ones if the control plane does not answer.
    pub async fn now(&self) -> Arc<ServiceSnapshot> {
        let mut known = self.0.lock().await;
        if known.asked.is_none_or(|asked| asked.elapsed() >= FRESH) {
            match fetch(known.generation).await {
                Ok(Cluster { generation, allow_any, services: Some(services), registered }) => {
                    known.book = Arc::new(ServiceSnapshot { registered, ..book(services, allow_any) });
                    known.generation = Some(generation);
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::info!(error, "cannot get the mesh's services from the control plane");
                    // Another run counts generations anew.
                    known.generation = None;
                }
            }
            known.asked = Some(Instant::now());
        }
        known.book.clone()
    }
}

/// The mesh's services at one time.
#[derive(Debug, Default)]
pub struct ServiceSnapshot {
    /// Names of services, and their addresses.
    pub names: Table,
    /// Whether programs may call destinations that are not services (the mesh's `outboundTrafficPolicy`); `false` until it
    /// is known.
    pub allow_any: bool,
    /// What may be called otherwise.
    pub(crate) registered: Registered,
}

fn book(services: Vec<Service>, allow_any: bool) -> ServiceSnapshot {
    let (mut hosts, mut aliases) = (Vec::new(), Vec::new());
    let mut authority = authority();
    for service in services {
        if let Some(target) = service.alias_of {
            let (short_name, namespace) = (String::new(), String::new());
            aliases.push(AliasEntry { host: service.host, target, short_name, namespace });
            continue;
        }
        let mut ips: Vec<IpAddr> = service.ips().collect();
        ips.iter().for_each(|ip| authority.add_pointer(*ip, &service.host));
        for port in &service.ports {
            if !service.headless {
                authority.add_port(&service.host, &port.name, port.udp, port.number, &service.host);
                continue;
            }
            for endpoint in &port.endpoints {
                let name = endpoint_name(endpoint.host_name.as_deref(), endpoint.address);
                let name = format!("{name}.{}", service.host);
                authority.add_port(&service.host, &port.name, port.udp, endpoint.port, &name);
                authority.add_pointer(endpoint.address, &name);
                hosts.push(entry(name, vec![endpoint.address]));
                ips.push(endpoint.address);
            }
        }
        ips.sort_unstable();
        ips.dedup();
        hosts.push(entry(service.host, ips));
    }
    ServiceSnapshot {
        names: Table::with_aliases(hosts, aliases, &cluster()).with_authority(authority),
        allow_any,
        ..ServiceSnapshot::default()
    }
}

fn entry(host: String, ips: Vec<IpAddr>) -> HostEntry {
    HostEntry { host, ips, short_name: String::new(), namespace: String::new() }
}

/// The cluster's domain, below which only this server knows names.
fn cluster() -> SearchDomain {
    SearchDomain { namespace: String::new(), cluster_domain: CLUSTER_DOMAIN.to_owned() }
}

fn authority() -> Authority {
    Authority::new(CLUSTER_DOMAIN, (network(BRIDGE_ADDRESS, POD_PREFIX), POD_PREFIX))
}

/// A table without names, to recognize what only this server may answer.
pub(super) fn no_names() -> Table {
    Table::new([], &cluster()).with_authority(authority())
}

#[cfg(test)]
mod tests {
    use evenkeel_agent::dns::Known;

    use super::*;

    const SERVICES: &str = r#"[
        {"host": "web.shop.svc.cluster.local", "addresses": ["10.96.1.1/32"], "headless": false, "alias_of": null,
         "ports": [{"name": "http", "number": 80, "udp": false, "endpoints": [{"address": "10.244.1.1", "port": 8080, "host_name": null}]}]},
        {"host": "db.shop.svc.cluster.local", "addresses": [], "headless": true, "alias_of": null,
         "ports": [{"name": "sql", "number": 5432, "udp": false, "endpoints": [
            {"address": "10.244.1.3", "port": 5432, "host_name": "db-0"}, {"address": "10.244.1.4", "port": 5432, "host_name": null}]}]},
        {"host": "far.shop.svc.cluster.local", "addresses": [], "headless": false, "alias_of": "far.example.com", "ports": []}]"#;

    #[test]
    fn names_of_services_their_replicas_and_aliases_are_known() {
        let book = book(serde_json::from_str(SERVICES).expect("services"), true);
        let check = |name: &str, expected: Option<&[&str]>| {
            let found = book.names.lookup(name).map(|known| match known {
                Known::Addresses(ips) => ips.iter().map(ToString::to_string).collect::<Vec<_>>(),
                Known::AliasOf(host) => vec![host.to_string()],
            });
            assert_eq!(found, expected.map(|all| all.iter().map(|one| (*one).to_owned()).collect()), "{name}");
        };
        check("web.shop.svc.cluster.local", Some(&["10.96.1.1"]));
        check("db.shop.svc.cluster.local", Some(&["10.244.1.3", "10.244.1.4"]));
        check("db-0.db.shop.svc.cluster.local", Some(&["10.244.1.3"]));
        check("10-244-1-4.db.shop.svc.cluster.local", Some(&["10.244.1.4"]));
        check("far.shop.svc.cluster.local", Some(&["far.example.com"]));
        check("example.com", None);
    }

    #[test]
    fn nothing_leaves_unless_the_control_plane_says_so() {
        let check = |page: &str, expected| {
            let cluster: Cluster = serde_json::from_str(page).expect("a page");
            assert_eq!(cluster.allow_any, expected, "{page}");
        };
        check(r#"{"generation": 1}"#, false);
        check(r#"{"generation": 1, "services": [], "allow_any": true}"#, true);
        assert!(!ServiceSnapshot::default().allow_any);
    }
}
