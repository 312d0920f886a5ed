//! The proxies that are connected, what each is to hold, and how far it has got.
//!
//! ```text
//!  admit, connect ──► mailbox ──► translation   a thread: the Translator, and nothing else has it
//!  publish, rebuild ─────┘            │
//!                                     ▼
//!  a stream looks, says how it is ─► streams     what each is to hold; who is told of a change
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

/// How long a stream may be without the newest of what does not concern it.
const CATCH_UP_INTERVAL: Duration = Duration::from_secs(20);
/// Most xDS streams served at a time, in streams.
pub const MAX_STREAMS: usize = 20_000;
/// Most of one identity, that is of all replicas that run as one service account, in streams.
pub const MAX_STREAMS_PER_IDENTITY: usize = MAX_STREAMS / 4;

/// What names may take that all streams of one identity keep subscribed, in bytes: those of a thousand proxies that each ask
/// for four thousand resources.
pub const MAX_NAME_BYTES_PER_IDENTITY: usize = 512 * 1024 * 1024;

/// Lines about secrets that proxies ask for in vain: so many at once, and one more after each time.
const SECRET_LINES: (u32, Duration) = (50, Duration::from_secs(1));

/// The connected proxies.
#[derive(Debug)]
pub struct Proxies {
    world: watch::Receiver<Arc<World>>,
    metrics: Arc<Metrics>,
    admission: Admission,
    /// Streams, and those that wait to become one.
    by_identity: Arc<Quota<SpiffeId>>,
    /// Bytes of names.
    names: Arc<Quota<SpiffeId>>,
    /// Lines about secrets that proxies do not get.
    told_secrets: Arc<Rate<()>>,
    mailbox: Arc<Mailbox<Registered>>,
    streams: Arc<Streams>,
    following: Following,
    trust: watch::Sender<Option<Arc<Trust>>>,
    /// Told which roots the owner of a certificate trusts.
    on_trust: OnceLock<OnTrust>,
}

/// The roots that proxies' agents are to trust.
#[derive(Debug)]
pub struct Trust {
    /// As they are sent.
    pub resource: Arc<Resource>,
    /// Which they are, as the ledger names them.
    pub version: String,
}

/// Takes the serial number of a client's certificate, and the version of the roots that it has acknowledged.
struct OnTrust(Box<TrustCallback>);

type TrustCallback = dyn Fn(&str, &str) + Send + Sync;

impl std::fmt::Debug for OnTrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnTrust")
    }
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
        metrics.plane.shift(plane::Gauge::evenkeel_xds_waiting_streams, 1);
        Self(metrics)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.plane.shift(plane::Gauge::evenkeel_xds_waiting_streams, -1);
    }
}

/// Who is at the other end of a stream.
#[derive(Debug, Clone)]
pub struct Client {
    /// The xDS node id.
    pub node: String,
    /// Its program and version, as the node says.
    pub program: String,
    /// How its process is confined, as the node says; `None`: it says nothing.
    pub confinement: Option<String>,
    /// What its configuration depends on.
    pub view: ProxyView,
    /// Where it connected from.
    pub peer: Option<SocketAddr>,
    /// Its certificate's identity; `None` on the plaintext port.
    pub identity: Option<SpiffeId>,
    /// When.
    pub since: SystemTime,
    /// The serial number of its certificate.
    pub serial: Option<Arc<str>>,
}

/// One stream, as debug endpoints show it.
#[derive(Debug, Clone)]
pub struct StreamReport {
    /// Who.
    pub client: Arc<Client>,
    /// How far it has got.
    pub status: Arc<Status>,
    /// Generation of the last of its resources that concerned it.
    pub told: u64,
    holding: Holding,
    shared: Arc<ResourceSet>,
}

impl StreamReport {
    /// What it is to hold, put together.
    pub fn resources(&self) -> Arc<ResourceSet> {
        self.holding.over(&self.shared)
    }
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
    ///
    /// # Errors
    /// When there is no thread for the translator.
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

    /// Has agents told which roots to trust, now and from now on.
    pub fn set_trust(&self, trust: Trust) {
        self.trust.send_replace(Some(Arc::new(trust)));
        self.streams.tell_all();
    }

    /// Has `on_trust` called when a client has acknowledged roots.
    pub fn on_trust(&self, on_trust: impl Fn(&str, &str) + Send + Sync + 'static) {
        // Only the first counts; there is one.
        _ = self.on_trust.set(OnTrust(Box::new(on_trust)));
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
            // Only this machine reaches the plaintext port.
            None => session,
        })
    }

    /// Notes the roots that the owner of a certificate acknowledges.
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

    /// Says in the log which secrets a proxy asks for in vain, and why.
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

    /// Ends all streams and takes no more.
    pub fn close(&self) {
        self.admission.close();
        self.streams.close();
        self.mailbox.close();
    }

    /// Has the proxies told that the present world concerns; done when they are.
    pub async fn publish(&self) {
        let generation = self.world.borrow().generation;
        self.mailbox.publish();
        // Where the translator has ended, the process is about to.
        _ = self.following.published.clone().wait_for(|published| *published >= generation).await;
    }

    /// Makes anew what proxies hold, of a snapshot that is the same but for where it lies in memory; nothing is sent.
    pub async fn rebuild(&self) {
        _ = self.mailbox.rebuild().await;
    }

    /// Gives free memory back to the system, that of the translator's thread too.
    pub fn give_back(&self) {
        memory::give_back();
        self.mailbox.give_back();
    }

    /// Generation of the world of which all proxies that it concerns have been told.
    pub fn published(&self) -> u64 {
        *self.following.published.borrow()
    }

    /// Until the translator fails: then what it says of that. Never done before.
    pub async fn failed(&self) -> String {
        let mut failure = self.following.failure.clone();
        match failure.wait_for(Option::is_some).await.map(|failure| failure.clone()) {
            Ok(failure) => failure.unwrap_or_default(),
            // It has ended as it should.
            Err(_) => std::future::pending().await,
        }
    }

    /// Tells streams now and then of changes that do not concern them: what they have seen is what they keep in memory.
    pub async fn catch_up(&self) {
        loop {
            tokio::time::sleep(CATCH_UP_INTERVAL).await;
            self.streams.tell_those_behind();
        }
    }

    /// All streams, in the order they were opened.
    pub fn reports(&self) -> Vec<StreamReport> {
        self.streams.reports()
    }

    /// The streams that have settled since this was asked last, at which generation, and what of it they refuse.
    pub fn take_settled(&self) -> Vec<Settled> {
        self.streams.take_settled()
    }
}

/// Holds a stream to what its identity may keep subscribed.
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

/// What made a world what it is, for what is made of it.
fn cause(world: &World) -> Cause {
    Cause { generation: world.generation, time_us: world.noticed.unix_micros() }
}

/// What a stream found when it looked last: put together once, however often it looks.
#[derive(Debug, Default)]
struct CachedSet {
    of: Option<(Holding, Arc<ResourceSet>, Option<Arc<Trust>>)>,
    set: Arc<ResourceSet>,
}

impl CachedSet {
    /// The same, unless it was put together of something else.
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
