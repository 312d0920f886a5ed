//! Interleaved rounds, and the evaluation of their samples.

use std::fmt::Display;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::metric::{Metric, Values};
use crate::statistics::Spread;

/// Load before the first round, so that no peer is measured cold.
const WARM_UP: Duration = Duration::from_secs(1);

/// The amount of measuring.
pub struct Plan {
    /// Rounds per table.
    pub rounds: usize,
    /// Load per peer and round.
    pub time: Duration,
    /// Connection counts of the tables that have several.
    pub connections: Vec<usize>,
}

/// One peer measured once.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The scenario's name, as after `--only`.
    pub scenario: String,
    /// Which of the scenario's tables, such as `32 connections`.
    pub case: String,
    /// The peer's name.
    pub peer: String,
    /// Which round, from 0.
    pub round: usize,
    /// The measured values.
    pub values: Values,
}

/// A peer that could not be measured, and why.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Absence {
    /// The scenario's name.
    pub scenario: String,
    /// Which of its tables; empty for all of them.
    pub case: String,
    /// The peer's name.
    pub peer: String,
    /// The peer's error message.
    pub reason: String,
}

impl Absence {
    /// Assigns it to one of the scenario's tables.
    pub fn of_case(self, case: &str) -> Self {
        Self { case: case.to_owned(), ..self }
    }
}

/// The results of one scenario.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Findings {
    /// Every measurement.
    pub samples: Vec<Sample>,
    /// Peers that are missing.
    pub absent: Vec<Absence>,
}

/// One table of a scenario.
pub struct Contest<'a> {
    /// The scenario's name.
    pub scenario: &'a str,
    /// The table's.
    pub case: &'a str,
    /// The peers that take part.
    pub peers: Vec<&'a str>,
}

impl Findings {
    /// Lets every peer take its turn once per round, in an order that rotates from round to round. `turn` gets the peer's index
    /// and how long to load it. A peer whose turn fails is left out of the rest, and the reason is kept.
    ///
    /// # Errors
    /// The progress cannot be written.
    pub fn measure<E: Display + From<io::Error>>(
        &mut self,
        contest: &Contest<'_>,
        plan: &Plan,
        progress: &mut dyn Write,
        mut turn: impl FnMut(usize, Duration) -> Result<Values, E>,
    ) -> Result<(), E> {
        let mut out: Vec<bool> = Vec::new();
        for index in 0..contest.peers.len() {
            out.push(turn(index, WARM_UP).inspect_err(|error| self.leave_out(contest, index, error)).is_err());
        }
        for round in 0..plan.rounds {
            let start = Instant::now();
            write!(progress, "{}, {}, round {} of {}:", contest.scenario, contest.case, round + 1, plan.rounds)?;
            for place in 0..contest.peers.len() {
                let index = (place + round) % contest.peers.len();
                if out[index] {
                    continue;
                }
                match turn(index, plan.time) {
                    Ok(values) => {
                        write!(progress, "  {} {}", contest.peers[index], first_value(&values))?;
                        progress.flush()?;
                        self.add(contest, index, round, values);
                    }
                    Err(error) => {
                        self.leave_out(contest, index, &error);
                        out[index] = true;
                    }
                }
            }
            writeln!(progress, "  ({:.0} s)", start.elapsed().as_secs_f64())?;
        }
        Ok(())
    }

    /// Records that a peer is missing from a whole scenario.
    pub fn absent(&mut self, scenario: &str, peer: &str, reason: &impl Display) {
        self.absent.push(Absence {
            scenario: scenario.to_owned(),
            case: String::new(),
            peer: peer.to_owned(),
            reason: one_line(&format!("{reason:#}")),
        });
    }

    /// Keeps one measurement of the peer with this index.
    pub fn add(&mut self, contest: &Contest<'_>, index: usize, round: usize, values: Values) {
        self.samples.push(Sample {
            scenario: contest.scenario.to_owned(),
            case: contest.case.to_owned(),
            peer: contest.peers[index].to_owned(),
            round,
            values,
        });
    }

    /// Records that a peer is missing from a table.
    pub fn leave_out(&mut self, contest: &Contest<'_>, index: usize, error: &impl Display) {
        self.absent(contest.scenario, contest.peers[index], error);
        if let Some(absence) = self.absent.last_mut() {
            contest.case.clone_into(&mut absence.case);
        }
    }
}

fn first_value(values: &Values) -> String {
    values.iter().next().map_or_else(String::new, |(metric, value)| {
        format!("{value:.*} {}", metric.digits(), metric.head().split(' ').next_back().unwrap_or_default())
    })
}

/// The end of a reason that may be a whole log: its last lines say what went wrong.
fn one_line(text: &str) -> String {
    const LONGEST_REASON_CHARS: usize = 400;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let skipped = words.chars().count().saturating_sub(LONGEST_REASON_CHARS);
    if skipped == 0 { words } else { format!("…{}", words.chars().skip(skipped).collect::<String>()) }
}

