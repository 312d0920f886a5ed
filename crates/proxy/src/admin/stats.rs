//! `/stats` and `/stats/prometheus`.

use serde_json::{Value as Json, json};

use super::{Admin, Query, Reply};

pub(super) fn page(admin: &Admin, query: &Query) -> Reply {
    let filter = match query.regex("filter") {
        Ok(filter) => filter,
        Err(reply) => return reply,
    };
    match query.get("format") {
        Some("prometheus") => return prometheus(admin, query),
        None | Some("" | "text" | "json") => {}
        Some(other) => {
            let reason = format!("format={other}: expected text, json or prometheus\n");
            return Reply::error(http::StatusCode::BAD_REQUEST, reason);
        }
    }
    let used_only = query.has("usedonly");
    let state = admin.shared.state.borrow();
    state.publish_gauges();
    let text = state.registry.text();
    let wanted = text.lines().filter_map(|line| line.split_once(": ")).filter(|(name, value)| {
        filter.as_ref().is_none_or(|filter| filter.is_match(name)) && !(used_only && *value == "0")
    });
    if query.wants_json() {
        let stats: Vec<Json> = wanted
            .map(|(name, value)| {
                let value = value.parse::<i64>().map_or_else(|_| Json::from(value), Json::from);
                json!({"name": name, "value": value})
            })
            .collect();
        return Reply::json(&json!({ "stats": stats }));
    }
    Reply::text(wanted.map(|(name, value)| format!("{name}: {value}\n")).collect::<String>())
}

pub(super) fn prometheus(admin: &Admin, query: &Query) -> Reply {
    let filter = match query.regex("filter") {
        Ok(filter) => filter,
        Err(reply) => return reply,
    };
    let state = admin.shared.state.borrow();
    state.publish_gauges();
    let text = state.registry.prometheus_text();
    let body = match filter {
        None => text,
        Some(filter) => text.lines().filter(|line| filter.is_match(line)).map(|line| format!("{line}\n")).collect(),
    };
    Reply { content_type: "text/plain; version=0.0.4; charset=utf-8", ..Reply::text(body) }
}
