//! The registry of all scopes of a process.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Instant;

use arc_swap::ArcSwap;

use crate::buckets::{BucketSetting, Buckets};
use crate::exposition::{self, Exposition};
use crate::families::{AllFamilies, Families, FamiliesCore, FamiliesOptions, Origin, metric_series};
use crate::layout::{Layout, Shape, Shaped};
use crate::list::Index;
use crate::protobuf;
use crate::render;
use crate::sample::{Carried, Keeps, Reading, Sample, TaggedSample};
use crate::scope::{Scope, ScopeCore, ScopeName, Scopes};
use crate::tags::Tagging;

/// Up to this number of scopes a look-up costs the same; with more it costs a little more.
const MANY_SCOPES: usize = 4096;
/// Likewise, of families: there may be one per cluster and filter.
const MANY_FAMILIES: usize = 1024;

/// All scopes that have an owner.
pub struct Registry {
    scopes: Arc<Scopes>,
    families: Arc<AllFamilies>,
    carried: ArcSwap<Carried>,
    keeps: OnceLock<Keeps>,
    tagging: OnceLock<Tagging>,
    buckets: OnceLock<Buckets>,
    /// Whether values are counted in native buckets, too.
    natively: Arc<AtomicBool>,
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Registry")
    }
}

impl Default for Registry {
    fn default() -> Self {
        let scopes = Arc::new(Index::for_about(MANY_SCOPES));
        let (families, carried) = (Arc::new(Index::for_about(MANY_FAMILIES)), ArcSwap::default());
        let (keeps, tagging, buckets) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Self { scopes, families, carried, keeps, tagging, buckets, natively: Arc::default() }
    }
}

impl Registry {
    /// Creates an empty registry.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Returns the scope of that name, which is created if there is none. It is reported as long as somebody holds it.
    pub fn scope<L: Layout>(&self, name: ScopeName) -> Scope<L> {
        let new = ScopeCore::new::<L>(&name);
        let shape = self.shape::<L>(new.prefix());
        let new = new.shaped(shape).counted(&self.natively);
        let hash = self.scopes.hash((new.prefix(), &new.labels));
        let new = Arc::new(new.listed(&self.scopes, hash));
        let same = |listed: &Weak<ScopeCore>| listed.upgrade().filter(|known| known.is_called_as(&new));
        let core = self.scopes.find_or_insert(hash, same, || Arc::downgrade(&new));
        Scope::from_core(core.unwrap_or_else(|()| Arc::clone(&new)))
    }

    /// Returns families for series whose labels come from traffic. All callers with the same name and layout share them while
    /// somebody holds them; the options of the first caller apply.
    pub fn families<L: Layout>(&self, options: FamiliesOptions) -> Families<L> {
        self.families_below(&ScopeName::default(), options)
    }

    /// Like [`families`](Self::families), of series whose names and labels begin with those of `outer`. If `outer` has a name
    /// in `/stats`, then the values of the labels are parts of the series' names there: `http.PREFIX.fault.VALUE.`.
    pub fn families_below<L: Layout>(&self, outer: &ScopeName, options: FamiliesOptions) -> Families<L> {
        let hash =
            self.families.hash((options.name, if outer.dotted.is_empty() { &outer.family } else { &outer.dotted }));
        let known = |families: &Weak<FamiliesCore>| families.upgrade().filter(|core| core.is::<L>(&options, outer));
        if let Some(core) = self.families.find(hash, known) {
            return Families::from_core(core);
        }
        let name = ScopeName {
            dotted: format!("metric_series.{}.", options.name),
            family: "evenkeel_metric_series_".to_owned(),
            tags: vec![("family", options.name.to_owned())],
        };
        let shape = self.shape::<L>(&format!("{}{}", outer.dotted, options.prefix));
        let own = self.scope::<metric_series::Stats>(name);
        let listed = (Arc::downgrade(&self.families), hash);
        let new = Arc::new(FamiliesCore::new::<L>(Origin {
            outer,
            options,
            shape,
            own,
            natively: self.natively.clone(),
            listed,
        }));
        let core = self.families.find_or_insert(hash, known, || Arc::downgrade(&new)).unwrap_or(new);
        Families::from_core(core)
    }

