//! Interleaved rounds, and what is made of their samples.

use std::io::Write;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::peers::{Field, Peer};

/// Load before the first round, so that no peer is measured cold.
const WARM_UP: Duration = Duration::from_secs(1);

/// How much is measured.
pub struct Plan {
    /// Rounds per table.
    pub rounds: usize,
    /// Load per peer and round.
    pub time: Duration,
    /// Connection counts, one table each.
    pub connections: Vec<usize>,
}

/// One peer under load once.
#[derive(Clone)]
pub struct Sample {
    /// The peer's name.
    pub peer: &'static str,
    /// Client connections.
    pub connections: usize,
    /// Which round.
    pub round: usize,
    /// CPU time of all its processes per request, in microseconds; zero without a proxy.
    pub cpu_micros: f64,
    /// Requests per second.
    pub rate: f64,
    /// Median latency in microseconds.
    pub p50_micros: f64,
    /// 99th percentile of the latency in microseconds.
    pub p99_micros: f64,
    /// Resident memory of all its processes after the run, in KiB.
    pub resident_kib: u64,
}

impl Sample {
    /// The sample as JSON.
    pub fn json(&self) -> Value {
        json!({
            "peer": self.peer, "connections": self.connections, "round": self.round,
            "cpu_us_per_request": self.cpu_micros, "requests_per_second": self.rate,
            "p50_us": self.p50_micros, "p99_us": self.p99_micros, "resident_kib": self.resident_kib,
        })
    }
}

/// Measures every peer of `field` once per round and connection count; the order rotates from round to round.
pub fn rounds(table: &str, plan: &Plan, field: &Field, progress: &mut impl Write) -> Result<Vec<Sample>> {
    let mut samples = Vec::new();
    for &connections in &plan.connections {
        for peer in &field.peers {
            field.load.run(peer.entry, connections, WARM_UP).with_context(|| peer.name)?;
        }
        for round in 0..plan.rounds {
            write!(progress, "{table}, {connections} connections, round {} of {}:", round + 1, plan.rounds)?;
            for index in 0..field.peers.len() {
                let peer = &field.peers[(index + round) % field.peers.len()];
                let sample = once(field, peer, connections, round, plan.time).with_context(|| peer.name)?;
                write!(progress, "  {} {:.1} µs", sample.peer, sample.cpu_micros)?;
                progress.flush()?;
                samples.push(sample);
            }
            writeln!(progress)?;
        }
    }
    Ok(samples)
}

fn once(field: &Field, peer: &Peer, connections: usize, round: usize, time: Duration) -> Result<Sample> {
    let cpu = || peer.processes.iter().map(|process| process.cpu()).sum::<Result<Duration>>();
    let before = cpu()?;
    let summary = field.load.run(peer.entry, connections, time)?;
    let spent = cpu()?.saturating_sub(before);
    let resident = peer.processes.iter().map(|process| process.resident_kib()).sum::<Result<u64>>()?;
    Ok(Sample {
        peer: peer.name,
        connections,
        round,
        cpu_micros: spent.as_secs_f64() * 1e6 / summary.requests as f64,
        rate: summary.requests as f64 / summary.time.as_secs_f64(),
        p50_micros: summary.p50.as_secs_f64() * 1e6,
        p99_micros: summary.p99.as_secs_f64() * 1e6,
        resident_kib: resident,
    })
}

/// Median, least and greatest of a series.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spread {
    /// Median; of an even number of values, the mean of the middle two.
    pub median: f64,
    /// Least.
    pub min: f64,
    /// Greatest.
    pub max: f64,
}

impl Spread {
    /// `None` for no values.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        let median = if values.len() % 2 == 1 { upper } else { (upper + values.get(middle - 1)?) / 2.0 };
        Some(Self { median, min, max })
    }
}

/// `of` for one peer and connection count, over the rounds.
pub fn spread(samples: &[Sample], peer: &str, connections: usize, of: fn(&Sample) -> f64) -> Option<Spread> {
    Spread::of(series(samples, peer, connections).map(of))
}

/// `of` of one peer divided by that of another, formed inside each round.
pub fn ratio(
    samples: &[Sample],
    (peer, other): (&str, &str),
    connections: usize,
    of: fn(&Sample) -> f64,
) -> Option<Spread> {
    let ratios = series(samples, peer, connections).filter_map(|sample| {
        let same_round = series(samples, other, connections).find(|base| base.round == sample.round)?;
        Some(of(sample) / of(same_round)).filter(|ratio| ratio.is_finite())
    });
    Spread::of(ratios)
}

fn series<'a>(samples: &'a [Sample], peer: &'a str, connections: usize) -> impl Iterator<Item = &'a Sample> {
    samples.iter().filter(move |sample| sample.peer == peer && sample.connections == connections)
}

#[cfg(test)]
mod tests {
    use super::{Sample, Spread, ratio};

    #[test]
    fn median_of_odd_even_and_none() {
        let check = |values: &[f64], median: Option<f64>| {
            assert_eq!(Spread::of(values.iter().copied()).map(|spread| spread.median), median, "{values:?}");
        };
        check(&[], None);
        check(&[3.0], Some(3.0));
        check(&[9.0, 1.0, 2.0], Some(2.0));
        check(&[4.0, 1.0, 2.0, 9.0], Some(3.0));
    }

    #[test]
    fn ratios_are_formed_inside_a_round() {
        let sample = |peer, round, cpu_micros| Sample {
            peer,
            connections: 1,
            round,
            cpu_micros,
            rate: 1.0,
            p50_micros: 1.0,
            p99_micros: 1.0,
            resident_kib: 0,
        };
        // The second round ran on a machine half as fast: the ratio is the same.
        let samples = [sample("a", 0, 10.0), sample("b", 0, 20.0), sample("a", 1, 20.0), sample("b", 1, 40.0)];
        let half = Spread { median: 0.5, min: 0.5, max: 0.5 };
        assert_eq!(ratio(&samples, ("a", "b"), 1, |sample| sample.cpu_micros), Some(half));
        assert_eq!(ratio(&samples, ("a", "c"), 1, |sample| sample.cpu_micros), None);
    }
}
