//! Reads once what a cluster has, for the commands of people.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_api::{Object, ObjectKey, load_object};
use evenkeel_base::Diagnostics;
use evenkeel_control::source::objects::PastObject;

use crate::client::{ClientError, ClusterOptions, ExecPlugins};
use crate::source::{self, Progress, Scope};

/// Maximum time that reading may take.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What was read.
#[derive(Debug)]
pub struct ClusterObjects {
    /// The objects, in the order of precedence.
    pub objects: Vec<Object>,
    /// The findings about single objects.
    pub findings: Diagnostics,
    /// The kinds that RBAC forbids to read, each with the reason.
    pub left_out: BTreeMap<String, String>,
}

/// Why a cluster is not read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// There is no client.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The API server cannot be followed.
    #[error("the API server cannot be read: {0}")]
    Unreachable(String),
    /// Something is missing.
    #[error("not everything could be read within {limit} s: {0}", limit = TIMEOUT.as_secs())]
    Incomplete(String),
}

/// Reads everything that a control plane reads, or nothing: a part of it would be judged differently. Programs that the user's own file
/// names may be run for credentials.
pub async fn read(options: &ClusterOptions, scope: &Scope) -> Result<ClusterObjects, ReadError> {
    let client = options.client(ExecPlugins::Run).await?;
    let (watching, source) = source::start(client, scope);
    let mut follow = watching.progress();
    let ended = follow.wait_for(|progress| progress.is_synced || progress.outage.is_some());
    let Progress { is_synced, outage, missing, left_out } = match tokio::time::timeout(TIMEOUT, ended).await {
        Ok(Ok(progress)) => progress.clone(),
        Ok(Err(_)) | Err(_) => watching.progress().borrow().clone(),
    };
    match outage {
        _ if is_synced => {}
        Some(reason) => return Err(ReadError::Unreachable(reason)),
        None => {
            let missing = missing.iter().map(|(kind, reason)| format!("{kind}{reason}")).collect::<Vec<_>>();
            return Err(ReadError::Incomplete(missing.join(", ")));
        }
    }
    let mut all: Vec<PastObject> = watching.objects();
    all.sort_by_cached_key(|object| (object.created, ObjectKey::of_json(&object.json.value())));
    let (mut objects, mut findings) = (Vec::new(), Diagnostics::new());
    for object in all {
        let (read, found) = load_object(evenkeel_model::Source::id(&source), &object.json.value());
        objects.extend(read);
        findings.extend(found);
    }
    Ok(ClusterObjects { objects, findings, left_out })
}
