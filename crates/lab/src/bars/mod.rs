//! `make bench-control`: runs every scenario that the control plane's bars need, and says which bars it meets.
//!
//! The verdicts are printed with each run. No test asserts them, because measurements on shared machines vary too much.

mod growth;
mod list;
mod plan;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use evenkeel_measure::Limit;
use serde::{Deserialize, Serialize};

pub use growth::growth;
pub use list::{BARS, Bar, MB_PER_MIB, RunResults, added};
pub use plan::{GROWTH_FULL, GROWTH_LEARNED, RUNS, Run};

use crate::error::LabError;
use crate::figures;
use crate::output::{json, write_file};
use crate::progress::Progress;
use crate::results::{Machine, round};

/// Flags of `evenkeel-lab bars`.
#[derive(Debug, Clone, Args)]
pub struct BarsOptions {
    /// Only these runs, such as full,storm; see --list.
    #[arg(long, value_name = "RUN", value_delimiter = ',')]
    pub only: Vec<String>,

    /// Skip the runs that an interrupted invocation of the same program has finished.
    #[arg(long)]
    pub resume: bool,

    /// List the runs and exit.
    #[arg(long)]
    pub list: bool,

    /// Binary to measure [default: this one].
    #[arg(long, value_name = "FILE")]
    pub program: Option<PathBuf>,

    /// Divide the numbers of services and proxies by this, for a trial run. The bars do not apply then.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub divide: u32,

    /// Directory for control.json, and one JSON file and one figure per run.
    #[arg(long, value_name = "DIR", default_value = "bench-results")]
    pub out: PathBuf,
}

/// `control.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Summary {
    /// The machine that it was measured on.
    pub machine: Machine,
    /// The build that was measured.
    pub program: String,
    /// Runs that succeeded; their results are in `control/NAME.json`.
    pub complete: Vec<String>,
    /// Runs that failed, with the reason.
    pub failed: BTreeMap<String, String>,
    /// The bars.
    pub bars: Vec<Verdict>,
}

/// One bar and its measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The quantity that is compared with the limit.
    pub what: String,
    /// Its unit.
    pub unit: String,
    /// The limit; `None` if the value is only recorded.
    pub limit: Option<f64>,
    /// The measured value; `None` if its run is missing.
    pub measured: Option<f64>,
    /// `pass`, `MISS`, `recorded` or `not measured`.
    pub verdict: String,
}

impl Verdict {
    fn of(bar: &Bar, played: &RunResults) -> Self {
        let measured = (bar.measure)(played).map(round);
        let verdict = evenkeel_measure::Verdict::of(measured, bar.limit.map(Limit::AtMost));
        Self {
            what: bar.what.to_owned(),
            unit: bar.unit.to_owned(),
            limit: bar.limit,
            measured,
            verdict: verdict.as_str().to_owned(),
        }
    }

    /// The measured value divided by the limit.
    pub fn ratio(&self) -> Option<f64> {
        self.measured.zip(self.limit).filter(|(_, limit)| *limit > 0.0).map(|(value, limit)| value / limit)
    }
}

/// Executes the runs that the options select. `program` is this binary.
pub async fn run(options: &BarsOptions, program: PathBuf, out: &mut dyn Write) -> Result<(), LabError> {
    let mut say =
        |text: String| out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(LabError::io("printing"));
    if options.list {
        return RUNS.iter().try_for_each(|run| say(format!("{:18} {}\n", run.name, run.title)));
    }
    let runs = chosen(&options.only)?;
    let program = options.program.clone().unwrap_or(program);
    let folder = options.out.join("control");
    std::fs::create_dir_all(&folder).map_err(LabError::io(format!("creating {}", folder.display())))?;
    let mut summary = Summary {
        machine: Machine::here(),
        program: identity(&program, options.divide),
        complete: Vec::new(),
        failed: BTreeMap::new(),
        bars: Vec::new(),
    };
    let mut played = RunResults::new();
    if options.resume {
        played = resume(&options.out, &summary.program)?;
        summary.complete = played.keys().cloned().collect();
    }
    for run in runs {
        if played.contains_key(run.name) {
            say(format!("{}: completed by an earlier run\n", run.name))?;
            continue;
        }
        let (begin, progress) = (Instant::now(), Progress::new(run.name));
        let result = run.scenario.run(&run.options(options.divide), program.clone(), progress.clone()).await;
        progress.end();
        match result {
            Ok(results) => {
                write_file(&folder.join(format!("{}.json", run.name)), &json(&results)?)?;
                write_file(&folder.join(format!("{}.svg", run.name)), &figures::of_run(&results).svg())?;
                played.insert(run.name.to_owned(), results);
                summary.complete.push(run.name.to_owned());
                say(format!("{}: {:.0} s\n", run.name, begin.elapsed().as_secs_f64()))?;
            }
            // If a run fails, the results of the others are kept.
            Err(error) => {
                say(format!("{} failed: {error}\n", run.name))?;
                summary.failed.insert(run.name.to_owned(), error.to_string());
            }
        }
        summary.bars = verdicts(&played);
        write_file(&options.out.join("control.json"), &json(&summary)?)?;
    }
    summary.bars = verdicts(&played);
    write_file(&options.out.join("control.json"), &json(&summary)?)?;
    write_file(&options.out.join("control-growth.svg"), &growth(&played).svg())?;
    say(format!("\n{}", table(&summary.bars)))?;
    say(format!("\nwritten: {0}/control.json, {0}/control-growth.svg, {0}/control/\n", options.out.display()))?;
    if summary.failed.is_empty() {
        Ok(())
    } else {
        let names: Vec<&str> = summary.failed.keys().map(String::as_str).collect();
        Err(LabError::Usage(format!("failed: {}; --resume repeats only what is missing", names.join(", "))))
    }
}

