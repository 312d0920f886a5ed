//! Answers a user's query for a proxy and a time, given as text, in JSON.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_base::line_diff::unified;
use evenkeel_store::Store;
use serde_json::{Value, json};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use super::applied::as_applied;
use super::error::HistoryError;
use super::log::unix_micros;
use super::past::{self, ChangeSince, MAX_CHANGES, Past};
use super::timeline::{Entry, Logged, timeline};

/// Maximum number of resources of one change that are told.
const MAX_TOUCHED: usize = 20;
/// Maximum number of lines of one file's difference that are told.
const MAX_DIFF_LINES: usize = 500;
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

/// A query of a user.
#[derive(Debug, Clone, Copy, Default)]
pub struct HistoryQuery<'q> {
    /// The proxy: a node id, `POD.NAMESPACE`, `POD` or a workload; `None`: the whole configuration.
    pub proxy: Option<&'q str>,
    /// The time of which what the proxy ran is told, in RFC 3339 or as an age such as `5m`; now if `None`.
    pub at: Option<&'q str>,
    /// The earliest time of the changes that are told, likewise; all if `None`.
    pub since: Option<&'q str>,
}

/// Answers a query: the changes, oldest first, and what the proxy ran. Without [`HistoryQuery::at`] the changes are all of the
/// history; with it those that came later.
pub fn answer(store: impl Into<Store>, asked: HistoryQuery<'_>) -> Result<Value, AnswerError> {
    let (store, now) = (&store.into(), SystemTime::now());
    let time = |text: &str| moment(text, now).map(unix_micros).ok_or_else(|| AnswerError::Time(text.to_owned()));
    let at = asked.at.map_or(Ok(unix_micros(now)), time)?;
    let since = asked.since.map(time).transpose()?;
    let segments = past::segments(store)?;
    let entries = timeline(&segments);
    let is_late = |entry: &&Entry<'_>| since.is_none_or(|since| entry.at >= since);
    let Some(proxy) = asked.proxy else {
        let told = entries.iter().filter(is_late).map(|entry| (entry, None));
        return Ok(json!({ "changes": latest(store, told.collect()) }));
    };
    let past = past::past(store, proxy, at)?;
    let changes = match asked.at {
        Some(_) => past::changes_since(store, proxy, at)?,
        None => past::all_changes(&segments, proxy)?,
    };
    let of = |entry: &Entry<'_>| changes.iter().find(|own| own.made_by.at == entry.at && own.writer == *entry.writer);
    let told = entries.iter().filter(is_late).filter_map(|entry| Some((entry, Some(of(entry)?))));
    Ok(in_json(&past, latest(store, told.collect())))
}

/// The latest changes, at most [`MAX_CHANGES`].
fn latest(store: &Store, mut told: Vec<(&Entry<'_>, Option<&ChangeSince>)>) -> Vec<Value> {
    let earlier = told.len().saturating_sub(MAX_CHANGES);
    told.drain(..earlier).for_each(drop);
    told.into_iter().map(|(entry, touched)| change_in_json(store, entry, touched)).collect()
}

fn change_in_json(store: &Store, entry: &Entry<'_>, touched: Option<&ChangeSince>) -> Value {
    let files = entry.entries.iter().map(|file| {
        let text = |text: &Option<std::sync::Arc<str>>| {
            let text = text.as_deref().unwrap_or_default();
            as_applied(text).map_or_else(|| text.to_owned(), |(_, object)| object)
        };
        let applied = [&file.new, &file.old].into_iter().flatten().find_map(|text| as_applied(text));
        let name = match &file.entry {
            Logged::File(path) => applied.map_or_else(|| path.display().to_string(), |(from, _)| from),
            Logged::Object(id) => id.to_string(),
        };
        let observed = file.is_observed(store);
        let mut diff = if observed { Vec::new() } else { unified(&text(&file.old), &text(&file.new)) };
        let more_lines = diff.len().saturating_sub(MAX_DIFF_LINES);
        diff.truncate(MAX_DIFF_LINES);
        let mut change = json!({
            "file": name, "what": file.what(), "observed": observed,
            "diff": diff, "more_lines": more_lines,
        });
        if let Logged::Object(id) = &file.entry {
            let namespace = if id.namespace.is_empty() { String::new() } else { format!("{}/", id.namespace) };
            change["object"] = format!("{} {namespace}{}", id.kind, id.name).into();
            change["source"] = id.source.as_str().into();
        }
        change
    });
    let mut change = json!({
        "generation": entry.generation,
        "changed_at": shown(entry.at),
        "found": entry.found,
        "causes": entry.causes,
        "files": files.collect::<Vec<_>>(),
    });
    if let Some(since) = touched {
        let few = since.touched.iter().take(MAX_TOUCHED);
        let few = few.map(|(what, kind, name)| json!({ "what": what, "type": kind.short_name(), "name": &**name }));
        change["resources"] = few.collect();
        change["more"] = since.touched.len().saturating_sub(MAX_TOUCHED).into();
    }
    change
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

fn in_json(past: &Past, changes: Vec<Value>) -> Value {
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
    json!({
        "proxy": past.node,
        "generation": past.generation,
        "resources": resources.collect::<Vec<_>>(),
        "since": since.collect::<Vec<_>>(),
        "changes": changes,
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
