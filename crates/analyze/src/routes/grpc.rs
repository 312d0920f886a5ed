//! Routes that can be those of a GRPCRoute: calls of services and methods, to ports of gRPC.

use evenkeel_model::{HttpMatch, StringMatch};
use serde_json::{Map, Value, json};

use super::conditions::Condition;

/// The condition of a GRPCRoute, if there is an equal. Only what names a service becomes one: for the rest an HTTPRoute is as good.
pub(super) fn condition(original: &HttpMatch) -> Option<Condition> {
    let others = [&original.method, &original.scheme, &original.authority].into_iter().all(Option::is_none);
    if !others || original.ignore_uri_case || !original.query_params.is_empty() {
        return None;
    }
    let (method, uri) = match &original.uri {
        None => (None, StringMatch::Prefix("/".into())),
        Some(StringMatch::Prefix(prefix)) if &**prefix == "/" => (None, StringMatch::Prefix("/".into())),
        Some(StringMatch::Prefix(prefix)) => {
            let service = prefix.strip_prefix('/')?.strip_suffix('/').filter(|name| is_service(name))?;
            (Some(json!({"service": service})), StringMatch::Prefix(prefix.clone()))
        }
        Some(StringMatch::Exact(path)) => {
            let (service, method) = path.strip_prefix('/')?.split_once('/')?;
            let is_call = is_service(service) && is_name(method);
            (
                is_call.then(|| json!({"service": service, "method": method})).map(Some)?,
                StringMatch::Exact(path.clone()),
            )
        }
        Some(_) => return None,
    };
    let mut json = Map::new();
    if let Some(method) = method {
        json.insert("method".to_owned(), method);
    }
    let read = HttpMatch { uri: Some(uri), headers: original.headers.clone(), ..HttpMatch::default() };
    Some(Condition { json, original: original.clone(), read })
}

/// Whether a condition names a service.
pub(super) fn names_service(condition: &Condition) -> bool {
    condition.json.contains_key("method")
}

/// Whether the rule of an HTTPRoute is one of a GRPCRoute, too.
pub(super) fn is_rule(rule: &Map<String, Value>) -> bool {
    let is_filter = |filter: &Value| {
        let kind = filter.get("type").and_then(Value::as_str);
        matches!(kind, Some("RequestHeaderModifier" | "ResponseHeaderModifier" | "RequestMirror"))
    };
    let filters = rule.get("filters").and_then(Value::as_array);
    rule.contains_key("backendRefs")
        && !rule.contains_key("timeouts")
        && !rule.contains_key("retry")
        && filters.is_none_or(|filters| filters.iter().all(is_filter))
}

fn is_name(text: &str) -> bool {
    let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
    text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c.is_ascii_digit())
}

fn is_service(text: &str) -> bool {
    text.split('.').all(is_name)
}
