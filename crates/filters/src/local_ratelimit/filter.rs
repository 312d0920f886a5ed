//! Takes tokens for requests, and refuses those that get none.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_base::grpc::status;
use evenkeel_runtime_config::header_edits::HeaderAddition;
use evenkeel_runtime_config::local_ratelimit::{Limit, LocalRateLimit};
use evenkeel_stats::{Registry, ScopeName, Writer, layout};

use crate::descriptor::{self, Entry, OfRoutes};
use crate::header_edits::add_header;
use crate::http::{Decision, Filter, Hooks, Reply, RequestContext, ResponseContext, ResponseDecision, Setup};
use crate::info::ResponseFlags;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// The body of refusals, and their details.
const REFUSED: &str = "local_rate_limited";

layout! {
    /// `PREFIX.http_local_rate_limit.`
    pub mod stats {
        counters {
            /// Requests that were counted.
            enabled,
            /// Requests that were refused.
            enforced,
            /// Requests within the limit.
            ok,
            /// Requests over the limit, refused or not.
            rate_limited,
            /// Requests over the limit of a descriptor that refuses nothing.
            shadow_mode,
        }
        gauges {}
        histograms {}
        statuses None
    }
}

/// `envoy.filters.http.local_ratelimit`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<LocalRateLimit>,
    registry: Arc<Registry>,
    counts: RefCell<BTreeMap<Arc<str>, Rc<Writer<stats::Stats>>>>,
}

/// What is left of the limit that counted for a request, for its response.
#[derive(Debug, Default)]
pub struct Remaining(Option<TokenState>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TokenState {
    limit: u64,
    remaining: u64,
    /// Seconds until there is a token more.
    reset: u64,
}

/// The outcome of taking a token.
struct Taken<'l> {
    fits: bool,
    /// The limit that decided.
    limit: Option<&'l Limit>,
    /// A limit that refuses nothing was exceeded.
    shadowed: bool,
}

impl Filter for HttpFilter {
    type Config = LocalRateLimit;
    type State = Remaining;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_HEAD);

    fn verdict(_: &LocalRateLimit) -> FilterVerdict<'_> {
        FilterVerdict::Outside
    }

    fn new(config: Arc<LocalRateLimit>, setup: &Setup<'_>) -> Self {
        let filter = Self { config, registry: Arc::clone(setup.registry), counts: RefCell::default() };
        // They are there before the first request, as in Envoy.
        filter.counts(&filter.config.stat_prefix);
        filter
    }

    fn request_head(&self, state: &mut Remaining, context: &mut RequestContext<'_>) -> Decision {
        let config = context.per_route::<Arc<LocalRateLimit>>().unwrap_or(&self.config);
        if !config.enabled.covers(|| context.services.random()) {
            return Decision::Continue;
        }
        let counts = self.counts(&config.stat_prefix);
        counts.inc(stats::Counter::enabled);
        let taken = take(config, context);
        if taken.shadowed {
            counts.inc(stats::Counter::shadow_mode);
        }
        if config.tells_limit {
            state.0 = taken.limit.map(|limit| state_of(limit, context.now));
        }
        if taken.fits {
            counts.inc(stats::Counter::ok);
            return Decision::Continue;
        }
        counts.inc(stats::Counter::rate_limited);
        if !config.enforced.covers(|| context.services.random()) {
            add_to_request(&config.request_headers, context);
            return Decision::Continue;
        }
        counts.inc(stats::Counter::enforced);
        Decision::Reply(refusal(config, context))
    }

    fn response_head(&self, state: &mut Remaining, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if let Some(tokens) = state.0 {
            let headers = &mut context.head.headers;
            for (name, value) in [
                ("x-ratelimit-limit", tokens.limit),
                ("x-ratelimit-remaining", tokens.remaining),
                ("x-ratelimit-reset", tokens.reset),
            ] {
                headers.set_name(name.as_bytes(), value.to_string().as_bytes());
            }
        }
        ResponseDecision::Continue
    }

    fn remark(&self, _: &Remaining, context: &RequestContext<'_>) -> Option<Remark> {
        let config = context.per_route::<Arc<LocalRateLimit>>().unwrap_or(&self.config);
        let most =
            config.bucket.as_ref().map(|limit| format!("unless {} requests or more came shortly before", limit.most));
        most.map(Remark::ByState)
    }
}

