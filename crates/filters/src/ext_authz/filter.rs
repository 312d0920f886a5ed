//! The HTTP filter: decides which requests the service is asked about, and applies its decisions.

use std::borrow::Cow;
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_runtime_config::ext_authz::{AuthzService, BodyOverride, ExtAuthz, ExtAuthzPerRoute, RequestBody};
use evenkeel_runtime_config::metadata::MetadataValue;
use evenkeel_stats::Writer;

use super::answer::{Answer, Edit, HeaderChanges, Refusal, Verdict};
use super::changes;
use super::check::{Question, SentBody, sent_body};
use super::counts::{self, Counter, OfCluster, Stats};
use super::logged::Logged;
use super::service::{self, PendingCheck, Reply as CheckReply};
use crate::http::{
    Body, Decision, Filter, Hooks, Reply, RequestContext, ResponseContext, ResponseDecision, Setup, Woken,
};
use crate::info::ResponseFlags;
use crate::remark::Remark;
use crate::verdict::FilterVerdict;

/// The namespace of the dynamic metadata that services set, whatever the filter's name.
const NAMESPACE: &str = "envoy.filters.http.ext_authz";
/// Tells the upstream that the request passed without a decision.
const UNDECIDED: &[u8] = b"x-envoy-auth-failure-mode-allowed";

/// `envoy.filters.http.ext_authz`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<ExtAuthz>,
    counts: Writer<Stats>,
}

/// The state of one request's decision.
#[derive(Debug, Default)]
pub struct Decided(Option<Box<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    /// The service is asked.
    asked: Option<PendingCheck>,
    /// Headers that the service adds to the response.
    response: Vec<Edit>,
}

impl Filter for HttpFilter {
    type Config = ExtAuthz;
    type State = Decided;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD.and(Hooks::RESPONSE_HEAD);

    fn verdict(_: &ExtAuthz) -> FilterVerdict<'_> {
        FilterVerdict::Outside
    }

    fn new(config: Arc<ExtAuthz>, setup: &Setup<'_>) -> Self {
        let counts = counts::writer(setup.registry, setup.outer, &config.stat_prefix);
        Self { config, counts }
    }

    fn request_head(&self, state: &mut Decided, context: &mut RequestContext<'_>) -> Decision {
        let route = context.per_route::<ExtAuthzPerRoute>();
        // Clients do not say so.
        if !context.info.undecided {
            context.head.headers.remove_name(UNDECIDED);
        }
        let service = route.and_then(|route| route.service.as_ref()).unwrap_or(&self.config.service);
        if let Some(asked) = state.0.as_mut().and_then(|progress| progress.asked.take()) {
            let reply = match context.woken {
                Some(Woken::Ready) => asked.take(service),
                Some(Woken::TimedOut) | None => CheckReply::default(),
            };
            return self.decided(state, &asked, reply, context);
        }
        // Without a route nothing is forwarded.
        if context.route.route.is_none() || route.is_some_and(|route| route.disabled) {
            return Decision::Continue;
        }
        if !self.is_enabled(context) {
            self.counts.inc(Counter::disabled);
            return if self.config.when.deny_others {
                Decision::Reply(refused(self.config.status_on_error, "ext_authz_error"))
            } else {
                Decision::Continue
            };
        }
        if !service::can_be_asked(service, context.head.method()) {
            return self.cannot_ask(context);
        }
        let body = match self.body(route, context.body) {
            Ok(body) => body,
            Err(collect) => return collect,
        };
        let formats = match service {
            AuthzService::Grpc(target) => !target.metadata.is_empty(),
            AuthzService::Http(target) => !target.headers_to_add.is_empty(),
        };
        if formats {
            context.note_cluster();
        }
        let extensions = extensions(context);
        let question = Question { config: &self.config, context, body, extensions: &extensions };
        let (asked, pause) = service::ask(service, &question);
        state.0.get_or_insert_default().asked = Some(asked);
        Decision::Pause(pause)
    }

    fn remark(&self, _: &Decided, context: &RequestContext<'_>) -> Option<Remark> {
        let route = context.per_route::<ExtAuthzPerRoute>();
        match route {
            Some(route) if route.disabled => None,
            _ if self.is_enabled(context) => Some(Remark::ByState(self.who_decides(route))),
            _ => None,
        }
    }

    fn response_head(&self, state: &mut Decided, context: &mut ResponseContext<'_>) -> ResponseDecision {
        if let Some(progress) = &state.0 {
            changes::add(&mut context.head.headers, &progress.response);
        }
        ResponseDecision::Continue
    }
}

