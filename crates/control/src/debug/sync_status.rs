//! What a proxy's stream reports, as `/debug/syncz` and `/debug/settle` show it.

use std::time::Duration;

use evenkeel_admin::settle::Refusing;
use evenkeel_admin::syncz::{self, Ages, Divergence, NackedResource, Proxy, State};
use evenkeel_translate::ProxyKind;
use evenkeel_xds::server::{Nack, TypeStatus};

use crate::proxies::{Client, StreamReport};

/// A stream.
pub(super) fn proxy(report: &StreamReport) -> Proxy {
    let client = &report.client;
    let kind = match client.view.kind {
        ProxyKind::Sidecar => "sidecar",
        ProxyKind::Router => "router",
    };
    let divergence = report.status.divergence.as_deref().map(|divergence| Divergence {
        number: divergence.number,
        kind: divergence.kind.short_name().to_owned(),
        names: divergence.names.clone(),
    });
    Proxy {
        proxy: client.node.clone(),
        kind: kind.to_owned(),
        program: client.program.clone(),
        confinement: client.confinement.clone(),
        // A change that does not concern a proxy leaves it at an older generation.
        live: report.status.is_live(report.told),
        settled_generation: report.status.settled_generation,
        types: report.status.types.iter().map(|status| type_status(report, status)).collect(),
        divergence,
    }
}

/// A stream that refuses something, with the types of which it does.
pub(super) fn refusing(report: &StreamReport) -> Option<Refusing> {
    let refused = report.status.types.iter().filter(|status| status.nack.is_some());
    let types: Vec<_> = refused.map(|status| type_status(report, status)).collect();
    (!types.is_empty()).then(|| Refusing { proxy: report.client.node.clone(), types })
}

/// How long the client has left a response unanswered.
pub(super) fn waiting(client: &Client, status: &TypeStatus) -> Option<Duration> {
    Some(client.since.elapsed().unwrap_or_default().saturating_sub(status.waiting_since?))
}

fn type_status(report: &StreamReport, status: &TypeStatus) -> syncz::TypeStatus {
    let milliseconds = |us: u64| us as f64 / 1e3;
    let waiting = waiting(&report.client, status);
    syncz::TypeStatus {
        kind: status.kind.short_name().to_owned(),
        wildcard: status.wildcard,
        names: status.names,
        acked_version: status.acked_version,
        in_flight_version: status.in_flight_version,
        pushes: status.pushes,
        resources_sent: status.resources_sent,
        bytes_sent: status.bytes_sent,
        rejects: status.rejects,
        nack: status.nack.as_deref().map(nack),
        state: state(report, status),
        waiting_ms: waiting.and_then(|waiting| u64::try_from(waiting.as_millis()).ok()),
        ages_ms: status.ages.as_ref().map(|ages| Ages {
            count: ages.count,
            p50: milliseconds(ages.p50_us),
            p99: milliseconds(ages.p99_us),
            max: milliseconds(ages.max_us),
        }),
    }
}

fn state(report: &StreamReport, status: &TypeStatus) -> State {
    // A stream that came back with all it needs is sent nothing, and holds the current resources.
    let holds_all = (status.wildcard || status.names > 0) && report.status.settled_generation >= report.told;
    match status {
        TypeStatus { nack: Some(_), .. } => State::Nacked,
        TypeStatus { pushes: 0, .. } if !holds_all => State::NotSent,
        TypeStatus { in_flight_version: Some(_), .. } => State::Stale,
        _ => State::Synced,
    }
}

fn nack(nack: &Nack) -> syncz::Nack {
    let resources = nack.resources.iter().map(|resource| NackedResource {
        name: resource.name.clone(),
        origin: resource.origin.clone(),
        times: resource.times,
    });
    syncz::Nack {
        message: nack.message.clone(),
        version: nack.version.clone(),
        resources: resources.collect(),
        searching: nack.searching,
    }
}
