//! The loop that keeps the world up to date: it collects notices, debounces them, reads files, builds the snapshot and
//! publishes it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use std::{fs, io};

use evenkeel_api::{Kind, in_force};
use evenkeel_base::{Diagnostic, Diagnostics, Severity};
use evenkeel_model::{AddressBook, Builder, Built, JwksFetching, MeshConfig, Source};
use evenkeel_store::{Readers, Store};
use tokio::sync::watch;

use crate::barrier::Barrier;
use crate::history::log::{Change as Written, Checkpoint, EventLog, FileText, Running, Writer, texts, unix_micros};
use crate::memory;
use crate::metrics::{Event, Metrics, Trigger, plane};
use crate::proxies::{Proxies, Settled};
use crate::shrunk::{Advice, Shrunk};
use crate::source::debounce::{Change, Debounce, DebounceOptions, Lane};
use crate::source::files::{Difference, Files, RECALLED, Refresh};
use crate::source::watch::{FileState, Notice, Watch};
use crate::world::{Cause, Noticed, World};

/// Key of the assigned virtual addresses in the store.
pub const ADDRESS_BOOK: &str = "addresses.json";
/// Minimum interval between two writes of that file, except at shutdown. An address that a crash loses is found again from
/// the hash of its name.
const ADDRESS_BOOK_INTERVAL: Duration = Duration::from_secs(5);

/// Delay before a failed write is retried.
const ADDRESS_BOOK_RETRY: Duration = Duration::from_secs(30);

/// How long files that change while they are read are read again, at most: a writer who never pauses must not keep the change
/// from proxies.
const MAX_READING: Duration = Duration::from_millis(500);

/// How often the history records what proxies run; it also records that before each change.
const PROXIES_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before a failed write of the history is retried, after each failure.
const HISTORY_RETRY: Duration = Duration::from_secs(30);

/// Maximum number of objects for which a change is followed by an analysis of all objects. Larger meshes are analysed by
/// `evenkeel analyze`.
const MAX_ANALYSED: usize = 1000;

/// Why the configuration cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum ConfigurationError {
    /// A directory does not exist or cannot be read.
    #[error("--config {}: {reason}", .path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        reason: io::Error,
    },
    /// The address book cannot be read.
    #[error("{}: {reason}; remove the file to allot virtual addresses anew", .path.display())]
    AddressBook {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: String,
    },
}

/// Everything between the files and the world.
#[derive(Debug)]
pub struct Configuration {
    files: Files,
    builder: Builder,
    stored: StoredBook,
    store: Store,
    trust_domain: String,
    /// Whether refused security objects are left out.
    leave_out_refused: bool,
    /// Whether all workloads are on one machine.
    on_one_machine: bool,
    jwks_fetching: JwksFetching,
    started: SystemTime,
    history: EventLog,
    /// When writing the history is retried after a failure, which has been logged.
    history_due: Option<Instant>,
    /// Findings of the last build, all of which have been reported.
    told: Arc<Diagnostics>,
    /// Findings of the last analysis, all of which have been reported.
    analysed: Diagnostics,
    /// Events of objects that are not counted yet.
    events: BTreeMap<(Kind, Event), u64>,
}

impl Configuration {
    /// Checks the directories and reads the address book. `mesh` has the settings that files may override.
    pub fn open(roots: Vec<PathBuf>, store: impl Into<Store>, mesh: MeshConfig) -> Result<Self, ConfigurationError> {
        for path in &roots {
            fs::read_dir(path).map_err(|reason| ConfigurationError::Directory { path: path.clone(), reason })?;
        }
        let store = store.into();
        let book = read_book(&store)?;
        let stored =
            StoredBook { store: store.clone(), failed: false, addresses: book.len(), due: None, written: None };
        let (trust_domain, leave_out_refused) = (mesh.trust_domain.to_string(), mesh.leave_out_refused);
        let (on_one_machine, jwks_fetching) = (mesh.on_one_machine, mesh.jwks_fetching);
        let builder = Builder::new(mesh, book);
        Ok(Self {
            files: Files::new(roots),
            builder,
            stored,
            history: EventLog::new(&store),
            store,
            trust_domain,
            leave_out_refused,
            on_one_machine,
            jwks_fetching,
            started: SystemTime::now(),
            history_due: None,
            told: Arc::default(),
            analysed: Diagnostics::new(),
            events: BTreeMap::new(),
        })
    }

