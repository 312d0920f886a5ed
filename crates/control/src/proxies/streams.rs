//! The open streams: the resources of each, who is told of a change, and the progress of each.
//!
//! The lock is held for one read, or for one change to at most [`AT_ONCE`] streams, so that a stream that reads its resources
//! does not wait until ten thousand others have been told.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_translate::{Changed, ClassId, Holding, Joined, ProxyView};
use evenkeel_xds::ResourceSet;
use evenkeel_xds::server::{Interest, Interests, Status};
use tokio::sync::watch;

use super::mailbox::Mailbox;
use super::{Admitted, Client, ConnectError, MAX_STREAMS, Settled, StreamReport};
use crate::history::Refused;
use crate::metrics::{Metrics, plane};
use crate::observe;
use crate::world::World;

/// Number of streams that are visited before the lock is released for others.
const AT_ONCE: usize = 256;

/// The open streams.
#[derive(Debug)]
pub(super) struct Streams {
    metrics: Arc<Metrics>,
    next: AtomicU64,
    /// The subscriptions of the streams.
    interests: Interests,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    by_view: HashMap<View, BTreeSet<u64>>,
    classes: HashMap<ClassId, Class>,
    /// Streams that have acknowledged another generation, or reject something else, since the last query.
    settled: BTreeSet<u64>,
    /// Whether no more streams are accepted.
    closed: bool,
}

/// What the streams of a class share.
#[derive(Debug)]
struct Class {
    shared: Arc<ResourceSet>,
    streams: usize,
    /// Whether it has changed since all its streams were told.
    behind: bool,
}

/// The properties of a proxy, as the translator keeps them; compared by pointer.
#[derive(Debug, Clone)]
struct View(Arc<ProxyView>);

impl PartialEq for View {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for View {}

impl Hash for View {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

#[derive(Debug)]
struct Stream {
    client: Arc<Client>,
    view: View,
    holding: Holding,
    /// Tells the stream to read its resources.
    notice: watch::Sender<()>,
    interest: Interest,
    /// Generation of the resources it was last told of, and when the change behind them was noticed.
    told: (u64, Instant),
    /// The last generation that it has acknowledged after it was told of it, and how long after the change was noticed.
    converged: Option<(u64, Duration)>,
    status: Arc<Status>,
    admitted: Admitted,
}

impl Stream {
    /// Tells the stream that its resources have changed.
    fn tell(&mut self, world: &World) {
        self.told = (world.generation, world.noticed.instant);
        self.notice.send_replace(());
    }
}

/// A registered stream, and its notices of changes.
#[derive(Debug)]
pub(super) struct Registered {
    pub registration: Registration,
    pub notice: watch::Receiver<()>,
    pub interest: Interest,
}

/// Removes a stream when it is dropped.
#[derive(Debug)]
pub(super) struct Registration {
    streams: Arc<Streams>,
    mailbox: Arc<Mailbox<Registered>>,
    id: u64,
}

impl Streams {
    /// Creates a table without streams.
    pub fn new(metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { metrics, next: AtomicU64::new(1), interests: Interests::default(), state: Mutex::default() })
    }

    /// Checks that there is room for another stream.
    pub fn have_room(&self) -> Result<(), ConnectError> {
        self.lock().have_room()
    }

    /// Registers a stream of a proxy that has joined.
    pub fn register(
        self: &Arc<Self>,
        client: Client,
        admitted: Admitted,
        joined: Joined,
        mailbox: &Arc<Mailbox<Registered>>,
    ) -> Result<Registered, ConnectError> {
        let Joined { view, holding, shared } = joined;
        let id = self.next.fetch_add(1, Relaxed);
        let told = (holding.over(&shared).generation, Instant::now());
        let (notice, noticed) = watch::channel(());
        let interest = self.interests.of(id);
        let mut state = self.lock();
        if let Err(error) = state.have_room() {
            drop(state);
            mailbox.left(view);
            return Err(error);
        }
        tracing::info!(node = client.node, identity = ?client.identity, "proxy connected");
        let view = View(view);
        state.by_view.entry(view.clone()).or_default().insert(id);
        state.enter(holding.class, shared);
        let (client, status) = (Arc::new(client), Arc::default());
        let (interest_of, converged) = (interest.clone(), None);
        let stream = Stream { client, view, holding, notice, interest: interest_of, told, converged, status, admitted };
        state.streams.insert(id, stream);
        drop(state);
        self.metrics.plane.shift(plane::Gauge::pilot_xds, 1);
        let registration = Registration { streams: self.clone(), mailbox: mailbox.clone(), id };
        Ok(Registered { registration, notice: noticed, interest })
    }

