//! The proxies that are connected, what each is to hold, and how far it has got.

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_translate::ProxyView;
use evenkeel_xds::ResourceSet;
use evenkeel_xds::server::{Session, Status};
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::observe;
use crate::world::World;

/// Most xDS streams served at a time, in streams.
pub const MAX_STREAMS: usize = 20_000;

/// The connected proxies.
#[derive(Debug)]
pub struct Proxies {
    world: watch::Receiver<Arc<World>>,
    metrics: Arc<Metrics>,
    next_stream: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    streams: BTreeMap<u64, Stream>,
    /// Sets of the present generation, shared by proxies that see the same.
    sets: HashMap<ProxyView, Arc<ResourceSet>>,
    /// Generation of `sets`.
    generation: u64,
    /// No more streams are taken.
    closed: bool,
}

#[derive(Debug)]
struct Stream {
    client: Client,
    resources: watch::Sender<Arc<ResourceSet>>,
    status: Status,
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
    pub client: Client,
    /// How far it has got.
    pub status: Status,
    /// What it is to hold.
    pub resources: Arc<ResourceSet>,
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
    pub fn new(world: watch::Receiver<Arc<World>>, metrics: Arc<Metrics>) -> Arc<Self> {
        Arc::new(Self { world, metrics, next_stream: AtomicU64::new(1), state: Mutex::default() })
    }

    /// Registers a stream until its session is dropped.
    pub fn connect(self: &Arc<Self>, client: Client) -> Result<Session, ConnectError> {
        let id = self.next_stream.fetch_add(1, Relaxed);
        let world = self.world.borrow().clone();
        let mut state = self.lock();
        if state.closed {
            return Err(ConnectError::Closed);
        }
        if state.streams.len() >= MAX_STREAMS {
            return Err(ConnectError::TooMany);
        }
        let (sender, resources) = watch::channel(state.set_for(&client.view, &world));
        tracing::info!(node = client.node, identity = ?client.identity, "proxy connected");
        state.streams.insert(id, Stream { client, resources: sender, status: Status::default() });
        self.metrics.streams.fetch_add(1, Relaxed);
        let guard = Registration { proxies: self.clone(), id };
        Ok(Session::new(resources).observed(move |status| guard.proxies.on_status(guard.id, status)))
    }

    /// Ends all streams and takes no more.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.streams.clear();
    }

    /// Gives every proxy what the present world says.
    pub fn publish(&self) {
        let world = self.world.borrow().clone();
        let mut state = self.lock();
        let views: Vec<(u64, ProxyView)> = state.streams.iter().map(|(id, s)| (*id, s.client.view.clone())).collect();
        for (id, view) in views {
            let set = state.set_for(&view, &world);
            if let Some(stream) = state.streams.get(&id) {
                stream.resources.send_if_modified(|held| {
                    let newer = held.generation != set.generation;
                    *held = set;
                    newer
                });
            }
        }
    }

    /// All streams, in the order they were opened.
    pub fn reports(&self) -> Vec<StreamReport> {
        let report = |s: &Stream| StreamReport {
            client: s.client.clone(),
            status: s.status.clone(),
            resources: s.resources.borrow().clone(),
        };
        self.lock().streams.values().map(report).collect()
    }

    fn on_status(&self, id: u64, status: Status) {
        let mut state = self.lock();
        let Some(stream) = state.streams.get_mut(&id) else { return };
        let before = std::mem::replace(&mut stream.status, status.clone());
        let (node, since) = (stream.client.node.clone(), stream.client.since);
        drop(state);
        self.count(&node, since, &before, &status);
    }

    fn count(&self, node: &str, since: SystemTime, before: &Status, now: &Status) {
        observe::step(&self.metrics, node, before, now, since.elapsed().unwrap_or_default());
        let world = self.world.borrow().clone();
        let settled = before.settled_generation < now.settled_generation;
        if settled && now.settled_generation == world.generation {
            self.metrics.converged(Instant::now().duration_since(world.noticed.instant));
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Takes a stream out, and its set if nobody else holds the same.
    fn remove(&mut self, id: u64) -> Option<Stream> {
        let gone = self.streams.remove(&id)?;
        if !self.streams.values().any(|s| s.client.view == gone.client.view) {
            self.sets.remove(&gone.client.view);
        }
        Some(gone)
    }

    fn set_for(&mut self, view: &ProxyView, world: &World) -> Arc<ResourceSet> {
        if self.generation != world.generation {
            self.generation = world.generation;
            self.sets.clear();
        }
        if let Some(set) = self.sets.get(view) {
            return set.clone();
        }
        let set = Arc::new(evenkeel_translate::resources(view, &world.snapshot, world.generation));
        self.sets.insert(view.clone(), set.clone());
        set
    }
}

/// Takes a stream off the books when its session ends.
struct Registration {
    proxies: Arc<Proxies>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        let gone = self.proxies.lock().remove(self.id);
        self.proxies.metrics.streams.fetch_sub(1, Relaxed);
        if let Some(stream) = gone {
            tracing::info!(node = stream.client.node, "proxy disconnected");
        }
    }
}
