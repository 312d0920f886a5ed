//! `/debug/clusterz`: the remote clusters whose objects the control plane reads.

use serde::{Deserialize, Serialize};

/// The path of the page, as istiod's.
pub const PATH: &str = "/debug/clusterz";

/// What is known of remote clusters. The page is the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RemoteClusters {
    /// The clusters by name, and the keys of Secrets that make none.
    pub clusters: Vec<RemoteCluster>,
    /// Why the Secrets that name clusters cannot be read now.
    pub failing: Option<String>,
}

/// A remote cluster, an entry of the page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct RemoteCluster {
    /// Its name: the key in the Secret.
    pub id: String,
    /// The Secret, `NAMESPACE/NAME`.
    pub secret_name: String,
    /// How far it is.
    pub sync_status: SyncStatus,
    /// Why.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Since when, as HTTP writes dates.
    pub since: String,
}

/// How far the objects of a cluster are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncStatus {
    /// They are being listed for the first time.
    Syncing,
    /// They are known and followed.
    Synced,
    /// They were not listed in time: the control plane serves without them.
    Timeout,
    /// They were known, and cannot be followed now: the last ones stay.
    Outage,
    /// The kubeconfig cannot be used; one before it stays in use. Or a state that this version does not know.
    #[serde(other)]
    Failed,
}

impl SyncStatus {
    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Syncing => "syncing",
            Self::Synced => "synced",
            Self::Timeout => "timeout",
            Self::Outage => "outage",
            Self::Failed => "failed",
        }
    }

    /// Whether somebody has to look.
    pub fn is_alarm(self) -> bool {
        matches!(self, Self::Timeout | Self::Outage | Self::Failed)
    }
}
