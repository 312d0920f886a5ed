//! `evenkeel injector list` and `evenkeel check-inject`: who injects what, and why not.

use std::io::Write;

use anyhow::{Context, bail};
use evenkeel_install::injectors::{self, Candidate};
use evenkeel_install::tags;
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{Cluster, ObjectKind, Selection};
use serde_json::Value;

use super::connect;
use crate::formats::Output;

/// The commands about injectors.
#[derive(Debug, clap::Subcommand)]
pub enum InjectorCommand {
    /// List the injectors of the cluster, and the namespaces that they inject.
    List {
        #[command(flatten)]
        cluster: ClusterOptions,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

/// Flags of `evenkeel check-inject`.
#[derive(Debug, clap::Args)]
pub struct CheckInjectArguments {
    /// A Pod, or TYPE/NAME: deployment, statefulset, daemonset, pod. Without it: any Pod of the namespace.
    #[arg(value_name = "[TYPE/]NAME")]
    workload: Option<String>,

    /// The namespace.
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    namespace: String,

    #[command(flatten)]
    cluster: ClusterOptions,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

const NAMESPACE: ObjectKind<'_> = ObjectKind { api_version: "v1", kind: "Namespace" };

async fn all(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    let kind = ObjectKind { api_version: "admissionregistration.k8s.io/v1", kind: "MutatingWebhookConfiguration" };
    Ok(cluster.list(kind, Selection { namespace: None, labels: tags::INJECTORS }).await?)
}

pub async fn list(command: &InjectorCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    let InjectorCommand::List { cluster, output } = command;
    let cluster = connect(cluster).await?;
    let namespaces = cluster.list(NAMESPACE, Selection::default()).await?;
    let found = injectors::list(&all(&cluster).await?, &namespaces);
    match output {
        Output::Json => writeln!(out, "{:#}", serde_json::json!(found))?,
        Output::Text => {
            writeln!(out, "{:36} {:16} {:16} NAMESPACES", "INJECTOR", "REVISION", "TAG")?;
            for row in found {
                let namespaces = row.namespaces.join(",");
                let line = format!("{:36} {:16} {:16} {namespaces}", row.name, row.revision, row.tag);
                writeln!(out, "{}", line.trim_end())?;
            }
        }
    }
    Ok(0)
}

/// Exits with 0 if a sidecar is injected, otherwise with 1.
pub async fn check(arguments: &CheckInjectArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let cluster = connect(&arguments.cluster).await?;
    let namespace = cluster.get(NAMESPACE, None, &arguments.namespace).await?;
    let namespace = namespace.with_context(|| format!("there is no namespace {}", arguments.namespace))?;
    let labels = match &arguments.workload {
        Some(workload) => labels(&cluster, &arguments.namespace, workload).await?,
        None => Value::Null,
    };
    let decisions = injectors::decisions(&all(&cluster).await?, Candidate { namespace: &namespace, labels: &labels });
    let is_injected = decisions.iter().any(|decision| decision.injects);
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", serde_json::json!({"injected": is_injected, "webhooks": decisions}))?,
        Output::Text => {
            for decision in &decisions {
                let verdict = if decision.injects { "injects" } else { "-" };
                let place = format!("{}/{}", decision.configuration, decision.webhook);
                writeln!(out, "{verdict:8} {:12} {place}: {}", decision.revision, decision.reason)?;
            }
            let summary = if is_injected { "new Pods get a sidecar" } else { "new Pods get no sidecar" };
            writeln!(out, "\n{summary}")?;
        }
    }
    Ok(u8::from(!is_injected))
}

/// The labels that Pods of a workload get.
async fn labels(cluster: &Cluster, namespace: &str, workload: &str) -> anyhow::Result<Value> {
    let (kind, name) = workload.split_once('/').unwrap_or(("pod", workload));
    let (kind, place) = match kind.to_lowercase().trim_end_matches('s') {
        "pod" | "po" => (ObjectKind { api_version: "v1", kind: "Pod" }, "/metadata/labels"),
        "deployment" | "deploy" => (apps("Deployment"), TEMPLATE),
        "statefulset" | "st" => (apps("StatefulSet"), TEMPLATE),
        "daemonset" | "d" => (apps("DaemonSet"), TEMPLATE),
        other => bail!("`{other}` is none of pod, deployment, statefulset, daemonset"),
    };
    let found = cluster.get(kind, Some(namespace), name).await?;
    let found = found.with_context(|| format!("there is no {} {name} in {namespace}", kind.kind))?;
    Ok(found.pointer(place).cloned().unwrap_or_default())
}

const TEMPLATE: &str = "/spec/template/metadata/labels";

const fn apps(kind: &str) -> ObjectKind<'_> {
    ObjectKind { api_version: "apps/v1", kind }
}
