//! The life of one xDS stream: connect, subscribe, apply, acknowledge, and reconnect when it breaks.

use std::hash::{BuildHasher as _, RandomState};
use std::rc::Rc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_runtime_config::InitialMetadata;
use evenkeel_runtime_config::bootstrap::Ads;
use evenkeel_xds::ResourceType;
use evenkeel_xds::client::{Backoff, Client, Connection, Protocol, Rejected, Update};
use evenkeel_xds::evenkeel;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::google::protobuf::value::Kind;
use tokio::task::AbortHandle;
use tonic::metadata::{AsciiMetadataKey, AsciiMetadataValue, MetadataMap};
use tonic::transport::Channel;

use super::channel::{self, ChannelError};
use super::key::StreamKey;
use super::subscriptions::{StreamSubscriptions, Unwanted};
use crate::scope::memory;
use crate::state::Shared;

/// How long a server may take to accept a stream after the connection is established.
const OPEN_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) struct Stream {
    pub key: StreamKey,
    pub server: Ads,
    pub node: Node,
    pub wanted: Rc<StreamSubscriptions>,
    pub shared: Shared,
    /// Whether the names that the workload's replicas use have been requested.
    pub recalled: bool,
}

/// The task that reports the names in use to the control plane, for as long as the stream lives.
struct Remembering(AbortHandle);

impl Remembering {
    fn start(shared: &Shared, channel: &Channel, node: &Node) -> Self {
        let task = memory::keep_remembering(shared.clone(), channel.clone(), node.clone());
        Self(tokio::task::spawn_local(task).abort_handle())
    }
}

