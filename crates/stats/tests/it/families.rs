//! Series whose labels come from traffic.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use evenkeel_stats::{Families, FamiliesOptions, Registry, Reported, ScopeName, layout};

layout! {
    /// What is counted for an edge.
    pub mod edge {
        counters { requests_total }
        gauges { requests_active }
        histograms { request_ms }
        statuses None
    }
}

const EXPIRE_AFTER: Duration = Duration::from_secs(60);
const TICK: Duration = Duration::from_secs(20);

const OPTIONS: FamiliesOptions = FamiliesOptions {
    name: "edges",
    prefix: "shop_",
    labels: &["from"],
    max_series: 3,
    expire_after: Some(EXPIRE_AFTER),
    reported: Reported::Everywhere,
};

fn families(max_series: usize) -> (Arc<Registry>, Families<edge::Stats>) {
    let registry = Registry::new();
    let families = registry.families(FamiliesOptions { max_series, ..OPTIONS });
    (registry, families)
}

/// What the page says of requests, and of the series themselves.
fn shown(registry: &Registry) -> Vec<String> {
    let page = registry.prometheus_text();
    let lines = page.lines().filter_map(|line| line.strip_prefix("shop_requests_total"));
    lines.map(str::to_owned).collect()
}

fn of_series(registry: &Registry, metric: &str) -> u64 {
    let name = format!("metric_series.edges.{metric}: ");
    let text = registry.text();
    text.lines().find_map(|line| line.strip_prefix(&name)).expect("reported").parse().expect("a number")
}

#[test]
fn beyond_the_limit_series_are_counted_together_and_it_is_said() {
    let (registry, families) = families(3);
    let handles = families.handles::<u32>();
    for number in 0..10 {
        for _ in 0..2 {
            let series = handles.get(&number, |labels| labels.push(&format!("client-{number}")));
            series.inc(edge::Counter::requests_total);
        }
    }
    let expected = ["client-0", "client-1", "client-2"].map(|from| format!("{{from=\"{from}\"}} 2"));
    assert_eq!(shown(&registry), [&expected[..], &["{from=\"other\"} 14".to_owned()]].concat());
    assert_eq!(["kept", "limit", "refused_total"].map(|metric| of_series(&registry, metric)), [3, 3, 14]);
    let page = registry.prometheus_text();
    assert!(page.contains("evenkeel_metric_series_refused_total{family=\"edges\"} 14\n"), "{page}");
    // A series of another worker is found, though there is no place for a new one.
    let other = families.handles::<u32>();
    other.get(&7, |labels| labels.push("client-1")).inc(edge::Counter::requests_total);
    assert!(shown(&registry).contains(&"{from=\"client-1\"} 3".to_owned()));
}

#[test]
fn the_limit_holds_when_all_workers_come_at_once() {
    let (registry, families) = families(1_000);
    std::thread::scope(|scope| {
        for worker in 0..4 {
            let families = families.clone();
            scope.spawn(move || {
                let handles = families.handles::<u32>();
                for number in 0..2_000u32 {
                    // Half of them are the same on all workers.
                    let name = if number % 2 == 0 { format!("{number}") } else { format!("{worker}-{number}") };
                    handles.get(&number, |labels| labels.push(&name)).inc(edge::Counter::requests_total);
                }
            });
        }
    });
    let shown = shown(&registry);
    assert_eq!(shown.len(), 1_001);
    let sum: u64 = shown.iter().map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum();
    assert_eq!(sum, 8_000, "nothing is lost");
    assert_eq!(of_series(&registry, "kept"), 1_000);
}

