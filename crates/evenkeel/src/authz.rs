//! `evenkeel authz check`: what protects a workload, and what does not.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::{Args, Subcommand};
use evenkeel_explain::protection::{Running, collect_rule_names};
use evenkeel_explain::{Caller, World};
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_local::exec::ReplicaInfo;
use evenkeel_model::Workload;

use crate::admin;
use crate::formats::{Output, width};
use crate::manifests::Manifests;
use crate::proxies::{Proxies, ProxiesChoice};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel authz check reviews-v1.shop -f DIR
  evenkeel authz check reviews-v1.shop --proxy -o json";

#[derive(Debug, Subcommand)]
pub enum AuthzCommand {
    /// List what holds at a workload and why: mutual TLS, tokens, policies, who may call, what is not protected.
    #[command(after_help = EXAMPLES)]
    Check(CheckArguments),
}

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// A workload or one of its Pods.
    #[arg(value_name = "WORKLOAD[.NAMESPACE]")]
    workload: String,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Compare with the rules that the workload's running proxies enforce.
    #[arg(long)]
    proxy: bool,

    /// With -f: compare with the proxy that has this admin port.
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    admin: Option<SocketAddr>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Runs a command. The status is 0, whatever the findings; 2 if running proxies differ.
pub fn run(command: &AuthzCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    let AuthzCommand::Check(arguments) = command;
    let manifests = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref())?;
    manifests.report_errors();
    let world = manifests.into_world();
    let Caller::Workload { name, namespace } = Caller::parse(&arguments.workload) else {
        anyhow::bail!("`{}` is not a workload", arguments.workload);
    };
    let workload = world.find(&name, namespace.as_deref())?;
    let mut protection = world.protection(&workload);
    if arguments.proxy || arguments.admin.is_some() {
        protection.running = Some(compared(arguments, &world, &workload)?);
    }
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&protection)?)?,
        Output::Text => write!(out, "{}", protection.to_text_within(width()))?,
    }
    Ok(if protection.running.is_some_and(|running| !running.agrees) { 2 } else { 0 })
}

/// Returns the differences between what running proxies enforce and what the files say.
fn compared(arguments: &CheckArguments, world: &World, workload: &Arc<Workload>) -> anyhow::Result<Running> {
    let choice = ProxiesChoice { admin: arguments.admin, state: arguments.state.as_ref(), cluster: &arguments.cluster };
    let proxies = Proxies::find(&choice)?;
    let replicas = match &proxies {
        Proxies::At(_) => vec![ReplicaInfo {
            namespace: workload.namespace.to_string(),
            workload: workload.workload_name.to_string(),
            pod: workload.pod.to_string(),
            failing: Vec::new(),
        }],
        Proxies::OfMesh { .. } | Proxies::OfCluster(_) => {
            proxies.replicas(&workload.workload_name, Some(&workload.namespace))?
        }
    };
    let wanted = world.rule_names(workload);
    let mut differs = Vec::new();
    for (replica, page) in replicas.iter().zip(proxies.pages::<serde_json::Value>(&replicas, "/config_dump")) {
        let pod = format!("{}.{}", replica.pod, replica.namespace);
        let page = page.map_err(|error| error.context(format!("asking the proxy of {pod}")))?;
        let mut has = BTreeSet::new();
        collect_rule_names(&page, &mut has);
        differs.extend(wanted.difference(&has).map(|name| format!("{pod} does not have {name}")));
        differs.extend(has.difference(&wanted).map(|name| format!("{pod} has {name}, which the files do not have")));
    }
    Ok(Running { agrees: differs.is_empty(), differs })
}
