//! The two filters: enforced rules decide, shadow rules are counted.

use std::sync::Arc;

use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_runtime_config::rbac::{NetworkRbac, RbacAction, RbacFilter, RbacPerRoute, Rules};
use evenkeel_runtime_config::view::{ConnectionView, RequestView};
use evenkeel_stats::{Registry, ScopeName, Writer, layout};

use super::{Outcome, Subject, Verdict, denied_details, evaluate};
use crate::http::{Decision, Filter, Hooks, Reply, RequestContext, Setup};
use crate::network::{self, Close, ConnectionContext};
use crate::remark::Remark;
use crate::verdict::{FilterPolicy, FilterVerdict};

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
    type State = ();
    const HOOKS: Hooks = Hooks::REQUEST_HEAD;

    fn verdict(config: &RbacFilter) -> FilterVerdict<'_> {
        FilterVerdict::Policy(FilterPolicy::Rules(config))
    }

    fn new(config: Arc<RbacFilter>, setup: &Setup<'_>) -> Self {
        let counts = Counts::new(setup.registry, setup.outer, &config.stat_prefix, &config.shadow_stat_prefix);
        Self { config, counts }
    }

    /// Decides about a request by the route's rules, or by the filter's own when the route has none.
    fn request_head(&self, (): &mut (), context: &mut RequestContext<'_>) -> Decision {
        let Some(config) = self.config_for(context) else { return Decision::Continue };
        let view = context.view();
        let metadata = view.dynamic_metadata();
        let subject =
            Subject { connection: context.connection, remote: context.remote, request: Some(&view), metadata };
        let shadow = self.counts.decide_in_shadow(config, &subject);
        let enforced = self.counts.decide(config, &subject);
        for (outcome, rules) in [(shadow, &config.shadow_rules), (enforced, &config.rules)] {
            leave(outcome, rules.as_deref(), &mut context.info.metadata);
        }
        hint(enforced, config.rules.as_deref(), &mut context.info.metadata);
        match enforced {
            // Envoy sets no response flag here; the details say it all.
            Some(Outcome { allowed: false, policy }) => {
                Decision::Reply(Reply::new(FORBIDDEN, DENIED_BODY, denied_details(policy)))
            }
            _ => Decision::Continue,
        }
    }

    fn remark(&self, (): &(), context: &RequestContext<'_>) -> Option<Remark> {
        let view = context.view();
        let (connection, remote, metadata) = (context.connection, context.remote, view.dynamic_metadata());
        let subject = Subject { connection, remote, request: Some(&view), metadata };
        Some(Remark::Verdict(Verdict::of(self.config_for(context)?, &subject)))
    }
}

impl HttpFilter {
    /// The route's rules, or the filter's own; `None`: the route has it off.
    fn config_for<'c>(&'c self, context: &RequestContext<'c>) -> Option<&'c RbacFilter> {
        match context.per_route::<RbacPerRoute>() {
            None => Some(&self.config),
            Some(per_route) => per_route.filter.as_ref(),
        }
    }
}

/// Leaves what logs and later filters can read of an outcome.
fn leave(outcome: Option<Outcome<'_>>, rules: Option<&Rules>, metadata: &mut DynamicMetadata) {
    if let (Some(Outcome { allowed, policy }), Some(rules)) = (outcome, rules) {
        metadata.share(rules.metadata(allowed, policy));
    }
}

/// Tells logs whether a LOG policy has matched.
fn hint(outcome: Option<Outcome<'_>>, rules: Option<&Rules>, metadata: &mut DynamicMetadata) {
    if let (Some(Outcome { policy, .. }), Some(rules)) = (outcome, rules)
        && rules.action == RbacAction::Log
    {
        metadata.merge("envoy.common", &[("access_log_hint".into(), MetadataValue::Bool(policy.is_some()))]);
    }
}

/// `envoy.filters.network.rbac`.
///
/// Envoy evaluates its rules when the client has sent data, and by then has connected upstream. Here the decision is made
/// before that; only rules that depend on the results of other filters have to wait for the client's first bytes.
#[derive(Debug)]
pub struct NetworkFilter {
    config: Arc<NetworkRbac>,
    counts: Counts,
    /// Whether some rule has to wait for the client.
    waits: bool,
}

/// Whether rules that had to wait for the client have allowed a connection.
#[derive(Debug, Default)]
pub struct Admitted(bool);

impl network::Filter for NetworkFilter {
    type Config = NetworkRbac;
    type State = Admitted;
    const IMMEDIATE: bool = true;

