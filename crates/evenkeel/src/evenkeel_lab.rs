//! `evenkeel-lab`: measures a control plane with simulated proxies. It drives `evenkeel` from outside and is no part of it.

#[expect(dead_code, reason = "simulated proxies return no memory to the system")]
mod allocator;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Parser;
use evenkeel_local::reader::IgnoreBrokenPipe;

/// Measures a control plane with simulated proxies.
#[derive(Parser)]
#[command(name = "evenkeel-lab", version)]
struct Cli {
    #[command(subcommand)]
    command: evenkeel_lab::Command,
}

fn main() -> ExitCode {
    match run(&Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: &evenkeel_lab::Command) -> anyhow::Result<()> {
    evenkeel_lab::run(command, measured()?, &mut IgnoreBrokenPipe(std::io::stdout()))?;
    Ok(())
}

/// The program that is measured: `evenkeel` beside this one.
fn measured() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("finding this program")?.with_file_name("evenkeel");
    anyhow::ensure!(program.is_file(), "there is no {}: build it beside this program", program.display());
    Ok(program)
}
