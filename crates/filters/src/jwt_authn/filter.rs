//! The filter: finds the requirement of a request, and answers requests that do not meet it.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use evenkeel_http::{HeaderId, RequestHead};
use evenkeel_jwt::{Jwks, Status};
use evenkeel_runtime_config::jwt_authn::{JwtAuthn, KeySource, PerRoute, Requirement};
use evenkeel_stats::ScopeName;

use super::accepted::Accepted;
use super::cache::Cache;
use super::counts::{Counts, stats};
use super::judge::{Judge, JudgeContext, Keys, Missing};
use super::places::MAX_TRIES;
use super::remote::Remote;
use crate::http::{Decision, Filter, Hooks, Reply, RequestContext, Setup};
use crate::info::Form;
use crate::remark::Remark;
use crate::verdict::{FilterPolicy, FilterVerdict};

const UNAUTHORIZED: u16 = 401;
const FORBIDDEN: u16 = 403;
const WWW_AUTHENTICATE: &str = "www-authenticate";
const ORIGINAL_PATH: &[u8] = b"x-envoy-original-path";
const REQUEST_METHOD: &[u8] = b"access-control-request-method";
/// Maximum length of a path in `www-authenticate`, in bytes; the rest is cut off, as in Envoy.
const MAX_REALM_PATH_BYTES: usize = 256;

/// `envoy.filters.http.jwt_authn`.
#[derive(Debug)]
pub struct HttpFilter {
    config: Arc<JwtAuthn>,
    counts: Rc<Counts>,
    /// Verified tokens, by the index of their provider.
    caches: Vec<RefCell<Cache>>,
    /// The keys that have to be fetched, by the index of their provider.
    remotes: Vec<Option<Arc<Remote>>>,
}

/// The keys of a provider by its index, and whether some keys are those.
type KeysOf<'j> = (&'j dyn Fn(usize) -> Keys, &'j dyn Fn(usize, &Arc<Jwks>) -> bool);

/// A request's progress.
#[derive(Debug, Default)]
pub struct Progress {
    /// Providers whose keys it has waited for.
    waited: Vec<usize>,
    /// The outcome for explanations.
    outcome: Option<Outcome>,
}

#[derive(Debug)]
enum Outcome {
    /// Nothing is required, or no token was presented.
    Passed,
    /// A token was accepted.
    Accepted(Rc<Accepted>),
    /// Refused.
    Refused(Status),
}

impl Filter for HttpFilter {
    type Config = JwtAuthn;
    type State = Progress;
    const HOOKS: Hooks = Hooks::REQUEST_HEAD;

    fn verdict(_: &JwtAuthn) -> FilterVerdict<'_> {
        FilterVerdict::Policy(FilterPolicy::Tokens)
    }

    fn new(config: Arc<JwtAuthn>, setup: &Setup<'_>) -> Self {
        let prefix = match &*config.stat_prefix {
            "" => String::new(),
            prefix => format!("{prefix}."),
        };
        let (outer, plain) = (setup.outer, prefix.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        let name = ScopeName {
            dotted: format!("{}jwt_authn.{prefix}", outer.dotted),
            family: format!("{}jwt_authn_{plain}", outer.family),
            tags: outer.tags.clone(),
        };
        let providers = &config.providers;
        let remotes = providers.iter().map(|provider| match &provider.keys {
            KeySource::Local(_) => None,
            KeySource::Remote(source) => Some(Remote::shared(source)),
        });
        Self {
            counts: Rc::new(setup.registry.scope(name).writer()),
            caches: providers.iter().map(|provider| RefCell::new(Cache::new(provider.cache))).collect(),
            remotes: remotes.collect(),
            config,
        }
    }

    fn request_head(&self, progress: &mut Progress, context: &mut RequestContext<'_>) -> Decision {
        if self.config.bypass_cors_preflight && is_preflight(context.head) {
            self.config.filled_headers.iter().for_each(|name| context.head.headers.remove_spellings(name.as_bytes()));
            self.counts.inc(stats::Counter::cors_preflight_bypassed);
            return self.pass(progress, None, false);
        }
        let requirement = match self.requirement(context) {
            Ok(Some(requirement)) => requirement,
            Ok(None) => return self.pass(progress, None, false),
            Err(reply) => return Decision::Reply(reply),
        };
        self.refresh(context);
        if let Some(missing) = self.missing(progress, requirement, context) {
            if let Some(pause) = self.wait(missing, context) {
                progress.waited.push(missing.0);
                return Decision::Pause(pause);
            }
            progress.waited.push(missing.0);
        }
        self.decide(progress, requirement, context)
    }

    fn remark(&self, progress: &Progress, _: &RequestContext<'_>) -> Option<Remark> {
        Some(Remark::Note(match progress.outcome.as_ref()? {
            Outcome::Passed => "no token is needed, and none was judged".to_owned(),
            Outcome::Accepted(token) if token.subject.is_empty() => {
                format!("the token of issuer {} is valid", token.issuer)
            }
            Outcome::Accepted(token) => {
                format!("the token of issuer {} for {} is valid", token.issuer, token.subject)
            }
            Outcome::Refused(status) => format!("refused: {}", status.text()),
        }))
    }
}

