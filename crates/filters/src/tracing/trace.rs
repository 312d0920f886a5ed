//! The trace of one request, from the choice of its route to its end.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evenkeel_http::{HeaderId, Headers, RequestHead};
use evenkeel_runtime_config::route::Route;
use evenkeel_runtime_config::tracing::{Provider, Tracing};
use evenkeel_stats::{Exemplar, Registry, ScopeName, Writer, layout};

use super::context::{Malformed, SpanContext};
use super::reporter::Reporter;
use super::sampling::{self, Reason};
use super::span::Span;
use super::tags::Facts;
use super::try_end::TryEnd;
use super::{otlp, w3c, zipkin};
use crate::format::{Record, TraceIds};
use crate::http::Services;
use crate::info::ResponseFlags;

layout! {
    /// `http.PREFIX.tracing.`
    pub mod stats {
        counters { random_sampling, service_forced, client_enabled, not_traceable, health_check }
        gauges {}
        histograms {}
        statuses None
    }
}

use stats::Counter;

/// One worker's side of a connection manager that traces.
pub struct Tracer {
    config: Arc<Tracing>,
    /// `pack_trace_reason`.
    pack: bool,
    /// The reporter of its spans.
    reporter: Option<Rc<Reporter>>,
    stats: Writer<stats::Stats>,
}

impl Tracer {
    /// `outer`: the connection manager's statistics scope. `reporter`: that of the configured provider.
    pub fn new(
        (config, pack): (Arc<Tracing>, bool),
        reporter: Option<Rc<Reporter>>,
        registry: &Registry,
        outer: &ScopeName,
    ) -> Self {
        let name = ScopeName {
            dotted: format!("{}tracing.", outer.dotted),
            family: format!("{}tracing_", outer.family),
            tags: outer.tags.clone(),
        };
        Self { config, pack, reporter, stats: registry.scope(name).writer() }
    }

    /// Begins the trace of a request whose route is chosen: decides whether it is traced, and notes that in its head.
    /// `egress`: the listener's direction is outbound.
    pub fn begin(
        self: &Rc<Self>,
        head: &mut RequestHead,
        route: Option<&Arc<Route>>,
        (egress, start): (bool, SystemTime),
        random: impl Fn() -> u64,
    ) -> Box<Trace> {
        let of_route = route.and_then(|route| route.tracing.as_deref());
        let sampling = of_route.and_then(|tracing| tracing.sampling.as_ref());
        let reason = sampling::decide(&mut head.headers, &self.config, (sampling, self.pack), &random);
        self.stats.inc(match reason {
            Reason::NotTraceable => Counter::not_traceable,
            Reason::Sampling => Counter::random_sampling,
            Reason::ServiceForced => Counter::service_forced,
            Reason::ClientForced => Counter::client_enabled,
        });
        let traced = reason != Reason::NotTraceable;
        let span = self.span(head, (egress, traced), start, &random).ok().flatten();
        let mut trace = Trace {
            tracer: Rc::clone(self),
            route: route.cloned(),
            egress,
            span,
            tells_operation: of_route.is_some_and(|tracing| tracing.propagates && !tracing.operation.is_empty()),
            cluster_stat_name: None,
            attempt: None,
        };
        trace.decorate(&mut head.headers);
        Box::new(trace)
    }

    fn provider(&self) -> Option<&Provider> {
        self.reporter.as_ref().map(|reporter| reporter.provider())
    }

    /// The span of a request; `None` without a provider.
    fn span(
        &self,
        head: &RequestHead,
        (egress, traced): (bool, bool),
        start: SystemTime,
        random: &impl Fn() -> u64,
    ) -> Result<Option<Span>, Malformed> {
        let host = String::from_utf8_lossy(head.authority());
        let how = (self.config.spawn_upstream_span, egress, traced);
        let ((context, kind), name) = match self.provider() {
            None => return Ok(None),
            Some(Provider::Zipkin(config)) => (zipkin::of_request(&head.headers, config, how, random)?, host.into()),
            Some(Provider::OpenTelemetry(_)) => {
                let name = if egress { format!("egress {host}") } else { "ingress".to_owned() };
                (otlp::of_request(&head.headers, how, random)?, name)
            }
        };
        let remote_parent = context.parent_id.is_some();
        Ok(Some(Span { remote_parent, ..Span::new(context, name, kind, start) }))
    }
}

/// The trace of one request.
pub struct Trace {
    tracer: Rc<Tracer>,
    route: Option<Arc<Route>>,
    egress: bool,
    /// `None`: there is no collector, or the caller's context is malformed. Then nothing is told to the upstream either.
    span: Option<Span>,
    /// The other side learns the operation's name.
    tells_operation: bool,
    cluster_stat_name: Option<Arc<str>>,
    attempt: Option<Attempt>,
}

/// A try with a separate span.
struct Attempt {
    span: Span,
    protocol: Option<&'static str>,
}

impl Trace {
    /// The operation that the route names.
    fn operation(&self) -> Option<&str> {
        let operation = &*self.route.as_ref()?.tracing.as_ref()?.operation;
        Some(operation).filter(|operation| !operation.is_empty())
    }

    /// Names the span after the operation: the route's, or the one that the caller passes to a server. A caller passes it on
    /// to the server.
    fn decorate(&mut self, headers: &mut Headers) {
        let own = self.operation().map(str::to_owned);
        if let Some(operation) = &own {
            self.rename(operation.as_bytes());
        }
        if self.egress {
            if let Some(operation) = own.filter(|_| self.tells_operation) {
                headers.set(HeaderId::EnvoyDecoratorOperation, operation.as_bytes());
            }
        } else if let Some(named) = headers.get(HeaderId::EnvoyDecoratorOperation) {
            if !named.is_empty() {
                self.rename(named);
                self.tells_operation = false;
            }
            headers.remove(HeaderId::EnvoyDecoratorOperation);
        }
    }

