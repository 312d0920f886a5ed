//! Executes a subcommand.

use std::future::Future;
use std::io::Write;
use std::path::PathBuf;

use evenkeel_process::signals::Signals;
use tokio::task::LocalSet;

use crate::command::Command;
use crate::error::LabError;
use crate::options::{Options, Output};
use crate::output::{can_be_written, json, write_file};
use crate::progress::Progress;
use crate::real_proxy::IN_NAMESPACE;
use crate::scenario::Scenario;
use crate::{bars, figures, namespace, published, report, table};

/// Executes the command. `program` is the `evenkeel` binary that runs as control plane and gateway.
///
/// When it returns, all processes that it started have ended, also after an error or a signal.
pub fn run(command: &Command, program: PathBuf, out: &mut dyn Write) -> Result<(), LabError> {
    match command {
        Command::Services(options) => run_scenario(Scenario::Services, options, program, out),
        Command::Provision(options) => run_scenario(Scenario::Provision, options, program, out),
        Command::Published(options) => block_on(published::run(options, program, out)),
        Command::Churn(options) => run_scenario(Scenario::Churn, options, program, out),
        Command::Rollout(options) => run_scenario(Scenario::Rollout, options, program, out),
        Command::Routes(options) => run_scenario(Scenario::Routes, options, program, out),
        Command::Restart(options) => run_scenario(Scenario::Restart, options, program, out),
        Command::Storm(options) => run_scenario(Scenario::Storm, options, program, out),
        Command::Idle(options) => run_scenario(Scenario::Idle, options, program, out),
        Command::Labels(options) => run_scenario(Scenario::Labels, options, program, out),
        Command::Sidecar(options) => run_scenario(Scenario::Sidecar, options, program, out),
        Command::Bars(options) => {
            if options.kubernetes.is_some() {
                namespace::enter(&IN_NAMESPACE)?;
            }
            block_on(bars::run(options, program, out))
        }
        Command::Report(options) => report::run(options, out),
        Command::Shrink(options) => run_scenario(Scenario::Shrink, options, program, out),
    }
}

fn run_scenario(scenario: Scenario, options: &Options, program: PathBuf, out: &mut dyn Write) -> Result<(), LabError> {
    for path in options.json.iter().chain(&options.svg) {
        can_be_written(path)?;
    }
    if options.kubernetes.is_some() {
        namespace::enter(&IN_NAMESPACE)?;
    }
    let progress = Progress::new(scenario.name());
    let results = block_on(scenario.run(options, program, progress.clone()));
    progress.end();
    let results = results?;
    let json = json(&results)?;
    let text = match options.output {
        Output::Table => table::render(&results),
        Output::Json => json.clone(),
    };
    // Printing comes before writing files, which may fail for lack of space, because a run may have taken minutes.
    out.write_all(text.as_bytes()).map_err(LabError::io("printing the results"))?;
    if let Some(path) = &options.json {
        write_file(path, &json)?;
    }
    if let Some(path) = &options.svg {
        write_file(path, &figures::of_run(&results).svg())?;
    }
    Ok(())
}

/// Runs the future on this thread. The thread must live as long as the processes that it starts, because the kernel
/// kills them when it ends.
pub fn block_on<T>(work: impl Future<Output = Result<T, LabError>>) -> Result<T, LabError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(LabError::io("starting the event loop"))?;
    LocalSet::new().block_on(&runtime, async {
        let mut signals = Signals::listen().map_err(LabError::io("installing signal handlers"))?;
        tokio::select! {
            result = work => result,
            () = signals.end() => Err(LabError::Interrupted),
        }
    })
}
