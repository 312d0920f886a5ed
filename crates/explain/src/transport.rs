//! The connection from a proxy to an endpoint, and the object that decides how it is secured.

use evenkeel_base::hostname::Hostname;
use evenkeel_model::{ClosedBy, DestinationRule, Labels, Selectable, Service, Viewer, Workload};
use evenkeel_runtime_config::cluster::{Cluster, Endpoint, Transport as Compiled};
use evenkeel_tls::UpstreamTls;

use crate::answer::Transport;
use crate::place::Source;
use crate::world::World;

/// A cluster's name in parts: `outbound|PORT|SUBSET|HOST`.
#[derive(Debug, Clone, Copy)]
pub struct Parts<'n> {
    /// The service's port.
    pub port: u16,
    /// The subset; empty for the whole service.
    pub subset: &'n str,
    /// The service's host.
    pub host: &'n str,
}

impl<'n> Parts<'n> {
    /// Reads a name; `None` if it is not that of a service.
    pub fn of(name: &'n str) -> Option<Self> {
        let name = name.strip_prefix("outbound|").map(|rest| (rest, '|'));
        let (rest, separator) = name?;
        let mut parts = rest.splitn(3, separator);
        let (port, subset, host) = (parts.next()?, parts.next()?, parts.next()?);
        // Clusters of single protocols have further parts.
        let host = host.split(separator).next().unwrap_or(host);
        Some(Self { port: port.parse().ok()?, subset, host })
    }
}

/// The transport that a connection to an endpoint uses.
pub fn compiled<'c>(cluster: &'c Cluster, endpoint: Option<&Endpoint>) -> &'c Compiled {
    let index = endpoint.and_then(|endpoint| endpoint.transport_index);
    index.and_then(|index| cluster.transport_matches.get(index)).map_or(&cluster.transport, |entry| &entry.transport)
}

/// The TLS of a transport.
pub fn tls(transport: &Compiled) -> Option<&UpstreamTls> {
    match transport {
        Compiled::Raw => None,
        Compiled::Tls(tls) => Some(tls),
        Compiled::ProxyProtocol(outer) => tls(&outer.inner),
    }
}

/// Whether it is the mesh's mutual TLS.
pub fn is_mesh(tls: &UpstreamTls) -> bool {
    tls.presents_certificate() && tls.alpn().iter().any(|protocol| protocol.starts_with(b"istio"))
}

/// Describes the connection to an endpoint.
pub fn describe(world: &World, workload: &Workload, cluster: &Cluster, endpoint: Option<&Endpoint>) -> Transport {
    let (source, written) = written(world, workload, &cluster.name);
    let Some(tls) = tls(compiled(cluster, endpoint)) else {
        let reason = match &written {
            Some(mode) => format!("tls.mode {mode}"),
            None if Parts::of(&cluster.name).is_none() => "what the client sends is passed on".to_owned(),
            None => "the endpoint has no sidecar, or accepts plain text only".to_owned(),
        };
        return Transport { mode: "plaintext", source, reason, ..Transport::default() };
    };
    let is_mesh = is_mesh(tls);
    let accepts =
        tls.accepted_names().unwrap_or_default().iter().map(|name| name.to_string().replace('`', "")).collect();
    Transport {
        mode: if tls.presents_certificate() { "mtls" } else { "tls" },
        sni: tls.server_name(),
        identity: (is_mesh && tls.presents_certificate()).then(|| workload.identity.to_string()),
        accepts,
        reason: match &written {
            Some(mode) => format!("tls.mode {mode}"),
            None => "automatic: the endpoint has a sidecar".to_owned(),
        },
        source,
    }
}

/// The DestinationRule's field that decides about TLS, and its mode.
fn written(world: &World, workload: &Workload, cluster: &str) -> (Option<Source>, Option<String>) {
    let Some((parts, _, rule)) = of_cluster(world, workload, cluster) else { return (None, None) };
    let Some(rule) = rule else { return (None, None) };
    let place = |field: &str| {
        let node = world.places.node(&rule.origin, &format!("{field}.tls.mode"))?;
        let source = world.source(name_of(&rule), &rule.origin, &format!("{field}.tls.mode"));
        Some((Some(source), node.as_str().map(str::to_owned)))
    };
    let subset = rule.subsets.iter().position(|subset| &*subset.name == parts.subset);
    let port_level = |above: &str| {
        let list = world.places.node(&rule.origin, &format!("{above}.portLevelSettings"))?;
        let wanted = serde_json::Value::from(parts.port);
        let at = list
            .as_sequence()?
            .iter()
            .position(|entry| entry.at_path("port.number").is_some_and(|number| number.to_json() == wanted))?;
        place(&format!("{above}.portLevelSettings[{at}]"))
    };
    let of_subset = subset.and_then(|at| {
        let above = format!("spec.subsets[{at}].trafficPolicy");
        port_level(&above).or_else(|| place(&above))
    });
    let above = "spec.trafficPolicy";
    of_subset.or_else(|| port_level(above)).or_else(|| place(above)).unwrap_or_default()
}

/// The service and the DestinationRule that a cluster was made of.
pub fn of_cluster<'n>(
    world: &World,
    workload: &Workload,
    cluster: &'n str,
) -> Option<(Parts<'n>, std::sync::Arc<Service>, Option<std::sync::Arc<DestinationRule>>)> {
    struct Client<'w>(&'w Workload);
    impl Viewer for Client<'_> {
        fn is_in(&self, namespace: &std::sync::Arc<str>) -> bool {
            self.0.namespace == *namespace
        }
    }
    impl Selectable for Client<'_> {
        fn selected_by(&self, selector: &Labels) -> bool {
            self.0.labels.selected_by(selector)
        }
    }
    let parts = Parts::of(cluster)?;
    let host = Hostname::parse(parts.host).ok()?;
    let client = Client(workload);
    let service = world.snapshot.service(host.as_str(), &client)?.clone();
    let rule = world.snapshot.destination_rule_for(&service, &client, &client).cloned();
    Some((parts, service, rule))
}

/// `DestinationRule NAMESPACE/NAME`, or the BackendTLSPolicy that counts as one.
pub fn name_of(rule: &DestinationRule) -> String {
    format!("{} {}/{}", rule.kind, rule.namespace, rule.name)
}

/// The objects that a cluster was made of: its service, and the DestinationRule or its subset.
pub fn sources(world: &World, workload: &Workload, cluster: &str) -> Vec<Source> {
    let Some((parts, service, rule)) = of_cluster(world, workload, cluster) else { return Vec::new() };
    let mut all = vec![source_of(&service)];
    if let Some(rule) = rule {
        let subset = rule.subsets.iter().find(|subset| &*subset.name == parts.subset);
        all.push(Source::at(name_of(&rule), subset.map_or(&rule.origin, |subset| &subset.origin)));
    }
    all.extend(service.closed_by.iter().map(|by| Source::at(by.what.to_string(), &by.origin)));
    all
}

/// The Service or ServiceEntry.
pub fn source_of(service: &Service) -> Source {
    let kind = if service.is_kubernetes() { "Service" } else { "ServiceEntry" };
    Source::at(format!("{kind} {}/{}", service.namespace, service.name), &service.origin)
}

/// The policies that close the service of a cluster to its clients.
pub fn closed_by(world: &World, workload: &Workload, cluster: &str) -> Vec<ClosedBy> {
    of_cluster(world, workload, cluster).map(|(_, service, _)| service.closed_by.clone()).unwrap_or_default()
}
