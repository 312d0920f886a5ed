//! Conditions of a VirtualService's HTTP route, as those of an HTTPRoute.

use evenkeel_base::re2::quote;
use evenkeel_model::{HeaderMatch, HttpMatch, StringMatch};
use serde_json::{Map, Value, json};

use super::writer::Writer;

/// The methods that an HTTPRoute can name.
const METHODS: [&str; 9] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"];

/// A condition that is written.
#[derive(Debug, Clone)]
pub(super) struct Condition {
    /// As it is written; empty: every request.
    pub(super) json: Map<String, Value>,
    /// As it was.
    pub(super) original: HttpMatch,
    /// As it will be read: its place in the order of precedence follows from it.
    pub(super) read: HttpMatch,
}

impl Condition {
    /// Whether it holds for every request.
    pub(super) fn is_everything(&self) -> bool {
        self.json.is_empty()
    }
}

/// The equal of a condition: several if it names several methods.
pub(super) fn conditions(writer: &mut Writer<'_>, original: &HttpMatch) -> Vec<Condition> {
    refuse_unknown(writer, original);
    let mut read = HttpMatch { by_parts: true, ..HttpMatch::default() };
    let mut json = Map::new();
    let path = path(writer, original);
    if !matches!(&path, StringMatch::Prefix(prefix) if &**prefix == "/") {
        json.insert("path".to_owned(), path_json(&path));
    }
    read.uri = Some(path);
    if let Some(values) = values(writer, original, &original.headers, "headers") {
        json.insert("headers".to_owned(), values);
    }
    if let Some(values) = values(writer, original, &original.query_params, "queryParams") {
        json.insert("queryParams".to_owned(), values);
    }
    read.headers.clone_from(&original.headers);
    read.query_params.clone_from(&original.query_params);
    let methods = methods(writer, original);
    if methods.is_empty() {
        return vec![Condition { json, original: original.clone(), read }];
    }
    let with_method = |method: &str| {
        let (mut json, exact) = (json.clone(), Some(StringMatch::Exact(method.into())));
        json.insert("method".to_owned(), method.into());
        let original = HttpMatch { method: exact.clone(), ..original.clone() };
        Condition { json, original, read: HttpMatch { method: exact, ..read.clone() } }
    };
    methods.iter().map(|method| with_method(method)).collect()
}

/// Conditions that the Gateway API does not have.
fn refuse_unknown(writer: &mut Writer<'_>, matched: &HttpMatch) {
    let span = &matched.origin;
    if !matched.without_headers.is_empty() {
        let help = "write a rule with the header before it, as far as its values can be listed";
        writer.refuse(span, "`withoutHeaders`: the Gateway API has no condition on a header that is absent", help);
    }
    if matched.scheme.is_some() {
        let help = "attach the route to the HTTP or the HTTPS listener alone (`sectionName`)";
        writer.refuse(span, "`scheme`: the Gateway API has no condition on the scheme", help);
    }
    if matched.authority.is_some() {
        let help = "write a route of its own with these `hostnames`";
        writer.refuse(span, "`authority`: hosts are conditions of a whole route, not of a rule", help);
    }
    if !matched.source_labels.is_empty() {
        let help = "give these clients a namespace of their own with a consumer's route, or leave the VirtualService";
        writer.refuse(span, "`sourceLabels`: the Gateway API has no condition on labels of the client", help);
    }
    if matched.source_namespace.is_some() {
        let help = "write a route in that namespace: it applies to its clients alone (a consumer's route)";
        writer.refuse(span, "`sourceNamespace`: the Gateway API has no such condition", help);
    }
}

