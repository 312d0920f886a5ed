//! `evenkeel bench`: its flags, and what they lead to.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};

use crate::error::BenchError;
use crate::interrupt::Interrupt;
use crate::machine;
use crate::manifests::Programs;
use crate::plan::{Experiment, Extent, Plan};
use crate::record::{Record, replace};
use crate::run::{Session, find_envoy};
use crate::{balance, compare, latency, page, published, scaling, table, telemetry, testbed, throughput};

/// Examples, after the help of `evenkeel bench`.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel bench latency --quick
  evenkeel bench throughput --envoy /usr/local/bin/envoy --html throughput.html
  evenkeel bench latency --resume latency.json
  evenkeel bench compare before.json after.json

Each experiment runs its own mesh with `evenkeel up`, which needs root or user namespaces, `ip` and `nft`.";

/// The experiments, and what can be done with their results.
#[derive(Debug, Clone, Subcommand)]
pub enum BenchCommand {
    /// Added latency: calls without a mesh, with it, and with authorization; chains of up to 8 services
    Latency(BenchArguments),
    /// Requests/s and CPU time per request by sidecars, workers, balance and features
    Throughput(BenchArguments),
    /// Connections, requests and busy time of each worker, with many connections and a hot one among them
    Balance(BenchArguments),
    /// The cost of statistics: CPU time per request and latency
    Telemetry(BenchArguments),
    /// Say what differs between two results beyond noise; the exit status is 1 if something does
    Compare {
        /// A result.
        before: PathBuf,
        /// Another result of the same experiment.
        after: PathBuf,
    },
    /// Print results again, or draw them
    Report {
        /// The results.
        #[arg(required = true)]
        results: Vec<PathBuf>,
        /// Write a page with tables and charts, which needs nothing else, to this file
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
        /// Print published figures beside those of the results, instead of their tables
        #[arg(long)]
        published: bool,
    },
}

/// The flags that all experiments share.
#[derive(Debug, Clone, Args)]
pub struct BenchArguments {
    /// Measure fewer cells, each for a shorter time
    #[arg(long)]
    quick: bool,
    /// Measure every combination of features
    #[arg(long, conflicts_with = "quick")]
    full: bool,
    /// Rounds; in each, every cell is measured once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: Option<u16>,
    /// Seconds of each measurement
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<f64>,
    /// Only cells whose table or row contains this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// The `evenkeel` to measure, which also sends and answers [default: this one]
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// The stock Envoy to compare with [default: `envoy` on PATH]
    #[arg(long, value_name = "FILE")]
    envoy: Option<PathBuf>,
    /// The file for the result, which is written after each measurement [default: bench-EXPERIMENT.json]
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Go on with an interrupted result
    #[arg(long, value_name = "FILE", conflicts_with_all = ["json", "quick", "full", "rounds", "seconds", "only"])]
    resume: Option<PathBuf>,
    /// Also write a page with tables and charts, which needs nothing else, to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Also draw the charts into this file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Format of the result on standard output
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    output: Output,
}

/// A format of results on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// Tables of Markdown.
    Table,
    /// JSON, as in the file.
    Json,
}

fn seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    value.ok_or_else(|| format!("`{text}` is no number of seconds from 0.1 to 3600"))
}

/// Runs a subcommand and returns the exit status.
///
/// # Errors
/// It could not be run; what was measured is in the result's file.
pub fn run(command: &BenchCommand, out: &mut dyn Write) -> Result<u8, BenchError> {
    match command {
        BenchCommand::Latency(arguments) => experiment(Experiment::Latency, arguments, out),
        BenchCommand::Throughput(arguments) => experiment(Experiment::Throughput, arguments, out),
        BenchCommand::Balance(arguments) => experiment(Experiment::Balance, arguments, out),
        BenchCommand::Telemetry(arguments) => experiment(Experiment::Telemetry, arguments, out),
        BenchCommand::Compare { before, after } => {
            let comparison = compare::compare(&Record::read(before)?, &Record::read(after)?)?;
            write(out, &comparison.text)?;
            Ok(u8::from(comparison.differs))
        }
        BenchCommand::Report { results, html, published } => {
            let records = results.iter().map(|file| Record::read(file)).collect::<Result<Vec<_>, _>>()?;
            if let Some(file) = html {
                replace(file, &page::html(&records))?;
            }
            if *published {
                write(out, &published::render(&records))?;
            } else if html.is_none() {
                records.iter().try_for_each(|record| write(out, &text(record)))?;
            }
            Ok(0)
        }
    }
}

