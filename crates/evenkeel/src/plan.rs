//! `evenkeel plan`: what a change does to recent requests.

use std::collections::BTreeSet;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use evenkeel_api::Object;
use evenkeel_base::{Diagnostic, Diagnostics, Severity};
use evenkeel_explain::plan::{EXAMPLES as EXAMPLES_OF_GROUP, Sampled};
use evenkeel_explain::{Plan, World};
use evenkeel_k8s::client::ClusterOptions;

use crate::admin;
use crate::formats::{Output, look};
use crate::manifests::Manifests;
use crate::proxies::{Proxies, ProxiesChoice};

/// Shown below the options.
pub const EXAMPLES: &str = "\
Examples:
  evenkeel plan -f new-routes.yaml
  evenkeel plan --delete -f policy.yaml -o json

The exit status is 0 if no request fails that does not fail now, 2 if one does, 3 if nothing could be judged.";

/// Status if requests would fail.
const FAILS: u8 = 2;
/// Exit status if there is nothing to judge by.
const NOTHING: u8 = 3;

#[derive(Debug, Args)]
pub struct PlanArguments {
    /// A file with the objects of the change (`-`: standard input), or a directory; may be repeated.
    #[arg(short = 'f', long = "filename", value_name = "FILE|DIR", required = true)]
    files: Vec<PathBuf>,

    /// The change deletes these objects.
    #[arg(long)]
    delete: bool,

    /// Namespace of objects without a namespace [default: default].
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<Arc<str>>,

    /// The cluster that the change is for: its objects are read, and its proxies are asked for their requests.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// What the mesh runs, instead of what the running `up` runs; may be repeated.
    #[arg(long = "mesh", value_name = "FILE|DIR")]
    mesh: Vec<PathBuf>,

    /// Take the requests of the proxy with this admin port; --proxy says which one it is.
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, requires_all = ["proxy", "mesh"])]
    admin: Option<SocketAddr>,

    /// Only requests of this workload's proxies.
    #[arg(long, value_name = "WORKLOAD.NAMESPACE")]
    proxy: Option<String>,

    /// Examples of each group.
    #[arg(long, value_name = "N", default_value_t = EXAMPLES_OF_GROUP)]
    examples: usize,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Replays recent requests.
pub fn run(arguments: &PlanArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let mut change = Manifests::read(&arguments.files);
    if let Some(namespace) = &arguments.namespace {
        change.set_namespace(namespace);
    }
    change.report_errors();
    anyhow::ensure!(!change.diagnostics.has_errors(), "the change has mistakes: nothing was planned");
    anyhow::ensure!(!change.objects.is_empty(), "the change has no objects");
    let present = Manifests::of_cluster_or_files(&arguments.cluster, &arguments.mesh, arguments.state.as_deref())?;
    let choice = ProxiesChoice { admin: arguments.admin, state: arguments.state.as_ref(), cluster: &arguments.cluster };
    let proxies = Proxies::find(&choice)?;
    let (workload, namespace) = match &arguments.proxy {
        None => (String::new(), None),
        Some(name) => match evenkeel_explain::Caller::parse(name) {
            evenkeel_explain::Caller::Workload { name, namespace } => (name, namespace),
            evenkeel_explain::Caller::Outside => (String::new(), None),
        },
    };
    let collected = proxies.collect(&workload, namespace.as_deref())?;
    let (before, after) = worlds(present, change, arguments.delete)?;
    let mut sampled: Vec<Sampled> = Vec::new();
    for (proxy, request) in collected.requests {
        // An admin port does not identify its Pod.
        let pod = match &proxies {
            Proxies::At(_) => before.find(&proxy.pod, namespace.as_deref())?.pod.to_string(),
            Proxies::OfMesh { .. } | Proxies::OfCluster(_) => proxy.pod,
        };
        sampled.push(Sampled { pod, namespace: proxy.namespace, request });
    }
    let mut plan = Plan::new(&before, &after, &sampled, arguments.examples);
    plan.notes.extend(collected.problems.into_iter().map(|problem| format!("not asked: {problem}")));
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", plan.to_json())?,
        Output::Text => write!(out, "{}", plan.to_text(look()))?,
    }
    Ok(match (plan.failing(), plan.judged()) {
        (_, 0) => NOTHING,
        (0, _) => 0,
        _ => FAILS,
    })
}

/// The mesh as it is, and with the change. New findings about the mesh as a whole are printed on standard error.
fn worlds(present: Manifests, change: Manifests, delete: bool) -> anyhow::Result<(World, World)> {
    let is_given = |object: &Object| {
        let is_same =
            |own: &&Object| own.kind() == object.kind() && own.name == object.name && own.namespace == object.namespace;
        change.objects.iter().find(is_same).is_some()
    };
    if delete {
        let absent = change.objects.iter().find(|object| {
            !present
                .objects
                .iter()
                .any(|own| own.kind() == object.kind() && own.name == object.name && own.namespace == object.namespace)
        });
        if let Some(absent) = absent {
            anyhow::bail!("{absent} is not in the mesh");
        }
    }
    let mut objects: Vec<Object> = present.objects.iter().filter(|object| !is_given(object)).cloned().collect();
    let (mut texts, mut sources) = (present.texts.clone(), present.sources());
    if !delete {
        objects.extend(change.objects.iter().cloned());
        texts.extend(change.texts.clone());
        change.texts.iter().for_each(|(name, text)| sources.insert(name.clone(), text.clone()));
    }
    let before = World::of_mesh(present.objects, present.texts, present.addresses.clone(), present.mesh.clone());
    let after = World::of_mesh(objects, texts, present.addresses, present.mesh);
    let known: BTreeSet<String> = before.diagnostics().iter().map(ToString::to_string).collect();
    let is_new = |finding: &Diagnostic| finding.severity >= Severity::Warning && !known.contains(&finding.to_string());
    let news: Diagnostics = after.diagnostics().clone().into_iter().filter(is_new).collect();
    // Nothing can be done if standard error is gone.
    let _ = io::stderr().write_all(news.render(&sources, io::stderr().is_terminal()).as_bytes());
    Ok((before, after))
}
