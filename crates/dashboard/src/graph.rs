//! The graph: nodes with their health, edges with their traffic and security.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_admin::dashboard::{Edge, Graph, Health, Node, NodeKind, Traffic};

use crate::collector::{Collector, EdgeMemory};
use crate::node::{EdgeKey, Inventory, NodeKey};
use crate::security;

/// Share of failed requests from which a node is degraded.
const DEGRADED_SHARE: f64 = 0.01;
/// Share of failed requests from which it fails.
const FAILING_SHARE: f64 = 0.2;

/// The whole graph.
pub(crate) fn graph(collector: &Collector) -> Graph {
    let mut keys: BTreeSet<NodeKey> = collector.inventory.replicas.iter().map(NodeKey::of).collect();
    keys.extend(collector.edges.keys().flat_map(|edge| [edge.from.clone(), edge.to.clone()]));
    let outside = from_outside(collector);
    keys.extend((!outside.is_empty()).then_some(NodeKey::Outside));
    let edges = collector.edges.iter().map(|(key, memory)| edge(collector, key, memory));
    Graph {
        sampled_ms: collector.sampled_ms,
        window_s: collector.ticks.window(),
        proxies: collector.answered,
        nodes: keys.iter().map(|key| node(collector, key)).collect(),
        edges: edges.chain(outside).collect(),
        left_out: collector.left_out,
        notes: collector.notes.clone(),
    }
}

/// The node with this key in JSON, if there is one.
pub(crate) fn find(collector: &Collector, id: &str) -> Option<NodeKey> {
    let of_replicas = collector.inventory.replicas.iter().map(NodeKey::of);
    let of_edges = collector.edges.keys().flat_map(|edge| [edge.from.clone(), edge.to.clone()]);
    of_replicas.chain(of_edges).chain([NodeKey::Outside]).find(|key| key.to_string() == id)
}

/// One node.
pub(crate) fn node(collector: &Collector, key: &NodeKey) -> Node {
    let window = collector.ticks.window();
    let first = collector.inventory.of(key).next();
    let inbound = collector.inbound.get(key).map(|series| series.rates(window));
    // Of what has no proxy its clients know how it answers.
    let seen = inbound.or_else(|| reported_by_clients(collector, key));
    let (health, reason) = health(&collector.inventory, key, seen.as_ref());
    Node {
        id: key.to_string(),
        name: key.name().to_owned(),
        namespace: key.namespace().to_owned(),
        app: first.map(|replica| replica.app.clone()).unwrap_or_default(),
        version: first.map(|replica| replica.version.clone()).unwrap_or_default(),
        kind: collector.inventory.kind(key),
        replicas: collector.inventory.of(key).count(),
        ready: collector.inventory.of(key).filter(|replica| replica.ready).count(),
        health,
        reason,
        inbound,
    }
}

fn reported_by_clients(collector: &Collector, key: &NodeKey) -> Option<Traffic> {
    let all = collector.edges.iter().filter(|(edge, memory)| edge.to == *key && memory.series.is_active());
    all.map(|(_, memory)| memory.series.rates(collector.ticks.window())).reduce(|sum, next| Traffic {
        requests: sum.requests + next.requests,
        error_share: if sum.requests + next.requests > 0.0 {
            (sum.requests * sum.error_share + next.requests * next.error_share) / (sum.requests + next.requests)
        } else {
            0.0
        },
        ..sum
    })
}

fn health(inventory: &Inventory, key: &NodeKey, traffic: Option<&Traffic>) -> (Health, String) {
    let all = inventory.of(key).count();
    let ready = inventory.of(key).filter(|replica| replica.ready).count();
    let share = traffic.map(|traffic| traffic.error_share).unwrap_or_default();
    let why = inventory.of(key).find(|replica| !replica.ready).map(|replica| replica.detail.clone());
    let why = why.filter(|why| !why.is_empty()).map(|why| format!(": {why}")).unwrap_or_default();
    let failing = format!("{:.1} % of requests fail", share * 100.0);
    match inventory.kind(key) {
        NodeKind::Service => (Health::Failing, "no endpoint gets its requests".to_owned()),
        NodeKind::Unrouted => (Health::Degraded, "requests that no route matches".to_owned()),
        _ if all > 0 && ready == 0 => (Health::Failing, format!("none of {all} ready{why}")),
        _ if share >= FAILING_SHARE => (Health::Failing, failing),
        _ if ready < all => (Health::Degraded, format!("{ready} of {all} ready{why}")),
        _ if share >= DEGRADED_SHARE => (Health::Degraded, failing),
        _ if all == 0 && traffic.is_none() => (Health::Unknown, String::new()),
        _ => (Health::Healthy, String::new()),
    }
}

/// One edge.
pub(crate) fn edge(collector: &Collector, key: &EdgeKey, memory: &EdgeMemory) -> Edge {
    let of_pair = |secured: &&security::Secured| secured.pair.client == key.from && secured.pair.server == key.to;
    Edge {
        id: key.to_string(),
        from: key.from.to_string(),
        to: key.to.to_string(),
        service: key.service.clone(),
        protocol: key.protocol.clone(),
        traffic: memory.series.rates(collector.ticks.window()),
        total: memory.series.totals.requests.max(memory.series.totals.connections),
        active: memory.series.is_active(),
        last_error: memory.last_error.clone(),
        security: security::join(collector.secured.iter().filter(of_pair)),
    }
}

