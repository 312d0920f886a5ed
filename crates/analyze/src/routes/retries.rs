//! Timeouts and retries.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_base::Span;
use evenkeel_model::RetryPolicy;
use serde_json::{Map, Value, json};

use super::writer::Writer;

/// The conditions of retries of an HTTPRoute besides its codes, which are Istio's default, too.
const CONDITIONS: [&str; 4] = ["connect-failure", "refused-stream", "unavailable", "cancelled"];
/// The condition that codes count; it says nothing alone.
const BY_CODES: &str = "retriable-status-codes";

/// `timeouts` and `retry` of a rule.
pub(super) fn fields(
    writer: &mut Writer<'_>,
    timeout: Option<Duration>,
    policy: Option<&RetryPolicy>,
    span: &Span,
) -> Map<String, Value> {
    let mut rule = Map::new();
    let mut timeouts = Map::new();
    let some = |duration: &Duration| !duration.is_zero();
    let whole = timeout.filter(some);
    if let Some(text) = whole.and_then(|timeout| duration(writer, timeout, "timeout", span)) {
        timeouts.insert("request".to_owned(), text.into());
    }
    if let Some(policy) = policy {
        let each = policy.per_try_timeout.filter(some).filter(|_| policy.attempts > 0);
        if each.is_some_and(|each| whole.is_some_and(|whole| each > whole)) {
            let help = "shorten `perTryTimeout`: it has no effect as it is";
            writer.refuse(
                span,
                "`retries.perTryTimeout` is longer than `timeout`, which the Gateway API refuses",
                help,
            );
        } else if let Some(text) = each.and_then(|each| duration(writer, each, "retries.perTryTimeout", span)) {
            timeouts.insert("backendRequest".to_owned(), text.into());
        }
        rule.insert("retry".to_owned(), retry(writer, policy, span));
    }
    if !timeouts.is_empty() {
        rule.insert("timeouts".to_owned(), timeouts.into());
    }
    rule
}

fn retry(writer: &mut Writer<'_>, policy: &RetryPolicy, span: &Span) -> Value {
    if policy.attempts == 0 {
        return json!({"attempts": 0});
    }
    let mut retry = Map::new();
    retry.insert("attempts".to_owned(), policy.attempts.into());
    if !policy.avoid_previous_hosts {
        let help = "remove it: the Gateway API has no such setting, and retries prefer other endpoints";
        writer.refuse(span, "`retries.retryIgnorePreviousHosts: false` has no equal", help);
    }
    if policy.avoid_previous_localities {
        writer.refuse(span, "`retries.retryRemoteLocalities` has no equal", "remove it, or leave the VirtualService");
    }
    let codes = codes(writer, policy.retry_on.as_deref(), span);
    if !codes.is_empty() {
        retry.insert("codes".to_owned(), codes.into());
    }
    let pause = policy.back_off.filter(|pause| !pause.is_zero());
    if let Some(text) = pause.and_then(|pause| duration(writer, pause, "retries.backoff", span)) {
        retry.insert("backoff".to_owned(), text.into());
    }
    Value::Object(retry)
}

/// The codes of `retryOn`, whose other conditions have to be those of every HTTPRoute.
fn codes(writer: &mut Writer<'_>, retry_on: Option<&str>, span: &Span) -> Vec<u32> {
    let Some(text) = retry_on else { return Vec::new() };
    let words = || text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let codes: Vec<u32> = words().filter_map(|word| word.parse().ok()).collect();
    let is_condition = |word: &&str| word.parse::<u32>().is_err() && *word != BY_CODES;
    let others: BTreeSet<&str> = words().filter(is_condition).collect();
    let wanted: BTreeSet<&str> = CONDITIONS.into_iter().collect();
    if others != wanted {
        let list = |words: Vec<&str>| words.join(", ");
        let more = list(others.difference(&wanted).copied().collect());
        let fewer = list(wanted.difference(&others).copied().collect());
        let message = match (more.as_str(), fewer.as_str()) {
            (more, "") => format!("`retries.retryOn`: an HTTPRoute does not retry on {more}"),
            ("", fewer) => format!("`retries.retryOn`: an HTTPRoute also retries on {fewer}"),
            (more, fewer) => {
                format!("`retries.retryOn`: an HTTPRoute does not retry on {more}, but also on {fewer}")
            }
        };
        let help = format!("write `retryOn: {}` and the codes that count, such as 503", CONDITIONS.join(","));
        writer.refuse(span, message, help);
    }
    if let Some(code) = codes.iter().find(|code| !(400..=599).contains(*code)) {
        writer.refuse(span, format!("`retries.retryOn`: {code} is not a status of an error"), "remove it");
    }
    codes
}

/// The most digits of a number of a duration.
const MAX_HOURS: u128 = 99_999;

/// A duration as the Gateway API writes it (GEP-2257).
pub(super) fn duration(writer: &mut Writer<'_>, duration: Duration, field: &str, span: &Span) -> Option<String> {
    let millis = duration.as_millis();
    let hours = millis / 3_600_000;
    if !duration.subsec_nanos().is_multiple_of(1_000_000) || hours > MAX_HOURS {
        let message = format!("`{field}`: the Gateway API counts whole milliseconds, up to {MAX_HOURS} hours");
        writer.refuse(span, message, "round it");
        return None;
    }
    let units = [(hours, "h"), (millis / 60_000 % 60, "m"), (millis / 1000 % 60, "s"), (millis % 1000, "ms")];
    let text: String = units.iter().filter(|(n, _)| *n > 0).map(|(n, unit)| format!("{n}{unit}")).collect();
    Some(if text.is_empty() { "0s".to_owned() } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_the_gateway_api_reads_them() {
        let text = "apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\n";
        let (objects, _) = evenkeel_api::load(&[("a.yaml".into(), text.into())]);
        let (snapshot, options) = (evenkeel_model::Snapshot::default(), super::super::RouteOptions::default());
        let check = |micros: u64, expected: Option<&str>| {
            let mut writer = Writer::new(&objects[0], &snapshot, &options);
            let written = duration(&mut writer, Duration::from_micros(micros), "timeout", &Span::default());
            assert_eq!(written.as_deref(), expected, "{micros}");
            assert_eq!(writer.is_refused, expected.is_none());
        };
        check(0, Some("0s"));
        check(1_500_000, Some("1s500ms"));
        check(5_400_000_000, Some("1h30m"));
        check(3_661_001_000, Some("1h1m1s1ms"));
        check(1_500, None);
    }
}
