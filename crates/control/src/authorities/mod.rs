//! The certificate authorities in use, and the change from one to the next.
//!
//! [`Authorities`] has the authority that signs and the roots that are trusted at this moment. Once a second
//! [`Authorities::keep`] checks the state directory (another control plane may have taken a step), the operator's files, and
//! the conditions that the rotation waits for. The decisions are made in [`evenkeel_ca::rotation`].

mod status;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_ca::rotation::{
    AuthorityStore, Ledger, Ledgers, MAX_WITHOUT_BYTES, Observed, Phase, Record, Reloaded, Signing, State, StoreError,
};
pub use evenkeel_ca::rotation::{Kind, Waiting};
use evenkeel_ca::{Authority, PluggedFiles};
use evenkeel_store::Store;
use evenkeel_tls::RevocationLists;
use tokio::sync::watch;

use crate::external_signer::{ExternalSigners, SignerOptions};
use crate::metrics::Metrics;
use crate::world::World;

/// How often the state directory and the operator's files are checked.
const INTERVAL: Duration = Duration::from_secs(1);
/// How often certificates are checked for an approaching expiry, in intervals.
const ALARM_EVERY: u32 = 30;
/// Maximum number of ledger lines that wait for space on the disk. When it is reached, no rotation continues before a
/// restart.
const MAX_UNWRITTEN: usize = 100_000;
/// Name of the lease for steps of a rotation.
const LEASE: &str = "ca";

