//! `evenkeel history`: what a proxy ran at some time, and which changes made it so.

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use evenkeel_control::history::replay::{self, Past};
use serde_json::json;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// Flags of `evenkeel history`.
#[derive(Debug, Args)]
pub struct HistoryArguments {
    /// The proxy: its xDS node id, POD.NAMESPACE or POD.
    proxy: String,

    /// When: RFC 3339 (2026-11-21T10:00:00Z), or so long ago (90s, 5m, 2h). Now if not given.
    #[arg(long, value_name = "TIME")]
    at: Option<String>,

    /// The control plane's state directory.
    #[arg(long, value_name = "DIR")]
    state: PathBuf,

    /// Form of the answer.
    #[arg(short, long, value_enum, default_value = "table")]
    output: Output,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Output {
    Table,
    Json,
}

/// Prints what the proxy ran.
pub fn run(arguments: &HistoryArguments, out: &mut dyn Write) -> anyhow::Result<()> {
    let at = match &arguments.at {
        None => SystemTime::now(),
        Some(text) => moment(text, SystemTime::now())?,
    };
    let micros = u64::try_from(at.duration_since(UNIX_EPOCH)?.as_micros())?;
    let past = replay::past(&arguments.state, &arguments.proxy, micros)?;
    match arguments.output {
        Output::Table => table(&past, out)?,
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&in_json(&past))?)?,
    }
    Ok(())
}

fn moment(text: &str, now: SystemTime) -> anyhow::Result<SystemTime> {
    if let Ok(ago) = evenkeel_base::duration::parse(text) {
        return now.checked_sub(ago).context("--at: that is before all time");
    }
    match OffsetDateTime::parse(text, &Rfc3339) {
        Ok(time) => Ok(time.into()),
        Err(error) => bail!("--at {text}: neither a time like 2026-11-21T10:00:00Z nor a duration like 5m ({error})"),
    }
}

fn shown(micros: u64) -> String {
    let time = OffsetDateTime::from(UNIX_EPOCH + Duration::from_micros(micros));
    time.format(&Rfc3339).unwrap_or_else(|_| micros.to_string())
}

fn table(past: &Past, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "{} ran generation {}:", past.node, past.generation)?;
    for at in &past.resources {
        let version = at.resource.version.to_string();
        write!(out, "  {:<10} {}  {version}", at.kind.short_name(), at.resource.name)?;
        match (&at.made_by, &at.resource.origin) {
            (Some(made), _) => {
                let causes = made.causes.join(", ");
                writeln!(out, "\n             by generation {} at {}: {causes}", made.generation, shown(made.at))?;
            }
            (None, Some(origin)) => writeln!(out, "\n             from {origin}")?,
            (None, None) => writeln!(out)?,
        }
    }
    writeln!(out, "since then: {} resources are others", past.since.len())?;
    for difference in &past.since {
        writeln!(out, "  {:<8} {:<10} {}", difference.what, difference.kind.short_name(), difference.name)?;
    }
    Ok(())
}

fn in_json(past: &Past) -> serde_json::Value {
    let resources = past.resources.iter().map(|at| {
        let made = at.made_by.as_ref();
        json!({
            "type": at.kind.short_name(),
            "name": &*at.resource.name,
            "version": at.resource.version.to_string(),
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
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_times() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let check = |text: &str, expected: Option<u64>| {
            let found = moment(text, now).ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
            assert_eq!(found.map(|since| since.as_secs()), expected, "{text}");
        };
        check("5m", Some(999_700));
        check("1970-01-02T00:00:00Z", Some(86_400));
        check("yesterday", None);
    }
}
