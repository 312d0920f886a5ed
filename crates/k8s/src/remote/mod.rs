//! Remote clusters: the endpoints of other clusters of the mesh, which Secrets name as Istio's do (`istioctl create-remote-secret`).
//!
//! ```text
//!  Secrets with the label istio/multiCluster: "true"
//!      │ each key a cluster, each value a kubeconfig
//!      ▼
//!  cluster: one task each ──► watches of Services, EndpointSlices, Pods (source) ──► one ObjectFeed of all remote clusters
//! ```
//!
//! A cluster that cannot be followed keeps what it has said, and is an alarm; only a Secret that is gone removes a cluster.

mod cluster;
mod kubeconfig;
pub(crate) mod place;
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use evenkeel_admin::clusters::{RemoteClusters, SyncStatus};
use evenkeel_api::remote::is_cluster_name;
use evenkeel_base::{Rank, SourceId};
use evenkeel_control::source::feed::{ObjectFeed, ObjectSource};
use futures_util::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Client};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::reason::reason;
use crate::token_review::clusters::RemoteReviews;
use crate::watch::failure;
use cluster::{Access, Shared};
use status::ClusterState;

/// The rank of the source: the control plane's own cluster takes precedence.
const RANK: Rank = Rank(201);
/// The label of Secrets that name remote clusters, and its value.
pub const LABEL: &str = "istio/multiCluster";
/// Its value.
pub const LABEL_VALUE: &str = "true";
/// Istio's variable for the time that a start waits for remote clusters.
const TIMEOUT: &str = "PILOT_REMOTE_CLUSTER_TIMEOUT";
/// Its default, as in Istio.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// Maximum number of clusters; each has its own connections and watches.
const MAX_CLUSTERS: usize = 256;
/// Maximum number of states that wait to be taken over.
const MAX_STATES: usize = 64;
/// How long after a failure the Secrets are watched again.
const RETRY: Duration = Duration::from_secs(2);

/// Which clusters, and how long a start waits for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteOptions {
    /// The namespace of the Secrets: the control plane's.
    pub namespace: String,
    /// The root namespace, whose label says which network a cluster is in.
    pub root: String,
    /// The name of the control plane's own cluster.
    pub own: String,
    /// How long a cluster may take until its objects are listed.
    pub timeout: Duration,
}

/// A variable has an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {TIMEOUT}: `{0}` is no duration, such as `30s`")]
pub struct TimeoutError(String);

/// Reads the time that a start waits, through `lookup`.
///
/// # Errors
/// If the variable is no duration.
pub fn timeout_from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Duration, TimeoutError> {
    match lookup(TIMEOUT).filter(|text| !text.is_empty()) {
        None => Ok(DEFAULT_TIMEOUT),
        Some(text) => evenkeel_base::duration::parse(&text).map_err(|_| TimeoutError(text)),
    }
}

/// The remote clusters that are followed; they end with this value.
#[derive(Debug)]
pub struct Remotes {
    known: watch::Receiver<Known>,
    page: watch::Receiver<RemoteClusters>,
    reviews: RemoteReviews,
    timeout: Duration,
    task: JoinHandle<()>,
}

/// What is known of all clusters.
#[derive(Debug, Clone, Default)]
struct Known {
    /// Whether the Secrets have been listed once.
    is_listed: bool,
    states: BTreeMap<String, ClusterState>,
    /// Why Secrets cannot be watched now.
    failing: Option<String>,
}

/// Follows the remote clusters that Secrets name, and returns the source of their objects.
pub fn start(client: Client, options: RemoteOptions) -> (Remotes, ObjectSource) {
    let (feed, source) = ObjectFeed::new(SourceId::new("remote-clusters", RANK));
    let (known, follow) = watch::channel(Known::default());
    let (page, pages) = watch::channel(RemoteClusters::default());
    let (states, received) = mpsc::channel(MAX_STATES);
    let reviews = RemoteReviews::default();
    let shared = Shared {
        feed: feed.clone(),
        root: options.root.clone(),
        timeout: options.timeout,
        reviews: reviews.clone(),
        states,
    };
    let timeout = options.timeout;
    let registry =
        Registry { client, options, shared, known, page, secrets: BTreeMap::new(), clusters: BTreeMap::new() };
    (Remotes { known: follow, page: pages, reviews, timeout, task: tokio::spawn(registry.run(received)) }, source)
}