    fn rename(&mut self, name: &[u8]) {
        if let Some(span) = &mut self.span {
            span.name = String::from_utf8_lossy(name).into();
        }
    }

    /// The route was chosen again.
    pub fn routed(&mut self, route: Option<&Arc<Route>>) {
        self.route = route.cloned();
    }

    /// The request is sent to a cluster, which has this name in statistics.
    pub fn forwarded(&mut self, cluster_stat_name: &Arc<str>) {
        self.cluster_stat_name = Some(Arc::clone(cluster_stat_name));
    }

    /// Begins the span of a try. `number`: 1 for the first.
    pub fn begin_try(&mut self, number: u32, start: SystemTime, random: impl Fn() -> u64) {
        let config = &self.tracer.config;
        if !(config.spawn_upstream_span || config.start_child_span) || self.attempt.is_some() {
            return;
        }
        let (Some(request), Some(provider)) = (&self.span, self.tracer.provider()) else { return };
        let (context, kind) = match provider {
            Provider::Zipkin(zipkin) => {
                zipkin::of_try(&request.context, zipkin, (config.spawn_upstream_span, self.egress), random)
            }
            Provider::OpenTelemetry(_) => otlp::of_try(&request.context, random),
        };
        let name = format!("router {} egress", self.cluster_stat_name.as_deref().unwrap_or_default());
        let mut span = Span::new(context, name, kind, start);
        if number > 1 {
            span.tags.set("retry.count", (number - 1).to_string());
        }
        self.attempt = Some(Attempt { span, protocol: None });
    }

    /// The head is about to be sent over a connection of this protocol: writes the context into it.
    pub fn send(&mut self, head: &mut RequestHead, protocol: &'static str) {
        if let Some(attempt) = &mut self.attempt {
            attempt.protocol = Some(protocol);
        }
        let span = self.attempt.as_ref().map(|attempt| &attempt.span).or(self.span.as_ref());
        if let Some(span) = span {
            self.inject(&mut head.headers, &span.context);
        }
    }

    /// Writes the request's context into the head of its copy for another cluster. `traced`: the copy may be traced.
    pub fn copy(&self, head: &mut RequestHead, traced: bool) {
        if let Some(span) = &self.span {
            let context = SpanContext { sampled: span.context.sampled && traced, ..span.context.clone() };
            self.inject(&mut head.headers, &context);
        }
    }

    fn inject(&self, headers: &mut Headers, context: &SpanContext) {
        match self.tracer.provider() {
            Some(Provider::Zipkin(config)) => zipkin::inject(headers, config, context),
            Some(Provider::OpenTelemetry(_)) => w3c::inject(headers, context),
            None => {}
        }
    }

    /// A try has ended.
    pub fn end_try(&mut self, end: &TryEnd<'_>, record: &Record<'_>, services: &dyn Services, now: SystemTime) {
        let (Some(Attempt { mut span, protocol }), Some(reporter)) = (self.attempt.take(), &self.tracer.reporter)
        else {
            return;
        };
        if span.context.sampled {
            span.duration = since(span.start, now);
            self.facts(record).of_try(&mut span.tags, end, protocol);
            reporter.report(span, services);
        }
    }

    /// The upstream has answered: a caller takes the operation's name from it.
    pub fn answered(&mut self, headers: &Headers) {
        if self.egress
            && let Some(named) = headers.get(HeaderId::EnvoyDecoratorOperation)
            && !named.is_empty()
        {
            self.rename(named);
        }
    }

    /// The response is about to be sent: a server tells its client the operation's name.
    pub fn respond(&self, headers: &mut Headers) {
        if !self.egress
            && let Some(operation) = self.operation().filter(|_| self.tells_operation)
        {
            headers.set(HeaderId::EnvoyDecoratorOperation, operation.as_bytes());
        }
    }

    /// The trace and the request's span in it; `None`: there is no collector, or the caller's context is malformed.
    pub fn ids(&self) -> Option<TraceIds> {
        let context = self.span.as_ref().map(|span| &span.context)?;
        Some(TraceIds { trace: context.trace_id, span: context.span_id })
    }

    /// The request's span, for the values that statistics record of it; `None`: it is not recorded.
    pub fn exemplar(&self, now: SystemTime) -> Option<Exemplar> {
        let context = self.span.as_ref().map(|span| &span.context).filter(|context| context.sampled)?;
        let since_1970 = now.duration_since(UNIX_EPOCH).unwrap_or_default();
        Some(Exemplar {
            trace_id: context.trace_id.to_be_bytes(),
            span_id: context.span_id.to_be_bytes(),
            unix_ms: u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX),
        })
    }

    /// The request has ended.
    pub fn end(mut self: Box<Self>, record: &Record<'_>, services: &dyn Services, now: SystemTime) {
        if self.attempt.is_some() {
            self.end_try(&TryEnd::Canceled { flags: ResponseFlags::NONE }, record, services, now);
        }
        let (Some(mut span), Some(reporter)) = (self.span.take(), &self.tracer.reporter) else { return };
        if span.context.sampled {
            span.duration = since(span.start, now);
            self.facts(record).of_request(&mut span.tags);
            reporter.report(span, services);
        }
    }

    fn facts<'t>(&'t self, record: &'t Record<'t>) -> Facts<'t> {
        Facts {
            record,
            config: &self.tracer.config,
            route: self.route.as_deref(),
            cluster_stat_name: self.cluster_stat_name.as_deref(),
        }
    }
}

fn since(start: SystemTime, now: SystemTime) -> Duration {
    now.duration_since(start).unwrap_or_default()
}
