//! `/stats` and `/stats/prometheus`.

use std::sync::Arc;
use std::time::Instant;

use evenkeel_process::gzip;
use evenkeel_stats::{Exposition, PROTOBUF, Registry, prefers_protobuf};
use regex::Regex;
use serde_json::{Value as Json, json};

use super::apart::{Deadline, Drawing};
use super::{Admin, Query, Reply};

pub(super) fn page(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    match query.get("format") {
        Some("prometheus" | "openmetrics") => return prometheus(admin, query),
        None | Some("" | "text" | "json") => {}
        Some(other) => {
            let reason = format!("format={other}: expected text, json, prometheus or openmetrics\n");
            return Err(Reply::error(http::StatusCode::BAD_REQUEST, reason));
        }
    }
    let filter = query.regex("filter")?;
    let (used_only, wants_json) = (query.has("usedonly"), query.wants_json());
    let registry = up_to_date(admin);
    Ok(Box::new(move |deadline| {
        registry.expire(Instant::now());
        let text = registry.text();
        let wanted = text
            .lines()
            .filter_map(|line| line.rsplit_once(": "))
            .filter(|(name, value)| !(used_only && *value == "0") && passes(filter.as_ref(), name, deadline));
        if wants_json {
            let stats: Vec<Json> = wanted
                .map(|(name, value)| {
                    let value = value.parse::<i64>().map_or_else(|_| Json::from(value), Json::from);
                    json!({"name": name, "value": value})
                })
                .collect();
            return Reply::json(&json!({ "stats": stats }));
        }
        Reply::text(wanted.map(|(name, value)| format!("{name}: {value}\n")).collect::<String>())
    }))
}

/// The statistics for Prometheus, in the exposition format the client asks for.
pub(super) fn prometheus(admin: &Admin, query: &Query) -> Result<Drawing, Reply> {
    let filter = query.regex("filter")?;
    let format = match query.get("format") {
        Some("openmetrics") => Exposition::OpenMetrics,
        _ => Exposition::negotiate(query.accept.as_deref()),
    };
    let wants_protobuf = !query.has("format") && prefers_protobuf(query.accept.as_deref());
    let (registry, encodings) = (up_to_date(admin), query.accept_encoding.clone());
    Ok(Box::new(move |deadline| {
        registry.expire(Instant::now());
        let wanted = |series: &str| passes(filter.as_ref(), series, deadline);
        let wanted = filter.as_ref().map(|_| &wanted as &dyn Fn(&str) -> bool);
        let (content_type, body) = if wants_protobuf {
            (PROTOBUF, registry.protobuf(wanted))
        } else {
            (format.content_type(), registry.exposition(format, wanted).into_bytes())
        };
        let compressed = gzip::compressed(&body, encodings.as_deref());
        let encoding = compressed.is_some().then_some(gzip::GZIP);
        Reply { status: http::StatusCode::OK, content_type, encoding, body: compressed.unwrap_or(body) }
    }))
}

/// The registry, updated with the values that only the control thread knows.
fn up_to_date(admin: &Admin) -> Arc<Registry> {
    let state = admin.shared.state.borrow();
    state.publish_gauges();
    state.stats.publish_dropped(admin.log.dropped_lines());
    state.registry.clone()
}

/// Whether a filter lets a line pass; none pass after the deadline, when the page is discarded anyway.
fn passes(filter: Option<&Regex>, line: &str, deadline: &Deadline) -> bool {
    filter.is_none_or(|filter| !deadline.is_over() && filter.is_match(line))
}