/// Why the authorities cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AuthoritiesError {
    /// The stored authorities and state.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The roots of the external signer.
    #[error("--external-signer-roots: {0}")]
    Roots(#[source] StoreError),
    /// The operator's files.
    #[error("--ca-certs: {0}")]
    Plugged(#[source] evenkeel_ca::AuthorityError),
    /// The ledger, or the lease.
    #[error("--state: {0}")]
    Io(#[from] io::Error),
}

/// The authorities of this control plane.
pub struct Authorities {
    store: AuthorityStore,
    plugged: Option<PathBuf>,
    /// The external signer, if it signs workloads' certificates instead.
    signers: ExternalSigners,
    /// The world, which has the Pods.
    world: watch::Receiver<Arc<World>>,
    ledger: Mutex<Queue>,
    current: watch::Sender<Arc<Signing>>,
    /// Held for reading while something is signed, and for writing while another authority takes over: every certificate of
    /// the former authority is in the ledger before this control plane records that it runs the next one.
    gate: RwLock<()>,
    /// The operator's files as last checked and reported.
    seen: Mutex<Option<PluggedFiles>>,
    /// Why the roots of the external signer cannot be read, as last reported.
    roots_problem: Mutex<Option<String>>,
    metrics: Arc<Metrics>,
    alarms: Mutex<status::Alarms>,
}

impl std::fmt::Debug for Authorities {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorities").field("current", &self.current.borrow()).finish_non_exhaustive()
    }
}

impl Authorities {
    /// Opens the authorities in the store. `plugged`: the directory of the operator's authority; `signer`: the
    /// external signer. The caller holds the lease `start`.
    pub fn open(
        store: Store,
        plugged: Option<PathBuf>,
        signer: SignerOptions,
        world: watch::Receiver<Arc<World>>,
        metrics: Arc<Metrics>,
        now: SystemTime,
    ) -> Result<Arc<Self>, AuthoritiesError> {
        let files = plugged.as_deref().map(|folder| {
            let files = PluggedFiles::read(folder).map_err(AuthoritiesError::Plugged)?;
            // Unusable files are an error at the start; later they are reported, and the authority in use stays.
            Authority::from_files(&files, now).map_err(AuthoritiesError::Plugged)?;
            Ok::<_, AuthoritiesError>(files)
        });
        let files = files.transpose()?;
        let trust_domain = world.borrow().snapshot.mesh.trust_domain.clone();
        let (mut store, state) = AuthorityStore::open(store, files.as_ref(), &trust_domain, now)?;
        let signers = ExternalSigners::new(signer, world.clone());
        if let Some(roots) = signers.roots() {
            store = store.trusting(roots.to_owned(), &state).map_err(AuthoritiesError::Roots)?;
        }
        let name = format!("{}-{:08x}", std::process::id(), unique());
        let mut ledger = Ledger::open(store.store(), &name, unix(now))?;
        let signing = Arc::new(store.signing(state, now)?);
        say_which_lists_count(&signing, now);
        ledger.append(&Record::Runs { generation: signing.state.generation }, unix(now))?;
        Ok(Arc::new(Self {
            store,
            plugged,
            signers,
            world,
            ledger: Mutex::new(Queue { ledger, unwritten: Vec::new() }),
            current: watch::Sender::new(signing),
            gate: RwLock::new(()),
            seen: Mutex::new(None),
            roots_problem: Mutex::default(),
            metrics,
            alarms: Mutex::default(),
        }))
    }

    /// Returns the authorities in use.
    pub fn current(&self) -> Arc<Signing> {
        self.current.borrow().clone()
    }

    /// Returns the external signer, if it signs workloads' certificates instead.
    pub fn signers(&self) -> &ExternalSigners {
        &self.signers
    }

    /// Returns a receiver that follows changes of the authorities.
    pub fn subscribe(&self) -> watch::Receiver<Arc<Signing>> {
        self.current.subscribe()
    }

    /// Calls `sign` with the authority in use, and writes the record that it returns into the ledger before the certificate
    /// is handed out.
    pub fn sign<T, E>(&self, now: SystemTime, sign: impl FnOnce(&Signing) -> Result<(T, Record), E>) -> Result<T, E> {
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        let (signed, record) = sign(&self.current())?;
        self.record_or_warn(record, now);
        Ok(signed)
    }

    /// Records that a client has presented the certificate with this serial number.
    pub fn shown(&self, serial: &str, now: SystemTime) {
        let record = Record::Shown { serial: serial.to_owned(), at: millis(now) };
        self.record_or_warn(record, now);
    }

    /// Records that a client that has presented this certificate trusts these roots.
    pub fn trusts(&self, serial: &str, bundle: &str, now: SystemTime) {
        let record = Record::Trusts { serial: serial.to_owned(), bundle: bundle.to_owned(), at: millis(now) };
        self.record_or_warn(record, now);
    }

    /// A full disk is no failure: a record that cannot be written is written before the next step of a rotation.
    fn record_or_warn(&self, record: Record, now: SystemTime) {
        if let Err(error) = self.record(record, now) {
            tracing::warn!(%error, "the ledger of certificates cannot be written; no rotation goes on before it can");
        }
    }

    fn record(&self, record: Record, now: SystemTime) -> io::Result<()> {
        let mut queue = self.ledger.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.unwritten.len() < MAX_UNWRITTEN {
            queue.unwritten.push(record);
        }
        queue.write(now)
    }

    fn write_ledger(&self, now: SystemTime) -> io::Result<()> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner).write(now)
    }

    /// Follows the state directory and the operator's files, and takes the steps of a rotation. Never completes.
    pub async fn keep(self: Arc<Self>) {
        let mut turn = 0_u32;
        loop {
            tokio::time::sleep(INTERVAL).await;
            let this = self.clone();
            let look_for_alarms = turn.is_multiple_of(ALARM_EVERY);
            turn = turn.wrapping_add(1);
            let step = tokio::task::spawn_blocking(move || {
                let now = SystemTime::now();
                if look_for_alarms {
                    this.look_for_alarms(now);
                }
                this.step(now)
            });
            match step.await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::error!(%error, "the certificate authorities are not kept up to date"),
                Err(error) => tracing::error!(%error, "the certificate authorities are not kept up to date"),
            }
        }
    }

    /// Checks once; public for tests.
    pub fn step(&self, now: SystemTime) -> Result<(), AuthoritiesError> {
        self.follow(now)?;
        self.follow_further_roots(now)?;
        let current = self.current();
        let requested = self.store.requested();
        let files = self.new_files();
        if current.state.phase == Phase::Steady && requested.is_none() && files.is_none() {
            return Ok(());
        }
        self.write_ledger(now)?;
        let lease = self.store.store().lease(LEASE)?;
        self.follow(now)?;
        let state = self.current().state.clone();
        let next = match state.phase {
            Phase::Steady => self.begin(&state, requested, files.as_ref(), now)?,
            _ => self.advance(&state, now)?,
        };
        if let Some(next) = next {
            if let Some(step) = next.steps.last() {
                tracing::info!(generation = next.generation, phase = ?next.phase, "certificate authority: {}", step.what);
            }
            self.follow(now)?;
            self.store.clean(&next)?;
        }
        drop(lease);
        // During a rotation the files are not checked, and a request takes precedence over them.
        if state.phase == Phase::Steady
            && requested.is_none()
            && let Some(files) = files
        {
            *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some(files);
        }
        Ok(())
    }

    /// Begins a rotation, if one is requested.
    fn begin(
        &self,
        state: &State,
        requested: Option<Kind>,
        files: Option<&PluggedFiles>,
        now: SystemTime,
    ) -> Result<Option<State>, AuthoritiesError> {
        if let Some(kind) = requested {
            let without = self.store.without_requested()?;
            let lessened = state.without(&without, unix(now));
            let begun = self.store.rotate(lessened.as_ref().unwrap_or(state), kind, now);
            self.store.without_answered()?;
            self.store.answered(kind)?;
            return Ok(begun.map(Some).or_else(|error| {
                tracing::error!(%error, "no rotation");
                match error {
                    StoreError::Request(_) => Ok(None),
                    other => Err(other),
                }
            })?);
        }
        let Some(files) = files else { return Ok(None) };
        match self.store.reload(state, files, now) {
            Ok(Reloaded::Begun(begun)) => Ok(Some(*begun)),
            Ok(Reloaded::Same | Reloaded::Later) => {
                self.store.replace_revocation_lists(state, files, now)?;
                // Another control plane may have applied the files already.
                let signing = self.store.signing(state.clone(), now)?;
                if signing.version != self.current().version {
                    tracing::info!("the revocation lists of the mesh's certificates have changed");
                    self.adopt(signing, now)?;
                }
                Ok(None)
            }
            Err(error) => {
                tracing::error!(%error, "--ca-certs: the new files are not used; the authority in use stays");
                Ok(None)
            }
        }
    }

    fn advance(&self, state: &State, now: SystemTime) -> Result<Option<State>, AuthoritiesError> {
        self.note_gone(&Ledgers::read(self.store.store())?, now)?;
        let ledgers = Ledgers::read(self.store.store())?;
        let current = self.current();
        let without = self.store.without_requested()?;
        if !without.is_empty() {
            for name in without.iter().filter(|name| !ledgers.holders.contains_key(*name)) {
                tracing::warn!(name, "no certificate of this workload is known, so the rotation does not wait for it");
            }
            let next = state.without(&without, unix(now));
            if let Some(next) = &next {
                self.store.save(next)?;
            }
            self.store.without_answered()?;
            return Ok(next);
        }
        let Some(next) = state.advance(&Observed { ledgers: &ledgers, bundle: &current.version }, unix(now)) else {
            return Ok(None);
        };
        self.store.save(&next)?;
        Ok(Some(next))
    }

    /// Records the workloads whose Pods are gone: the rotation does not wait for them.
    fn note_gone(&self, ledgers: &Ledgers, now: SystemTime) -> io::Result<()> {
        let world = self.world.borrow().clone();
        let is_there = |name: &str| {
            let (pod, namespace) = name.rsplit_once('.').unwrap_or((name, ""));
            world.snapshot.workload(&namespace.into(), &pod.into()).is_some()
        };
        for (name, _) in ledgers.holders.iter().filter(|(name, holder)| holder.is_pod && !is_there(name)) {
            self.record(Record::Gone { name: name.clone(), at: millis(now) }, now)?;
        }
        Ok(())
    }

    /// Whether the configuration has this Pod.
    pub fn has_pod(&self, namespace: &str, pod: &str) -> bool {
        self.world.borrow().snapshot.workload(&namespace.into(), &pod.into()).is_some()
    }

    /// Applies the state in the directory, if it differs from the one this control plane runs.
    fn follow(&self, now: SystemTime) -> Result<(), AuthoritiesError> {
        let Some(state) = self.store.load()? else { return Ok(()) };
        if state == self.current.borrow().state {
            return Ok(());
        }
        self.adopt(self.store.signing(state, now)?, now)
    }

    /// Applies the file with the external signer's roots, if it has changed.
    fn follow_further_roots(&self, now: SystemTime) -> Result<(), AuthoritiesError> {
        if self.signers.roots().is_none() {
            return Ok(());
        }
        let current = self.current();
        let mut said = self.roots_problem.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = self.store.further_roots() {
            let reason = error.to_string();
            if said.as_ref() != Some(&reason) {
                tracing::error!(reason, "--external-signer-roots: the file cannot be used; the roots in use stay");
                *said = Some(reason);
            }
            return Ok(());
        }
        *said = None;
        if self.store.roots(&current.state)? != *current.roots {
            tracing::info!("the roots of the external signer have changed");
            self.store.publish(&current.state)?;
            self.adopt(self.store.signing(current.state.clone(), now)?, now)?;
        }
        Ok(())
    }

    fn adopt(&self, signing: Signing, now: SystemTime) -> Result<(), AuthoritiesError> {
        say_which_lists_count(&signing, now);
        let generation = signing.state.generation;
        let closed = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        self.current.send_replace(Arc::new(signing));
        drop(closed);
        Ok(self.record(Record::Runs { generation }, now)?)
    }

    /// Returns the operator's files, if they have changed since the last check.
    fn new_files(&self) -> Option<PluggedFiles> {
        let folder = self.plugged.as_deref()?;
        match PluggedFiles::read(folder) {
            Ok(files) => {
                let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
                (seen.as_ref() != Some(&files)).then_some(files)
            }
            Err(error) => {
                tracing::warn!(%error, "--ca-certs: the files cannot be read; the authority in use stays");
                None
            }
        }
    }
}

