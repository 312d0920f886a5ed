//! Self-registration of workloads: a proxy that names a WorkloadGroup (`AUTO_REGISTER_GROUP`) gets a WorkloadEntry made from
//! the group's template, as in Istio (`pilot/pkg/autoregistration`).
//!
//! ```text
//!  a stream connects ──► Registrations::connect    checks that it may; counts the entry's streams
//!  it reports health ──► Registration::health      updates what is to be written
//!  it ends           ──► drop(Registration)
//!                             │
//!                             ▼
//!  keeper ──► StoredObjects: a source of the configuration; store: registered/NAMESPACE.NAME.json
//! ```
//!
//! The entries are objects of a source, so that everything else treats them like objects of the user. They are stored: they
//! survive a restart, and other control planes that share the store serve them, too.

mod entry;
mod keeper;
mod registrant;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, btree_map};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_base::{Rank, SourceId, Span};
use evenkeel_model::workload::ENTRY_PREFIX;
use evenkeel_translate::ProxyView;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::sync::{Notify, watch};

use crate::metrics::{Metrics, plane};
use crate::quota::{Quota, Rate, Share};
use crate::source::stored::StoredObjects;
use crate::world::World;
use entry::{Connected, Health};
use registrant::{Registrant, may_register};

/// Folder of the entries in the store, and the name of their source.
pub const FOLDER: &str = "registered";
/// After files: an entry that the user has written is in force instead.
const RANK: Rank = Rank(110);
/// How long an entry is kept after its proxy has disconnected; the default is Istio's.
const GRACE: Duration = Duration::from_secs(10);
/// Istio's variable for that time.
const GRACE_VARIABLE: &str = "PILOT_WORKLOAD_ENTRY_GRACE_PERIOD";
/// How long a refused registration is shown after the last attempt.
const REFUSAL_SHOWN: Duration = Duration::from_secs(120);
/// Maximum number of refused registrations that are shown.
const MAX_REFUSALS: usize = 100;
/// Maximum number of workloads that are registered with a control plane: every proxy gets their endpoints.
const MAX_ENTRIES: usize = 10_000;
/// Maximum number of workloads that are registered for one identity.
const MAX_ENTRIES_PER_IDENTITY: usize = 500;
/// New workloads that one identity registers: the burst, and the interval after which one more is allowed.
const NEW_ENTRIES: (u32, Duration) = (100, Duration::from_millis(100));

/// Why a proxy may not register.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RefusedRegistration {
    /// The group does not exist.
    #[error(
        "there is no WorkloadGroup `{name}` in the namespace `{namespace}`, which AUTO_REGISTER_GROUP names; write it, or correct ISTIO_META_AUTO_REGISTER_GROUP"
    )]
    NoGroup {
        /// The group's name.
        name: String,
        /// The group's namespace.
        namespace: String,
    },
    /// The client has no certificate.
    #[error(
        "a workload that registers itself needs a certificate, so it must use the TLS port; the plaintext port does not tell who it is"
    )]
    NoIdentity,
    /// The client's identity belongs to another namespace.
    #[error("`{identity}` may not register in the namespace `{namespace}`")]
    Namespace {
        /// The client's identity.
        identity: String,
        /// The group's namespace.
        namespace: String,
    },
    /// The client's identity has another service account.
    #[error(
        "`{identity}` may not register for the WorkloadGroup {group}, whose template has `serviceAccount: {account}`"
    )]
    Account {
        /// The client's identity.
        identity: String,
        /// The group.
        group: String,
        /// The group's account.
        account: String,
    },
    /// An entry of this name is in the configuration.
    #[error("a WorkloadEntry `{name}` is written in {place}; remove it, or leave out ISTIO_META_AUTO_REGISTER_GROUP")]
    Written {
        /// The entry's name.
        name: String,
        /// Where it is written.
        place: String,
    },
    /// A workload of another group has this name.
    #[error("a workload of the WorkloadGroup `{group}` is registered as `{name}`")]
    Taken {
        /// The name.
        name: String,
        /// The other group.
        group: String,
    },
    /// The identity has as many workloads as it may have.
    #[error(
        "`{identity}` has registered {MAX_ENTRIES_PER_IDENTITY} workloads, or all identities together {MAX_ENTRIES}; give further workloads another service account, or write their WorkloadEntries"
    )]
    TooMany {
        /// The client's identity.
        identity: String,
    },
    /// The identity registers new workloads faster than it may.
    #[error("`{identity}` registers too many new workloads at a time; the agent tries again")]
    TooFast {
        /// The client's identity.
        identity: String,
    },
    /// The node has no address.
    #[error("the node has no address")]
    NoAddress,
    /// The node's network cannot be part of a name.
    #[error(
        "the metadata NETWORK must have at most 63 lower-case letters, digits, `-` and `.`, because it is part of the WorkloadEntry's name"
    )]
    Network,
    /// The node's labels are too large.
    #[error("the node's labels take {bytes} bytes, at most 16384 are accepted")]
    Labels {
        /// Their size in bytes.
        bytes: usize,
    },
}

