//! Rules of HTTPRoutes.

use std::time::Duration;

use evenkeel_api::Object;
use evenkeel_api::gateway_api::{
    HttpHeaderMatch, HttpPathMatch, HttpRetry, HttpRouteMatch, HttpRouteSpec, HttpTimeouts, PathMatchType,
    ValueMatchType,
};
use evenkeel_base::{Diagnostics, Spanned};

use super::super::shared;
use super::super::tracking::Cx;
use super::backends::{Backends, Transport};
use super::http_rules::{Rule, SHARE_REFUSED, in_order};
use crate::{HeaderMatch, HttpMatch, HttpRoute, RetryPolicy, StringMatch};

/// Retries of a rule with `retry` without `attempts`, as in Istio.
const DEFAULT_ATTEMPTS: u32 = 2;
/// The conditions of `retry` besides its codes, as in Istio.
const RETRY_ON: &str = "connect-failure,refused-stream,unavailable,cancelled";

/// A route for each condition of each rule, in the order of precedence.
pub(super) fn routes(cx: &Cx<'_>, object: &Object, spec: &HttpRouteSpec, found: &mut Diagnostics) -> Vec<HttpRoute> {
    let mut backends = Backends { cx, object, found, effect: SHARE_REFUSED, transport: Transport::Tcp };
    let rules = spec.rules.iter().flatten().enumerate();
    let all = rules.flat_map(|(number, rule)| {
        let (timeout, retries) = timeouts(rule.timeouts.as_ref(), rule.retry.as_ref());
        let rule = Rule {
            number,
            name: rule.name.as_ref(),
            span: &rule.span,
            conditions: rule.matches.iter().map(condition).collect(),
            filters: &rule.filters,
            backends: &rule.backend_refs,
            timeout,
            retries,
            session: rule.session_persistence.as_ref(),
        };
        rule.routes(&mut backends)
    });
    in_order(all.collect())
}

/// Timeouts and retries, as Istio's conversion: the timeout of a try is one of the whole without retries.
fn timeouts(written: Option<&HttpTimeouts>, retry: Option<&HttpRetry>) -> (Option<Duration>, Option<RetryPolicy>) {
    let some = |duration: Duration| (!duration.is_zero()).then_some(duration);
    let request = written.and_then(|of| of.request.as_ref()).and_then(|request| some(request.value.0));
    let each = written.and_then(|of| of.backend_request.as_ref()).and_then(|each| some(each.value.0));
    let retries = retry.map(|retry| {
        let codes = retry.codes.iter().map(|code| code.value.to_string());
        let conditions: Vec<String> = std::iter::once(RETRY_ON.to_owned()).chain(codes).collect();
        RetryPolicy {
            attempts: retry.attempts.unwrap_or(DEFAULT_ATTEMPTS),
            per_try_timeout: each,
            retry_on: Some(shared(&conditions.join(","))),
            avoid_previous_hosts: true,
            avoid_previous_localities: false,
            back_off: retry.backoff.and_then(|backoff| some(backoff.0)),
        }
    });
    let timeout = if retries.is_some() { request } else { each.or(request) };
    (timeout, retries)
}

fn condition(written: &Spanned<HttpRouteMatch>) -> HttpMatch {
    let parameters = written
        .query_params
        .iter()
        .map(|parameter| HeaderMatch { name: shared(&parameter.name), value: value(parameter.kind, &parameter.value) });
    HttpMatch {
        uri: Some(written.path.as_ref().map_or_else(|| StringMatch::Prefix("/".into()), path)),
        by_parts: true,
        method: written.method.map(|method| StringMatch::Exact(shared(method.as_str()))),
        headers: headers_of(&written.headers),
        query_params: first_of_each(parameters),
        origin: written.span.clone(),
        ..HttpMatch::default()
    }
}

/// Conditions on headers.
pub(super) fn headers_of(written: &[HttpHeaderMatch]) -> Vec<HeaderMatch> {
    let header = |header: &HttpHeaderMatch| HeaderMatch {
        name: header.name.0.clone(),
        value: value(header.kind, &header.value),
    };
    first_of_each(written.iter().map(header))
}

/// Of entries with one name the first counts.
fn first_of_each(all: impl Iterator<Item = HeaderMatch>) -> Vec<HeaderMatch> {
    let mut distinct: Vec<HeaderMatch> = Vec::new();
    for one in all {
        if !distinct.iter().any(|other| other.name == one.name) {
            distinct.push(one);
        }
    }
    distinct
}

fn path(written: &HttpPathMatch) -> StringMatch {
    let value = written.value();
    match written.kind() {
        PathMatchType::Exact => StringMatch::Exact(shared(value)),
        PathMatchType::RegularExpression => StringMatch::Regex(shared(value)),
        PathMatchType::PathPrefix => match value.trim_end_matches('/') {
            "" => StringMatch::Prefix("/".into()),
            prefix => StringMatch::Prefix(shared(prefix)),
        },
    }
}

fn value(kind: Option<ValueMatchType>, text: &str) -> StringMatch {
    match kind {
        Some(ValueMatchType::RegularExpression) => StringMatch::Regex(shared(text)),
        Some(ValueMatchType::Exact) | None => StringMatch::Exact(shared(text)),
    }
}
