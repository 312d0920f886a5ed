//! Statistics under Envoy's names: `http.PREFIX.fault.` and, by downstream cluster, `http.PREFIX.fault.CLUSTER.`.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_stats::{FamiliesOptions, Registry, Reported, ScopeName, SeriesHandles, Writer, layout};

/// Downstream clusters, whose names clients choose. A thousand are counted separately.
const DOWNSTREAM_CLUSTERS: FamiliesOptions = FamiliesOptions {
    name: "fault",
    prefix: "",
    labels: &["envoy_fault_downstream_cluster"],
    max_series: 1_000,
    expire_after: Some(Duration::from_secs(3600)),
    reported: Reported::Everywhere,
};

layout! {
    /// `http.PREFIX.fault.`
    pub mod stats {
        counters { aborts_injected, delays_injected, faults_overflow, response_rl_injected }
        gauges { active_faults }
        histograms {}
        statuses None
    }
}

layout! {
    /// Counters per downstream cluster.
    pub mod of_cluster {
        counters { aborts_injected, delays_injected }
        gauges {}
        histograms {}
        statuses None;
        once_counted true
    }
}

pub(super) use of_cluster::{Counter as Injected, Stats as OfCluster};

/// One worker's counters of one filter.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) all: Writer<stats::Stats>,
    clusters: SeriesHandles<String, OfCluster>,
}

impl Counts {
    /// `outer`: `http.PREFIX.`
    pub(super) fn new(registry: &Arc<Registry>, outer: &ScopeName) -> Self {
        let name = ScopeName {
            dotted: format!("{}fault.", outer.dotted),
            family: format!("{}fault_", outer.family),
            tags: outer.tags.clone(),
        };
        let clusters = registry.families_below(&name, DOWNSTREAM_CLUSTERS).handles();
        Self { all: registry.scope(name).writer(), clusters }
    }

    /// The counters of a downstream cluster.
    pub(super) fn of_cluster(&self, cluster: &str) -> Rc<Writer<OfCluster>> {
        self.clusters.get(cluster, |labels| labels.push(cluster))
    }
}