impl HttpFilter {
    /// Returns the requirement of a request; `None`: there is none. An error: its route names a requirement that does not
    /// exist.
    fn requirement(&self, context: &RequestContext<'_>) -> Result<Option<&Requirement>, Reply> {
        match context.per_route::<PerRoute>() {
            Some(PerRoute::Disabled) => return Ok(None),
            Some(PerRoute::Named(name)) => {
                return self.config.named(name).map(Some).ok_or_else(|| self.wrong_name(name));
            }
            None => {}
        }
        let view = context.view();
        let rules = &self.config.rules;
        // The draw for `runtime_fraction` is made only if a rule has one.
        let draw = || context.services.random();
        let random = if rules.iter().any(|rule| rule.matches.fraction_ppm < 1_000_000) { draw() } else { 0 };
        if let Some(rule) = rules.iter().find(|rule| rule.matches.matches(&view, random)) {
            return Ok(rule.requirement.as_ref());
        }
        let Some(states) = &self.config.filter_state else { return Ok(None) };
        let mut text = Vec::new();
        let known = context.info.object(&states.key).is_some_and(|object| object.write(Form::Plain, &mut text));
        let found = states.requirements.iter().find(|(value, _)| known && value.as_bytes() == text);
        Ok(found.map(|(_, requirement)| requirement))
    }

    fn wrong_name(&self, name: &str) -> Reply {
        self.counts.inc(stats::Counter::denied);
        let reason = format!("Wrong requirement_name: {name}. It should be one of [{}]", self.config.names());
        let details = details(&reason);
        let body = if self.config.strip_failure_response {
            String::new()
        } else {
            format!("Failed JWT authentication: {reason}")
        };
        Reply { body: body.into_bytes().into(), ..Reply::new(FORBIDDEN, "", details) }
    }

    /// Begins to fetch keys that are about to expire.
    fn refresh(&self, context: &RequestContext<'_>) {
        for remote in self.remotes.iter().flatten() {
            if remote.is_due(context.now) {
                remote.fetch(context.services, &self.counts, context.now);
            }
        }
    }

    /// The provider whose keys the request has to wait for. Found out on a copy of the head, since judging changes it.
    fn missing(&self, progress: &Progress, requirement: &Requirement, context: &RequestContext<'_>) -> Option<Missing> {
        let coming = |(index, remote): (usize, &Option<Arc<Remote>>)| {
            remote.is_some() && matches!(self.keys(index, progress, context), Keys::Coming)
        };
        if !self.remotes.iter().enumerate().any(coming) {
            return None;
        }
        let mut head = context.head.clone();
        let keys = |index: usize| self.keys(index, progress, context);
        let are_current = |index: usize, keys: &Arc<Jwks>| self.are_current(index, keys, context);
        self.judge(&mut head, (&keys, &are_current), context).requirement(requirement).err()
    }

    fn keys(&self, index: usize, progress: &Progress, context: &RequestContext<'_>) -> Keys {
        match (self.remotes.get(index), self.config.providers.get(index).map(|provider| &provider.keys)) {
            (Some(Some(remote)), _) => remote.keys(context.now, progress.waited.contains(&index)),
            (_, Some(KeySource::Local(keys))) => Keys::Known(Arc::clone(keys)),
            // Each provider has keys of one of these kinds.
            _ => Keys::Failed(Status::NoValidKeys),
        }
    }

    fn are_current(&self, index: usize, keys: &Arc<Jwks>, context: &RequestContext<'_>) -> bool {
        match (self.remotes.get(index), self.config.providers.get(index).map(|provider| &provider.keys)) {
            (Some(Some(remote)), _) => remote.are_current(keys, context.now),
            (_, Some(KeySource::Local(own))) => Arc::ptr_eq(own, keys),
            _ => false,
        }
    }

