//! The ledger of a running mesh: which workloads have communicated, and how each edge was secured. Proxies report the edges
//! that they have seen; the reports of both sides are joined.

mod text;
mod what_if;

use std::collections::BTreeMap;
use std::net::IpAddr;

use evenkeel_filters::edges::{Edge, EdgeTls, Edges};
use serde::Serialize;

use crate::answer::ProxyName;
use crate::world::World;

pub use what_if::{Broken, Target, WhatIf};

/// A proxy's edges, or why they are not known.
pub type Reported = (ProxyName, Result<Edges, String>);

/// The ledger.
#[derive(Debug, Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ledger {
    /// The edges; those in plain text first.
    pub edges: Vec<Row>,
    /// Connections in plain text.
    pub plaintext_connections: u64,
    /// Bytes in plain text.
    pub plaintext_bytes: u64,
    /// What is unknown, and why.
    pub notes: Vec<String>,
}

/// An edge.
#[derive(Debug, Clone, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The client.
    pub client: End,
    /// The server.
    pub server: End,
    /// The server's port.
    pub port: u16,
    /// Whether it is not secured at all.
    pub plaintext: bool,
    /// TLS; `null`: plain text.
    pub tls: Option<EdgeTls>,
    /// Connections, as the side says that has seen more.
    pub connections: u64,
    /// Connections that the server's proxy refused: STRICT asks for mutual TLS, or the client's certificate is not accepted.
    pub refused: u64,
    /// Requests, likewise.
    pub requests: u64,
    /// Bytes in both directions, likewise.
    pub bytes: u64,
    /// `both`, `client` or `server`: whose proxy has seen it.
    pub seen_by: &'static str,
    /// Counts of the client's proxy.
    pub by_client: Option<Counts>,
    /// Counts of the server's proxy.
    pub by_server: Option<Counts>,
    /// The difference between the reports of the two sides.
    pub disagreement: Option<String>,
}

/// One end of an edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct End {
    /// `WORKLOAD.NAMESPACE`; an address, or `outside`, if it is no workload of the mesh.
    pub name: String,
    /// Its namespace.
    pub namespace: Option<String>,
    /// The identity that it has shown in a certificate.
    pub identity: Option<String>,
}

/// Counts of one side.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    /// Connections.
    pub connections: u64,
    /// Requests.
    pub requests: u64,
    /// Bytes in both directions.
    pub bytes: u64,
}

impl Counts {
    fn add(&mut self, edge: &Edge) {
        self.connections += edge.connections;
        self.requests += edge.requests;
        self.bytes += edge.bytes_received + edge.bytes_sent;
    }
}

/// Identifies a row.
type Key = (String, String, u16, Option<EdgeTls>);

impl World {
    /// Joins what proxies report.
    pub fn ledger(&self, reported: &[Reported]) -> Ledger {
        let mut rows: BTreeMap<Key, Row> = BTreeMap::new();
        let mut notes = Vec::new();
        let mut silent: Vec<String> = Vec::new();
        for (proxy, answer) in reported {
            let name = format!("{}.{}", proxy.pod, proxy.namespace);
            let edges = match answer {
                Ok(edges) => edges,
                Err(error) => {
                    notes.push(format!("{name}: what its proxy has seen is not known: {error}"));
                    silent.push(format!("{}.{}", proxy.workload, proxy.namespace));
                    continue;
                }
            };
            if edges.left_out > 0 {
                notes.push(format!(
                    "{name}: {} connections are not listed, because it keeps {} edges",
                    edges.left_out, edges.limit
                ));
            }
            for edge in &edges.edges {
                self.add(proxy, edge, &mut rows);
            }
        }
        let mut edges: Vec<Row> = rows.into_values().collect();
        add_disagreements(&mut edges, &silent);
        edges.sort_by(|a, b| {
            (!a.plaintext, &a.client, &a.server, a.port).cmp(&(!b.plaintext, &b.client, &b.server, b.port))
        });
        let mut ledger = Ledger { edges, notes, ..Ledger::default() };
        ledger.sum();
        ledger
    }

