//! Parts of a VirtualService's HTTP route that name no other object.

use std::collections::BTreeMap;
use std::sync::Arc;

use evenkeel_api::decode::{HeaderName, MatchName};
use evenkeel_api::istio::{self, DerivePort, UnmatchedPreflights};
use evenkeel_base::Spanned;
use evenkeel_base::grpc::STATUS_NAMES;

use super::shared;
use crate::{
    AbortStatus, CorsPolicy, DirectResponse, Fault, HeaderMatch, HeaderOperations, Headers, Millionths, Redirect,
    RedirectPort, RetryPolicy, Rewrite, StringMatch,
};

pub(super) fn text(text: &Option<String>) -> Arc<str> {
    shared(text.as_deref().unwrap_or_default())
}

pub(super) fn string_match(written: &istio::StringMatch) -> StringMatch {
    match (&written.exact, &written.prefix, &written.regex) {
        (Some(exact), _, _) => StringMatch::Exact(shared(exact)),
        (None, Some(prefix), _) => StringMatch::Prefix(shared(prefix)),
        (None, None, Some(regex)) => StringMatch::Regex(regex.0.clone()),
        (None, None, None) => StringMatch::Present,
    }
}

pub(super) fn header_matches(written: &BTreeMap<MatchName, istio::StringMatch>) -> Vec<HeaderMatch> {
    written.iter().map(|(name, m)| HeaderMatch { name: name.0.clone(), value: string_match(m) }).collect()
}

pub(super) fn headers_of(written: &istio::Headers) -> Headers {
    let operations = |o: &Option<istio::HeaderOperations>| o.as_ref().map(header_operations).unwrap_or_default();
    Headers { request: operations(&written.request), response: operations(&written.response) }
}

fn header_operations(written: &istio::HeaderOperations) -> HeaderOperations {
    let pairs = |map: &BTreeMap<HeaderName, String>| map.iter().map(|(n, v)| (n.0.clone(), shared(v))).collect();
    HeaderOperations {
        set: pairs(&written.set),
        add: pairs(&written.add),
        remove: written.remove.iter().map(|n| n.0.clone()).collect(),
    }
}

pub(super) fn redirect_of(written: &istio::HttpRedirect) -> Redirect {
    let optional = |t: &Option<String>| t.as_deref().map(shared);
    Redirect {
        uri: optional(&written.uri),
        prefix: optional(&written.prefix_rewrite),
        uri_regex: None,
        authority: optional(&written.authority),
        scheme: optional(&written.scheme),
        port: match (written.port, written.derive_port) {
            (Some(port), _) => Some(RedirectPort::Number(port.0)),
            (None, Some(DerivePort::FromProtocolDefault)) => Some(RedirectPort::ProtocolDefault),
            (None, Some(DerivePort::FromRequestPort)) => Some(RedirectPort::Request),
            (None, None) => None,
        },
        // The decoder has checked that it is a redirect status.
        code: written.redirect_code.as_ref().and_then(|c| u16::try_from(c.value).ok()).unwrap_or(301),
    }
}

pub(super) fn rewrite_of(written: &istio::HttpRewrite) -> Rewrite {
    let regex = |r: &istio::RegexRewrite| (r.regex.0.clone(), shared(&r.rewrite));
    Rewrite {
        uri: written.uri.as_deref().map(shared),
        authority: written.authority.as_deref().map(shared),
        uri_regex: written.uri_regex_rewrite.as_ref().map(regex),
    }
}

pub(super) fn retries_of(written: &istio::HttpRetry) -> RetryPolicy {
    RetryPolicy {
        attempts: written.attempts.unwrap_or(0),
        per_try_timeout: written.per_try_timeout,
        retry_on: written.retry_on.as_ref().map(|c| shared(c)),
        avoid_previous_hosts: written.retry_ignore_previous_hosts.unwrap_or(true),
        avoid_previous_localities: written.retry_remote_localities.unwrap_or(false),
        back_off: written.backoff,
    }
}

