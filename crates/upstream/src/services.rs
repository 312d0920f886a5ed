//! The worker's clusters, as its filters see them.

use std::rc::Rc;

use evenkeel_filters::{ClusterScope, Clusters, ForwardProxyFacts};
use evenkeel_runtime_config::cluster::Discovery;

use crate::Upstreams;
use crate::cluster::Cluster;
use crate::stats::cluster::Counter;

impl Clusters for Upstreams {
    fn scope(&self, name: &str) -> Option<Rc<ClusterScope>> {
        self.cluster(name).map(|cluster| cluster.filter_scope())
    }

    fn forward_proxy(&self, name: &str) -> Option<ForwardProxyFacts> {
        let cluster = self.cluster(name)?;
        let config = cluster.config();
        let resolves = matches!(config.discovery, Discovery::DynamicForwardProxy(_));
        resolves.then(|| ForwardProxyFacts { is_secure: config.transport.is_secure() })
    }

    fn charge_response(&self, name: &str, status: u16) {
        if let Some(cluster) = self.cluster(name) {
            cluster.count_status(status);
        }
    }
}

impl Cluster {
    /// Counts a response of this status.
    pub fn count_status(&self, status: u16) {
        let stats = self.stats();
        stats.inc(Counter::upstream_rq_completed);
        stats.status(status);
        stats.inc(match status / 100 {
            1 => Counter::upstream_rq_1xx,
            2 => Counter::upstream_rq_2xx,
            3 => Counter::upstream_rq_3xx,
            4 => Counter::upstream_rq_4xx,
            _ => Counter::upstream_rq_5xx,
        });
    }
}
