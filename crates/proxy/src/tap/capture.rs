//! Makes an entry of a request that ends while somebody reads.

use std::time::{Duration, UNIX_EPOCH};

use evenkeel_filters::format::Record;
use evenkeel_http::RequestHead;
use evenkeel_runtime_config::listener::TrafficDirection;

use super::entry::TappedRequest;
use super::ring::Tap;
use crate::observers::Observer;
use crate::recent::{Recent, captured};

/// Maximum length of texts that describe the end of a request, in characters.
const MAX_TEXT: usize = 1024;

/// Shows a request to those who read the tap.
pub(crate) struct TapRecorder<'t> {
    pub(crate) tap: &'t Tap,
    /// Knows the listeners whose requests nobody is to see.
    pub(crate) recent: &'t Recent,
    pub(crate) head: &'t RequestHead,
}

impl Observer for TapRecorder<'_> {
    #[cold]
    fn ended(&mut self, end: &Record<'_>) {
        if self.recent.is_for(end.connection) {
            self.tap.add(entry(self.head, end));
        }
    }
}

fn entry(head: &RequestHead, end: &Record<'_>) -> TappedRequest {
    let Record { stream, connection: info, .. } = *end;
    let head = *captured(head, info.view.tls, stream.rewritten);
    let id = head.headers.iter().find(|(name, _)| name == "x-request-id").map(|(_, value)| value.clone());
    let (path, query) = match head.path.split_once('?') {
        Some((path, query)) => (path.to_owned(), Some(query.to_owned())),
        None => (head.path, None),
    };
    let local = info.session.as_ref().and_then(|session| session.local.as_deref());
    TappedRequest {
        started_us: micros(end.start.duration_since(UNIX_EPOCH).unwrap_or_default()),
        direction: match info.listener.as_ref().map(|listener| listener.direction) {
            Some(TrafficDirection::Inbound) => "inbound",
            Some(TrafficDirection::Outbound) => "outbound",
            _ => "",
        }
        .to_owned(),
        method: head.method,
        authority: head.authority,
        path,
        query,
        headers: head.headers,
        id: id.unwrap_or_default(),
        status: stream.status,
        flags: stream.flags.short_names().collect::<Vec<_>>().join(","),
        details: stream.details.chars().take(MAX_TEXT).collect(),
        duration_us: micros(end.now.saturating_duration_since(stream.times.start())),
        source: Some(info.view.remote),
        source_identity: info.view.peer.as_ref().and_then(|peer| peer.uri_sans.first()).map(ToString::to_string),
        destination_identity: local.and_then(|local| local.uri_sans.first()).map(ToString::to_string),
        route: stream.route_name.as_deref().map(str::to_owned),
        cluster: stream.cluster_name.as_deref().map(str::to_owned),
        upstream: stream.host.as_deref().map(str::to_owned),
        attempts: stream.attempts,
        bytes_received: stream.bytes_received,
        bytes_sent: stream.bytes_sent,
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