    /// Reads all files for the first time.
    pub fn first(&mut self) -> World {
        let _apart = memory::apart();
        let mut refresh = self.files.refresh(SystemTime::now());
        self.recall(&mut refresh);
        let causes = Cause::of(&refresh.objects);
        self.events = refresh.events;
        let built = self.builder.apply(self.files.tell());
        self.store_book();
        let begun = self.history.begin(self.checkpoint(1));
        self.history_written(begun);
        self.tell(refresh.news, &built);
        self.world(1, Noticed::now(), causes, built)
    }

    /// Restores, for each file that is refused now, its last content without errors from the history: that was in force
    /// before the restart.
    fn recall(&mut self, refresh: &mut Refresh) {
        let refused: Vec<PathBuf> = self.files.never_accepted().iter().map(|path| PathBuf::from(&**path)).collect();
        if refused.is_empty() {
            return;
        }
        let texts = match texts(&self.store, |path| refused.iter().any(|refused| path.starts_with(refused))) {
            Ok(texts) => texts,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                tracing::warn!(%error, "the history cannot be read for what refused files said last without errors");
                return;
            }
        };
        for (path, texts) in texts {
            _ = texts.iter().rev().any(|text| self.files.recall(&path, text, refresh));
        }
        refresh.news.extend(self.files.diagnostics().into_iter().filter(|finding| finding.code == RECALLED));
    }

    /// Reads the files that have changed, as they were at one moment: files that change during the reading are read as well.
    /// Otherwise a route might be read before, and the service that it named until then after, the two were replaced. Also
    /// returns the notices that are to wait.
    async fn refresh(&mut self, changed: &Changed, trigger: Trigger, watch: &mut Watch) -> (Refresh, Vec<Notice>) {
        let mut refresh = self.read_files(changed);
        let mut waiting = Vec::new();
        // Changes of endpoints do not take other files along, as these may be half written.
        if trigger == Trigger::Endpoint {
            return (refresh, waiting);
        }
        let begun = Instant::now();
        loop {
            let is_late = begun.elapsed() >= MAX_READING;
            let (read, kept): (Vec<_>, _) =
                waiting.into_iter().chain(watch.caught_up().await).partition(|notice: &Notice| match notice.state {
                    FileState::Complete => true,
                    FileState::Partial => false,
                    // A service that came and went meanwhile is unknown. The route to it, which is known, is read as well.
                    FileState::Gone => refresh.missed && notice.has_gone(),
                });
            waiting = kept;
            if read.is_empty() {
                break;
            }
            if is_late {
                tracing::warn!("files change without a pause; what was read of them is not of one moment");
                waiting.extend(read);
                break;
            }
            let mut more = Changed::default();
            read.into_iter().for_each(|notice| more.add(notice));
            refresh.join(self.read_files(&more));
        }
        (refresh, waiting)
    }

    fn read_files(&mut self, changed: &Changed) -> Refresh {
        let _apart = memory::apart();
        match changed.anywhere {
            true => self.files.refresh(SystemTime::now()),
            false => self.files.refresh_only(&changed.paths, SystemTime::now()),
        }
    }

    /// Builds the next world from what was read. Returns `None` when nothing has changed.
    fn next(&mut self, last: &World, changed: &Changed, refresh: Refresh) -> Option<World> {
        if !refresh.files_changed && refresh.news.is_empty() {
            return None;
        }
        let Refresh { objects, news, read, events, .. } = refresh;
        self.events = events;
        let built = self.builder.apply(self.files.tell());
        self.store_book();
        self.tell(news, &built);
        // A comment, or an error that is refused, leaves the snapshot as it is.
        let same = Arc::ptr_eq(&built.snapshot, &last.snapshot);
        let noticed = changed.noticed.unwrap_or_else(Noticed::now);
        let world = match same {
            true => self.world(last.generation, last.noticed, last.causes.clone(), built),
            false => self.world(last.generation + 1, noticed, Cause::of(&objects), built),
        };
        self.remember(&world, noticed, &read);
        Some(world)
    }

    /// Reads the files that have changed, and informs the proxies concerned. Returns notices that arrived meanwhile and are
    /// to wait.
    async fn act(
        &mut self,
        changed: &Changed,
        trigger: Trigger,
        watch: &mut Watch,
        world: &watch::Sender<Arc<World>>,
        proxies: &Proxies,
        metrics: &Metrics,
    ) -> Vec<Notice> {
        // The configuration that proxies run is about to be replaced; it is recorded once the proxies have been told of the
        // change.
        let (now, settled) = (SystemTime::now(), proxies.take_settled());
        let (refresh, waiting) = self.refresh(changed, trigger, watch).await;
        if self.read(changed, refresh, world, metrics) {
            metrics.triggered(trigger);
            proxies.publish().await;
        }
        self.remember_proxies(now, settled);
        waiting
    }

    /// Applies what was read. Returns whether there is a new world for proxies.
    fn read(
        &mut self,
        changed: &Changed,
        refresh: Refresh,
        world: &watch::Sender<Arc<World>>,
        metrics: &Metrics,
    ) -> bool {
        let last = world.borrow().clone();
        let _apart = memory::apart();
        let Some(next) = self.next(&last, changed, refresh) else { return false };
        count(&next, metrics);
        metrics.noticed(std::mem::take(&mut self.events));
        let differs = next.generation != last.generation;
        tracing::info!(generation = next.generation, changed = differs, "configuration read");
        world.send_replace(Arc::new(next));
        differs
    }

    /// Builds the rest of a configuration anew after most of it has been removed.
    async fn rebuild(&mut self, world: &watch::Sender<Arc<World>>, proxies: &Proxies) {
        self.build_anew(world);
        proxies.rebuild().await;
        tracing::info!(objects = self.builder.objects(), "built anew what is left of the configuration");
    }

    fn build_anew(&mut self, world: &watch::Sender<Arc<World>>) {
        memory::renew();
        let _apart = memory::apart();
        let built = self.builder.rebuild([(self.files.id().clone(), self.files.renew())]);
        self.told = built.diagnostics;
        let causes = world.borrow().causes.iter().map(Cause::renewed).collect();
        let next = World { snapshot: built.snapshot, causes, ..World::clone(&world.borrow()) };
        world.send_replace(Arc::new(next));
    }

    /// Records in the history what was read.
    fn remember(&mut self, world: &World, noticed: Noticed, read: &[Arc<Path>]) {
        let text = |path: &Arc<Path>| (path.to_path_buf(), self.files.text(path).map(str::to_owned));
        let change = Written {
            at: noticed.unix_micros(),
            generation: world.generation,
            files: read.iter().map(text).collect(),
            causes: world.causes.iter().map(ToString::to_string).collect(),
        };
        let written = self.history.change(change);
        self.history_written(written);
        if self.history.is_full() && self.history_due.is_none() {
            let begun = self.history.begin(self.checkpoint(world.generation));
            self.history_written(begun);
        }
    }

    /// Records in the history what proxies run since `at`.
    fn remember_proxies(&mut self, at: SystemTime, settled: Vec<Settled>) {
        let runs = settled.iter().map(|Settled { client, generation, refused }| Running {
            node: &client.node,
            view: &client.view,
            generation: *generation,
            refused,
        });
        let written = self.history.run(at, runs);
        self.history_written(written);
    }

    /// Retries writing the history after a failure, when the retry is due.
    fn resume_history(&mut self, generation: u64, now: Instant) {
        if self.history_due.is_none_or(|due| now < due) {
            return;
        }
        match self.history.begin(self.checkpoint(generation)) {
            Ok(()) => {
                self.history_due = None;
                tracing::info!("the history is written again");
            }
            Err(error) => {
                self.history_due = Some(now + HISTORY_RETRY);
                tracing::debug!(%error, "the history still cannot be written");
            }
        }
    }

    /// Logs that the history is interrupted, if the write failed.
    fn history_written(&mut self, result: io::Result<()>) {
        let Err(error) = result else { return };
        self.history_due = Some(Instant::now() + HISTORY_RETRY);
        tracing::error!(
            state = %self.store.place("").display(), %error,
            "the history cannot be written; what proxies run is not remembered until it can, which is tried every {} s",
            HISTORY_RETRY.as_secs()
        );
    }

    fn checkpoint(&self, generation: u64) -> Checkpoint {
        let text = |(path, good, present): (&Path, Option<&str>, &str)| {
            (path.to_owned(), FileText { good: good.map(str::to_owned), present: present.to_owned() })
        };
        Checkpoint {
            at: unix_micros(SystemTime::now()),
            writer: Writer { name: crate::discovery::identifier(), started: unix_micros(self.started) },
            generation,
            trust_domain: self.trust_domain.clone(),
            leave_out_refused: self.leave_out_refused,
            on_one_machine: self.on_one_machine,
            jwks_fetching: self.jwks_fetching,
            addresses: self.builder.book().clone(),
            files: self.files.texts().map(text).collect(),
            proxies: Vec::new(),
        }
    }

    fn store_book(&mut self) {
        self.stored.note(self.builder.book(), Instant::now());
    }

    /// Reports findings: as statuses to the sources of the objects, and for files in the log.
    fn tell(&mut self, news: Vec<Diagnostic>, built: &Built) {
        built.write_statuses(&mut [&mut self.files]);
        let mut findings: Diagnostics = news.into_iter().collect();
        if !Arc::ptr_eq(&self.told, &built.diagnostics) {
            findings.extend(built.diagnostics.iter().filter(|d| !self.told.iter().any(|told| told == *d)).cloned());
            self.told = built.diagnostics.clone();
        }
        let analysed = match self.builder.objects() <= MAX_ANALYSED {
            true => evenkeel_analyze::unsuppressed(&in_force(self.files.objects()), &built.snapshot),
            false => Diagnostics::new(),
        };
        findings.extend(analysed.iter().filter(|d| !self.analysed.iter().any(|told| told == *d)).cloned());
        self.analysed = analysed;
        let sources = self.files.sources(&findings);
        for finding in &findings {
            let text = finding.render(&sources, false);
            match finding.severity {
                Severity::Error => tracing::error!("{}", text.trim_end()),
                Severity::Warning => tracing::warn!("{}", text.trim_end()),
                Severity::Info => tracing::debug!("{}", text.trim_end()),
            }
        }
    }

    fn world(&self, generation: u64, noticed: Noticed, causes: Arc<[Cause]>, built: Built) -> World {
        let mut diagnostics = self.files.findings();
        diagnostics.extend(built.diagnostics.iter().cloned());
        diagnostics.extend(self.analysed.iter().cloned());
        diagnostics.sort();
        World {
            generation,
            noticed,
            causes,
            snapshot: built.snapshot,
            sources: Arc::new(self.files.sources(&diagnostics)),
            diagnostics: Arc::new(diagnostics),
            refused: self.files.refused().into(),
            never_accepted: self.files.never_accepted().into(),
        }
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        if self.stored.due.is_some() {
            self.stored.write(self.builder.book(), Instant::now());
        }
    }
}

