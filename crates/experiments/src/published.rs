//! The figures of published texts beside those that were measured here.

use evenkeel_measure::{Spread, markdown};

use crate::plan::Experiment;
use crate::record::{Measured, Record};
use crate::table;
use crate::throughput::MATRIX;

/// A published figure, and what is compared with it.
struct Figure {
    what: &'static str,
    theirs: &'static str,
    experiment: Experiment,
    envoy: Option<Value>,
    evenkeel: Option<Value>,
}

/// How a value follows from the rows of a result. Tables are named by their beginning.
#[derive(Clone, Copy)]
enum Value {
    /// A row's median.
    Of { table: &'static str, row: &'static str, key: &'static str },
    /// A row's median divided by another's.
    Ratio { table: &'static str, row: &'static str, base: &'static str, key: &'static str },
    /// A row's median less another's.
    Difference { table: &'static str, row: &'static str, base: &'static str, key: &'static str },
}

const BOTH_ENVOY: &str = "both, Envoy, 2 workers";
const BOTH_EXACT: &str = "both, Envoy, 2 workers, exact balance";
const BOTH_EVENKEEL: &str = "both, Evenkeel, 2 workers";
const GET: &str = "GET, batches";
const STEADY: &str = "Latency at";
const SATURATED: &str = "CPU time";

const fn throughput(row: &'static str, base: &'static str) -> Option<Value> {
    Some(Value::Ratio { table: MATRIX, row, base, key: "requests_per_s" })
}

const fn calls(row: &'static str, base: &'static str) -> Option<Value> {
    Some(Value::Ratio { table: GET, row, base, key: "mean_ms" })
}

const fn evenness(row: &'static str, key: &'static str) -> Option<Value> {
    // The first table is the one without the hot connection.
    Some(Value::Of { table: "", row, key })
}

const FIGURES: &[Figure] = &[
    Figure {
        what: "requests/s with two sidecars (2 workers, mutual TLS, access log) ÷ without",
        theirs: "0.10 (100,000 → 10,000)",
        experiment: Experiment::Throughput,
        envoy: throughput(BOTH_ENVOY, "no sidecar"),
        evenkeel: throughput(BOTH_EVENKEEL, "no sidecar"),
    },
    Figure {
        what: "requests/s with exact balance at both sidecars ÷ without it",
        theirs: "1 (20,000; 80,000 with it at the server's sidecar alone)",
        experiment: Experiment::Throughput,
        envoy: throughput(BOTH_EXACT, BOTH_ENVOY),
        evenkeel: None,
    },
    Figure {
        what: "outbound connections of the busiest worker ÷ mean",
        theirs: "11,500 beside about 1,000 each",
        experiment: Experiment::Balance,
        envoy: evenness("Envoy", "connections_max_mean_client"),
        evenkeel: evenness("Evenkeel", "connections_max_mean_client"),
    },
    Figure {
        what: "… with exact balance",
        theirs: "counted up and at once down again",
        experiment: Experiment::Balance,
        envoy: evenness("Envoy, exact balance", "connections_max_mean_client"),
        evenkeel: None,
    },
    Figure {
        what: "busy time of the busiest worker ÷ mean, inbound",
        theirs: "–",
        experiment: Experiment::Balance,
        envoy: evenness("Envoy", "busy_max_mean_server"),
        evenkeel: evenness("Evenkeel", "busy_max_mean_server"),
    },
    Figure {
        what: "CPU time with statistics ÷ without",
        theirs: "1.14 (Wasm VM)",
        experiment: Experiment::Telemetry,
        envoy: None,
        evenkeel: Some(Value::Ratio {
            table: SATURATED,
            row: "Evenkeel, statistics",
            base: "Evenkeel, statistics off",
            key: "cpu_us",
        }),
    },
    Figure {
        what: "latency that statistics add, p50, ms",
        theirs: "1 (Wasm VM)",
        experiment: Experiment::Telemetry,
        envoy: None,
        evenkeel: Some(Value::Difference {
            table: STEADY,
            row: "Evenkeel, statistics",
            base: "Evenkeel, statistics off",
            key: "p50_ms",
        }),
    },
    Figure {
        what: "mean time of a GET in the mesh ÷ without",
        theirs: "1.25 (plain Kubernetes takes 80 % of it)",
        experiment: Experiment::Latency,
        envoy: calls("Envoy, mesh", "direct"),
        evenkeel: calls("Evenkeel, mesh", "direct"),
    },
    Figure {
        what: "mean time of a GET with authorization ÷ mesh alone",
        theirs: "–",
        experiment: Experiment::Latency,
        envoy: calls("Envoy, mesh with authorization", "Envoy, mesh"),
        evenkeel: calls("Evenkeel, mesh with authorization", "Evenkeel, mesh"),
    },
];

/// The figures that the results have, and the conditions of each result.
pub fn render(records: &[Record]) -> String {
    let rows = FIGURES.iter().filter_map(|figure| {
        let record = records.iter().find(|record| record.experiment == figure.experiment)?;
        let shown = |value: Option<Value>| value.map_or_else(|| "–".to_owned(), |value| value.show(record));
        let command = format!("`evenkeel bench {}`", figure.experiment.name());
        Some(vec![
            figure.what.to_owned(),
            figure.theirs.to_owned(),
            shown(figure.envoy),
            shown(figure.evenkeel),
            command,
        ])
    });
    let heads = ["figure", "published", "Envoy here", "Evenkeel here", "command"];
    let mut text = markdown::table(&heads, &rows.collect::<Vec<_>>());
    for record in records {
        text.push_str(&format!("\n{}\n", table::conditions(record)));
    }
    text
}

impl Value {
    /// The value with the range that the rounds allow; `not measured` where a row is missing.
    fn show(self, record: &Record) -> String {
        let shown = self.of(record).map(|spread| evenkeel_measure::statistics::show(Some(spread), 2));
        shown.unwrap_or_else(|| "not measured".to_owned())
    }

