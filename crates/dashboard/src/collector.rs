//! What the dashboard remembers: the traffic of every edge and workload, from the differences between readings of the proxies' pages.

use std::collections::{BTreeMap, HashMap};

use evenkeel_admin::dashboard::Note;

use crate::node::{EdgeKey, Inventory, NodeKey};
use crate::security::{EdgesReport, Secured};
use crate::series::{Series, Tick, Ticks, Totals};
use crate::source::ReplicaKey;
use crate::traffic::{Counted, Report};

/// Maximum number of edges; a series takes up to 32 KiB.
const MAX_EDGES: usize = 2000;
/// Maximum number of workloads whose traffic is kept.
const MAX_WORKLOADS: usize = 2000;
/// A pause between readings for longer than this, in seconds, ends the rates: they begin anew.
const MAX_PAUSE_S: f64 = 5.0;

/// What one proxy has answered.
#[derive(Debug)]
pub(crate) struct Reading {
    pub(crate) replica: ReplicaKey,
    /// Its metrics and its edges, or why there are none.
    pub(crate) pages: Result<Pages, String>,
}

/// The pages of one proxy.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pages {
    pub(crate) traffic: Report,
    pub(crate) edges: EdgesReport,
}

/// An edge's memory.
#[derive(Debug, Clone, Default)]
pub(crate) struct EdgeMemory {
    pub(crate) series: Series,
    /// The last failure.
    pub(crate) last_error: String,
}

/// The memory.
#[derive(Debug, Default)]
pub(crate) struct Collector {
    /// When proxies were read.
    pub(crate) ticks: Ticks,
    /// The replicas at the last reading.
    pub(crate) inventory: Inventory,
    /// The edges.
    pub(crate) edges: BTreeMap<EdgeKey, EdgeMemory>,
    /// What workloads received.
    pub(crate) inbound: HashMap<NodeKey, Series>,
    /// How edges are secured, by the last answer of each proxy.
    pub(crate) secured: Vec<Secured>,
    /// Why something is unknown.
    pub(crate) notes: Vec<Note>,
    /// Proxies that answered the last time.
    pub(crate) answered: usize,
    /// Edges beyond the limit, in the last reading.
    pub(crate) left_out: u64,
    /// When the last reading was, in milliseconds since 1970.
    pub(crate) sampled_ms: u64,
    previous: HashMap<ReplicaKey, Pages>,
}

impl Collector {
    /// Adds a reading of all proxies at a time since 1970.
    pub(crate) fn add(&mut self, inventory: Inventory, readings: Vec<Reading>, now_ms: u64) {
        let pause = now_ms.saturating_sub(self.sampled_ms) as f64 / 1e3;
        let continues = self.sampled_ms > 0 && pause <= MAX_PAUSE_S;
        let tick = Tick { second: now_ms / 1000, elapsed: if continues { pause } else { 0.0 } };
        self.sampled_ms = now_ms;
        self.begin_tick(tick);
        self.inventory = inventory;
        self.secured.clear();
        self.notes.clear();
        (self.answered, self.left_out) = (0, 0);
        let mut previous = std::mem::take(&mut self.previous);
        for Reading { replica, pages } in readings {
            match pages {
                Ok(pages) => {
                    self.answered += 1;
                    self.secured.extend(pages.edges.secured.iter().cloned());
                    self.compare(tick, previous.remove(&replica), &pages);
                    self.previous.insert(replica, pages);
                }
                Err(message) => self.notes.push(Note { subject: replica.to_string(), message }),
            }
        }
    }

    /// Ends the coarse point that is over, and forgets what is older than the window.
    fn begin_tick(&mut self, tick: Tick) {
        let ended = self.ticks.add(tick);
        for series in self.edges.values_mut().map(|memory| &mut memory.series).chain(self.inbound.values_mut()) {
            if let Some(ended) = ended {
                series.end_coarse(ended.second, ended.elapsed);
            }
            series.expire(tick.second);
        }
    }

    /// Counts what one proxy has counted since its previous answer.
    fn compare(&mut self, tick: Tick, previous: Option<Pages>, pages: &Pages) {
        let is_first = previous.is_none();
        let previous = previous.unwrap_or_default();
        for (counted, now) in &pages.traffic.totals {
            let then = previous.traffic.totals.get(counted).cloned().unwrap_or_default();
            let difference = Difference { tick, is_first, now, since: now.since(&then) };
            match counted {
                Counted::Edge(edge) => {
                    let failures = pages.traffic.failures.get(counted);
                    let earlier = previous.traffic.failures.get(counted);
                    let last_error = failures.and_then(|failures| newest(failures, earlier));
                    self.count_edge(edge, &difference, last_error);
                }
                Counted::Inbound(node) => self.count_inbound(node, &difference),
            }
        }
        for (edge, now) in &pages.edges.unreported {
            let then = previous.edges.unreported.get(edge).cloned().unwrap_or_default();
            self.count_edge(edge, &Difference { tick, is_first, now, since: now.since(&then) }, None);
        }
    }