    /// Expires series that have been unused for as long as their families say. To be called periodically, and before a page
    /// is written.
    pub fn expire(&self, now: Instant) {
        self.families.for_each(|families| {
            if let Some(families) = families.upgrade() {
                families.expire(now);
            }
        });
    }

    /// Returns the reported scopes, sorted by name.
    fn reported(&self) -> Vec<Arc<ScopeCore>> {
        let mut all = Vec::new();
        self.families.for_each(|families| {
            if let Some(families) = families.upgrade() {
                families.reported(&mut all);
            }
        });
        self.scopes.for_each(|scope| all.extend(scope.upgrade()));
        all.sort_by(|a, b| (a.prefix(), &a.labels).cmp(&(b.prefix(), &b.labels)));
        all
    }

    /// Returns the current value of every metric, by scope, and within a scope in order of definition.
    pub fn samples(&self) -> Vec<Sample> {
        let (carried, mut samples) = (self.carried.load(), Vec::new());
        let reading = Reading { carried: &carried, keeps: self.keeps.get(), natively: false };
        for scope in self.reported() {
            render::samples(&scope, &reading, &mut samples);
        }
        samples
    }

    /// Like [`samples`](Self::samples), with the tags taken out of the names.
    pub fn tagged_samples(&self) -> Vec<TaggedSample> {
        let (carried, built_in, mut samples) = (self.carried.load(), Tagging::default(), Vec::new());
        let reading = Reading { carried: &carried, keeps: self.keeps.get(), natively: false };
        for scope in self.reported() {
            render::tagged_samples(&scope, &reading, self.tagging.get().unwrap_or(&built_in), &mut samples);
        }
        samples
    }

    /// From now on reports only metrics, on any page, whose name in `/stats` the function accepts. To be called once, before
    /// the first page; a later call has no effect.
    pub fn keep_only(&self, keeps: impl Fn(&str) -> bool + Send + Sync + 'static) {
        let _ = self.keeps.set(Box::new(keeps));
    }

    /// Sets how names and labels for Prometheus are formed. To be called once, before the first page; a later call has no
    /// effect.
    pub fn tag(&self, tagging: Tagging) {
        let _ = self.tagging.set(tagging);
    }

    /// Sets the histogram buckets of new scopes; of several settings that match a name, the first applies. To be called once,
    /// before the first scope is created; a later call has no effect.
    pub fn bucket(&self, settings: Vec<BucketSetting>) {
        let _ = self.buckets.set(Buckets::new(settings));
    }

