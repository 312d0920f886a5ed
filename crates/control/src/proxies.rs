//! The proxies that are connected, what each is to hold, and how far it has got.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_translate::{Changed, ClassId, Holding, Joined, ProxyView, Translator};
use evenkeel_xds::server::{Interest, Interests, Resources, Session, Status};
use evenkeel_xds::{Cause, ResourceSet};
use tokio::sync::watch;

use crate::history::Refused;
use crate::memory;
use crate::metrics::Metrics;
use crate::observe;
use crate::publish::{Admission, FirstPush, PublishOptions};
use crate::quota::{Quota, Share};
use crate::world::World;

/// How long a stream may be without the newest of what does not concern it.
const CATCH_UP_INTERVAL: Duration = Duration::from_secs(20);
/// Most xDS streams served at a time, in streams.
pub const MAX_STREAMS: usize = 20_000;
/// Most of one identity, that is of all replicas that run as one service account, in streams.
pub const MAX_STREAMS_PER_IDENTITY: usize = MAX_STREAMS / 4;

/// The connected proxies.
#[derive(Debug)]
pub struct Proxies {
    world: watch::Receiver<Arc<World>>,
    metrics: Arc<Metrics>,
    admission: Admission,
    /// Streams, and those that wait to become one.
    by_identity: Arc<Quota<SpiffeId>>,
    compare: bool,
    next_stream: AtomicU64,
    /// Generation of the world whose resources have been handed out.
    published: AtomicU64,
    /// Locked before `state`, and until what it made is handed out: who connects meanwhile sees the old world or the new.
    translator: Mutex<Translator>,
    /// What the streams ask for.
    interests: Interests,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    by_view: HashMap<View, BTreeSet<u64>>,
    classes: HashMap<ClassId, Class>,
    /// Streams that have settled at another generation, or refuse something else, since somebody asked.
    settled: BTreeSet<u64>,
    /// No more streams are taken.
    closed: bool,
}

/// What the streams of a class share.
#[derive(Debug)]
struct Class {
    shared: Arc<ResourceSet>,
    streams: usize,
    /// It has changed since all its streams were told.
    behind: bool,
}

/// What a proxy says of itself, as the translator keeps it: compared by pointer.
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
    /// Tells it to look at what it is to hold.
    notice: watch::Sender<()>,
    interest: Interest,
    /// Generation of the resources it was told of last, and when what they are made of was noticed.
    told: (u64, Instant),
    status: Arc<Status>,
    admitted: Admitted,
}

/// A stream's turn, and its place among those of its identity.
#[derive(Debug)]
pub struct Admitted {
    first_push: FirstPush,
    _place: Option<Share<SpiffeId>>,
}

/// One that waits for its turn is counted for as long as it does: until it has it, or is gone.
struct Waiting<'m>(&'m Metrics);

impl<'m> Waiting<'m> {
    fn new(metrics: &'m Metrics) -> Self {
        metrics.waiting_streams.fetch_add(1, Relaxed);
        Self(metrics)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting_streams.fetch_sub(1, Relaxed);
    }
}

impl Stream {
    /// Tells it that its resources are others now.
    fn tell(&mut self, world: &World) {
        self.told = (world.generation, world.noticed.instant);
        self.notice.send_replace(());
    }
}

/// Who is at the other end of a stream.
#[derive(Debug, Clone)]
pub struct Client {
    /// The xDS node id.
    pub node: String,
    /// Its program and version, as the node says.
    pub program: String,
    /// What its configuration depends on.
    pub view: ProxyView,
    /// Where it connected from.
    pub peer: Option<SocketAddr>,
    /// Its certificate's identity; `None` on the plaintext port.
    pub identity: Option<SpiffeId>,
    /// When.
    pub since: SystemTime,
}

/// One stream, as debug endpoints show it.
#[derive(Debug, Clone)]
pub struct StreamReport {
    /// Who.
    pub client: Arc<Client>,
    /// How far it has got.
    pub status: Arc<Status>,
    /// What it is to hold.
    pub resources: Arc<ResourceSet>,
    /// Generation of the last of them that concerned it.
    pub told: u64,
}