    /// A worker's filter, under its own statistics prefix.
    fn verdict(config: &NetworkRbac) -> FilterVerdict<'_> {
        FilterVerdict::Policy(FilterPolicy::Rules(&config.filter))
    }

    fn new(config: Arc<NetworkRbac>, setup: &network::Setup<'_>) -> Self {
        let filter = &config.filter;
        let outer = ScopeName::plain(&with_dot(&filter.stat_prefix));
        let counts = Counts::new(setup.registry, &outer, "", &filter.shadow_stat_prefix);
        Self { waits: config.reads_metadata(), counts, config }
    }

    fn hooks(&self) -> network::Hooks {
        match (self.config.continuous, self.waits) {
            (false, false) => network::Hooks::NEW_CONNECTION,
            (true, false) => network::Hooks::NEW_CONNECTION.and(network::Hooks::DATA),
            (_, true) => network::Hooks::DATA,
        }
    }

    fn new_connection(&self, _: &mut Admitted, context: &mut ConnectionContext<'_>) -> network::Decision {
        if !self.config.continuous {
            return self.decide(context);
        }
        // An allowed connection is counted with each piece of data.
        let subject = Subject::of_connection(context.connection, None);
        let denied = self.config.filter.rules.as_deref().is_some_and(|rules| !evaluate(rules, &subject).allowed);
        if denied { self.decide(context) } else { network::Decision::Continue }
    }

    fn data(
        &self,
        admitted: &mut Admitted,
        _: &mut network::Data<'_>,
        context: &mut ConnectionContext<'_>,
    ) -> network::Decision {
        if admitted.0 && !self.config.continuous {
            return network::Decision::Continue;
        }
        admitted.0 = true;
        self.decide(context)
    }

    fn explain(config: &NetworkRbac, connection: &ConnectionView, metadata: &mut DynamicMetadata) -> Option<Remark> {
        let filter = &config.filter;
        let subject = Subject::of_connection(connection, Some(metadata));
        let shadow = filter.shadow_rules.as_deref().map(|rules| evaluate(rules, &subject));
        let verdict = Verdict::of(filter, &subject);
        leave(shadow, filter.shadow_rules.as_deref(), metadata);
        Some(Remark::Verdict(verdict))
    }
}

impl NetworkFilter {
    fn decide(&self, context: &mut ConnectionContext<'_>) -> network::Decision {
        let config = &self.config.filter;
        let subject = Subject::of_connection(context.connection, Some(&context.facts.metadata));
        let shadow = self.counts.decide_in_shadow(config, &subject);
        let decided = self.counts.decide(config, &subject);
        leave(shadow, config.shadow_rules.as_deref(), &mut context.facts.metadata);
        hint(decided, config.rules.as_deref(), &mut context.facts.metadata);
        match decided {
            Some(Outcome { allowed: false, policy }) => {
                network::Decision::Close(Close::new(denied_details(policy)).after(self.config.delay_deny))
            }
            _ => network::Decision::Continue,
        }
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
            // Envoy joins the prefix and a statistic's name with a dot, unless the prefix ends with one.
            let prefix = if prefix.is_empty() { String::new() } else { with_dot(prefix) };
            let name = ScopeName {
                dotted: format!("{}rbac.{prefix}", outer.dotted),
                family: format!("{}rbac_{}", outer.family, prefix.replace(|c: char| !c.is_ascii_alphanumeric(), "_")),
                tags: outer.tags.clone(),
            };
            registry.scope(name).writer()
        };
        Self { enforced: scope(prefix), shadow: scope(shadow_prefix) }
    }

    /// Shadow rules are only counted.
    fn decide_in_shadow<'r, R: RequestView>(
        &self,
        config: &'r RbacFilter,
        subject: &Subject<'_, R>,
    ) -> Option<Outcome<'r>> {
        let outcome = evaluate(config.shadow_rules.as_deref()?, subject);
        self.shadow.inc(if outcome.allowed { stats::Counter::shadow_allowed } else { stats::Counter::shadow_denied });
        Some(outcome)
    }

    /// `None`: there are no rules, and all is allowed.
    fn decide<'r, R: RequestView>(&self, config: &'r RbacFilter, subject: &Subject<'_, R>) -> Option<Outcome<'r>> {
        let outcome = evaluate(config.rules.as_deref()?, subject);
        self.enforced.inc(if outcome.allowed { stats::Counter::allowed } else { stats::Counter::denied });
        Some(outcome)
    }
}
