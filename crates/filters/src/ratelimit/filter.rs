//! Asks the service about requests that have descriptors, and does what it says.

use std::borrow::Cow;
use std::sync::Arc;

use evenkeel_base::grpc::status;
use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::rate_limit::HostDescriptions;
use evenkeel_runtime_config::ratelimit::{RateLimit, RateLimitPerRoute, Requests};

use super::answer::{Answer, Decided, Field, Left};
use super::counts::{self, Counter};
use super::service::{self, Pending};
use crate::descriptor::{self, Entry, OfRoutes};
use crate::http::{Decision, Filter, Hooks, Reply, RequestContext, ResponseContext, ResponseDecision, Setup, Woken};
use crate::info::ResponseFlags;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// `envoy.filters.http.ratelimit`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<RateLimit>,
}

/// A request in progress.
#[derive(Debug, Default)]
pub struct Exchange {
    asked: Option<Pending>,
    /// Headers for the client.
    response: Vec<Field>,
}

impl Filter for HttpFilter {
    type Config = RateLimit;
    /// `None` if the service is not asked.
    type State = Option<Box<Exchange>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_HEAD);

    fn verdict(_: &RateLimit) -> FilterVerdict<'_> {
        FilterVerdict::Outside
    }

    fn new(config: Arc<RateLimit>, _: &Setup<'_>) -> Self {
        Self { config }
    }

    fn request_head(&self, state: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        if let Some(asked) = state.as_mut().and_then(|exchange| exchange.asked.take()) {
            let answer = match context.woken {
                Some(Woken::Ready) => asked.take(),
                Some(Woken::TimedOut) | None => Answer::Failed,
            };
            return self.decided(state, answer, context);
        }
        if !self.is_asked(context) || !self.config.enabled.covers(|| context.services.random()) {
            return Decision::Continue;
        }
        let route = context.per_route::<RateLimitPerRoute>();
        let descriptors = self.descriptors(route, context);
        if descriptors.is_empty() {
            return Decision::Continue;
        }
        let domain = route.map(|route| &*route.domain).filter(|domain| !domain.is_empty());
        let (pending, pause) = service::ask(&self.config, domain.unwrap_or(&self.config.domain), &descriptors, context);
        state.get_or_insert_default().asked = Some(pending);
        Decision::Pause(pause)
    }

    fn remark(&self, _: &Self::State, context: &RequestContext<'_>) -> Option<Remark> {
        let asks = self.is_asked(context) && !self.descriptors(context.per_route(), context).is_empty();
        let cluster = &self.config.service.call.cluster;
        asks.then(|| Remark::ByState(format!("cluster {cluster} decides whether it is within its limits")))
    }

    fn response_head(&self, state: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if let Some(exchange) = state {
            add(&mut context.head.headers, &exchange.response, context.local);
        }
        ResponseDecision::Continue
    }
}

impl HttpFilter {
    /// Whether the request is one that the service is asked about: it goes to a cluster that there is.
    fn is_asked(&self, context: &RequestContext<'_>) -> bool {
        let internal = context.head.headers.get(HeaderId::EnvoyInternal) == Some(b"true");
        let is_meant = match self.config.requests {
            Requests::All => true,
            Requests::Internal => internal,
            Requests::External => !internal,
        };
        is_meant && context.route.cluster.is_some_and(|cluster| context.services.clusters().scope(cluster).is_some())
    }

    fn descriptors<'a>(
        &'a self,
        route: Option<&'a RateLimitPerRoute>,
        context: &'a RequestContext<'_>,
    ) -> Vec<Vec<Entry<'a>>> {
        let of_route = route.map(|route| &*route.descriptions).filter(|own| !own.is_empty());
        let own = of_route.unwrap_or(&self.config.descriptions);
        let of_host = route.map_or(HostDescriptions::Override, |route| route.of_host);
        descriptor::describe(own, OfRoutes { stage: self.config.stage, of_host }, context)
    }

    fn decided(&self, state: &mut Option<Box<Exchange>>, answer: Answer, context: &mut RequestContext<'_>) -> Decision {
        let config = &*self.config;
        let decided = match answer {
            Answer::Decided(decided) => *decided,
            Answer::Failed | Answer::Unasked => {
                self.count(context, Counter::error);
                // A flood must not lift the limits that hold for it.
                let closed = answer == Answer::Unasked || config.fails_closed.covers(|| context.services.random());
                if closed {
                    let reply = Reply::new(config.status_on_error, "", "rate_limiter_error");
                    return Decision::Reply(Reply { flags: ResponseFlags::RATE_LIMIT_SERVICE_ERROR, ..reply });
                }
                self.count(context, Counter::failure_mode_allowed);
                return Decision::Continue;
            }
        };
        let Decided { over, request, mut response, body, left } = decided;
        if let Some(left) = left.filter(|_| config.tells_limit) {
            response.extend(headers_of(&left));
        }
        self.count(context, if over { Counter::over_limit } else { Counter::ok });
        if over && config.tells_refusal {
            response.push((b"x-envoy-ratelimited".to_vec(), b"true".to_vec()));
        }
        let refuses = over && config.enforced.covers(|| context.services.random());
        if over && let Some(cluster) = context.route.cluster {
            context.services.clusters().charge_response(cluster, config.status);
        }
        state.get_or_insert_default().response = response;
        if refuses {
            return Decision::Reply(self.refusal(body, context));
        }
        add(&mut context.head.headers, &request, false);
        Decision::Continue
    }

    fn refusal(&self, body: Vec<u8>, context: &RequestContext<'_>) -> Reply {
        let mut headers: Vec<(Cow<'static, str>, Vec<u8>)> = Vec::new();
        for addition in &self.config.response_headers {
            let value = context.value_of(&addition.value);
            if !value.is_empty() || addition.keep_empty_value {
                headers.push((addition.name.to_ascii_lowercase().into(), value));
            }
        }
        let grpc_status = if self.config.resource_exhausted { status::RESOURCE_EXHAUSTED } else { status::UNAVAILABLE };
        Reply {
            headers,
            body: body.into(),
            flags: ResponseFlags::RATE_LIMITED,
            grpc_status: Some(grpc_status.into()),
            ..Reply::new(self.config.status, "", "request_rate_limited")
        }
    }

    fn count(&self, context: &RequestContext<'_>, counter: Counter) {
        if let Some(scope) = context.route.cluster.and_then(|cluster| context.services.clusters().scope(cluster)) {
            counts::count(&scope, &self.config.stat_prefix, counter);
        }
    }
}

/// What is left, as headers.
fn headers_of(left: &Left) -> [Field; 3] {
    [
        (b"x-ratelimit-limit".to_vec(), left.limit.clone().into_bytes()),
        (b"x-ratelimit-remaining".to_vec(), left.remaining.to_string().into_bytes()),
        (b"x-ratelimit-reset".to_vec(), left.reset.to_string().into_bytes()),
    ]
}

/// Adds headers. `replaces_type`: the service's `content-type` holds, not the proxy's.
fn add(headers: &mut Headers, fields: &[Field], replaces_type: bool) {
    if replaces_type && fields.iter().any(|(name, _)| name == b"content-type") {
        headers.remove(HeaderId::ContentType);
    }
    fields.iter().for_each(|(name, value)| headers.append(name, value));
}