/// How far one stream has got.
#[derive(Debug, Clone)]
pub struct Settled {
    /// Who.
    pub client: Arc<Client>,
    /// The generation all of which it has answered.
    pub generation: u64,
    /// What of it was refused.
    pub refused: Vec<Refused>,
}

/// Why a stream is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// At the limit.
    #[error("{MAX_STREAMS} xDS streams are served already")]
    TooMany,
    /// At the limit of one identity.
    #[error("{MAX_STREAMS_PER_IDENTITY} xDS streams of this identity are served already")]
    TooManyOfIdentity,
    /// At the end.
    #[error("the control plane is shutting down")]
    Closed,
}

impl Proxies {
    /// No proxy is connected yet.
    pub fn new(world: watch::Receiver<Arc<World>>, metrics: Arc<Metrics>, options: PublishOptions) -> Arc<Self> {
        let first = world.borrow().clone();
        Arc::new(Self {
            metrics,
            admission: Admission::new(options.first_pushes),
            by_identity: Quota::new(MAX_STREAMS, MAX_STREAMS_PER_IDENTITY),
            compare: options.compare,
            next_stream: AtomicU64::new(1),
            published: AtomicU64::new(first.generation),
            translator: Mutex::new(Translator::new(first.snapshot.clone(), cause(&first))),
            interests: Interests::default(),
            state: Mutex::default(),
            world,
        })
    }

    /// Waits while too many others get their first resources.
    pub async fn admit(&self, identity: Option<&SpiffeId>) -> Result<Admitted, ConnectError> {
        let place = identity.map(|identity| self.by_identity.take(identity.clone()));
        if matches!(place, Some(None)) {
            return Err(ConnectError::TooManyOfIdentity);
        }
        let waiting = Waiting::new(&self.metrics);
        let first_push = self.admission.admit().await;
        drop(waiting);
        let first_push = first_push.ok_or(ConnectError::Closed)?;
        Ok(Admitted { first_push, _place: place.flatten() })
    }

    /// Registers a stream until its session is dropped.
    pub fn connect(self: &Arc<Self>, client: Client, admitted: Admitted) -> Result<Session, ConnectError> {
        let id = self.next_stream.fetch_add(1, Relaxed);
        let mut translator = lock(&self.translator);
        let mut state = lock(&self.state);
        if state.closed {
            return Err(ConnectError::Closed);
        }
        if state.streams.len() >= MAX_STREAMS {
            return Err(ConnectError::TooMany);
        }
        drop(state);
        // It stays with the stream, whatever becomes of the configuration.
        let view = Arc::new(client.view.clone());
        let apart = memory::apart();
        let Joined { view, holding, shared } = translator.join(view);
        let generation = holding.over(&shared).generation;
        drop(apart);
        let told = (generation, Instant::now());
        let (notice, noticed) = watch::channel(());
        let interest = self.interests.of(id);
        let view = View(view);
        state = lock(&self.state);
        tracing::info!(node = client.node, identity = ?client.identity, "proxy connected");
        state.by_view.entry(view.clone()).or_default().insert(id);
        state.enter(holding.class, shared);
        let (client, status) = (Arc::new(client), Arc::default());
        let stream = Stream { client, view, holding, notice, interest: interest.clone(), told, status, admitted };
        state.streams.insert(id, stream);
        self.metrics.streams.fetch_add(1, Relaxed);
        let guard = Registration { proxies: self.clone(), id };
        let mut looked = Looked::default();
        let proxies = self.clone();
        let now = Box::new(move || {
            let held = lock(&proxies.state).held_by(id);
            looked.again(held)
        });
        let session = Session::new(Resources::Asked { now, notice: noticed }).known_by(interest);
        Ok(session.observed(move |status| guard.proxies.on_status(guard.id, status)))
    }

    /// Ends all streams and takes no more.
    pub fn close(&self) {
        self.admission.close();
        let mut state = lock(&self.state);
        state.closed = true;
        // Their ends find them gone; nobody asks the translator any more.
        state.streams.clear();
        state.by_view.clear();
        state.classes.clear();
    }

