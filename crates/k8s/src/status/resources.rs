//! Under which name and version the API server serves a kind, and whether that has a status.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_base::ObjectRef;
use kube::Client;
use kube::discovery::{self, ApiResource};
use kube::error::DiscoveryError;
use tokio::sync::Mutex;

/// How long the answer about a group counts: definitions of kinds come and go.
const MAX_AGE: Duration = Duration::from_secs(60);

/// A kind as the API server serves it.
#[derive(Debug, Clone)]
pub(super) struct Resource {
    pub(super) api: ApiResource,
    /// Whether it has the subresource `status`.
    pub(super) has_status: bool,
}

/// What is known of groups.
pub(super) struct Resources {
    client: Client,
    groups: Mutex<HashMap<&'static str, Group>>,
}

#[derive(Clone)]
struct Group {
    since: Instant,
    kinds: Arc<HashMap<String, Resource>>,
}

impl Resources {
    pub(super) fn new(client: Client) -> Self {
        Self { client, groups: Mutex::default() }
    }

    /// The kind of an object; `None` if it is not served.
    pub(super) async fn find(&self, object: &ObjectRef) -> Result<Option<Resource>, kube::Error> {
        // One question for all objects that wait for its answer.
        let mut groups = self.groups.lock().await;
        if let Some(group) = groups.get(object.group).filter(|group| group.since.elapsed() < MAX_AGE) {
            return Ok(group.kinds.get(object.kind).cloned());
        }
        let kinds = match discovery::group(&self.client, object.group).await {
            Ok(group) => kinds(&group),
            Err(kube::Error::Discovery(DiscoveryError::MissingApiGroup(_))) => HashMap::new(),
            Err(error) => return Err(error),
        };
        let found = kinds.get(object.kind).cloned();
        groups.insert(object.group, Group { since: Instant::now(), kinds: Arc::new(kinds) });
        Ok(found)
    }
}

fn kinds(group: &discovery::ApiGroup) -> HashMap<String, Resource> {
    let mut kinds = HashMap::new();
    // The preferred version of a kind comes first.
    let versions = std::iter::once(group.preferred_version_or_latest()).chain(group.versions());
    for (api, capabilities) in versions.flat_map(|version| group.versioned_resources(version)) {
        let has_status = capabilities.subresources.iter().any(|(subresource, _)| subresource.plural == "status");
        kinds.entry(api.kind.clone()).or_insert(Resource { api, has_status });
    }
    kinds
}
