//! `evenkeel describe`: a Pod or a Service with everything that touches it.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::{Args, Subcommand};
use evenkeel_analyze::analyze;
use evenkeel_base::Diagnostics;
use evenkeel_explain::{Caller, Description};
use evenkeel_k8s::client::ClusterOptions;

use crate::compiled;
use crate::formats::{Output, width};
use crate::manifests::Manifests;

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel describe service reviews.shop
  evenkeel describe pod reviews-v1 -n shop -f DIR -o json";

#[derive(Debug, Subcommand)]
pub enum DescribeCommand {
    /// Describe a Pod, or a workload's Pods: its services and subsets, who reaches it, what protects it, findings.
    #[command(visible_alias = "po", after_help = EXAMPLES)]
    Pod(DescribeArguments),
    /// Describe a Service: its routes and settings, gateways that lead to it, what protects its workloads, findings.
    #[command(visible_alias = "svc", after_help = EXAMPLES)]
    Service(DescribeArguments),
}

#[derive(Debug, Args)]
pub struct DescribeArguments {
    /// The Pod, workload or Service; a Service's host name works, too.
    #[arg(value_name = "NAME[.NAMESPACE]")]
    name: String,

    /// Its namespace.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Describes the object and prints it with the findings about what touches it.
pub fn run(command: &DescribeCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    let (DescribeCommand::Pod(arguments) | DescribeCommand::Service(arguments)) = command;
    let manifests = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref())?;
    let sources = manifests.sources();
    let mut read = manifests.diagnostics.clone();
    read.extend(compiled::refusals(&manifests.objects));
    let found = analyze(&manifests.objects, &manifests.mesh, read, &[]);
    let world = manifests.into_world();
    let described = match command {
        DescribeCommand::Pod(_) => {
            let Caller::Workload { name, namespace } = Caller::parse(&arguments.name) else {
                anyhow::bail!("`{}` is not the name of a Pod", arguments.name);
            };
            let namespace = arguments.namespace.as_deref().or(namespace.as_deref());
            world.describe_workload(&world.find(&name, namespace)?)
        }
        DescribeCommand::Service(_) => {
            let name = match &arguments.namespace {
                Some(namespace) => format!("{}.{namespace}", arguments.name),
                None => arguments.name.clone(),
            };
            world.describe_service(&name).map_err(anyhow::Error::msg)?
        }
    };
    let is_about = |object: Option<&_>| object.is_some_and(|object| described.is_touched_by(object));
    let found = found.iter().filter(|finding| is_about(finding.diagnostic.object.as_deref()));
    let findings: Diagnostics = found.map(evenkeel_analyze::Finding::to_diagnostic).collect();
    match arguments.output {
        Output::Json => writeln!(out, "{}", json(&described, &findings)?)?,
        Output::Text => {
            write!(out, "{}\n== findings\n", described.to_text_within(width()))?;
            if findings.is_empty() {
                writeln!(out, "  none about the objects above")?;
            }
            out.write_all(findings.render(&sources, std::io::stdout().is_terminal()).as_bytes())?;
        }
    }
    Ok(0)
}

fn json(described: &Description, findings: &Diagnostics) -> anyhow::Result<String> {
    let findings = findings.iter().map(|finding| {
        serde_json::json!({
            "severity": finding.severity.to_string(), "code": finding.code, "message": finding.message,
            "at": finding.span.to_string(), "help": finding.help,
        })
    });
    let mut whole = serde_json::to_value(described)?;
    whole["findings"] = findings.collect();
    Ok(format!("{whole:#}"))
}
