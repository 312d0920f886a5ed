//! `evenkeel upgrade`: from an installed release to that of this program, in place or as a further revision, with a preview.

mod configuration;
mod preview;

use std::io::{self, BufRead as _, IsTerminal as _, Write};
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, bail};
use evenkeel_install::{MANAGER, Values, in_uninstall_order, upgrade};
use evenkeel_k8s::cluster::{Cluster, ObjectKind, Selection};
use serde_json::Value;

use self::preview::Preview;
use super::install::{Applicable, ReleaseArguments, apply_all, check_before, is_first};
use super::object::text_of;
use super::{Target, connect, progress, uninstall};
use crate::admin;
use crate::formats::Output;

pub const EXAMPLES: &str = "\
Examples:
  evenkeel upgrade --dry-run                        # what would change, on this cluster's own objects
  evenkeel upgrade                                  # in place, after a question
  evenkeel upgrade --yes --set meshConfig.accessLogFile=/dev/stdout
  evenkeel upgrade --revision canary                # beside the installed release; then `evenkeel tag set prod --revision canary`

Values are those that the installed release has recorded, with the ones of the command line over them.";

const VERSION: &str = env!("CARGO_PKG_VERSION");
const DEPLOYMENT: ObjectKind<'_> = ObjectKind { api_version: "apps/v1", kind: "Deployment" };
const CONFIG_MAP: ObjectKind<'_> = ObjectKind { api_version: "v1", kind: "ConfigMap" };

/// Flags of `evenkeel upgrade`.
#[derive(Debug, clap::Args)]
pub struct UpgradeArguments {
    /// Print what would change, and change nothing.
    #[arg(long)]
    dry_run: bool,

    /// Upgrade without a question.
    #[arg(short, long)]
    yes: bool,

    /// Start with the values of the chart, and not with those that the installed release has recorded.
    #[arg(long)]
    reset_values: bool,

    /// Of a revision that is not installed yet: start with the recorded values of this one [default: the only one].
    #[arg(long, value_name = "REVISION", conflicts_with = "reset_values")]
    from: Option<String>,

    /// Go on although the installed release is newer than this program.
    #[arg(long)]
    allow_downgrade: bool,

    /// With --timeout 0, which does not wait: delete at once what only the old release has. Programs that run may still need it.
    #[arg(long)]
    prune: bool,

    /// HTTP port of the running control plane, for the comparison with what it runs [default: found by port forwarding].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address)]
    control_plane: Option<SocketAddr>,

    #[command(flatten)]
    release: ReleaseArguments,

    /// Format of the preview; JSON only with --dry-run.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// A control plane that is installed.
#[derive(Debug, Clone)]
struct Installed {
    /// Its revision; empty: the default one.
    revision: String,
    /// Its version.
    version: String,
    /// The label `app.kubernetes.io/managed-by`.
    manager: String,
}

impl Installed {
    fn of(deployment: &Value) -> Self {
        let label = |name: &str| deployment["metadata"]["labels"][name].as_str().unwrap_or_default().to_owned();
        let revision = label("istio.io/rev");
        Self {
            revision: if revision == "default" { String::new() } else { revision },
            version: label("app.kubernetes.io/version"),
            manager: label("app.kubernetes.io/managed-by"),
        }
    }

