//! `evenkeel install`: the objects of the chart, applied by server-side apply, until they work.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_install::checks::{self, Stage};
use evenkeel_install::crds::VERSION_ANNOTATION;
use evenkeel_install::{MANAGER, Release, Rendered, Values};
use evenkeel_k8s::cluster::{ApplyOptions, Change, Cluster, ObjectKind};
use serde_json::{Value, json};

use super::check::{has_failed, text};
use super::object::text_of;
use super::{Target, connect, observe, progress};

pub const EXAMPLES: &str = "\
Examples:
  evenkeel install
  evenkeel install --set global.hub=registry.example/mesh --set meshConfig.accessLogFile=/dev/stdout
  evenkeel install --revision canary --values canary.yaml
  evenkeel install --dry-run > manifests.yaml

The values are those of charts/evenkeel.";

/// Kind of definitions.
const DEFINITION: &str = "CustomResourceDefinition";

/// Flags of `evenkeel install`.
#[derive(Debug, clap::Args)]
pub struct InstallArguments {
    /// File with values of the chart; may be repeated.
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    values: Vec<PathBuf>,

    /// A value of the chart, as Helm writes them; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Print the objects, and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Take over fields that others, such as Helm, have set to other values.
    #[arg(long)]
    force_conflicts: bool,

    /// Install even if a check before the installation fails.
    #[arg(long)]
    skip_checks: bool,

    /// How long to wait until it works, in seconds; 0: do not wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=3600))]
    timeout: u64,

    #[command(flatten)]
    target: Target,
}

impl InstallArguments {
    fn release(&self, is_first: bool) -> anyhow::Result<Rendered> {
        let mut values = Values::default();
        for path in &self.values {
            let file = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
            values.merge_file(&file, &text)?;
        }
        self.set.iter().try_for_each(|setting| values.set(setting))?;
        if !self.target.revision().is_empty() {
            values.set_revision(self.target.revision());
        }
        let release =
            Release { namespace: self.target.namespace.clone(), manager: MANAGER.to_owned(), is_first, values };
        Ok(release.render()?)
    }
}

pub async fn run(arguments: &InstallArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    if arguments.dry_run {
        for object in with_namespace(&arguments.target, arguments.release(true)?.objects) {
            writeln!(out, "---\n{}", serde_saphyr::to_string(&object)?.trim_end())?;
        }
        return Ok(0);
    }
    let cluster = connect(&arguments.target.cluster).await?;
    if !arguments.skip_checks {
        let picture = observe::picture(&cluster, &arguments.target, Stage::Before).await;
        let mut failed = checks::run(Stage::Before, &picture);
        failed.retain(has_failed);
        if !failed.is_empty() {
            bail!("nothing is installed, as checks have failed (--skip-checks installs anyway)\n{}", text(&failed));
        }
    }
    let rendered = arguments.release(is_first(&cluster, &arguments.target).await?)?;
    apply_all(&cluster, arguments, rendered.objects, out).await?;
    if arguments.timeout > 0 {
        let limit = Duration::from_secs(arguments.timeout);
        progress::until_it_works(&cluster, &arguments.target, limit, out).await?;
    }
    write!(out, "\n{}", rendered.notes)?;
    Ok(0)
}

/// Whether the control plane has not taken over yet what it owns later: the validating webhook begins with `Ignore`.
async fn is_first(cluster: &Cluster, target: &Target) -> anyhow::Result<bool> {
    let kind = ObjectKind { api_version: "admissionregistration.k8s.io/v1", kind: "ValidatingWebhookConfiguration" };
    let suffix = if target.revision().is_empty() { String::new() } else { format!("-{}", target.revision()) };
    let name = format!("istio-validator{suffix}-{}", target.namespace);
    let Some(found) = cluster.get(kind, None, &name).await? else { return Ok(true) };
    let mut webhooks = found["webhooks"].as_array().into_iter().flatten();
    Ok(webhooks.any(|webhook| webhook["failurePolicy"] == "Ignore"))
}

/// The objects with their namespace before them.
fn with_namespace(target: &Target, objects: Vec<Value>) -> Vec<Value> {
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": target.namespace, "labels": {"app.kubernetes.io/managed-by": MANAGER}},
    });
    std::iter::once(namespace).chain(objects).collect()
}

async fn apply_all(
    cluster: &Cluster,
    arguments: &InstallArguments,
    objects: Vec<Value>,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let options = ApplyOptions { manager: MANAGER.to_owned(), dry_run: false, force: arguments.force_conflicts };
    for object in with_namespace(&arguments.target, objects) {
        let (kind, name) = (text_of(&object, "/kind"), text_of(&object, "/metadata/name"));
        if kind == "Namespace" && exists(cluster, &object).await?.is_some() {
            continue;
        }
        if kind == DEFINITION && is_of_others(exists(cluster, &object).await?.as_ref()) {
            writeln!(out, "{kind} {name}: stays as it is, as others have installed it")?;
            continue;
        }
        let changed = cluster.apply(&object, &options).await.with_context(|| {
            "not installed as a whole; a conflict of field managers names who owns the field (--force-conflicts takes it over)"
        })?;
        let word = match changed {
            Change::Created => "created",
            Change::Configured => "configured",
            Change::Unchanged => "unchanged",
        };
        writeln!(out, "{kind} {name}: {word}")?;
    }
    Ok(())
}

async fn exists(cluster: &Cluster, object: &Value) -> anyhow::Result<Option<Value>> {
    let kind = ObjectKind { api_version: text_of(object, "/apiVersion"), kind: text_of(object, "/kind") };
    Ok(cluster.get(kind, None, text_of(object, "/metadata/name")).await?)
}

/// Whether a definition is there that is not of this program: Istio's accept the same objects.
fn is_of_others(found: Option<&Value>) -> bool {
    found.is_some_and(|found| found["metadata"]["annotations"][VERSION_ANNOTATION].is_null())
}