impl Drop for Remembering {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Interval of reports to an Evenkeel control plane about the held resources and how old they were when applied, unless the
/// node's metadata sets another: `EVENKEEL: {REPORT_INTERVAL: SECONDS}`.
const REPORT_INTERVAL: Duration = Duration::from_secs(10);
/// Shortest and longest interval that can be configured, in seconds. 0 disables reports.
const REPORT_SECONDS: std::ops::RangeInclusive<f64> = 0.1..=3600.0;

/// Why a stream ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum StreamError {
    #[error(transparent)]
    Channel(#[from] ChannelError),
    #[error("the server did not accept the stream within {} s", OPEN_TIMEOUT.as_secs())]
    OpenTimeout,
    #[error(transparent)]
    Connection(#[from] evenkeel_xds::client::ConnectionError),
    #[error(transparent)]
    Response(#[from] evenkeel_xds::client::ResponseError),
    #[error(transparent)]
    Unwanted(#[from] Unwanted),
}

/// The headers as the transport takes them: the bootstrap has been read without those that it would refuse.
fn metadata(configured: &[InitialMetadata]) -> MetadataMap {
    let entry = |one: &InitialMetadata| {
        Some((AsciiMetadataKey::from_bytes(one.name.as_bytes()).ok()?, AsciiMetadataValue::try_from(&*one.value).ok()?))
    };
    let mut map = MetadataMap::new();
    for (name, value) in configured.iter().filter_map(entry) {
        map.append(name, value);
    }
    map
}

impl Stream {
    pub async fn run(mut self) {
        let protocol = if self.server.delta { Protocol::Delta } else { Protocol::Sotw };
        let mut client = Client::new(protocol, self.node.clone());
        let seed = RandomState::new().hash_one(std::process::id());
        let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, seed);
        let mut attempt = 0;
        loop {
            match self.connected(&mut client, &mut backoff, attempt).await {
                Ok(never) => match never {},
                Err(StreamError::Unwanted(_)) => {
                    self.shared.state.borrow_mut().streams.remove(&self.key);
                    return;
                }
                Err(error) => self.report(&error),
            }
            attempt += 1;
            if !self.pause(backoff.next_wait()).await {
                self.shared.state.borrow_mut().streams.remove(&self.key);
                return;
            }
        }
    }

    /// Waits; false when the stream is no longer needed.
    async fn pause(&mut self, wait: Duration) -> bool {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            tokio::select! {
                () = tokio::time::sleep_until(deadline) => return true,
                changed = self.wanted.changed() => if changed.is_err() {
                    return false;
                },
            }
        }
    }

    fn report(&self, error: &StreamError) {
        let mut state = self.shared.state.borrow_mut();
        let text = error.to_string();
        // An error is logged as a warning once, and not again at each attempt.
        let known = state.streams.get(&self.key).and_then(|stream| stream.last_error.as_ref()) == Some(&text);
        if known {
            tracing::debug!(stream = %self.key, cluster = &*self.server.cluster, "xDS stream, again: {text}");
        } else {
            tracing::warn!(stream = %self.key, cluster = &*self.server.cluster, "xDS stream: {text}");
        }
        if state.stream_failed(&self.key, text) {
            self.shared.dirty.notify_one();
        }
    }

    async fn connected(
        &mut self,
        client: &mut Client,
        backoff: &mut Backoff,
        attempt: usize,
    ) -> Result<std::convert::Infallible, StreamError> {
        let channel = tokio::select! {
            channel = channel::connect(&self.shared, &self.server.cluster, attempt) => channel?,
            error = unwanted(&self.wanted) => return Err(error),
        };
        let learns = self.key.is_aggregated() && self.shared.state.borrow().scope.is_learned();
        if learns && !self.recalled {
            let recalled = memory::recall(channel.clone(), &self.node).await;
            self.recalled = true;
            self.shared.state.borrow_mut().recall(recalled);
            self.shared.limit_remembered();
            self.shared.settle();
        }
        client.on_connect();
        self.wanted.tell(client);
        let Some(first) = client.poll_request() else { return Err(StreamError::Unwanted(Unwanted)) };
        let _remembering = learns.then(|| Remembering::start(&self.shared, &channel, &self.node));
        let open = Connection::open_with(channel, self.key.service(), first, metadata(&self.server.metadata));
        let mut connection = tokio::time::timeout(OPEN_TIMEOUT, open).await.map_err(|_| StreamError::OpenTimeout)??;
        self.shared.state.borrow_mut().stream_connected(&self.key);
        tracing::info!(stream = %self.key, cluster = &*self.server.cluster, "xDS stream: connected");
        let source = self.key.source();
        let interval = report_interval(&self.node);
        let mut reports = tokio::time::interval(interval.unwrap_or(REPORT_INTERVAL));
        reports.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        reports.reset();
        loop {
            while let Some(request) = client.poll_request() {
                connection.send(request).await?;
            }
            tokio::select! {
                response = connection.next() => {
                    let update = client.on_response(response?)?;
                    let mut rejected = self.shared.state.borrow_mut().apply(&source, &update);
                    // An ACK says that the workers have the resources: the server may rely on that.
                    self.shared.settle();
                    if learns || matches!(update.kind, ResourceType::Cluster | ResourceType::Listener) {
                        // The names that these resources refer to are subscribed before the ACK: see the client's order
                        // of requests.
                        self.wanted.tell(client);
                        rejected.extend(self.shared.state.borrow().unbound(&update));
                    }
                    client.answer(&update, &rejected);
                    note_ages(client, &update, &rejected);
                    backoff.reset();
                }
                _ = reports.tick(), if interval.is_some() => client.report(),
                changed = self.wanted.changed() => {
                    changed?;
                    self.wanted.tell(client);
                }
            }
        }
    }
}

fn note_ages(client: &mut Client, update: &Update, rejected: &[Rejected]) {
    let now_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros());
    let now_us = u64::try_from(now_us).unwrap_or(u64::MAX);
    for received in &update.added {
        if received.first {
            continue;
        }
        if rejected.is_empty() || !rejected.iter().any(|rejected| rejected.name == received.name) {
            client.applied(update.kind, received.cause, now_us);
        }
    }
}

/// The configured interval; `None` for never.
fn report_interval(node: &Node) -> Option<Duration> {
    let metadata = node.metadata.as_ref().and_then(|metadata| metadata.fields.get(evenkeel::NODE_METADATA));
    let Some(Kind::StructValue(own)) = metadata.and_then(|value| value.kind.as_ref()) else {
        return Some(REPORT_INTERVAL);
    };
    match own.fields.get("REPORT_INTERVAL").and_then(|value| value.kind.as_ref()) {
        Some(Kind::NumberValue(seconds)) if *seconds == 0.0 => None,
        Some(Kind::NumberValue(seconds)) if seconds.is_finite() => {
            Some(Duration::from_secs_f64(seconds.clamp(*REPORT_SECONDS.start(), *REPORT_SECONDS.end())))
        }
        _ => Some(REPORT_INTERVAL),
    }
}

/// Completes when the stream is no longer needed.
async fn unwanted(wanted: &StreamSubscriptions) -> StreamError {
    while wanted.changed().await.is_ok() {}
    StreamError::Unwanted(Unwanted)
}