    fn add(&self, proxy: &ProxyName, edge: &Edge, rows: &mut BTreeMap<Key, Row>) {
        let own = End {
            name: format!("{}.{}", proxy.workload, proxy.namespace),
            namespace: Some(proxy.namespace.clone()),
            identity: edge.local_identity.clone(),
        };
        let peer = self.end(edge);
        let is_client = edge.direction == "outbound";
        let (client, server) = if is_client { (own, peer) } else { (peer, own) };
        let key = (client.name.clone(), server.name.clone(), edge.port, edge.tls.clone());
        let row = rows.entry(key).or_insert_with(|| Row {
            client: client.clone(),
            server: server.clone(),
            port: edge.port,
            plaintext: edge.tls.is_none(),
            tls: edge.tls.clone(),
            connections: 0,
            refused: 0,
            requests: 0,
            bytes: 0,
            seen_by: "",
            by_client: None,
            by_server: None,
            disagreement: None,
        });
        row.refused += edge.refused;
        row.client.identity = row.client.identity.take().or(client.identity);
        row.server.identity = row.server.identity.take().or(server.identity);
        let side = if is_client { &mut row.by_client } else { &mut row.by_server };
        side.get_or_insert_default().add(edge);
        let most =
            |of: fn(&Counts) -> u64| [row.by_client, row.by_server].iter().flatten().map(of).max().unwrap_or_default();
        (row.connections, row.requests, row.bytes) = (most(|c| c.connections), most(|c| c.requests), most(|c| c.bytes));
        row.seen_by = match (row.by_client.is_some(), row.by_server.is_some()) {
            (true, true) => "both",
            (true, false) => "client",
            _ => "server",
        };
    }

    /// The peer of an edge.
    fn end(&self, edge: &Edge) -> End {
        let identity = edge.peer_identity.clone();
        let address: Option<IpAddr> = edge.peer_address.as_ref().and_then(|text| text.parse().ok());
        let at = address.and_then(|address| self.snapshot.workload_at(address));
        match (at, &edge.peer_address, &identity) {
            (Some(workload), _, _) => End {
                name: format!("{}.{}", workload.workload_name, workload.namespace),
                namespace: Some(workload.namespace.to_string()),
                identity,
            },
            // The replica is gone, but its account still identifies it.
            (None, _, Some(id)) => End { name: account(id), namespace: namespace(id), identity },
            (None, Some(address), None) => End { name: address.clone(), ..End::default() },
            (None, None, None) => End { name: "outside".to_owned(), ..End::default() },
        }
    }
}

/// `ACCOUNT.NAMESPACE` of a SPIFFE id, marked as an account.
fn account(id: &str) -> String {
    match id.rsplit_once("/ns/").and_then(|(_, rest)| rest.split_once("/sa/")) {
        Some((namespace, account)) => format!("account {account}.{namespace}"),
        None => id.to_owned(),
    }
}

fn namespace(id: &str) -> Option<String> {
    id.rsplit_once("/ns/").and_then(|(_, rest)| rest.split_once('/')).map(|(namespace, _)| namespace.to_owned())
}

/// Describes how an edge is secured, for people.
fn secured(row: &Row) -> String {
    match &row.tls {
        None => "plain text".to_owned(),
        Some(tls) if tls.version.is_empty() => "TLS".to_owned(),
        Some(tls) => {
            let parts = [&*tls.version, &tls.cipher, &tls.group];
            parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
        }
    }
}

/// Compares what the two sides of an edge say, where both were asked.
fn add_disagreements(rows: &mut [Row], silent: &[String]) {
    let before = rows.to_vec();
    for row in rows.iter_mut() {
        if row.connections == 0
            || silent.contains(&row.client.name)
            || silent.contains(&row.server.name)
            || row.seen_by == "both"
        {
            continue;
        }
        // The other side's report of the same edge.
        let by_server = row.seen_by == "server";
        let is_other = |other: &&Row| {
            (&other.client.name, &other.server.name, other.port) == (&row.client.name, &row.server.name, row.port)
                && if by_server { other.by_client.is_some() } else { other.by_server.is_some() }
        };
        let others: Vec<String> =
            before.iter().filter(is_other).filter(|other| other.connections > 0).map(secured).collect();
        if !others.is_empty() {
            let (own, other) = if by_server { ("server", "client") } else { ("client", "server") };
            row.disagreement =
                Some(format!("the {own} says {}, the {other} says {}", secured(row), others.join(" and ")));
        }
    }
}

impl Ledger {
    /// Only the edges at which one end is this workload, or in this namespace.
    #[must_use]
    pub fn only(mut self, workload: Option<&str>, namespace: Option<&str>) -> Self {
        let is_it = |end: &End| {
            let name = end.name.strip_prefix("account ").unwrap_or(&end.name);
            workload.is_none_or(|workload| name.split('.').next() == Some(workload))
                && namespace.is_none_or(|namespace| end.namespace.as_deref() == Some(namespace))
        };
        self.edges.retain(|row| is_it(&row.client) || is_it(&row.server));
        self.sum();
        self
    }

    /// Whether anything went in plain text. What was refused did not.
    pub fn has_plaintext(&self) -> bool {
        self.edges.iter().any(|row| row.plaintext && row.connections > 0)
    }

