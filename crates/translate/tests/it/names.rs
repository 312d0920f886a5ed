//! The names that agents answer: those of services, and of Pods under headless ones.

use std::collections::BTreeMap;

use evenkeel_model::{AddressBook, MeshConfig};
use evenkeel_translate::{ClientKind, ProxyView};
use evenkeel_xds::istio::nds::NameTable;
use evenkeel_xds::{ResourceType, unpack};

use crate::scenario::{translate, view_of};

const MESH: &str = "\
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: shop}
spec:
  serviceName: data
  selector: {matchLabels: {app: db}}
  template: {metadata: {labels: {app: db}}, spec: {containers: [{name: db}]}}
---
apiVersion: v1
kind: Service
metadata: {name: data, namespace: shop}
spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 5432}, {name: http, port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: data-rw, namespace: shop}
spec: {clusterIP: 10.96.0.5, selector: {app: db}, ports: [{name: tcp, port: 5432}]}
---
apiVersion: v1
kind: Service
metadata: {name: named, namespace: shop}
spec: {clusterIP: None, selector: {app: named}, ports: [{name: tcp, port: 1}]}
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec: {type: ExternalName, externalName: far.example.com}
---
apiVersion: v1
kind: Service
metadata: {name: old-data, namespace: shop}
spec: {type: ExternalName, externalName: data.shop.svc.cluster.local}
---
apiVersion: v1
kind: Service
metadata: {name: old-rw, namespace: shop}
spec: {type: ExternalName, externalName: data-rw.shop.svc.cluster.local}
";

fn pod(name: &str, app: &str, ip: &str, ready: &str, spec: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: shop, labels: {{app: {app}}}}}\n\
         spec: {{containers: [{{name: main}}]{spec}}}\n\
         status: {{podIP: {ip}, conditions: [{{type: Ready, status: \"{ready}\"}}]}}\n"
    )
}

fn mesh() -> String {
    let pods = [
        pod("db-0", "db", "10.244.0.2", "True", ""),
        pod("db-1", "db", "10.244.0.3", "True", ""),
        pod("db-2", "db", "10.244.0.4", "False", ""),
        // Selected, but not one of the StatefulSet's.
        pod("db-spare", "db", "10.244.0.5", "True", ""),
        pod("x", "named", "10.244.0.6", "True", ", hostname: a, subdomain: named"),
        pod("y", "named", "10.244.0.7", "True", ", hostname: b, subdomain: other"),
    ];
    MESH.to_owned() + &pods.concat()
}

/// The name tables for a proxy of this kind, and the other names by which each is found.
fn tables(kind: ClientKind) -> Vec<(NameTable, Vec<String>)> {
    let (objects, found) = evenkeel_api::load(&[("mesh.yaml".into(), mesh().as_str().into())]);
    assert!(!found.has_errors(), "{found}");
    let (snapshot, _) = evenkeel_model::build(&objects, &MeshConfig::default(), &mut AddressBook::default());
    let view = ProxyView { client_kind: kind, ..view_of("sidecar x.shop", &snapshot) };
    let set = translate(&view, &snapshot);
    let tables = set.of(ResourceType::NameTable).values().map(|resource| {
        let aliases: Vec<String> = resource.aliases().iter().map(ToString::to_string).collect();
        (unpack::<NameTable>(&resource.any()).expect("a table"), aliases)
    });
    tables.collect()
}

/// The addresses under each name that a proxy of this kind is told, and by which other names they are found.
fn names(kind: ClientKind) -> BTreeMap<String, (Vec<String>, Vec<String>)> {
    let entries = tables(kind).into_iter().flat_map(|(table, aliases)| {
        table.table.into_iter().map(move |(host, info)| {
            let short = if aliases.is_empty() { vec![info.shortname] } else { aliases.clone() };
            (host, (info.ips, short))
        })
    });
    entries.collect()
}

#[test]
fn pods_have_names_under_a_headless_service() {
    let full = |name: &str| format!("{name}.shop.svc.cluster.local");
    for kind in [ClientKind::Envoy, ClientKind::EvenkeelLearned] {
        let names = names(kind);
        let check = |name: &str, expected: &[&str]| {
            let (ips, short) = names.get(&full(name)).unwrap_or_else(|| panic!("no {name} in {names:?}"));
            assert_eq!(ips, expected, "{name}");
            let forms = [name.to_owned(), format!("{name}.shop"), format!("{name}.shop.svc")];
            let expected = if kind == ClientKind::Envoy { &forms[..1] } else { &forms[..] };
            assert!(expected.iter().all(|form| short.contains(form)), "{name}: {short:?}");
        };
        check("data", &["10.244.0.2", "10.244.0.3", "10.244.0.5"]);
        check("db-0.data", &["10.244.0.2"]);
        check("db-1.data", &["10.244.0.3"]);
        check("a.named", &["10.244.0.6"]);
        check("data-rw", &["10.96.0.5"]);
        check("old-rw", &["10.96.0.5"]);
        assert_eq!(names.len(), 7, "{names:?}");
    }
}

#[test]
fn other_names_of_hosts_without_a_virtual_address_are_aliases() {
    for kind in [ClientKind::Envoy, ClientKind::EvenkeelLearned] {
        let tables = tables(kind);
        let check = |name: &str, expected: &str| {
            let host = format!("{name}.shop.svc.cluster.local");
            let has = |(table, _): &&(NameTable, Vec<String>)| table.aliases.contains_key(&host);
            let (table, short) = tables.iter().find(has).unwrap_or_else(|| panic!("no {name} in {tables:?}"));
            let alias = &table.aliases[&host];
            let said = (alias.target.as_str(), alias.shortname.as_str(), alias.namespace.as_str());
            assert_eq!(said, (expected, name, "shop"));
            assert!(!table.table.contains_key(&host), "Istio's agent must ask its resolver for {name}");
            assert!(kind == ClientKind::Envoy || short.contains(&name.to_owned()), "{name}: {short:?}");
        };
        check("far", "far.example.com");
        check("old-data", "data.shop.svc.cluster.local");
        assert_eq!(tables.iter().map(|(table, _)| table.aliases.len()).sum::<usize>(), 2, "{tables:?}");
    }
}
