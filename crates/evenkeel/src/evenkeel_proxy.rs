//! `evenkeel-proxy`: the proxy alone, for sidecar images.

mod allocator;
mod purge;

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
    evenkeel_proxy::memory::set_collector(|| {
        allocator::collect();
        purge::started();
    });
    let cli = Cli::parse();
    if let Err(error) = evenkeel_process::secrets::hide() {
        let _ = writeln!(std::io::stderr(), "error: closing this process to others of its user: {error}");
        return ExitCode::FAILURE;
    }
    purge::while_starting();
    match evenkeel_proxy::run(&cli.options, &mut std::io::stdout()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nothing can be done if standard error is gone.
            let _ = writeln!(std::io::stderr(), "error: {error}");
            ExitCode::FAILURE
        }
    }
}
