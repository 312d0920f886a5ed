//! `evenkeel dashboard`: the address of the running mesh's dashboard, for a browser.

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::Context;
use clap::Args;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::dashboard;

/// The program that opens an address in the user's browser (xdg-utils).
const OPENER: &str = "xdg-open";

#[derive(Debug, Args)]
pub struct DashboardArguments {
    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Also open it in the browser (xdg-open).
    #[arg(long)]
    open: bool,
}

/// Prints the address, and opens it if that is wanted.
pub fn run(arguments: &DashboardArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let state = arguments.state.clone().unwrap_or_else(StateDir::default_path);
    let address = dashboard::of_run(&state).with_context(|| {
        let state = state.display();
        format!("no mesh is running with the state directory {state}; start one: evenkeel up DIR, or name its directory: --state DIR")
    })?;
    let url = format!("http://{address}/");
    writeln!(out, "{url}")?;
    if arguments.open {
        let mut opener = Command::new(OPENER);
        opener.arg(&url).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        opener.spawn().with_context(|| format!("{OPENER} cannot be run; open {url} yourself"))?;
    }
    Ok(0)
}