    /// The revision as people write it.
    fn name(&self) -> &str {
        if self.revision.is_empty() { "default" } else { &self.revision }
    }
}

/// What happens to which release.
struct Plan {
    /// The release that is replaced; `None`: the revision comes beside others.
    replaced: Option<Installed>,
    /// The values to start with.
    values: Values,
}

pub async fn run(arguments: &UpgradeArguments, out: &mut dyn Write) -> anyhow::Result<u8> {
    if arguments.output == Output::Json && !arguments.dry_run {
        bail!("-o json is for --dry-run");
    }
    let (release, target) = (&arguments.release, &arguments.release.target);
    let cluster = connect(&target.cluster).await?;
    let plan = plan(&cluster, arguments).await?;
    let is_first = is_first(&cluster, target).await?;
    let applicable = release.objects(plan.values, is_first)?;
    let mut heard = Vec::new();
    check_before(&cluster, release, &mut heard).await?;
    let obsolete = obsolete(&cluster, target, &applicable.objects).await?;
    let mut preview = Preview::of_objects(&cluster, release.force_conflicts, &applicable, &obsolete).await?;
    preview.name(target, plan.replaced.as_ref());
    preview.configuration = configuration::compare(&cluster, target, arguments.control_plane).await;
    match arguments.output {
        Output::Json => writeln!(out, "{:#}", serde_json::json!(preview))?,
        Output::Text => write!(out, "{}{}", String::from_utf8_lossy(&heard), preview.to_text())?,
    }
    preview.refuse_conflicts()?;
    if arguments.dry_run {
        return Ok(0);
    }
    if !arguments.yes && !confirmed(out)? {
        writeln!(out, "nothing is changed")?;
        return Ok(1);
    }
    apply(&cluster, release, &applicable, out).await?;
    if release.timeout > 0 || arguments.prune || obsolete.is_empty() {
        prune(&cluster, obsolete, out).await?;
    } else {
        // The programs that run may still need them.
        writeln!(
            out,
            "{} objects that only the old release has stay, because --timeout 0 does not wait for the new one; --prune deletes them",
            obsolete.len()
        )?;
    }
    write!(out, "\n{}", preview.next_steps())?;
    Ok(0)
}

/// Finds the release that is replaced, and the values to start with.
async fn plan(cluster: &Cluster, arguments: &UpgradeArguments) -> anyhow::Result<Plan> {
    let target = &arguments.release.target;
    let selection = Selection { namespace: Some(&target.namespace), labels: "app=istiod" };
    let found = cluster.list(DEPLOYMENT, selection).await?;
    let all: Vec<Installed> = found.iter().map(Installed::of).collect();
    let replaced = all.iter().find(|installed| installed.revision == target.revision()).cloned();
    let source = match &replaced {
        Some(installed) => {
            refuse_others(installed)?;
            if upgrade::is_older(VERSION, &installed.version) && !arguments.allow_downgrade {
                bail!(
                    "revision {} is of {}, which is newer than this program ({VERSION}): it may have stored what this one does not \
                     understand (--allow-downgrade goes on)",
                    installed.name(),
                    installed.version
                );
            }
            installed.clone()
        }
        None => beside(&all, arguments)?,
    };
    let mut values = Values::default();
    if !arguments.reset_values {
        let record = recorded(cluster, target, &source).await?;
        let yaml = upgrade::recorded(&record).unwrap_or_default();
        let mut changes: Value = serde_json::from_str(yaml).context("the record of the values cannot be read")?;
        if replaced.is_none() {
            changes = upgrade::for_another_revision(changes);
        }
        values.merge_file(&upgrade::record_name(&source.revision), &changes.to_string())?;
    }
    Ok(Plan { replaced, values })
}

fn refuse_others(installed: &Installed) -> anyhow::Result<()> {
    match installed.manager.as_str() {
        MANAGER => Ok(()),
        "Helm" => bail!("revision {} is a release of Helm: upgrade it by `helm upgrade`", installed.name()),
        _ => bail!(
            "revision {} is not of this program; `evenkeel install --revision NAME` comes beside it",
            installed.name()
        ),
    }
}

/// The release whose values a further revision takes.
fn beside(all: &[Installed], arguments: &UpgradeArguments) -> anyhow::Result<Installed> {
    let target = &arguments.release.target;
    let own: Vec<&Installed> = all.iter().filter(|installed| installed.manager == MANAGER).collect();
    let names = || own.iter().map(|installed| installed.name()).collect::<Vec<_>>().join(", ");
    if own.is_empty() {
        bail!("nothing of this program is installed in {}: `evenkeel install` installs", target.namespace);
    }
    if target.revision().is_empty() {
        bail!("the default revision is not installed; there is {}: name one by --revision", names());
    }
    let found = match arguments.from.as_deref() {
        Some(from) => own.iter().find(|installed| installed.name() == from),
        None if own.len() == 1 || arguments.reset_values => own.first(),
        None => {
            bail!("revision {} is new: name the revision whose values it takes by --from ({})", target.label(), names())
        }
    };
    let found = found.with_context(|| format!("--from names no revision of this program; there is {}", names()))?;
    Ok((*found).clone())
}

async fn recorded(cluster: &Cluster, target: &Target, source: &Installed) -> anyhow::Result<Value> {
    let name = upgrade::record_name(&source.revision);
    let found = cluster.get(CONFIG_MAP, Some(&target.namespace), &name).await?;
    found.with_context(|| {
        format!(
            "there is no ConfigMap {name} with the values of revision {}: name all values again, with --reset-values",
            source.name()
        )
    })
}

/// What the installed release has and the new one does not.
async fn obsolete(cluster: &Cluster, target: &Target, objects: &[Value]) -> anyhow::Result<Vec<Value>> {
    let existing = uninstall::of_revision(cluster, target).await?;
    // A release of the same revision in another namespace has the same labels; its objects without a namespace name that one.
    let suffix = format!("-{}", target.namespace);
    let is_own = |object: &Value| {
        text_of(object, "/metadata/namespace") == target.namespace
            || text_of(object, "/metadata/name").ends_with(&suffix)
    };
    let existing: Vec<Value> = existing.into_iter().filter(is_own).collect();
    let mut obsolete = upgrade::obsolete(&existing, objects);
    in_uninstall_order(&mut obsolete);
    Ok(obsolete)
}

/// Asks on the terminal.
fn confirmed(out: &mut dyn Write) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("nothing is changed: nobody can be asked here (--yes upgrades, --dry-run only shows)");
    }
    write!(out, "\nUpgrade? [y/N] ")?;
    out.flush()?;
    let mut line = String::new();
    io::stdin().lock().read_line(&mut line)?;
    Ok(matches!(line.trim(), "y" | "Y" | "yes"))
}

async fn apply(
    cluster: &Cluster,
    release: &ReleaseArguments,
    applicable: &Applicable,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    writeln!(out)?;
    apply_all(cluster, &applicable.objects, release.force_conflicts, out).await?;
    if release.timeout > 0 {
        let limit = Duration::from_secs(release.timeout);
        progress::until_it_works(cluster, &release.target, limit, out).await.context(
            "the new release is applied, and nothing of the old one is deleted yet; the old program's `upgrade --allow-downgrade` goes back",
        )?;
    }
    Ok(())
}

/// Deletes what is obsolete, once the new release works: until then the old one may need it.
async fn prune(cluster: &Cluster, obsolete: Vec<Value>, out: &mut dyn Write) -> anyhow::Result<()> {
    for object in &obsolete {
        let (kind, name) = (text_of(object, "/kind"), text_of(object, "/metadata/name"));
        cluster.delete(object).await?;
        writeln!(out, "{kind} {name}: deleted, as the new release does not have it")?;
    }
    Ok(())
}
