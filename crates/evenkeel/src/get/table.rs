//! Objects as tables, one for each kind.

use evenkeel_api::{Document, Kind};
use evenkeel_explain::columns::columns_within;
use serde_json::Value;

/// Spaces between columns, as kubectl's.
const GAP: usize = 3;

/// A table for each kind. With several, names have their kind before them, as kubectl's.
pub fn tables(documents: &[Document], kinds: &[Kind], width: usize) -> String {
    let of_kind = |kind: &Kind| {
        let own: Vec<&Document> = documents.iter().filter(|document| document.kind == *kind).collect();
        (!own.is_empty()).then(|| table(*kind, &own, kinds.len() > 1, width))
    };
    kinds.iter().filter_map(of_kind).collect::<Vec<_>>().join("\n")
}

fn table(kind: Kind, documents: &[&Document], with_kind: bool, width: usize) -> String {
    let columns = columns(kind);
    let mut header = vec!["NAME".to_owned()];
    header.extend(kind.is_namespaced().then(|| "NAMESPACE".to_owned()));
    header.extend(columns.iter().map(|column| column.name.to_owned()));
    let row = |document: &&Document| {
        let resource = with_kind.then(|| document.resource_name());
        let mut row = vec![resource.unwrap_or_else(|| document.name.to_string())];
        row.extend(kind.is_namespaced().then(|| document.namespace().to_string()));
        row.extend(columns.iter().map(|column| (column.cell)(&document.json)));
        row
    };
    let rows: Vec<Vec<String>> = std::iter::once(header).chain(documents.iter().map(row)).collect();
    columns_within(&rows, GAP, width)
}

struct Column {
    name: &'static str,
    cell: fn(&Value) -> String,
}

fn columns(kind: Kind) -> &'static [Column] {
    const PROGRAMMED: Column = Column { name: "PROGRAMMED", cell: |json| condition(&json["status"], "Programmed") };
    const ADDRESS: Column =
        Column { name: "ADDRESS", cell: |json| joined(&json["status"]["addresses"], Some("value")) };
    const ACCEPTED: Column = Column { name: "ACCEPTED", cell: |json| condition(&json["status"], "Accepted") };
    const HOSTNAMES: Column = Column { name: "HOSTNAMES", cell: |json| joined(&json["spec"]["hostnames"], None) };
    const BY_PARENTS: Column = Column { name: "ACCEPTED", cell: |json| by_parents(&json["status"]["parents"]) };
    match kind {
        Kind::GatewayClass => &[ACCEPTED],
        Kind::KubernetesGateway => &[PROGRAMMED, ADDRESS],
        Kind::HttpRoute | Kind::GrpcRoute | Kind::TlsRoute => &[HOSTNAMES, BY_PARENTS],
        Kind::TcpRoute | Kind::UdpRoute => &[BY_PARENTS],
        _ => &[],
    }
}

/// The status of a condition; empty if there is none.
fn condition(of: &Value, kind: &str) -> String {
    let mut all = of["conditions"].as_array().into_iter().flatten();
    let found = all.find(|condition| condition["type"] == kind);
    found.and_then(|condition| condition["status"].as_str()).unwrap_or_default().to_owned()
}

/// `True` if every parent accepts the route.
fn by_parents(parents: &Value) -> String {
    let accepted: Vec<String> =
        parents.as_array().into_iter().flatten().map(|parent| condition(parent, "Accepted")).collect();
    let refused = accepted.iter().find(|status| *status != "True");
    refused.or(accepted.first()).cloned().unwrap_or_default()
}

/// The texts of a list, or a field of each element.
fn joined(list: &Value, field: Option<&str>) -> String {
    let text = |element: &Value| {
        let value = field.map_or(element, |field| &element[field]);
        value.as_str().map(str::to_owned)
    };
    list.as_array().into_iter().flatten().filter_map(text).collect::<Vec<_>>().join(",")
}
