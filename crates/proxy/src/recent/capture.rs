//! Copies the data of a request.

use std::time::{Duration, UNIX_EPOCH};

use evenkeel_filters::explain::query::{
    ClusterLimits, EndpointChoice, EndpointState, QueriedCall, QueriedHead, QueriedTls, REDACTED, RecentRequest,
};
use evenkeel_filters::format::Record;
use evenkeel_filters::{ConnectionInfo, Hello};
use evenkeel_http::{HeaderId, RequestHead, Version};
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::{Cluster, PassedOver, Upstreams};
use tokio::time::Instant;

use super::notes::Notes;
use super::phases::{Course, phases};
use super::{Reasons, Recent, redact};
use crate::endpoint_state::endpoint_state;
use crate::observers::Observer;

/// Maximum size of a head that is kept completely, in bytes. With the default limit a worker keeps less than 4 MiB, however
/// long the heads are.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Maximum number of endpoints that take no requests in a record.
const MAX_PASSED_OVER: usize = 8;

/// Whether a request failed, was cut off, or was refused by this proxy.
#[inline]
fn is_failure(end: &Record<'_>) -> bool {
    let stream = end.stream;
    let is_refused = stream.status >= 400 && stream.local_reply;
    let is_broken = end.cut_off && !stream.flags.is_empty();
    stream.status >= 500 || stream.status == 0 || is_refused || is_broken
}

/// Keeps a request for those who ask about recent ones, if it is part of the sample, has failed or was slow.
pub(crate) struct RecentRecorder<'r> {
    pub(crate) recent: &'r Recent,
    pub(crate) upstreams: &'r Upstreams,
    pub(crate) head: &'r RequestHead,
    pub(crate) notes: Option<Box<Notes>>,
}

impl Observer for RecentRecorder<'_> {
    #[inline]
    fn ended(&mut self, end: &Record<'_>) {
        let now = Instant::from_std(end.now);
        let is_sampled = self.notes.as_ref().is_some_and(|notes| notes.received.is_some());
        let is_slow = self.recent.is_slow(Instant::from_std(end.stream.times.start()), now);
        let has_failed = is_failure(end);
        if is_sampled || is_slow || has_failed {
            let reasons = Reasons { is_sampled, is_slow, has_failed };
            if let Some(reasons) = self.recent.reasons_to_keep(reasons, end.connection, now) {
                let recorded = self.recorded(end);
                self.recent.keep(recorded, reasons);
            }
        }
    }
}

/// A request's head without secrets, as far as it is not too long. `rewritten`: this proxy has replaced the path, and has kept the one that it
/// received in a header; otherwise that header is the client's, which may say anything.
#[cold]
pub(crate) fn captured(head: &RequestHead, https: bool, rewritten: bool) -> Box<QueriedHead> {
    let mut room = MAX_HEAD_BYTES;
    let mut text = |bytes: &[u8]| {
        let kept = bytes.get(..bytes.len().min(room)).unwrap_or_default();
        room -= kept.len();
        String::from_utf8_lossy(kept).into_owned()
    };
    let (method, authority) = (text(head.method()), text(head.authority()));
    let original = head.headers.get(HeaderId::EnvoyOriginalPath).filter(|_| rewritten);
    let (path, mut redacted) = redact::url(&text(original.unwrap_or(head.path())), REDACTED);
    let (mut headers, mut left_out) = (Vec::new(), 0);
    for (id, name, value) in head.headers.iter() {
        if rewritten && id == HeaderId::EnvoyOriginalPath {
            continue;
        }
        let name = String::from_utf8_lossy(name).into_owned();
        let (value, lost) = if redact::is_secret(&name) {
            (REDACTED.to_owned(), true)
        } else {
            // Many headers have URLs, such as `referer` and those by which proxies tell each other what was asked.
            let (value, lost) = redact::url(&String::from_utf8_lossy(value), REDACTED);
            (value, !lost.is_empty())
        };
        if name.len() + value.len() > room {
            left_out += 1;
            continue;
        }
        room -= name.len() + value.len();
        if lost {
            redacted.push(name.clone());
        }
        headers.push((name, value));
    }
    let scheme = if https { "https" } else { "http" }.to_owned();
    Box::new(QueriedHead { method, authority, path, scheme, headers, redacted, left_out })
}

