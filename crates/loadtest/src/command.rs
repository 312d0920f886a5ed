//! `evenkeel load`: from the command line to the exit status.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::{Args, FromArgMatches as _, Subcommand};
use time::OffsetDateTime;

use crate::compare;
use crate::curl;
use crate::error::Error;
use crate::flags::{RequestFlags, RunFlags};
use crate::live::Audience;
use crate::page;
use crate::results::RunResult;
use crate::run as runner;
use crate::serve::{self, ServeArguments};
use crate::setup::Setup;
use crate::summary::{self, Report};
use crate::target::Target;

/// The command line of `evenkeel load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub struct LoadArguments {
    #[command(subcommand)]
    command: Option<LoadCommand>,

    #[command(flatten)]
    load: RunArguments,
}

/// What else there is than a run.
#[derive(Debug, Subcommand)]
enum LoadCommand {
    /// Send one request over HTTP/1.1 and print the response.
    Curl {
        #[command(flatten)]
        request: Box<RequestFlags>,

        /// Where the request goes.
        #[arg(value_name = "URL")]
        url: String,
    },
    /// Say which differences between two results are more than noise; the exit status is 1 if one is.
    Compare {
        /// A result in JSON.
        before: PathBuf,
        /// Another one.
        after: PathBuf,
    },
    /// Make an HTML page of results.
    Report {
        /// Results in JSON.
        #[arg(required = true)]
        results: Vec<PathBuf>,

        /// Where to write the page [default: standard output].
        #[arg(long, value_name = "FILE")]
        html: Option<PathBuf>,
    },
    /// Serve a page that starts runs and shows them, and Fortio's REST interface.
    #[command(after_help = serve::EXAMPLES)]
    Serve(ServeArguments),
}

/// A run.
#[derive(Debug, Args)]
struct RunArguments {
    #[command(flatten)]
    run: RunFlags,

    #[command(flatten)]
    request: RequestFlags,

    /// Where requests go: http://, https://, tcp:// or udp://; for gRPC HOST:PORT.
    #[arg(value_name = "URL", required = true)]
    url: Option<String>,
}

const EXAMPLES: &str = "\
Flags may have one dash, as Fortio's: -qps 100.

Examples:
  evenkeel load -c 8 -qps 1000 -t 30s http://localhost:8080/
  evenkeel load -qps 0 -n 100000 -json result.json http://localhost:8080/
  evenkeel load curl -H x:y http://localhost:8080/debug
  evenkeel load compare before.json after.json
  evenkeel load report -html report.html before.json after.json
  evenkeel load serve -data-dir results";

/// The status of a run in which all requests failed, or that was aborted.
const FAILED: u8 = 1;

/// Runs the command. Results go to `text`; JSON without a file goes to `standard`.
///
/// # Errors
/// There was no run, or a result cannot be read or written.
pub fn run(arguments: &LoadArguments, text: &mut dyn Write, standard: &mut dyn Write) -> Result<u8, Error> {
    match &arguments.command {
        None => load(&arguments.load, text, standard),
        Some(LoadCommand::Curl { request, url }) => {
            let target = Target::parse(url)?;
            let setup = Setup::new(&target, request, &default_flags()?, Audience::Nobody)?;
            let succeeded = curl::run(&setup, request, text, standard)?;
            Ok(if succeeded { 0 } else { FAILED })
        }
        Some(LoadCommand::Compare { before, after }) => {
            let differs = compare::run(&read(before)?, &read(after)?, standard).map_err(to_standard)?;
            Ok(if differs { FAILED } else { 0 })
        }
        Some(LoadCommand::Report { results, html }) => {
            let results = results.iter().map(|path| read(path)).collect::<Result<Vec<_>, _>>()?;
            let page = page::render(&results);
            match html {
                Some(path) => {
                    std::fs::write(path, page).map_err(|source| Error::Write { path: path.clone(), source })?
                }
                None => standard.write_all(page.as_bytes()).map_err(to_standard)?,
            }
            Ok(0)
        }
        Some(LoadCommand::Serve(arguments)) => serve::run(arguments, text).map(|()| 0),
    }
}

/// The flags of a run without any.
fn default_flags() -> Result<RunFlags, String> {
    let command = RunFlags::augment_args(clap::Command::new("load"));
    let matches = command.try_get_matches_from(["load"]).map_err(|error| error.to_string())?;
    RunFlags::from_arg_matches(&matches).map_err(|error| error.to_string())
}

fn read(path: &Path) -> Result<RunResult, Error> {
    let wrong = |reason: String| Error::Read { path: path.to_owned(), reason };
    let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
    serde_json::from_str(&text).map_err(|error| wrong(error.to_string()))
}

fn to_standard(source: io::Error) -> Error {
    Error::Write { path: "standard output".into(), source }
}

fn load(arguments: &RunArguments, text: &mut dyn Write, standard: &mut dyn Write) -> Result<u8, Error> {
    let RunArguments { run: flags, request, url } = arguments;
    let url = url.as_deref().unwrap_or_default();
    let target = if flags.grpc { Target::grpc(url)? } else { Target::parse(url)? };
    let setup = Setup::new(&target, request, flags, runner::audience(request))?;
    let started = OffsetDateTime::now_utc();
    let report = Report { target: &target, url, request, run: flags, setup: &setup, started };
    // What cannot be written to standard error is lost; the result still counts.
    _ = summary::announce(text, &report);
    let before = &mut || {
        if !request.is_quiet() {
            _ = summary::starting(text, &setup);
        }
    };
    runner::stop_at_interrupt(&setup.plan);
    let measured = runner::run(&setup.plan, setup.settings, &*setup.codecs(request), before)?;
    let result = report.result(&measured);
    _ = report.write(text, &measured, &result);
    save(flags, &result, text, standard)?;
    let aborted = setup.plan.aborted.load(Ordering::Relaxed);
    if aborted {
        _ = writeln!(text, "Aborted because of {}", flags.abort_on);
    }
    let durations = &result.duration_histogram;
    let all_failed = durations.count == result.errors_duration_histogram.count;
    Ok(if aborted || all_failed { FAILED } else { 0 })
}

/// Writes the JSON where the flags say.
fn save(flags: &RunFlags, result: &RunResult, text: &mut dyn Write, standard: &mut dyn Write) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(result).map_err(|error| error.to_string())?;
    let path = match &flags.json {
        Some(path) if path == Path::new("-") => {
            let written = writeln!(standard, "{json}").and_then(|()| standard.flush());
            return written.map_err(to_standard);
        }
        Some(path) => path.clone(),
        None if flags.auto_save => flags.data_dir.join(format!("{}.json", result.id)),
        None => return Ok(()),
    };
    std::fs::write(&path, &json).map_err(|source| Error::Write { path: path.clone(), source })?;
    _ = writeln!(text, "Successfully wrote {} bytes of Json data to {}", json.len(), path.display());
    Ok(())
}
