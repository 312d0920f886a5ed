//! Connected proxies: which resources each should hold, and what it has acknowledged.
//!
//! ```text
//! admit, connect ──► mailbox ──► translation   a thread that owns the Translator
//! publish, rebuild ─────┘            │
//!                                    ▼
//! a stream reads, reports status ──► streams   the resources of each stream, and notices of changes
//! ```

mod mailbox;
mod streams;
mod translation;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use evenkeel_base::spiffe::SpiffeId;
use evenkeel_translate::{Holding, ProxyView, secrets};
use evenkeel_xds::server::{Resources, Session, Status};
use evenkeel_xds::{Cause, Resource, ResourceSet, ResourceType, Version};
use tokio::sync::watch;
use tonic::Status as GrpcStatus;

pub use mailbox::MAX_WAITING_JOINS;

use crate::history::Refused;
use crate::memory;
use crate::metrics::{Metrics, plane};
use crate::publish::{Admission, FirstPush, PublishOptions};
use crate::quota::{Quota, Rate, Share};
use crate::world::World;
use mailbox::Mailbox;
use streams::{Registered, Streams};
use translation::{Following, Translation};

/// How often a stream is told of changes that do not concern it.
const CATCH_UP_INTERVAL: Duration = Duration::from_secs(20);
/// Maximum number of xDS streams served at the same time.
pub const MAX_STREAMS: usize = 20_000;
/// Maximum number of streams of one identity, that is, of all replicas that run as one service account.
pub const MAX_STREAMS_PER_IDENTITY: usize = MAX_STREAMS / 4;

/// Limit on the names that all streams of one identity keep subscribed, in bytes: enough for a thousand proxies that each
/// subscribe to four thousand resources.
pub const MAX_NAME_BYTES_PER_IDENTITY: usize = 512 * 1024 * 1024;

/// Log lines about secrets that proxies request and do not get: the burst, and the interval after which one more is allowed.
const SECRET_LINES: (u32, Duration) = (50, Duration::from_secs(1));

/// The connected proxies.
#[derive(Debug)]
pub struct Proxies {
    world: watch::Receiver<Arc<World>>,
    metrics: Arc<Metrics>,
    admission: Admission,
    /// Streams of each identity, including those that wait to be admitted.
    by_identity: Arc<Quota<SpiffeId>>,
    /// Bytes of subscribed names of each identity.
    names: Arc<Quota<SpiffeId>>,
    /// Limits log lines about secrets that proxies do not get.
    told_secrets: Arc<Rate<()>>,
    mailbox: Arc<Mailbox<Registered>>,
    streams: Arc<Streams>,
    following: Following,
    trust: watch::Sender<Option<Arc<Trust>>>,
    /// Called when the owner of a certificate acknowledges roots.
    on_trust: OnceLock<OnTrust>,
}

/// The trusted roots, as sent to the proxies' agents.
#[derive(Debug)]
pub struct Trust {
    /// The resource that is sent.
    pub resource: Arc<Resource>,
    /// The version by which the ledger names the roots.
    pub version: String,
}

/// Callback with the serial number of a client's certificate and the version of the roots that it has acknowledged.
struct OnTrust(Box<TrustCallback>);

type TrustCallback = dyn Fn(&str, &str) + Send + Sync;

impl std::fmt::Debug for OnTrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnTrust")
    }
}

/// An admitted stream: its turn for the first push, and its place in the quota of its identity.
#[derive(Debug)]
pub struct Admitted {
    first_push: FirstPush,
    _place: Option<Share<SpiffeId>>,
}

/// Counts a stream as waiting until it is admitted or dropped.
struct Waiting<'m>(&'m Metrics);

impl<'m> Waiting<'m> {
    fn new(metrics: &'m Metrics) -> Self {
        metrics.plane.shift(plane::Gauge::evenkeel_xds_waiting_streams, 1);
        Self(metrics)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.plane.shift(plane::Gauge::evenkeel_xds_waiting_streams, -1);
    }
}

/// The client of a stream.
#[derive(Debug, Clone)]
pub struct Client {
    /// The xDS node id.
    pub node: String,
    /// Program and version, as the node reports them.
    pub program: String,
    /// How the process is confined, as the node reports it; `None`: the node does not say.
    pub confinement: Option<String>,
    /// The properties of the node that its configuration depends on.
    pub view: ProxyView,
    /// The address it connected from.
    pub peer: Option<SocketAddr>,
    /// Identity in its certificate; `None` on the plaintext port.
    pub identity: Option<SpiffeId>,
    /// When it connected.
    pub since: SystemTime,
    /// Serial number of its certificate.
    pub serial: Option<Arc<str>>,
}

