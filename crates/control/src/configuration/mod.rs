//! The loop that keeps the world up to date: it takes over changes of the sources when they are due, builds the snapshot and
//! publishes it.

mod book;

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use evenkeel_api::{Kind, Object, in_force};
use evenkeel_base::{Diagnostic, Diagnostics, Severity, Sources};
use evenkeel_model::{Builder, Built, JwksFetching, MeshConfig, Source, SourceEvent};
use evenkeel_store::Store;
use tokio::sync::watch;

pub use self::book::{ADDRESS_BOOK, AddressBookError};
use self::book::{StoredBook, read_book};
use crate::barrier::Barrier;
use crate::history::log::{Change as Written, Checkpoint, EventLog, Running, Writer, split, unix_micros};
use crate::history::recall::LoggedContents;
use crate::memory;
use crate::metrics::{Event, Metrics, Trigger, plane};
use crate::noticed::Noticed;
use crate::proxies::{Proxies, Settled};
use crate::shrunk::{Advice, Shrunk};
use crate::source::debounce::DebounceOptions;
use crate::source::lanes::{Lanes, SourceEnded};
use crate::source::{EntryName, LiveSource, Refresh};
use crate::world::{Cause, World};

/// How often the history records what proxies run; it also records that before each change.
const PROXIES_INTERVAL: Duration = Duration::from_secs(1);

/// Delay before a failed write of the history is retried, after each failure.
const HISTORY_RETRY: Duration = Duration::from_secs(30);

/// Maximum number of objects for which a change is followed by an analysis of all objects. Larger meshes are analysed by
/// `evenkeel analyze`.
const MAX_ANALYSED: usize = 1000;

