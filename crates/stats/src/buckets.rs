//! Histogram buckets set by the configuration (Envoy's `histogram_bucket_settings`).

use crate::layout::{Metric, Shape};
use crate::list::List;

/// Matches a histogram's name in `/stats`.
pub type Matches = Box<dyn Fn(&str) -> bool + Send + Sync>;

/// Buckets of the histograms whose name in `/stats` matches.
pub struct BucketSetting {
    /// Matches a name made of the scope's and the metric's, such as `cluster.a.upstream_rq_time`.
    pub matches: Matches,
    /// Upper bounds in any order, without the last, infinite one.
    pub bounds: Vec<f64>,
}

impl std::fmt::Debug for BucketSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "BucketSetting({:?})", self.bounds)
    }
}

/// The settings of a registry, and the shapes derived from them.
///
/// Bounds and shapes are never freed: writers read them for each value, and their number is limited by the combinations of a
/// layout and settings for its histograms.
pub(crate) struct Buckets {
    settings: Vec<(Matches, &'static [f64])>,
    shapes: List<Chosen>,
}

/// A layout, and its shape with other buckets.
#[derive(Clone, Copy)]
struct Chosen {
    layout: &'static Shape,
    shape: &'static Shape,
}

impl Buckets {
    pub(crate) fn new(settings: Vec<BucketSetting>) -> Self {
        let sorted = |mut bounds: Vec<f64>| {
            bounds.sort_by(f64::total_cmp);
            bounds.dedup();
            &*bounds.leak()
        };
        let settings = settings.into_iter().map(|setting| (setting.matches, sorted(setting.bounds)));
        Self { settings: settings.collect(), shapes: List::default() }
    }

    /// Returns the shape of a scope with that name: its layout's, with the buckets of the first setting that matches each
    /// histogram.
    pub(crate) fn shape(&self, layout: &'static Shape, scope: &str) -> &'static Shape {
        let of = |metric: &Metric| {
            let name = format!("{scope}{}", metric.name);
            self.settings.iter().find(|(matches, _)| matches(&name)).map(|(_, bounds)| *bounds)
        };
        let chosen: Vec<_> = layout.histograms.iter().map(of).collect();
        if chosen.iter().all(Option::is_none) {
            return layout;
        }
        let bounds = || layout.histograms.iter().zip(&chosen).map(|(metric, chosen)| chosen.unwrap_or(metric.bounds));
        let same = |known: &Chosen| {
            let same_bounds = known.shape.histograms.iter().zip(bounds()).all(|(known, new)| known.bounds == new);
            (known.layout.same(layout) && same_bounds).then_some(known.shape)
        };
        // Another thread may add the same shape at the same time: then there are two of it, and either will do.
        self.shapes.find(same).unwrap_or_else(|| {
            let shape: &'static Shape = Box::leak(Box::new(layout.with_bounds(bounds())));
            self.shapes.push(Chosen { layout, shape });
            shape
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FamiliesOptions, Registry, ScopeName};

    crate::layout! {
        /// A test scope.
        pub mod cluster {
            counters {}
            gauges {}
            histograms { time_ms, size in [10.0] }
            statuses None
        }
    }

    fn setting(prefix: &'static str, bounds: &[f64]) -> BucketSetting {
        BucketSetting { matches: Box::new(move |name| name.starts_with(prefix)), bounds: bounds.to_vec() }
    }

    fn bounds(page: &str, metric: &str) -> Vec<String> {
        let start = format!("{metric}_bucket{{");
        let lines = page.lines().filter(|line| line.starts_with(&start));
        lines.map(|line| line.split("le=\"").nth(1).unwrap().replace("\"}", "")).collect()
    }

    #[test]
    fn the_first_setting_that_matches_a_name_chooses_its_buckets() {
        let registry = Registry::new();
        registry.bucket(vec![
            setting("cluster.a.time", &[30.0, 2.0, 30.0]),
            setting("cluster.", &[5.0]),
            setting("cluster.a.", &[7.0]),
        ]);
        registry.bucket(vec![setting("", &[1.0])]);
        let names = ["a", "b", "c"].map(|name| ScopeName::tagged("cluster", "name", name));
        let other = registry.scope::<cluster::Stats>(ScopeName::plain("other."));
        let scopes = names.map(|name| registry.scope::<cluster::Stats>(name));
        for scope in scopes.iter().chain([&other]) {
            let writer = scope.writer();
            for value in [1, 3, 12, 40] {
                writer.record(cluster::Histogram::time_ms, value);
                writer.record(cluster::Histogram::size, value);
            }
        }
        let page = registry.prometheus_text();
        let of = |name: &str, metric: &str| {
            let page: Vec<&str> = page.lines().filter(|line| line.contains(&format!("name=\"{name}\""))).collect();
            bounds(&page.join("\n"), &format!("envoy_cluster_{metric}"))
        };
        assert_eq!(of("a", "time_ms"), ["2 1", "30 3", "+Inf 4"]);
        assert_eq!(of("a", "size"), ["5 2", "+Inf 4"]);
        assert_eq!(of("b", "time_ms"), ["5 2", "+Inf 4"]);
        assert_eq!(bounds(&page, "envoy_other_size"), ["10 2", "+Inf 4"]);
        assert_eq!(bounds(&page, "envoy_other_time_ms").len(), crate::ENVOY_BUCKETS.len() + 1);
        // Scopes with the same buckets share a shape.
        let shape = |at: usize| std::ptr::from_ref(scopes[at].core().shape);
        assert!(shape(1) == shape(2) && shape(0) != shape(1));
    }

    #[test]
    fn series_of_families_have_them_too() {
        let registry = Registry::new();
        registry.bucket(vec![setting("shop_time", &[2.0])]);
        let families = registry.families::<cluster::Stats>(FamiliesOptions {
            name: "shop",
            prefix: "shop_",
            labels: &["to"],
            max_series: 10,
            expire_after: None,
            reported: crate::Reported::Everywhere,
        });
        let handles = families.handles::<u8>();
        let series = handles.get(&1, |labels| labels.push("web"));
        series.record(cluster::Histogram::time_ms, 3);
        let exemplar = crate::Exemplar { trace_id: [1; 16], span_id: [0; 8], unix_ms: 1_700_000_000_000 };
        series.record_traced(cluster::Histogram::size, 30, &exemplar);
        let page = registry.exposition(crate::Exposition::OpenMetrics, None);
        assert_eq!(bounds(&page, "shop_time_ms"), ["2.0 0", "+Inf 1"]);
        assert!(page.contains("shop_size_bucket{to=\"web\",le=\"+Inf\"} 1 # {trace_id="), "{page}");
    }

    #[test]
    fn values_merged_from_elsewhere_meet_the_same_buckets() {
        let registry = Registry::new();
        registry.bucket(vec![setting("a.time", &[1.0, 2.0, 3.0])]);
        let scope = registry.scope::<cluster::Stats>(ScopeName::plain("a."));
        let writer = crate::SharedWriter::of(scope.writer());
        writer.record(cluster::Histogram::time_ms, 2.5, 2);
        // Two up to 0.5, one up to 5, one beyond all of Envoy's.
        let mut counts = [0; crate::ENVOY_BUCKETS.len() + 1];
        (counts[0], counts[2], counts[crate::ENVOY_BUCKETS.len()]) = (2, 1, 1);
        writer.merge(cluster::Histogram::time_ms, &counts, 0.0);
        assert_eq!(bounds(&registry.prometheus_text(), "envoy_a_time_ms"), ["1 2", "2 2", "3 4", "+Inf 6"]);
    }
}
