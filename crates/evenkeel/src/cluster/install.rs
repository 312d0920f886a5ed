//! `evenkeel install`: the objects of the chart, applied by server-side apply, until they work.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use evenkeel_install::checks::{self, Outcome, Stage};
use evenkeel_install::crds::VERSION_ANNOTATION;
use evenkeel_install::{MANAGER, Release, Rendered, Values, upgrade};
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

/// Flags about a release, of `install` and `upgrade`.
#[derive(Debug, clap::Args)]
pub struct ReleaseArguments {
    /// File with values of the chart; may be repeated.
    #[arg(short = 'f', long = "values", value_name = "FILE")]
    values: Vec<PathBuf>,

    /// A value of the chart, as Helm writes them; may be repeated.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    set: Vec<String>,

    /// Take over fields that others, such as Helm, have set to other values.
    #[arg(long)]
    pub(super) force_conflicts: bool,

    /// Go on even if a check before the installation fails.
    #[arg(long)]
    pub(super) skip_checks: bool,

    /// How long to wait until it works, in seconds; 0: do not wait.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub(super) timeout: u64,

    #[command(flatten)]
    pub(super) target: Target,
}

/// Flags of `evenkeel install`.
#[derive(Debug, clap::Args)]
pub struct InstallArguments {
    /// Print the objects, and change nothing.
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    release: ReleaseArguments,
}

/// Objects to apply, and what to do next.
pub(super) struct Applicable {
    /// The objects of the release, with its namespace and the record of its values.
    pub objects: Vec<Value>,
    /// What differs from the values of the chart.
    pub changes: Value,
    /// What is printed at the end.
    pub notes: String,
}

impl ReleaseArguments {
    /// The objects with the values of the flags over others.
    pub(super) fn objects(&self, mut values: Values, is_first: bool) -> anyhow::Result<Applicable> {
        for path in &self.values {
            let file = path.display().to_string();
            let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
            values.merge_file(&file, &text)?;
        }
        self.set.iter().try_for_each(|setting| values.set(setting))?;
        let mut changes = values.changes();
        let revision = changes.as_object_mut().and_then(|fields| fields.remove("revision"));
        if let Some(revision) = revision.filter(|revision| *revision != self.target.revision()) {
            bail!("the value `revision` is {revision}: name a revision by --revision, as the checks need it, too");
        }
        if !self.target.revision().is_empty() {
            values.set_revision(self.target.revision());
        }
        let namespace = self.target.namespace.clone();
        let record = upgrade::record(&namespace, self.target.revision(), &changes);
        let release = Release { namespace, manager: MANAGER.to_owned(), is_first, values };
        let Rendered { objects, notes } = release.render()?;
        let objects = with_namespace(&self.target, objects.into_iter().chain([record]));
        Ok(Applicable { objects, changes, notes })
    }
}

pub async fn run(arguments: &InstallArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    let InstallArguments { dry_run, release } = arguments;
    if *dry_run {
        for object in release.objects(Values::default(), true)?.objects {
            writeln!(out, "---\n{}", serde_saphyr::to_string(&object)?.trim_end())?;
        }
        return Ok(0);
    }
    let cluster = connect(&release.target.cluster).await?;
    check_before(&cluster, release, out).await?;
    let is_first = is_first(&cluster, &release.target).await?;
    let Applicable { objects, notes, .. } = release.objects(Values::default(), is_first)?;
    apply_all(&cluster, &objects, release.force_conflicts, out).await?;
    if release.timeout > 0 {
        let limit = Duration::from_secs(release.timeout);
        progress::until_it_works(&cluster, &release.target, limit, out).await?;
    }
    write!(out, "\n{notes}")?;
    Ok(0)
}

/// Fails if a check before the installation fails. Some are never skipped, as users' objects would be lost.
pub(super) async fn check_before(
    cluster: &Cluster,
    release: &ReleaseArguments,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let picture = observe::picture(cluster, &release.target, Stage::Before).await;
    let mut failed = checks::run(Stage::Before, &picture);
    failed.retain(has_failed);
    if release.skip_checks {
        let is_binding = |outcome: &Outcome| checks::BINDING.contains(&outcome.name.as_str());
        let (binding, skipped): (Vec<_>, Vec<_>) = failed.into_iter().partition(is_binding);
        if !skipped.is_empty() {
            writeln!(out, "checks that have failed are skipped:\n{}", text(&skipped))?;
        }
        failed = binding;
    }
    if failed.is_empty() {
        return Ok(());
    }
    bail!(
        "nothing is changed, as checks have failed (--skip-checks goes on, unless objects would be lost)\n{}",
        text(&failed)
    );
}

/// Whether the control plane has not taken over yet what it owns later: the validating webhook begins with `Ignore`.
pub(super) async fn is_first(cluster: &Cluster, target: &Target) -> anyhow::Result<bool> {
    let kind = ObjectKind { api_version: "admissionregistration.k8s.io/v1", kind: "ValidatingWebhookConfiguration" };
    let suffix = if target.revision().is_empty() { String::new() } else { format!("-{}", target.revision()) };
    let name = format!("istio-validator{suffix}-{}", target.namespace);
    let Some(found) = cluster.get(kind, None, &name).await? else { return Ok(true) };
    let mut webhooks = found["webhooks"].as_array().into_iter().flatten();
    Ok(webhooks.any(|webhook| webhook["failurePolicy"] == "Ignore"))
}

/// The objects with their namespace before them.
fn with_namespace(target: &Target, objects: impl Iterator<Item = Value>) -> Vec<Value> {
    let namespace = json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": target.namespace, "labels": {"app.kubernetes.io/managed-by": MANAGER}},
    });
    std::iter::once(namespace).chain(objects).collect()
}

/// Applies all objects, and says what has changed.
pub(super) async fn apply_all(
    cluster: &Cluster,
    objects: &[Value],
    force: bool,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let options = ApplyOptions { manager: MANAGER.to_owned(), dry_run: false, force };
    for object in objects {
        let (kind, name) = (text_of(object, "/kind"), text_of(object, "/metadata/name"));
        match left_alone(cluster, object).await? {
            Some(LeftAlone::Namespace) => continue,
            Some(LeftAlone::OfOthers) => {
                writeln!(out, "{kind} {name}: stays as it is, as others have installed it")?;
                continue;
            }
            None => {}
        }
        let changed = cluster.apply(object, &options).await.with_context(|| {
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

/// Why an object is not applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftAlone {
    /// The namespace is there.
    Namespace,
    /// A definition is there that is not of this program: Istio's accept the same objects.
    OfOthers,
}

/// Whether an object stays as it is.
pub(super) async fn left_alone(cluster: &Cluster, object: &Value) -> anyhow::Result<Option<LeftAlone>> {
    let kind = text_of(object, "/kind");
    if kind != "Namespace" && kind != DEFINITION {
        return Ok(None);
    }
    let of = ObjectKind { api_version: text_of(object, "/apiVersion"), kind };
    let Some(found) = cluster.get(of, None, text_of(object, "/metadata/name")).await? else { return Ok(None) };
    let is_own = !found["metadata"]["annotations"][VERSION_ANNOTATION].is_null();
    Ok(match kind {
        DEFINITION if is_own => None,
        DEFINITION => Some(LeftAlone::OfOthers),
        _ => Some(LeftAlone::Namespace),
    })
}
