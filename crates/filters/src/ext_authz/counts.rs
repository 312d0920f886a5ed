//! Statistics under Envoy's names: `http.PREFIX.ext_authz.`, and `ext_authz.` of the cluster that the request goes to.

use std::sync::Arc;

use evenkeel_stats::{FamiliesOptions, LabelValues, Registry, Reported, ScopeName, Writer, layout};

use crate::http::ClusterScope;

layout! {
    /// `http.PREFIX.ext_authz.`, followed by the filter's own prefix.
    pub mod stats {
        counters { ok, denied, error, disabled, failure_mode_allowed, invalid, ignored_dynamic_metadata }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `cluster.NAME.ext_authz.`, followed by the filter's own prefix.
    pub mod of_cluster {
        counters { ok, denied, error, failure_mode_allowed, invalid }
        gauges {}
        histograms {}
        statuses None;
        once_counted true
    }
}

layout! {
    /// `ext_authz.PREFIX.`
    pub mod of_connections {
        counters { total, error, denied, disabled, failure_mode_allowed, ok, cx_closed }
        gauges { active }
        histograms {}
        statuses None
    }
}

pub(super) use of_cluster::Counter as OfCluster;
pub(super) use of_connections::{Counter as OfConnections, Gauge as Connections, Stats as ConnectionStats};
pub(super) use stats::{Counter, Stats};

/// One worker's counters of one filter.
pub(super) fn writer(registry: &Arc<Registry>, outer: &ScopeName, prefix: &str) -> Writer<Stats> {
    registry.scope(below(outer, prefix)).writer()
}

fn below(outer: &ScopeName, prefix: &str) -> ScopeName {
    let prefix = if prefix.is_empty() { String::new() } else { format!("{prefix}.") };
    ScopeName {
        dotted: format!("{}ext_authz.{prefix}", outer.dotted),
        family: format!("{}ext_authz_{}", outer.family, prefix.replace(|c: char| !c.is_ascii_alphanumeric(), "_")),
        tags: outer.tags.clone(),
    }
}

/// The counters in a cluster's scope, by the filters' prefixes, which the configuration has.
const OF_CLUSTERS: FamiliesOptions = FamiliesOptions {
    name: "ext_authz",
    prefix: "ext_authz.",
    labels: &[],
    max_series: 100,
    expire_after: None,
    reported: Reported::Everywhere,
};

/// Counts for a cluster.
pub(super) fn count(cluster: &ClusterScope, prefix: &Arc<str>, counter: OfCluster) {
    let series = cluster.get(|cluster| {
        let families = cluster.registry.families_below::<of_cluster::Stats>(&cluster.name, OF_CLUSTERS);
        families.handles::<Arc<str>>()
    });
    let add_prefix = |labels: &mut LabelValues| {
        if !prefix.is_empty() {
            labels.push(prefix);
        }
    };
    series.get(prefix, add_prefix).inc(counter);
}
