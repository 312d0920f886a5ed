//! One worker's HTTP filters of one connection manager: which has which hook, and the order in which they are called.

use std::sync::Arc;

use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::skip::{SkipMatcher, is_skipped};

use super::contract::{
    BadBody, Data, Decision, Flow, RequestContext, RequestTrailersContext, ResponseContext, ResponseDecision,
    TrailersContext,
};
use super::pause::{Pause, Woken};
use super::{Hooks, HttpFilter, Setup, Slot};
use crate::format::Record;
use crate::remark::Remark;

/// One worker's HTTP filters of one connection manager, up to the router.
#[derive(Debug)]
pub struct HttpFilters {
    filters: Vec<Entry>,
    /// The union of the filters' hooks.
    hooks: Hooks,
}

#[derive(Debug)]
struct Entry {
    name: Arc<str>,
    /// Disabled unless a route enables it.
    disabled: bool,
    /// Matches the requests that skip this filter.
    skip: Option<Arc<SkipMatcher>>,
    hooks: Hooks,
    filter: HttpFilter,
}

/// The filters' state of one request, and its position in the chain.
#[derive(Default)]
pub struct FilterStreams {
    /// One for each filter; empty before [`HttpFilters::begin`].
    slots: Vec<Slot>,
    /// Disabled or skipped filters, as bits.
    off: u64,
    /// The hooks still to be called; none before [`HttpFilters::begin`].
    hooks: Hooks,
    /// The filter to be called next for the request's head.
    position: usize,
    /// The number of filters, from the first, for which it is known whether this request skips them.
    judged: usize,
    /// How the last pause ended.
    woken: Option<Woken>,
    /// All filters have let the request pass, and have seen its body if it was collected.
    passed: bool,
    /// The number of filters, from the last, that have let the response's head pass.
    answered: usize,
    /// The filter that holds back some of the response's body.
    holder: usize,
    /// The filter that holds back some of the request's body.
    request_holder: usize,
}

/// What one filter decided about a request.
pub(crate) struct FilterDecision {
    /// The filter's name.
    pub(crate) name: Arc<str>,
    pub(crate) decision: Decision,
    /// What the decision does not show.
    pub(crate) remark: Option<Remark>,
}

impl FilterStreams {
    /// Resets the state for another request, keeping the memory.
    pub fn clear(&mut self) {
        let mut slots = std::mem::take(&mut self.slots);
        slots.clear();
        *self = Self { slots, ..Self::default() };
    }

    /// Whether any filter was set up for the request.
    #[inline]
    pub fn is_begun(&self) -> bool {
        !self.slots.is_empty()
    }

    /// Ends the pause of the filter to be called next.
    pub fn wake(&mut self, woken: Woken) {
        self.woken = Some(woken);
    }

    /// Skips the filter to be called next.
    pub(crate) fn skip(&mut self) {
        self.position += 1;
    }

    /// Marks that all filters have let the request pass; true the first time.
    pub fn pass(&mut self) -> bool {
        !std::mem::replace(&mut self.passed, true)
    }

    /// Called when another response replaces the one that filters have seen or were to see: they see nothing of it.
    pub fn bypass_response(&mut self) {
        self.hooks = self.hooks.without(Hooks::RESPONSE_HEAD.and(Hooks::RESPONSE_DATA).and(Hooks::RESPONSE_TRAILERS));
    }

    /// Whether any filter inspects the request's body.
    #[inline]
    pub fn sees_request_data(&self) -> bool {
        self.hooks.has(Hooks::REQUEST_DATA)
    }

    /// Whether any filter inspects the response's body.
    #[inline]
    pub fn sees_response_data(&self) -> bool {
        self.hooks.has(Hooks::RESPONSE_DATA)
    }

    /// Whether any filter inspects the response's head.
    #[inline]
    pub fn sees_response_head(&self) -> bool {
        self.hooks.has(Hooks::RESPONSE_HEAD)
    }

    /// Whether any filter is told when the request is complete.
    #[inline]
    pub fn sees_end(&self) -> bool {
        self.hooks.has(Hooks::COMPLETE)
    }

    /// Whether any filter inspects the response's end.
    #[inline]
    pub fn sees_response_trailers(&self) -> bool {
        self.hooks.has(Hooks::RESPONSE_TRAILERS)
    }
}

impl HttpFilters {
    /// Creates a worker's filters.
    pub fn new(filters: &[hcm::HttpFilter], setup: &Setup<'_>) -> Self {
        let entry = |config: &hcm::HttpFilter| {
            let filter = HttpFilter::new(config, setup);
            let (name, skip) = (Arc::clone(&config.name), config.skip.clone());
            Entry { name, disabled: config.disabled, skip, hooks: filter.hooks(), filter }
        };
        let filters: Vec<_> = filters.iter().map(entry).collect();
        let hooks = filters.iter().fold(Hooks::default(), |all, entry| all.and(entry.hooks));
        Self { filters, hooks }
    }

