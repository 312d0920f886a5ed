//! The objects of a cluster as a source of the configuration.
//!
//! ```text
//!  discovery: which kinds are there? ◄── definitions of kinds that come, go and change
//!      │ one watch per kind
//!      ▼
//!  watch ──► convert: what proxies can see ──► localities: where Pods are ──► ObjectFeed ──► configuration
//! ```
//!
//! What the API server has not said to be gone stays: while it cannot be reached, everything does.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use evenkeel_api::remote::OWN_SOURCE;
use evenkeel_base::{Rank, SourceId};
use evenkeel_control::source::feed::{ObjectFeed, ObjectSource};
use evenkeel_control::source::objects::PastObject;
use kube::Client;
use kube::api::ApiResource;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{AbortHandle, JoinHandle, JoinSet};

use crate::definition_gaps::DefinitionGaps;
use crate::discovery::{self, Definitions, Presence};
use crate::last_objects::{LastObjects, Restored};
use crate::localities::Localities;
use crate::notes;
use crate::reason::reason;
use crate::remote::place::RemotePlace;
use crate::revision::Revisions;
use crate::secret_names::SecretNames;
use crate::watch::{self as kinds, Failure, Report, State, Target};
pub use crate::watched::Scope;
use crate::watched::{MAX_SECRET_WATCHES, Selection, Watched, watched};

/// The rank of the source: files take precedence.
const RANK: Rank = Rank(200);
/// Maximum time that the answers about kinds may take.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// How often the server is asked for its kinds where nothing says that they change.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(120);
/// How soon it is asked again while a kind is missing, or while it cannot be reached.
const DISCOVERY_RETRY: Duration = Duration::from_secs(2);
/// When it is asked after a definition has changed: it takes a moment until the kind is served.
const AFTER_CHANGES: [Duration; 3] = [Duration::from_millis(200), Duration::from_secs(1), Duration::from_secs(4)];
/// A server is reachable again when no watch has failed for this long; each failing one is tried at shorter intervals.
const QUIET: Duration = Duration::from_secs(12);
/// Maximum number of reports of watches that wait.
const MAX_REPORTS: usize = 64;
/// How long a start waits for an API server that cannot be reached before it takes the last objects.
const RESTORE_AFTER: Duration = Duration::from_secs(10);
/// How often it is logged what the start waits for.
const WAITING_INTERVAL: Duration = Duration::from_secs(10);

/// What the source watches, and how far it is.
#[derive(Debug)]
pub struct Watching {
    feed: ObjectFeed,
    progress: watch::Receiver<Progress>,
    task: JoinHandle<SourceStopped>,
}

/// How far the source is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// Whether everything has been listed once.
    pub is_synced: bool,
    /// What is not listed, and the reason if it is known.
    pub missing: BTreeMap<String, String>,
    /// What is left out because RBAC forbids it, and the mesh works without it.
    pub left_out: BTreeMap<String, String>,
    /// Why the API server cannot be followed now.
    pub outage: Option<String>,
}

/// The source has stopped, which is a defect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the watches of the Kubernetes API have ended")]
pub struct SourceStopped;

/// Watches what a control plane reads, and returns the source of it.
pub fn start(client: Client, scope: &Scope) -> (Watching, ObjectSource) {
    let (feed, source) = ObjectFeed::new(SourceId::new(OWN_SOURCE, RANK));
    let objects = Objects { feed, wanted: watched(scope), root: &scope.root, revision: &scope.revision, remote: None };
    // Its client stays.
    let (_, orders) = mpsc::channel(1);
    (start_of(client, objects, orders), source)
}

/// What a source has, and where it puts it.
pub(crate) struct Objects<'s> {
    pub(crate) feed: ObjectFeed,
    pub(crate) wanted: Vec<Watched>,
    pub(crate) root: &'s str,
    pub(crate) revision: &'s str,
    /// The remote cluster; `None`: the control plane's own.
    pub(crate) remote: Option<Arc<RemotePlace>>,
}

