//! The results as a table for people, as Markdown and as JSON.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::measure::{Sample, Spread, ratio, spread};
use crate::peers::{DIRECT, ENVOY, EVENKEEL, RELAY};
use crate::startup::{SIDECAR, Startup};

/// The connection count at which the bars stand.
const BAR_CONNECTIONS: usize = 32;

/// Everything one run found out.
pub struct Results {
    facts: Vec<(String, String)>,
    rounds: usize,
    seconds: u64,
    /// One plain hop.
    pub hop: Vec<Sample>,
    /// A sidecar pair.
    pub pair: Vec<Sample>,
    /// Start-up time and memory.
    pub startup: Vec<Startup>,
}

/// One of the project's bars.
struct Bar {
    what: &'static str,
    measured: Option<Spread>,
    limit: f64,
    at_most: bool,
}

impl Bar {
    fn verdict(&self) -> &'static str {
        match self.measured {
            None => "not measured",
            Some(spread) if (spread.median <= self.limit) == self.at_most || spread.median == self.limit => "pass",
            Some(_) => "MISS",
        }
    }
}

impl Results {
    /// No results yet.
    pub fn new(facts: Vec<(String, String)>, rounds: usize, seconds: u64) -> Self {
        Self { facts, rounds, seconds, hop: Vec::new(), pair: Vec::new(), startup: Vec::new() }
    }

    /// For the terminal: the Markdown reads well there too.
    pub fn text(&self) -> String {
        self.markdown()
    }

    /// Writes `results.json` and `results.md` into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        let json = serde_json::to_string_pretty(&self.json())? + "\n";
        for (name, text) in [("results.json", json), ("results.md", self.markdown())] {
            let path = folder.join(name);
            std::fs::write(&path, text).with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "facts": self.facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>(),
            "rounds": self.rounds,
            "seconds_per_peer_and_round": self.seconds,
            "bars": self.bars().iter().map(|bar| json!({
                "what": bar.what, "limit": bar.limit, "at_most": bar.at_most,
                "measured": bar.measured.map(|spread| spread.median), "verdict": bar.verdict(),
            })).collect::<Vec<_>>(),
            "startup": self.startup.iter().map(Startup::json).collect::<Vec<_>>(),
            "hop": self.hop.iter().map(Sample::json).collect::<Vec<_>>(),
            "pair": self.pair.iter().map(Sample::json).collect::<Vec<_>>(),
        })
    }

    fn markdown(&self) -> String {
        let mut text = String::from("# Benchmark results\n\n");
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        let _ = writeln!(
            text,
            "- {} interleaved rounds of {} s per peer; medians, with the least and greatest round in brackets; ratios are \
             formed inside a round",
            self.rounds, self.seconds
        );
        text.push_str("\n## Bars\n\n");
        let rows = self.bars().iter().map(bar_row).collect::<Vec<_>>();
        text.push_str(&table(&["bar", "measured", "limit", "verdict"], &rows));
        if !self.startup.is_empty() {
            text.push_str(
                "\n## From exec to ready\n\nEvenkeel and Envoy with the one-hop file; and the example's sidecar: agent and \
                 proxy in one process, with the time it takes to make a key and to get certificate and configuration from \
                 the control plane.\n\n",
            );
            let cells = |s: &Startup| [s.ready_millis, s.ready_mib, s.settled_mib].map(|spread| show(Some(spread), 1));
            let row = |s: &Startup| [vec![s.peer.to_owned()], cells(s).to_vec()].concat();
            let rows = self.startup.iter().map(row).collect::<Vec<_>>();
            text.push_str(&table(&["proxy", "ready after ms", "resident MiB then", "3 s later"], &rows));
        }
        hop_tables(&mut text, "One plain hop", &self.hop, &[RELAY, ENVOY]);
        hop_tables(&mut text, "Sidecar pair, mutual TLS 1.3, HTTP/1.1 between", &self.pair, &[ENVOY]);
        text
    }

    fn bars(&self) -> Vec<Bar> {
        let cpu = |samples, other| ratio(samples, (EVENKEEL, other), BAR_CONNECTIONS, |s| s.cpu_micros);
        let ours = |of: fn(&Startup) -> Spread| self.startup.iter().find(|s| s.peer == SIDECAR).map(of);
        let bar = |what, measured, limit, at_most| Bar { what, measured, limit, at_most };
        vec![
            bar("hop, 32 connections: CPU ÷ relay's", cpu(&self.hop, RELAY), 1.6, true),
            bar("hop, 32 connections: CPU ÷ Envoy's", cpu(&self.hop, ENVOY), 0.35, true),
            bar("pair, 32 connections: CPU ÷ Envoy pair's", cpu(&self.pair, ENVOY), 0.25, true),
            bar(
                "pair, 32 connections: throughput ÷ Envoy pair's",
                ratio(&self.pair, (EVENKEEL, ENVOY), BAR_CONNECTIONS, |s| s.rate),
                3.0,
                false,
            ),
            bar("the example's sidecar: ready after exec, ms", ours(|s| s.ready_millis), 100.0, true),
            bar("the example's sidecar: resident MiB", ours(|s| s.settled_mib), 15.0, true),
        ]
    }
}