    /// Tells the proxies that the present world concerns.
    pub fn publish(&self) {
        let world = self.world.borrow().clone();
        let mut translator = lock(&self.translator);
        let changed = translator.update(world.snapshot.clone(), cause(&world));
        self.hand_out(changed, &world);
        if self.compare {
            let (mismatches, healed) = translator.verify();
            for mismatch in &mismatches {
                tracing::error!(%mismatch, generation = world.generation, "a change was followed wrongly; please report this");
            }
            self.metrics.mismatches.fetch_add(mismatches.len() as u64, Relaxed);
            self.hand_out(healed, &world);
        }
        self.published.store(world.generation, Relaxed);
    }

    /// Makes anew what proxies hold, of a snapshot that is the same but for where it lies in memory; nothing is sent.
    pub fn rebuild(&self) {
        let world = self.world.borrow().clone();
        let mut translator = lock(&self.translator);
        let changed = translator.rebuild(world.snapshot.clone());
        let differing = changed.proxies.iter().filter(|change| !change.touched.is_empty());
        for change in differing.clone() {
            let (namespace, pod) = (&change.now.view.namespace, &change.now.view.pod);
            tracing::error!("what was made from nothing for {namespace}/{pod} differs; please report this");
        }
        self.metrics.mismatches.fetch_add(differing.count() as u64, Relaxed);
        self.hand_out(changed, &world);
        self.metrics.rebuilds.fetch_add(1, Relaxed);
        // What they have seen is the old.
        let mut state = lock(&self.state);
        state.streams.values().for_each(|stream| stream.notice.send_replace(()));
        state.classes.values_mut().for_each(|class| class.behind = false);
    }

    /// Generation of the world of which all proxies that it concerns have been told.
    pub fn published(&self) -> u64 {
        self.published.load(Relaxed)
    }

    fn hand_out(&self, changed: Changed, world: &World) {
        let mut state = lock(&self.state);
        let mut told = 0_u64;
        let mut moved = BTreeSet::new();
        for change in changed.proxies {
            let Joined { view, holding, shared } = change.now;
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
            let State { streams, classes, .. } = &mut *state;
            let Some(class) = classes.get_mut(&change.class) else { continue };
            (class.shared, class.behind) = (change.shared, true);
            // Who looks before it has told what it asks for is not among them, and finds what is there now.
            for id in self.interests.concerned_by(&change.touched) {
                let Some(stream) = streams.get_mut(&id).filter(|stream| stream.holding.class == change.class) else {
                    continue;
                };
                if !moved.contains(&id) && stream.interest.concerned_by(&change.touched) {
                    stream.tell(world);
                    told += 1;
                }
            }
        }
        drop(state);
        (0..told).for_each(|_| self.metrics.queued(world.noticed.instant.elapsed()));
    }

    /// Tells streams now and then of changes that do not concern them: what they have seen is what they keep in memory.
    pub async fn catch_up(&self) {
        loop {
            tokio::time::sleep(CATCH_UP_INTERVAL).await;
            self.tell_those_behind();
        }
    }

    fn tell_those_behind(&self) {
        let mut state = lock(&self.state);
        let State { streams, classes, .. } = &mut *state;
        let is_behind = |stream: &&Stream| classes.get(&stream.holding.class).is_some_and(|class| class.behind);
        streams.values().filter(is_behind).for_each(|stream| stream.notice.send_replace(()));
        classes.values_mut().for_each(|class| class.behind = false);
    }

    /// All streams, in the order they were opened.
    pub fn reports(&self) -> Vec<StreamReport> {
        let state = lock(&self.state);
        let report = |s: &Stream| {
            let class = state.classes.get(&s.holding.class)?;
            let resources = s.holding.over(&class.shared);
            Some(StreamReport { client: s.client.clone(), status: s.status.clone(), resources, told: s.told.0 })
        };
        state.streams.values().filter_map(report).collect()
    }

