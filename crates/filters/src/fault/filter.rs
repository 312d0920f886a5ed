//! Decides which requests get which faults. Delays and aborts are drawn independently: a request may get both.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::fault::{AbortStatus, Fault};
use evenkeel_runtime_config::fraction::Fraction;
use evenkeel_stats::Writer;

use super::counts::{Counts, Injected, OfCluster, stats};
use super::limiter::Limiter;
use crate::format::Record;
use crate::http::{Data, Decision, Filter, Flow, Hooks, Pause, Reply, RequestContext, Setup};
use crate::info::ResponseFlags;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

const DELAY: &[u8] = b"x-envoy-fault-delay-request";
const DELAY_SHARE: &[u8] = b"x-envoy-fault-delay-request-percentage";
const ABORT: &[u8] = b"x-envoy-fault-abort-request";
const ABORT_GRPC: &[u8] = b"x-envoy-fault-abort-grpc-request";
const ABORT_SHARE: &[u8] = b"x-envoy-fault-abort-request-percentage";
const THROUGHPUT: &[u8] = b"x-envoy-fault-throughput-response";
const THROUGHPUT_SHARE: &[u8] = b"x-envoy-fault-throughput-response-percentage";

/// `envoy.filters.http.fault`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<Fault>,
    counts: Counts,
}

/// The fault applied to a request.
#[derive(Debug, Default)]
pub struct AppliedFault(Option<Box<Applied>>);

#[derive(Debug)]
struct Applied {
    fault: Arc<Fault>,
    /// Counters of the downstream cluster.
    from: Option<Rc<Writer<OfCluster>>>,
    /// The request is counted in `active_faults`.
    active: bool,
    limiter: Option<Limiter>,
}

impl Filter for HttpFilter {
    type Config = Fault;
    type State = AppliedFault;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_DATA).and(Hooks::COMPLETE);

    fn verdict(config: &Fault) -> FilterVerdict<'_> {
        match config.abort {
            None => FilterVerdict::Never,
            Some(_) => FilterVerdict::Outside,
        }
    }

    fn new(config: Arc<Fault>, setup: &Setup<'_>) -> Self {
        Self { config, counts: Counts::new(setup.registry, setup.outer) }
    }

    fn request_head(&self, state: &mut AppliedFault, context: &mut RequestContext<'_>) -> Decision {
        if context.woken.is_some()
            && let Some(applied) = &mut state.0
        {
            return self.after_delay(applied, context);
        }
        let fault = context.per_route::<Arc<Fault>>().unwrap_or(&self.config);
        if !applies(fault, context) {
            return Decision::Continue;
        }
        let from = if fault.disable_downstream_cluster_stats || self.config.disable_downstream_cluster_stats {
            None
        } else {
            self.downstream_cluster(&context.head.headers)
        };
        let fault = Arc::clone(fault);
        let applied = state.0.insert(Box::new(Applied { fault, from, active: false, limiter: None }));
        self.limit_answer(applied, context);
        if let Some(delay) = delay(&applied.fault, context)
            && self.begin(applied)
        {
            self.count(applied, Injected::delays_injected);
            note(ResponseFlags::DELAY_INJECTED, applied, context);
            return Decision::Pause(Pause::for_time(delay));
        }
        match abort(&applied.fault, context) {
            Some(reply) if self.begin(applied) => self.abort(applied, context, reply),
            _ => Decision::Continue,
        }
    }

    fn remark(&self, state: &AppliedFault, _: &RequestContext<'_>) -> Option<Remark> {
        let applied = state.0.as_ref()?;
        let slow = applied.limiter.is_some().then_some("the answer is slowed down");
        match (applied.active, applied.fault.max_active) {
            (true, Some(most)) => Some(Remark::ByState(format!(
                "{}unless {most} requests suffer already",
                slow.map_or(String::new(), |slow| format!("{slow}, "))
            ))),
            _ => slow.map(|slow| Remark::Note(slow.into())),
        }
    }

    fn response_data(&self, state: &mut AppliedFault, data: &mut Data<'_>) -> Flow {
        let limiter = state.0.as_mut().and_then(|applied| applied.limiter.as_mut());
        limiter.map_or(Flow::Continue, |limiter| limiter.pass(data))
    }

    fn complete(&self, state: &mut AppliedFault, _: &Record<'_>) {
        if let Some(applied) = &mut state.0 {
            self.end(applied);
        }
    }
}

impl HttpFilter {
    fn downstream_cluster(&self, headers: &Headers) -> Option<Rc<Writer<OfCluster>>> {
        let name = headers.get(HeaderId::EnvoyDownstreamServiceCluster)?;
        let name = std::str::from_utf8(name).ok().filter(|name| !name.is_empty())?;
        Some(self.counts.of_cluster(name))
    }

    fn limit_answer(&self, applied: &mut Applied, context: &RequestContext<'_>) {
        let Some(limit) = &applied.fault.rate_limit else { return };
        let headers = &context.head.headers;
        let share = if limit.fixed_kib.is_some() { limit.share } else { asked(limit.share, headers, THROUGHPUT_SHARE) };
        if !share.covers(|| context.services.random()) {
            return;
        }
        let kib = limit.fixed_kib.or_else(|| number(headers, THROUGHPUT).filter(|kib| *kib > 0));
        if let Some(kib) = kib
            && self.begin(applied)
        {
            self.counts.all.inc(stats::Counter::response_rl_injected);
            applied.limiter = Some(Limiter::new(kib, context.now));
        }
    }

