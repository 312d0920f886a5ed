//! The results as Markdown, which reads well on a terminal too, and as JSON.

use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result};
use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_measure::Bar;
use evenkeel_measure::markdown::table;
use evenkeel_measure::metric::Metric;
use evenkeel_measure::rounds::{Findings, Table};
use evenkeel_measure::statistics::show;
use serde_json::{Value, json};

use crate::bars::bars;
use crate::peers::DIRECT;
use crate::scenarios::{self, Scenario};

/// The results of one run.
pub struct Results {
    /// On what, and with which versions.
    pub facts: Vec<(String, String)>,
    /// Rounds per table.
    pub rounds: usize,
    /// Seconds of load per peer and round.
    pub seconds: u64,
    /// Scenarios that ran to their end.
    pub complete: Vec<String>,
    /// The measurements.
    pub findings: Findings,
}

impl Results {
    /// Adds the results of an earlier run in `folder`: only of scenarios that ran to their end, and only if it measured the
    /// same programs with the same plan.
    pub fn resume(mut self, folder: &Path) -> Result<Self> {
        let path = folder.join("results.json");
        let Ok(text) = std::fs::read_to_string(&path) else { return Ok(self) };
        let json: Value = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        let same = |key: &str, own: Value| json[key] == own;
        let programs = |facts: &Value| facts["Evenkeel, its file"].clone();
        let own = facts(&self.facts);
        if !same("rounds", json!(self.rounds))
            || !same("seconds", json!(self.seconds))
            || programs(&json["facts"]) != programs(&own)
        {
            return Ok(self);
        }
        self.complete = serde_json::from_value(json["complete"].clone())?;
        let mut findings: Findings = serde_json::from_value(json["findings"].clone())?;
        findings.samples.retain(|sample| self.complete.contains(&sample.scenario));
        findings.absent.retain(|absence| self.complete.contains(&absence.scenario));
        self.findings = findings;
        Ok(self)
    }

    /// Writes `results.json` and `results.md` into `folder`.
    pub fn write(&self, folder: &Path) -> Result<()> {
        std::fs::create_dir_all(folder).with_context(|| format!("{}", folder.display()))?;
        let json = serde_json::to_string_pretty(&self.json())? + "\n";
        for (name, text) in [("results.json", json), ("results.md", self.markdown())] {
            let path = folder.join(name);
            // An interrupted run leaves no incomplete file.
            write_atomically(&path, text.as_bytes(), Readers::All).with_context(|| format!("{}", path.display()))?;
        }
        Ok(())
    }

    fn json(&self) -> Value {
        json!({
            "facts": facts(&self.facts),
            "rounds": self.rounds,
            "seconds": self.seconds,
            "complete": self.complete,
            "bars": self.bars(),
            "findings": self.findings,
        })
    }

    /// Returns the bars of the scenarios that were run.
    fn bars(&self) -> Vec<Bar> {
        let mut bars = bars(&self.findings.samples);
        bars.retain(|bar| self.complete.contains(&bar.scenario));
        bars
    }

    /// Formats the results for people.
    pub fn markdown(&self) -> String {
        let mut text = String::from("# Benchmark results\n\n");
        for (name, value) in &self.facts {
            let _ = writeln!(text, "- {name}: {value}");
        }
        let _ = writeln!(
            text,
            "- {} interleaved rounds of {} s per peer; medians, with the least and greatest round in brackets; ratios are formed \
             inside a round",
            self.rounds, self.seconds
        );
        text.push_str("\n## Bars\n\n");
        text.push_str(&evenkeel_measure::table(&self.bars()));
        for scenario in scenarios::ALL {
            self.tables(&mut text, scenario);
        }
        text
    }

