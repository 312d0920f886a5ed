//! What an upgrade would change: objects of the release, as the API server sees it, and the configuration of the mesh.

use std::fmt::Write as _;

use anyhow::bail;
use evenkeel_install::{MANAGER, upgrade};
use evenkeel_k8s::cluster::{ApplyOptions, Cluster, ClusterError, Preview as Application};
use serde::Serialize;
use serde_json::Value;

use super::super::Target;
use super::super::install::{Applicable, left_alone};
use super::super::object::text_of;
use super::configuration::Configuration;
use super::{Installed, VERSION};

/// Maximum number of fields that are named of one object.
const MAX_FIELDS: usize = 4;

/// The preview.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Preview {
    /// The revision.
    revision: String,
    /// The version that is installed; `None`: the revision comes beside others.
    from: Option<String>,
    /// The version of this program.
    to: String,
    /// The values that differ from those of the chart.
    values: Value,
    /// Objects that change, in the order in which they are applied and deleted.
    objects: Vec<Changed>,
    /// How many objects stay as they are.
    unchanged: usize,
    /// The mesh's configuration.
    pub configuration: Configuration,
}

/// An object that changes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Changed {
    kind: String,
    name: String,
    #[serde(flatten)]
    change: Change,
}

/// How it changes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", tag = "change")]
enum Change {
    /// It is new.
    Created,
    /// These fields differ.
    Configured { fields: Vec<String> },
    /// It goes.
    Deleted,
    /// Another manager has set fields to other values, or the API server refuses it.
    Refused { reason: String },
}

impl Preview {
    /// Asks the API server about each object, without storing anything.
    pub async fn of_objects(
        cluster: &Cluster,
        force: bool,
        applicable: &Applicable,
        obsolete: &[Value],
    ) -> anyhow::Result<Self> {
        let options = ApplyOptions { manager: MANAGER.to_owned(), dry_run: true, force };
        let mut preview = Self { values: applicable.changes.clone(), to: VERSION.to_owned(), ..Self::default() };
        for object in &applicable.objects {
            let change = match left_alone(cluster, object).await? {
                Some(_) => None,
                None => change(cluster.preview(object, &options).await)?,
            };
            match change {
                Some(change) => preview.objects.push(Changed::of(object, change)),
                None => preview.unchanged += 1,
            }
        }
        preview.objects.extend(obsolete.iter().map(|object| Changed::of(object, Change::Deleted)));
        Ok(preview)
    }

    /// Says what is replaced.
    pub fn name(&mut self, target: &Target, replaced: Option<&Installed>) {
        self.revision = target.label().to_owned();
        self.from = replaced.map(|installed| installed.version.clone());
    }

    /// Fails if an object would not be applied: half an upgrade is worse than none.
    pub fn refuse_conflicts(&self) -> anyhow::Result<()> {
        let refused = self.objects.iter().filter(|object| matches!(object.change, Change::Refused { .. })).count();
        if refused > 0 {
            bail!(
                "nothing is changed: the API server refuses {refused} objects; --force-conflicts takes fields over that another manager has set"
            );
        }
        Ok(())
    }

    /// The preview for people.
    pub fn to_text(&self) -> String {
        let mut text = match &self.from {
            Some(from) => format!("Revision {}: {from} to {}, in place\n", self.revision, self.to),
            None => format!("Revision {}: {}, beside what is installed\n", self.revision, self.to),
        };
        let counted = if self.objects.is_empty() { "no object changes".to_owned() } else { self.counts() };
        // Writing to a String does not fail.
        let _ = writeln!(text, "\nObjects of the release: {counted}, {} unchanged", self.unchanged);
        self.objects.iter().for_each(|object| text += &object.line());
        text + &self.configuration.to_text()
    }

    fn counts(&self) -> String {
        let count = |wanted: fn(&Change) -> bool| self.objects.iter().filter(|object| wanted(&object.change)).count();
        let all = [
            ("created", count(|change| matches!(change, Change::Created))),
            ("changed", count(|change| matches!(change, Change::Configured { .. }))),
            ("deleted", count(|change| matches!(change, Change::Deleted))),
            ("refused", count(|change| matches!(change, Change::Refused { .. }))),
        ];
        let all = all.into_iter().filter(|(_, count)| *count > 0).map(|(word, count)| format!("{count} {word}"));
        all.collect::<Vec<_>>().join(", ")
    }

    /// What to do next.
    pub fn next_steps(&self) -> String {
        let revision = &self.revision;
        match &self.from {
            Some(_) => {
                "Sidecars are of the old version until their Pods are created again; `evenkeel check` names them:\n  \
                        kubectl rollout restart deployment -n NAMESPACE\n"
                    .to_owned()
            }
            None => format!(
                "Revision {revision} runs beside the others, and injects nobody yet. Next:\n  \
                 evenkeel tag set NAME --revision {revision} --overwrite   # for the namespaces with istio.io/rev=NAME\n  \
                 kubectl rollout restart deployment -n NAMESPACE\n  \
                 evenkeel check --revision {revision}\n  \
                 evenkeel uninstall --revision OLD                 # refuses while Pods have its sidecars\n"
            ),
        }
    }
}

impl Changed {
    fn of(object: &Value, change: Change) -> Self {
        let text = |pointer: &str| text_of(object, pointer).to_owned();
        Self { kind: text("/kind"), name: text("/metadata/name"), change }
    }

    fn line(&self) -> String {
        let Self { kind, name, change } = self;
        match change {
            Change::Created => format!("  + {kind} {name}\n"),
            Change::Deleted => format!("  - {kind} {name}: the new release does not have it\n"),
            Change::Refused { reason } => format!("  ! {kind} {name}: {reason}\n"),
            Change::Configured { fields } => {
                let shown = fields.iter().take(MAX_FIELDS).cloned().collect::<Vec<_>>().join(", ");
                let more = fields.len().saturating_sub(MAX_FIELDS);
                let more = if more > 0 { format!(" and {more} more") } else { String::new() };
                format!("  ~ {kind} {name}: {shown}{more}\n")
            }
        }
    }
}

/// How an object would change; `None`: not at all.
fn change(application: Result<Application, ClusterError>) -> anyhow::Result<Option<Change>> {
    Ok(match application {
        Ok(Application { before: None, .. }) => Some(Change::Created),
        Ok(Application { before: Some(before), after }) => {
            let fields = upgrade::differences(&before, &after);
            (!fields.is_empty()).then_some(Change::Configured { fields })
        }
        Err(ClusterError::Refused { message, .. }) => Some(Change::Refused { reason: message }),
        Err(error) => return Err(error.into()),
    })
}