/// The address book as it is stored.
#[derive(Debug)]
struct StoredBook {
    store: Store,
    /// Whether the last write failed, which has been logged; it is retried.
    failed: bool,
    /// Number of addresses when the book was last checked: it rarely changes except by growing.
    addresses: usize,
    /// When the book is to be written, if it has changed.
    due: Option<Instant>,
    written: Option<Instant>,
}

impl StoredBook {
    fn note(&mut self, book: &AddressBook, now: Instant) {
        if book.len() != self.addresses {
            self.addresses = book.len();
            let next = self.written.map_or(now, |written| (written + ADDRESS_BOOK_INTERVAL).max(now));
            self.due.get_or_insert(next);
        }
        if self.due.is_some_and(|due| due <= now) {
            self.write(book, now);
        }
    }

    fn write(&mut self, book: &AddressBook, now: Instant) {
        self.written = Some(now);
        let result = write_book(&self.store, book);
        self.due = result.is_err().then(|| now + ADDRESS_BOOK_RETRY);
        let had_failed = std::mem::replace(&mut self.failed, result.is_err());
        if let (Err(error), false) = (result, had_failed) {
            tracing::error!(
                path = %self.store.place(ADDRESS_BOOK).display(), %error,
                "virtual addresses cannot be kept for a restart; tried again every {} s", ADDRESS_BOOK_RETRY.as_secs()
            );
        }
    }
}