impl RecentRecorder<'_> {
    /// Returns the outcome of a request.
    #[cold]
    fn recorded(&mut self, end: &Record<'_>) -> RecentRequest {
        let Record { stream, connection: info, .. } = *end;
        let mut notes = self.notes.take().unwrap_or_default();
        let received = notes.received.take();
        let edited = received.is_none();
        let listener = info.listener.as_ref();
        let received = received.unwrap_or_else(|| captured(self.head, info.view.tls, stream.rewritten));
        let id = self.head.headers.find(b"x-request-id").unwrap_or_default();
        let since_1970 = end.start.duration_since(UNIX_EPOCH).unwrap_or_default();
        let cluster = stream.cluster_name.as_deref().and_then(|name| self.upstreams.cluster(name));
        let is_limited = cluster.as_ref().is_some_and(|cluster| limits(cluster).connections.is_some());
        let course = Course { times: &stream.times, notes: &notes, is_limited, end: end.now };
        RecentRequest {
            id: String::from_utf8_lossy(id.get(..id.len().min(128)).unwrap_or_default()).into_owned(),
            started_us: micros(since_1970),
            worker: 0,
            direction: match listener.map(|listener| listener.direction) {
                Some(TrafficDirection::Inbound) => "inbound",
                Some(TrafficDirection::Outbound) => "outbound",
                _ => "",
            }
            .to_owned(),
            call: call(info, self.head, *received),
            edited,
            filter_chain: info.filter_chain_name().unwrap_or_default().to_owned(),
            route: stream.route_name.as_deref().map(str::to_owned),
            cluster: stream.cluster_name.as_deref().map(str::to_owned),
            endpoint: stream.host.as_deref().map(str::to_owned),
            status: stream.status,
            flags: stream.flags.short_names().collect::<Vec<_>>().join(","),
            details: stream.details.chars().take(1024).collect(),
            transport_failure: stream.transport_failure.chars().take(1024).collect(),
            attempts: stream.attempts,
            bytes_received: stream.bytes_received,
            bytes_sent: stream.bytes_sent,
            duration_us: micros(end.now.saturating_duration_since(stream.times.start())),
            first_byte_us: stream.times.since_start(TimePoint::UpstreamRxBegin).map(micros),
            phases: phases(&course),
            choice: cluster.map(|cluster| choice(&cluster, end)),
            failed_tries: notes.tries,
            // Nobody reads it while requests are served: the page adds it.
            throttled_us: None,
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

fn call(info: &ConnectionInfo, head: &RequestHead, received: QueriedHead) -> QueriedCall {
    QueriedCall {
        listeners: info.listener.iter().map(|listener| listener.name.to_string()).collect(),
        source: Some(info.view.remote),
        direct_source: Some(info.view.direct_remote).filter(|direct| *direct != info.view.remote),
        destination: Some(info.view.local),
        tls: tls(info),
        protocol: protocol(info, head).to_owned(),
        request: Some(received),
        random: 0,
    }
}

/// The endpoints that there are to choose from now, and the limits.
fn choice(cluster: &Cluster, end: &Record<'_>) -> EndpointChoice {
    let hosts = cluster.host_choice(MAX_PASSED_OVER);
    let started =
        (Instant::from_std(end.stream.times.start()), end.start.duration_since(UNIX_EPOCH).unwrap_or_default());
    let wall = |at: Instant| match at.checked_duration_since(started.0) {
        Some(after) => started.1 + after,
        None => started.1.saturating_sub(started.0.saturating_duration_since(at)),
    };
    let passed_over = |passed: &PassedOver| EndpointState {
        ejected_us: passed.ejected.map(|ejected| micros(wall(ejected))),
        ..endpoint_state(&passed.host)
    };
    EndpointChoice {
        policy: cluster.config().load_balancer.name().to_owned(),
        endpoints: hosts.hosts,
        passed_over: hosts.passed_over,
        first_passed_over: hosts.first_passed_over.iter().map(passed_over).collect(),
        limits: limits(cluster),
    }
}

/// The cluster's limits for requests of default priority.
fn limits(cluster: &Cluster) -> ClusterLimits {
    let config = cluster.config();
    let limits = &config.circuit_breakers.default;
    let limit = |most: u32| Some(most).filter(|most| *most != u32::MAX);
    ClusterLimits {
        connections: limit(limits.max_connections),
        pending_requests: limit(limits.max_pending_requests),
        requests: limit(limits.max_requests),
        retries: limit(limits.max_retries).filter(|_| limits.retry_budget.is_none()),
    }
}

/// The client's TLS, with what filter chains are selected by: all that it offered, not only what was agreed on.
fn tls(info: &ConnectionInfo) -> Option<QueriedTls> {
    if !info.view.tls {
        return None;
    }
    let peer = info.view.peer.as_deref().cloned().unwrap_or_default();
    let alpn = match &info.hello {
        Hello::Tls(offered) => offered.iter().map(|name| name.to_string()).collect(),
        Hello::Http(_) | Hello::Other => Vec::new(),
    };
    Some(QueriedTls {
        server_name: info.view.server_name.as_deref().map(str::to_owned),
        alpn,
        identities: peer.uri_sans,
        dns_names: peer.dns_sans,
        subject: peer.subject,
        sha256: peer.sha256,
    })
}

/// The protocol that a listener detects on such a connection.
fn protocol(info: &ConnectionInfo, head: &RequestHead) -> &'static str {
    match (&info.hello, head.version) {
        (Hello::Http(detected), _) => detected,
        (_, Version::Http2) => "h2c",
        (_, Version::Http10) => "http/1.0",
        (_, Version::Http11) => "http/1.1",
    }
}
