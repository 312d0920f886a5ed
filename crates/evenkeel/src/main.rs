//! `evenkeel`: the one binary. Each command hands over to the crate that does the work.

mod admin;
mod allocator;
mod commands;
mod help;
mod history;
mod logging;
mod proxy_config;
mod proxy_status;
mod purge;
mod validate;

use std::io::Write;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use commands::Cli;

fn main() -> ExitCode {
    allocator::register();
    let matches = help::in_groups(Cli::command()).get_matches();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match commands::run(cli) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            // One line with all causes; nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