/// Changes that were noticed and are not read yet.
#[derive(Debug, Default)]
struct Changed {
    /// The files, and whether a notice said that the file may be gone.
    paths: BTreeMap<PathBuf, bool>,
    /// Whether anything may have changed, not only these files.
    anywhere: bool,
    /// When the first of these changes was noticed.
    noticed: Option<Noticed>,
}

impl Changed {
    fn add(&mut self, notice: Notice) {
        self.anywhere |= notice.paths.is_empty();
        for path in notice.paths {
            *self.paths.entry(path).or_default() |= notice.state == FileState::Gone;
        }
        self.noticed.get_or_insert_with(Noticed::now);
    }

    fn join(&mut self, other: Self) {
        other.paths.into_iter().for_each(|(path, gone)| *self.paths.entry(path).or_default() |= gone);
        self.anywhere |= other.anywhere;
        let first = self.noticed.into_iter().chain(other.noticed).min_by_key(|noticed| noticed.instant);
        self.noticed = first;
    }
}

/// Keeps the world up to date until `stop` is set. Dropping `configuration` stores the addresses that the last change assigned.
pub async fn keep(
    mut configuration: Configuration,
    mut watch: Watch,
    options: DebounceOptions,
    world: watch::Sender<Arc<World>>,
    (proxies, metrics, barrier): (Arc<Proxies>, Arc<Metrics>, Arc<Barrier>),
    mut stop: watch::Receiver<bool>,
) {
    memory::at_once(false);
    count(&world.borrow(), &metrics);
    metrics.noticed(std::mem::take(&mut configuration.events));
    let mut debounce = Debounce::new(options);
    let mut look_at_proxies = tokio::time::interval(PROXIES_INTERVAL);
    look_at_proxies.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut shrunk = Shrunk::default();
    let (mut everything, mut endpoints) = (Changed::default(), Changed::default());
    let mut noticed = Vec::new();
    loop {
        for notice in std::mem::take(&mut noticed) {
            let Some(change) = classify(&mut configuration.files, &notice) else { continue };
            match debounce.lane(change) {
                Lane::Endpoints => endpoints.add(notice),
                Lane::Everything => everything.add(notice),
            }
            debounce.change(change, Instant::now());
        }
        let due = debounce.due();
        let store = configuration.stored.due;
        tokio::select! {
            biased;
            () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
            // Due work comes next: it waits for no notice, and above all not for a timer's next tick.
            () = wait_until(due) => {
                let mut changed = std::mem::take(&mut endpoints);
                let trigger = match debounce.act(Instant::now()) {
                    Lane::Endpoints => Trigger::Endpoint,
                    Lane::Everything => {
                        changed.join(std::mem::take(&mut everything));
                        Trigger::Config
                    }
                };
                noticed = configuration.act(&changed, trigger, &mut watch, &world, &proxies, &metrics).await;
            }
            // A caller that waits until its files are read skips the debounce.
            () = barrier.asked() => {
                let ticket = barrier.begin();
                let mut changed = std::mem::take(&mut endpoints);
                changed.join(std::mem::take(&mut everything));
                changed.anywhere = true;
                noticed = configuration.act(&changed, Trigger::Config, &mut watch, &world, &proxies, &metrics).await;
                barrier.served(ticket);
            }
            notice = watch.next() => {
                let Some(notice) = notice else { return };
                noticed.push(notice);
            }
            () = wait_until(store) => configuration.store_book(),
            _ = look_at_proxies.tick() => {
                configuration.remember_proxies(SystemTime::now(), proxies.take_settled());
                configuration.resume_history(world.borrow().generation, Instant::now());
                match shrunk.observe(configuration.builder.objects()) {
                    Advice::Nothing => {}
                    Advice::Rebuild => {
                        memory::at_once(true);
                        configuration.rebuild(&world, &proxies).await;
                        memory::at_once(false);
                    }
                    Advice::GiveBack => proxies.give_back(),
                }
            }
        }
    }
}