/// The path as it will be read.
fn path(writer: &mut Writer<'_>, matched: &HttpMatch) -> StringMatch {
    let folded = |pattern: String| if matched.ignore_uri_case { format!("(?i){pattern}") } else { pattern };
    match &matched.uri {
        None | Some(StringMatch::Present) => StringMatch::Prefix("/".into()),
        Some(StringMatch::Prefix(prefix)) if matches!(&**prefix, "" | "/") => StringMatch::Prefix("/".into()),
        Some(StringMatch::Exact(path)) if !matched.ignore_uri_case && is_plain(path) => {
            StringMatch::Exact(path.clone())
        }
        Some(StringMatch::Exact(path)) => StringMatch::Regex(folded(quote(path)).into()),
        Some(StringMatch::Prefix(prefix))
            if writer.options.by_parts && !matched.ignore_uri_case && is_plain(prefix) =>
        {
            let parts = prefix.trim_end_matches('/');
            let message = if parts.len() < prefix.len() {
                format!("`uri.prefix: {prefix}` becomes `PathPrefix`, which also matches `{parts}` itself")
            } else {
                format!(
                    "`uri.prefix: {prefix}` becomes `PathPrefix`, which does not match `{prefix}` with more letters"
                )
            };
            writer.differs(
                &matched.origin,
                message,
                "without --path-parts it becomes an expression that matches the same",
            );
            StringMatch::Prefix(parts.into())
        }
        Some(StringMatch::Prefix(prefix)) => StringMatch::Regex(folded(format!("{}.*", quote(prefix))).into()),
        Some(StringMatch::Suffix(suffix)) => StringMatch::Regex(format!(".*{}", quote(suffix)).into()),
        Some(StringMatch::Regex(pattern)) => StringMatch::Regex(pattern.clone()),
    }
}

fn path_json(path: &StringMatch) -> Value {
    match path {
        StringMatch::Exact(path) => json!({"type": "Exact", "value": &**path}),
        StringMatch::Prefix(prefix) => json!({"type": "PathPrefix", "value": &**prefix}),
        StringMatch::Regex(text) | StringMatch::Suffix(text) => json!({"type": "RegularExpression", "value": &**text}),
        StringMatch::Present => json!({"type": "PathPrefix", "value": "/"}),
    }
}

/// Whether the Gateway API allows a path as it is; others become expressions.
pub(super) fn is_plain(path: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "-/._~!$&'()*+,;=:@".contains(c);
    path.starts_with('/')
        && path.chars().all(is_allowed)
        && !["//", "/./", "/../"].iter().any(|part| path.contains(part))
        && !["/..", "/."].iter().any(|end| path.ends_with(end))
}

fn values(writer: &mut Writer<'_>, matched: &HttpMatch, all: &[HeaderMatch], field: &str) -> Option<Value> {
    let mut list = Vec::new();
    for one in all {
        let name = &one.name;
        let is_name = !name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(&byte));
        if name.starts_with('@') {
            let help = "leave the VirtualService, or decide by an AuthorizationPolicy";
            writer.refuse(
                &matched.origin,
                format!("`{field}`: the Gateway API has no condition on claims (`{name}`)"),
                help,
            );
            continue;
        }
        if !is_name {
            let help = "match method and path by their own fields";
            writer.refuse(
                &matched.origin,
                format!("`{field}`: `{name}` is not a name that the Gateway API can match"),
                help,
            );
            continue;
        }
        let value = match &one.value {
            StringMatch::Exact(text) if text.is_empty() => {
                json!({"type": "RegularExpression", "name": &**name, "value": "^$"})
            }
            StringMatch::Exact(text) => json!({"name": &**name, "value": &**text}),
            StringMatch::Prefix(text) => regex(name, &format!("{}.*", quote(text))),
            StringMatch::Suffix(text) => regex(name, &format!(".*{}", quote(text))),
            StringMatch::Regex(pattern) if pattern.is_empty() => regex(name, "^$"),
            StringMatch::Regex(pattern) => regex(name, pattern),
            StringMatch::Present => regex(name, ".*"),
        };
        list.push(value);
    }
    (!list.is_empty()).then_some(Value::Array(list))
}

fn regex(name: &str, pattern: &str) -> Value {
    json!({"type": "RegularExpression", "name": name, "value": pattern})
}

/// The methods of a condition; empty: all.
fn methods(writer: &mut Writer<'_>, matched: &HttpMatch) -> Vec<String> {
    let listed: Vec<&str> = match &matched.method {
        None => return Vec::new(),
        Some(StringMatch::Exact(method)) => vec![method],
        Some(StringMatch::Regex(pattern)) => {
            let inner = pattern.trim_start_matches('^').trim_end_matches('$');
            let inner = inner.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).unwrap_or(inner);
            inner.split('|').collect()
        }
        Some(_) => vec![""],
    };
    if listed.iter().all(|method| METHODS.contains(method)) {
        return listed.into_iter().map(str::to_owned).collect();
    }
    let help = format!("name methods exactly; the Gateway API knows {}", METHODS.join(", "));
    writer.refuse(&matched.origin, "`method` is not a list of methods that the Gateway API knows", help);
    Vec::new()
}