impl HttpFilter {
    /// The counters under a prefix: the filter's own, or a route's.
    fn counts(&self, prefix: &Arc<str>) -> Rc<Writer<stats::Stats>> {
        let mut all = self.counts.borrow_mut();
        let counts = all.entry(Arc::clone(prefix)).or_insert_with(|| {
            let name = ScopeName {
                dotted: format!("{prefix}.http_local_rate_limit."),
                family: "envoy_http_local_rate_limit_".to_owned(),
                tags: vec![("envoy_local_http_ratelimit_prefix", prefix.to_string())],
            };
            Rc::new(self.registry.scope(name).writer())
        });
        Rc::clone(counts)
    }
}

/// Takes tokens of the descriptors' buckets, then one of the bucket of all.
fn take<'c>(config: &'c LocalRateLimit, context: &RequestContext<'_>) -> Taken<'c> {
    let mut taken = Taken { fits: true, limit: None, shadowed: false };
    let mut matched = false;
    let described = match &*config.descriptors {
        [] => Vec::new(),
        _ => descriptor::describe(
            &config.descriptions,
            OfRoutes { stage: config.stage, of_host: config.of_host },
            context,
        ),
    };
    for descriptor in &config.descriptors {
        let is_it = |entries: &Vec<Entry<'_>>| {
            let pairs = descriptor.entries.iter().map(|(key, value)| (&**key, &**value));
            entries.iter().map(|(key, value)| (*key, &**value)).eq(pairs)
        };
        if !described.iter().any(is_it) {
            continue;
        }
        matched = true;
        let fits = descriptor.limit.bucket(context.now).take(1, context.now);
        if !fits && descriptor.shadow {
            taken.shadowed = true;
            continue;
        }
        if !fits {
            return Taken { fits: false, limit: Some(&descriptor.limit), ..taken };
        }
        taken.limit = taken.limit.or(Some(&descriptor.limit));
    }
    let Some(bucket) = config.bucket.as_ref().filter(|_| config.always_consumes || !matched) else { return taken };
    if !bucket.bucket(context.now).take(1, context.now) {
        return Taken { fits: false, limit: Some(bucket), ..taken };
    }
    Taken { limit: taken.limit.or(Some(bucket)), ..taken }
}

fn state_of(limit: &Limit, now: Instant) -> TokenState {
    let bucket = limit.bucket(now);
    let remaining = bucket.there(now);
    let wait = bucket.wait(remaining + 1, now).unwrap_or_default();
    TokenState { limit: limit.most, remaining, reset: wait.as_secs_f64().ceil() as u64 }
}

fn add_to_request(additions: &[HeaderAddition], context: &mut RequestContext<'_>) {
    for addition in additions {
        let value = context.value_of(&addition.value);
        add_header(&mut context.head.headers, addition, &value);
    }
}

fn refusal(config: &LocalRateLimit, context: &RequestContext<'_>) -> Reply {
    let mut headers: Vec<(Cow<'static, str>, Vec<u8>)> = Vec::new();
    for addition in &config.response_headers {
        let value = context.value_of(&addition.value);
        if !value.is_empty() || addition.keep_empty_value {
            headers.push((addition.name.to_ascii_lowercase().into(), value));
        }
    }
    let grpc_status = if config.resource_exhausted { status::RESOURCE_EXHAUSTED } else { status::UNAVAILABLE };
    Reply {
        headers,
        flags: ResponseFlags::RATE_LIMITED,
        grpc_status: Some(grpc_status.into()),
        ..Reply::new(config.status, REFUSED, REFUSED)
    }
}
