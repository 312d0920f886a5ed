//! Results as tables of Markdown: medians with the least and the greatest round.

use std::fmt::Write as _;

use evenkeel_measure::markdown;
use evenkeel_measure::statistics::show;

use crate::metric::{METRICS, Metric};
use crate::record::{Measured, Record};

/// The metrics that a table has a value of.
pub fn columns(rows: &[&Measured]) -> Vec<&'static Metric> {
    METRICS.iter().filter(|metric| rows.iter().any(|row| !row.series(metric.key).is_empty())).collect()
}

/// The whole result.
pub fn render(record: &Record) -> String {
    let mut text = format!("{}\n", conditions(record));
    for table in record.tables() {
        let _ = write!(text, "\n{table}\n\n{}", one(record, table));
    }
    for note in absences(record).iter().chain(&record.notes) {
        let _ = write!(text, "\n{note}\n");
    }
    text
}

/// One line about machine, date and programs.
pub fn conditions(record: &Record) -> String {
    let machine = &record.machine;
    let envoy = machine.envoy.as_ref().map_or_else(|| "no Envoy".to_owned(), |version| format!("Envoy {version}"));
    format!(
        "{} of {}: {} rounds of {} s; {}, {} cores, kernel {}, load average {}; {}; {envoy}",
        record.experiment.name(),
        record.date,
        record.rounds,
        record.seconds,
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.load_average,
        machine.evenkeel
    )
}

fn one(record: &Record, table: &str) -> String {
    let rows: Vec<&Measured> = record.rows(table).filter(|row| !row.samples.is_empty()).collect();
    let shown = record.experiment.columns();
    let columns: Vec<_> = columns(&rows).into_iter().filter(|metric| shown.contains(&metric.key)).collect();
    let heads: Vec<&str> = std::iter::once("").chain(columns.iter().map(|metric| metric.head)).collect();
    let cells = |row: &&Measured| {
        let values = columns.iter().map(|metric| show(row.spread(metric.key), metric.digits));
        std::iter::once(row.cell.row.clone()).chain(values).collect()
    };
    markdown::table(&heads, &rows.iter().map(cells).collect::<Vec<_>>())
}

/// Why cells are missing, each reason once.
pub fn absences(record: &Record) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for measured in &record.cells {
        let Some(reason) = &measured.absent else { continue };
        match reasons.iter_mut().find(|(known, _)| known == reason) {
            Some((_, rows)) => rows.push(&measured.cell.row),
            None => reasons.push((reason, vec![&measured.cell.row])),
        }
    }
    let line = |(reason, rows): (&str, Vec<&str>)| format!("Not measured: {}: {reason}", rows.join("; "));
    reasons.into_iter().map(line).collect()
}
