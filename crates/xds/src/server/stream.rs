//! One stream from its first request to its end: connects a state machine to any transport.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use http::HeaderMap;
use prost::Message;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Code, Extensions, Status as GrpcStatus};

use super::interest::Interest;
use super::{Announcement, RequestError, Response, Status, delta, sotw};
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use crate::{ResourceSet, ResourceType, type_url};

/// The source of a stream's resources.
pub trait Source: Send + Sync + 'static {
    /// A client opened a stream and sent its node. `extensions` has what the transport knows of the peer (its address,
    /// its certificate). The stream waits for the result; an error ends it with that status.
    fn connect(&self, node: &Node, extensions: &Extensions)
    -> impl Future<Output = Result<Session, GrpcStatus>> + Send;

    /// Decides whether a client may make a call of any service. It is called when the call's head has arrived, before
    /// any of its body is buffered. The service can read what is put into `extensions`. An error answers the call with
    /// that status.
    fn admit(&self, _path: &str, _metadata: &HeaderMap, _extensions: &mut Extensions) -> Result<(), GrpcStatus> {
        Ok(())
    }
}

/// How long a client may take to send its first request.
const FIRST_REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

/// One stream's view of the source; dropped when the stream ends.
pub struct Session {
    /// What the client should hold, now and when it changes. A change that does not affect the stream may come without
    /// a notification: the stream reads the value again at the client's next request.
    pub resources: Resources,
    /// The client's subscriptions.
    pub interest: Interest,
    /// Called with the stream's status after each request and push.
    pub on_status: Box<dyn FnMut(Status) + Send>,
    /// Called after each request with the memory used by the subscribed names, in bytes. An error ends the stream.
    pub on_names: Box<dyn FnMut(usize) -> Result<(), GrpcStatus> + Send>,
    /// Called when the client reports the health of its workload: unhealthy with a message.
    pub on_health: Box<dyn FnMut(Result<(), String>) + Send>,
    /// Called once with the name of each secret that the client asks for and that is not there for it.
    pub on_missing_secret: Box<dyn FnMut(&str) + Send>,
    /// The server's description of itself.
    pub announcement: Announcement,
}

/// What a client should hold, as its stream sees it.
pub enum Resources {
    /// The value arrives with the notification.
    Watched(watch::Receiver<Arc<ResourceSet>>),
    /// Fetched after a notification: where many streams hold nearly the same, nobody has to replace the value of each.
    Polled {
        /// Returns the current value.
        now: Box<dyn FnMut() -> Arc<ResourceSet> + Send>,
        /// Notifies the stream of a change. The stream ends when the sender is dropped.
        notice: watch::Receiver<()>,
    },
}

impl Resources {
    /// Returns what the client should hold now. Clears earlier notifications.
    pub fn look(&mut self) -> Arc<ResourceSet> {
        match self {
            Self::Watched(resources) => resources.borrow_and_update().clone(),
            Self::Polled { now, notice } => {
                notice.mark_unchanged();
                now()
            }
        }
    }

    /// Waits for a notification; false if the stream should end.
    async fn changed(&mut self) -> bool {
        let changed = match self {
            Self::Watched(resources) => resources.changed().await,
            Self::Polled { notice, .. } => notice.changed().await,
        };
        changed.is_ok()
    }
}

impl From<watch::Receiver<Arc<ResourceSet>>> for Resources {
    fn from(resources: watch::Receiver<Arc<ResourceSet>>) -> Self {
        Self::Watched(resources)
    }
}

impl Session {
    /// A session without observers.
    pub fn new(resources: impl Into<Resources>) -> Self {
        let (interest, announcement) = (Interest::default(), Announcement::default());
        let (on_status, on_names, on_health) = (Box::new(drop), Box::new(|_| Ok(())), Box::new(drop));
        let (resources, on_missing_secret) = (resources.into(), Box::new(|_: &str| {}));
        Self { resources, interest, on_status, on_names, on_health, on_missing_secret, announcement }
    }

    /// Publishes what the stream subscribes to.
    pub fn known_by(mut self, interest: Interest) -> Self {
        self.interest = interest;
        self
    }

    /// Adds an observer of the status.
    pub fn observed(mut self, on_status: impl FnMut(Status) + Send + 'static) -> Self {
        self.on_status = Box::new(on_status);
        self
    }

    /// Adds a limit to the memory of its names, together with those of other streams.
    pub fn limited(mut self, on_names: impl FnMut(usize) -> Result<(), GrpcStatus> + Send + 'static) -> Self {
        self.on_names = Box::new(on_names);
        self
    }

