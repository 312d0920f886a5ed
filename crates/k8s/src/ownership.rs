//! Which revision of the control plane answers for an object: writes its status, and deploys what it asks for. Others read it, too.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Client};

use crate::revision::{DEFAULT, REVISION, TAG};

/// For how long the answer about a namespace holds: the statuses of its objects are written together.
const VALIDITY: Duration = Duration::from_secs(5);

/// Knows what a revision answers for.
pub struct Ownership {
    client: Client,
    /// The revision of this control plane: `default`, or a name.
    revision: String,
    /// Whether objects without a label are its own, by their namespace.
    namespaces: Mutex<HashMap<String, Verdict>>,
}

/// An answer about a namespace.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    is_own: bool,
    at: Instant,
}

impl std::fmt::Debug for Ownership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ownership").field("revision", &self.revision).finish_non_exhaustive()
    }
}

impl Ownership {
    /// Creates the knowledge of this revision.
    pub fn new(client: Client, revision: &str) -> Self {
        Self { client, revision: revision.to_owned(), namespaces: Mutex::default() }
    }

    /// The client of the cluster.
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// Whether this revision answers for an object: by its label, or else by that of its namespace. The label may be a tag. Objects
    /// without one are the default revision's, or those of the revision that the tag `default` points to.
    pub async fn is_own(&self, metadata: &ObjectMeta) -> Result<bool, kube::Error> {
        if let Some(label) = label(metadata) {
            return self.is_own_label(label).await;
        }
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let known = self.lock().get(namespace).copied();
        if let Some(verdict) = known.filter(|verdict| verdict.at.elapsed() < VALIDITY) {
            return Ok(verdict.is_own);
        }
        let is_own = self.is_own_namespace(namespace).await?;
        self.lock().insert(namespace.to_owned(), Verdict { is_own, at: Instant::now() });
        Ok(is_own)
    }

    async fn is_own_namespace(&self, namespace: &str) -> Result<bool, kube::Error> {
        let found = match namespace {
            "" => None,
            namespace => Api::<Namespace>::all(self.client.clone()).get_metadata_opt(namespace).await?,
        };
        self.is_own_label(found.as_ref().and_then(|found| label(&found.metadata)).unwrap_or(DEFAULT)).await
    }

    async fn is_own_label(&self, label: &str) -> Result<bool, kube::Error> {
        if label == self.revision {
            return Ok(true);
        }
        let api: Api<MutatingWebhookConfiguration> = Api::all(self.client.clone());
        let tags = ListParams::default().labels(&format!("{TAG}={label},{REVISION}={}", self.revision));
        Ok(!api.list_metadata(&tags).await?.items.is_empty())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, Verdict>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn label(metadata: &ObjectMeta) -> Option<&str> {
    Some(metadata.labels.as_ref()?.get(REVISION)?.as_str())
}