/// What the watches of a remote cluster are to do.
pub(crate) enum Order {
    /// Go on with another client. What they have put stays until it has listed everything again.
    Use(Client),
    /// End, and remove what they have put.
    End(oneshot::Sender<()>),
}

/// Watches objects.
pub(crate) fn start_of(client: Client, objects: Objects<'_>, orders: mpsc::Receiver<Order>) -> Watching {
    let Objects { feed, wanted, root, revision, remote } = objects;
    let (progress, follow) = watch::channel(Progress::default());
    let (sender, reports) = mpsc::channel(MAX_REPORTS);
    let supervisor = Supervisor {
        client,
        feed: feed.clone(),
        wanted,
        root: root.into(),
        remote,
        localities: Arc::default(),
        revisions: Arc::new(Revisions::new(revision)),
        secret_names: Arc::default(),
        secrets_beyond: 0,
        running: BTreeMap::new(),
        undecided: BTreeMap::new(),
        tasks: JoinSet::new(),
        sender,
        progress,
        failed: None,
        definitions: Arc::default(),
        gaps: DefinitionGaps::default(),
    };
    Watching { feed, progress: follow, task: tokio::spawn(supervisor.run(reports, orders)) }
}

impl Watching {
    /// Waits until everything has been listed once. Logs what it waits for.
    pub async fn synced(&mut self) -> Result<(), SourceStopped> {
        loop {
            let waiting = self.progress.wait_for(|progress| progress.is_synced);
            match tokio::time::timeout(WAITING_INTERVAL, waiting).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(_)) => return Err(SourceStopped),
                Err(_) => {}
            }
            let Progress { missing, outage, .. } = self.progress.borrow().clone();
            let missing = missing.iter().map(|(kind, reason)| format!("{kind}{reason}")).collect::<Vec<_>>().join(", ");
            tracing::warn!(missing, outage, "waiting for the objects of the cluster; proxies are not served yet");
        }
    }

    /// Waits until everything has been listed once, or until it is clear that the API server cannot be reached: then the objects
    /// that an earlier process has kept are in force until everything has been listed.
    pub async fn synced_or_restored(&mut self, last: &LastObjects) -> Result<(), SourceStopped> {
        let in_time = tokio::time::timeout(RESTORE_AFTER, self.synced()).await;
        match in_time {
            Ok(synced) => return synced,
            Err(_) if self.progress.borrow().outage.is_none() => return self.synced().await,
            Err(_) => {}
        }
        let outage = self.progress.borrow().outage.clone();
        match last.read() {
            Ok(Some(Restored { written, objects })) => {
                let age = written.elapsed().unwrap_or_default().as_secs();
                let count = objects.len();
                self.feed.restore(objects);
                tracing::warn!(
                    outage,
                    count,
                    age_s = age,
                    "the API server cannot be reached: its last objects are in force"
                );
                Ok(())
            }
            Ok(None) => self.synced().await,
            Err(error) => {
                tracing::error!(%error, "the last objects of the cluster cannot be read");
                self.synced().await
            }
        }
    }

    /// Keeps the objects for the next start, from the moment when everything has been listed; then what was restored and is not
    /// there any more is removed. Never completes.
    pub fn keep(&self, last: LastObjects) -> impl Future<Output = ()> + Send + 'static {
        let (mut progress, feed) = (self.progress.clone(), self.feed.clone());
        async move {
            if progress.wait_for(|progress| progress.is_synced).await.is_err() {
                return std::future::pending().await;
            }
            feed.confirm();
            last.keep(feed).await;
        }
    }

    /// The objects that are there now.
    pub fn objects(&self) -> Vec<PastObject> {
        self.feed.all()
    }

    /// How far the source is; changes with it.
    pub fn progress(&self) -> watch::Receiver<Progress> {
        self.progress.clone()
    }

    /// Completes when the source has stopped, which it does not while the process runs.
    pub async fn stopped(&mut self) -> SourceStopped {
        (&mut self.task).await.unwrap_or(SourceStopped)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts and ends the watches.
pub(crate) struct Supervisor {
    client: Client,
    feed: ObjectFeed,
    wanted: Vec<Watched>,
    root: Arc<str>,
    remote: Option<Arc<RemotePlace>>,
    localities: Arc<Mutex<Localities>>,
    revisions: Arc<Revisions>,
    pub(crate) secret_names: Arc<SecretNames>,
    /// How many watches of Secrets there would be beyond the limit.
    pub(crate) secrets_beyond: usize,
    pub(crate) running: BTreeMap<Selection, Running>,
    /// Kinds that may be there, and are not served.
    undecided: BTreeMap<Selection, &'static str>,
    tasks: JoinSet<()>,
    sender: mpsc::Sender<Report>,
    progress: watch::Sender<Progress>,
    /// When a watch failed last.
    failed: Option<Instant>,
    /// The definitions of kinds.
    definitions: Arc<Definitions>,
    /// What of them is not read.
    gaps: DefinitionGaps,
}

/// A watch.
pub(crate) struct Running {
    pub(crate) watched: Watched,
    pub(crate) resource: ApiResource,
    pub(crate) target: Target,
    pub(crate) task: AbortHandle,
    is_synced: bool,
    failure: Option<Failure>,
}

impl Supervisor {
    async fn run(mut self, mut reports: mpsc::Receiver<Report>, mut orders: mpsc::Receiver<Order>) -> SourceStopped {
        let mut following = self.tasks.spawn(self.definitions.clone().follow(self.client.clone()));
        let (definitions, secret_names) = (self.definitions.clone(), self.secret_names.clone());
        let mut due = BTreeSet::from([Instant::now()]);
        loop {
            let next = due.first().copied().unwrap_or_else(|| Instant::now() + DISCOVERY_INTERVAL);
            tokio::select! {
                () = tokio::time::sleep_until(next.into()) => {
                    due.retain(|at| *at > next);
                    let again = self.discover().await;
                    if due.is_empty() {
                        due.insert(Instant::now() + again);
                    }
                }
                () = definitions.changed() => due.extend(AFTER_CHANGES.map(|after| Instant::now() + after)),
                () = secret_names.changed.notified() => self.publish(false),
                Some(report) = reports.recv() => {
                    if self.note(report) {
                        due.insert(Instant::now() + DISCOVERY_RETRY);
                    }
                }
                Some(order) = orders.recv() => match order {
                    Order::Use(client) => {
                        following.abort();
                        following = self.tasks.spawn(self.definitions.clone().follow(client.clone()));
                        self.go_on_with(client);
                        due.insert(Instant::now());
                    }
                    Order::End(ended) => {
                        // One that still ran would put something after the removal.
                        self.tasks.shutdown().await;
                        self.running.values().for_each(|running| running.target.clear());
                        _ = ended.send(());
                        return SourceStopped;
                    }
                },
                Some(ended) = self.tasks.join_next() => if let Err(error) = ended && error.is_panic() {
                    tracing::error!(%error, "a watch has ended");
                    return SourceStopped;
                },
            }
        }
    }

    /// Starts all watches again with another client.
    fn go_on_with(&mut self, client: Client) {
        self.client = client;
        self.failed = None;
        let running: Vec<(Watched, ApiResource)> =
            self.running.values().map(|running| (running.watched.clone(), running.resource.clone())).collect();
        running.into_iter().for_each(|(watched, resource)| self.begin(watched, resource));
        // Whether this client can follow everything is yet to be seen.
        self.progress.send_if_modified(|progress| {
            progress.is_synced = false;
            false
        });
        self.publish(false);
    }

    /// Asks which kinds there are, and watches these. Returns when to ask again.
    async fn discover(&mut self) -> Duration {
        let discovery = discovery::discover(&self.client, &self.wanted, &self.definitions);
        let found = match tokio::time::timeout(DISCOVERY_TIMEOUT, discovery).await {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return self.unreachable(reason(&error)),
            Err(_) => return self.unreachable(format!("no answer within {} s", DISCOVERY_TIMEOUT.as_secs())),
        };
        for (watched, presence) in found {
            self.reconcile(watched, presence);
        }
        if let Some(versions) = self.definitions.versions() {
            // They are only told: what is read does not wait for them.
            _ = tokio::time::timeout(DISCOVERY_TIMEOUT, self.gaps.follow(&self.client, &versions)).await;
        }
        self.publish(true);
        let is_settled = self.undecided.is_empty() && self.failed.is_none();
        if is_settled { DISCOVERY_INTERVAL } else { DISCOVERY_RETRY }
    }

    fn reconcile(&mut self, watched: Watched, presence: Presence) {
        let selection = watched.selection.clone();
        self.undecided.remove(&selection);
        match presence {
            Presence::Served(resource) => {
                if self.running.get(&selection).is_none_or(|running| running.resource != resource) {
                    self.begin(watched, resource);
                }
            }
            Presence::Absent => self.end(&selection),
            Presence::Defined if !self.running.contains_key(&selection) => {
                _ = self.undecided.insert(selection, " (defined, and not served in a version that can be read)");
            }
            Presence::Unknown if !watched.is_custom() && !self.running.contains_key(&selection) => {
                _ = self.undecided.insert(selection, " (not served)");
            }
            // A server that has only just started may not serve them yet, and without policies more would pass.
            Presence::Hidden if !self.running.contains_key(&selection) => {
                let reason = " (not served, and RBAC forbids to list CustomResourceDefinitions, which would say whether it will be)";
                _ = self.undecided.insert(selection, reason);
            }
            Presence::Defined | Presence::Unknown | Presence::Hidden => {}
        }
    }

    /// Starts a watch, or starts it again in another version. What it has put stays until the list says otherwise.
    pub(crate) fn begin(&mut self, watched: Watched, resource: ApiResource) {
        let before = self.running.remove(&watched.selection);
        let target = match before {
            Some(Running { task, target, .. }) => {
                task.abort();
                target
            }
            None => Target {
                feed: self.feed.clone(),
                localities: self.localities.clone(),
                revisions: self.revisions.clone(),
                root: self.root.clone(),
                secret_names: self.secret_names.clone(),
                remote: self.remote.clone(),
                held: Arc::default(),
            },
        };
        tracing::debug!(kind = %watched.selection, version = resource.version, "watching");
        let keeping =
            kinds::keep(self.client.clone(), watched.clone(), resource.clone(), target.clone(), self.sender.clone());
        let task = self.tasks.spawn(keeping);
        let selection = watched.selection.clone();
        let running = Running { watched, resource, target, task, is_synced: false, failure: None };
        self.running.insert(selection, running);
    }

    /// Ends a watch of a kind that is gone, and removes its objects.
    fn end(&mut self, selection: &Selection) {
        let Some(running) = self.running.remove(selection) else { return };
        running.task.abort();
        running.target.clear();
        tracing::info!(kind = %selection, "the kind is gone");
    }

    /// Takes over what a watch reports. Returns whether to ask soon which kinds there are.
    fn note(&mut self, report: Report) -> bool {
        let Some(running) = self.running.get_mut(&report.selection) else { return false };
        let again = match report.state {
            State::Synced => {
                running.is_synced = true;
                running.failure = None;
                false
            }
            State::Failed(failure) => {
                if running.failure.as_ref() != Some(&failure) {
                    running.log(&failure);
                }
                let is_passing = matches!(failure, Failure::Passing(_));
                let again = failure == Failure::Absent || is_passing;
                if let Failure::Passing(reason) = &failure {
                    self.failed = Some(Instant::now());
                    self.progress.send_if_modified(|progress| progress.outage.replace(reason.clone()).is_none());
                }
                // What RBAC forbids stays forbidden while nobody answers: else the narrower watches of Secrets would end, and with them
                // the Secrets.
                if !(is_passing && running.is_left_out()) {
                    running.failure = Some(failure);
                }
                again
            }
        };
        self.publish(false);
        again
    }

    fn unreachable(&mut self, reason: String) -> Duration {
        tracing::debug!(reason, "the kinds of the API server are not known");
        self.failed = Some(Instant::now());
        self.progress.send_if_modified(|progress| {
            let is_new = progress.outage.is_none();
            if is_new {
                tracing::warn!(reason, "the API server cannot be followed; what it has said last stays in force");
            }
            progress.outage.get_or_insert(reason);
            is_new
        });
        self.publish(false);
        DISCOVERY_RETRY
    }

    /// Publishes how far the source is. `is_reachable`: the server has just answered.
    fn publish(&mut self, is_reachable: bool) {
        if is_reachable && self.failed.is_some_and(|at| at.elapsed() >= QUIET) {
            self.failed = None;
        }
        self.select_secrets();
        let missing: BTreeMap<String, String> = self
            .running
            .values()
            .filter(|running| running.is_missing())
            .map(|running| (running.watched.selection.to_string(), running.reason()))
            .chain(self.undecided.iter().map(|(selection, reason)| (selection.to_string(), (*reason).to_owned())))
            .collect();
        let left_out = self.running.values().filter(|running| running.is_left_out() && !self.is_replaced(running));
        let left_out: BTreeMap<String, String> =
            left_out.map(|running| (running.watched.selection.to_string(), running.reason())).collect();
        let beyond = (self.secrets_beyond > 0).then(|| {
            let reason = format!(" (at most {MAX_SECRET_WATCHES} watches of Secrets)");
            (format!("{} further Secrets by name", self.secrets_beyond), reason)
        });
        let left_out: BTreeMap<String, String> = left_out.into_iter().chain(beyond).collect();
        let is_complete = !self.running.is_empty() && missing.is_empty();
        let is_followed = self.failed.is_none();
        self.progress.send_if_modified(|progress| {
            let before = progress.clone();
            if is_complete && !progress.is_synced {
                tracing::info!(watches = self.running.len(), "the objects of the cluster are listed");
            }
            progress.is_synced |= is_complete;
            progress.missing = missing;
            progress.left_out.clone_from(&left_out);
            if is_followed && progress.outage.take().is_some() {
                tracing::info!("the API server is followed again");
            }
            *progress != before
        });
        // All remote clusters have one feed, whose findings are about all of them.
        if self.remote.is_some() {
            return;
        }
        let outage = self.progress.borrow().outage.clone();
        self.feed.set_notes(notes::notes(&left_out, outage.as_deref(), &self.gaps));
    }
}

impl Running {
    fn is_missing(&self) -> bool {
        // What was listed, and must not be watched any more, is not followed.
        !(self.is_synced || self.is_left_out()) || (!self.watched.optional && self.is_forbidden())
    }

    pub(crate) fn is_left_out(&self) -> bool {
        self.watched.optional && self.is_forbidden()
    }

    fn is_forbidden(&self) -> bool {
        matches!(self.failure, Some(Failure::Forbidden(_)))
    }

    fn reason(&self) -> String {
        match &self.failure {
            None => String::new(),
            Some(Failure::Absent) => " (absent)".to_owned(),
            Some(Failure::Forbidden(reason) | Failure::Passing(reason)) => format!(" ({reason})"),
        }
    }

    fn log(&self, failure: &Failure) {
        let kind = &self.watched.selection;
        match failure {
            Failure::Forbidden(reason) if self.watched.optional => {
                tracing::warn!(%kind, reason, "not watched, because RBAC forbids it; the mesh runs without these objects");
            }
            Failure::Forbidden(reason) => tracing::error!(%kind, reason, "RBAC forbids to watch what the mesh needs"),
            Failure::Passing(reason) => tracing::debug!(%kind, reason, "the watch has failed and is tried again"),
            Failure::Absent => tracing::debug!(%kind, "the server does not have the kind"),
        }
    }
}
