//! The two filters: enforced rules decide, shadow rules are counted.

use std::borrow::Cow;
use std::convert::Infallible;
use std::sync::Arc;

use evenkeel_runtime_config::explain::{Authorizer, PlainRequest, Verdict};
use evenkeel_runtime_config::rbac::RbacFilter;
use evenkeel_runtime_config::view::{ConnectionView, RequestView};
use evenkeel_stats::{Registry, ScopeName, Writer, layout};

use super::{Outcome, Subject, denied_details, evaluate};
use crate::http::{Decision, Filter, Kept, LocalReply, RequestContext};
use crate::network::Closed;

const FORBIDDEN: u16 = 403;
const DENIED_BODY: &str = "RBAC: access denied";

layout! {
    /// `http.PREFIX.rbac.` and `PREFIX.rbac.`, each followed by the filter's own prefix.
    pub mod stats {
        counters { allowed, denied, shadow_allowed, shadow_denied }
        gauges {}
        histograms {}
        statuses None
    }
}

/// `envoy.filters.http.rbac`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<RbacFilter>,
    counts: Counts,
}

impl Filter for HttpFilter {
    type Config = RbacFilter;

    fn new(config: Arc<RbacFilter>, registry: &Registry, outer: &ScopeName) -> Self {
        let counts = Counts::new(registry, outer, &config.stat_prefix, &config.shadow_stat_prefix);
        Self { config, counts }
    }

    async fn on_request<R: RequestView>(&self, context: &RequestContext<'_, R>, _: &mut Kept) -> Decision {
        self.decide(context)
    }
}

impl HttpFilter {
    /// Decides about a request by the route's rules, or by the filter's own when the route has none.
    fn decide<R: RequestView>(&self, context: &RequestContext<'_, R>) -> Decision {
        let config = match context.route_rbac() {
            None => &*self.config,
            Some(per_route) => match &per_route.filter {
                None => return Decision::Continue,
                Some(config) => config,
            },
        };
        let subject =
            Subject { connection: context.connection, remote: context.remote, request: Some(context.request) };
        match self.counts.decide(config, &subject) {
            Ok(()) => Decision::Continue,
            // Envoy sets no response flag here; the details say it all.
            Err(details) => {
                Decision::LocalReply(LocalReply { status: FORBIDDEN, body: DENIED_BODY, details, flag: None })
            }
        }
    }
}

/// `envoy.filters.network.rbac`.
#[derive(Debug)]
pub struct NetworkFilter {
    config: Arc<RbacFilter>,
    counts: Counts,
}

impl NetworkFilter {
    /// A worker's filter, under its own statistics prefix.
    pub fn new(config: Arc<RbacFilter>, registry: &Registry) -> Self {
        let outer = ScopeName::plain(&with_dot(&config.stat_prefix));
        let counts = Counts::new(registry, &outer, "", &config.shadow_stat_prefix);
        Self { config, counts }
    }

    /// Decides about a connection.
    pub fn on_connection(&self, connection: &ConnectionView) -> Result<(), Closed> {
        self.counts.decide(&self.config, &Subject::of_connection(connection)).map_err(|details| Closed { details })
    }
}

/// Istio writes `tcp.` where the API's documentation has `tcp`; both mean the same scope.
fn with_dot(prefix: &str) -> String {
    if prefix.ends_with('.') { prefix.to_owned() } else { format!("{prefix}.") }
}

#[derive(Debug)]
struct Counts {
    enforced: Writer<stats::Stats>,
    shadow: Writer<stats::Stats>,
}

impl Counts {
    fn new(registry: &Registry, outer: &ScopeName, prefix: &str, shadow_prefix: &str) -> Self {
        let scope = |prefix: &str| {
            let name = ScopeName {
                dotted: format!("{}rbac.{prefix}", outer.dotted),
                family: format!("{}rbac_{}", outer.family, prefix.replace(|c: char| !c.is_ascii_alphanumeric(), "_")),
                tags: outer.tags.clone(),
            };
            registry.scope(name).writer()
        };
        Self { enforced: scope(prefix), shadow: scope(shadow_prefix) }
    }

    fn decide<R: RequestView>(&self, config: &RbacFilter, subject: &Subject<'_, R>) -> Result<(), String> {
        if let Some(rules) = &config.shadow_rules {
            let outcome = evaluate(rules, subject);
            self.shadow.inc(match outcome.allowed {
                true => stats::Counter::shadow_allowed,
                false => stats::Counter::shadow_denied,
            });
        }
        let Some(rules) = &config.rules else { return Ok(()) };
        let outcome = evaluate(rules, subject);
        if outcome.allowed {
            self.enforced.inc(stats::Counter::allowed);
            return Ok(());
        }
        self.enforced.inc(stats::Counter::denied);
        Err(denied_details(outcome.policy))
    }
}

/// RBAC for [`evenkeel_runtime_config::explain::explain`].
#[derive(Debug, Clone, Copy, Default)]
pub struct Evaluator;

impl Authorizer for Evaluator {
    fn connection(&self, filter: &RbacFilter, connection: &ConnectionView) -> Verdict {
        verdict(filter, &Subject::of_connection(connection))
    }

    fn request(&self, filter: &RbacFilter, connection: &ConnectionView, request: &PlainRequest) -> Verdict {
        let remote = connection.remote.ip();
        verdict(filter, &Subject { connection, remote, request: Some(request) })
    }
}

fn verdict<R: RequestView>(filter: &RbacFilter, subject: &Subject<'_, R>) -> Verdict {
    let outcome = match &filter.rules {
        None => Outcome { allowed: true, policy: None },
        Some(rules) => evaluate(rules, subject),
    };
    Verdict { allowed: outcome.allowed, policy: outcome.policy.map(|policy| policy.name.clone()) }
}

impl<'s> Subject<'s, NoRequest> {
    fn of_connection(connection: &'s ConnectionView) -> Self {
        Self { connection, remote: connection.remote.ip(), request: None }
    }
}

/// The request of a network filter: there never is one.
#[derive(Debug)]
pub struct NoRequest(Infallible);

impl RequestView for NoRequest {
    fn method(&self) -> &[u8] {
        match self.0 {}
    }

    fn path(&self) -> &[u8] {
        match self.0 {}
    }

    fn authority(&self) -> &[u8] {
        match self.0 {}
    }

    fn scheme(&self) -> &[u8] {
        match self.0 {}
    }

    fn header(&self, _name: &str) -> Option<Cow<'_, [u8]>> {
        match self.0 {}
    }

    fn any_value(&self, _name: &str, _wanted: impl FnMut(&[u8]) -> bool) -> Option<bool> {
        match self.0 {}
    }
}
