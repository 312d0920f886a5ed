//! Sends spans to a collector, in batches and in the background. Spans that a collector does not take in time are dropped and
//! counted; nothing waits for it.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use evenkeel_http::{HeaderId, Headers, RequestHead};
use evenkeel_runtime_config::tracing::{Exporter, OpenTelemetry, OwnNode, Provider, Zipkin};
use evenkeel_stats::{Registry, ScopeName, Writer, layout};

use super::span::Span;
use super::{otlp, zipkin};
use crate::callouts::grpc::{self, GrpcMethod};
use crate::callouts::{CallOptions, CalloutError, Callouts, HttpAnswer, HttpCall, MAX_ANSWER_BYTES, Problem, Purpose};
use crate::http::{Services, Wait};

/// Spans after which a batch is sent. Envoy's default of `tracing.zipkin.min_flush_spans`.
const MIN_FLUSH_SPANS: usize = 5;
/// Time after which fewer are sent. Envoy's default of `tracing.zipkin.flush_interval_ms`.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);
/// Maximum number of concurrent reports to one collector. Beyond that, spans wait.
const MAX_REPORTS: usize = 16;
/// Spans that wait; further ones are dropped.
const MAX_PENDING_SPANS: usize = 1024;
/// Bytes of spans that wait or are under way to one collector; further spans are dropped.
const MAX_HELD_BYTES: usize = 4 * 1024 * 1024;

const EXPORT: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

layout! {
    /// `tracing.zipkin.`
    pub mod zipkin_stats {
        counters { spans_sent, timer_flushed, reports_sent, reports_dropped, reports_failed, reports_skipped_no_cluster, spans_dropped }
        gauges {}
        histograms {}
        statuses None
    }
}

layout! {
    /// `tracing.opentelemetry.`
    pub mod opentelemetry_stats {
        counters { spans_sent, timer_flushed, spans_dropped }
        gauges {}
        histograms {}
        statuses None
    }
}

use opentelemetry_stats::Counter as OfOtlp;
use zipkin_stats::Counter as OfZipkin;

/// One worker's connection to one collector.
pub struct Reporter {
    provider: Arc<Provider>,
    node: Arc<OwnNode>,
    pending: RefCell<Vec<Span>>,
    next_flush: Cell<Instant>,
    shared: Rc<Shared>,
}

/// State shared by the reports in progress and their reporter.
struct Shared {
    /// Bytes of spans that wait or are under way.
    held: Cell<usize>,
    reports: Cell<usize>,
    counts: Counts,
}

enum Counts {
    Zipkin(Writer<zipkin_stats::Stats>),
    OpenTelemetry(Writer<opentelemetry_stats::Stats>),
}

impl Counts {
    fn sent(&self, spans: usize) {
        match self {
            Self::Zipkin(stats) => stats.add(OfZipkin::spans_sent, spans as u64),
            Self::OpenTelemetry(stats) => stats.add(OfOtlp::spans_sent, spans as u64),
        }
    }

    fn lost(&self, spans: usize) {
        match self {
            Self::Zipkin(stats) => stats.add(OfZipkin::spans_dropped, spans as u64),
            Self::OpenTelemetry(stats) => stats.add(OfOtlp::spans_dropped, spans as u64),
        }
    }

    fn timer(&self) {
        match self {
            Self::Zipkin(stats) => stats.inc(OfZipkin::timer_flushed),
            Self::OpenTelemetry(stats) => stats.inc(OfOtlp::timer_flushed),
        }
    }

    /// Counts a report to Zipkin; false: the spans are lost. As in Envoy, a reply that the router would have made counts
    /// as one of the collector.
    fn answered(&self, answer: &Result<HttpAnswer, CalloutError>) -> bool {
        let Self::Zipkin(stats) = self else {
            return answer.as_ref().is_ok_and(|answer| answer.head.status / 100 == 2);
        };
        let taken = answer.as_ref().is_ok_and(|answer| answer.head.status == 202);
        stats.inc(match answer {
            Ok(_) if taken => OfZipkin::reports_sent,
            Ok(_) => OfZipkin::reports_dropped,
            Err(error) => match error.problem {
                Problem::UnknownCluster => OfZipkin::reports_skipped_no_cluster,
                Problem::Reset | Problem::TooLarge | Problem::Stopped => OfZipkin::reports_failed,
                _ => OfZipkin::reports_dropped,
            },
        });
        taken
    }
}

/// A report under way: holds its place and its bytes until it ends, however it ends.
struct Report {
    shared: Rc<Shared>,
    bytes: usize,
    spans: usize,
    taken: bool,
}

impl Report {
    /// Ends it: whether the collector has taken the spans.
    fn end(mut self, taken: bool) {
        self.taken = taken;
    }

    fn answered(self, answer: &Result<HttpAnswer, CalloutError>) {
        let taken = self.shared.counts.answered(answer);
        self.end(taken);
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let shared = &self.shared;
        shared.reports.set(shared.reports.get().saturating_sub(1));
        shared.held.set(shared.held.get().saturating_sub(self.bytes));
        if !self.taken {
            shared.counts.lost(self.spans);
        }
    }
}