    /// Writes one table per case.
    fn tables(&self, text: &mut String, scenario: &Scenario) {
        let samples = self.findings.samples.iter().filter(|sample| sample.scenario == scenario.name);
        for case in distinct(samples.map(|sample| sample.case.as_str())) {
            let _ = writeln!(text, "\n## {}: {case}\n", scenario.title);
            let here = self.findings.samples.iter().filter(|s| s.scenario == scenario.name && s.case == case);
            let peers = distinct(here.clone().map(|sample| sample.peer.as_str()));
            let metrics = distinct(here.flat_map(|sample| sample.values.keys().copied()));
            let columns = columns(&metrics, scenario, &peers);
            let heads: Vec<&str> = ["peer"].into_iter().chain(columns.iter().map(|(head, _)| head.as_str())).collect();
            let values = Table { samples: &self.findings.samples, scenario: scenario.name, case };
            let row = |peer: &&str| -> Vec<String> {
                [(*peer).to_owned()].into_iter().chain(columns.iter().map(|(_, cell)| cell(&values, peer))).collect()
            };
            text.push_str(&table(&heads, &peers.iter().map(row).collect::<Vec<_>>()));
        }
        let absent = self.findings.absent.iter().filter(|absence| absence.scenario == scenario.name);
        for absence in absent {
            let case = if absence.case.is_empty() { "" } else { ", " };
            let _ = writeln!(
                text,
                "\nNot measured, {}{case}{}: **{}**: {}",
                scenario.name, absence.case, absence.peer, absence.reason
            );
        }
    }
}

type Cell = Box<dyn Fn(&Table<'_>, &str) -> String>;

/// Costs with their spread and as ratios to the scenario's bases; rates also as a ratio to no proxy at all.
fn columns(metrics: &[Metric], scenario: &Scenario, peers: &[&str]) -> Vec<(String, Cell)> {
    let mut columns: Vec<(String, Cell)> = Vec::new();
    for &metric in metrics {
        let own: Cell = Box::new(move |table, peer| show(table.spread(peer, metric), metric.digits()));
        columns.push((metric.head().to_owned(), own));
        let bases = if metric.is_cost() { scenario.bases } else { &[] };
        for base in bases.iter().filter(|base| peers.contains(base)) {
            let ratio: Cell = Box::new(move |table, peer| show(table.ratio(peer, base, metric), 2));
            columns.push((format!("÷ {base}"), ratio));
        }
        if metric == Metric::RequestsPerSecond && peers.contains(&DIRECT) {
            let ratio: Cell = Box::new(move |table, peer| show(table.ratio(peer, DIRECT, metric), 2));
            columns.push((format!("÷ {DIRECT}"), ratio));
        }
    }
    columns
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for value in values {
        if !seen.contains(&value) {
            seen.push(value);
        }
    }
    seen
}

fn facts(facts: &[(String, String)]) -> Value {
    Value::Object(facts.iter().map(|(name, value)| (name.clone(), json!(value))).collect())
}

#[cfg(test)]
mod tests {
    use super::Results;
    use evenkeel_measure::metric::{Metric, Values};
    use evenkeel_measure::rounds::{Findings, Sample};

    fn results(seconds: u64) -> Results {
        Results { facts: Vec::new(), rounds: 1, seconds, complete: Vec::new(), findings: Findings::default() }
    }

    #[test]
    fn a_run_takes_up_what_an_equal_one_had_completed() {
        let sample = |scenario: &str| Sample {
            scenario: scenario.to_owned(),
            case: "1 connection".to_owned(),
            peer: "evenkeel".to_owned(),
            round: 0,
            values: Values::from([(Metric::CpuUsPerRequest, 12.5)]),
        };
        let folder = tempfile::tempdir().unwrap();
        let mut first = results(2);
        first.complete = vec!["hop".to_owned()];
        first.findings.samples = vec![sample("hop"), sample("pair")];
        first.write(folder.path()).unwrap();
        let again = results(2).resume(folder.path()).unwrap();
        assert_eq!((again.findings.samples, again.complete), (vec![sample("hop")], vec!["hop".to_owned()]));
        assert!(results(3).resume(folder.path()).unwrap().complete.is_empty());
        assert!(first.markdown().contains(" 12.5 |"));
    }
}
