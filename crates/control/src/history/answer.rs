//! Answers a user's query for a proxy and a time, given as text, in JSON.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::error::HistoryError;
use super::log::unix_micros;
use super::past::{self, ChangeSince, Past};

/// Maximum number of resources of one change that are told.
const MAX_TOUCHED: usize = 20;
const DAY: Duration = Duration::from_secs(24 * 3600);

/// Why a query has no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The time cannot be parsed.
    #[error("`{0}` is neither a time like 2026-11-21T10:00:00Z nor so long ago as 90s, 5m, 2h or 3d")]
    Time(String),
    /// The history cannot be read or has no answer.
    #[error(transparent)]
    History(#[from] HistoryError),
}

/// Returns what `proxy` (a node id, `POD.NAMESPACE`, `POD` or a workload) ran at the time `at`, given in RFC 3339 or as an
/// age such as `5m`; now if `None`.
pub fn answer(state: &Path, proxy: &str, at: Option<&str>) -> Result<Value, AnswerError> {
    let now = SystemTime::now();
    let at = match at {
        None => now,
        Some(text) => moment(text, now).ok_or_else(|| AnswerError::Time(text.to_owned()))?,
    };
    let at = unix_micros(at);
    Ok(in_json(&past::past(state, proxy, at)?, &past::changes_since(state, proxy, at)?))
}

fn moment(text: &str, now: SystemTime) -> Option<SystemTime> {
    let days = || text.strip_suffix('d')?.parse::<u32>().ok().map(|days| DAY.saturating_mul(days));
    match evenkeel_base::duration::parse(text).ok().or_else(days) {
        Some(ago) => now.checked_sub(ago),
        None => OffsetDateTime::parse(&in_full(text), &Rfc3339).ok().map(SystemTime::from),
    }
}

/// Completes a time in RFC 3339: the `T`, the time of day, the seconds and the zone (UTC) may be left out.
fn in_full(text: &str) -> String {
    let (date, time) = text.split_once(['T', 't', ' ']).unwrap_or((text, "00:00"));
    let clock = time.find(['Z', 'z', '+', '-']).unwrap_or(time.len());
    let (clock, zone) = time.split_at(clock);
    let seconds = if clock.len() == "00:00".len() { ":00" } else { "" };
    format!("{date}T{clock}{seconds}{}", if zone.is_empty() { "Z" } else { zone })
}

fn shown(micros: u64) -> String {
    let time = UNIX_EPOCH.checked_add(Duration::from_micros(micros)).map(OffsetDateTime::from);
    time.and_then(|time| time.format(&Rfc3339).ok()).unwrap_or_else(|| micros.to_string())
}

fn in_json(past: &Past, changes: &[ChangeSince]) -> Value {
    let resources = past.resources.iter().map(|at| {
        let made = at.made_by.as_ref();
        json!({
            "type": at.kind.short_name(),
            "name": &*at.resource.name,
            "version": at.resource.version.to_string(),
            "refused": at.refused,
            "origin": at.resource.origin.as_deref(),
            "generation": made.map(|made| made.generation),
            "changed_at": made.map(|made| shown(made.at)),
            "causes": made.map(|made| made.causes.to_vec()),
        })
    });
    let since = past.since.iter().map(
        |difference| json!({ "what": difference.what, "type": difference.kind.short_name(), "name": difference.name }),
    );
    let changes = changes.iter().map(|change| {
        let touched = change.touched.iter().take(MAX_TOUCHED);
        let touched =
            touched.map(|(what, kind, name)| json!({ "what": what, "type": kind.short_name(), "name": &**name }));
        json!({
            "generation": change.made_by.generation,
            "changed_at": shown(change.made_by.at),
            "causes": change.made_by.causes.to_vec(),
            "resources": touched.collect::<Vec<_>>(),
            "more": change.touched.len().saturating_sub(MAX_TOUCHED),
        })
    });
    json!({
        "proxy": past.node,
        "generation": past.generation,
        "resources": resources.collect::<Vec<_>>(),
        "since": since.collect::<Vec<_>>(),
        "changes": changes.collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let check = |text: &str, expected: Option<u64>| {
            let found = moment(text, now).and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            assert_eq!(found.map(|since| since.as_secs()), expected, "{text}");
        };
        check("5m", Some(999_700));
        check("1970-01-02T00:00:00Z", Some(86_400));
        check("1970-01-02T01:00:00+01:00", Some(86_400));
        check("2d", Some(1_000_000 - 2 * 86_400));
        check("1970-01-02 01:00:00+01:00", Some(86_400));
        check("1970-01-02 00:01", Some(86_460));
        check("1970-01-02T00:00:01.5", Some(86_401));
        check("1970-01-02", Some(86_400));
        for text in ["", "yesterday", "5", "-5m", "1970-13-02", "1970-01-02T", "d", "1.5d", "T", "1970-01-02 ü", "é"]
        {
            check(text, None);
        }
    }
}
