//! `evenkeel migrate`: from Istio to Evenkeel, and from Istio's routes to those of the Gateway API.

mod check;
mod routes;

use std::io::Write;

use clap::Subcommand;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel migrate check --context prod
  evenkeel migrate check -f manifests/ -o json
  evenkeel migrate routes -f manifests/ > routes.yaml";

#[derive(Debug, Subcommand)]
pub enum MigrateCommand {
    /// Show object by object what will differ from Istio, and in which order to move the namespaces. Exits with 2 if something
    /// has to change first.
    #[command(after_help = EXAMPLES)]
    Check(check::CheckArguments),

    /// Write routes of the Gateway API for VirtualServices, Istio's Gateways and Ingresses where they mean the same. What has no
    /// equal is said field by field, and such an object remains as a whole. Exits with 2 if one remains.
    #[command(after_help = EXAMPLES)]
    Routes(routes::RoutesArguments),
}

/// Runs a command.
pub fn run(command: &MigrateCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    match command {
        MigrateCommand::Check(arguments) => check::run(arguments, out),
        MigrateCommand::Routes(arguments) => routes::run(arguments, out),
    }
}