#[test]
fn a_series_nobody_touches_goes_and_makes_room() {
    let (registry, families) = families(3);
    let handles = families.handles::<&str>();
    let touch = |from: &'static str| {
        handles.get(&from, |labels| labels.push(from)).inc(edge::Counter::requests_total);
    };
    let mut now = Instant::now();
    ["quiet", "busy", "open"].into_iter().for_each(touch);
    handles.get(&"open", |_| unreachable!("it is known")).shift(edge::Gauge::requests_active, 1);
    for _ in 0..4 {
        touch("busy");
        registry.expire(now);
        now += TICK;
    }
    assert_eq!(shown(&registry), ["{from=\"busy\"} 5", "{from=\"open\"} 1"]);
    assert_eq!(of_series(&registry, "expired_total"), 1);
    // The worker still has its handle, until it looks for something.
    registry.expire(now);
    assert_eq!(of_series(&registry, "kept"), 3);
    touch("busy");
    registry.expire(now);
    assert_eq!(of_series(&registry, "kept"), 2);
    touch("new");
    touch("quiet");
    assert_eq!(of_series(&registry, "refused_total"), 1);
    handles.get(&"open", |_| unreachable!()).shift(edge::Gauge::requests_active, -1);
    for _ in 0..5 {
        registry.expire(now);
        now += TICK;
    }
    assert_eq!(shown(&registry), Vec::<String>::new());
}

#[test]
fn what_is_counted_with_a_handle_that_was_kept_is_not_lost() {
    let (registry, families) = families(3);
    let held = families.series(&["a"]).unwrap();
    held.inc(edge::Counter::requests_total);
    let now = Instant::now();
    registry.expire(now);
    registry.expire(now + EXPIRE_AFTER);
    registry.expire(now + 2 * EXPIRE_AFTER);
    assert_eq!(shown(&registry), Vec::<String>::new());
    held.inc(edge::Counter::requests_total);
    assert_eq!(shown(&registry), ["{from=\"a\"} 2"]);
    // Another worker that comes meanwhile finds the same series.
    families.series(&["a"]).unwrap().inc(edge::Counter::requests_total);
    registry.expire(now + 3 * EXPIRE_AFTER);
    assert_eq!(shown(&registry), ["{from=\"a\"} 3"]);
    assert_eq!(of_series(&registry, "expired_total"), 1);
    drop(held);
    registry.expire(now + 4 * EXPIRE_AFTER);
    assert_eq!((shown(&registry), of_series(&registry, "kept")), (Vec::new(), 0));
    families.series(&["a"]).unwrap().inc(edge::Counter::requests_total);
    assert_eq!(shown(&registry), ["{from=\"a\"} 1"]);
}

#[test]
fn nothing_is_lost_while_series_expire_under_those_who_count() {
    let registry = Registry::new();
    let families = registry.families::<edge::Stats>(FamiliesOptions {
        expire_after: Some(Duration::ZERO),
        max_series: 8,
        ..OPTIONS
    });
    let done = AtomicBool::new(false);
    // Each holds its series while it counts; they come and go, and between two turns they may have ended.
    let counted = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Relaxed) {
                registry.expire(Instant::now());
                registry.prometheus_text();
            }
        });
        let workers = [0, 1, 2].map(|_| {
            let families = families.clone();
            scope.spawn(move || {
                let held = families.series(&["all"]).unwrap();
                for number in 0..20_000u32 {
                    held.inc(edge::Counter::requests_total);
                    let other = families.series(&[["x", "y"][number as usize % 2]]).unwrap();
                    other.inc(edge::Counter::requests_total);
                }
                held
            })
        });
        let held = workers.map(|worker| worker.join().unwrap());
        done.store(true, Relaxed);
        held[0].scope().counter(edge::Counter::requests_total)
    });
    assert_eq!(counted, 60_000);
    registry.expire(Instant::now());
    registry.expire(Instant::now() + TICK);
    registry.expire(Instant::now() + 2 * TICK);
    assert_eq!(of_series(&registry, "kept"), 0);
}

#[test]
fn families_of_a_name_are_the_same_for_all_who_ask_and_go_with_the_last() {
    let (registry, families) = families(3);
    let again = registry.families::<edge::Stats>(OPTIONS);
    families.series(&["a"]).unwrap().inc(edge::Counter::requests_total);
    again.shared(&["a"]).inc(edge::Counter::requests_total);
    again.shared(&["a"]).record(edge::Histogram::request_ms, 12.5, 2);
    assert_eq!(shown(&registry), ["{from=\"a\"} 2"]);
    assert!(registry.prometheus_text().contains("shop_request_ms_sum{from=\"a\"} 25\n"));
    assert!(registry.text().contains("shop_requests_total{from=\"a\"}: 2\n"), "{}", registry.text());
    drop(families);
    assert_eq!(shown(&registry).len(), 1);
    drop(again);
    assert_eq!(registry.prometheus_text(), "");
}

