//! Answers preflight requests, and adds CORS headers to other responses.

use std::sync::Arc;

use evenkeel_http::RequestHead;
use evenkeel_runtime_config::cors::{Cors, CorsPolicy, ROUTE_FIELD};
use evenkeel_stats::{ScopeName, Writer, layout};

use crate::http::{Decision, Filter, Hooks, Reply, RequestContext, ResponseContext, ResponseDecision, Setup};
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

const ALLOW_ORIGIN: &str = "access-control-allow-origin";
const ALLOW_CREDENTIALS: &str = "access-control-allow-credentials";
const ALLOW_METHODS: &str = "access-control-allow-methods";
const ALLOW_HEADERS: &str = "access-control-allow-headers";
const ALLOW_PRIVATE_NETWORK: &str = "access-control-allow-private-network";
const EXPOSE_HEADERS: &str = "access-control-expose-headers";
const MAX_AGE: &str = "access-control-max-age";
const REQUEST_METHOD: &[u8] = b"access-control-request-method";
const REQUEST_HEADERS: &[u8] = b"access-control-request-headers";
const REQUEST_PRIVATE_NETWORK: &[u8] = b"access-control-request-private-network";

layout! {
    /// `http.PREFIX.cors.`
    pub mod stats {
        counters { origin_valid, origin_invalid }
        gauges {}
        histograms {}
        statuses None
    }
}

/// `envoy.filters.http.cors`.
#[derive(Debug)]
pub struct HttpFilter {
    counts: Writer<stats::Stats>,
}

/// A request whose origin is allowed.
#[derive(Debug)]
pub struct Allowed {
    origin: Vec<u8>,
    policies: Policies,
}

/// The policies of a route and its parents, most specific first.
#[derive(Debug)]
struct Policies(Vec<Arc<CorsPolicy>>);

impl Filter for HttpFilter {
    type Config = Cors;
    /// `None` if no CORS headers are added to the response.
    type State = Option<Box<Allowed>>;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_HEAD);

    fn verdict(_: &Cors) -> FilterVerdict<'_> {
        FilterVerdict::Never
    }

    fn new(_: Arc<Cors>, setup: &Setup<'_>) -> Self {
        let outer = setup.outer;
        let name = ScopeName {
            dotted: format!("{}cors.", outer.dotted),
            family: format!("{}cors_", outer.family),
            tags: outer.tags.clone(),
        };
        Self { counts: setup.registry.scope(name).writer() }
    }

    fn request_head(&self, allowed: &mut Self::State, context: &mut RequestContext<'_>) -> Decision {
        // Redirects and direct responses have no policy, as in Envoy.
        if context.route.cluster.is_none() {
            return Decision::Continue;
        }
        let policies = Policies::of(context);
        let Some(first) = policies.0.first() else { return Decision::Continue };
        let draw = || context.services.random();
        let enabled = first.enabled.covers(draw);
        if !enabled && !first.shadow_enabled.covers(draw) {
            return Decision::Continue;
        }
        let Some(origin) = context.head.headers.find(b"origin").filter(|origin| !origin.is_empty()) else {
            return Decision::Continue;
        };
        let valid = policies.allow(origin);
        self.counts.inc(if valid { stats::Counter::origin_valid } else { stats::Counter::origin_invalid });
        if !enabled {
            return Decision::Continue;
        }
        let origin = valid.then(|| origin.to_vec());
        let asked = context.head.headers.find(REQUEST_METHOD).unwrap_or_default();
        let preflight = context.head.method() == b"OPTIONS" && !asked.is_empty();
        let answered = preflight && (valid || !policies.forward_not_matching_preflights());
        let reply = answered.then(|| policies.preflight(origin.as_deref(), context.head));
        *allowed = origin.map(|origin| Box::new(Allowed { origin, policies }));
        reply.map_or(Decision::Continue, Decision::Reply)
    }

    fn remark(&self, allowed: &Self::State, _: &RequestContext<'_>) -> Option<Remark> {
        let origin = String::from_utf8_lossy(&allowed.as_ref()?.origin);
        Some(Remark::Note(format!("scripts of {origin} may read the answer")))
    }

    fn response_head(&self, allowed: &mut Self::State, context: &mut ResponseContext<'_>) -> ResponseDecision {
        let Some(allowed) = allowed else { return ResponseDecision::Continue };
        let headers = &mut context.head.headers;
        headers.set_name(ALLOW_ORIGIN.as_bytes(), &allowed.origin);
        if allowed.policies.flag(|policy| policy.allow_credentials) {
            headers.set_name(ALLOW_CREDENTIALS.as_bytes(), b"true");
        }
        if let Some(exposed) = allowed.policies.text(|policy| &policy.expose_headers) {
            headers.set_name(EXPOSE_HEADERS.as_bytes(), exposed.as_bytes());
        }
        ResponseDecision::Continue
    }
}

impl Policies {
    fn of(context: &RequestContext<'_>) -> Self {
        let of = |name| context.route.filters.all::<Arc<CorsPolicy>>(name).map(Arc::clone).collect::<Vec<_>>();
        let said = of(context.filter());
        // The deprecated field applies only where the filter has no per-route configuration.
        Self(if said.is_empty() { of(ROUTE_FIELD) } else { said })
    }

    fn allow(&self, origin: &[u8]) -> bool {
        let said = self.0.iter().map(|policy| &policy.allow_origins).find(|origins| !origins.is_empty());
        // A matcher that accepts `*` allows every origin.
        said.is_some_and(|origins| origins.iter().any(|allowed| allowed.matches(b"*") || allowed.matches(origin)))
    }

    fn forward_not_matching_preflights(&self) -> bool {
        self.0.iter().find_map(|policy| policy.forward_not_matching_preflights).unwrap_or(true)
    }

    fn flag(&self, said: impl Fn(&CorsPolicy) -> Option<bool>) -> bool {
        self.0.iter().find_map(|policy| said(policy)).unwrap_or(false)
    }

    fn text(&self, said: impl Fn(&CorsPolicy) -> &str) -> Option<&str> {
        self.0.iter().map(|policy| said(policy)).find(|text| !text.is_empty())
    }

    /// `origin`: the requesting origin, if it is allowed.
    fn preflight(&self, origin: Option<&[u8]>, head: &RequestHead) -> Reply {
        let mut headers = Vec::new();
        let mut say = |name: &'static str, value: &[u8]| headers.push((name.into(), value.to_vec()));
        if let Some(origin) = origin {
            say(ALLOW_ORIGIN, origin);
        }
        if self.flag(|policy| policy.allow_credentials) {
            say(ALLOW_CREDENTIALS, b"true");
        }
        let echoed = |asked: &[u8]| head.headers.find(asked).unwrap_or_default().to_vec();
        for (name, said, asked) in [
            (ALLOW_METHODS, self.text(|policy| &policy.allow_methods), REQUEST_METHOD),
            (ALLOW_HEADERS, self.text(|policy| &policy.allow_headers), REQUEST_HEADERS),
        ] {
            match said {
                None => {}
                Some("*") => say(name, &echoed(asked)),
                Some(said) => say(name, said.as_bytes()),
            }
        }
        if let Some(seconds) = self.text(|policy| &policy.max_age) {
            say(MAX_AGE, seconds.as_bytes());
        }
        if self.flag(|policy| policy.allow_private_network_access) && echoed(REQUEST_PRIVATE_NETWORK) == b"true" {
            say(ALLOW_PRIVATE_NETWORK, b"true");
        }
        Reply { headers, verbatim: true, ..Reply::new(200, "", "cors_response") }
    }
}