impl Remotes {
    /// Waits until every cluster is listed or has failed, and no longer than the time for that.
    pub async fn settled(&mut self) {
        let is_settled =
            |known: &Known| known.is_listed && known.states.values().all(|state| state.status != SyncStatus::Syncing);
        let settled = tokio::time::timeout(self.timeout, self.known.wait_for(is_settled)).await.is_ok();
        if !settled {
            let known = self.known.borrow();
            let is_open = |(_, state): &(&String, &ClusterState)| state.status == SyncStatus::Syncing;
            let waiting: Vec<&str> = known.states.iter().filter(is_open).map(|(name, _)| name.as_str()).collect();
            let (waiting, failing) = (waiting.join(", "), &known.failing);
            tracing::error!(
                waiting,
                failing,
                "remote clusters are not listed in time: proxies are served without them"
            );
        }
    }

    /// Who verifies the tokens of the clusters.
    pub fn reviews(&self) -> RemoteReviews {
        self.reviews.clone()
    }

    /// What is known of the clusters; changes with it.
    pub fn page(&self) -> watch::Receiver<RemoteClusters> {
        self.page.clone()
    }
}

impl Drop for Remotes {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A Secret that names clusters.
#[derive(Debug, Clone, PartialEq, Eq)]
struct RemoteSecret {
    created: i64,
    kubeconfigs: BTreeMap<String, Vec<u8>>,
}

/// The task of a cluster, which ends when this is dropped.
struct Followed {
    access: watch::Sender<Access>,
    task: JoinHandle<()>,
}

struct Registry {
    client: Client,
    options: RemoteOptions,
    shared: Shared,
    known: watch::Sender<Known>,
    page: watch::Sender<RemoteClusters>,
    secrets: BTreeMap<String, RemoteSecret>,
    clusters: BTreeMap<String, Followed>,
}

impl Registry {
    async fn run(mut self, mut states: mpsc::Receiver<(String, ClusterState)>) {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &self.options.namespace);
        let config = watcher::Config::default().labels(&format!("{LABEL}={LABEL_VALUE}"));
        let mut events = watcher::watcher(api.clone(), config.clone()).boxed();
        let mut listed = BTreeMap::new();
        loop {
            tokio::select! {
                Some(event) = events.next() => match event {
                    Ok(event) => if self.note(event, &mut listed) {
                        self.reconcile(&mut states).await;
                    },
                    Err(error) => {
                        // That the server no longer has the changes since the last one is no failure.
                        if failure(&error).is_some() {
                            let reason = reason(&error);
                            tracing::warn!(reason, "Secrets of remote clusters cannot be watched");
                            self.change(|known| known.failing = Some(reason));
                            tokio::time::sleep(RETRY).await;
                        }
                        // A watch that goes on says nothing of it; a new one lists everything, which shows that it works.
                        events = watcher::watcher(api.clone(), config.clone()).boxed();
                    }
                },
                Some((name, state)) = states.recv() => self.take(name, state),
            }
        }
    }

    /// Takes over an event about a Secret; returns whether clusters may have changed.
    fn note(&mut self, event: Event<Secret>, listed: &mut BTreeMap<String, RemoteSecret>) -> bool {
        match event {
            Event::Init => listed.clear(),
            Event::InitApply(secret) => listed.extend([read(&secret)]),
            Event::InitDone => {
                self.secrets = std::mem::take(listed);
                return true;
            }
            Event::Apply(secret) => {
                self.secrets.extend([read(&secret)]);
                return true;
            }
            Event::Delete(secret) => {
                self.secrets.remove(&read(&secret).0);
                return true;
            }
        }
        false
    }

    /// Starts and ends the tasks of clusters, and gives them their kubeconfigs.
    async fn reconcile(&mut self, states: &mut mpsc::Receiver<(String, ClusterState)>) {
        let (wanted, refused) = wanted(&self.secrets, &self.options.own);
        let over: Vec<String> = self.clusters.keys().filter(|name| !wanted.contains_key(*name)).cloned().collect();
        for name in over {
            let Some(Followed { access, mut task }) = self.clusters.remove(&name) else { continue };
            drop(access);
            // It reports until it has ended.
            loop {
                tokio::select! {
                    _ = &mut task => break,
                    Some((name, state)) = states.recv() => self.take(name, state),
                }
            }
        }
        for (name, access) in &wanted {
            if let Some(known) = self.clusters.get(name) {
                known.access.send_if_modified(|now| {
                    let is_new = now != access;
                    now.clone_from(access);
                    is_new
                });
                continue;
            }
            self.take(name.clone(), ClusterState::now(&access.secret, SyncStatus::Syncing, None));
            let (sender, receiver) = watch::channel(access.clone());
            let task = tokio::spawn(cluster::follow(name.clone(), receiver, self.shared.clone()));
            self.clusters.insert(name.clone(), Followed { access: sender, task });
        }
        self.change(|known| {
            known.is_listed = true;
            known.failing = None;
            known.states.retain(|name, _| wanted.contains_key(name) || refused.contains_key(name));
            for (name, (secret, reason)) in refused {
                let state = ClusterState::now(&secret, SyncStatus::Failed, Some(reason));
                if known.states.get(&name).is_none_or(|before| !before.says_the_same(&state)) {
                    let reason = &state.reason;
                    tracing::error!(cluster = name, secret, reason, "a key of a Secret makes no remote cluster");
                    known.states.insert(name, state);
                }
            }
        });
    }

