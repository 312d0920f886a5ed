//! Pages for Prometheus, parsed by a strict parser.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use evenkeel_stats::{Exemplar, Exposition, FamiliesOptions, Registry, Scope, ScopeName, layout};
use evenkeel_testkit::exposition::{Family, parse};

layout! {
    /// As a cluster's.
    pub mod cluster {
        counters { upstream_rq_total, upstream_rq_5xx, retry }
        gauges { upstream_cx_active }
        histograms { upstream_rq_time }
        statuses Some("upstream_rq_")
    }
}

layout! {
    /// As Istio's standard metrics.
    pub mod edge {
        counters {
            /// Requests that were answered,
            /// by "whom" \ whatever.
            requests_total,
        }
        gauges {
            /// Requests on their way.
            requests_active,
        }
        histograms {
            /// Time of requests.
            request_duration_milliseconds,
            /// Size of requests.
            request_bytes in [1e3, 1e6, 2.5e6],
        }
        statuses None
    }
}

layout! {
    /// As a process'.
    pub mod process {
        counters { cpu_seconds_total / 100 }
        gauges { open_fds }
        histograms {}
        statuses None;
        once_counted true
    }
}

const EDGES: FamiliesOptions = FamiliesOptions {
    name: "edges",
    prefix: "shop_",
    labels: &["source", "path"],
    max_series: 100,
    expire_after: None,
    reported: evenkeel_stats::Reported::Everywhere,
};

fn cluster(registry: &Registry, name: &str) -> Scope<cluster::Stats> {
    registry.scope(ScopeName::tagged("cluster", "envoy_cluster_name", name))
}

fn exemplar(trace: u8, unix_ms: u64) -> Exemplar {
    Exemplar { trace_id: [trace; 16], span_id: [0; 8], unix_ms }
}

/// The families of both pages.
fn pages(registry: &Registry) -> [BTreeMap<String, Family>; 2] {
    [Exposition::Prometheus, Exposition::OpenMetrics].map(|format| {
        let page = registry.exposition(format, None);
        parse(&page, format == Exposition::OpenMetrics).unwrap_or_else(|error| panic!("{error}\n{page}"))
    })
}

/// Names, labels and values of all samples; bounds as numbers, for the two formats write them differently.
fn samples(families: &BTreeMap<String, Family>) -> BTreeSet<String> {
    let all = families.values().flat_map(|family| &family.samples);
    let text = all.map(|sample| {
        let mut labels = sample.labels.clone();
        if let Some(le) = labels.get_mut("le") {
            *le = le.parse::<f64>().unwrap().to_string();
        }
        format!("{}{labels:?} {}", sample.name, sample.value)
    });
    text.collect()
}

/// A registry with whatever is hard to write.
fn hard() -> (Arc<Registry>, Vec<Box<dyn std::any::Any>>) {
    let registry = Registry::new();
    let mut held: Vec<Box<dyn std::any::Any>> = Vec::new();
    for name in ["outbound|80||a.b", "quote\"back\\slash\nline{},=", "größe", ""] {
        let writer = cluster(&registry, name).writer();
        writer.inc(cluster::Counter::upstream_rq_total);
        writer.status(503);
        writer.status(200);
        writer.record(cluster::Histogram::upstream_rq_time, 7);
        held.push(Box::new(writer));
    }
    // Two names that Prometheus cannot tell apart.
    for name in ["a-b.", "a.b."] {
        held.push(Box::new(registry.scope::<edge::Stats>(ScopeName::plain(name)).writer()));
    }
    let edges = registry.families::<edge::Stats>(EDGES);
    for values in [["web", "/a\"\\\n"], ["web", "/b"], ["", ""]] {
        let series = edges.series(&values).unwrap();
        series.shift(edge::Gauge::requests_active, -1);
        series.record_traced(edge::Histogram::request_duration_milliseconds, 12, &exemplar(7, 1_000));
        series.record(edge::Histogram::request_bytes, 2_000_000);
        held.push(Box::new(series));
    }
    held.push(Box::new(edges));
    let process = registry.scope::<process::Stats>(ScopeName::labelled("process_", Vec::new())).writer();
    process.add(process::Counter::cpu_seconds_total, 1_234);
    held.push(Box::new(process));
    (registry, held)
}