/// The samples of one table.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    /// All samples.
    pub samples: &'a [Sample],
    /// The scenario's name.
    pub scenario: &'a str,
    /// The table's.
    pub case: &'a str,
}

impl<'a> Table<'a> {
    /// Returns one peer's metric over the rounds.
    pub fn spread(&self, peer: &str, metric: Metric) -> Option<Spread> {
        Spread::of(self.series(peer, metric).map(|(_, value)| value))
    }

    /// A peer's metric divided by another's, formed inside each round.
    pub fn ratio(&self, peer: &str, other: &str, metric: Metric) -> Option<Spread> {
        self.each_round(peer, other, metric, |own, base| own / base)
    }

    /// Returns the difference between two peers, divided by that between two others, computed within each round. A peer that
    /// adds nothing measurable counts as 0.
    pub fn added_ratio(&self, own: (&str, &str), others: (&str, &str), metric: Metric) -> Option<Spread> {
        let added = |(with, without): (&str, &str), round| {
            Some(self.value(with, metric, round)? - self.value(without, metric, round)?)
        };
        Spread::of(self.series(own.0, metric).filter_map(|(round, _)| {
            Some(added(own, round)?.max(0.0) / added(others, round)?).filter(|ratio| ratio.is_finite())
        }))
    }

    fn each_round(&self, peer: &str, other: &str, metric: Metric, of: fn(f64, f64) -> f64) -> Option<Spread> {
        Spread::of(self.series(peer, metric).filter_map(|(round, own)| {
            Some(of(own, self.value(other, metric, round)?)).filter(|ratio| ratio.is_finite())
        }))
    }

    fn value(&self, peer: &str, metric: Metric, round: usize) -> Option<f64> {
        self.series(peer, metric).find(|(of, _)| *of == round).map(|(_, value)| value)
    }

    fn series(&self, peer: &str, metric: Metric) -> impl Iterator<Item = (usize, f64)> + use<'a, '_> {
        let (scenario, case, peer) = (self.scenario, self.case, peer.to_owned());
        let here = move |sample: &&Sample| sample.scenario == scenario && sample.case == case && sample.peer == peer;
        self.samples
            .iter()
            .filter(here)
            .filter_map(move |sample| sample.values.get(&metric).map(|value| (sample.round, *value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_formed_inside_a_round() {
        let sample = |peer: &str, round, cpu| Sample {
            scenario: "hop".to_owned(),
            case: "1".to_owned(),
            peer: peer.to_owned(),
            round,
            values: Values::from([(Metric::CpuUsPerRequest, cpu)]),
        };
        // The second round ran on a machine half as fast: the ratio is the same.
        let samples = [
            sample("a", 0, 10.0),
            sample("b", 0, 20.0),
            sample("none", 0, 5.0),
            sample("a", 1, 20.0),
            sample("b", 1, 40.0),
            sample("none", 1, 10.0),
        ];
        let table = Table { samples: &samples, scenario: "hop", case: "1" };
        let always = |value| Some(Spread { median: value, min: value, max: value });
        assert_eq!(table.ratio("a", "b", Metric::CpuUsPerRequest), always(0.5));
        assert_eq!(table.ratio("a", "c", Metric::CpuUsPerRequest), None);
        assert_eq!(table.ratio("a", "b", Metric::P50Us), None);
        assert_eq!(table.added_ratio(("a", "none"), ("b", "none"), Metric::CpuUsPerRequest), always(1.0 / 3.0));
    }

    #[test]
    fn every_peer_has_its_turn_in_a_rotating_order_and_a_failed_one_is_named() {
        let contest = Contest { scenario: "hop", case: "1", peers: vec!["a", "b", "broken"] };
        let plan = Plan { rounds: 2, time: Duration::from_secs(7), connections: vec![] };
        let (mut findings, mut turns) = (Findings::default(), Vec::new());
        findings
            .measure(&contest, &plan, &mut std::io::sink(), |index, time| {
                turns.push((index, time.as_secs()));
                if index == 2 {
                    return Err(Box::<dyn std::error::Error>::from("it\n  stopped"));
                }
                Ok(Values::from([(Metric::P50Us, 1.0)]))
            })
            .unwrap();
        assert_eq!(turns, [(0, 1), (1, 1), (2, 1), (0, 7), (1, 7), (1, 7), (0, 7)]);
        let peers: Vec<_> = findings.samples.iter().map(|sample| (sample.round, sample.peer.as_str())).collect();
        assert_eq!(peers, [(0, "a"), (0, "b"), (1, "b"), (1, "a")]);
        assert_eq!(findings.absent.len(), 1);
        assert_eq!((findings.absent[0].peer.as_str(), findings.absent[0].reason.as_str()), ("broken", "it stopped"));
    }
}
