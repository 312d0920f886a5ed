//! Statistics of routes with a `stat_prefix`, under Envoy's names: `vhost.VIRTUAL_HOST.route.PREFIX.`

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_filters::{ClusterScope, ResponseFlags};
use evenkeel_runtime_config::FastMap;
use evenkeel_stats::{Registry, ScopeName, Writer};
use evenkeel_upstream::turn;

use super::active_stream::ActiveStream;
use super::decide::Forward;

/// Prefixes that one worker counts for the routes to one cluster. Configuration names them, and it may change for ever.
const MAX_PREFIXES: usize = 1_000;

evenkeel_stats::layout! {
    /// `vhost.VIRTUAL_HOST.route.PREFIX.`
    pub mod route {
        counters {
            upstream_rq_total, upstream_rq_completed, upstream_rq_1xx, upstream_rq_2xx, upstream_rq_3xx, upstream_rq_4xx,
            upstream_rq_5xx, upstream_rq_retry, upstream_rq_retry_limit_exceeded, upstream_rq_retry_success,
            upstream_rq_timeout,
        }
        gauges {}
        histograms { upstream_rq_time }
        statuses Some("upstream_rq_")
    }
}

/// Counters by virtual host and prefix.
type ByPrefix = FastMap<(Arc<str>, Arc<str>), Rc<Writer<route::Stats>>>;

/// One worker's counters of the routes to one cluster. They live as long as the cluster.
struct RouteCounts {
    registry: Arc<Registry>,
    by_prefix: RefCell<ByPrefix>,
}

impl RouteCounts {
    fn new(cluster: &ClusterScope) -> Self {
        Self { registry: Arc::clone(&cluster.registry), by_prefix: RefCell::default() }
    }

    /// The counters of a prefix; `None` if there are too many.
    fn of(&self, host: &Arc<str>, prefix: &Arc<str>) -> Option<Rc<Writer<route::Stats>>> {
        let mut known = self.by_prefix.borrow_mut();
        let id = (Arc::clone(host), Arc::clone(prefix));
        if let Some(writer) = known.get(&id) {
            return Some(Rc::clone(writer));
        }
        if known.len() >= MAX_PREFIXES {
            return None;
        }
        let [host, prefix] = [host, prefix].map(|name| name.to_string());
        let name = ScopeName {
            dotted: format!("vhost.{host}.route.{prefix}."),
            family: "vhost_route_".to_owned(),
            tags: vec![("envoy_virtual_host", host), ("envoy_route", prefix)],
        };
        let writer = Rc::new(self.registry.scope::<route::Stats>(name).writer());
        known.insert(id, Rc::clone(&writer));
        Some(writer)
    }
}

impl ActiveStream<'_> {
    /// Counts a request that was forwarded, now that it is over.
    pub(super) fn count_by_route(&self, forward: &Forward<'_>, prefix: &Arc<str>) {
        let counts = forward.to.cluster.filter_scope().get(RouteCounts::new);
        let Some(counts) = counts.of(&forward.host.name, prefix) else { return };
        let stream = &self.request.stream;
        if stream.attempts > 1 {
            counts.add(route::Counter::upstream_rq_retry, u64::from(stream.attempts) - 1);
        }
        let has = |flag| stream.flags.contains(flag);
        // A try that could not connect is not counted, as in Envoy. Whether tries before the last one could is unknown.
        let unsent = u64::from(has(ResponseFlags::UPSTREAM_CONNECTION_FAILURE));
        counts.add(route::Counter::upstream_rq_total, u64::from(stream.attempts).saturating_sub(unsent));
        if has(ResponseFlags::UPSTREAM_RETRY_LIMIT_EXCEEDED) {
            counts.inc(route::Counter::upstream_rq_retry_limit_exceeded);
        } else if stream.attempts > 1 && stream.status != 0 && stream.status < 500 {
            counts.inc(route::Counter::upstream_rq_retry_success);
        }
        if has(ResponseFlags::UPSTREAM_REQUEST_TIMEOUT) {
            counts.inc(route::Counter::upstream_rq_timeout);
        }
        let class = match stream.status / 100 {
            1 => route::Counter::upstream_rq_1xx,
            2 => route::Counter::upstream_rq_2xx,
            3 => route::Counter::upstream_rq_3xx,
            4 => route::Counter::upstream_rq_4xx,
            5 => route::Counter::upstream_rq_5xx,
            // The client got no response.
            _ => return,
        };
        counts.inc(route::Counter::upstream_rq_completed);
        counts.inc(class);
        counts.status(stream.status);
        let took = turn::now().duration_since(self.request.started());
        counts.record(route::Histogram::upstream_rq_time, took.as_millis() as u64);
    }
}