async fn wait_until(due: Option<Instant>) {
    match due {
        // A timer would add a delay of up to a millisecond.
        Some(due) if due <= Instant::now() => {}
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the change that a notice stands for; `None`: no change, as when the kernel reports one renamed file twice.
fn classify(files: &mut Files, notice: &Notice) -> Option<Change> {
    // The file is read to classify the notice, and its content is kept.
    let _apart = memory::apart();
    let gone = |files: &Files, path: &PathBuf| files.holds_only_endpoints(path) && !path.exists();
    if notice.paths.is_empty() {
        return Some(Change::Partial);
    }
    if notice.state != FileState::Complete {
        return Some(if notice.paths.iter().all(|path| gone(files, path)) {
            Change::EndpointsGone
        } else {
            Change::Partial
        });
    }
    let differences = notice.paths.iter().map(|path| match gone(files, path) {
        true => Difference::Endpoints,
        false => files.difference(path),
    });
    let differences: Vec<Difference> = differences.filter(|difference| *difference != Difference::None).collect();
    match differences.iter().all(|difference| *difference == Difference::Endpoints) {
        _ if differences.is_empty() => None,
        true => Some(Change::Endpoints),
        false => Some(Change::Complete),
    }
}

fn count(world: &World, metrics: &Metrics) {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics.plane.set(plane::Gauge::pilot_services, number(world.snapshot.services.len()));
    metrics.plane.set(plane::Gauge::pilot_virt_services, number(world.snapshot.route_sets.len()));
    metrics.plane.set(plane::Gauge::evenkeel_config_refused_files, number(world.refused.len()));
}

fn read_book(store: &Store) -> Result<AddressBook, ConfigurationError> {
    let broken = |reason: String| ConfigurationError::AddressBook { path: store.place(ADDRESS_BOOK), reason };
    match store.get(ADDRESS_BOOK).map_err(|error| broken(error.to_string()))? {
        Some(text) => serde_json::from_slice(&text).map_err(|error| broken(error.to_string())),
        None => Ok(AddressBook::default()),
    }
}

/// Stores the address book. Holds a lease, so that addresses that another control plane has written meanwhile are kept.
fn write_book(store: &Store, book: &AddressBook) -> io::Result<()> {
    let _lease = store.lease("addresses")?;
    let book = read_book(store).map_err(io::Error::other)?.joined(book);
    store.put(ADDRESS_BOOK, &serde_json::to_vec_pretty(&book)?, Readers::All)
}

#[cfg(test)]
mod tests;
