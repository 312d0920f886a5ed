//! Statistics under Envoy's names: `cluster.NAME.grpc.SERVICE.METHOD.` (`grpc-web.` for calls of gRPC-Web), or `cluster.NAME.grpc.` for calls whose method is not named.

use std::cell::OnceCell;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_stats::{Families, FamiliesOptions, Layout, Metric, Reported, Scope, ScopeName, SeriesHandles, Writer};

use crate::http::ClusterScope;

/// Methods, whose names clients choose. A thousand are counted separately, per cluster.
const METHODS: FamiliesOptions = FamiliesOptions {
    name: "grpc",
    prefix: "grpc.",
    labels: &["envoy_grpc_bridge_service", "envoy_grpc_bridge_method"],
    max_series: 1_000,
    expire_after: Some(Duration::from_secs(3600)),
    reported: Reported::Everywhere,
};
/// Those of gRPC-Web.
const WEB_METHODS: FamiliesOptions = FamiliesOptions { name: "grpc-web", prefix: "grpc-web.", ..METHODS };
/// gRPC statuses, from 0 on, that have counters. Any other counts as a failure.
const STATUSES: usize = 17;

/// A counter.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub(crate) enum Counter {
    Success,
    Failure,
    Total,
    RequestMessages,
    ResponseMessages,
    /// Calls that ended with this status.
    Status(u8),
}

/// The counters: messages of requests and responses, and statuses of calls.
#[derive(Debug)]
pub(crate) struct Stats;

/// The only histogram.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UpstreamTime;

/// There are no gauges.
#[derive(Debug, Clone, Copy)]
pub(crate) enum NoGauge {}

impl From<Counter> for usize {
    fn from(counter: Counter) -> Self {
        match counter {
            Counter::Success => 0,
            Counter::Failure => 1,
            Counter::Total => 2,
            Counter::RequestMessages => 3,
            Counter::ResponseMessages => 4,
            Counter::Status(status) => 5 + usize::from(status).min(STATUSES - 1),
        }
    }
}

impl From<UpstreamTime> for usize {
    fn from(_: UpstreamTime) -> Self {
        0
    }
}

impl From<NoGauge> for usize {
    fn from(gauge: NoGauge) -> Self {
        match gauge {}
    }
}

impl Layout for Stats {
    type Counter = Counter;
    type Gauge = NoGauge;
    type Histogram = UpstreamTime;
    const COUNTERS: &'static [Metric] = &counters();
    const GAUGES: &'static [Metric] = &[];
    const HISTOGRAMS: &'static [Metric] = &[Metric::named("upstream_rq_time")];
    const STATUS_PREFIX: Option<&'static str> = None;
    const ONCE_COUNTED: bool = true;
}

#[rustfmt::skip]
const COUNTER_NAMES: [&str; 5 + STATUSES] = [
    "success", "failure", "total", "request_message_count", "response_message_count",
    "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "14", "15", "16",
];

const fn counters() -> [Metric; COUNTER_NAMES.len()] {
    let mut counters = [const { Metric::named("") }; COUNTER_NAMES.len()];
    let mut at = 0;
    while at < counters.len() {
        counters[at] = Metric::named(COUNTER_NAMES[at]);
        at += 1;
    }
    counters
}

/// Counts a call that ended with this status, compared as text: `00` is not `0`, and no success.
pub(crate) fn count_end(stats: &Writer<Stats>, status: &[u8]) {
    let known = match *status {
        [ones @ b'0'..=b'9'] => Some(ones - b'0'),
        [b'1', ones @ b'0'..=b'6'] => Some(10 + ones - b'0'),
        _ => None,
    };
    if let Some(status) = known {
        stats.inc(Counter::Status(status));
    }
    stats.inc(if known == Some(0) { Counter::Success } else { Counter::Failure });
    stats.inc(Counter::Total);
}

/// One worker's statistics of the calls to one cluster. They live as long as the cluster; a series ends after an hour without calls.
#[derive(Debug)]
pub struct ClusterCalls {
    /// By `SERVICE/METHOD`: with the service's name unchanged, and with its dots replaced.
    methods: [SeriesHandles<Vec<u8>, Stats>; 2],
    /// Of calls whose method is not named.
    unnamed: Scope<Stats>,
    unnamed_writer: OnceCell<Rc<Writer<Stats>>>,
}

impl ClusterCalls {
    /// The statistics of a cluster.
    pub(super) fn new(cluster: &ClusterScope) -> Self {
        Self::with(cluster, METHODS)
    }

    fn with(cluster: &ClusterScope, options: FamiliesOptions) -> Self {
        let families: Families<Stats> = cluster.registry.families_below(&cluster.name, options);
        let outer = &cluster.name;
        let unnamed = ScopeName {
            dotted: format!("{}{}", outer.dotted, options.prefix),
            family: format!("{}{}", outer.family, options.prefix.replace(['-', '.'], "_")),
            tags: outer.tags.clone(),
        };
        Self {
            methods: [families.handles(), families.handles()],
            unnamed: cluster.registry.scope(unnamed),
            unnamed_writer: OnceCell::new(),
        }
    }

    /// Counters for calls whose method is not named.
    pub(super) fn unnamed(&self) -> Rc<Writer<Stats>> {
        Rc::clone(self.unnamed_writer.get_or_init(|| Rc::new(self.unnamed.writer())))
    }

    /// Counters for a method, `SERVICE/METHOD`.
    pub(super) fn of(&self, method: &[u8], replace_dots: bool) -> Rc<Writer<Stats>> {
        self.methods[usize::from(replace_dots)].get(method, |labels| {
            let name = String::from_utf8_lossy(method);
            let (service, name) = name.split_once('/').unwrap_or((&name, ""));
            if replace_dots {
                labels.push(&service.replace('.', "_"));
            } else {
                labels.push(service);
            }
            labels.push(name);
        })
    }
}

/// As [`ClusterCalls`], of the calls that were gRPC-Web: `cluster.NAME.grpc-web.SERVICE.METHOD.`
#[derive(Debug)]
pub(crate) struct WebCalls(ClusterCalls);

impl WebCalls {
    /// The statistics of a cluster.
    pub(crate) fn new(cluster: &ClusterScope) -> Self {
        Self(ClusterCalls::with(cluster, WEB_METHODS))
    }

    /// Counters for a method, `SERVICE/METHOD`.
    pub(crate) fn of(&self, method: &[u8]) -> Rc<Writer<Stats>> {
        self.0.of(method, false)
    }
}
