//! Results as one HTML page that needs nothing else: a table, and how many calls were answered within which time.

use std::fmt::Write as _;

use crate::histogram::HistogramData;
use crate::results::RunResult;

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 320.0;
/// Colours of the results, in turn.
const COLOURS: [&str; 6] = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf"];

const STYLE: &str = "body{font:14px sans-serif;margin:2em;max-width:60em}table{border-collapse:collapse}\
th,td{padding:.3em .8em;text-align:right;border-bottom:1px solid #ccc}td:first-child,th:first-child{text-align:left}\
svg{background:#fafafa;border:1px solid #ccc;margin:1em 0}";

/// The page.
pub fn render(results: &[RunResult]) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Load test</title><style>{STYLE}</style>\n"
    );
    page.push_str("<h1>Load test</h1>\n");
    table(&mut page, results);
    chart(&mut page, results);
    page.push_str("</html>\n");
    page
}

fn table(page: &mut String, results: &[RunResult]) {
    page.push_str("<table><tr><th>Run<th>Started<th>Requested<th>Calls<th>Calls/s<th>Errors<th>Mean ms");
    let percentiles: Vec<f64> = results.first().map_or_else(Vec::new, |result| {
        result.duration_histogram.percentiles.iter().map(|percentile| percentile.percentile).collect()
    });
    for percentile in &percentiles {
        _ = write!(page, "<th>p{percentile} ms");
    }
    for (index, result) in results.iter().enumerate() {
        let (durations, colour) = (&result.duration_histogram, COLOURS[index % COLOURS.len()]);
        let (labels, started) = (escaped(&result.labels), escaped(&result.start_time));
        let requested = escaped(&format!("{} qps, {}", result.requested_qps, result.requested_duration));
        _ = write!(page, "\n<tr><td><b style=\"color:{colour}\">■</b> {labels}<td>{started}<td>{requested}");
        let (count, errors) = (durations.count, result.errors_duration_histogram.count);
        _ = write!(page, "<td>{count}<td>{:.1}<td>{errors}<td>{:.3}", result.actual_qps, durations.avg * 1e3);
        for percentile in &percentiles {
            let value = durations.percentiles.iter().find(|known| known.percentile == *percentile);
            _ = write!(page, "<td>{}", value.map_or_else(String::new, |value| format!("{:.3}", value.value * 1e3)));
        }
    }
    page.push_str("\n</table>\n");
}

/// The share of calls by latency, on a logarithmic axis.
fn chart(page: &mut String, results: &[RunResult]) {
    let all = || results.iter().map(|result| &result.duration_histogram).filter(|data| data.count > 0);
    let (min, max) = (all().map(|data| data.min).reduce(f64::min), all().map(|data| data.max).reduce(f64::max));
    let (Some(min), Some(max)) = (min, max) else { return };
    let axis = Axis { min: min.max(1e-7).log10().floor(), max: max.max(1e-6).log10().ceil() };
    _ = writeln!(page, "<svg viewBox=\"-50 -10 {} {}\" width=\"100%\">", WIDTH + 70.0, HEIGHT + 50.0);
    let mut decade = axis.min;
    while decade <= axis.max {
        let (x, label) = (axis.x(10_f64.powf(decade)), 10_f64.powf(decade + 3.0));
        _ = writeln!(
            page,
            "<path d=\"M{x:.1} 0V{HEIGHT}\" stroke=\"#ddd\"/><text x=\"{x:.1}\" y=\"{}\" font-size=\"12\" text-anchor=\"middle\">{label} ms</text>",
            HEIGHT + 20.0
        );
        decade += 1.0;
    }
    for percent in [0.0, 25.0, 50.0, 75.0, 100.0] {
        let y = height(percent);
        _ = writeln!(
            page,
            "<path d=\"M0 {y:.1}H{WIDTH}\" stroke=\"#ddd\"/><text x=\"-8\" y=\"{:.1}\" font-size=\"12\" text-anchor=\"end\">{percent} %</text>",
            y + 4.0
        );
    }
    for (index, result) in results.iter().enumerate() {
        let (path, colour) = (curve(&axis, &result.duration_histogram), COLOURS[index % COLOURS.len()]);
        _ = writeln!(page, "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>");
    }
    page.push_str("</svg>\n<p>Share of the calls that were answered within a time.</p>\n");
}

struct Axis {
    /// Powers of ten, in seconds.
    min: f64,
    max: f64,
}

impl Axis {
    fn x(&self, seconds: f64) -> f64 {
        (seconds.max(1e-9).log10() - self.min) / (self.max - self.min).max(1.0) * WIDTH
    }
}

fn height(percent: f64) -> f64 {
    HEIGHT * (1.0 - percent / 100.0)
}

fn curve(axis: &Axis, data: &HistogramData) -> String {
    let mut path = String::new();
    for (index, range) in data.data.iter().flatten().enumerate() {
        if index == 0 {
            _ = write!(path, "M{:.1} {:.1}", axis.x(range.start), height(0.0));
        }
        _ = write!(path, "L{:.1} {:.1}", axis.x(range.end), height(range.percent));
    }
    path
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::histogram::{Ranges, Recorder};

    #[test]
    fn a_page_has_all_results_and_nothing_of_others() {
        let mut recorder = Recorder::of_seconds();
        for microseconds in [100, 1_000, 20_000] {
            recorder.record(microseconds * 1_000);
        }
        let data = recorder.export(&Ranges { resolution: 0.001, offset: 0.0 }, &[50.0]);
        let result = |labels: &str| RunResult {
            labels: labels.to_owned(),
            duration_histogram: data.clone(),
            ..RunResult::default()
        };
        let page = render(&[result("<script>alert(1)</script>"), result("second"), RunResult::default()]);
        assert!(page.contains("&lt;script&gt;") && page.contains("second") && page.contains("<td>1.000"), "{page}");
        assert_eq!(page.matches("stroke-width=\"2\"").count(), 3);
        for outside in ["<script", "http:", "https:", "src=", "NaN", "inf"] {
            assert!(!page.contains(outside), "{outside} in {page}");
        }
    }
}
