//! Results as charts, and as one HTML page that needs nothing else.

use std::fmt::Write as _;

use evenkeel_measure::chart::{BarChart, BarRow};

use crate::metric;
use crate::plan::Experiment;
use crate::record::{Measured, Record};
use crate::{scaling, table};

const STYLE: &str = "body{font:14px system-ui,sans-serif;margin:2em;max-width:80em}table{border-collapse:collapse;margin:1em 0}\
th,td{padding:.3em .7em;text-align:right;border-bottom:1px solid #ccc;vertical-align:top}td:first-child,th:first-child\
{text-align:left;white-space:nowrap}svg{border:1px solid #ddd;margin:1em 0;max-width:100%;height:auto}small{color:#666}";

/// The metrics that charts of an experiment show.
fn drawn(experiment: Experiment) -> &'static [&'static str] {
    match experiment {
        Experiment::Latency => &["mean_ms", "p99_ms"],
        Experiment::Throughput => &["requests_per_s", "cpu_us"],
        Experiment::Balance => &["connections_max_mean_client", "connections_max_mean_server", "busy_max_mean_server"],
        Experiment::Telemetry => &["cpu_us", "p50_ms"],
    }
}

/// The proxies that a label names; their bars have the same colour in all charts.
const PROXIES: [&str; 2] = ["Evenkeel", "Envoy"];
/// The colour of calls without a proxy.
const NO_PROXY: usize = 5;

/// The charts of a table.
fn charts(record: &Record, table: &str) -> Vec<BarChart> {
    let keys = drawn(record.experiment).iter();
    let metrics = keys.filter_map(|key| metric::by_key(key));
    let group = |label: &str| PROXIES.iter().position(|name| label.contains(name)).unwrap_or(NO_PROXY);
    let one = |metric: &'static metric::Metric| {
        let row = |row: &Measured| {
            let label = row.cell.row.clone();
            Some(BarRow { group: group(&label), label, spread: row.spread(metric.key)? })
        };
        BarChart {
            title: table.to_owned(),
            unit: metric.head.to_owned(),
            digits: metric.digits,
            rows: record.rows(table).filter_map(row).collect(),
        }
    };
    metrics.map(one).filter(|chart| !chart.rows.is_empty()).collect()
}

/// All charts below each other.
pub fn svg(record: &Record) -> String {
    let all: Vec<BarChart> = record.tables().into_iter().flat_map(|table| charts(record, table)).collect();
    BarChart::all(&all)
}

/// The page of one or several results.
pub fn html(records: &[Record]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>evenkeel bench</title><style>{STYLE}</style>\n\
         <h1>evenkeel bench</h1>\n"
    );
    for record in records {
        let _ = writeln!(
            page,
            "<h2>{}</h2>\n<p><small>{}</small></p>",
            record.experiment.name(),
            escaped(&table::conditions(record))
        );
        for name in record.tables() {
            let _ = writeln!(page, "<h3>{}</h3>", escaped(name));
            rows(&mut page, record, name);
            for chart in charts(record, name) {
                page.push_str(&chart.svg());
            }
        }
        let notes = table::absences(record).into_iter().chain(record.notes.clone()).chain(scaling::lines(record));
        for note in notes {
            let _ = writeln!(page, "<p>{}</p>", escaped(&note));
        }
    }
    page.push_str("</html>\n");
    page
}

fn rows(page: &mut String, record: &Record, name: &str) {
    let rows: Vec<&Measured> = record.rows(name).filter(|row| !row.samples.is_empty()).collect();
    let columns = table::columns(&rows);
    page.push_str("<table><tr><th>");
    for metric in &columns {
        let _ = write!(page, "<th>{}", escaped(metric.head));
    }
    for row in &rows {
        let _ = write!(page, "\n<tr><td>{}", escaped(&row.cell.row));
        for metric in &columns {
            let digits = metric.digits;
            let cell = row.spread(metric.key).map_or_else(String::new, |spread| {
                let (median, min, max) = (spread.median, spread.min, spread.max);
                format!("{median:.digits$}<br><small>{min:.digits$}–{max:.digits$}</small>")
            });
            let _ = write!(page, "<td>{cell}");
        }
    }
    page.push_str("\n</table>\n");
}

/// Text inside an element or an attribute.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use evenkeel_testkit::golden::check as golden;

    use super::*;

    /// A result of two rounds, of which Envoy's rows are partly missing.
    fn recorded() -> Record {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/throughput.json");
        Record::read(&file).expect("a recorded result")
    }

    #[test]
    fn a_recorded_result_is_drawn_as_it_was() {
        let record = recorded();
        let predictions: String = scaling::lines(&record).into_iter().map(|line| format!("\n{line}\n")).collect();
        golden("tests/golden/throughput.txt", &(table::render(&record) + &predictions));
        golden("tests/golden/throughput.html", &html(std::slice::from_ref(&record)));
        golden("tests/golden/throughput.svg", &svg(&record));
    }

    #[test]
    fn a_page_needs_nothing_else() {
        let page = html(&[recorded()]);
        for outside in ["<script", "<link", "src=", "@import", "NaN", "inf<"] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
        // The name of SVG's namespace is no address that a browser reads.
        assert_eq!(page.matches("http").count(), page.matches("http://www.w3.org").count());
    }
}