fn chosen(only: &[String]) -> Result<Vec<&'static Run>, LabError> {
    let names: Vec<&str> = RUNS.iter().map(|run| run.name).collect();
    if let Some(unknown) = only.iter().find(|only| !names.contains(&only.as_str())) {
        return Err(LabError::Usage(format!("no run is called {unknown}: there are {}", names.join(", "))));
    }
    Ok(RUNS.iter().filter(|run| only.is_empty() || only.iter().any(|only| only == run.name)).collect())
}

/// Compares the results with the bars.
pub fn verdicts(played: &RunResults) -> Vec<Verdict> {
    BARS.iter().map(|bar| Verdict::of(bar, played)).collect()
}

/// Reads the results that an earlier invocation of the same program wrote to the directory.
fn resume(out: &Path, program: &str) -> Result<RunResults, LabError> {
    let Ok((summary, played)) = read(out) else { return Ok(RunResults::new()) };
    if summary.program != program {
        return Err(LabError::Usage(format!(
            "{} is of another program ({}): leave --resume away, or choose another --out",
            out.display(),
            summary.program
        )));
    }
    Ok(played)
}

/// Reads the results of a finished invocation from the directory.
pub fn read(out: &Path) -> Result<(Summary, RunResults), LabError> {
    let summary: Summary = read_json(&out.join("control.json"))?;
    let read = |name: &String| Ok((name.clone(), read_json(&out.join("control").join(format!("{name}.json")))?));
    let played = summary.complete.iter().map(read).collect::<Result<_, LabError>>()?;
    Ok((summary, played))
}

fn read_json<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, LabError> {
    let text = std::fs::read_to_string(path).map_err(LabError::io(format!("reading {}", path.display())))?;
    serde_json::from_str(&text).map_err(|error| LabError::io(format!("reading {}", path.display()))(error.into()))
}

/// Identifies a build and a size of run.
fn identity(program: &Path, divide: u32) -> String {
    let size = program.metadata().map_or(0, |data| data.len());
    let built = program.metadata().and_then(|data| data.modified()).ok();
    let built = built.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(Duration::ZERO, |d| d).as_secs();
    let divided = if divide > 1 { format!(", sizes divided by {divide}") } else { String::new() };
    format!("{} ({size} bytes, built at {built}){divided}", env!("CARGO_PKG_VERSION"))
}

fn table(bars: &[Verdict]) -> String {
    let mut out = String::new();
    let width = bars.iter().map(|bar| bar.what.chars().count()).max().unwrap_or_default();
    let _ = writeln!(out, "{:width$} {:>10} {:>10} {:>6}", "", "measured", "bar", "÷");
    for bar in bars {
        let measured = bar.measured.map_or("–".to_owned(), number);
        let limit = bar.limit.map_or("–".to_owned(), number);
        let ratio = bar.ratio().map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        let _ =
            writeln!(out, "{:width$} {measured:>10} {limit:>10} {ratio:>6}  {:3} {}", bar.what, bar.unit, bar.verdict);
    }
    out
}

/// Formats a number with its significant digits only.
pub fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.2}M", value / 1e6),
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_kept_missed_or_not_measured() {
        let check = |limit, measure: fn(&RunResults) -> Option<f64>, expected: &str, ratio: Option<f64>| {
            let bar = Bar { what: "x", unit: "ms", limit, measure };
            let verdict = Verdict::of(&bar, &RunResults::new());
            assert_eq!((verdict.verdict.as_str(), verdict.ratio()), (expected, ratio));
        };
        check(Some(10.0), |_| Some(5.0), "pass", Some(0.5));
        check(Some(10.0), |_| Some(10.0), "pass", Some(1.0));
        check(Some(10.0), |_| Some(20.0), "MISS", Some(2.0));
        check(Some(0.0), |_| Some(0.0), "pass", None);
        check(Some(0.0), |_| Some(1.0), "MISS", None);
        check(None, |_| Some(1.0), "recorded", None);
        check(Some(1.0), |_| None, "not measured", None);
    }

    #[test]
    fn every_name_is_of_one_run() {
        let mut names: Vec<&str> = RUNS.iter().map(|run| run.name).collect();
        names.sort_unstable();
        let count = names.len();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(chosen(&["storm".to_owned()]).is_ok_and(|runs| runs.len() == 1));
        assert!(chosen(&["nothing".to_owned()]).is_err());
    }

    #[test]
    fn numbers_are_short() {
        let check = |value, expected| assert_eq!(number(value), expected);
        check(0.0, "0");
        check(0.126, "0.13");
        check(12.34, "12.3");
        check(1234.5, "1234");
        check(12_345_678.0, "12.35M");
    }
}
