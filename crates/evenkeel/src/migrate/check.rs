//! `evenkeel migrate check`: what differs, and in which order namespaces move.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;

use clap::Args;
use evenkeel_analyze::analyze;
use evenkeel_analyze::migration::{self, Difference, Impact, Migration, Step};
use evenkeel_base::{Diagnostics, Sources};
use evenkeel_k8s::client::ClusterOptions;

use crate::compiled;
use crate::formats::Output;
use crate::manifests::Manifests;
use crate::validate::counted;

/// The exit status if an object has to change before its namespace moves.
const BLOCKED: u8 = 2;

#[derive(Debug, Args)]
pub struct CheckArguments {
    /// A file with YAML (`-`: standard input), or a directory; may be repeated [default: the cluster that kubectl would use].
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// The cluster whose objects are read.
    #[command(flatten)]
    cluster: ClusterOptions,

    /// Revision of the control plane that the namespaces move to.
    #[arg(long, value_name = "NAME", default_value = "evenkeel")]
    revision: String,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Reads the objects and prints the plan.
pub fn run(arguments: &CheckArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let manifests = if arguments.files.is_empty() {
        Manifests::of_cluster(&arguments.cluster)?
    } else {
        Manifests::of_cluster_or_files(&arguments.cluster, &arguments.files, None)?
    };
    let mut read = manifests.diagnostics.clone();
    read.extend(compiled::refusals(&manifests.objects));
    let findings = analyze(&manifests.objects, &manifests.mesh, read, &[]);
    let plan = migration::plan(&manifests.objects, &findings, &manifests.mesh.root_namespace);
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", json(&plan))?,
        Output::Text => print(&plan, &arguments.revision, &manifests.sources(), out)?,
    }
    let blocks = |all: &[Difference]| all.iter().any(|one| one.impact == Impact::Blocks);
    Ok(if blocks(&plan.mesh) || plan.steps.iter().any(Step::is_blocked) { BLOCKED } else { 0 })
}

fn print(plan: &Migration, revision: &str, sources: &Sources, out: &mut dyn Write) -> anyhow::Result<()> {
    writeln!(out, "for the whole mesh: {}", counts(&plan.mesh))?;
    show(&plan.mesh, sources, out)?;
    for (at, step) in plan.steps.iter().enumerate() {
        let gateway = if step.has_gateway { ", a gateway among them" } else { "" };
        let workloads = counted(step.workloads, "workload");
        writeln!(out, "\n{}. {}: {workloads}{gateway}: {}", at + 1, step.namespace, counts(&step.differences))?;
        show(&step.differences, sources, out)?;
        if step.is_blocked() {
            writeln!(out, "  change what blocks it first")?;
        }
        let others: String =
            step.labels.iter().filter(|label| *label != "istio.io/rev").map(|label| format!(" {label}-")).collect();
        let namespace = &step.namespace;
        writeln!(out, "  kubectl label namespace {namespace} --overwrite istio.io/rev={revision}{others}")?;
        writeln!(out, "  kubectl rollout restart -n {namespace} deployment,statefulset,daemonset")?;
    }
    writeln!(
        out,
        "\nBoth control planes need one root certificate, so that mutual TLS holds between them: docs/install.md."
    )?;
    Ok(())
}

/// `2 block, 3 differ`.
fn counts(differences: &[Difference]) -> String {
    let of = |impact| differences.iter().filter(|one| one.impact == impact).count();
    match (of(Impact::Blocks), of(Impact::Differs)) {
        (0, 0) => "nothing differs".to_owned(),
        (blocks, differs) => format!("{} to change first, {} with another effect", blocks, differs),
    }
}

fn show(differences: &[Difference], sources: &Sources, out: &mut dyn Write) -> anyhow::Result<()> {
    let all: Diagnostics = differences.iter().map(|one| one.diagnostic.clone()).collect();
    let (infos, others) = all.split_infos();
    out.write_all(others.render(sources, std::io::stdout().is_terminal()).as_bytes())?;
    out.write_all(infos.in_short().as_bytes())?;
    Ok(())
}

fn json(plan: &Migration) -> serde_json::Value {
    let differences = |all: &[Difference]| -> serde_json::Value {
        let one = |one: &Difference| {
            let object = one.diagnostic.object.as_ref();
            let object = object.map(|object| format!("{} {}/{}", object.kind, object.namespace, object.name));
            serde_json::json!({
                "blocks": one.impact == Impact::Blocks, "object": object, "code": one.diagnostic.code,
                "message": one.diagnostic.message, "at": one.diagnostic.span.to_string(), "help": one.diagnostic.help,
            })
        };
        all.iter().map(one).collect()
    };
    let steps = plan.steps.iter().map(|step| {
        serde_json::json!({
            "namespace": &*step.namespace, "workloads": step.workloads, "hasGateway": step.has_gateway,
            "blocked": step.is_blocked(), "labels": step.labels, "differences": differences(&step.differences),
        })
    });
    serde_json::json!({ "mesh": differences(&plan.mesh), "steps": steps.collect::<serde_json::Value>() })
}
