//! One remote cluster: its watches, and the kubeconfig that they use.
//!
//! A new kubeconfig takes over only when its client has shown that it can list what is needed: until then the one before it is in use,
//! so that a mistake in a Secret takes no endpoint from anybody.

use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_admin::clusters::SyncStatus;
use evenkeel_control::source::feed::ObjectFeed;
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::{Namespace, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams, WatchParams};
use kube::core::{ObjectList, PartialObjectMeta, WatchEvent};
use kube::{Client, Resource};
use tokio::sync::{mpsc, oneshot, watch};

use super::kubeconfig;
use super::place::RemotePlace;
use super::status::ClusterState;
use crate::reason::reason;
use crate::source::{Objects, Order, Progress, Watching, start_of};
use crate::token_review::clusters::RemoteReviews;
use crate::watched::watched_in_remote;

/// How long a new client may take to show that it can list.
const PROBE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long it is tried whether objects can be watched, in seconds.
const PROBE_WATCH_SECONDS: u32 = 1;
/// How soon a client that failed is tried again; it doubles up to [`MAX_RETRY`].
const MIN_RETRY: Duration = Duration::from_secs(1);
/// See [`MIN_RETRY`].
const MAX_RETRY: Duration = Duration::from_secs(30);

/// Why nothing of a cluster changes any more.
const ENDED: &str = "its watches have ended, which is a defect; restart the control plane";

/// A kubeconfig, and the Secret that it is from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Access {
    /// `NAMESPACE/NAME`.
    pub(super) secret: String,
    pub(super) kubeconfig: Vec<u8>,
}

/// What all remote clusters have in common.
#[derive(Debug, Clone)]
pub(super) struct Shared {
    pub(super) feed: ObjectFeed,
    pub(super) root: String,
    /// How long a cluster may take until its objects are listed.
    pub(super) timeout: Duration,
    /// Who verifies the tokens of clusters.
    pub(super) reviews: RemoteReviews,
    /// Takes the states of clusters.
    pub(super) states: mpsc::Sender<(String, ClusterState)>,
}

/// The task of a cluster. It ends, and removes the cluster's objects, when the sender of `access` is dropped.
pub(super) async fn follow(name: String, mut access: watch::Receiver<Access>, shared: Shared) {
    let mut cluster = RemoteCluster { name, shared, began: Instant::now(), running: None, last: None };
    let mut retry = MIN_RETRY;
    loop {
        let now = access.borrow_and_update().clone();
        let failure = cluster.take(&now).await.err();
        if let Some(error) = &failure {
            cluster.report(&now.secret, SyncStatus::Failed, Some(cluster.failing(error))).await;
        }
        let again = match &failure {
            Some(AccessError::Unusable(_)) | None => None,
            Some(AccessError::Failed(_)) => Some(retry),
        };
        retry = if failure.is_some() { (retry * 2).min(MAX_RETRY) } else { MIN_RETRY };
        let is_reporting = failure.is_none();
        tokio::select! {
            changed = access.changed() => match changed {
                Ok(()) => retry = MIN_RETRY,
                Err(_) => return cluster.end().await,
            },
            () = sleep(again) => {}
            () = cluster.watch(&now.secret, is_reporting) => {}
        }
    }
}

async fn sleep(time: Option<Duration>) {
    match time {
        Some(time) => tokio::time::sleep(time).await,
        None => std::future::pending().await,
    }
}

/// Why a kubeconfig is not in use.
#[derive(Debug, thiserror::Error)]
enum AccessError {
    /// It can never be.
    #[error("{0}")]
    Unusable(String),
    /// Its server has not given what is needed.
    #[error("{0}")]
    Failed(String),
}

struct RemoteCluster {
    name: String,
    shared: Shared,
    /// When the first kubeconfig came.
    began: Instant,
    running: Option<Running>,
    /// What was reported last.
    last: Option<ClusterState>,
}

struct Running {
    watching: Watching,
    orders: mpsc::Sender<Order>,
    kubeconfig: Vec<u8>,
}