    fn of(self, record: &Record) -> Option<Spread> {
        match self {
            Self::Of { table, row, key } => find(record, table, row)?.spread(key),
            Self::Ratio { table, row, base, key } => {
                by_round(find(record, table, row)?, find(record, table, base)?, key, |value, base| value / base)
            }
            Self::Difference { table, row, base, key } => {
                by_round(find(record, table, row)?, find(record, table, base)?, key, |value, base| value - base)
            }
        }
    }
}

fn find<'a>(record: &'a Record, table: &str, row: &str) -> Option<&'a Measured> {
    record.cells.iter().find(|measured| measured.cell.table.starts_with(table) && measured.cell.row == row)
}

/// Both rows of a round were measured at nearly the same time, so their values are combined inside it.
fn by_round(row: &Measured, base: &Measured, key: &str, of: fn(f64, f64) -> f64) -> Option<Spread> {
    let each = row.samples.iter().filter_map(|sample| {
        let other = base.samples.iter().find(|other| other.round == sample.round)?;
        Some(of(*sample.values.get(key)?, *other.values.get(key)?))
    });
    Spread::of(each.filter(|value| value.is_finite()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metric::Values;
    use crate::plan::Extent;
    use crate::record::{Machine, Sample};
    use crate::{balance, latency, telemetry, throughput};

    /// A result of an experiment in which every row has values that differ with its place.
    fn record(experiment: Experiment) -> Record {
        let extent = Extent { quick: true, full: false, cores: 2 };
        let plan = match experiment {
            Experiment::Latency => latency::plan(extent),
            Experiment::Throughput => throughput::plan(extent),
            Experiment::Balance => balance::plan(extent),
            Experiment::Telemetry => telemetry::plan(extent),
        };
        let mut record = Record::new(plan, Machine::default(), "2026-12-01T00:00:00Z".to_owned());
        for (index, measured) in record.cells.iter_mut().enumerate() {
            for round in 0..2 {
                let value = (index + 1) as f64 * (round + 1) as f64;
                let values = crate::metric::METRICS.iter().map(|metric| (metric.key.to_owned(), value));
                measured.samples.push(Sample { round, values: Values::from_iter(values) });
            }
        }
        record
    }

    #[test]
    fn every_figure_is_found_in_the_results() {
        let all = [Experiment::Latency, Experiment::Throughput, Experiment::Balance, Experiment::Telemetry].map(record);
        let text = render(&all);
        assert!(!text.contains("not measured"), "{text}");
        let rows = text.lines().filter(|line| line.contains("`evenkeel bench")).count();
        assert_eq!(rows, FIGURES.len(), "{text}");
        // Values grow with the place of a row: these are the ninth, the eighth and the first.
        let first = text.lines().find(|line| line.contains("10,000)")).expect("the first figure");
        let cells: Vec<&str> = first.split('|').map(str::trim).collect();
        assert_eq!(cells[3..5], ["9.00", "8.00"], "{first}");
    }

    #[test]
    fn a_missing_row_is_named() {
        let mut without = record(Experiment::Latency);
        without.cells.iter_mut().filter(|row| row.cell.row.starts_with("Envoy")).for_each(|row| row.samples.clear());
        assert_eq!(render(&[without]).matches("not measured").count(), 2);
    }
}