    /// Ends all streams and accepts no more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        // The registrations find their streams gone when they are dropped; the translator is not told any more.
        state.streams.clear();
        state.by_view.clear();
        state.classes.clear();
    }

    /// Applies changes and tells the streams that they concern; returns how many these are.
    pub fn hand_out(&self, changed: Changed, world: &World) -> u64 {
        let mut told = 0;
        let mut moved = BTreeSet::new();
        for change in changed.proxies {
            let Joined { view, holding, shared } = change.now;
            let mut state = self.lock();
            for id in state.by_view.get(&View(view)).cloned().unwrap_or_default() {
                state.put(id, holding.clone(), &shared);
                let Some(stream) = state.streams.get_mut(&id) else { continue };
                if stream.interest.concerned_by(&change.touched) {
                    stream.tell(world);
                    told += 1;
                }
                moved.insert(id);
            }
        }
        for change in changed.classes {
            match self.lock().classes.get_mut(&change.class) {
                Some(class) => (class.shared, class.behind) = (change.shared, true),
                None => continue,
            }
            // A stream that has not registered its subscriptions yet is not among them; it gets the present state when it
            // reads.
            for some in self.interests.concerned_by(&change.touched).chunks(AT_ONCE) {
                let mut state = self.lock();
                for id in some.iter().filter(|id| !moved.contains(id)) {
                    let stream = state.streams.get_mut(id).filter(|stream| stream.holding.class == change.class);
                    if let Some(stream) = stream.filter(|stream| stream.interest.concerned_by(&change.touched)) {
                        stream.tell(world);
                        told += 1;
                    }
                }
            }
        }
        told
    }

    /// Tells all streams to read their resources.
    pub fn tell_all(&self) {
        let mut state = self.lock();
        let all: Vec<u64> = state.streams.keys().copied().collect();
        state.classes.values_mut().for_each(|class| class.behind = false);
        drop(state);
        self.have_look(&all);
    }

    /// Tells the streams that were not told of changes because these do not concern them.
    pub fn tell_those_behind(&self) {
        let mut state = self.lock();
        let State { streams, classes, .. } = &mut *state;
        let is_behind = |stream: &Stream| classes.get(&stream.holding.class).is_some_and(|class| class.behind);
        let behind: Vec<u64> = streams.iter().filter(|(_, stream)| is_behind(stream)).map(|(id, _)| *id).collect();
        classes.values_mut().for_each(|class| class.behind = false);
        drop(state);
        self.have_look(&behind);
    }

    fn have_look(&self, ids: &[u64]) {
        for some in ids.chunks(AT_ONCE) {
            let state = self.lock();
            some.iter().filter_map(|id| state.streams.get(id)).for_each(|stream| stream.notice.send_replace(()));
        }
    }

    /// Returns all streams, in the order in which they were opened.
    pub fn reports(&self) -> Vec<StreamReport> {
        let mut reports = Vec::new();
        let mut next = 0;
        loop {
            let state = self.lock();
            let mut some = state.streams.range(next..).take(AT_ONCE).peekable();
            if some.peek().is_none() {
                return reports;
            }
            for (id, stream) in some {
                next = id + 1;
                let Some((holding, shared)) = state.held_by(*id) else { continue };
                let (client, status, told) = (stream.client.clone(), stream.status.clone(), stream.told.0);
                let converged = stream.converged;
                reports.push(StreamReport { client, status, told, converged, holding, shared });
            }
        }
    }

