//! `evenkeel workload`: workloads that are not Pods, such as virtual machines.

mod entry;
mod files;
mod group;

use std::io::Write;

use clap::Subcommand;

/// The commands.
#[derive(Debug, Subcommand)]
pub enum WorkloadCommand {
    /// WorkloadGroups.
    #[command(subcommand)]
    Group(GroupCommand),
    /// WorkloadEntries.
    #[command(subcommand)]
    Entry(EntryCommand),
}

/// Commands about WorkloadGroups.
#[derive(Debug, Subcommand)]
pub enum GroupCommand {
    /// Print a WorkloadGroup, for `kubectl apply -f -`.
    #[command(after_help = group::EXAMPLES)]
    Create(group::CreateArguments),
}

/// Commands about WorkloadEntries.
#[derive(Debug, Subcommand)]
pub enum EntryCommand {
    /// Write the files that a machine of a WorkloadGroup needs: its token, the roots, the agent's settings, and a script that starts it.
    #[command(after_help = entry::EXAMPLES)]
    Configure(Box<entry::ConfigureArguments>),
}

/// Runs a command and returns the exit status.
pub fn run(command: &WorkloadCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    match command {
        WorkloadCommand::Group(GroupCommand::Create(arguments)) => group::create(arguments, out)?,
        WorkloadCommand::Entry(EntryCommand::Configure(arguments)) => entry::configure(arguments, out)?,
    }
    Ok(0)
}