    /// The streams that have settled since this was asked last, at which generation, and what of it they refuse.
    pub fn take_settled(&self) -> Vec<Settled> {
        let mut state = lock(&self.state);
        let settled = std::mem::take(&mut state.settled);
        let streams = settled.iter().filter_map(|id| state.streams.get(id));
        let settled = |stream: &Stream| Settled {
            client: stream.client.clone(),
            generation: stream.status.settled_generation,
            refused: refused(&stream.status),
        };
        streams.map(settled).collect()
    }

    fn on_status(&self, id: u64, status: Status) {
        let status = Arc::new(status);
        let mut state = lock(&self.state);
        let State { streams, settled, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut stream.status, status.clone());
        if before.settled_generation == 0 && status.settled_generation > 0 {
            stream.admitted.first_push.done();
        }
        if before.settled_generation != status.settled_generation || refused(&before) != refused(&status) {
            settled.insert(id);
        }
        let (client, (told, noticed)) = (stream.client.clone(), stream.told);
        drop(state);
        observe::step(&self.metrics, &client.node, &before, &status, client.since.elapsed().unwrap_or_default());
        if (before.settled_generation + 1..=status.settled_generation).contains(&told) {
            self.metrics.converged(noticed.elapsed());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a client is known to refuse. While halves are tried it may still turn out to be something else.
fn refused(status: &Status) -> Vec<Refused> {
    let nacks = status.types.iter().filter_map(|of| Some((of.kind, of.nack.as_ref()?)));
    let found = nacks.filter(|(_, nack)| !nack.searching).flat_map(|(kind, nack)| {
        nack.resources.iter().map(move |resource| Refused(kind.short_name().to_owned(), resource.name.clone()))
    });
    found.collect()
}

/// What made a world what it is, for what is made of it.
fn cause(world: &World) -> Cause {
    Cause { generation: world.generation, time_us: world.noticed.unix_micros() }
}

impl State {
    /// Takes a stream out.
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

    /// Takes a stream of a class off the count.
    fn exit(&mut self, class: ClassId) {
        let Some(of) = self.classes.get_mut(&class) else { return };
        of.streams -= 1;
        if of.streams == 0 {
            self.classes.remove(&class);
        }
    }

    /// Gives a stream something else to hold.
    fn put(&mut self, id: u64, holding: Holding, shared: &Arc<ResourceSet>) {
        self.enter(holding.class, shared.clone());
        if let Some(class) = self.classes.get_mut(&holding.class) {
            (class.shared, class.behind) = (shared.clone(), true);
        }
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut stream.holding, holding).class;
        self.exit(before);
    }

    /// What a stream is to hold, and of which class it is part; `None` once it is off the books.
    fn held_by(&self, id: u64) -> Option<(Holding, Arc<ResourceSet>)> {
        let holding = &self.streams.get(&id)?.holding;
        Some((holding.clone(), self.classes.get(&holding.class)?.shared.clone()))
    }
}

/// What a stream found when it looked last: put together once, however often it looks.
#[derive(Debug, Default)]
struct Looked {
    of: Option<(Holding, Arc<ResourceSet>)>,
    set: Arc<ResourceSet>,
}

impl Looked {
    /// The same, unless it was put together of something else.
    fn again(&mut self, held: Option<(Holding, Arc<ResourceSet>)>) -> Arc<ResourceSet> {
        let Some((holding, shared)) = held else { return self.set.clone() };
        let same = |(known, of): &(Holding, Arc<ResourceSet>)| known.is_same(&holding) && Arc::ptr_eq(of, &shared);
        if !self.of.as_ref().is_some_and(same) {
            self.set = holding.over(&shared);
            self.of = Some((holding, shared));
        }
        self.set.clone()
    }
}

/// Takes a stream off the books when its session ends.
struct Registration {
    proxies: Arc<Proxies>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut translator = lock(&self.proxies.translator);
        let gone = lock(&self.proxies.state).remove(self.id);
        self.proxies.metrics.streams.fetch_sub(1, Relaxed);
        if let Some(stream) = gone {
            translator.leave(&stream.client.view);
            tracing::info!(node = stream.client.node, "proxy disconnected");
        }
    }
}

#[cfg(test)]
mod tests;
