//! `evenkeel-lab report`: writes the results of `evenkeel-lab bars` as the tables and figures of docs/scale.md.

use std::fmt::Write as _;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;

use crate::bars::{self, GROWTH_FULL, GROWTH_LEARNED, MB_PER_MIB, RunResults, Summary, added};
use crate::error::LabError;
use crate::figures;
use crate::output::write_file;
use crate::results::Results;
use crate::table::bytes;
use evenkeel_measure::statistics::{number, plane};

/// Flags of `evenkeel-lab report`.
#[derive(Debug, Clone, Args)]
pub struct ReportOptions {
    /// Directory that `evenkeel-lab bars` wrote.
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    pub from: PathBuf,

    /// The page whose marked parts are replaced; figures go into a directory of the same name beside it.
    #[arg(long, value_name = "FILE", default_value = "docs/scale.md")]
    pub page: PathBuf,
}

/// The runs whose figures the page shows.
const FIGURES: [&str; 4] = ["full", "route-ready", "restart", "storm"];

/// Services and sidecars of the mesh for which the cost model predicts.
const PREDICTED: (f64, f64) = (10_000.0, 10_000.0);

/// Writes the page and its figures.
pub fn run(options: &ReportOptions, out: &mut dyn Write) -> Result<(), LabError> {
    let (summary, played) = bars::read(&options.from)?;
    let read = std::fs::read_to_string(&options.page);
    let mut page = read.map_err(LabError::io(format!("reading {}", options.page.display())))?;
    for (name, content) in [
        ("machine", machine(&summary)),
        ("bars", evenkeel_measure::table(&summary.bars)),
        ("growth", growth_table(&played)),
        ("model", model(&played)),
        ("runs", run_table(&played)),
    ] {
        page = replace(&page, name, &content).ok_or_else(|| {
            LabError::Usage(format!("{}: no lines `{}` and `{}`", options.page.display(), begin(name), end(name)))
        })?;
    }
    let folder = options.page.with_extension("");
    std::fs::create_dir_all(&folder).map_err(LabError::io(format!("creating {}", folder.display())))?;
    write_file(&folder.join("growth.svg"), &bars::growth(&played).svg())?;
    for (name, results) in FIGURES.iter().filter_map(|name| Some((name, played.get(*name)?))) {
        write_file(&folder.join(format!("{name}.svg")), &figures::of_run(results).svg())?;
    }
    write_file(&options.page, &page)?;
    writeln!(out, "written: {}, {}/", options.page.display(), folder.display()).map_err(LabError::io("printing"))
}

fn begin(name: &str) -> String {
    format!("<!-- {name}: written by `evenkeel-lab report` -->")
}

fn end(name: &str) -> String {
    format!("<!-- end of {name} -->")
}

/// Replaces the text between the lines that mark the part with `content`.
fn replace(page: &str, name: &str, content: &str) -> Option<String> {
    let (begin, end) = (begin(name), end(name));
    let from = page.find(&begin)? + begin.len();
    let to = from + page.get(from..)?.find(&end)?;
    Some(format!("{}\n\n{}\n\n{}", page.get(..from)?, content.trim(), page.get(to..)?))
}

fn machine(summary: &Summary) -> String {
    let machine = &summary.machine;
    format!(
        "{} with {} cores, Linux {}, load average {} at the start; evenkeel {}.",
        machine.cpu, machine.cores, machine.kernel, machine.load, summary.program
    )
}