    /// Adds an observer of the health that the client reports of its workload.
    pub fn hears_health(mut self, on_health: impl FnMut(Result<(), String>) + Send + 'static) -> Self {
        self.on_health = Box::new(on_health);
        self
    }

    /// Adds an observer of secrets that the client asks for in vain.
    pub fn hears_missing_secrets(mut self, on_missing_secret: impl FnMut(&str) + Send + 'static) -> Self {
        self.on_missing_secret = Box::new(on_missing_secret);
        self
    }

    /// Sets what the server sends about itself.
    pub fn announced(mut self, announcement: Announcement) -> Self {
        self.announcement = announcement;
        self
    }
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("interest", &self.interest).finish_non_exhaustive()
    }
}

/// Maximum number of requests that are processed before responses are polled, if they have arrived already.
const REQUESTS_AT_ONCE: usize = 16;

/// The transport of a stream's messages. Its futures may be dropped at any time without loss.
pub(super) trait Carrier<R>: Send {
    /// Returns the next request; `None` if the client has ended its side or disconnected.
    fn next(&mut self) -> impl Future<Output = Result<Option<R>, GrpcStatus>> + Send;
    /// A request that has arrived already.
    fn next_now(&mut self) -> Option<Result<R, GrpcStatus>>;
    /// Sends a response; waits while the queue is full; returns false if the client has disconnected.
    fn send(&mut self, response: Response) -> impl Future<Output = bool> + Send;
    /// Completes when the client has disconnected.
    fn gone(&mut self) -> impl Future<Output = ()> + Send;
}

/// The common part of the two protocols.
pub(super) trait Protocol: Send + 'static {
    type Request: Message + Default + Send + 'static;
    type Message: Message + Default + Send + 'static;
    fn new(announcement: Announcement) -> Self;
    fn node(request: &Self::Request) -> Option<&Node>;
    fn health(request: &Self::Request) -> Option<Result<(), String>>;
    fn secrets(request: &Self::Request) -> &[String];
    fn on_request(&mut self, request: &Self::Request, now: Duration) -> Result<(), RequestError>;
    fn on_snapshot(&mut self, resources: &Arc<ResourceSet>);
    fn note_interest(&self, interest: &Interest);
    fn name_bytes(&self) -> usize;
    fn poll_response(&mut self, now: Duration) -> Option<Response>;
    fn next_timer(&self, now: Duration) -> Option<Duration>;
    fn status(&self) -> Status;
}

macro_rules! protocol {
    ($stream:ty, $request:ty, $response:ty, $names:ident) => {
        impl Protocol for $stream {
            type Request = $request;
            type Message = $response;
            fn new(announcement: Announcement) -> Self {
                <$stream>::new(announcement)
            }
            fn node(request: &$request) -> Option<&Node> {
                request.node.as_ref()
            }
            fn health(request: &$request) -> Option<Result<(), String>> {
                (request.type_url == type_url::HEALTH_INFORMATION).then(|| match &request.error_detail {
                    Some(error) => Err(shortened(&error.message)),
                    None => Ok(()),
                })
            }
            fn secrets(request: &$request) -> &[String] {
                if request.type_url == type_url::SECRET { &request.$names } else { &[] }
            }
            fn on_request(&mut self, request: &$request, now: Duration) -> Result<(), RequestError> {
                self.on_request(request, now)
            }
            fn on_snapshot(&mut self, resources: &Arc<ResourceSet>) {
                self.on_snapshot(resources);
            }
            fn note_interest(&self, interest: &Interest) {
                self.note_interest(interest);
            }
            fn name_bytes(&self) -> usize {
                self.name_bytes()
            }
            fn poll_response(&mut self, now: Duration) -> Option<Response> {
                self.poll_response(now)
            }
            fn next_timer(&self, now: Duration) -> Option<Duration> {
                self.next_timer(now)
            }
            fn status(&self) -> Status {
                self.status()
            }
        }
    };
}

protocol!(delta::Stream, DeltaDiscoveryRequest, DeltaDiscoveryResponse, resource_names_subscribe);
protocol!(sotw::Stream, DiscoveryRequest, DiscoveryResponse, resource_names);