#[test]
fn both_formats_say_the_same_and_are_well_formed() {
    let (registry, _held) = hard();
    let [text, open] = pages(&registry);
    assert_eq!(samples(&text), samples(&open));
    let find = |label: &str, value: &str| {
        let of = |sample: &&evenkeel_testkit::exposition::Sample| sample.labels[label] == value;
        text["envoy_cluster_upstream_rq_total"].samples.iter().find(of).map(|sample| sample.value)
    };
    assert_eq!(find("envoy_cluster_name", "quote\"back\\slash\nline{},="), Some(1.0));
    assert_eq!(find("envoy_cluster_name", "größe"), Some(1.0));
    assert_eq!(text["process_cpu_seconds_total"].samples[0].value, 12.34);
    assert!(!text.contains_key("process_open_fds"), "nothing was counted there");
    assert_eq!(text["shop_requests_total"].help, "Requests that were answered, by \"whom\" \\ whatever.");
    assert_eq!(open["shop_requests"].help, text["shop_requests_total"].help);
}

#[test]
fn openmetrics_names_counters_by_its_rule_and_leaves_the_samples_their_names() {
    let (registry, _held) = hard();
    let [text, open] = pages(&registry);
    let kinds = |families: &BTreeMap<String, Family>, names: &[&str]| -> Vec<String> {
        names.iter().map(|name| families[*name].kind.clone()).collect()
    };
    let names = ["envoy_cluster_upstream_rq_total", "envoy_cluster_upstream_rq", "envoy_cluster_retry"];
    assert_eq!(kinds(&text, &names), ["counter"; 3]);
    // `envoy_cluster_upstream_rq` is taken by the counters of statuses, so the first is not called so.
    assert_eq!(kinds(&open, &names), ["unknown"; 3]);
    assert_eq!(kinds(&open, &["shop_requests", "process_cpu_seconds"]), ["counter"; 2]);
}

#[test]
fn a_page_is_as_it_is_written_down() {
    let check = |reversed: bool| {
        let registry = Registry::new();
        let edges = registry.families::<edge::Stats>(EDGES);
        let mut paths = ["/a", "/b"];
        if reversed {
            paths.reverse();
        }
        let series = paths.map(|path| edges.series(&["web", path]).unwrap());
        for (path, series) in paths.iter().zip(&series) {
            series.add(edge::Counter::requests_total, if *path == "/a" { 1 } else { 2 });
        }
        series[usize::from(reversed)].record_traced(
            edge::Histogram::request_bytes,
            1_500,
            &Exemplar { span_id: [1; 8], ..exemplar(0xab, 1_700_000_000_042) },
        );
        let only = |name: &str| {
            let family = name.split('{').next().unwrap_or_default();
            ["shop_requests_total", "shop_request_bytes"].contains(&family)
        };
        let open = registry.exposition(Exposition::OpenMetrics, Some(&only));
        let text = registry.exposition(Exposition::Prometheus, Some(&only));
        assert_eq!(open, include_str!("golden/open_metrics.txt"));
        assert_eq!(text, include_str!("golden/text.txt"));
    };
    check(false);
    check(true);
}

#[test]
fn exemplars_are_the_newest_of_all_workers_and_only_in_openmetrics() {
    let registry = Registry::new();
    let edges = registry.families::<edge::Stats>(EDGES);
    let workers = [1, 2, 3].map(|_| edges.series(&["web", "/"]).unwrap());
    for (worker, (trace, unix_ms)) in workers.iter().zip([(1, 1_000), (2, 3_000), (3, 2_000)]) {
        worker.record_traced(edge::Histogram::request_duration_milliseconds, 7, &exemplar(trace, unix_ms));
    }
    let [text, open] = pages(&registry);
    let exemplars = |families: &BTreeMap<String, Family>| -> Vec<_> {
        families["shop_request_duration_milliseconds"].samples.iter().filter_map(|s| s.exemplar.clone()).collect()
    };
    assert_eq!(exemplars(&text), []);
    let trace = BTreeMap::from([("trace_id".to_owned(), "02".repeat(16))]);
    assert_eq!(exemplars(&open), [(trace, 7.0, 3.0)]);
}

#[test]
fn a_format_is_chosen_by_what_is_accepted() {
    use Exposition::{OpenMetrics, Prometheus};
    let prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                        application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                        text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    for (accept, expected) in [
        (None, Prometheus),
        (Some(""), Prometheus),
        (Some("*/*"), Prometheus),
        (Some("text/html"), Prometheus),
        (Some("text/plain;version=0.0.4"), Prometheus),
        (Some("application/openmetrics-text"), OpenMetrics),
        (Some("Application/OpenMetrics-Text ; Version=1.0.0"), OpenMetrics),
        (Some("application/openmetrics-text;version=2.0.0,text/plain"), Prometheus),
        (Some("application/openmetrics-text;q=0.4,text/plain;q=0.5"), Prometheus),
        (Some("application/openmetrics-text;q=0,text/plain;q=0"), Prometheus),
        (Some("application/openmetrics-text;q=nonsense"), Prometheus),
        (Some(prometheus_3), OpenMetrics),
    ] {
        assert_eq!(Exposition::negotiate(accept), expected, "{accept:?}");
    }
}