impl RemoteCluster {
    /// Uses a kubeconfig: the first at once, a later one when its client has shown that it works.
    async fn take(&mut self, access: &Access) -> Result<(), AccessError> {
        if self.running.as_ref().is_some_and(|running| running.kubeconfig == access.kubeconfig) {
            return Ok(());
        }
        let config = kubeconfig::read(&access.kubeconfig).await;
        let config = config.map_err(|error| AccessError::Unusable(error.to_string()))?;
        let server = config.cluster_url.clone();
        let client = Client::try_from(config).map_err(|error| AccessError::Unusable(reason(&error)))?;
        if let Some(running) = &mut self.running {
            probe(&client).await.map_err(AccessError::Failed)?;
            self.shared.reviews.set(&self.name, client.clone());
            let is_taken = running.orders.send(Order::Use(client)).await.is_ok();
            if !is_taken {
                return Err(AccessError::Unusable(ENDED.to_owned()));
            }
            self.began = Instant::now();
            running.kubeconfig.clone_from(&access.kubeconfig);
            tracing::info!(cluster = self.name, %server, "the remote cluster is followed with its new kubeconfig");
            return Ok(());
        }
        self.shared.reviews.set(&self.name, client.clone());
        let (orders, received) = mpsc::channel(1);
        let objects = Objects {
            feed: self.shared.feed.clone(),
            wanted: watched_in_remote(),
            root: &self.shared.root,
            revision: "",
            remote: Some(Arc::new(RemotePlace::new(&self.name))),
        };
        tracing::info!(cluster = self.name, %server, secret = access.secret, "a remote cluster is followed");
        let watching = start_of(client, objects, received);
        self.running = Some(Running { watching, orders, kubeconfig: access.kubeconfig.clone() });
        Ok(())
    }

    /// Reports how far the watches are, until something else happens. `is_reporting`: nothing more important is to be said.
    async fn watch(&mut self, secret: &str, is_reporting: bool) {
        if !is_reporting {
            return std::future::pending().await;
        }
        let Some(running) = &self.running else { return std::future::pending().await };
        let mut progress = running.watching.progress();
        loop {
            let is_late = self.began.elapsed() >= self.shared.timeout;
            let (status, reason) = state_of(&mut progress, is_late);
            self.report(secret, status, reason).await;
            if progress.has_changed().is_err() && status == SyncStatus::Failed {
                return std::future::pending().await;
            }
            let left =
                (status == SyncStatus::Syncing).then(|| self.shared.timeout.saturating_sub(self.began.elapsed()));
            tokio::select! {
                // That they have ended is reported as a state.
                _ = progress.changed() => {}
                () = sleep(left) => {}
            }
        }
    }

    async fn report(&mut self, secret: &str, status: SyncStatus, reason: Option<String>) {
        let state = ClusterState::now(secret, status, reason);
        if self.last.as_ref().is_some_and(|last| last.says_the_same(&state)) {
            return;
        }
        let (cluster, reason) = (&self.name, &state.reason);
        if status.is_alarm() {
            tracing::error!(cluster, secret, status = status.as_str(), reason, "a remote cluster needs attention");
        } else {
            tracing::info!(cluster, secret, status = status.as_str(), "remote cluster");
        }
        self.last = Some(state.clone());
        _ = self.shared.states.send((self.name.clone(), state)).await;
    }

    /// What is said of an error.
    fn failing(&self, error: &AccessError) -> String {
        match self.running {
            Some(_) => format!("{error}; the kubeconfig before it stays in use"),
            None => error.to_string(),
        }
    }

    /// Ends the watches, and removes their objects.
    async fn end(self) {
        self.shared.reviews.remove(&self.name);
        let Some(running) = self.running else { return };
        let (ended, wait) = oneshot::channel();
        let is_told = running.orders.send(Order::End(ended)).await.is_ok();
        if is_told && wait.await.is_ok() {
            tracing::info!(
                cluster = self.name,
                "no Secret names the remote cluster any more: its endpoints are removed"
            );
        } else {
            tracing::error!(
                cluster = self.name,
                "no Secret names the remote cluster any more, and its endpoints stay until a restart: {ENDED}"
            );
        }
    }
}

/// The state of a cluster with this progress.
fn state_of(progress: &mut watch::Receiver<Progress>, is_late: bool) -> (SyncStatus, Option<String>) {
    if progress.has_changed().is_err() {
        return (SyncStatus::Failed, Some(ENDED.to_owned()));
    }
    status_of(&progress.borrow_and_update(), is_late)
}

