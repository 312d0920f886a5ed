//! `evenkeel load`: from the command line to the exit status.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use clap::Args;
use time::OffsetDateTime;

use crate::flags::{RequestFlags, RunFlags};
use crate::results::RunResult;
use crate::setup::Setup;
use crate::summary::{self, Report};
use crate::target::Target;

/// The command line of `evenkeel load`.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct LoadArguments {
    #[command(flatten)]
    run: RunFlags,

    #[command(flatten)]
    request: RequestFlags,

    /// Where requests go: http://, https://, tcp:// or udp://; for gRPC HOST:PORT.
    #[arg(value_name = "URL")]
    url: String,
}

const EXAMPLES: &str = "\
Flags may have one dash, as Fortio's: -qps 100.

Examples:
  evenkeel load -c 8 -qps 1000 -t 30s http://localhost:8080/
  evenkeel load -qps 0 -n 100000 -json result.json http://localhost:8080/";

/// Why there was no run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A flag is wrong, or the server does not answer.
    #[error("{0}")]
    Refused(String),
    /// The result cannot be written.
    #[error("writing {path}")]
    Write {
        /// The file.
        path: PathBuf,
        /// Its error.
        source: io::Error,
    },
}

impl From<String> for Error {
    fn from(reason: String) -> Self {
        Self::Refused(reason)
    }
}

/// The status of a run in which all requests failed, or that was aborted.
const FAILED: u8 = 1;

/// Runs the command. Results go to `text`; JSON without a file goes to `standard`.
///
/// # Errors
/// There was no run, or its result cannot be written.
pub fn run(arguments: &LoadArguments, text: &mut dyn Write, standard: &mut dyn Write) -> Result<u8, Error> {
    let LoadArguments { run: flags, request, url } = arguments;
    let target = if flags.grpc { Target::grpc(url)? } else { Target::parse(url)? };
    let setup = Setup::new(&target, request, flags)?;
    let started = OffsetDateTime::now_utc();
    let report = Report { target: &target, url, request, run: flags, setup: &setup, started };
    // What cannot be written to standard error is lost; the result still counts.
    _ = summary::announce(text, &report);
    let before = &mut || {
        if !request.quiet {
            _ = summary::starting(text, &setup);
        }
    };
    let measured = crate::run::run(&setup.plan, setup.settings, &*setup.codecs(request), before)?;
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
            return written.map_err(|source| Error::Write { path: "standard output".into(), source });
        }
        Some(path) => path.clone(),
        None if flags.auto_save => flags.data_dir.join(format!("{}.json", result.id)),
        None => return Ok(()),
    };
    std::fs::write(&path, &json).map_err(|source| Error::Write { path: path.clone(), source })?;
    _ = writeln!(text, "Successfully wrote {} bytes of Json data to {}", json.len(), path.display());
    Ok(())
}