    /// Returns the streams that have acknowledged a generation since the last call, with the generation and what they reject
    /// of it.
    pub fn take_settled(&self) -> Vec<Settled> {
        let mut state = self.lock();
        let settled = std::mem::take(&mut state.settled);
        let streams = settled.iter().filter_map(|id| state.streams.get(id));
        let settled = |stream: &Stream| Settled {
            client: stream.client.clone(),
            generation: stream.status.settled_generation,
            refused: refused(&stream.status),
        };
        streams.map(settled).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
impl Streams {
    /// Checks that every stream has the resources that the translator gives it, and that nothing is kept for closed streams.
    pub fn check_invariants(&self, translator: &evenkeel_translate::Translator) {
        let state = self.lock();
        let mut classes = BTreeMap::new();
        for (id, stream) in &state.streams {
            let known = translator.joined(&stream.client.view).expect("it joined");
            let (holding, shared) = state.held_by(*id).expect("it is there");
            let (held, known) = (holding.over(&shared), known.set());
            assert!(
                held.diff(&known).next().is_none() && held.generation == known.generation,
                "{}",
                stream.client.node
            );
            *classes.entry(holding.class).or_insert(0) += 1;
        }
        let counted: BTreeMap<_, _> = state.classes.iter().map(|(id, class)| (*id, class.streams)).collect();
        assert_eq!(counted, classes);
        assert_eq!(state.by_view.values().map(BTreeSet::len).sum::<usize>(), state.streams.len());
    }

    /// Returns the number of classes that have streams.
    pub fn classes(&self) -> usize {
        self.lock().classes.len()
    }
}

impl Registration {
    /// Returns the resources of the stream and its class; `None` once it is removed.
    pub fn held(&self) -> Option<(Holding, Arc<ResourceSet>)> {
        self.streams.lock().held_by(self.id)
    }

    /// Records the progress of the stream.
    pub fn on_status(&self, status: Status) {
        let status = Arc::new(status);
        let metrics = &self.streams.metrics;
        let mut state = self.streams.lock();
        let State { streams, settled, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&self.id) else { return };
        let before = std::mem::replace(&mut stream.status, status.clone());
        if before.settled_generation == 0 && status.settled_generation > 0 {
            stream.admitted.first_push.done();
        }
        if before.settled_generation != status.settled_generation || refused(&before) != refused(&status) {
            settled.insert(self.id);
        }
        let (client, (told, noticed)) = (stream.client.clone(), stream.told);
        let converges = (before.settled_generation + 1..=status.settled_generation).contains(&told);
        let after = noticed.elapsed();
        if converges {
            stream.converged = Some((told, after));
        }
        drop(state);
        observe::step(metrics, &client.node, &before, &status, client.since.elapsed().unwrap_or_default());
        if converges {
            metrics.converged(after);
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let gone = self.streams.lock().remove(self.id);
        self.streams.metrics.plane.shift(plane::Gauge::pilot_xds, -1);
        if let Some(stream) = gone {
            tracing::info!(node = stream.client.node, "proxy disconnected");
            self.mailbox.left(stream.view.0);
        }
    }
}

/// Returns what a client is known to reject. While a rejected response is being bisected the culprit is not known yet.
fn refused(status: &Status) -> Vec<Refused> {
    let nacks = status.types.iter().filter_map(|of| Some((of.kind, of.nack.as_ref()?)));
    let found = nacks.filter(|(_, nack)| !nack.searching).flat_map(|(kind, nack)| {
        nack.resources.iter().map(move |resource| Refused(kind.short_name().to_owned(), resource.name.clone()))
    });
    found.collect()
}

impl State {
    fn have_room(&self) -> Result<(), ConnectError> {
        match self.streams.len() {
            _ if self.closed => Err(ConnectError::Closed),
            MAX_STREAMS.. => Err(ConnectError::TooMany),
            _ => Ok(()),
        }
    }

    /// Removes a stream.
    fn remove(&mut self, id: u64) -> Option<Stream> {
        let gone = self.streams.remove(&id)?;
        if let Some(streams) = self.by_view.get_mut(&gone.view) {
            streams.remove(&id);
            if streams.is_empty() {
                self.by_view.remove(&gone.view);
            }
        }
        self.exit(gone.holding.class);
        Some(gone)
    }

    /// Counts a stream of a class.
    fn enter(&mut self, class: ClassId, shared: Arc<ResourceSet>) {
        self.classes.entry(class).or_insert(Class { shared, streams: 0, behind: false }).streams += 1;
    }

    /// Uncounts a stream of a class.
    fn exit(&mut self, class: ClassId) {
        let Some(of) = self.classes.get_mut(&class) else { return };
        of.streams -= 1;
        if of.streams == 0 {
            self.classes.remove(&class);
        }
    }

    /// Gives a stream other resources.
    fn put(&mut self, id: u64, holding: Holding, shared: &Arc<ResourceSet>) {
        self.enter(holding.class, shared.clone());
        if let Some(class) = self.classes.get_mut(&holding.class) {
            (class.shared, class.behind) = (shared.clone(), true);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut stream.holding, holding).class;
        self.exit(before);
    }

    /// Returns the resources of a stream and its class; `None` once it is removed.
    fn held_by(&self, id: u64) -> Option<(Holding, Arc<ResourceSet>)> {
        let holding = &self.streams.get(&id)?.holding;
        Some((holding.clone(), self.classes.get(&holding.class)?.shared.clone()))
    }
}
