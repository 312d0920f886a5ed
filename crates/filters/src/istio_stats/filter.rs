//! The filters: what they count, and when.

use std::sync::Arc;

use evenkeel_runtime_config::istio_stats::{IstioStats, Metrics};
use evenkeel_stats::Writer;

use super::facts::Facts;
use super::series::{SeriesOf, connections, requests};
use crate::format::Record;
use crate::http::{Filter, Hooks, Setup};
use crate::info::{EXEMPLAR, StateObject};
use crate::network;
use crate::verdict::FilterVerdict;

/// The object with the numbers of a gRPC call's messages, which the filter `grpc_stats` leaves.
const MESSAGES: &str = "envoy.filters.http.grpc_stats";

/// `istio.stats` of requests.
#[derive(Debug)]
pub struct HttpFilter {
    series: SeriesOf<requests::Stats>,
}

impl Filter for HttpFilter {
    type Config = IstioStats;
    type State = ();
    const HOOKS: Hooks = Hooks::COMPLETE;

    fn verdict(_: &IstioStats) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<IstioStats>, setup: &Setup<'_>) -> Self {
        Self { series: SeriesOf::requests(config, setup.registry) }
    }

    fn complete(&self, (): &mut (), end: &Record<'_>) {
        let facts = Facts::of_request(end, self.series.config());
        let is_grpc = facts.is_grpc();
        self.series.count(&facts, end, |metrics, series| {
            count_request(end, metrics, series);
            if is_grpc {
                count_messages(end, metrics, series);
            }
        });
    }
}

fn count_request(end: &Record<'_>, metrics: Metrics, series: &Writer<requests::Stats>) {
    use requests::{Counter, Histogram};
    if metrics.has(Metrics::REQUESTS_TOTAL) {
        series.inc(Counter::requests_total);
    }
    if metrics.has(Metrics::REQUEST_DURATION) {
        let millis = u64::try_from(end.duration().as_millis()).unwrap_or(u64::MAX);
        let exemplar = end.stream.object(EXEMPLAR).and_then(StateObject::exemplar);
        series.record_with(Histogram::request_duration_milliseconds, millis, exemplar);
    }
    if metrics.has(Metrics::REQUEST_BYTES) {
        series.record(Histogram::request_bytes, end.request.bytes() + end.stream.bytes_received);
    }
    if metrics.has(Metrics::RESPONSE_BYTES) {
        series.record(Histogram::response_bytes, end.response.bytes() + end.stream.bytes_sent);
    }
}

fn count_messages(end: &Record<'_>, metrics: Metrics, series: &Writer<requests::Stats>) {
    use requests::Counter;
    let Some(counts) = end.stream.object(MESSAGES).and_then(|call| call.messages()) else { return };
    for (metric, counter, count) in [
        (Metrics::REQUEST_MESSAGES, Counter::request_messages_total, counts.request),
        (Metrics::RESPONSE_MESSAGES, Counter::response_messages_total, counts.response),
    ] {
        if metrics.has(metric) {
            series.add(counter, count);
        }
    }
}

/// `istio.stats` of connections.
#[derive(Debug)]
pub struct NetworkFilter {
    series: SeriesOf<connections::Stats>,
}

impl network::Filter for NetworkFilter {
    type Config = IstioStats;
    type State = ();
    const IMMEDIATE: bool = true;

    fn verdict(_: &IstioStats) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(config: Arc<IstioStats>, setup: &network::Setup<'_>) -> Self {
        Self { series: SeriesOf::connections(config, setup.registry) }
    }

    fn hooks(&self) -> network::Hooks {
        network::Hooks::REPORT
    }

    fn report_interval(&self) -> Option<std::time::Duration> {
        Some(self.series.config().tcp_interval)
    }

    fn report(&self, record: &Record<'_>, since: &network::Since) {
        use connections::Counter;
        let facts = Facts::of_connection(record);
        let counts = [
            (Metrics::TCP_OPENED, Counter::tcp_connections_opened_total, u64::from(since.opened)),
            (Metrics::TCP_CLOSED, Counter::tcp_connections_closed_total, u64::from(since.closed)),
            (Metrics::TCP_SENT, Counter::tcp_sent_bytes_total, since.sent),
            (Metrics::TCP_RECEIVED, Counter::tcp_received_bytes_total, since.received),
        ];
        self.series.count(&facts, record, |metrics, series| {
            for (metric, counter, value) in counts {
                if metrics.has(metric) {
                    series.add(counter, value);
                }
            }
        });
    }
}