fn growth_table(played: &RunResults) -> String {
    let mut out = String::from(
        "| scope | services | sidecars | last ACK p50 / p99 / max, ms | CPU per change, ms | sent per change | resident, MB | \
         start to all configured, ms |\n| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    let runs = GROWTH_FULL.iter().map(|name| ("full", name)).chain(GROWTH_LEARNED.iter().map(|name| ("learned", name)));
    for (scope, name, results) in runs.filter_map(|(scope, name)| Some((scope, name, played.get(*name)?))) {
        let cost = &results.cost;
        let ack = added(played, name).map(|s| format!("{} / {} / {}", number(s.p50), number(s.p99), number(s.max)));
        let _ = writeln!(
            out,
            "| {scope} | {} | {} | {} | {} | {} | {} | {} |",
            results.mesh.services,
            results.mesh.proxies,
            ack.unwrap_or_default(),
            cost.cpu_ms_per_change.map_or("–".to_owned(), number),
            bytes(cost.sidecar_bytes_per_change + cost.gateway_bytes_per_change),
            resident_mb(results).map_or("–".to_owned(), number),
            number(results.start.all_configured_ms),
        );
    }
    out
}

fn resident_mb(results: &Results) -> Option<f64> {
    Some(results.cost.server?.resident_mib * MB_PER_MIB)
}

/// The cost model of a change: a constant part, a part per service of the mesh and a part per sidecar.
fn model(played: &RunResults) -> String {
    let mut out = String::from(
        "| scope | what | fixed | per 1,000 services | per 1,000 sidecars | for 10,000 services and 10,000 sidecars |\n\
         | --- | --- | ---: | ---: | ---: | ---: |\n",
    );
    type Measure = fn(&Results) -> Option<f64>;
    let rows: [(&str, &str, Measure); 3] = [
        ("CPU per change", "ms", |results| results.cost.cpu_ms_per_change),
        ("sent per change", "KB", |results| {
            Some((results.cost.sidecar_bytes_per_change + results.cost.gateway_bytes_per_change) / 1000.0)
        }),
        ("resident memory", "MB", resident_mb),
    ];
    for (scope, runs) in [("full", &GROWTH_FULL[..]), ("learned", &GROWTH_LEARNED[..])] {
        for (what, unit, measure) in rows {
            let point = |name: &&str| {
                let results = played.get(*name)?;
                Some((results.mesh.services as f64, results.mesh.proxies as f64, measure(results)?))
            };
            let points: Vec<_> = runs.iter().filter_map(point).collect();
            let Some([fixed, service, sidecar]) = plane(&points) else { continue };
            let predicted = fixed + service * PREDICTED.0 + sidecar * PREDICTED.1;
            let _ = writeln!(
                out,
                "| {scope} | {what}, {unit} | {} | {} | {} | {} |",
                number(fixed),
                number(service * 1000.0),
                number(sidecar * 1000.0),
                number(predicted)
            );
        }
    }
    out
}

fn run_table(played: &RunResults) -> String {
    let mut out = String::from(
        "| run | services | sidecars | changes | last ACK p50 / p99 / max, ms | CPU, s | resident, MB |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | ---: |\n",
    );
    for (name, results) in bars::RUNS.iter().filter_map(|run| Some((run.name, played.get(run.name)?))) {
        let acks = results.changes.iter().filter_map(|change| Some(change.ack_ms?.max));
        let ack = evenkeel_measure::Distribution::of(acks);
        let _ = writeln!(
            out,
            "| `{name}` | {} | {} | {} | {} | {} | {} |",
            results.mesh.services,
            results.mesh.proxies,
            results.cost.changes,
            ack.map_or("–".to_owned(), |s| format!("{} / {} / {}", number(s.p50), number(s.p99), number(s.max))),
            results.cost.cpu_s.map_or("–".to_owned(), number),
            resident_mb(results).map_or("–".to_owned(), number),
        );
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_marked_part_is_written_anew() {
        let page = format!("before\n\n{}\nold\n{}\n\nafter\n", begin("bars"), end("bars"));
        let once = replace(&page, "bars", "new\n").expect("the marks are there");
        assert_eq!(once, format!("before\n\n{}\n\nnew\n\n{}\n\nafter\n", begin("bars"), end("bars")));
        assert_eq!(replace(&once, "bars", "new").as_deref(), Some(once.as_str()));
        assert_eq!(replace(&page, "growth", "new"), None);
    }

    #[test]
    fn the_page_has_all_marks() {
        let page = include_str!("../../../docs/scale.md");
        for name in ["machine", "bars", "growth", "model", "runs"] {
            assert!(replace(page, name, "").is_some(), "docs/scale.md has no part {name}");
        }
    }
}