/// Serves one stream to its end.
///
/// # Errors
/// The status to end it with.
pub(super) async fn run<S: Source, P: Protocol>(
    source: &S,
    extensions: &Extensions,
    carrier: &mut impl Carrier<P::Request>,
) -> Result<(), GrpcStatus> {
    let Ok(first) = tokio::time::timeout(FIRST_REQUEST_TIMEOUT, carrier.next()).await else {
        return Err(GrpcStatus::deadline_exceeded("no first request within 30 s"));
    };
    let Some(first) = first? else { return Ok(()) };
    let node = P::node(&first).ok_or_else(|| GrpcStatus::invalid_argument("the first request carries no node"))?;
    let session = tokio::select! {
        session = source.connect(node, extensions) => session?,
        () = carrier.gone() => return Ok(()),
    };
    let Session { mut resources, interest, mut on_status, mut on_names, mut on_health, .. } = session;
    let (announcement, mut secrets) = (session.announcement, RequestedSecrets::new(session.on_missing_secret));
    let id = node.id.clone();
    let start = Instant::now();
    let mut stream = P::new(announcement);
    let set = resources.look();
    stream.on_snapshot(&set);
    drop(set);
    let mut take = |stream: &mut P, request: &P::Request| match P::health(request) {
        Some(health) => {
            on_health(health);
            Ok(())
        }
        None => accept(stream, request, start.elapsed(), &id),
    };
    take(&mut stream, &first)?;
    secrets.ask(P::secrets(&first));
    drop(first);
    on_names(stream.name_bytes())?;
    loop {
        // The order matters: a concurrent change of resources either sees the new subscriptions, or is seen by the read
        // that follows.
        stream.note_interest(&interest);
        let set = resources.look();
        secrets.look(&set);
        stream.on_snapshot(&set);
        drop(set);
        while let Some(response) = stream.poll_response(start.elapsed()) {
            if !carrier.send(response).await {
                return Ok(());
            }
        }
        on_status(stream.status());
        let timer = stream.next_timer(start.elapsed());
        tokio::select! {
            request = carrier.next() => {
                let Some(request) = request? else { return Ok(()) };
                take(&mut stream, &request)?;
                secrets.ask(P::secrets(&request));
                on_names(stream.name_bytes())?;
                // Requests that arrived together are answered together.
                for _ in 1..REQUESTS_AT_ONCE {
                    let Some(more) = carrier.next_now() else { break };
                    let more = more?;
                    take(&mut stream, &more)?;
                    secrets.ask(P::secrets(&more));
                    on_names(stream.name_bytes())?;
                }
            }
            changed = resources.changed() => {
                if !changed {
                    return Err(GrpcStatus::new(Code::Unavailable, "the server is shutting down"));
                }
            }
            () = tokio::time::sleep_until(start + timer.unwrap_or_default()), if timer.is_some() => {}
        }
    }
}

/// Maximum number of missing secrets of a stream that are reported.
const MAX_MISSING_SECRETS: usize = 100;

/// The secrets that a client asks for.
struct RequestedSecrets {
    asked: Vec<String>,
    missing: BTreeSet<String>,
    on_missing: Box<dyn FnMut(&str) + Send>,
}

impl RequestedSecrets {
    fn new(on_missing: Box<dyn FnMut(&str) + Send>) -> Self {
        Self { asked: Vec::new(), missing: BTreeSet::new(), on_missing }
    }

    fn ask(&mut self, names: &[String]) {
        let room = MAX_MISSING_SECRETS.saturating_sub(self.missing.len());
        let new = names.iter().filter(|name| !self.missing.contains(*name)).take(room);
        self.asked.extend(new.cloned());
    }

    /// Reports secrets that do not exist.
    fn look(&mut self, set: &ResourceSet) {
        for name in std::mem::take(&mut self.asked) {
            if set.get(ResourceType::Secret, &name).is_none() && self.missing.insert(name.clone()) {
                (self.on_missing)(&name);
            }
        }
    }
}

/// Maximum size of the text about a workload's health that is kept, in bytes.
const MAX_HEALTH_BYTES: usize = 1024;

fn shortened(text: &str) -> String {
    text.get(..text.floor_char_boundary(MAX_HEALTH_BYTES)).unwrap_or_default().to_owned()
}

/// An unknown type is a mistake in the client's configuration, and no reason to end the stream.
pub(super) fn accept<P: Protocol>(
    stream: &mut P,
    request: &P::Request,
    now: Duration,
    node: &str,
) -> Result<(), GrpcStatus> {
    match stream.on_request(request, now) {
        Ok(()) => Ok(()),
        Err(error @ RequestError::UnknownType(_)) => {
            tracing::debug!(node, %error, "xDS request not served");
            Ok(())
        }
        Err(error @ (RequestError::TooManyNames { .. } | RequestError::NameTooLong { .. })) => {
            Err(GrpcStatus::resource_exhausted(error.to_string()))
        }
    }
}
