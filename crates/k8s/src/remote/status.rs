//! The states of remote clusters, for pages, findings and logs.

use std::time::SystemTime;

use evenkeel_admin::clusters::{RemoteCluster, RemoteClusters, SyncStatus};
use evenkeel_base::{Diagnostic, Diagnostics, Span};
use evenkeel_control::source::SOURCE_OUTAGE;

/// Where findings about remote clusters are: in no object.
const PLACE: &str = "remote-clusters";

/// The state of a cluster, or of a key of a Secret that makes none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ClusterState {
    /// The Secret, `NAMESPACE/NAME`.
    pub(crate) secret: String,
    pub(crate) status: SyncStatus,
    /// Why it is so, if that is known.
    pub(crate) reason: Option<String>,
    /// Since when.
    pub(crate) since: SystemTime,
}

impl ClusterState {
    /// A state that begins now.
    pub(crate) fn now(secret: &str, status: SyncStatus, reason: Option<String>) -> Self {
        Self { secret: secret.to_owned(), status, reason, since: SystemTime::now() }
    }

    /// Whether both say the same.
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        (&self.secret, self.status, &self.reason) == (&other.secret, other.status, &other.reason)
    }
}

/// Stands for all Secrets, where they cannot be read; no cluster has this name.
const SECRETS: &str = "(Secrets)";

/// The page about all of them; `failing`: why the Secrets of the namespace cannot be read. It is then an entry of the list, because
/// who sees an empty one would believe that there are no clusters.
pub(crate) fn page<'s>(
    all: impl Iterator<Item = (&'s str, &'s ClusterState)>,
    failing: Option<&str>,
    namespace: &str,
) -> RemoteClusters {
    let one = |(id, state): (&str, &ClusterState)| RemoteCluster {
        id: id.to_owned(),
        secret_name: state.secret.clone(),
        sync_status: state.status,
        reason: state.reason.clone(),
        since: httpdate::fmt_http_date(state.since),
    };
    let secrets = failing.map(|reason| RemoteCluster {
        id: SECRETS.to_owned(),
        secret_name: format!("{namespace}/*"),
        sync_status: SyncStatus::Failed,
        reason: Some(format!("the Secrets of remote clusters cannot be read: {reason}")),
        since: String::new(),
    });
    RemoteClusters { clusters: all.map(one).chain(secrets).collect(), failing: failing.map(str::to_owned) }
}

/// The findings: a cluster that cannot be followed is an alarm.
pub(crate) fn notes(page: &RemoteClusters) -> Diagnostics {
    let mut notes = Diagnostics::new();
    let help = "what it has said last stays in force; `evenkeel remote-clusters` shows all of them (docs/kubernetes-multicluster.md)";
    let mut warn = |text: String| {
        notes.push(Diagnostic::warning(SOURCE_OUTAGE, Span::whole_file(PLACE), text).with_help(help));
    };
    for cluster in page.clusters.iter().filter(|cluster| cluster.sync_status.is_alarm() && cluster.id != SECRETS) {
        let RemoteCluster { id, secret_name, sync_status, reason, .. } = cluster;
        let reason = reason.as_deref().unwrap_or("no answer yet");
        warn(format!(
            "remote cluster `{id}` (key `{id}` of Secret {secret_name}) is {}: {reason}",
            sync_status.as_str()
        ));
    }
    if let Some(reason) = &page.failing {
        warn(format!("the Secrets of remote clusters cannot be read: {reason}"));
    }
    notes
}
