//! Statistics under Envoy's names: `http.PREFIX.fault.` and, by downstream cluster, `http.PREFIX.fault.CLUSTER.`.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::FastMap;
use evenkeel_stats::{Registry, ScopeName, Writer, layout};

/// Downstream clusters that one worker counts separately: clients choose their names. Further ones are not counted separately.
const MAX_CLUSTERS: usize = 1_000;

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
    registry: Arc<Registry>,
    /// `http.PREFIX.fault.`
    name: ScopeName,
    clusters: RefCell<FastMap<Box<str>, Rc<Writer<OfCluster>>>>,
}

impl Counts {
    /// `outer`: `http.PREFIX.`
    pub(super) fn new(registry: &Arc<Registry>, outer: &ScopeName) -> Self {
        let name = ScopeName {
            dotted: format!("{}fault.", outer.dotted),
            family: format!("{}fault_", outer.family),
            tags: outer.tags.clone(),
        };
        let all = registry.scope(name.clone()).writer();
        Self { all, registry: Arc::clone(registry), name, clusters: RefCell::default() }
    }

    /// The counters of a downstream cluster.
    pub(super) fn of_cluster(&self, cluster: &str) -> Option<Rc<Writer<OfCluster>>> {
        let mut clusters = self.clusters.borrow_mut();
        if let Some(known) = clusters.get(cluster) {
            return Some(Rc::clone(known));
        }
        if clusters.len() >= MAX_CLUSTERS {
            return None;
        }
        let tag = ("envoy_fault_downstream_cluster", cluster.to_owned());
        let name = ScopeName {
            dotted: format!("{}{cluster}.", self.name.dotted),
            family: self.name.family.clone(),
            tags: [self.name.tags.clone(), vec![tag]].concat(),
        };
        let writer = Rc::new(self.registry.scope::<OfCluster>(name).writer());
        clusters.insert(cluster.into(), Rc::clone(&writer));
        Some(writer)
    }
}