    fn take(&self, name: String, state: ClusterState) {
        self.change(|known| _ = known.states.insert(name, state));
    }

    /// Changes what is known, and what pages and findings say of it.
    fn change(&self, change: impl FnOnce(&mut Known)) {
        self.known.send_modify(change);
        let page = {
            let known = self.known.borrow();
            let states = known.states.iter().map(|(name, state)| (name.as_str(), state));
            status::page(states, known.failing.as_deref(), &self.options.namespace)
        };
        self.shared.feed.set_notes(status::notes(&page));
        self.page.send_if_modified(|before| {
            let is_new = *before != page;
            *before = page;
            is_new
        });
    }
}

/// The clusters that Secrets name, and the keys that make none, each with its Secret and the reason.
type ClusterNames = (BTreeMap<String, Access>, BTreeMap<String, (String, String)>);

fn wanted(secrets: &BTreeMap<String, RemoteSecret>, own: &str) -> ClusterNames {
    // The oldest Secret has a name: a new one cannot take a cluster over.
    let mut all: Vec<(&String, &RemoteSecret)> = secrets.iter().collect();
    all.sort_by_key(|(name, secret)| (secret.created, *name));
    let (mut wanted, mut refused): ClusterNames = Default::default();
    let mut taken: BTreeSet<&str> = BTreeSet::new();
    for (secret, name, kubeconfig) in
        all.iter().flat_map(|(secret, of)| of.kubeconfigs.iter().map(move |(name, text)| (*secret, name, text)))
    {
        let reason = if name == own {
            Some("it is the name of the control plane's own cluster (`--cluster`)".to_owned())
        } else if !is_cluster_name(name) {
            Some("it cannot be the name of a cluster".to_owned())
        } else if wanted.len() >= MAX_CLUSTERS {
            Some(format!("there are more than {MAX_CLUSTERS} clusters"))
        } else {
            None
        };
        match reason {
            Some(reason) => _ = refused.entry(name.clone()).or_insert((secret.clone(), reason)),
            None if taken.insert(name) => {
                wanted.insert(name.clone(), Access { secret: secret.clone(), kubeconfig: kubeconfig.clone() });
            }
            None => {
                let first = wanted.get(name).map(|access| access.secret.clone()).unwrap_or_default();
                let reason = format!("the older Secret {first} has a cluster of this name, which counts");
                refused.entry(format!("{name} ({secret})")).or_insert((secret.clone(), reason));
            }
        }
    }
    (wanted, refused)
}

/// The name of a Secret, and its kubeconfigs.
fn read(secret: &Secret) -> (String, RemoteSecret) {
    let metadata = &secret.metadata;
    let name = format!(
        "{}/{}",
        metadata.namespace.as_deref().unwrap_or_default(),
        metadata.name.as_deref().unwrap_or_default()
    );
    let created = metadata.creation_timestamp.as_ref().map_or(0, |time| time.0.as_second());
    let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone()));
    (name, RemoteSecret { created, kubeconfigs: data.collect() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_is_that_of_one_cluster() {
        let secret = |created: i64, keys: &[&str]| RemoteSecret {
            created,
            kubeconfigs: keys.iter().map(|key| ((*key).to_owned(), created.to_string().into_bytes())).collect(),
        };
        let secrets = BTreeMap::from([
            ("istio-system/a".to_owned(), secret(9, &["west", "Kubernetes"])),
            ("istio-system/b".to_owned(), secret(5, &["west", "north"])),
        ]);
        let (wanted, refused) = wanted(&secrets, "Kubernetes");
        let of = |name: &str| wanted.get(name).map(|access| access.secret.as_str());
        assert_eq!([of("west"), of("north"), of("Kubernetes")], [Some("istio-system/b"), Some("istio-system/b"), None]);
        let refused: Vec<&str> = refused.keys().map(String::as_str).collect();
        assert_eq!(refused, ["Kubernetes", "west (istio-system/a)"]);
    }

    #[test]
    fn the_time_that_a_start_waits_is_istios_variable() {
        let check = |value: Option<&str>, expected: Option<u64>| {
            let found = timeout_from_env(|name| value.filter(|_| name == TIMEOUT).map(str::to_owned));
            assert_eq!(found.ok().map(|time| time.as_secs()), expected, "{value:?}");
        };
        check(None, Some(30));
        check(Some(""), Some(30));
        check(Some("5s"), Some(5));
        check(Some("soon"), None);
    }
}