/// This process' resident memory in bytes.
fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    pages.split(' ').nth(1).expect("resident pages").parse::<u64>().expect("a number") * 4096
}

#[test]
fn a_million_label_values_take_no_more_memory_than_the_limit() {
    const LABELS: &[&str] = &[
        "l1", "l2", "l3", "l4", "l5", "l6", "l7", "l8", "l9", "l10", "l11", "l12", "l13", "l14", "l15", "l16", "l17",
        "l18", "l19", "l20", "l21", "l22", "l23", "l24", "l25",
    ];
    const LIMIT: u64 = 10_000;
    let registry = Registry::new();
    let options = FamiliesOptions { labels: LABELS, max_series: LIMIT as usize, ..OPTIONS };
    let handles = registry.families::<edge::Stats>(options).handles::<u64>();
    let count = |number: u64| {
        let from = format!("client-{number}");
        let series = handles.get(&number, |labels| LABELS.iter().for_each(|_| labels.push(&from)));
        series.inc(edge::Counter::requests_total);
    };
    (0..2 * LIMIT).for_each(count);
    let before = resident();
    (2 * LIMIT..1_000_000).for_each(count);
    let grown = resident().saturating_sub(before);
    assert!(grown < 32 << 20, "{grown} bytes more");
    let (mut series, mut sum, mut other) = (0, 0, 0);
    registry.families::<edge::Stats>(options).for_each(|labels, scope| {
        let count = scope.counter(edge::Counter::requests_total);
        series += 1;
        sum += count;
        other += if labels.iter().all(|(_, value)| value == "other") { count } else { 0 };
    });
    assert_eq!((series, sum, other), (LIMIT + 1, 1_000_000, 1_000_000 - LIMIT));
}

#[test]
fn series_have_names_below_those_of_their_scope() {
    let registry = Registry::new();
    let check = |labels: &'static [&'static str], values: &[&str], expected: [&str; 2]| {
        let options = FamiliesOptions { prefix: "grpc-web.", labels, max_series: 1, ..OPTIONS };
        let outer = ScopeName::tagged("cluster", "name", "c");
        let families = registry.families_below::<edge::Stats>(&outer, options);
        let again = registry.families_below::<edge::Stats>(&outer, options);
        let other = registry.families_below::<edge::Stats>(&ScopeName::tagged("cluster", "name", "d"), options);
        families.series(values).expect("room").inc(edge::Counter::requests_total);
        again.series(values).expect("it is known").inc(edge::Counter::requests_total);
        other.series(values).expect("its own limit").inc(edge::Counter::requests_total);
        assert!(families.series(&["one too many"]).is_none());
        families.other().inc(edge::Counter::requests_total);
        let (text, page) = (registry.text(), registry.prometheus_text());
        let lines = text.lines().chain(page.lines());
        let lines: Vec<&str> = lines.filter(|line| line.contains("requests_total") && !line.contains('#')).collect();
        expected.iter().for_each(|line| assert!(lines.contains(line), "{line} is not in {lines:#?}"));
        assert_eq!(lines.len(), 6, "{lines:#?}");
    };
    check(
        &["service", "method"],
        &["a.B", "Say"],
        [
            "cluster.c.grpc-web.a.B.Say.requests_total: 2",
            "envoy_cluster_grpc_web_requests_total{name=\"c\",service=\"a.B\",method=\"Say\"} 2",
        ],
    );
    check(
        &["service", "method"],
        &["a.B", "Say"],
        [
            "cluster.c.grpc-web.other.other.requests_total: 1",
            "envoy_cluster_grpc_web_requests_total{name=\"c\",service=\"other\",method=\"other\"} 1",
        ],
    );
    check(
        &[],
        &["my-own"],
        ["cluster.c.grpc-web.my-own.requests_total: 2", "envoy_cluster_grpc_web_my_own_requests_total{name=\"c\"} 2"],
    );
    check(&[], &[], ["cluster.c.grpc-web.requests_total: 2", "envoy_cluster_grpc_web_requests_total{name=\"c\"} 2"]);
    assert_eq!(registry.text(), "", "families go with their last owner");
}
