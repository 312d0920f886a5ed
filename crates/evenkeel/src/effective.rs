//! `evenkeel effective`: what holds for a host, from all objects that touch it.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use evenkeel_explain::{Caller, World};

use crate::explain::Output;
use crate::manifests::Manifests;

#[derive(Debug, Args)]
pub struct EffectiveArguments {
    /// A host name; short names of Services work.
    host: String,

    /// The workload that calls: what holds differs by namespace and labels [default: one in the host's namespace].
    #[arg(long = "for", value_name = "WORKLOAD.NAMESPACE")]
    workload: Option<String>,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated.
    #[arg(short, long = "file", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Reads the files and prints what holds.
pub fn run(arguments: &EffectiveArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let manifests = Manifests::read(&arguments.files);
    manifests.report_errors();
    let world = World::new(manifests.objects, manifests.texts);
    let workload = match arguments.workload.as_deref().map(Caller::parse) {
        Some(Caller::Workload { name, namespace }) => Some(world.find(&name, namespace.as_deref())?),
        Some(Caller::Outside) | None => None,
    };
    let effective = world.effective(&arguments.host, workload.as_deref()).map_err(anyhow::Error::msg)?;
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&effective)?)?,
        Output::Text => write!(out, "{}", effective.to_text())?,
    }
    Ok(0)
}