/// The environment variable has an unusable value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {GRACE_VARIABLE}: `{0}` is no duration, such as `10s`")]
pub struct GraceError(String);

/// Returns how long entries are kept after their proxies have disconnected.
pub fn grace_from_env(lookup: impl Fn(&str) -> Option<String>) -> Result<Duration, GraceError> {
    match lookup(GRACE_VARIABLE) {
        None => Ok(GRACE),
        Some(text) => evenkeel_base::duration::parse(&text).map_err(|_| GraceError(text)),
    }
}

/// The workloads that have registered with this control plane.
#[derive(Debug)]
pub struct Registrations {
    stored: Arc<StoredObjects>,
    world: watch::Receiver<Arc<World>>,
    /// The name of this control plane.
    controller: String,
    grace: Duration,
    /// The entries of each identity.
    entries: Arc<Quota<SpiffeId>>,
    /// The new entries of each identity.
    new: Rate<SpiffeId>,
    state: Mutex<State>,
    /// Wakes the keeper when there is something to write.
    wake: Notify,
    metrics: Arc<Metrics>,
}

/// Namespace and name of a WorkloadEntry.
type Key = (Arc<str>, Arc<str>);

#[derive(Debug, Default)]
struct State {
    entries: BTreeMap<Key, Registered>,
    /// Refusals by node, with the time of the last attempt.
    refusals: BTreeMap<String, (Instant, String)>,
}

/// A registered workload.
#[derive(Debug)]
struct Registered {
    registrant: Registrant,
    /// Number of its streams; an agent and its proxy have one each.
    streams: usize,
    connected: Connected,
    /// When it is removed.
    due: Option<Instant>,
    health: Option<Health>,
    /// Whether the file is out of date.
    dirty: bool,
    /// When it may be written again.
    not_before: Instant,
    /// Whether there was a file; it is removed with its group.
    written: bool,
    _share: Share<SpiffeId>,
}

/// A stream of a registered workload, counted until it is dropped.
#[derive(Debug)]
pub struct Registration {
    registrations: Arc<Registrations>,
    key: Key,
    /// The labels of the workload.
    pub labels: BTreeMap<String, String>,
}

impl Registrations {
    /// No registrations yet, except the `stored` entries of earlier runs and other control planes.
    pub fn new(
        stored: Arc<StoredObjects>,
        world: watch::Receiver<Arc<World>>,
        controller: String,
        grace: Duration,
        metrics: Arc<Metrics>,
    ) -> Arc<Self> {
        let entries = Quota::new(MAX_ENTRIES, MAX_ENTRIES_PER_IDENTITY);
        let new = Rate::new(NEW_ENTRIES.0, NEW_ENTRIES.1, MAX_ENTRIES);
        let (state, wake) = (Mutex::default(), Notify::new());
        Arc::new(Self { stored, world, controller, grace, entries, new, state, wake, metrics })
    }

