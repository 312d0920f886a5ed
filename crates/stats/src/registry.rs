//! All scopes of a process.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::histogram::HistogramSnapshot;
use crate::layout::Layout;
use crate::render;
use crate::scope::{Scope, ScopeCore, ScopeName};

/// All scopes that somebody still owns.
#[derive(Default)]
pub struct Registry {
    scopes: Mutex<Scopes>,
    carried: Mutex<Carried>,
}

#[derive(Default)]
struct Scopes {
    by_name: BTreeMap<String, Weak<ScopeCore>>,
    /// With so many it is looked which of them are gone: half of them may be, so that a look costs each new one little.
    look_at: usize,
}

/// With fewer scopes it is not looked which of them are gone.
const FEWEST_TO_LOOK_AT: usize = 64;

/// What another process counted before, by the metrics' full names.
#[derive(Default)]
pub(crate) struct Carried {
    counters: HashMap<String, u64>,
    gauges: HashMap<String, i64>,
}

impl Carried {
    pub(crate) fn counter(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn gauge(&self, name: &str) -> i64 {
        self.gauges.get(name).copied().unwrap_or(0)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.counters.is_empty() && self.gauges.is_empty()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

/// One metric's value at a scrape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// Envoy's name: `cluster.NAME.upstream_rq_total`.
    pub name: String,
    /// Prometheus name without tags: `envoy_cluster_upstream_rq_total`.
    pub family: String,
    /// Prometheus labels.
    pub tags: Vec<(&'static str, String)>,
    /// The value over all shards.
    pub value: Value,
}

/// A metric's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Only grows.
    Counter(u64),
    /// Goes up and down.
    Gauge(i64),
    /// Distribution.
    Histogram(Box<HistogramSnapshot>),
}

impl Value {
    /// Nothing was counted, or as much down as up.
    pub(crate) fn is_zero(&self) -> bool {
        match self {
            Self::Counter(value) => *value == 0,
            Self::Gauge(value) => *value == 0,
            Self::Histogram(histogram) => histogram.count() == 0,
        }
    }
}

impl Registry {
    /// An empty registry.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// The scope of that name, made when there is none. It is reported for as long as somebody holds it.
    pub fn scope<L: Layout>(&self, name: ScopeName) -> Scope<L> {
        let mut scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
        let known = scopes.by_name.get(&name.dotted).and_then(Weak::upgrade).filter(|core| core.has_layout::<L>());
        if let Some(core) = known {
            return Scope::from_core(core);
        }
        if scopes.by_name.len() >= scopes.look_at {
            scopes.by_name.retain(|_, scope| scope.strong_count() > 0);
            scopes.look_at = (2 * scopes.by_name.len()).max(FEWEST_TO_LOOK_AT);
        }
        let key = name.dotted.clone();
        let scope = Scope::from_core(Arc::new(ScopeCore::new::<L>(name)));
        scopes.by_name.insert(key, Arc::downgrade(scope.core()));
        scope
    }

    /// Every metric's current value, by scope and in each scope in order of definition.
    pub fn samples(&self) -> Vec<Sample> {
        let scopes: Vec<_> = {
            let scopes = self.scopes.lock().unwrap_or_else(PoisonError::into_inner);
            scopes.by_name.values().filter_map(Weak::upgrade).collect()
        };
        let mut samples = Vec::new();
        let carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        scopes.iter().for_each(|scope| scope.samples(&carried, &mut samples));
        samples
    }

    /// Adds to every sample what the process before this one counted, in place of what was carried before: its counters as
    /// they are, its gauges for as long as they are not ended.
    pub fn carry(&self, counters: HashMap<String, u64>, gauges: HashMap<String, i64>) {
        *self.carried.lock().unwrap_or_else(PoisonError::into_inner) = Carried { counters, gauges };
    }

    /// The process before this one has ended: what it had open is closed, what it counted stays.
    pub fn end_carried_gauges(&self) {
        self.carried.lock().unwrap_or_else(PoisonError::into_inner).gauges.clear();
    }

    /// Envoy's `/stats` text: `name: value` lines sorted by name, histograms last.
    pub fn text(&self) -> String {
        render::text(self.samples())
    }

    /// Prometheus text exposition format 0.0.4.
    pub fn prometheus_text(&self) -> String {
        render::prometheus(self.samples())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    crate::layout! {
        /// A test scope.
        pub mod cluster {
            counters { upstream_rq_total, upstream_rq_5xx }
            gauges { upstream_cx_active }
            histograms { upstream_rq_time }
            statuses Some("upstream_rq_")
        }
    }

    fn cluster_scope(registry: &Registry, name: &str) -> Scope<cluster::Stats> {
        registry.scope(ScopeName::tagged("cluster", "envoy_cluster_name", name))
    }

    #[test]
    fn shards_add_up_and_counts_outlive_their_writer() {
        let registry = Registry::new();
        let scope = cluster_scope(&registry, "a");
        let (one, two) = (scope.writer(), scope.writer());
        one.inc(cluster::Counter::upstream_rq_total);
        two.add(cluster::Counter::upstream_rq_total, 2);
        one.shift(cluster::Gauge::upstream_cx_active, 2);
        two.shift(cluster::Gauge::upstream_cx_active, -1);
        drop(one);
        scope.writer().inc(cluster::Counter::upstream_rq_total);
        assert_eq!(scope.counter(cluster::Counter::upstream_rq_total), 4);
        assert_eq!(scope.gauge(cluster::Gauge::upstream_cx_active), 1);
    }

    #[test]
    fn writers_on_many_threads_lose_nothing() {
        let registry = Registry::new();
        let scope = cluster_scope(&registry, "a");
        let threads: Vec<_> = (0..4)
            .map(|_| {
                let writer = scope.writer();
                std::thread::spawn(move || (0..10_000).for_each(|_| writer.inc(cluster::Counter::upstream_rq_total)))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
        assert_eq!(scope.counter(cluster::Counter::upstream_rq_total), 40_000);
    }

    #[test]
    fn what_another_process_counted_is_added() {
        let registry = Registry::new();
        let writer = cluster_scope(&registry, "a").writer();
        writer.add(cluster::Counter::upstream_rq_total, 2);
        writer.shift(cluster::Gauge::upstream_cx_active, 1);
        let name = |metric: &str| format!("cluster.a.{metric}");
        let counters = [("upstream_rq_total", 40), ("upstream_rq_503", 3)];
        let counters = counters.iter().map(|(metric, value)| (name(metric), *value)).collect();
        registry.carry(counters, HashMap::from([(name("upstream_cx_active"), 5)]));
        let has = |line: &str| assert!(registry.text().contains(line), "{line} not in\n{}", registry.text());
        has("cluster.a.upstream_rq_total: 42\n");
        has("cluster.a.upstream_rq_503: 3\n");
        has("cluster.a.upstream_cx_active: 6\n");
        registry.end_carried_gauges();
        has("cluster.a.upstream_rq_total: 42\n");
        has("cluster.a.upstream_cx_active: 1\n");
    }

    #[test]
    fn a_scope_goes_with_its_last_owner() {
        let registry = Registry::new();
        let scope = cluster_scope(&registry, "a");
        let writer = scope.writer();
        drop(scope);
        assert!(registry.text().contains("cluster.a.upstream_rq_total: 0"));
        drop(writer);
        assert_eq!(registry.text(), "");
    }

    #[test]
    fn prometheus_text_takes_tags_out_of_names() {
        let registry = Registry::new();
        let scope = cluster_scope(&registry, "outbound|80||a\"b");
        let writer = scope.writer();
        writer.inc(cluster::Counter::upstream_rq_5xx);
        writer.status(503);
        writer.record(cluster::Histogram::upstream_rq_time, 7);
        let text = registry.prometheus_text();
        for expected in [
            "# TYPE envoy_cluster_upstream_rq counter\n",
            "envoy_cluster_upstream_rq{envoy_cluster_name=\"outbound|80||a\\\"b\",envoy_response_code=\"503\"} 1\n",
            "envoy_cluster_upstream_rq_xx{envoy_cluster_name=\"outbound|80||a\\\"b\",envoy_response_code_class=\"5\"} 1\n",
            "# TYPE envoy_cluster_upstream_cx_active gauge\n",
            "# TYPE envoy_cluster_upstream_rq_time histogram\n",
            "upstream_rq_time_bucket{envoy_cluster_name=\"outbound|80||a\\\"b\",le=\"5\"} 0\n",
            "upstream_rq_time_bucket{envoy_cluster_name=\"outbound|80||a\\\"b\",le=\"10\"} 1\n",
            "upstream_rq_time_bucket{envoy_cluster_name=\"outbound|80||a\\\"b\",le=\"+Inf\"} 1\n",
            "upstream_rq_time_sum{envoy_cluster_name=\"outbound|80||a\\\"b\"} 7\n",
            "upstream_rq_time_count{envoy_cluster_name=\"outbound|80||a\\\"b\"} 1\n",
        ] {
            assert!(text.contains(expected), "{expected} not in\n{text}");
        }
    }
}
