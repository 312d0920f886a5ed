//! `evenkeel`: the one binary. Each command hands over to the crate that does the work.

mod admin;
mod allocator;
mod commands;
mod history;
mod logging;
mod proxy_config;
mod proxy_status;
mod purge;
mod validate;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

use commands::Cli;

fn main() -> ExitCode {
    allocator::register();
    match commands::run(Cli::parse()) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // One line with all causes; nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
