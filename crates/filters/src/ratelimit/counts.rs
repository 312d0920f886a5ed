//! Statistics under Envoy's names: `cluster.NAME.ratelimit.` of the cluster that the request goes to.

use std::sync::Arc;

use evenkeel_stats::{FamiliesOptions, LabelValues, Reported, layout};

use crate::http::ClusterScope;

layout! {
    /// `cluster.NAME.ratelimit.`, followed by the filter's own prefix.
    pub mod stats {
        counters {
            /// Requests within the limits.
            ok,
            /// Calls without a decision.
            error,
            /// Requests over a limit.
            over_limit,
            /// Requests that passed although the service has failed.
            failure_mode_allowed,
        }
        gauges {}
        histograms {}
        statuses None;
        once_counted true
    }
}

pub(super) use stats::Counter;

/// The counters in a cluster's scope, by the filters' prefixes, which the configuration has.
const OF_CLUSTERS: FamiliesOptions = FamiliesOptions {
    name: "ratelimit",
    prefix: "ratelimit.",
    labels: &[],
    max_series: 100,
    expire_after: None,
    reported: Reported::Everywhere,
};

/// Counts for a cluster.
pub(super) fn count(cluster: &ClusterScope, prefix: &Arc<str>, counter: Counter) {
    let series = cluster.get(|cluster| {
        let families = cluster.registry.families_below::<stats::Stats>(&cluster.name, OF_CLUSTERS);
        Series(families.handles::<Arc<str>>())
    });
    let add_prefix = |labels: &mut LabelValues| {
        if !prefix.is_empty() {
            labels.push(prefix);
        }
    };
    series.0.get(prefix, add_prefix).inc(counter);
}

/// A cluster keeps one object of a type.
struct Series(evenkeel_stats::SeriesHandles<Arc<str>, stats::Stats>);
