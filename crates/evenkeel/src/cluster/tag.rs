//! `evenkeel tag`: names of revisions.

use std::io::Write;

use anyhow::bail;
use evenkeel_install::{MANAGER, tags};
use evenkeel_k8s::client::ClusterOptions;
use evenkeel_k8s::cluster::{ApplyOptions, Cluster, ObjectKind, Selection};
use serde_json::Value;

use super::connect;
use super::object::text_of;
use crate::formats::Output;

const CONFIGURATION: ObjectKind<'_> =
    ObjectKind { api_version: "admissionregistration.k8s.io/v1", kind: "MutatingWebhookConfiguration" };

/// The commands.
#[derive(Debug, clap::Subcommand)]
pub enum TagCommand {
    /// Let a name mean a revision.
    Set {
        #[command(flatten)]
        tag: TagArguments,
        /// Let a name that has another meaning change it.
        #[arg(long)]
        overwrite: bool,
        #[command(flatten)]
        cluster: ClusterOptions,
    },
    /// Print what `set` would apply.
    Generate {
        #[command(flatten)]
        tag: TagArguments,
        #[command(flatten)]
        cluster: ClusterOptions,
    },
    /// List names, their revisions, and the namespaces that use them.
    List {
        #[command(flatten)]
        cluster: ClusterOptions,
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
    /// Remove a name.
    Remove {
        /// The name.
        tag: String,
        /// Remove it although namespaces use it: their new Pods get no sidecar.
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        cluster: ClusterOptions,
    },
}

/// A name and what it means.
#[derive(Debug, clap::Args)]
pub struct TagArguments {
    /// The name, for the label istio.io/rev; `default` is also that of istio-injection=enabled.
    tag: String,
    /// The revision.
    #[arg(short, long, value_name = "NAME")]
    revision: String,
}

pub async fn run(command: &TagCommand, out: &mut dyn Write) -> anyhow::Result<u8> {
    match command {
        TagCommand::Set { tag, overwrite, cluster } => set(&connect(cluster).await?, tag, *overwrite, out).await?,
        TagCommand::Generate { tag, cluster } => {
            let generated = tags::tag(&tag.tag, &tag.revision, &injectors(&connect(cluster).await?).await?)?;
            write!(out, "{}", serde_saphyr::to_string(&generated)?)?;
        }
        TagCommand::List { cluster, output } => list(&connect(cluster).await?, *output, out).await?,
        TagCommand::Remove { tag, force, cluster } => remove(&connect(cluster).await?, tag, *force, out).await?,
    }
    Ok(0)
}

async fn injectors(cluster: &Cluster) -> anyhow::Result<Vec<Value>> {
    Ok(cluster.list(CONFIGURATION, Selection { namespace: None, labels: tags::INJECTORS }).await?)
}

async fn tags_in(cluster: &Cluster) -> anyhow::Result<Vec<tags::Tag>> {
    let namespace = ObjectKind { api_version: "v1", kind: "Namespace" };
    let namespaces = cluster.list(namespace, Selection::default()).await?;
    Ok(tags::list(&injectors(cluster).await?, &namespaces))
}

async fn set(cluster: &Cluster, tag: &TagArguments, overwrite: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let injectors = injectors(cluster).await?;
    let generated = tags::tag(&tag.tag, &tag.revision, &injectors)?;
    let existing = tags::list(&injectors, &[]).into_iter().find(|found| found.tag == tag.tag);
    if let Some(existing) = existing.filter(|found| found.revision != tag.revision && !overwrite) {
        bail!("the tag {} means revision {} now; --overwrite changes that", tag.tag, existing.revision);
    }
    let options = ApplyOptions { manager: MANAGER.to_owned(), dry_run: false, force: overwrite };
    cluster.apply(&generated, &options).await?;
    writeln!(
        out,
        "{} means revision {}: new Pods of its namespaces get that revision's sidecars",
        tag.tag, tag.revision
    )?;
    Ok(())
}

async fn list(cluster: &Cluster, output: Output, out: &mut dyn Write) -> anyhow::Result<()> {
    let found = tags_in(cluster).await?;
    match output {
        Output::Json => writeln!(out, "{:#}", serde_json::json!(found))?,
        Output::Text => {
            let row = |cells: [&str; 3]| format!("{:16} {:16} {}", cells[0], cells[1], cells[2]).trim_end().to_owned();
            writeln!(out, "{}", row(["TAG", "REVISION", "NAMESPACES"]))?;
            for tag in found {
                writeln!(out, "{}", row([&tag.tag, &tag.revision, &tag.namespaces.join(",")]))?;
            }
        }
    }
    Ok(())
}

async fn remove(cluster: &Cluster, name: &str, force: bool, out: &mut dyn Write) -> anyhow::Result<()> {
    let all = tags_in(cluster).await?;
    let Some(tag) = all.into_iter().find(|tag| tag.tag == name) else { bail!("there is no tag {name}") };
    if !tag.namespaces.is_empty() && !force {
        bail!("namespaces use {name}: {}; label them otherwise, or use --force", tag.namespaces.join(", "));
    }
    let injectors = injectors(cluster).await?;
    let is_it = |found: &&Value| found["metadata"]["labels"][tags::TAG_LABEL] == name;
    for found in injectors.iter().filter(is_it) {
        cluster.delete(found).await?;
        writeln!(out, "{}: deleted", text_of(found, "/metadata/name"))?;
    }
    Ok(())
}