pub(super) fn parameter_matches(written: &BTreeMap<String, istio::StringMatch>) -> Vec<HeaderMatch> {
    written.iter().map(|(name, m)| HeaderMatch { name: shared(name), value: string_match(m) }).collect()
}

/// `None` if the status is none, which the decoder has reported.
pub(super) fn direct_response_of(written: &istio::DirectResponse) -> Option<DirectResponse> {
    let body = written.body.as_ref();
    let bytes = body.and_then(|body| body.bytes.as_ref()).map(|bytes| bytes.0.as_slice());
    let text = body.and_then(|body| body.string.as_deref()).unwrap_or_default().as_bytes();
    Some(DirectResponse { status: u16::try_from(written.status.value).ok()?, body: bytes.unwrap_or(text).into() })
}

pub(super) fn millionths(written: &istio::Percent) -> Millionths {
    Millionths::from_percent(written.value.as_ref().map_or(0.0, |value| value.value.0))
}

/// A share in the older form.
fn whole_percent(percent: &Spanned<u32>) -> Millionths {
    Millionths::from_percent(f64::from(percent.value))
}

/// The share of `mirror`: the first `mirrorPercentage`, or else the first `mirrorPercent`, of a route and the one that
/// delegates to it; all requests if there is none.
pub(super) fn mirror_share(routes: [Option<&istio::HttpRoute>; 2]) -> Millionths {
    let routes = || routes.into_iter().flatten();
    let percentage = routes().find_map(|route| route.mirror_percentage.as_ref()).map(millionths);
    let older = || routes().find_map(|route| route.mirror_percent.as_ref().or(route.mirror_percent_snake.as_ref()));
    percentage.or_else(|| older().map(whole_percent)).unwrap_or(Millionths::ALL)
}

/// Faults; `None` if no request suffers any.
pub(super) fn fault_of(written: &istio::HttpFaultInjection) -> Option<Fault> {
    let delay = written.delay.as_ref().and_then(|delay| {
        let older = || delay.percent.as_ref().map(whole_percent);
        let share = delay.percentage.as_ref().map(millionths).or_else(older)?;
        Some((delay.fixed_delay.as_ref()?.value, share))
    });
    let abort = written.abort.as_ref().and_then(|abort| {
        let http = abort.http_status.as_ref().and_then(|status| u16::try_from(status.value).ok());
        let grpc = || {
            let status = abort.grpc_status.as_ref()?;
            let number = STATUS_NAMES.iter().position(|(_, name)| *name == status.value)?;
            u8::try_from(number).ok().map(AbortStatus::Grpc)
        };
        Some((http.map(AbortStatus::Http).or_else(grpc)?, abort.percentage.as_ref().map(millionths)?))
    });
    (delay.is_some() || abort.is_some()).then_some(Fault { delay, abort })
}

/// As Istio's `TranslateCORSPolicy`.
pub(super) fn cors_of(written: &istio::CorsPolicy) -> CorsPolicy {
    let joined = |texts: &[Spanned<String>]| -> Arc<str> {
        shared(&texts.iter().map(|text| text.as_str()).collect::<Vec<_>>().join(","))
    };
    let older = || written.allow_origin.iter().map(|origin| StringMatch::Exact(shared(origin))).collect();
    CorsPolicy {
        allow_origins: if written.allow_origins.is_empty() {
            older()
        } else {
            written.allow_origins.iter().map(string_match).collect()
        },
        allow_methods: joined(&written.allow_methods),
        allow_headers: joined(&written.allow_headers),
        expose_headers: joined(&written.expose_headers),
        max_age: written.max_age.as_ref().map(|age| age.value.as_secs()),
        allow_credentials: written.allow_credentials,
        forwards_unmatched: written.unmatched_preflights != Some(UnmatchedPreflights::Ignore),
    }
}