    fn sum(&mut self) {
        let plain = self.edges.iter().filter(|row| row.plaintext);
        (self.plaintext_connections, self.plaintext_bytes) =
            plain.fold((0, 0), |(connections, bytes), row| (connections + row.connections, bytes + row.bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> World {
        let text = "\
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: shop, labels: {app: web}}
spec: {serviceAccountName: web, containers: [{name: web}]}
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Pod
metadata: {name: db-0, namespace: data, labels: {app: db}}
spec: {serviceAccountName: db, containers: [{name: db}]}
status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}], conditions: [{type: Ready, status: 'True'}]}
";
        let (objects, _) = evenkeel_api::load(&[("mesh.yaml".into(), text.into())]);
        World::new(objects, BTreeMap::new())
    }

    fn of(workload: &str, namespace: &str, edges: Vec<Edge>) -> Reported {
        let name = ProxyName { side: "", workload: workload.into(), pod: workload.into(), namespace: namespace.into() };
        (name, Ok(Edges { limit: 1, edges, ..Edges::default() }))
    }

    fn edge(direction: &str, address: &str, tls: bool, connections: u64) -> Edge {
        let tls = tls.then(|| EdgeTls { version: "TLSv1.3".into(), ..EdgeTls::default() });
        let peer_address = Some(address.to_owned());
        Edge {
            direction: direction.into(),
            peer_address,
            port: 5432,
            tls,
            connections,
            bytes_sent: 7,
            ..Edge::default()
        }
    }

    #[test]
    fn both_sides_are_joined_and_what_differs_is_told() {
        let check = |client: Vec<Edge>, server: Vec<Edge>, expected: &[&str]| {
            let ledger = world().ledger(&[of("web-0", "shop", client), of("db-0", "data", server)]);
            let told: Vec<String> = ledger
                .edges
                .iter()
                .map(|row| {
                    let tls = row.tls.as_ref().map_or("plain", |tls| &tls.version);
                    let differs = row.disagreement.as_ref().map(|text| format!(" ({text})")).unwrap_or_default();
                    format!(
                        "{} {} {} {tls} {} {}{differs}",
                        row.client.name, row.server.name, row.port, row.connections, row.seen_by
                    )
                })
                .collect();
            assert_eq!(told, expected);
        };
        check(
            vec![edge("outbound", "10.0.0.2", true, 2)],
            vec![edge("inbound", "10.0.0.1", true, 3)],
            &["web-0.shop db-0.data 5432 TLSv1.3 3 both"],
        );
        check(
            vec![edge("outbound", "10.0.0.2", true, 2)],
            vec![edge("inbound", "10.0.0.1", false, 2)],
            &[
                "web-0.shop db-0.data 5432 plain 2 server (the server says plain text, the client says TLSv1.3)",
                "web-0.shop db-0.data 5432 TLSv1.3 2 client (the client says TLSv1.3, the server says plain text)",
            ],
        );
        // A client without a proxy, and one that is no workload.
        check(
            Vec::new(),
            vec![edge("inbound", "10.0.0.1", false, 1), edge("inbound", "192.0.2.7", true, 1)],
            &["web-0.shop db-0.data 5432 plain 1 server", "192.0.2.7 db-0.data 5432 TLSv1.3 1 server"],
        );
    }

    #[test]
    fn what_strict_refuses_is_told_and_is_no_traffic() {
        let refused = Edge { refused: 3, connections: 0, bytes_sent: 0, ..edge("inbound", "10.0.0.1", false, 0) };
        let ledger = world().ledger(&[of("db-0", "data", vec![refused, edge("inbound", "10.0.0.1", true, 2)])]);
        assert_eq!((ledger.plaintext_connections, ledger.has_plaintext()), (0, false));
        let text = ledger.to_text();
        assert!(text.contains("refused: web-0.shop → db-0.data:5432: 3 connections in plain text"), "{text}");
        assert!(text.contains("✓ nothing in plain text"), "{text}");
    }

    #[test]
    fn filters_and_sums() {
        let reported =
            [of("db-0", "data", vec![edge("inbound", "10.0.0.1", false, 4), edge("inbound", "192.0.2.7", true, 1)])];
        let ledger = world().ledger(&reported);
        assert_eq!((ledger.plaintext_connections, ledger.plaintext_bytes, ledger.edges.len()), (4, 7, 2));
        let check = |workload, namespace, edges| {
            assert_eq!(ledger.clone().only(workload, namespace).edges.len(), edges, "{workload:?} {namespace:?}");
        };
        check(Some("web-0"), None, 1);
        check(None, Some("shop"), 1);
        check(Some("db-0"), Some("data"), 2);
        check(Some("web-0"), Some("data"), 0);
        let (name, _) = of("db-0", "data", Vec::new());
        let silent = world().ledger(&[(name, Err("it is a stock Envoy".to_owned()))]);
        assert!(silent.notes[0].contains("db-0.data: what its proxy has seen is not known"), "{:?}", silent.notes);
    }
}
