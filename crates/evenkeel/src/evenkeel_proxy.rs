//! `evenkeel-proxy`: the proxy alone, for sidecar images.

mod allocator;

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;

/// A proxy that takes Envoy's bootstrap file and flags.
#[derive(Parser)]
#[command(name = "evenkeel-proxy", version)]
struct Cli {
    #[command(flatten)]
    options: evenkeel_proxy::Options,
}

fn main() -> ExitCode {
    evenkeel_proxy::memory::set_collector(allocator::collect);
    match evenkeel_proxy::run(&Cli::parse().options, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