/// What gateways receive from clients outside the mesh, whom no proxy reports: all of it, unless workloads call the gateway, too.
fn from_outside(collector: &Collector) -> Vec<Edge> {
    let is_entry = |key: &NodeKey| {
        collector.inventory.kind(key) == NodeKind::Gateway && collector.edges.keys().all(|edge| edge.to != *key)
    };
    let window = collector.ticks.window();
    let entries = collector.inbound.iter().filter(|(key, series)| is_entry(key) && !series.totals.is_empty());
    let mut edges: Vec<Edge> = entries
        .map(|(key, series)| Edge {
            id: format!("{}>{key}", NodeKey::Outside),
            from: NodeKey::Outside.to_string(),
            to: key.to_string(),
            protocol: if series.totals.requests > 0 { "http" } else { "tcp" }.to_owned(),
            traffic: series.rates(window),
            total: series.totals.requests.max(series.totals.connections),
            active: series.is_active(),
            ..Edge::default()
        })
        .collect();
    edges.sort_by(|a, b| a.id.cmp(&b.id));
    edges
}

/// The edges of a node.
pub(crate) fn edges_of(collector: &Collector, key: &NodeKey) -> Vec<Edge> {
    let all: BTreeMap<&EdgeKey, &EdgeMemory> =
        collector.edges.iter().filter(|(edge, _)| edge.from == *key || edge.to == *key).collect();
    let id = key.to_string();
    let outside = from_outside(collector).into_iter().filter(|edge| edge.from == id || edge.to == id);
    all.into_iter().map(|(key, memory)| edge(collector, key, memory)).chain(outside).collect()
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::series::Series;
    use crate::source::{ProxyRole, ReplicaKey, ReplicaStatus};

    fn replica(pod: &str, ready: bool) -> ReplicaStatus {
        ReplicaStatus {
            key: ReplicaKey { namespace: "shop".into(), pod: pod.into() },
            workload: "web".into(),
            app: "web".into(),
            version: String::new(),
            address: IpAddr::from([10, 0, 0, 1]),
            proxy: ProxyRole::Sidecar,
            ready,
            detail: if ready { String::new() } else { "killed by SIGKILL".into() },
            restarts: 0,
        }
    }

    #[test]
    fn health_is_that_of_replicas_and_requests() {
        let check = |replicas: &[bool], error_share: f64, expected: Health, reason: &str| {
            let replicas = replicas.iter().enumerate().map(|(n, ready)| replica(&format!("web-{n}"), *ready)).collect();
            let inventory = Inventory::new(replicas);
            let key = NodeKey::Workload { namespace: "shop".into(), name: "web".into() };
            let traffic = Traffic { requests: 1.0, error_share, ..Traffic::default() };
            assert_eq!(health(&inventory, &key, Some(&traffic)), (expected, reason.to_owned()));
        };
        check(&[true, true], 0.0, Health::Healthy, "");
        check(&[true, false], 0.0, Health::Degraded, "1 of 2 ready: killed by SIGKILL");
        check(&[false], 0.0, Health::Failing, "none of 1 ready: killed by SIGKILL");
        check(&[true], 0.05, Health::Degraded, "5.0 % of requests fail");
        check(&[true, false], 0.5, Health::Failing, "50.0 % of requests fail");
    }

    /// A gateway's clients are in no proxy's report, unless they have proxies themselves.
    #[test]
    fn a_gateway_that_no_workload_calls_is_called_from_outside() {
        let check = |caller: Option<NodeKey>, expected: &[&str]| {
            let gateway = ReplicaStatus { proxy: ProxyRole::Gateway, ..replica("web-0", true) };
            let mut collector = Collector::default();
            collector.add(Inventory::new(vec![gateway.clone()]), Vec::new(), 1000);
            let mut series = Series::default();
            series.totals.requests = 3;
            collector.inbound.insert(NodeKey::of(&gateway), series);
            let called =
                |from| EdgeKey { from, to: NodeKey::of(&gateway), service: String::new(), protocol: "http".into() };
            collector.edges.extend(caller.map(|from| (called(from), EdgeMemory::default())));
            let graph = graph(&collector);
            assert_eq!(graph.edges.iter().map(|edge| edge.from.as_str()).collect::<Vec<_>>(), expected);
        };
        check(None, &["outside"]);
        check(Some(NodeKey::Workload { namespace: "a".into(), name: "b".into() }), &["a/b"]);
    }

    #[test]
    fn a_service_without_endpoints_fails() {
        let key = NodeKey::Service("gone.shop.svc.cluster.local".into());
        assert_eq!(health(&Inventory::default(), &key, None).0, Health::Failing);
        assert_eq!((key.name(), key.namespace()), ("gone", "shop"));
    }
}