/// Logs which of the revocation lists do not count.
fn say_which_lists_count(signing: &Signing, now: SystemTime) {
    let Some(lists) = &signing.revocation_lists else { return };
    match RevocationLists::from_pem(lists.as_bytes()) {
        Ok(lists) => {
            for remark in lists.remarks(now) {
                tracing::info!("revocation lists: {remark}");
            }
        }
        Err(error) => tracing::error!(%error, "the revocation lists cannot be used"),
    }
}

/// A ledger, and the records that could not be written to it yet.
struct Queue {
    ledger: Ledger,
    unwritten: Vec<Record>,
}

impl Queue {
    fn write(&mut self, now: SystemTime) -> io::Result<()> {
        if self.unwritten.len() == MAX_UNWRITTEN {
            return Err(io::Error::other(
                "more was lost than is remembered; restart the control plane when there is space",
            ));
        }
        let records = std::mem::take(&mut self.unwritten);
        for (at, record) in records.iter().enumerate() {
            if let Err(error) = self.ledger.append(record, unix(now)) {
                self.unwritten.extend_from_slice(records.get(at..).unwrap_or_default());
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Requests a rotation from the control planes of a store; they begin it within a second or two.
///
/// # Errors
/// When the directory is not that of a control plane, or cannot be written.
pub fn request(store: impl Into<Store>, kind: Kind) -> io::Result<()> {
    AuthorityStore::at(store, "").request(kind)
}

/// Requests that the rotation in progress, or the one that is requested next, does not wait for these workloads.
///
/// # Errors
/// When the directory is not that of a control plane, or cannot be written, or there are too many names.
pub fn request_without(store: impl Into<Store>, names: &[String]) -> io::Result<()> {
    let bytes: usize = names.iter().map(|name| name.len() + 1).sum();
    if u64::try_from(bytes).is_ok_and(|bytes| bytes > MAX_WITHOUT_BYTES) {
        return Err(io::Error::other(format!("the names have more than {MAX_WITHOUT_BYTES} bytes")));
    }
    AuthorityStore::at(store, "").request_without(names)
}

/// Returns a number that no other control plane of this state directory uses.
fn unique() -> u32 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    now.subsec_nanos() ^ (now.as_secs() as u32)
}

pub(crate) fn unix(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

pub(crate) fn millis(time: SystemTime) -> u64 {
    u64::try_from(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis()).unwrap_or(u64::MAX)
}