/// Everything between the sources and the world.
#[derive(Debug)]
pub struct Configuration {
    lanes: Lanes,
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
    /// Reads the address book. `mesh` has the settings that objects may override.
    pub fn open(
        sources: Vec<Box<dyn LiveSource>>,
        store: impl Into<Store>,
        mesh: MeshConfig,
    ) -> Result<Self, AddressBookError> {
        let store = store.into();
        let book = read_book(&store)?;
        let stored = StoredBook::new(store.clone(), book.len());
        let (trust_domain, leave_out_refused) = (mesh.trust_domain.to_string(), mesh.leave_out_refused);
        let (on_one_machine, jwks_fetching) = (mesh.on_one_machine, mesh.jwks_fetching);
        let builder = Builder::new(mesh, book);
        Ok(Self {
            lanes: Lanes::new(sources),
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

    /// Takes over everything for the first time. What is refused now and was good before the restart is restored from the
    /// history.
    pub fn first(&mut self) -> World {
        let _apart = memory::apart();
        let mut refresh = Refresh::default();
        let mut past = LoggedContents(&self.store);
        for source in self.lanes.sources_mut() {
            let mut own = source.first();
            source.recall(&mut past, &mut own);
            refresh.join(own);
        }
        let causes = Cause::of(&refresh.objects);
        self.events = refresh.events;
        let built = self.builder.apply(self.lanes.events());
        self.store_book();
        let begun = self.history.begin(self.checkpoint(1));
        self.history_written(begun);
        self.tell(refresh.news, &built);
        self.world(1, Noticed::now(), causes, built)
    }

    /// Builds the next world from what was read. Returns `None` when nothing has changed.
    fn next(&mut self, last: &World, refresh: Refresh) -> Option<World> {
        if !refresh.entries_changed && refresh.news.is_empty() {
            return None;
        }
        let Refresh { objects, news, read, events, noticed, .. } = refresh;
        self.events = events;
        let built = self.builder.apply(self.lanes.events());
        self.store_book();
        self.tell(news, &built);
        // A comment, or an error that is refused, leaves the snapshot as it is.
        let same = Arc::ptr_eq(&built.snapshot, &last.snapshot);
        let noticed = noticed.unwrap_or_else(Noticed::now);
        let world = if same {
            self.world(last.generation, last.noticed, last.causes.clone(), built)
        } else {
            self.world(last.generation + 1, noticed, Cause::of(&objects), built)
        };
        self.remember(&world, noticed, &read);
        Some(world)
    }

    /// Takes over changes, and informs the proxies concerned.
    async fn act(&mut self, sinks: &Sinks, take: Take) {
        // The configuration that proxies run is about to be replaced; it is recorded once the proxies have been told of the
        // change.
        let (now, settled) = (SystemTime::now(), sinks.proxies.take_settled());
        let (refresh, trigger) = match take {
            Take::Due => self.lanes.refresh_due().await,
            Take::All => (self.lanes.refresh_all().await, Trigger::Config),
        };
        if self.publish(refresh, &sinks.world, &sinks.metrics) {
            sinks.metrics.triggered(trigger);
            sinks.proxies.publish().await;
        }
        self.remember_proxies(now, settled);
    }

    /// Applies what was taken over. Returns whether there is a new world for proxies.
    fn publish(&mut self, refresh: Refresh, world: &watch::Sender<Arc<World>>, metrics: &Metrics) -> bool {
        let last = world.borrow().clone();
        let _apart = memory::apart();
        let (noticed, begun) = (refresh.noticed, Instant::now());
        let Some(next) = self.next(&last, refresh) else { return false };
        metrics.built(noticed.map_or(begun, |noticed| noticed.instant), begun);
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
        let all: Vec<_> = self.lanes.sources_mut().map(|source| (source.id().clone(), source.renew())).collect();
        let built = self.builder.rebuild(all);
        self.told = built.diagnostics;
        let causes = world.borrow().causes.iter().map(Cause::renewed).collect();
        let next = World { snapshot: built.snapshot, causes, ..World::clone(&world.borrow()) };
        world.send_replace(Arc::new(next));
    }

    /// Records in the history what was read.
    fn remember(&mut self, world: &World, noticed: Noticed, read: &[EntryName]) {
        let content = |entry: &EntryName| {
            let content = self.lanes.sources().find_map(|source| source.content(entry));
            (entry.clone(), content)
        };
        let causes = world.causes.iter().map(ToString::to_string).collect();
        let change = Written::new(noticed.unix_micros(), world.generation, causes, read.iter().map(content));
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
        let (files, objects) = split(self.lanes.sources().flat_map(LiveSource::contents));
        Checkpoint {
            at: unix_micros(SystemTime::now()),
            writer: Writer { name: crate::discovery::identifier(), started: unix_micros(self.started) },
            generation,
            trust_domain: self.trust_domain.clone(),
            leave_out_refused: self.leave_out_refused,
            on_one_machine: self.on_one_machine,
            jwks_fetching: self.jwks_fetching,
            addresses: self.builder.book().clone(),
            files,
            objects,
            proxies: Vec::new(),
        }
    }

    fn store_book(&mut self) {
        self.stored.note(self.builder.book(), Instant::now());
    }

    /// Reports findings: as statuses to the sources of the objects, and for files in the log.
    fn tell(&mut self, news: Vec<Diagnostic>, built: &Built) {
        let mut sources: Vec<&mut dyn Source> = self.lanes.sources_mut().map(|source| &mut **source as _).collect();
        built.write_statuses(&mut sources);
        let mut findings: Diagnostics = news.into_iter().collect();
        if !Arc::ptr_eq(&self.told, &built.diagnostics) {
            findings.extend(built.diagnostics.iter().filter(|d| !self.told.iter().any(|told| told == *d)).cloned());
            self.told = built.diagnostics.clone();
        }
        let analysed = if self.builder.objects() <= MAX_ANALYSED {
            evenkeel_analyze::unsuppressed(&in_force(self.objects()), &built.snapshot)
        } else {
            Diagnostics::new()
        };
        findings.extend(analysed.iter().filter(|d| !self.analysed.iter().any(|told| told == *d)).cloned());
        self.analysed = analysed;
        let sources = self.texts(&findings);
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
        let mut diagnostics: Diagnostics = self.lanes.sources().flat_map(|source| source.findings()).collect();
        diagnostics.extend(built.diagnostics.iter().cloned());
        diagnostics.extend(self.analysed.iter().cloned());
        diagnostics.sort();
        World {
            generation,
            noticed,
            causes,
            snapshot: built.snapshot,
            sources: Arc::new(self.texts(&diagnostics)),
            diagnostics: Arc::new(diagnostics),
            refused: self.lanes.sources().flat_map(LiveSource::refused).collect(),
        }
    }

    /// Returns the objects of all sources.
    fn objects(&self) -> Vec<Object> {
        let entries = self.builder.events().into_iter().flat_map(|(_, event)| match event {
            SourceEvent::Snapshot(entries) => entries,
            _ => Vec::new(),
        });
        entries.flat_map(|entry| entry.objects).map(|object| (*object).clone()).collect()
    }

    /// Returns the texts that findings point into.
    fn texts(&self, findings: &Diagnostics) -> Sources {
        let mut texts = Sources::new();
        self.lanes.sources().for_each(|source| source.texts(findings, &mut texts));
        texts
    }
}

impl Drop for Configuration {
    fn drop(&mut self) {
        self.stored.finish(self.builder.book(), Instant::now());
    }
}

/// What the loop publishes to.
#[derive(Debug)]
pub struct Sinks {
    /// The world, for all parts of the control plane.
    pub world: watch::Sender<Arc<World>>,
    /// The connected proxies.
    pub proxies: Arc<Proxies>,
    /// What is counted.
    pub metrics: Arc<Metrics>,
    /// Callers that wait until everything is read.
    pub barrier: Arc<Barrier>,
}

/// Keeps the world up to date until `stop` is set. Dropping `configuration` stores the addresses that the last change assigned.
pub async fn keep(
    mut configuration: Configuration,
    options: DebounceOptions,
    sinks: Sinks,
    mut stop: watch::Receiver<bool>,
) {
    let Sinks { world, proxies, metrics, barrier } = &sinks;
    memory::at_once(false);
    count(&world.borrow(), metrics);
    metrics.noticed(std::mem::take(&mut configuration.events));
    configuration.lanes.set_options(options);
    let mut look_at_proxies = tokio::time::interval(PROXIES_INTERVAL);
    look_at_proxies.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut shrunk = Shrunk::default();
    loop {
        let due = configuration.lanes.due();
        let store = configuration.stored.due;
        tokio::select! {
            biased;
            () = async { drop(stop.wait_for(|stop| *stop).await) } => break,
            // Due work comes next: it waits for no notice, and above all not for a timer's next tick.
            () = wait_until(due) => configuration.act(&sinks, Take::Due).await,
            // A caller that waits until everything is read skips the debounce.
            () = barrier.asked() => {
                let ticket = barrier.begin();
                configuration.act(&sinks, Take::All).await;
                barrier.served(ticket);
            }
            changed = configuration.lanes.changed() => if let Err(SourceEnded(source)) = changed {
                tracing::error!(%source, "the source has ended");
                return;
            },
            () = wait_until(store) => configuration.store_book(),
            _ = look_at_proxies.tick() => {
                configuration.remember_proxies(SystemTime::now(), proxies.take_settled());
                configuration.lanes.unchanged().for_each(|events| metrics.noticed(events));
                configuration.resume_history(world.borrow().generation, Instant::now());
                match shrunk.observe(configuration.builder.objects()) {
                    Advice::Nothing => {}
                    Advice::Rebuild => {
                        memory::at_once(true);
                        configuration.rebuild(world, proxies).await;
                        memory::at_once(false);
                    }
                    Advice::GiveBack => proxies.give_back(),
                }
            }
        }
    }
}

/// Which changes to take over.
#[derive(Debug, Clone, Copy)]
enum Take {
    /// Those that are due.
    Due,
    /// All until now.
    All,
}

async fn wait_until(due: Option<Instant>) {
    match due {
        // A timer would add a delay of up to a millisecond.
        Some(due) if due <= Instant::now() => {}
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}

fn count(world: &World, metrics: &Metrics) {
    let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
    metrics.plane.set(plane::Gauge::pilot_services, number(world.snapshot.services.len()));
    metrics.plane.set(plane::Gauge::pilot_virt_services, number(world.snapshot.route_sets.len()));
    metrics.plane.set(plane::Gauge::evenkeel_config_refused_files, number(world.refused.len()));
}

#[cfg(test)]
mod tests;