    fn count_edge(&mut self, edge: &EdgeKey, difference: &Difference<'_>, last_error: Option<&str>) {
        if difference.now.is_empty() {
            return;
        }
        if !self.edges.contains_key(edge) && self.edges.len() >= MAX_EDGES {
            self.left_out += 1;
            return;
        }
        let memory = self.edges.entry(edge.clone()).or_default();
        difference.add_to(&mut memory.series);
        if let Some(error) = last_error {
            error.clone_into(&mut memory.last_error);
        }
    }

    fn count_inbound(&mut self, node: &NodeKey, difference: &Difference<'_>) {
        if self.inbound.contains_key(node) || self.inbound.len() < MAX_WORKLOADS {
            difference.add_to(self.inbound.entry(node.clone()).or_default());
        }
    }
}

/// What a proxy has counted since its previous answer.
struct Difference<'p> {
    tick: Tick,
    /// There is no previous answer, so that nobody knows when it was counted.
    is_first: bool,
    now: &'p Totals,
    since: Totals,
}

impl Difference<'_> {
    fn add_to(&self, series: &mut Series) {
        series.totals.add(&self.since);
        if !self.is_first && self.tick.elapsed > 0.0 && !self.since.is_empty() {
            series.add(self.tick, &self.since);
        }
    }
}

/// The most frequent of the failures that are new.
fn newest<'f>(failures: &'f BTreeMap<String, u64>, earlier: Option<&BTreeMap<String, u64>>) -> Option<&'f str> {
    let before = |kind: &str| earlier.and_then(|earlier| earlier.get(kind)).copied().unwrap_or_default();
    let new = failures.iter().map(|(kind, count)| (count.saturating_sub(before(kind)), kind.as_str()));
    new.filter(|(count, _)| *count > 0).max().map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::traffic;

    fn reading(requests: u64, failed: u64) -> Vec<Reading> {
        let own = NodeKey::Workload { namespace: "shop".into(), name: "web".into() };
        let labels = "reporter=\"source\",destination_workload=\"api\",destination_workload_namespace=\"shop\"";
        let page = format!(
            "istio_requests_total{{{labels},response_code=\"200\"}} {requests}\n\
             istio_requests_total{{{labels},response_code=\"503\",response_flags=\"UH\"}} {failed}\n"
        );
        let pages = Pages { traffic: traffic::report(&page, &own, false), ..Pages::default() };
        let replica = ReplicaKey { namespace: "shop".into(), pod: "web-0".into() };
        vec![Reading { replica, pages: Ok(pages) }]
    }

    #[test]
    fn rates_are_differences_between_readings() {
        let mut collector = Collector::default();
        let mut read = |requests: u64, failed: u64, now_ms: u64| {
            collector.add(Inventory::default(), reading(requests, failed), now_ms);
            let window = collector.ticks.window();
            let memory = collector.edges.values().next().expect("an edge");
            let rates = memory.series.rates(window);
            (rates.requests, rates.error_share, memory.last_error.clone())
        };
        // Nobody knows over which time these were sent.
        assert_eq!(read(100, 0, 1_000_000), (0.0, 0.0, String::new()));
        assert_eq!(read(108, 0, 1_001_000), (8.0, 0.0, String::new()));
        assert_eq!(read(110, 2, 1_002_000), (6.0, 2.0 / 12.0, "503 UH".to_owned()));
        // The proxy was restarted.
        assert_eq!(read(1, 0, 1_003_000).0, 4.0);
        // Nobody looked for a while.
        assert_eq!(read(900, 0, 1_090_000).0, 0.0);
        assert_eq!(read(907, 0, 1_091_000).0, 7.0);
    }

    #[test]
    fn the_number_of_edges_is_bounded() {
        let mut collector = Collector::default();
        let own = NodeKey::Outside;
        let page: String = (0..MAX_EDGES + 5)
            .map(|n| format!("istio_requests_total{{reporter=\"source\",destination_workload=\"w{n}\",response_code=\"200\"}} 1\n"))
            .collect();
        let pages = Pages { traffic: traffic::report(&page, &own, false), ..Pages::default() };
        let replica = ReplicaKey { namespace: "a".into(), pod: "b".into() };
        collector.add(Inventory::default(), vec![Reading { replica, pages: Ok(pages) }], 1000);
        assert_eq!((collector.edges.len(), collector.left_out), (MAX_EDGES, 5));
    }
}