    /// Registers the workload of a proxy that connects; `None` if it does not ask for that.
    pub fn connect(
        self: &Arc<Self>,
        node: &Node,
        view: &ProxyView,
        identity: Option<&SpiffeId>,
    ) -> Result<Option<Registration>, RefusedRegistration> {
        let registered = self.admit(node, view, identity);
        let mut state = self.lock();
        let registered = registered
            .and_then(|admitted| state.not_of_another_group(admitted))
            .and_then(|admitted| self.within_limits(&mut state, admitted, identity));
        match &registered {
            Ok(_) => {
                state.refusals.remove(&node.id);
            }
            Err(error) => {
                self.metrics.plane.inc(plane::Counter::auto_registration_errors_total);
                state.note_refusal(&node.id, error, Instant::now());
            }
        }
        let Some((registrant, labels)) = registered? else { return Ok(None) };
        let key: Key = (registrant.namespace.clone(), registrant.entry_name().into());
        let now = SystemTime::now();
        // `within_limits` has made it.
        let Some(entry) = state.entries.get_mut(&key) else { return Ok(None) };
        if entry.streams > 0 && entry.registrant != registrant {
            tracing::warn!(
                node = node.id, entry = %key.1, namespace = %key.0,
                "another proxy has registered this address with other labels, locality or probe; the first one's count"
            );
        }
        if entry.streams == 0 {
            if entry.written {
                self.metrics.plane.inc(plane::Counter::auto_registration_updates_total);
            }
            (entry.registrant, entry.connected, entry.due, entry.dirty) =
                (registrant, Connected::Since(now), None, true);
        }
        entry.streams += 1;
        drop(state);
        self.wake.notify_one();
        Ok(Some(Registration { registrations: self.clone(), key, labels }))
    }

    /// Makes an entry for a workload that has none, if its identity may have another one.
    fn within_limits(
        &self,
        state: &mut State,
        admitted: Option<Admitted>,
        identity: Option<&SpiffeId>,
    ) -> Result<Option<Admitted>, RefusedRegistration> {
        let Some((registrant, labels)) = admitted else { return Ok(None) };
        let identity = identity.ok_or(RefusedRegistration::NoIdentity)?;
        let key: Key = (registrant.namespace.clone(), registrant.entry_name().into());
        if let btree_map::Entry::Vacant(vacant) = state.entries.entry(key.clone()) {
            let share = self.entries.take(identity.clone());
            let share = share.ok_or_else(|| RefusedRegistration::TooMany { identity: identity.to_string() })?;
            // The agent will report the health again; until then the stored one is used.
            let stored = self.stored.get(&file_name(&key)).and_then(|object| entry::read(&object));
            if stored.is_none() && !self.new.note(identity.clone(), Instant::now()) {
                return Err(RefusedRegistration::TooFast { identity: identity.to_string() });
            }
            let entry = Registered {
                registrant: registrant.clone(),
                streams: 0,
                connected: Connected::Since(SystemTime::now()),
                due: None,
                health: stored.as_ref().and_then(|stored| stored.health.clone()),
                dirty: true,
                not_before: Instant::now(),
                written: stored.is_some(),
                _share: share,
            };
            vacant.insert(entry);
        }
        Ok(Some((registrant, labels)))
    }

    /// Returns what a proxy registers as and its labels, if it may register.
    fn admit(
        &self,
        node: &Node,
        view: &ProxyView,
        identity: Option<&SpiffeId>,
    ) -> Result<Option<Admitted>, RefusedRegistration> {
        let Some(registrant) = Registrant::of(node, view)? else { return Ok(None) };
        let world = self.world.borrow().clone();
        let group = world.snapshot.workload_group(&registrant.namespace, &registrant.group);
        let Some(spec) = group.and_then(|group| group.spec()) else {
            let (name, namespace) = (registrant.group.to_string(), registrant.namespace.to_string());
            return Err(RefusedRegistration::NoGroup { name, namespace });
        };
        let account = spec.template.service_account.as_ref().map(|account| &*account.0);
        may_register(identity, &registrant, account)?;
        let name = registrant.entry_name();
        let known: Arc<str> = format!("{ENTRY_PREFIX}{name}").into();
        let written = world.snapshot.workload(&registrant.namespace, &known);
        if let Some(written) = written.filter(|it| !is_registered(&it.origin)) {
            return Err(RefusedRegistration::Written { name, place: written.origin.to_string() });
        }
        let labels = entry::labels(spec, &registrant);
        Ok(Some((registrant, labels)))
    }

