//! Counts, times and logs the progress of streams.

use std::time::Duration;

use evenkeel_xds::ResourceType;
use evenkeel_xds::server::{Divergence, Nack, Status};

use crate::metrics::Metrics;

/// Maximum number of resources of a rejected response that are named in the log.
const MAX_LOGGED_RESOURCES: usize = 5;

/// Processes the change from one status of a stream to the next. `since_open` is the age of the stream.
pub fn step(metrics: &Metrics, node: &str, before: &Status, now: &Status, since_open: Duration) {
    for new in &now.types {
        let kind = new.kind;
        let old = before.of(kind);
        let grown = |of: fn(&evenkeel_xds::server::TypeStatus) -> u64| of(new).saturating_sub(old.map_or(0, of));
        metrics.pushed(kind, grown(|t| t.pushes), grown(|t| t.bytes_sent));
        metrics.rejected(kind, grown(|t| t.rejects));
        let waiting = old.and_then(|old| old.waiting_since).filter(|since| new.waiting_since != Some(*since));
        if let Some(since) = waiting {
            metrics.answered(kind, since_open.saturating_sub(since));
        }
        if grown(|t| t.reports) > 0
            && let Some(ages) = &new.ages
        {
            metrics.aged(kind, ages);
        }
        let told = old.and_then(|old| old.nack.as_ref());
        if let Some(nack) = new.nack.as_ref().filter(|nack| !nack.searching && told != Some(*nack)) {
            log_rejection(node, kind, nack);
        }
    }
    if let Some(divergence) = now.divergence.as_ref().filter(|found| before.divergence.as_ref() != Some(*found)) {
        metrics.diverged(divergence.kind);
        log_divergence(node, divergence);
    }
}

fn log_divergence(node: &str, divergence: &Divergence) {
    let names = divergence.names.iter().take(MAX_LOGGED_RESOURCES).map(String::as_str).collect::<Vec<_>>().join(", ");
    let count = divergence.names.len();
    tracing::error!(
        node,
        count,
        "the proxy held other {} resources than it was sent; they are sent anew: {names}",
        divergence.kind
    );
}

/// Logs what a proxy rejected and where the user wrote it.
fn log_rejection(node: &str, kind: ResourceType, nack: &Nack) {
    let place = |r: &evenkeel_xds::server::NackedResource| match &r.origin {
        Some(origin) => format!("{} (from {origin})", r.name),
        None => r.name.clone(),
    };
    let places: Vec<String> = nack.resources.iter().take(MAX_LOGGED_RESOURCES).map(place).collect();
    tracing::error!(node, "the proxy refused {kind}: {}; resources: {}", nack.message, places.join(", "));
}
