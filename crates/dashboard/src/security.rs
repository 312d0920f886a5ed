//! How edges are secured, from the page `/edges` of the proxies at both ends, and the traffic of clients that have no proxy.

use std::collections::{BTreeSet, HashMap};

use evenkeel_admin::dashboard::{Security, SecurityMode};
use evenkeel_filters::edges::{Edge, Edges};

use crate::node::{EdgeKey, Inventory, NodeKey};
use crate::series::Totals;
use crate::source::{ProxyRole, ReplicaStatus};

/// The page.
pub(crate) const PAGE: &str = "/edges";
/// A way to secure an edge is shown as long as it was used within this time of the last use, in milliseconds: an edge that was changed
/// from plain text to mutual TLS is not mixed for ever.
const SAME_TIME_MS: u64 = 60_000;

/// The ends of an edge.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Pair {
    pub(crate) client: NodeKey,
    pub(crate) server: NodeKey,
}

/// What one proxy says about an edge's connections that are secured alike.
#[derive(Debug, Clone)]
pub(crate) struct Secured {
    pub(crate) pair: Pair,
    edge: Edge,
}

/// What the page of a proxy says.
#[derive(Debug, Clone, Default)]
pub(crate) struct EdgesReport {
    /// How edges are secured.
    pub(crate) secured: Vec<Secured>,
    /// Traffic of clients that report none themselves, since the proxy's start.
    pub(crate) unreported: HashMap<EdgeKey, Totals>,
}

/// Reads the page of a replica.
pub(crate) fn report(page: Edges, own: &ReplicaStatus, inventory: &Inventory) -> EdgesReport {
    let mut report = EdgesReport::default();
    let node = NodeKey::of(own);
    for edge in page.edges {
        let peer = edge.peer_address.as_deref().and_then(|address| inventory.at(address));
        let is_inbound = edge.direction == "inbound";
        let Some(peer_node) = peer.map(NodeKey::of).or_else(|| is_inbound.then_some(NodeKey::Outside)) else {
            continue;
        };
        if is_inbound && peer.is_none_or(|peer| peer.proxy == ProxyRole::None) {
            let protocol = if edge.requests > 0 { "http" } else { "tcp" }.to_owned();
            let key = EdgeKey { from: peer_node.clone(), to: node.clone(), service: String::new(), protocol };
            report.unreported.entry(key).or_default().add(&totals(&edge));
        }
        let pair = if is_inbound {
            Pair { client: peer_node, server: node.clone() }
        } else {
            Pair { client: node.clone(), server: peer_node }
        };
        report.secured.push(Secured { pair, edge });
    }
    report
}

fn totals(edge: &Edge) -> Totals {
    let is_tcp = edge.requests == 0;
    let of_tcp = |value: u64| if is_tcp { value } else { 0 };
    Totals {
        requests: edge.requests,
        connections: of_tcp(edge.connections),
        bytes_received: of_tcp(edge.bytes_received),
        bytes_sent: of_tcp(edge.bytes_sent),
        ..Totals::default()
    }
}

/// Joins what the proxies at both ends say about one edge.
pub(crate) fn join<'s>(all: impl Iterator<Item = &'s Secured> + Clone) -> Security {
    let used = |secured: &&Secured| secured.edge.connections > 0;
    let latest = all.clone().filter(used).map(|secured| secured.edge.idle_ms).min().unwrap_or_default();
    let (mut modes, mut clients, mut servers, mut parameters) =
        (BTreeSet::new(), BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for Secured { edge, .. } in all.clone().filter(used).filter(|secured| secured.edge.idle_ms <= latest + SAME_TIME_MS)
    {
        let (client, server) = if edge.direction == "inbound" {
            (&edge.peer_identity, &edge.local_identity)
        } else {
            (&edge.local_identity, &edge.peer_identity)
        };
        modes.insert(match (&edge.tls, client, server) {
            (None, ..) => Mode::Plain,
            (Some(_), Some(_), Some(_)) => Mode::Mutual,
            (Some(_), ..) => Mode::Tls,
        });
        clients.extend(client.clone());
        servers.extend(server.clone());
        let words = edge.tls.iter().map(|tls| [&*tls.version, &*tls.cipher, &*tls.group].join(" ").trim().to_owned());
        parameters.extend(words);
    }
    Security {
        mode: mode(&modes),
        client_identities: clients.into_iter().collect(),
        server_identities: servers.into_iter().collect(),
        parameters: parameters.into_iter().collect(),
        refused: all.map(|secured| secured.edge.refused).sum(),
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Mode {
    Mutual,
    Tls,
    Plain,
}

fn mode(modes: &BTreeSet<Mode>) -> SecurityMode {
    let has = |mode| modes.contains(&mode);
    match (has(Mode::Plain), has(Mode::Tls), has(Mode::Mutual)) {
        (false, false, false) => SecurityMode::Unknown,
        (true, false, false) => SecurityMode::Plain,
        (true, ..) => SecurityMode::Mixed,
        (false, true, _) => SecurityMode::Tls,
        (false, false, true) => SecurityMode::Mutual,
    }
}

#[cfg(test)]
mod tests {
    use evenkeel_filters::edges::EdgeTls;

    use super::*;

    fn secured(edge: Edge) -> Secured {
        Secured { pair: Pair { client: NodeKey::Outside, server: NodeKey::Outside }, edge }
    }

    fn edge(tls: bool, client: Option<&str>, idle_ms: u64) -> Edge {
        Edge {
            direction: "inbound".into(),
            peer_identity: client.map(Into::into),
            local_identity: Some("spiffe://b".into()),
            tls: tls.then(|| EdgeTls { version: "TLSv1.3".into(), cipher: "c".into(), group: String::new() }),
            connections: 1,
            idle_ms,
            ..Edge::default()
        }
    }

    #[test]
    fn what_was_used_lately_says_how_an_edge_is_secured() {
        let check = |edges: &[Edge], expected: SecurityMode| {
            let all: Vec<Secured> = edges.iter().cloned().map(secured).collect();
            assert_eq!(join(all.iter()).mode, expected, "{edges:?}");
        };
        let mutual = edge(true, Some("spiffe://a"), 0);
        check(&[], SecurityMode::Unknown);
        check(std::slice::from_ref(&mutual), SecurityMode::Mutual);
        check(&[edge(true, None, 0)], SecurityMode::Tls);
        check(&[edge(false, None, 0)], SecurityMode::Plain);
        check(&[mutual.clone(), edge(false, None, 5)], SecurityMode::Mixed);
        check(&[mutual.clone(), edge(false, None, SAME_TIME_MS + 1)], SecurityMode::Mutual);
        let refused = Edge { connections: 0, refused: 2, tls: None, ..edge(false, None, 0) };
        check(&[mutual.clone(), refused.clone()], SecurityMode::Mutual);
        let joined = join([secured(mutual), secured(refused)].iter());
        assert_eq!(
            (joined.refused, joined.parameters, joined.client_identities),
            (2, vec!["TLSv1.3 c".into()], vec!["spiffe://a".into()])
        );
    }
}
