//! `evenkeel`: the one binary. Each command hands over to the crate that does the work.

mod commands;
mod logging;
mod validate;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use commands::Cli;

/// Small and fast, and it returns memory: a sidecar stands beside every replica.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match commands::run(Cli::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // One line with all causes; nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
