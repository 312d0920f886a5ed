//! `evenkeel explain --last`: a recent request, and what proxies decided about it.

use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::bail;
use evenkeel_explain::recent::{RecordedRequest, completed};
use evenkeel_explain::{Caller, Recent, RunningProxies, World};

use crate::formats::{Output, look};
use crate::proxies::{Collected, Proxies};

/// Shortest id that names the same request at every proxy: a proxy's own numbers are shorter.
const SHORTEST_SHARED_ID: usize = 16;

/// Prints the request with this id, or the latest one. `from`: of this workload's proxies.
pub fn run(
    proxies: &Proxies,
    world: Option<&World>,
    (id, from): (Option<&str>, Option<&Caller>),
    output: Output,
    out: &mut dyn Write,
) -> anyhow::Result<u8> {
    let (workload, namespace) = match from {
        Some(Caller::Workload { name, namespace }) => (name.as_str(), namespace.as_deref()),
        _ => ("", None),
    };
    let collected = proxies.collect(workload, namespace)?;
    let found = choose(&collected, id);
    if found.is_empty() {
        bail!("{}", nothing(&collected, id));
    }
    let kept = found.into_iter().map(|(proxy, request)| {
        let now = proxies.decide(&proxy, &completed(&request));
        RecordedRequest { proxy, request, now }
    });
    let mut recent = Recent::new(world, kept.collect());
    recent.notes.extend(collected.problems.into_iter().map(|problem| format!("not asked: {problem}")));
    match output {
        Output::Json => writeln!(out, "{:#}", recent.to_json())?,
        Output::Text => {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let now = u64::try_from(now.as_micros()).unwrap_or(u64::MAX);
            write!(out, "{}", recent.to_text(look(), now))?;
        }
    }
    Ok(0)
}

/// All records of the request.
fn choose(
    collected: &Collected,
    id: Option<&str>,
) -> Vec<(evenkeel_explain::answer::ProxyName, evenkeel_filters::explain::query::RecentRequest)> {
    let is_wanted = |known: &str| id.is_none_or(|id| known.starts_with(id));
    let wanted = collected.requests.iter().filter(|(_, request)| is_wanted(&request.id));
    let Some((proxy, latest)) = wanted.max_by_key(|(_, request)| request.started_us) else { return Vec::new() };
    let is_same = |(own, request): &&(_, evenkeel_filters::explain::query::RecentRequest)| {
        request.id == latest.id && (own == proxy || latest.id.len() >= SHORTEST_SHARED_ID)
    };
    collected.requests.iter().filter(is_same).cloned().collect()
}

/// Returns why there is nothing to show.
fn nothing(collected: &Collected, id: Option<&str>) -> String {
    if let (0, [problem, ..]) = (collected.proxies, collected.problems.as_slice()) {
        return format!("no proxy answers; {}", problem.trim_start_matches(".default: "));
    }
    let asked = match collected.proxies {
        1 => "the proxy".to_owned(),
        count => format!("none of {count} proxies"),
    };
    let what = match (id, collected.proxies) {
        (Some(id), 1) => format!("{asked} does not keep a request whose id begins with `{id}`"),
        (Some(id), _) => format!("{asked} keeps a request whose id begins with `{id}`"),
        (None, 1) => format!("{asked} keeps no request"),
        (None, _) => format!("{asked} keeps a request"),
    };
    let problems: String = collected.problems.iter().map(|problem| format!("; {problem}")).collect();
    format!("{what}; a worker keeps a sample of its latest requests (docs/explain.md){problems}")
}