/// One stream, as the debug endpoints show it.
#[derive(Debug, Clone)]
pub struct StreamReport {
    /// The client.
    pub client: Arc<Client>,
    /// Its progress.
    pub status: Arc<Status>,
    /// Generation of the last change of its resources that it was told of.
    pub told: u64,
    /// The last generation that it has acknowledged after it was told of it, and how long after the change was noticed.
    pub converged: Option<(u64, Duration)>,
    holding: Holding,
    shared: Arc<ResourceSet>,
}

impl StreamReport {
    /// Returns the resources that it should hold.
    pub fn resources(&self) -> Arc<ResourceSet> {
        self.holding.over(&self.shared)
    }
}

/// A stream that has acknowledged a generation.
#[derive(Debug, Clone)]
pub struct Settled {
    /// The client.
    pub client: Arc<Client>,
    /// The generation of which it has answered everything.
    pub generation: u64,
    /// The resources that it rejected.
    pub refused: Vec<Refused>,
}

/// Why a stream is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The limit of all streams is reached.
    #[error("{MAX_STREAMS} xDS streams are served already")]
    TooMany,
    /// The limit of one identity is reached.
    #[error("{MAX_STREAMS_PER_IDENTITY} xDS streams of this identity are served already")]
    TooManyOfIdentity,
    /// The control plane is shutting down.
    #[error("the control plane is shutting down")]
    Closed,
}

impl Proxies {
    /// Starts the translator's thread; no proxy is connected yet.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn new(
        world: watch::Receiver<Arc<World>>,
        metrics: Arc<Metrics>,
        options: PublishOptions,
    ) -> io::Result<Arc<Self>> {
        let (mailbox, streams) = (Arc::<Mailbox<Registered>>::default(), Streams::new(metrics.clone()));
        let started =
            Translation::start(world.clone(), mailbox.clone(), streams.clone(), metrics.clone(), options.compare);
        Ok(Arc::new(Self {
            metrics,
            admission: Admission::new(options.first_pushes),
            by_identity: Quota::new(MAX_STREAMS, MAX_STREAMS_PER_IDENTITY),
            names: Quota::new(usize::MAX, MAX_NAME_BYTES_PER_IDENTITY),
            told_secrets: Arc::new(Rate::new(SECRET_LINES.0, SECRET_LINES.1, 1)),
            following: started?,
            trust: watch::Sender::new(None),
            on_trust: OnceLock::new(),
            mailbox,
            streams,
            world,
        }))
    }

    /// Sets the roots that agents are told to trust, and tells the connected ones.
    pub fn set_trust(&self, trust: Trust) {
        self.trust.send_replace(Some(Arc::new(trust)));
        self.streams.tell_all();
    }

    /// Sets the callback for acknowledged roots.
    pub fn on_trust(&self, on_trust: impl Fn(&str, &str) + Send + Sync + 'static) {
        // Only the first call has an effect, and there is only one.
        _ = self.on_trust.set(OnTrust(Box::new(on_trust)));
    }

    /// Waits while too many other streams get their first resources.
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

    /// Registers a stream until its session is dropped. Waits for the translator.
    pub async fn connect(self: &Arc<Self>, client: Client, admitted: Admitted) -> Result<Session, ConnectError> {
        let names = client.identity.clone().map(|identity| self.names.nothing(identity));
        let missing = self.tells_missing_secrets(&client);
        let serial = client.serial.clone();
        let waiting = Waiting::new(&self.metrics);
        let Registered { registration, notice, interest } = self.mailbox.join(client, admitted).await?;
        drop(waiting);
        let registration = Arc::new(registration);
        let mut looked = CachedSet::default();
        let (looking, trust) = (registration.clone(), self.trust.subscribe());
        let now = Box::new(move || looked.again(looking.held(), trust.borrow().clone()));
        let session = Session::new(Resources::Polled { now, notice }).known_by(interest);
        let mut acknowledged = self.acknowledges(serial);
        let on_status = move |status: Status| {
            acknowledged(status.roots);
            registration.on_status(status);
        };
        let session = session.observed(on_status).hears_missing_secrets(missing);
        Ok(match names {
            Some(names) => session.limited(limit(names, self.metrics.clone())),
            // Only this machine can reach the plaintext port.
            None => session,
        })
    }

    /// Returns a callback that records the roots that the owner of a certificate acknowledges.
    fn acknowledges(self: &Arc<Self>, serial: Option<Arc<str>>) -> impl FnMut(Option<Version>) + Send + 'static {
        let (this, mut last) = (Arc::downgrade(self), None);
        move |version| {
            if version.is_none() || version == last {
                return;
            }
            let (Some(serial), Some(this)) = (&serial, this.upgrade()) else { return };
            let trust = this.trust.borrow().clone();
            let Some(trust) = trust.filter(|trust| Some(trust.resource.version) == version) else { return };
            last = version;
            if let Some(on_trust) = this.on_trust.get() {
                (on_trust.0)(serial, &trust.version);
            }
        }
    }

    /// Returns a callback that logs which secrets a proxy requests and does not get, and why.
    fn tells_missing_secrets(&self, client: &Client) -> impl FnMut(&str) + Send + 'static {
        let (node, view) = (client.node.clone(), client.view.clone());
        let (world, told) = (self.world.clone(), self.told_secrets.clone());
        move |secret| {
            if told.note((), Instant::now()) {
                let reason = secrets::refusal(&view, &world.borrow().snapshot, secret);
                tracing::warn!(node, secret, %reason, "a proxy asks for a secret that it does not get");
            }
        }
    }

    /// Ends all streams and accepts no more.
    pub fn close(&self) {
        self.admission.close();
        self.streams.close();
        self.mailbox.close();
    }

    /// Tells the proxies concerned of the current world; completes when all have been told.
    pub async fn publish(&self) {
        let generation = self.world.borrow().generation;
        self.mailbox.publish();
        // If the translator has ended, the process is about to end.
        _ = self.following.published.clone().wait_for(|published| *published >= generation).await;
    }

    /// Rebuilds the resources from a snapshot that is equal but lies elsewhere in memory; nothing is sent.
    pub async fn rebuild(&self) {
        _ = self.mailbox.rebuild().await;
    }

    /// Returns free memory to the system, including that of the translator's thread.
    pub fn give_back(&self) {
        memory::give_back();
        self.mailbox.give_back();
    }

    /// Returns the generation of the last world of which all proxies concerned have been told.
    pub fn published(&self) -> u64 {
        *self.following.published.borrow()
    }

    /// Completes only if the translator fails, with the reason.
    pub async fn failed(&self) -> String {
        let mut failure = self.following.failure.clone();
        match failure.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(failure) => failure.unwrap_or_default(),
            // The translator has ended normally.
            Err(_) => std::future::pending().await,
        }
    }

    /// Periodically tells streams of changes that do not concern them, because a stream keeps in memory the state that it
    /// last read.
    pub async fn catch_up(&self) {
        loop {
            tokio::time::sleep(CATCH_UP_INTERVAL).await;
            self.streams.tell_those_behind();
        }
    }

    /// Returns all streams, in the order in which they were opened.
    pub fn reports(&self) -> Vec<StreamReport> {
        self.streams.reports()
    }

    /// Returns the streams that have acknowledged a generation since the last call, with the generation and what they reject
    /// of it.
    pub fn take_settled(&self) -> Vec<Settled> {
        self.streams.take_settled()
    }
}

