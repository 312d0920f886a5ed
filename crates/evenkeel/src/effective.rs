//! `evenkeel effective`: what holds for a host, from all objects that touch it.

use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use evenkeel_explain::Caller;
use evenkeel_explain::columns::filled;
use evenkeel_k8s::client::ClusterOptions;

use crate::formats::{Output, width};
use crate::manifests::Manifests;

#[derive(Debug, Args)]
pub struct EffectiveArguments {
    /// A host name; short names of Services work.
    host: String,

    /// The workload that calls: what holds differs by namespace and labels [default: one in the host's namespace].
    #[arg(long = "for", value_name = "WORKLOAD.NAMESPACE")]
    workload: Option<String>,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR", conflicts_with = "files")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Reads the files and prints what holds.
pub fn run(arguments: &EffectiveArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let manifests = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref())?;
    manifests.report_errors();
    let world = manifests.into_world();
    let workload = match arguments.workload.as_deref().map(Caller::parse) {
        Some(Caller::Workload { name, namespace }) => Some(world.find(&name, namespace.as_deref())?),
        Some(Caller::Outside) | None => None,
    };
    let effective = world.effective(&arguments.host, workload.as_deref()).map_err(anyhow::Error::msg)?;
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&effective)?)?,
        Output::Text => write!(out, "{}", filled(&effective.to_text(), width()))?,
    }
    Ok(0)
}