    fn after_delay(&self, applied: &mut Applied, context: &mut RequestContext<'_>) -> Decision {
        if let Some(reply) = abort(&applied.fault, context) {
            return self.abort(applied, context, reply);
        }
        if applied.fault.rate_limit.is_none() {
            self.end(applied);
        }
        Decision::Continue
    }

    fn abort(&self, applied: &mut Applied, context: &mut RequestContext<'_>, reply: Reply) -> Decision {
        self.count(applied, Injected::aborts_injected);
        note(ResponseFlags::FAULT_INJECTED, applied, context);
        Decision::Reply(reply)
    }

    fn count(&self, applied: &Applied, injected: Injected) {
        self.counts.all.inc(match injected {
            Injected::delays_injected => stats::Counter::delays_injected,
            _ => stats::Counter::aborts_injected,
        });
        if let Some(from) = &applied.from {
            from.inc(injected);
        }
    }

    /// Counts the request in `active_faults`; false if there are too many. Other workers' requests may be seen with a short lag.
    fn begin(&self, applied: &mut Applied) -> bool {
        if applied.active {
            return true;
        }
        let active = || self.counts.all.scope().gauge(stats::Gauge::active_faults);
        if applied.fault.max_active.is_some_and(|most| active() >= i64::from(most)) {
            self.counts.all.inc(stats::Counter::faults_overflow);
            return false;
        }
        self.counts.all.shift(stats::Gauge::active_faults, 1);
        applied.active = true;
        true
    }

    fn end(&self, applied: &mut Applied) {
        if std::mem::take(&mut applied.active) {
            self.counts.all.shift(stats::Gauge::active_faults, -1);
        }
    }
}

/// Whether the fault applies to the request.
fn applies(fault: &Fault, context: &RequestContext<'_>) -> bool {
    let cluster = || context.route.cluster.is_some_and(|cluster| **cluster == *fault.upstream_cluster);
    let node = || {
        let node = context.head.headers.get(HeaderId::EnvoyDownstreamServiceNode);
        node.is_some_and(|node| fault.downstream_nodes.iter().any(|wanted| **wanted == *node))
    };
    (fault.upstream_cluster.is_empty() || cluster())
        && (fault.downstream_nodes.is_empty() || node())
        && fault.headers.iter().all(|header| header.matches(&context.view()))
}

/// The delay injected into the request, if any.
fn delay(fault: &Fault, context: &RequestContext<'_>) -> Option<Duration> {
    let delay = fault.delay.as_ref()?;
    let headers = &context.head.headers;
    let share = if delay.fixed.is_some() { delay.share } else { asked(delay.share, headers, DELAY_SHARE) };
    if !share.covers(|| context.services.random()) {
        return None;
    }
    let duration = delay.fixed.or_else(|| number(headers, DELAY).map(Duration::from_millis))?;
    // Envoy counts delays in whole milliseconds.
    (duration.as_millis() > 0).then_some(duration)
}

/// The response injected for the request, if any.
fn abort(fault: &Fault, context: &RequestContext<'_>) -> Option<Reply> {
    let abort = fault.abort.as_ref()?;
    let headers = &context.head.headers;
    let by_header = abort.status == AbortStatus::Header;
    let share = if by_header { asked(abort.share, headers, ABORT_SHARE) } else { abort.share };
    if !share.covers(|| context.services.random()) {
        return None;
    }
    let (status, grpc_status) = match abort.status {
        AbortStatus::Http(status) => (status, None),
        AbortStatus::Grpc(status) => (200, Some(status)),
        AbortStatus::Header => {
            let status = number(headers, ABORT).and_then(|status| u16::try_from(status).ok());
            match status.filter(|status| (200..600).contains(status)) {
                Some(status) => (status, None),
                None => (200, Some(number(headers, ABORT_GRPC)?.try_into().ok()?)),
            }
        }
    };
    Some(Reply { grpc_status, ..Reply::new(status, "fault filter abort", "fault_filter_abort") })
}

/// Sets the response flag and the dynamic metadata of a request with a fault.
fn note(flag: ResponseFlags, applied: &Applied, context: &mut RequestContext<'_>) {
    context.info.flags |= flag;
    // The filter's metadata entry is created even if it is empty, as in Envoy.
    let filter = context.filter();
    context.info.metadata.merge(filter, &applied.fault.metadata);
}

/// A fraction that the request may lower by a header.
fn asked(share: Fraction, headers: &Headers, name: &[u8]) -> Fraction {
    let less = number(headers, name).and_then(|asked| u32::try_from(asked).ok());
    less.map_or(share, |asked| share.at_most(asked))
}

/// The number in a header; the first value counts.
fn number(headers: &Headers, name: &[u8]) -> Option<u64> {
    std::str::from_utf8(headers.find(name)?).ok()?.trim().parse().ok()
}
