//! `make bench-control`: runs every scenario that the control plane's bars need, and says which bars it meets.
//!
//! The verdicts are printed with each run. No test asserts them, because measurements on shared machines vary too much.

mod growth;
mod list;
mod plan;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, UNIX_EPOCH};

use clap::Args;
use evenkeel_measure::{Bar, Limit, Spread};
use serde::{Deserialize, Serialize};

pub use growth::growth;
pub use list::{MB_PER_MIB, PROMISES, RunResults, added};
pub use plan::{GROWTH_FULL, GROWTH_LEARNED, RUNS, Run};

use list::Promise;

use crate::error::LabError;
use crate::figures;
use crate::output::{json, write_file};
use crate::progress::Progress;
use crate::results::{Machine, round};

/// The name of these runs in results.
const SCENARIO: &str = "control plane";

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

    /// Directory with etcd and kube-apiserver, for the runs through an API server; without it they are left out.
    #[arg(long, value_name = "DIR")]
    pub kubernetes: Option<PathBuf>,

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
    pub bars: Vec<Bar>,
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
    let programs = options.kubernetes.as_deref();
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
        if run.through_api_server && programs.is_none() {
            say(format!("{}: left out, it needs --kubernetes DIR\n", run.name))?;
            continue;
        }
        let (begin, progress) = (Instant::now(), Progress::new(run.name));
        let result = run.scenario.run(&run.options(options.divide, programs), program.clone(), progress.clone()).await;
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
        summary.bars = bars(&played);
        write_file(&options.out.join("control.json"), &json(&summary)?)?;
    }
    summary.bars = bars(&played);
    write_file(&options.out.join("control.json"), &json(&summary)?)?;
    write_file(&options.out.join("control-growth.svg"), &growth(&played).svg())?;
    say(format!("\n{}", evenkeel_measure::table(&summary.bars)))?;
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

/// Holds every promise against the results.
fn bars(played: &RunResults) -> Vec<Bar> {
    let bar = |promise: &Promise| Bar {
        scenario: SCENARIO.to_owned(),
        what: promise.what.to_owned(),
        unit: promise.unit.to_owned(),
        limit: promise.limit.map(Limit::AtMost),
        measured: (promise.measure)(played).map(round).map(Spread::one),
    };
    PROMISES.iter().map(bar).collect()
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