fn status_of(progress: &Progress, is_late: bool) -> (SyncStatus, Option<String>) {
    let missing =
        progress.missing.iter().map(|(kind, reason)| format!("{kind}{reason}")).collect::<Vec<_>>().join(", ");
    let missing = (!missing.is_empty()).then_some(missing);
    // What is forbidden needs somebody, and an outage may pass; at first everything is missing.
    let outage = progress.outage.clone();
    let reason = if progress.is_synced { missing.or(outage) } else { outage.or(missing) };
    match (progress.is_synced, is_late) {
        (true, _) if reason.is_some() => (SyncStatus::Outage, reason),
        (true, _) => (SyncStatus::Synced, None),
        (false, true) => (SyncStatus::Timeout, reason),
        (false, false) => (SyncStatus::Syncing, None),
    }
}

/// Whether a client can list and watch what is needed.
async fn probe(client: &Client) -> Result<(), String> {
    let all = async {
        tokio::try_join!(
            probe_one::<Service>(client, "Services"),
            probe_one::<EndpointSlice>(client, "EndpointSlices"),
            probe_one::<Pod>(client, "Pods"),
            probe_one::<Namespace>(client, "Namespaces"),
        )
    };
    let in_time = tokio::time::timeout(PROBE_TIMEOUT, all).await;
    in_time.unwrap_or_else(|_| Err(format!("no answer within {} s", PROBE_TIMEOUT.as_secs()))).map(drop)
}

async fn probe_one<K>(client: &Client, kind: &str) -> Result<(), String>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let api: Api<K> = Api::all(client.clone());
    let unlisted = |error: kube::Error| format!("{kind} cannot be listed: {}", reason(&error));
    let listed: ObjectList<PartialObjectMeta<K>> =
        api.list_metadata(&ListParams::default().limit(1)).await.map_err(unlisted)?;
    let unwatched = |reason: String| format!("{kind} cannot be watched: {reason}");
    let since = listed.metadata.resource_version.unwrap_or_default();
    let watched = api.watch_metadata(&WatchParams::default().timeout(PROBE_WATCH_SECONDS), &since).await;
    // Without changes the server ends the watch in time.
    match Box::pin(watched.map_err(|error| unwatched(reason(&error)))?).next().await {
        Some(Err(error)) => Err(unwatched(reason(&error))),
        Some(Ok(WatchEvent::Error(status))) => Err(unwatched(status.message.clone())),
        Some(Ok(_)) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_that_cannot_be_followed_is_an_alarm() {
        let check = |is_synced: bool, outage: Option<&str>, is_late: bool, expected: SyncStatus| {
            let is_forbidden = outage == Some("forbidden");
            let outage = outage.filter(|_| !is_forbidden);
            let pods = ("Pod".to_owned(), " (why)".to_owned());
            let missing = if is_synced && !is_forbidden { [].into() } else { [pods].into() };
            let progress = Progress { is_synced, outage: outage.map(str::to_owned), missing, ..Progress::default() };
            let (status, reason) = status_of(&progress, is_late);
            assert_eq!(status, expected, "{progress:?}");
            assert_eq!(reason.is_some(), status.is_alarm(), "{progress:?}");
        };
        check(false, None, false, SyncStatus::Syncing);
        check(false, Some("refused"), false, SyncStatus::Syncing);
        check(false, Some("refused"), true, SyncStatus::Timeout);
        check(false, None, true, SyncStatus::Timeout);
        check(true, None, true, SyncStatus::Synced);
        check(true, Some("refused"), false, SyncStatus::Outage);
        check(true, Some("forbidden"), false, SyncStatus::Outage);
    }

    #[test]
    fn a_cluster_whose_watches_have_ended_has_failed() {
        let (sender, mut progress) = watch::channel(Progress { is_synced: true, ..Progress::default() });
        assert_eq!(state_of(&mut progress, false), (SyncStatus::Synced, None));
        drop(sender);
        assert_eq!(state_of(&mut progress, false), (SyncStatus::Failed, Some(ENDED.to_owned())));
    }
}