fn bar_row(bar: &Bar) -> Vec<String> {
    let sign = if bar.at_most { "≤" } else { "≥" };
    vec![bar.what.to_owned(), show(bar.measured, 2), format!("{sign} {}", bar.limit), bar.verdict().to_owned()]
}

/// One table per connection count; CPU as a ratio to each of `bases`, throughput as a ratio to no proxy at all.
fn hop_tables(text: &mut String, title: &str, samples: &[Sample], bases: &[&str]) {
    let mut counts: Vec<usize> = samples.iter().map(|sample| sample.connections).collect();
    counts.dedup();
    let mut peers: Vec<&str> = Vec::new();
    for sample in samples {
        if !peers.contains(&sample.peer) {
            peers.push(sample.peer);
        }
    }
    let mut heads = vec!["peer".to_owned(), "CPU µs/request".to_owned()];
    heads.extend(bases.iter().map(|base| format!("÷ {base}")));
    heads.extend(["requests/s", "÷ no proxy", "p50 µs", "p99 µs", "resident MiB"].map(str::to_owned));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    for count in counts {
        let _ = writeln!(text, "\n## {title}, {count} connection{}\n", if count == 1 { "" } else { "s" });
        let rows = peers.iter().map(|peer| hop_row(samples, peer, count, bases)).collect::<Vec<_>>();
        text.push_str(&table(&heads, &rows));
    }
}

fn hop_row(samples: &[Sample], peer: &str, count: usize, bases: &[&str]) -> Vec<String> {
    let own = |of| spread(samples, peer, count, of);
    let has_cpu = peer != DIRECT;
    let cpu = |shown: String| if has_cpu { shown } else { "–".to_owned() };
    let mut row = vec![peer.to_owned(), cpu(show(own(|s| s.cpu_micros), 1))];
    row.extend(bases.iter().map(|base| cpu(show(ratio(samples, (peer, base), count, |s| s.cpu_micros), 2))));
    row.push(median(own(|s| s.rate), 0));
    row.push(median(ratio(samples, (peer, DIRECT), count, |s| s.rate), 2));
    row.push(median(own(|s| s.p50_micros), 0));
    row.push(median(own(|s| s.p99_micros), 0));
    row.push(cpu(median(own(|s| s.resident_kib as f64 / 1024.0), 1)));
    row
}

fn show(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(|| "–".to_owned(), |s| format!("{:.digits$} ({:.digits$}–{:.digits$})", s.median, s.min, s.max))
}

fn median(spread: Option<Spread>, digits: usize) -> String {
    spread.map_or_else(|| "–".to_owned(), |s| format!("{:.digits$}", s.median))
}

/// A Markdown table whose columns line up; numbers to the right.
fn table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count());
        cells.chain([heads[column].chars().count(), 3]).max().unwrap_or(3)
    };
    let widths: Vec<usize> = (0..heads.len()).map(width).collect();
    let mut text = String::new();
    let mut line = |cells: &mut dyn Iterator<Item = String>| {
        for (column, cell) in cells.enumerate() {
            let pad = " ".repeat(widths[column] - cell.chars().count());
            let _ = if column == 0 { write!(text, "| {cell}{pad} ") } else { write!(text, "| {pad}{cell} ") };
        }
        text.push_str("|\n");
    };
    line(&mut heads.iter().map(|head| (*head).to_owned()));
    line(&mut widths.iter().enumerate().map(|(column, width)| {
        let dashes = "-".repeat(width - 1);
        if column == 0 { format!("{dashes}-") } else { format!("{dashes}:") }
    }));
    for row in rows {
        line(&mut row.iter().cloned());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{Bar, table};
    use crate::measure::Spread;

    #[test]
    fn bars_pass_on_their_side_of_the_limit() {
        let check = |median: f64, limit: f64, at_most: bool, verdict: &str| {
            let measured = Some(Spread { median, min: median, max: median });
            assert_eq!(Bar { what: "", measured, limit, at_most }.verdict(), verdict, "{median} {limit} {at_most}");
        };
        check(1.5, 1.6, true, "pass");
        check(1.6, 1.6, true, "pass");
        check(1.7, 1.6, true, "MISS");
        check(3.1, 3.0, false, "pass");
        check(3.0, 3.0, false, "pass");
        check(2.9, 3.0, false, "MISS");
        assert_eq!(Bar { what: "", measured: None, limit: 1.0, at_most: true }.verdict(), "not measured");
    }

    #[test]
    fn table_lines_up() {
        let rows = vec![vec!["relay".to_owned(), "9.1".to_owned()]];
        assert_eq!(table(&["peer", "µs"], &rows), "| peer  |  µs |\n| ----- | --: |\n| relay | 9.1 |\n");
    }
}