impl HttpFilter {
    fn is_enabled(&self, context: &RequestContext<'_>) -> bool {
        let when = &self.config.when;
        let matches = || when.metadata.as_ref().is_none_or(|matcher| matcher.matches(Some(&context.info.metadata)));
        when.share.covers(|| context.services.random()) && matches()
    }

    fn who_decides(&self, route: Option<&ExtAuthzPerRoute>) -> String {
        let service = route.and_then(|route| route.service.as_ref()).unwrap_or(&self.config.service);
        let protocol = if matches!(service, AuthzService::Grpc(_)) { "gRPC" } else { "HTTP" };
        let otherwise = if self.config.failure_mode_allow { "passes" } else { "is refused" };
        format!("cluster {} decides ({protocol}); without its answer the request {otherwise}", service.cluster())
    }

    /// The body that the service gets, if any; an error is what has to happen first.
    fn body<'b>(&self, route: Option<&ExtAuthzPerRoute>, body: Body<'b>) -> Result<Option<SentBody<'b>>, Decision> {
        let settings = match route.map(|route| route.body).unwrap_or_default() {
            BodyOverride::Inherit => self.config.body,
            BodyOverride::Off => None,
            // As in Envoy, the encoding of the body is the filter's, whatever the route sets.
            BodyOverride::With(settings) => {
                let as_bytes = self.config.body.map_or(settings.as_bytes, |body| body.as_bytes);
                Some(RequestBody { as_bytes, ..settings })
            }
        };
        let Some(RequestBody { max_bytes, partial, as_bytes }) = settings else { return Ok(None) };
        match body {
            Body::Coming if partial => Err(Decision::CollectStart { bytes: max_bytes }),
            Body::Coming | Body::Start(_) if !partial => Err(Decision::Collect { max_bytes }),
            // Another filter has collected more than the service may get.
            Body::Whole(all) if !partial && all.len() > max_bytes => Err(Decision::Collect { max_bytes }),
            body => Ok(sent_body(body, max_bytes, as_bytes)),
        }
    }

    /// Does what the service says.
    fn decided(
        &self,
        state: &mut Decided,
        asked: &PendingCheck,
        reply: CheckReply,
        context: &mut RequestContext<'_>,
    ) -> Decision {
        let CheckReply { answer, bytes } = reply;
        let Answer { verdict, metadata, unknown_action } = answer;
        self.log(asked, bytes, context);
        self.leave(metadata, &verdict, asked, context);
        let strict = self.config.validate_mutations;
        let is_valid = match &verdict {
            Verdict::Allowed(wanted) => changes::are_valid(wanted),
            Verdict::Denied(refusal) | Verdict::FailedWith(refusal) => changes::edits_are_valid(&refusal.headers),
            Verdict::Failed | Verdict::Unasked => true,
        };
        if strict && (unknown_action || !is_valid) {
            if let Verdict::Denied(refusal) = &verdict {
                self.count_denial(refusal.status, context);
            }
            return self.invalid(context);
        }
        match verdict {
            Verdict::Allowed(wanted) => self.allow(state, *wanted, context),
            Verdict::Denied(refusal) => self.deny(*refusal, context),
            Verdict::Failed => self.failed(Refusal::default(), context),
            Verdict::Unasked => self.unasked(context),
            Verdict::FailedWith(refusal) => self.failed(*refusal, context),
        }
    }

    fn allow(&self, state: &mut Decided, wanted: HeaderChanges, context: &mut RequestContext<'_>) -> Decision {
        if changes::change(context.head, &wanted, self.config.mutation_rules.as_ref()).is_err() {
            return self.invalid(context);
        }
        self.counts.inc(Counter::ok);
        self.count_for_cluster(context, OfCluster::ok);
        let reroutes = self.config.clear_route_cache && wanted.changes_request();
        if !wanted.response.is_empty() {
            state.0.get_or_insert_default().response = wanted.response;
        }
        if reroutes { Decision::Reroute } else { Decision::Continue }
    }

    fn deny(&self, refusal: Refusal, context: &mut RequestContext<'_>) -> Decision {
        self.count_denial(refusal.status, context);
        Decision::Reply(self.reply(refusal, "ext_authz_denied"))
    }

    fn count_denial(&self, status: u16, context: &RequestContext<'_>) {
        self.counts.inc(Counter::denied);
        self.count_for_cluster(context, OfCluster::denied);
        if let Some(cluster) = context.route.cluster.filter(|_| self.config.charge_cluster_response_stats) {
            context.services.clusters().charge_response(cluster, status);
        }
    }

    /// Refuses a request that the service cannot be asked about. It is not a failure of the service, so `failure_mode_allow` does
    /// not let it pass.
    fn cannot_ask(&self, context: &RequestContext<'_>) -> Decision {
        self.counts.inc(Counter::error);
        self.count_for_cluster(context, OfCluster::error);
        Decision::Reply(refused(self.config.status_on_error, "ext_authz_error"))
    }

    fn failed(&self, refusal: Refusal, context: &mut RequestContext<'_>) -> Decision {
        self.counts.inc(Counter::error);
        self.count_for_cluster(context, OfCluster::error);
        if self.config.failure_mode_allow {
            self.counts.inc(Counter::failure_mode_allowed);
            self.count_for_cluster(context, OfCluster::failure_mode_allowed);
            if self.config.failure_mode_allow_header_add {
                context.head.headers.set_name(UNDECIDED, b"true");
                context.info.undecided = true;
            }
            return Decision::Continue;
        }
        self.refuse(refusal)
    }

    /// Refuses the request, even if the filter fails open.
    fn unasked(&self, context: &RequestContext<'_>) -> Decision {
        self.counts.inc(Counter::error);
        self.count_for_cluster(context, OfCluster::error);
        self.refuse(Refusal::default())
    }

    fn refuse(&self, refusal: Refusal) -> Decision {
        let status = if refusal.status == 0 { self.config.status_on_error } else { refusal.status };
        Decision::Reply(self.reply(Refusal { status, ..refusal }, "ext_authz_error"))
    }

    fn invalid(&self, context: &RequestContext<'_>) -> Decision {
        self.counts.inc(Counter::invalid);
        self.count_for_cluster(context, OfCluster::invalid);
        Decision::Reply(refused(500, "ext_authz_invalid"))
    }

    fn reply(&self, refusal: Refusal, details: &'static str) -> Reply {
        let Refusal { status, headers, mut body } = refusal;
        if let Some(most) = self.config.max_denied_body_bytes {
            body.truncate(most);
        }
        let mut fields = evenkeel_http::Headers::default();
        changes::add_all(&mut fields, &headers);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned().into();
        let headers = fields.iter().map(|(_, name, value)| (text(name), value.to_vec())).collect();
        Reply { headers, body: Cow::Owned(body), ..refused(status, details) }
    }

    fn count_for_cluster(&self, context: &RequestContext<'_>, counter: OfCluster) {
        if let Some(scope) = context.route.cluster.and_then(|cluster| context.services.clusters().scope(cluster)) {
            counts::count(&scope, &self.config.stat_prefix, counter);
        }
    }

    /// Leaves dynamic metadata for others.
    fn leave(
        &self,
        mut metadata: evenkeel_runtime_config::dynamic_metadata::Fields,
        verdict: &Verdict,
        asked: &PendingCheck,
        context: &mut RequestContext<'_>,
    ) {
        if metadata.is_empty() {
            return;
        }
        if !self.config.ingest_dynamic_metadata {
            return self.counts.inc(Counter::ignored_dynamic_metadata);
        }
        if matches!(verdict, Verdict::Allowed(_)) {
            let millis = context.now.saturating_duration_since(asked.since).as_millis() as f64;
            metadata.push(("ext_authz_duration".into(), MetadataValue::Number(millis.to_bits())));
        }
        context.info.metadata.merge(NAMESPACE, &metadata);
    }

    fn log(&self, asked: &PendingCheck, bytes: Option<(usize, usize)>, context: &mut RequestContext<'_>) {
        if !self.config.emit_filter_state_stats {
            return;
        }
        let logged = Logged { latency: context.now.saturating_duration_since(asked.since), bytes };
        context.info.set_object(context.filter().to_owned(), Rc::new(logged));
    }
}

/// A refusal without headers and body.
fn refused(status: u16, details: &'static str) -> Reply {
    Reply { flags: ResponseFlags::UNAUTHORIZED_EXTERNAL_SERVICE, ..Reply::new(status, "", details) }
}

/// Returns the context extensions from all levels of the route; the most specific one takes precedence.
fn extensions<'r>(context: &RequestContext<'r>) -> Vec<(&'r str, &'r str)> {
    let mut all: Vec<(&str, &str)> = Vec::new();
    for level in context.route.filters.all::<ExtAuthzPerRoute>(context.filter()) {
        for (name, value) in &level.context_extensions {
            if all.iter().all(|(known, _)| **known != **name) {
                all.push((name, value));
            }
        }
    }
    all
}
