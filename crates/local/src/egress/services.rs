//! The mesh's services for programs without a sidecar: names, and the replicas behind virtual addresses.
//!
//! In a cluster these are kube-dns and kube-proxy, which watch the control plane. Here the control plane is asked on
//! demand, at most once per second.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::dns::{HostEntry, SearchDomain, Table};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::addresses::{CLUSTER_DOMAIN, CONTROL_DEBUG};
use crate::client::Call;

/// How long an answer of the control plane is cached.
const FRESH: Duration = Duration::from_secs(1);

/// A cache of the control plane's last answer.
#[derive(Debug, Default)]
pub struct Services(Mutex<Cache>);

#[derive(Debug, Default)]
struct Cache {
    book: Arc<ServiceSnapshot>,
    asked: Option<Instant>,
}

impl Services {
    /// The present services; the last known ones if the control plane does not answer.
    pub async fn now(&self) -> Arc<ServiceSnapshot> {
        let mut known = self.0.lock().await;
        if known.asked.is_none_or(|asked| asked.elapsed() >= FRESH) {
            match fetch().await {
                Ok(book) => known.book = Arc::new(book),
                Err(error) => tracing::info!(error, "cannot get the mesh's services from the control plane"),
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
    /// Ready replicas by virtual address and port.
    pub(super) backends: HashMap<SocketAddrV4, Vec<SocketAddr>>,
    /// Whether programs may call destinations that are not services (the mesh's `outboundTrafficPolicy`); `false` until
    /// it is known.
    pub allow_any: bool,
}

impl ServiceSnapshot {
    /// Replicas that serve a port of a virtual address; `None` if no service has it.
    pub fn backends(&self, service: SocketAddrV4) -> Option<&[SocketAddr]> {
        self.backends.get(&service).map(Vec::as_slice)
    }
}

#[derive(Debug, Deserialize)]
struct Service {
    host: String,
    addresses: Vec<String>,
    external: bool,
    ports: Vec<Port>,
}

#[derive(Debug, Deserialize)]
struct Port {
    number: u16,
}

#[derive(Debug, Deserialize)]
struct Endpoints {
    service: String,
    endpoints: Vec<Endpoint>,
}

#[derive(Debug, Deserialize)]
struct Endpoint {
    address: String,
    port: u16,
    ready: bool,
}

#[derive(Debug, Deserialize)]
struct Setting {
    kind: String,
    #[serde(default)]
    outbound_traffic_policy: String,
}

async fn fetch() -> Result<ServiceSnapshot, String> {
    let services: Vec<Service> = page("/debug/registryz").await?;
    let endpoints: Vec<Endpoints> = page("/debug/endpointz").await?;
    let settings: Vec<Setting> = page("/debug/configz").await?;
    Ok(book(services, endpoints, &settings))
}

async fn page<T: DeserializeOwned>(path: &str) -> Result<T, String> {
    let answer = Call::get("localhost", path).send(None, CONTROL_DEBUG).await.map_err(|error| error.to_string())?;
    serde_json::from_str(&answer.body).map_err(|error| format!("{path}: {error}"))
}

fn book(services: Vec<Service>, endpoints: Vec<Endpoints>, settings: &[Setting]) -> ServiceSnapshot {
    let mut ready: HashMap<String, Vec<SocketAddr>> = HashMap::new();
    for Endpoints { service, endpoints } in endpoints {
        let addresses = endpoints.into_iter().filter(|endpoint| endpoint.ready);
        let addresses = addresses.filter_map(|e| Some(SocketAddr::new(e.address.parse().ok()?, e.port)));
        ready.insert(service, addresses.collect());
    }
    let (mut names, mut backends) = (Vec::new(), HashMap::new());
    // ServiceEntries apply only to proxies; programs without a sidecar use the real names.
    for service in services.into_iter().filter(|service| !service.external) {
        let mut ips: Vec<IpAddr> = service.addresses.iter().filter_map(|address| single(address)).collect();
        for Port { number } in service.ports {
            let behind = ready.remove(&format!("{}:{number}", service.host)).unwrap_or_default();
            for ip in ips.iter().filter_map(ipv4) {
                backends.insert(SocketAddrV4::new(ip, number), behind.clone());
            }
            if service.addresses.is_empty() {
                // A headless service.
                ips.extend(behind.iter().map(SocketAddr::ip));
            }
        }
        ips.sort_unstable();
        ips.dedup();
        names.push(HostEntry { host: service.host, ips, short_name: String::new(), namespace: String::new() });
    }
    let allow_any =
        settings.iter().any(|s| s.kind == "MeshConfig" && s.outbound_traffic_policy.starts_with("ALLOW_ANY"));
    ServiceSnapshot { names: Table::new(names, &cluster()), backends, allow_any }
}

/// The cluster's domain, below which only this server knows names.
pub fn cluster() -> SearchDomain {
    SearchDomain { namespace: String::new(), cluster_domain: CLUSTER_DOMAIN.to_owned() }
}

/// The address of a network with a single address, which is the form of virtual addresses on the pages.
fn single(network: &str) -> Option<IpAddr> {
    let (address, prefix) = network.split_once('/').unwrap_or((network, ""));
    let address: IpAddr = address.parse().ok()?;
    let whole = if address.is_ipv4() { "32" } else { "128" };
    (prefix.is_empty() || prefix == whole).then_some(address)
}

fn ipv4(ip: &IpAddr) -> Option<Ipv4Addr> {
    match ip {
        IpAddr::V4(ip) => Some(*ip),
        IpAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_agent::dns::Known;

    use super::*;

    const REGISTRY: &str = r#"[
        {"host": "web.shop.svc.cluster.local", "addresses": ["10.96.1.1/32"], "external": false, "ports": [{"number": 80}, {"number": 90}]},
        {"host": "db.shop.svc.cluster.local", "addresses": [], "external": false, "ports": [{"number": 5432}]},
        {"host": "example.com", "addresses": ["240.240.0.1/32"], "external": true, "ports": [{"number": 443}]}]"#;
    const ENDPOINTS: &str = r#"[
        {"service": "web.shop.svc.cluster.local:80", "endpoints": [{"address": "10.244.1.1", "port": 8080, "ready": true},
                                                                  {"address": "10.244.1.2", "port": 8080, "ready": false}]},
        {"service": "db.shop.svc.cluster.local:5432", "endpoints": [{"address": "10.244.1.3", "port": 5432, "ready": true}]}]"#;

    fn read(settings: &str) -> ServiceSnapshot {
        let parse = "the pages of a control plane";
        let (services, endpoints) =
            (serde_json::from_str(REGISTRY).expect(parse), serde_json::from_str(ENDPOINTS).expect(parse));
        book(services, endpoints, &serde_json::from_str::<Vec<Setting>>(settings).expect(parse))
    }

    #[test]
    fn names_and_ready_replicas_of_services_but_not_of_service_entries_are_known() {
        let book = read("[]");
        let name = |name: &str| match book.names.lookup(name)? {
            Known::Addresses(ips) => Some(ips.iter().map(ToString::to_string).collect::<Vec<_>>()),
            Known::AliasOf(host) => panic!("{name} is another name of {host}"),
        };
        assert_eq!(name("web.shop.svc.cluster.local").as_deref(), Some(&["10.96.1.1".to_owned()][..]));
        assert_eq!(name("db.shop.svc.cluster.local").as_deref(), Some(&["10.244.1.3".to_owned()][..]));
        assert_eq!(name("example.com"), None);
        let backends = |address: &str| book.backends(address.parse().expect("an address")).map(<[_]>::to_vec);
        assert_eq!(backends("10.96.1.1:80"), Some(vec!["10.244.1.1:8080".parse().expect("an address")]));
        assert_eq!(backends("10.96.1.1:90"), Some(Vec::new()));
        assert_eq!(backends("10.96.1.1:91"), None);
        assert_eq!(backends("240.240.0.1:443"), None);
    }

    #[test]
    fn nothing_leaves_unless_the_control_plane_says_so() {
        let check = |settings: &str, expected| assert_eq!(read(settings).allow_any, expected, "{settings}");
        check("[]", false);
        check(
            r#"[{"kind": "Gateway", "name": "x"}, {"kind": "MeshConfig", "outbound_traffic_policy": "ALLOW_ANY"}]"#,
            true,
        );
        check(r#"[{"kind": "MeshConfig", "outbound_traffic_policy": "REGISTRY_ONLY"}]"#, false);
        assert!(!ServiceSnapshot::default().allow_any);
    }
}
