//! The proxies that are connected, what each is to hold, and how far it has got.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_translate::{Change, ProxyView, Translator};
use evenkeel_xds::server::{Interest, Session, Status, Touched};
use evenkeel_xds::{Cause, ResourceSet};
use tokio::sync::watch;

use crate::memory;
use crate::metrics::Metrics;
use crate::observe;
use crate::publish::{Admission, FirstPush, PublishOptions};
use crate::world::World;

/// How long a stream may be without the newest of what does not concern it.
const CATCH_UP_INTERVAL: Duration = Duration::from_secs(20);
/// Most xDS streams served at a time, in streams.
pub const MAX_STREAMS: usize = 20_000;

/// The connected proxies.
#[derive(Debug)]
pub struct Proxies {
    world: watch::Receiver<Arc<World>>,
    metrics: Arc<Metrics>,
    admission: Admission,
    compare: bool,
    next_stream: AtomicU64,
    /// Generation of the world whose resources have been handed out.
    published: AtomicU64,
    /// Locked before `state`, and until what it made is handed out: who connects meanwhile sees the old world or the new.
    translator: Mutex<Translator>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    by_view: HashMap<View, BTreeSet<u64>>,
    /// Streams that have settled at another generation since somebody asked.
    settled: BTreeSet<u64>,
    /// No more streams are taken.
    closed: bool,
}

/// What a proxy says of itself, as the translator keeps it: compared by pointer, since a change looks for the streams of all it
/// may concern.
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
    resources: watch::Sender<Arc<ResourceSet>>,
    interest: Interest,
    /// Generation of the resources it was told of last, and when what they are made of was noticed.
    told: (u64, Instant),
    /// It has resources it was not told of: they are the same in all that it asks for.
    behind: bool,
    status: Arc<Status>,
    first_push: FirstPush,
}

impl Stream {
    /// Replaces its resources; tells it if that concerns it. Whether it did.
    fn offer(&mut self, now: &Arc<ResourceSet>, touched: &Touched, noticed: Instant) -> bool {
        let concerned = self.resources.send_if_modified(|resources| {
            *resources = now.clone();
            self.interest.concerned_by(touched)
        });
        if concerned {
            self.told = (now.generation, noticed);
        }
        self.behind = !concerned;
        concerned
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

/// Why a stream is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// At the limit.
    #[error("{MAX_STREAMS} xDS streams are served already")]
    TooMany,
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
            compare: options.compare,
            next_stream: AtomicU64::new(1),
            published: AtomicU64::new(first.generation),
            translator: Mutex::new(Translator::new(first.snapshot.clone(), cause(&first))),
            state: Mutex::default(),
            world,
        })
    }

    /// Waits while too many others get their first resources.
    pub async fn admit(&self) -> Result<FirstPush, ConnectError> {
        self.metrics.waiting_streams.fetch_add(1, Relaxed);
        let first_push = self.admission.admit().await;
        self.metrics.waiting_streams.fetch_sub(1, Relaxed);
        first_push.ok_or(ConnectError::Closed)
    }

    /// Registers a stream until its session is dropped.
    pub fn connect(self: &Arc<Self>, client: Client, first_push: FirstPush) -> Result<Session, ConnectError> {
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
        let apart = memory::apart();
        let first = translator.join(&client.view);
        let view = View(translator.view_of(&client.view).cloned().unwrap_or_else(|| Arc::new(client.view.clone())));
        drop(apart);
        let told = (first.generation, Instant::now());
        let (sender, resources) = watch::channel(first);
        let interest = Interest::default();
        let session = Session::new(resources).known_by(interest.clone());
        state = lock(&self.state);
        tracing::info!(node = client.node, identity = ?client.identity, "proxy connected");
        state.by_view.entry(view.clone()).or_default().insert(id);
        let (client, status, behind) = (Arc::new(client), Arc::default(), false);
        let stream = Stream { client, view, resources: sender, interest, told, behind, status, first_push };
        state.streams.insert(id, stream);
        self.metrics.streams.fetch_add(1, Relaxed);
        let guard = Registration { proxies: self.clone(), id };
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
    }

    /// Tells the proxies that the present world concerns.
    pub fn publish(&self) {
        let world = self.world.borrow().clone();
        let mut translator = lock(&self.translator);
        let changes = translator.update(world.snapshot.clone(), cause(&world));
        self.hand_out(changes, &world);
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
        let differs = translator.rebuild(world.snapshot.clone());
        for change in &differs {
            let (namespace, pod) = (&change.view.namespace, &change.view.pod);
            tracing::error!("what was made from nothing for {namespace}/{pod} differs; please report this");
        }
        self.metrics.mismatches.fetch_add(differs.len() as u64, Relaxed);
        self.hand_out(differs, &world);
        self.metrics.rebuilds.fetch_add(1, Relaxed);
        for stream in lock(&self.state).streams.values_mut() {
            if let Some(now) = translator.set_of(&stream.client.view) {
                stream.behind = false;
                stream.resources.send_replace(now.clone());
            }
        }
    }

    /// Generation of the world of which all proxies that it concerns have been told.
    pub fn published(&self) -> u64 {
        self.published.load(Relaxed)
    }

    fn hand_out(&self, changes: Vec<Change>, world: &World) {
        let mut state = lock(&self.state);
        let State { streams, by_view, .. } = &mut *state;
        for change in changes {
            for id in by_view.get(&View(change.view)).into_iter().flatten() {
                let Some(stream) = streams.get_mut(id) else { continue };
                if stream.offer(&change.now, &change.touched, world.noticed.instant) {
                    self.metrics.queued(world.noticed.instant.elapsed());
                }
            }
        }
    }

    /// Tells streams now and then of changes that do not concern them: what they have seen is what they keep in memory.
    pub async fn catch_up(&self) {
        loop {
            tokio::time::sleep(CATCH_UP_INTERVAL).await;
            for stream in lock(&self.state).streams.values_mut().filter(|stream| stream.behind) {
                stream.behind = false;
                stream.resources.send_modify(|_| {});
            }
        }
    }

    /// All streams, in the order they were opened.
    pub fn reports(&self) -> Vec<StreamReport> {
        let report = |s: &Stream| StreamReport {
            client: s.client.clone(),
            status: s.status.clone(),
            resources: s.resources.borrow().clone(),
            told: s.told.0,
        };
        lock(&self.state).streams.values().map(report).collect()
    }

    /// The streams that have settled since this was asked last, and at which generation.
    pub fn take_settled(&self) -> Vec<(Arc<Client>, u64)> {
        let mut state = lock(&self.state);
        let settled = std::mem::take(&mut state.settled);
        let streams = settled.iter().filter_map(|id| state.streams.get(id));
        streams.map(|stream| (stream.client.clone(), stream.status.settled_generation)).collect()
    }

    fn on_status(&self, id: u64, status: Status) {
        let status = Arc::new(status);
        let mut state = lock(&self.state);
        let State { streams, settled, .. } = &mut *state;
        let Some(stream) = streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut stream.status, status.clone());
        if before.settled_generation == 0 && status.settled_generation > 0 {
            stream.first_push.done();
        }
        if before.settled_generation != status.settled_generation {
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
        Some(gone)
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
