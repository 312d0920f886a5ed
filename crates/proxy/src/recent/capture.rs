//! Copies the data of a request.

use std::time::{self, SystemTime, UNIX_EPOCH};

use evenkeel_filters::explain::query::{QueriedCall, QueriedHead, QueriedTls, REDACTED, RecentRequest};
use evenkeel_filters::format::Record;
use evenkeel_filters::{ConnectionInfo, Hello, StreamInfo};
use evenkeel_http::{HeaderId, RequestHead, Version};
use evenkeel_runtime_config::listener::TrafficDirection;
use evenkeel_runtime_config::substitution_format::TimePoint;
use tokio::time::Instant;

use super::{Recent, redact};
use crate::observers::Observer;

/// Maximum size of a head that is kept completely, in bytes. With the default limit a worker keeps less than 3 MiB, however
/// long the heads are.
const MAX_HEAD_BYTES: usize = 8 * 1024;

/// Whether a request failed, or was refused by this proxy.
#[inline]
fn is_failure(stream: &StreamInfo) -> bool {
    let is_refused = stream.status >= 400 && stream.local_reply;
    stream.status >= 500 || stream.status == 0 || is_refused
}

/// Keeps a request for those who ask about recent ones, if it is part of the sample or has failed.
pub(crate) struct RecentRecorder<'r> {
    pub(crate) recent: &'r Recent,
    pub(crate) head: &'r RequestHead,
    /// Its head as it was received, if it is part of the sample.
    pub(crate) received: Option<Box<QueriedHead>>,
}

impl Observer for RecentRecorder<'_> {
    #[inline]
    fn ended(&mut self, end: &Record<'_>) {
        let Record { stream, connection, start, now, .. } = *end;
        let failed = || is_failure(stream) && self.recent.takes_failure(connection, Instant::from_std(now));
        if self.received.is_some() || failed() {
            self.recent.keep(recorded((connection, stream, self.head), self.received.take(), (start, now)));
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

/// Returns the outcome of a request. `received`: its head as it was received; otherwise that is made of the head as it is now.
#[cold]
fn recorded(
    (info, stream, head): (&ConnectionInfo, &StreamInfo, &RequestHead),
    received: Option<Box<QueriedHead>>,
    (started, now): (SystemTime, time::Instant),
) -> RecentRequest {
    let edited = received.is_none();
    let listener = info.listener.as_ref();
    let call = QueriedCall {
        listeners: listener.iter().map(|listener| listener.name.to_string()).collect(),
        source: Some(info.view.remote),
        direct_source: Some(info.view.direct_remote).filter(|direct| *direct != info.view.remote),
        destination: Some(info.view.local),
        tls: tls(info),
        protocol: protocol(info, head).to_owned(),
        request: Some(*received.unwrap_or_else(|| captured(head, info.view.tls, stream.rewritten))),
        random: 0,
    };
    let id = head.headers.find(b"x-request-id").unwrap_or_default();
    let micros = |duration: std::time::Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    RecentRequest {
        id: String::from_utf8_lossy(id.get(..id.len().min(128)).unwrap_or_default()).into_owned(),
        started_us: u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX),
        worker: 0,
        direction: match listener.map(|listener| listener.direction) {
            Some(TrafficDirection::Inbound) => "inbound",
            Some(TrafficDirection::Outbound) => "outbound",
            _ => "",
        }
        .to_owned(),
        call,
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
        duration_us: micros(now.saturating_duration_since(stream.times.start())),
        first_byte_us: stream.times.since_start(TimePoint::UpstreamRxBegin).map(micros),
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