fn experiment(experiment: Experiment, arguments: &BenchArguments, out: &mut dyn Write) -> Result<u8, BenchError> {
    let own = || std::env::current_exe().map_err(BenchError::io("finding this program"));
    let program = arguments.program.clone().map_or_else(own, Ok)?;
    let evenkeel = testbed::absolute(&program)?;
    let envoy = find_envoy(arguments.envoy.as_deref())?;
    let machine = machine::describe(&evenkeel, envoy.as_deref());
    let (mut record, file) = match &arguments.resume {
        Some(file) => (resumed(experiment, file, &machine.evenkeel)?, file.clone()),
        None => {
            let file = arguments.json.clone().unwrap_or_else(|| format!("bench-{}.json", experiment.name()).into());
            (Record::new(chosen(experiment, arguments)?, machine, now()), file)
        }
    };
    // A place that cannot be written is noticed before anything is measured.
    record.write(&file)?;
    let interrupt = Interrupt::listen()?;
    let session =
        Session { programs: Programs { evenkeel: &evenkeel, envoy: envoy.as_deref() }, file, interrupt: &interrupt };
    session.complete(&mut record)?;
    if let Some(file) = &arguments.html {
        replace(file, &page::html(std::slice::from_ref(&record)))?;
    }
    if let Some(file) = &arguments.svg {
        replace(file, &page::svg(&record))?;
    }
    match arguments.output {
        Output::Table => write(out, &text(&record))?,
        Output::Json => {
            let text = serde_json::to_string_pretty(&record).map_err(|error| BenchError::Usage(error.to_string()))?;
            write(out, &format!("{text}\n"))?;
        }
    }
    Ok(u8::from(record.cells.iter().all(|measured| measured.samples.is_empty())))
}

/// The cells that the flags choose.
fn chosen(experiment: Experiment, arguments: &BenchArguments) -> Result<Plan, BenchError> {
    let extent = Extent { quick: arguments.quick, full: arguments.full, cores: machine::cores() };
    let mut plan = match experiment {
        Experiment::Latency => latency::plan(extent),
        Experiment::Throughput => throughput::plan(extent),
        Experiment::Balance => balance::plan(extent),
        Experiment::Telemetry => telemetry::plan(extent),
    };
    if !arguments.only.is_empty() {
        let is_named = |text: &str| arguments.only.iter().any(|wanted| text.contains(wanted.as_str()));
        plan.cells.retain(|cell| is_named(&cell.table) || is_named(&cell.row));
    }
    if plan.cells.is_empty() {
        return Err(BenchError::Usage(format!(
            "--only {}: no table or row contains it",
            arguments.only.join(" --only ")
        )));
    }
    plan.rounds = arguments.rounds.map_or(plan.rounds, usize::from);
    plan.seconds = arguments.seconds.unwrap_or(plan.seconds);
    Ok(plan)
}

fn resumed(experiment: Experiment, file: &Path, evenkeel: &str) -> Result<Record, BenchError> {
    let record = Record::read(file)?;
    let refused = |reason: String| Err(BenchError::Record { file: file.to_owned(), reason });
    if record.experiment != experiment {
        return refused(format!("this is a result of `evenkeel bench {}`", record.experiment.name()));
    }
    if record.machine.evenkeel != evenkeel {
        return refused(format!("it was measured with another program ({}); measure again", record.machine.evenkeel));
    }
    Ok(record)
}

fn now() -> String {
    let now = time::OffsetDateTime::now_utc().replace_nanosecond(0).unwrap_or(time::OffsetDateTime::UNIX_EPOCH);
    now.format(&time::format_description::well_known::Rfc3339).unwrap_or_default()
}

/// The tables, and what follows from them.
fn text(record: &Record) -> String {
    let predictions: String = scaling::lines(record).into_iter().map(|line| format!("\n{line}\n")).collect();
    format!("{}{predictions}", table::render(record))
}

fn write(out: &mut dyn Write, text: &str) -> Result<(), BenchError> {
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(BenchError::io("writing the result")(error)),
        // A reader that has enough is no failure.
        _ => Ok(()),
    }
}