impl Reporter {
    /// A reporter without spans.
    pub fn new(provider: Arc<Provider>, node: Arc<OwnNode>, registry: &Registry, now: Instant) -> Self {
        let counts = match &*provider {
            Provider::Zipkin(_) => Counts::Zipkin(registry.scope(ScopeName::plain("tracing.zipkin.")).writer()),
            Provider::OpenTelemetry(_) => {
                Counts::OpenTelemetry(registry.scope(ScopeName::plain("tracing.opentelemetry.")).writer())
            }
        };
        Self {
            provider,
            node,
            pending: RefCell::default(),
            next_flush: Cell::new(now + FLUSH_INTERVAL),
            shared: Rc::new(Shared { held: Cell::new(0), reports: Cell::new(0), counts }),
        }
    }

    /// Returns the provider that the spans are sent to.
    pub fn provider(&self) -> &Provider {
        &self.provider
    }

    /// Whether no span waits to be sent.
    pub fn is_idle(&self) -> bool {
        self.pending.borrow().is_empty()
    }

    /// Takes a span, and sends a batch if there are enough.
    pub(super) fn report(&self, span: Span, services: &dyn Services) {
        let bytes = span.bytes();
        let held = self.shared.held.get() + bytes;
        let enough = {
            let mut pending = self.pending.borrow_mut();
            if held > MAX_HELD_BYTES || pending.len() >= MAX_PENDING_SPANS {
                return self.shared.counts.lost(1);
            }
            self.shared.held.set(held);
            pending.push(span);
            pending.len() >= MIN_FLUSH_SPANS
        };
        if enough {
            self.run_flush(services);
        }
    }

    /// Sends what has waited long enough. Called once a second or so.
    pub fn tick(&self, now: Instant, services: &dyn Services) {
        if now < self.next_flush.get() {
            return;
        }
        self.next_flush.set(now + FLUSH_INTERVAL);
        self.shared.counts.timer();
        self.run_flush(services);
    }

    /// Sends the waiting spans in the background, where that is possible.
    pub fn run_flush(&self, services: &dyn Services) {
        if let Some(tasks) = services.tasks()
            && let Some(report) = self.flush(services.callouts())
        {
            tasks.run(report);
        }
    }

    /// Sends the waiting spans. `None`: there are none, or they have to wait for other reports. The report ends with its
    /// wait.
    pub fn flush(&self, callouts: &dyn Callouts) -> Option<Wait> {
        if self.pending.borrow().is_empty() || self.shared.reports.get() >= MAX_REPORTS {
            return None;
        }
        let spans = std::mem::take(&mut *self.pending.borrow_mut());
        let shared = Rc::clone(&self.shared);
        shared.counts.sent(spans.len());
        shared.reports.set(shared.reports.get() + 1);
        let bytes = spans.iter().map(Span::bytes).sum();
        let report = Report { shared, bytes, spans: spans.len(), taken: false };
        Some(match &*self.provider {
            Provider::Zipkin(config) => {
                let call = callouts.http(to_zipkin(config, zipkin::encode(&spans, config, &self.node)));
                Box::pin(async move { report.answered(&call.await) })
            }
            Provider::OpenTelemetry(config) => {
                let message = otlp::encode(&spans, config);
                match &config.exporter {
                    Exporter::Grpc { .. } => {
                        let call = grpc::call(callouts, &method(config), &message);
                        Box::pin(async move { report.end(call.await.is_ok()) })
                    }
                    Exporter::Http { host, path } => {
                        let call = callouts.http(post(config, host, path, message));
                        Box::pin(async move { report.answered(&call.await) })
                    }
                }
            }
        })
    }
}

fn to_zipkin(config: &Zipkin, body: Vec<u8>) -> HttpCall {
    let mut head = RequestHead::default();
    head.set_method(b"POST");
    head.set_path(config.path.as_bytes());
    head.set_authority(config.host.as_bytes());
    head.headers.append_id(HeaderId::ContentType, b"application/json");
    config.headers.iter().for_each(|(name, value)| head.headers.set_name(name.as_bytes(), value.as_bytes()));
    let options = CallOptions { timeout: Some(config.timeout), purpose: Purpose::Telemetry, ..CallOptions::default() };
    HttpCall { cluster: Arc::clone(&config.cluster), head, body, options }
}

fn post(config: &OpenTelemetry, host: &str, path: &str, body: Vec<u8>) -> HttpCall {
    let mut head = RequestHead::default();
    head.set_method(b"POST");
    head.set_path(path.as_bytes());
    head.set_authority(host.as_bytes());
    head.headers.append_id(HeaderId::ContentType, b"application/x-protobuf");
    config.headers.iter().for_each(|(name, value)| head.headers.set_name(name.as_bytes(), value.as_bytes()));
    let options = CallOptions { timeout: Some(config.timeout), purpose: Purpose::Telemetry, ..CallOptions::default() };
    HttpCall { cluster: Arc::clone(&config.cluster), head, body, options }
}

fn method(config: &OpenTelemetry) -> GrpcMethod {
    let mut metadata = Headers::default();
    config.headers.iter().for_each(|(name, value)| metadata.append(name.as_bytes(), value.as_bytes()));
    let Exporter::Grpc { authority, max_message_bytes, skip_envoy_headers } = &config.exporter else {
        return GrpcMethod::default();
    };
    let options = CallOptions {
        timeout: Some(config.timeout),
        envoy_headers: !skip_envoy_headers,
        max_answer_bytes: max_message_bytes.unwrap_or(MAX_ANSWER_BYTES),
        purpose: Purpose::Telemetry,
        ..CallOptions::default()
    };
    let cluster = Arc::clone(&config.cluster);
    GrpcMethod { cluster, path: EXPORT.into(), authority: Arc::clone(authority), metadata, options }
}