/// Returns a callback that limits the names a stream keeps subscribed to what its identity may have.
fn limit(mut names: Share<SpiffeId>, metrics: Arc<Metrics>) -> impl FnMut(usize) -> Result<(), GrpcStatus> {
    move |bytes| {
        if names.resize(bytes) {
            return Ok(());
        }
        metrics.plane.inc(plane::Counter::evenkeel_xds_streams_over_names);
        let text = format!(
            "streams of {} may keep names of {} MiB subscribed at a time",
            names.key(),
            MAX_NAME_BYTES_PER_IDENTITY >> 20
        );
        tracing::warn!("xDS stream ended: {text}");
        Err(GrpcStatus::resource_exhausted(text))
    }
}

impl Drop for Proxies {
    fn drop(&mut self) {
        self.mailbox.close();
    }
}

/// Returns the cause of a world, for the resources derived from it.
fn cause(world: &World) -> Cause {
    Cause { generation: world.generation, time_us: world.noticed.unix_micros() }
}

/// The resources that a stream found when it last read; assembled once for any number of reads.
#[derive(Debug, Default)]
struct CachedSet {
    of: Option<(Holding, Arc<ResourceSet>, Option<Arc<Trust>>)>,
    set: Arc<ResourceSet>,
}

impl CachedSet {
    /// Returns the cached resources, unless they were assembled from something else.
    fn again(&mut self, held: Option<(Holding, Arc<ResourceSet>)>, trust: Option<Arc<Trust>>) -> Arc<ResourceSet> {
        let Some((holding, shared)) = held else { return self.set.clone() };
        let is_same_trust = |of: &Option<Arc<Trust>>| of.as_ref().map(Arc::as_ptr) == trust.as_ref().map(Arc::as_ptr);
        let is_same = self.of.as_ref().is_some_and(|(known, of, trusted)| {
            known.is_same(&holding) && Arc::ptr_eq(of, &shared) && is_same_trust(trusted)
        });
        if !is_same {
            self.set = holding.over(&shared);
            if let Some(trust) = &trust {
                let mut set = ResourceSet::clone(&self.set);
                set.insert(ResourceType::ProxyConfig, trust.resource.clone());
                self.set = Arc::new(set);
            }
            self.of = Some((holding, shared, trust));
        }
        self.set.clone()
    }
}

#[cfg(test)]
mod tests;