    /// Returns the shape of a scope of that name.
    fn shape<L: Layout>(&self, name: &str) -> &'static Shape {
        self.buckets.get().map_or(L::SHAPE, |buckets| buckets.shape(L::SHAPE, name))
    }

    /// Adds to every sample what the previous process counted, replacing values carried before: its counters, and its gauges
    /// until they are ended.
    pub fn carry(&self, counters: HashMap<String, u64>, gauges: HashMap<String, i64>) {
        self.carried.store(Arc::new(Carried { counters, gauges }));
    }

    /// Records that the previous process has ended: its gauges are dropped, its counters stay.
    pub fn end_carried_gauges(&self) {
        self.carried.rcu(|carried| Carried { counters: carried.counters.clone(), gauges: HashMap::new() });
    }

    /// Envoy's `/stats` text: `name: value` lines sorted by name, histograms last.
    pub fn text(&self) -> String {
        render::text(self.samples())
    }

    /// Prometheus text exposition format 0.0.4.
    pub fn prometheus_text(&self) -> String {
        self.exposition(Exposition::Prometheus, None)
    }

    /// The metrics in Prometheus' protobuf format, with native histograms; of series, called `NAME{LABELS}`, only those that `wanted`
    /// names. From the first page on, values are counted for that.
    pub fn protobuf(&self, wanted: Option<&dyn Fn(&str) -> bool>) -> Vec<u8> {
        self.count_natively();
        let carried = self.carried.load();
        let reading = Reading { carried: &carried, keeps: self.keeps.get(), natively: true };
        protobuf::write(&self.reported(), &reading, self.tagging.get(), wanted)
    }

    fn count_natively(&self) {
        if self.natively.swap(true, SeqCst) {
            return;
        }
        self.scopes.for_each(|scope| {
            if let Some(scope) = scope.upgrade() {
                scope.count_natively();
            }
        });
        self.families.for_each(|families| {
            if let Some(families) = families.upgrade() {
                families.count_natively();
            }
        });
    }

    /// The metrics in a format for Prometheus; of series, called `NAME{LABELS}`, only those that `wanted` names.
    pub fn exposition(&self, format: Exposition, wanted: Option<&dyn Fn(&str) -> bool>) -> String {
        let carried = self.carried.load();
        let reading = Reading { carried: &carried, keeps: self.keeps.get(), natively: false };
        exposition::write(format, &self.reported(), &reading, self.tagging.get(), wanted)
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
    fn what_is_not_kept_is_on_no_page() {
        let registry = Registry::new();
        let (a, b) = (cluster_scope(&registry, "a"), cluster_scope(&registry, "b"));
        for writer in [a.writer(), b.writer()] {
            writer.inc(cluster::Counter::upstream_rq_5xx);
            writer.status(503);
            writer.record(cluster::Histogram::upstream_rq_time, 7);
        }
        registry.carry(HashMap::from([("cluster.b.upstream_rq_504".to_owned(), 3)]), HashMap::new());
        registry.keep_only(|name| name.starts_with("cluster.a.") && name != "cluster.a.upstream_rq_503");
        registry.keep_only(|_| true);
        let lines = registry.text().lines().count();
        assert_eq!(lines, 4, "{}", registry.text());
        for format in [Exposition::Prometheus, Exposition::OpenMetrics] {
            let page = registry.exposition(format, None);
            assert!(page.contains("upstream_rq_time_count{envoy_cluster_name=\"a\"} 1\n"), "{page}");
            for gone in ["\"b\"", "503", "504", "envoy_response_code="] {
                assert!(!page.contains(gone), "{gone} in\n{page}");
            }
        }
    }

    #[test]
    fn tags_are_taken_out_of_names() {
        let registry = Registry::new();
        let writer = cluster_scope(&registry, "outbound|80||a.b").writer();
        writer.status(503);
        let families = registry.scope::<cluster::Stats>(ScopeName::labelled("shop_", vec![("to", "a".to_owned())]));
        families.writer().inc(cluster::Counter::upstream_rq_total);
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let samples = registry.tagged_samples();
        for (full_name, name, labels) in [
            (
                "cluster.outbound|80||a.b.upstream_rq_503",
                "cluster.upstream_rq",
                vec![label("envoy_response_code", "503"), label("envoy_cluster_name", "outbound|80||a.b")],
            ),
            (
                "cluster.outbound|80||a.b.upstream_rq_time",
                "cluster.upstream_rq_time",
                vec![label("envoy_cluster_name", "outbound|80||a.b")],
            ),
            ("shop_upstream_rq_total{to=\"a\"}", "shop_upstream_rq_total", vec![label("to", "a")]),
        ] {
            let sample = samples.iter().find(|sample| sample.full_name == full_name);
            let sample = sample.unwrap_or_else(|| panic!("{full_name} is not in {samples:?}"));
            assert_eq!((&*sample.name, &sample.labels), (name, &labels));
        }
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
