//! `evenkeel mtls`: who has talked to whom, and how it was secured.

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use evenkeel_explain::answer::ProxyName;
use evenkeel_explain::mtls::{Reported, Target};
use evenkeel_explain::{Caller, World};
use evenkeel_filters::edges::Edges;
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_local::exec::ReplicaInfo;

use crate::admin;
use crate::formats::{Output, width};
use crate::manifests::Manifests;
use crate::proxies::{Proxies, ProxiesChoice};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel mtls
  evenkeel mtls -n shop --fail-on-plaintext
  evenkeel mtls --what-if strict -n shop
  evenkeel mtls --what-if strict -f DIR -o json

The exit status is 0; with --fail-on-plaintext it is 2 if an edge is in plain text, 3 if some proxy did not answer.
With --what-if it is 2 if a client would break.";

/// Status if there is plain text, or if a client would break.
const PLAINTEXT: u8 = 2;
/// Status if that is not known of every proxy.
const UNKNOWN: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum WhatIf {
    /// PeerAuthentication is STRICT there.
    Strict,
}

#[derive(Debug, Args)]
pub struct MtlsArguments {
    /// Only edges at which one end is this workload; with --what-if, the workload that becomes STRICT.
    #[arg(value_name = "WORKLOAD[.NAMESPACE]")]
    workload: Option<String>,

    /// The same as the argument.
    #[arg(long = "workload", value_name = "WORKLOAD[.NAMESPACE]", conflicts_with = "workload")]
    named: Option<String>,

    /// Only edges at which one end is in this namespace; with --what-if, the namespace that becomes STRICT.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// List the clients that would break if PeerAuthentication were so.
    #[arg(long, value_enum, value_name = "MODE")]
    what_if: Option<WhatIf>,

    /// Fail if an edge is in plain text.
    #[arg(long, conflicts_with = "what_if")]
    fail_on_plaintext: bool,

    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: what the running mesh runs].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read and whose proxies are asked instead.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Ask the proxy with this admin port; --workload says which one it is.
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    admin: Option<SocketAddr>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl MtlsArguments {
    /// The workload and the namespace that are asked about.
    fn asked(&self) -> (Option<String>, Option<String>) {
        match self.workload.as_ref().or(self.named.as_ref()).map(|text| Caller::parse(text)) {
            Some(Caller::Workload { name, namespace }) => (Some(name), namespace.or_else(|| self.namespace.clone())),
            Some(Caller::Outside) | None => (None, self.namespace.clone()),
        }
    }
}

/// Asks the proxies and prints the ledger, or what would break.
pub fn run(arguments: &MtlsArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let manifests = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, arguments.state.as_deref())?;
    manifests.report_errors();
    let world = manifests.into_world();
    let (workload, namespace) = arguments.asked();
    // Files alone show what would break, but not which traffic there was.
    let asks = arguments.files.is_empty() || arguments.admin.is_some() || arguments.what_if.is_none();
    let reported =
        if asks { Some(reported(arguments, &world, (workload.as_deref(), namespace.as_deref()))?) } else { None };
    let ledger = reported.as_ref().map(|reported| world.ledger(reported));
    if arguments.what_if == Some(WhatIf::Strict) {
        let target = match (workload, namespace) {
            (Some(name), namespace) => {
                let found = world.find(&name, namespace.as_deref())?;
                Target::Workload(found.workload_name.to_string(), found.namespace.to_string())
            }
            (None, Some(namespace)) => Target::Namespace(namespace),
            (None, None) => Target::Mesh,
        };
        let found = world.what_if_strict(&target, ledger.as_ref());
        match arguments.output {
            Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&found)?)?,
            Output::Text => write!(out, "{}", found.to_text_within(width()))?,
        }
        return Ok(if found.breaks.is_empty() { 0 } else { PLAINTEXT });
    }
    let ledger = ledger.unwrap_or_default().only(workload.as_deref(), namespace.as_deref());
    match arguments.output {
        Output::Json => writeln!(out, "{}", serde_json::to_string_pretty(&ledger)?)?,
        Output::Text => write!(out, "{}", ledger.to_text_within(width()))?,
    }
    let is_known = reported.is_some_and(|reported| reported.iter().all(|(_, answer)| answer.is_ok()));
    Ok(match (arguments.fail_on_plaintext, ledger.has_plaintext(), is_known) {
        (false, ..) | (true, false, true) => 0,
        (true, true, _) => PLAINTEXT,
        (true, false, false) => UNKNOWN,
    })
}

/// Returns the edges that the proxies report. All are asked, because both ends of an edge report it.
fn reported(
    arguments: &MtlsArguments,
    world: &World,
    asked: (Option<&str>, Option<&str>),
) -> anyhow::Result<Vec<Reported>> {
    let choice = ProxiesChoice { admin: arguments.admin, state: arguments.state.as_ref(), cluster: &arguments.cluster };
    let proxies = Proxies::find(&choice)?;
    let replicas: Vec<ReplicaInfo> = match &proxies {
        Proxies::OfMesh { .. } | Proxies::OfCluster(_) => {
            let all = proxies.replicas("", None)?;
            all.into_iter().filter(|replica| world.has_proxy(&replica.namespace, &replica.pod)).collect()
        }
        Proxies::At(_) => {
            let (workload, namespace) =
                (asked.0.unwrap_or("proxy").to_owned(), asked.1.unwrap_or("default").to_owned());
            vec![ReplicaInfo { namespace, pod: workload.clone(), workload, failing: Vec::new() }]
        }
    };
    let pages = proxies.pages::<Edges>(&replicas, "/edges");
    let each = replicas.into_iter().zip(pages).map(|(replica, page)| {
        let ReplicaInfo { namespace, workload, pod, .. } = replica;
        let page = page.map_err(|error| format!("{error:#}; a stock Envoy does not keep it"));
        (ProxyName { side: "", workload, pod, namespace }, page)
    });
    Ok(each.collect())
}