    fn wait(&self, missing: Missing, context: &RequestContext<'_>) -> Option<crate::http::Pause> {
        let remote = self.remotes.get(missing.0)?.as_ref()?;
        remote.fetch(context.services, &self.counts, context.now);
        remote.wait(context.services)
    }

    fn judge<'j>(
        &'j self,
        head: &'j mut RequestHead,
        (keys, are_current): KeysOf<'j>,
        context: &RequestContext<'_>,
    ) -> Judge<'j> {
        let now = context.services.clock().wall_clock(context.now, context.now);
        let now = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let bench = JudgeContext {
            config: &self.config,
            caches: &self.caches,
            keys,
            are_current,
            now,
            tries: MAX_TRIES,
            hits: 0,
            misses: 0,
        };
        Judge { bench, head, metadata: Vec::new(), reroute: false, last: None }
    }

    fn decide(&self, progress: &mut Progress, requirement: &Requirement, context: &mut RequestContext<'_>) -> Decision {
        // Judging may remove a token from the query.
        let realm = context.head.path().contains(&b'?').then(|| Realm::of(context.head));
        let mut head = std::mem::take(context.head);
        let (status, metadata, reroute, last, hits, misses) = {
            let keys = |index: usize| self.keys(index, progress, context);
            let are_current = |index: usize, keys: &Arc<Jwks>| self.are_current(index, keys, context);
            let mut judge = self.judge(&mut head, (&keys, &are_current), context);
            // Clients must not set headers that any provider fills, whichever provider accepts the token.
            judge.sanitize(&self.config.filled_headers);
            // Keys that are still missing were waited for in vain.
            let status = judge.requirement(requirement).unwrap_or(Status::FetchFail);
            let Judge { bench, metadata, reroute, last, .. } = judge;
            (status, metadata, reroute, last, bench.hits, bench.misses)
        };
        *context.head = head;
        self.counts.add(stats::Counter::jwt_cache_hit, hits);
        self.counts.add(stats::Counter::jwt_cache_miss, misses);
        metadata.iter().for_each(|fields| context.info.metadata.share(fields));
        match status {
            Status::Ok => self.pass(progress, last, reroute),
            status => {
                progress.outcome = Some(Outcome::Refused(status));
                let realm = realm.unwrap_or_else(|| Realm::of(context.head));
                Decision::Reply(self.refuse(status, &realm))
            }
        }
    }

    fn pass(&self, progress: &mut Progress, accepted: Option<Rc<Accepted>>, reroute: bool) -> Decision {
        self.counts.inc(stats::Counter::allowed);
        progress.outcome = Some(accepted.map_or(Outcome::Passed, Outcome::Accepted));
        if reroute { Decision::Reroute } else { Decision::Continue }
    }

    fn refuse(&self, status: Status, realm: &Realm) -> Reply {
        self.counts.inc(stats::Counter::denied);
        let code = if status == Status::AudienceNotAllowed { FORBIDDEN } else { UNAUTHORIZED };
        let details = details(status.text());
        if self.config.strip_failure_response {
            return Reply::new(code, "", details);
        }
        let mut challenge = realm.challenge();
        if status != Status::Missed {
            challenge.extend_from_slice(b", error=\"invalid_token\"");
        }
        Reply { headers: vec![(WWW_AUTHENTICATE.into(), challenge)], ..Reply::new(code, status.text(), details) }
    }
}

/// `%RESPONSE_CODE_DETAILS%`: without white space, which separates the fields of logs.
fn details(reason: &str) -> String {
    format!("jwt_authn_access_denied{{{}}}", reason.replace(' ', "_"))
}

fn is_preflight(head: &RequestHead) -> bool {
    let has = |name: &[u8]| head.headers.find(name).is_some_and(|value| !value.is_empty());
    head.method() == b"OPTIONS" && has(b"origin") && has(REQUEST_METHOD)
}

/// The realm in `www-authenticate`: the request's URL. Kept as text, because judging may change the head.
struct Realm(Vec<u8>);

impl Realm {
    fn of(head: &RequestHead) -> Self {
        let path = head.headers.find(ORIGINAL_PATH).unwrap_or(head.path());
        let path = path.get(..MAX_REALM_PATH_BYTES).unwrap_or(path);
        let scheme = head.headers.get(HeaderId::ForwardedProto).unwrap_or(b"http");
        Self([scheme, b"://", head.authority(), path].concat())
    }

    fn challenge(&self) -> Vec<u8> {
        [b"Bearer realm=\"", self.0.as_slice(), b"\""].concat()
    }
}
