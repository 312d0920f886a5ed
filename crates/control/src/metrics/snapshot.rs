//! What a page counts in the snapshot, under Istio's names. It is counted when somebody reads the page, because a change must not cost a
//! walk over all endpoints.

use evenkeel_model::Snapshot;
use evenkeel_stats::{Registry, ScopeName, SharedWriter, layout};

layout! {
    /// The snapshot in figures.
    pub mod contents {
        counters {}
        gauges {
            /// Ports of services without any endpoint that takes traffic.
            pilot_eds_no_instances,
            /// Endpoints that take no traffic.
            pilot_endpoint_not_ready,
            /// Endpoints of all services' ports.
            evenkeel_endpoints,
            /// Workloads in the snapshot.
            evenkeel_workloads,
        }
        histograms {}
        statuses None
    }
}

/// Creates the metrics in a registry.
pub fn contents(registry: &Registry) -> SharedWriter<contents::Stats> {
    SharedWriter::of(registry.scope(ScopeName::labelled("", Vec::new())).writer())
}

/// Counts a snapshot.
pub fn count(snapshot: &Snapshot, metrics: &SharedWriter<contents::Stats>) {
    let (mut all, mut not_ready, mut without) = (0_i64, 0_i64, 0_i64);
    for service in snapshot.services.iter().filter(|service| service.alias_of.is_none()) {
        for port in &service.ports {
            let endpoints = snapshot.endpoints(service, port.number);
            let waiting = endpoints.iter().filter(|endpoint| !endpoint.ready).count();
            all = all.saturating_add_unsigned(endpoints.len() as u64);
            not_ready = not_ready.saturating_add_unsigned(waiting as u64);
            without += i64::from(waiting == endpoints.len());
        }
    }
    metrics.set(contents::Gauge::evenkeel_endpoints, all);
    metrics.set(contents::Gauge::pilot_endpoint_not_ready, not_ready);
    metrics.set(contents::Gauge::pilot_eds_no_instances, without);
    let workloads = i64::try_from(snapshot.workloads.len()).unwrap_or(i64::MAX);
    metrics.set(contents::Gauge::evenkeel_workloads, workloads);
}