    /// Returns the proxies that may not register, and why.
    pub fn refusals(&self) -> Vec<(String, String)> {
        let now = Instant::now();
        let mut state = self.lock();
        state.refusals.retain(|_, (at, _)| now.duration_since(*at) < REFUSAL_SHOWN);
        state.refusals.iter().map(|(node, (_, reason))| (node.clone(), reason.clone())).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a proxy registers as, and with which labels.
type Admitted = (Registrant, BTreeMap<String, String>);

impl State {
    /// Refuses a name that a workload of another group has: names of two groups may collide, and a proxy must not act for a
    /// workload of another group.
    fn not_of_another_group(&self, admitted: Option<Admitted>) -> Result<Option<Admitted>, RefusedRegistration> {
        let Some((registrant, labels)) = admitted else { return Ok(None) };
        let name = registrant.entry_name();
        let known = self.entries.get(&(registrant.namespace.clone(), name.as_str().into()));
        match known.filter(|known| known.streams > 0 && known.registrant.group != registrant.group) {
            Some(known) => Err(RefusedRegistration::Taken { name, group: known.registrant.group.to_string() }),
            None => Ok(Some((registrant, labels))),
        }
    }

    fn note_refusal(&mut self, node: &str, error: &RefusedRegistration, now: Instant) {
        self.refusals.retain(|_, (at, _)| now.duration_since(*at) < REFUSAL_SHOWN);
        if self.refusals.len() < MAX_REFUSALS || self.refusals.contains_key(node) {
            self.refusals.insert(node.to_owned(), (now, error.to_string()));
        }
    }
}

impl Registration {
    /// Records the health that the agent reports.
    pub fn health(&self, result: Result<(), String>) {
        let mut state = self.registrations.lock();
        let Some(entry) = state.entries.get_mut(&self.key) else { return };
        if entry.health.as_ref().is_none_or(|health| health.result != result) {
            entry.health = Some(Health { result, at: SystemTime::now() });
            entry.dirty = true;
            drop(state);
            self.registrations.wake.notify_one();
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut state = self.registrations.lock();
        let Some(entry) = state.entries.get_mut(&self.key) else { return };
        entry.streams = entry.streams.saturating_sub(1);
        if entry.streams == 0 {
            self.registrations.metrics.plane.inc(plane::Counter::auto_registration_unregister_total);
            (entry.connected, entry.dirty) = (Connected::Until(SystemTime::now()), true);
            entry.due = Some(Instant::now() + self.registrations.grace);
            drop(state);
            self.registrations.wake.notify_one();
        }
    }
}

/// The source of the entries.
pub fn source() -> SourceId {
    SourceId::new(FOLDER, RANK)
}

/// Whether an object at this place is an entry of a registered workload.
fn is_registered(place: &Span) -> bool {
    place.is_object() && place.file.strip_prefix(FOLDER).is_some_and(|rest| rest.starts_with('/'))
}

/// Maximum length of the entry's name within the file name, in bytes: file systems allow 255 for the whole name.
const MAX_FILE_NAME_BYTES: usize = 150;

/// Returns the file name of an entry. Names are ASCII.
fn file_name((namespace, name): &Key) -> String {
    if name.len() > MAX_FILE_NAME_BYTES {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let end = name.get(name.len() - MAX_FILE_NAME_BYTES..).unwrap_or_default();
        format!("{namespace}.{:016x}-{end}.json", hasher.finish())
    } else {
        format!("{namespace}.{name}.json")
    }
}
