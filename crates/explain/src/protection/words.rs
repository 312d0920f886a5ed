//! Rules of policies in plain words.

use evenkeel_base::yaml::{Node, Value};

/// Describes the callers and requests that a rule matches.
pub fn rule(node: &Node) -> String {
    let mut parts = vec![callers(node)];
    let operations = alternatives(node, "to", "operation");
    parts.extend((!operations.is_empty()).then(|| format!("to {}", operations.join("; or "))));
    let conditions = conditions(node);
    parts.extend((!conditions.is_empty()).then(|| format!("when {}", conditions.join(" and "))));
    parts.join(" ")
}

/// The callers that a rule matches.
pub fn callers(node: &Node) -> String {
    let sources = alternatives(node, "from", "source");
    if sources.is_empty() { "any caller".to_owned() } else { format!("callers with {}", sources.join("; or with ")) }
}

/// The ports that every operation of a rule is limited to; none: some operation is not limited.
pub fn ports(node: &Node) -> Vec<u16> {
    let operations = node.get("to").and_then(Node::as_sequence).unwrap_or_default();
    let mut all = Vec::new();
    for operation in operations {
        let ports = operation.at_path("operation.ports").and_then(Node::as_sequence).unwrap_or_default();
        if ports.is_empty() {
            return Vec::new();
        }
        all.extend(ports.iter().filter_map(|port| scalar(port).parse::<u16>().ok()));
    }
    all.sort_unstable();
    all.dedup();
    all
}

/// An issuer of tokens.
pub fn issuer(node: &Node) -> String {
    let text = |name: &str| node.get(name).map(scalar).unwrap_or_default();
    let audiences = node.get("audiences").map(|list| values(list).join(", "));
    let audiences = audiences.map(|list| format!(", for the audiences {list}")).unwrap_or_default();
    let keys = match (node.get("jwks"), node.get("jwksUri")) {
        (Some(_), _) => "keys written in it".to_owned(),
        (None, Some(uri)) => format!("keys from {}", scalar(uri)),
        (None, None) => "keys that the issuer publishes".to_owned(),
    };
    format!("{}{audiences}, {keys}", text("issuer"))
}

/// The alternatives of `from` or `to`, each with all its conditions.
fn alternatives(node: &Node, list: &str, inner: &str) -> Vec<String> {
    let items = node.get(list).and_then(Node::as_sequence).unwrap_or_default();
    let one = |item: &Node| {
        let fields = item.get(inner).and_then(Node::as_mapping);
        let all: Vec<String> =
            fields.into_iter().flat_map(|fields| fields.iter()).map(|entry| field(&entry.key, &entry.value)).collect();
        if all.is_empty() { "anything".to_owned() } else { all.join(" and ") }
    };
    items.iter().map(one).collect()
}

/// `principals a or b`; `no principals a or b` of `notPrincipals`.
fn field(name: &str, value: &Node) -> String {
    let wanted = values(value).join(" or ");
    let mut letters = name.strip_prefix("not").unwrap_or_default().chars();
    match letters.next() {
        Some(first) if first.is_uppercase() => {
            let rest = letters.as_str();
            format!("none of the {}{rest} {wanted}", first.to_ascii_lowercase())
        }
        _ => format!("{name} {wanted}"),
    }
}

fn conditions(node: &Node) -> Vec<String> {
    let items = node.get("when").and_then(Node::as_sequence).unwrap_or_default();
    let one = |item: &Node| {
        let key = item.get("key").map(scalar).unwrap_or_default();
        let is = item.get("values").map(|list| format!("{key} is {}", values(list).join(" or ")));
        let is_not = item.get("notValues").map(|list| format!("{key} is not {}", values(list).join(" or ")));
        is.into_iter().chain(is_not).collect::<Vec<_>>().join(" and ")
    };
    items.iter().map(one).collect()
}

fn values(node: &Node) -> Vec<String> {
    match &node.value {
        Value::Sequence(items) => items.iter().map(|item| format!("\"{}\"", scalar(item))).collect(),
        _ => vec![format!("\"{}\"", scalar(node))],
    }
}

fn scalar(node: &Node) -> String {
    match &node.value {
        Value::Scalar(scalar) => scalar.text.to_string(),
        _ => node.to_json().to_string(),
    }
}
