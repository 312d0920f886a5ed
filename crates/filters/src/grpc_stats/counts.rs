//! Statistics under Envoy's names: `cluster.NAME.grpc.SERVICE.METHOD.` (`grpc-web.` for calls of gRPC-Web), or `cluster.NAME.grpc.` for calls whose method is not named.

use std::cell::{OnceCell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::FastMap;
use evenkeel_stats::{Layout, Metric, Registry, ScopeName, Writer};

use crate::http::ClusterScope;

/// Methods that one worker counts separately, per cluster: clients choose their names. Calls of others are counted without a name.
const MAX_METHODS: usize = 1_000;
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

/// Counters by `SERVICE/METHOD`.
type Methods = RefCell<FastMap<Box<[u8]>, Rc<Writer<Stats>>>>;

/// One worker's statistics of the calls to one cluster. They live as long as the cluster.
#[derive(Debug)]
pub struct ClusterCalls {
    registry: Arc<Registry>,
    /// `cluster.NAME.`
    outer: ScopeName,
    /// `grpc` or `grpc-web`.
    protocol: &'static str,
    /// By `SERVICE/METHOD`: with the service's name unchanged, and with its dots replaced.
    methods: [Methods; 2],
    others: OnceCell<Rc<Writer<Stats>>>,
}

impl ClusterCalls {
    /// The statistics of a cluster.
    pub(super) fn new(cluster: &ClusterScope) -> Self {
        Self::of_protocol(cluster, "grpc")
    }

    fn of_protocol(cluster: &ClusterScope, protocol: &'static str) -> Self {
        let (registry, outer) = (Arc::clone(&cluster.registry), cluster.name.clone());
        Self { registry, outer, protocol, methods: Default::default(), others: OnceCell::new() }
    }

    /// Counters for calls whose method is not named.
    pub(super) fn others(&self) -> Rc<Writer<Stats>> {
        Rc::clone(self.others.get_or_init(|| self.writer("", Vec::new())))
    }

    /// Counters for a method, `SERVICE/METHOD`.
    pub(super) fn of(&self, method: &[u8], replace_dots: bool) -> Rc<Writer<Stats>> {
        let methods = &self.methods[usize::from(replace_dots)];
        if let Some(known) = methods.borrow().get(method) {
            return Rc::clone(known);
        }
        if self.methods.iter().map(|methods| methods.borrow().len()).sum::<usize>() >= MAX_METHODS {
            return self.others();
        }
        let name = String::from_utf8_lossy(method);
        let (service, name) = name.split_once('/').unwrap_or((&name, ""));
        let service = if replace_dots { service.replace('.', "_") } else { service.to_owned() };
        let dotted = format!("{service}.{name}.");
        let tags = vec![("envoy_grpc_bridge_service", service), ("envoy_grpc_bridge_method", name.to_owned())];
        let writer = self.writer(&dotted, tags);
        methods.borrow_mut().insert(method.into(), Rc::clone(&writer));
        writer
    }

    fn writer(&self, dotted: &str, tags: Vec<(&'static str, String)>) -> Rc<Writer<Stats>> {
        let protocol = self.protocol;
        let name = ScopeName {
            dotted: format!("{}{protocol}.{dotted}", self.outer.dotted),
            family: format!("{}{}_", self.outer.family, protocol.replace('-', "_")),
            tags: [self.outer.tags.clone(), tags].concat(),
        };
        Rc::new(self.registry.scope::<Stats>(name).writer())
    }
}

/// As [`ClusterCalls`], of the calls that were gRPC-Web: `cluster.NAME.grpc-web.SERVICE.METHOD.`
#[derive(Debug)]
pub(crate) struct WebCalls(ClusterCalls);

impl WebCalls {
    /// The statistics of a cluster.
    pub(crate) fn new(cluster: &ClusterScope) -> Self {
        Self(ClusterCalls::of_protocol(cluster, "grpc-web"))
    }

    /// Counters for a method, `SERVICE/METHOD`.
    pub(crate) fn of(&self, method: &[u8]) -> Rc<Writer<Stats>> {
        self.0.of(method, false)
    }
}