    /// Whether there are no filters.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.filters.is_empty()
    }

    /// The name of the filter that a request waits for.
    pub fn awaited(&self, streams: &FilterStreams) -> Option<&Arc<str>> {
        let at = if streams.passed { streams.request_holder } else { streams.position };
        self.filters.get(at).map(|entry| &entry.name)
    }

    /// Starts a request. Its route at this point determines which filters are disabled.
    pub fn begin(&self, streams: &mut FilterStreams, route: &RouteFilters<'_>) {
        streams.slots.extend(self.filters.iter().map(|entry| entry.filter.slot()));
        streams.hooks = self.hooks;
        let bits = (0..u64::BITS).map(|bit| 1_u64 << bit);
        for (entry, bit) in self.filters.iter().zip(bits) {
            let told = if route.is_empty() { None } else { route.disabled(&entry.name) };
            if told.unwrap_or(entry.disabled) {
                streams.off |= bit;
            }
        }
    }

    /// Calls the filters for the request's head, in order from its position, until one returns anything but `Continue`.
    /// After [`Decision::Reroute`], continue with the next one.
    pub fn request_head<'r>(&'r self, streams: &mut FilterStreams, context: &mut RequestContext<'r>) -> Decision {
        while let Some(decision) = self.ask_next(streams, context) {
            if !matches!(decision, Decision::Continue) {
                return decision;
            }
        }
        Decision::Continue
    }

    /// Calls the filter at the request's position; `None` after the last one.
    #[inline]
    fn ask_next<'r>(&'r self, streams: &mut FilterStreams, context: &mut RequestContext<'r>) -> Option<Decision> {
        let (entry, slot) = self.filters.get(streams.position).zip(streams.slots.get_mut(streams.position))?;
        context.filter = &entry.name;
        context.woken = streams.woken.take();
        // Decided when the request reaches the filter, and not again after a pause there.
        if let Some(skip) = &entry.skip
            && streams.judged <= streams.position
        {
            streams.judged = streams.position + 1;
            let skipped = is_skipped(skip, &entry.name, &context.route.filters, &context.view());
            streams.off |= u64::from(skipped) << streams.position;
        }
        let asked = entry.hooks.has(Hooks::REQUEST_HEAD) && streams.off >> streams.position & 1 == 0;
        let decision = if asked { entry.filter.request_head(slot, context) } else { Decision::Continue };
        if matches!(decision, Decision::Continue | Decision::Reroute) {
            streams.position += 1;
        }
        Some(decision)
    }

    /// As [`HttpFilters::request_head`], one filter at a time, with the filter's remark on its decision.
    pub(crate) fn explain_next<'r>(
        &'r self,
        streams: &mut FilterStreams,
        context: &mut RequestContext<'r>,
    ) -> Option<FilterDecision> {
        let at = streams.position;
        let decision = self.ask_next(streams, context)?;
        let (entry, slot) = self.filters.get(at).zip(streams.slots.get(at))?;
        let on = streams.off >> at & 1 == 0;
        let remark = if on { entry.filter.remark(slot, context) } else { None };
        Some(FilterDecision { name: Arc::clone(&entry.name), decision, remark })
    }

    /// Passes a piece of the request's body through the filters, until one finds it invalid. If one holds some back, the others have
    /// seen what it let pass.
    pub fn request_data(&self, streams: &mut FilterStreams, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        self.pass_request(0, streams, data)
    }

    /// Calls the filter that held some back again, and passes what it releases through the filters after it. `data` is empty.
    pub fn resume_request(&self, streams: &mut FilterStreams, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        self.pass_request(streams.request_holder, streams, data)
    }

    fn pass_request(&self, from: usize, streams: &mut FilterStreams, data: &mut Data<'_>) -> Result<Flow, BadBody> {
        let mut pause: Option<Pause> = None;
        if !streams.hooks.has(Hooks::REQUEST_DATA) {
            return Ok(Flow::Continue);
        }
        for at in from..self.filters.len() {
            let Some((entry, slot)) = self.filters.get(at).zip(streams.slots.get_mut(at)) else { continue };
            if !entry.hooks.has(Hooks::REQUEST_DATA) || streams.off >> at & 1 != 0 {
                continue;
            }
            if let Flow::Pause(asked) = entry.filter.request_data(slot, data)? {
                // The one nearest to the client: what it releases later has to pass through the others.
                match &mut pause {
                    Some(first) => first.reads_on &= asked.reads_on,
                    None => {
                        streams.request_holder = at;
                        pause = Some(asked);
                    }
                }
            }
        }
        Ok(pause.map_or(Flow::Continue, Flow::Pause))
    }

    /// Passes the request's trailers, if any, to the filters.
    pub fn request_trailers(&self, streams: &mut FilterStreams, context: &mut RequestTrailersContext<'_>) {
        if !streams.hooks.has(Hooks::REQUEST_TRAILERS) || context.trailers.is_empty() {
            return;
        }
        self.each(Hooks::REQUEST_TRAILERS, streams, |entry, slot| entry.filter.request_trailers(slot, context));
    }

    /// Calls the filters for the response's head, in reverse order from its position, until one returns anything but `Continue`.
    pub fn response_head(&self, streams: &mut FilterStreams, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if !streams.hooks.has(Hooks::RESPONSE_HEAD) {
            return ResponseDecision::Continue;
        }
        while let Some(at) = self.filters.len().checked_sub(streams.answered + 1) {
            let Some((entry, slot)) = self.filters.get(at).zip(streams.slots.get_mut(at)) else { break };
            context.woken = streams.woken.take();
            if entry.hooks.has(Hooks::RESPONSE_HEAD) && streams.off >> at & 1 == 0 {
                let decision = entry.filter.response_head(slot, context);
                if !matches!(decision, ResponseDecision::Continue) {
                    return decision;
                }
            }
            streams.answered += 1;
        }
        ResponseDecision::Continue
    }

    /// Passes a piece of the response's body through the filters. If one holds some back, the others have seen what it let pass.
    pub fn response_data(&self, streams: &mut FilterStreams, data: &mut Data<'_>) -> Flow {
        let all = streams.slots.len();
        self.pass(all, streams, data)
    }

    /// Calls the filter that held some back again, and passes what it releases through the filters after it. `data` is empty.
    pub fn resume_response(&self, streams: &mut FilterStreams, data: &mut Data<'_>) -> Flow {
        let holder = streams.holder;
        self.pass(holder + 1, streams, data)
    }

    fn pass(&self, from: usize, streams: &mut FilterStreams, data: &mut Data<'_>) -> Flow {
        let mut pause: Option<Pause> = None;
        for at in (0..from).rev() {
            let Some((entry, slot)) = self.filters.get(at).zip(streams.slots.get_mut(at)) else { continue };
            if !entry.hooks.has(Hooks::RESPONSE_DATA) || streams.off >> at & 1 != 0 {
                continue;
            }
            if let Flow::Pause(asked) = entry.filter.response_data(slot, data) {
                // The one nearest to the upstream: what it releases later has to pass through the others.
                match &mut pause {
                    Some(first) => first.reads_on &= asked.reads_on,
                    None => {
                        streams.holder = at;
                        pause = Some(asked);
                    }
                }
            }
        }
        pause.map_or(Flow::Continue, Flow::Pause)
    }

    /// Calls the filters for the end of the response. What one adds to the body passes through the filters after it, as
    /// any piece of the body does.
    pub fn response_trailers(&self, streams: &mut FilterStreams, context: &mut TrailersContext<'_>) -> Flow {
        let (mut flow, mut added) = (Flow::Continue, Vec::new());
        if !streams.hooks.has(Hooks::RESPONSE_TRAILERS) {
            return flow;
        }
        for at in (0..self.filters.len()).rev() {
            let Some((entry, slot)) = self.filters.get(at).zip(streams.slots.get_mut(at)) else { continue };
            if !entry.hooks.has(Hooks::RESPONSE_TRAILERS) || streams.off >> at & 1 != 0 {
                continue;
            }
            entry.filter.response_trailers(slot, context);
            if !context.body.is_empty() {
                let bytes = std::mem::take(&mut context.body).into();
                let mut data = Data { bytes, ends: true, now: context.facts.now };
                if let pause @ Flow::Pause(_) = self.pass(at, streams, &mut data) {
                    flow = pause;
                }
                added.extend_from_slice(&data.bytes);
            }
        }
        context.body = added;
        flow
    }

    /// Tells the filters that the request is complete.
    pub fn complete(&self, streams: &mut FilterStreams, end: &Record<'_>) {
        self.each(Hooks::COMPLETE, streams, |entry, slot| entry.filter.complete(slot, end));
    }

    fn each(&self, hook: Hooks, streams: &mut FilterStreams, mut call: impl FnMut(&Entry, &mut Slot)) {
        if streams.hooks.has(hook) {
            let off = streams.off;
            let all = self.filters.iter().zip(&mut streams.slots).enumerate();
            all.filter(|(at, (entry, _))| entry.hooks.has(hook) && off >> at & 1 == 0)
                .for_each(|(_, (entry, slot))| call(entry, slot));
        }
    }
}
