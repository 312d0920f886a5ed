//! HTTP routes of a VirtualService: conditions, destinations, and responses of the proxy itself.

use std::collections::BTreeMap;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_base::Spanned;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;

use super::StringMatch;
use super::destination::{Destination, check_weights};
use super::gateway::check_gateways;
use super::http_policy::{CorsPolicy, HttpFaultInjection, HttpMirrorPolicy, Percent, check_whole_percent};
use crate::decode::{Context, Decode, HeaderName, Label, MatchName, Port, RegexText, Schema};
use crate::formats;

object! {
    /// One HTTP route.
    pub struct HttpRoute {
        /// Its name.
        name: Option<String> = "name",
        /// Any of these must hold.
        matches: Vec<Spanned<HttpMatch>> = "match",
        /// The destinations of requests.
        route: Vec<HttpRouteDestination> = "route",
        /// A redirect.
        redirect: Option<HttpRedirect> = "redirect",
        /// An answer by the proxy itself.
        direct_response: Option<DirectResponse> = "directResponse",
        /// Changes to path and authority.
        rewrite: Option<HttpRewrite> = "rewrite",
        /// Limit for the whole response.
        timeout: Option<Duration> = "timeout",
        /// The conditions for retries.
        retries: Option<HttpRetry> = "retries",
        /// Changes to headers.
        headers: Option<Headers> = "headers",
        /// Faults for tests.
        fault: Option<HttpFaultInjection> = "fault",
        /// A service that gets copies of requests.
        mirror: Option<Spanned<Destination>> = "mirror",
        /// Services that get copies of requests.
        mirrors: Vec<HttpMirrorPolicy> = "mirrors",
        /// The share of requests that `mirror` gets; all if not given.
        mirror_percentage: Option<Percent> = "mirrorPercentage",
        /// The older form of `mirrorPercentage`.
        mirror_percent: Option<Spanned<u32>> = "mirrorPercent",
        /// The oldest form of `mirrorPercentage`.
        mirror_percent_snake: Option<Spanned<u32>> = "mirror_percent",
        /// Which scripts in browsers may read responses.
        cors_policy: Option<CorsPolicy> = "corsPolicy",
        /// The VirtualService whose routes take the place of this one.
        delegate: Option<Spanned<Delegate>> = "delegate",
    }
    check: check_http_route;
}

object! {
    /// A VirtualService without hosts, whose HTTP routes take the place of a route of another.
    pub struct Delegate {
        /// Its name.
        name: Spanned<Label> = "name",
        /// Its namespace; that of the VirtualService with the route if not given.
        namespace: Option<Label> = "namespace",
    }
}

object! {
    /// Conditions on a request.
    pub struct HttpMatch {
        /// Its name.
        name: Option<String> = "name",
        /// The path.
        uri: Option<StringMatch> = "uri",
        /// The scheme.
        scheme: Option<StringMatch> = "scheme",
        /// The method.
        method: Option<StringMatch> = "method",
        /// The host.
        authority: Option<StringMatch> = "authority",
        /// Headers that must match.
        headers: BTreeMap<MatchName, StringMatch> = "headers",
        /// Headers that must not match.
        without_headers: BTreeMap<MatchName, StringMatch> = "withoutHeaders",
        /// Query parameters that must match.
        query_params: BTreeMap<String, StringMatch> = "queryParams",
        /// Whether `uri` ignores case.
        ignore_uri_case: bool = "ignoreUriCase",
        /// The port that is called.
        port: Option<Port> = "port",
        /// Labels of the client.
        source_labels: BTreeMap<String, String> = "sourceLabels",
        /// Namespace of the client.
        source_namespace: Option<Label> = "sourceNamespace",
        /// The gateways at which the condition applies.
        gateways: Vec<Spanned<String>> = "gateways",
        /// The prefix of the route's statistics.
        stat_prefix: Option<String> = "statPrefix",
    }
    check: check_http_match;
}

object! {
    /// A share of the requests.
    pub struct HttpRouteDestination {
        /// The destination.
        destination: Spanned<Destination> = "destination",
        /// Its size.
        weight: Option<u32> = "weight",
        /// Changes to headers.
        headers: Option<Headers> = "headers",
    }
}

object! {
    /// Changes to headers.
    pub struct Headers {
        /// Limits on requests.
        request: Option<HeaderOperations> = "request",
        /// Of responses.
        response: Option<HeaderOperations> = "response",
    }
}

object! {
    /// Changes to headers of one direction.
    pub struct HeaderOperations {
        /// Replace.
        set: BTreeMap<HeaderName, String> = "set",
        /// Append.
        add: BTreeMap<HeaderName, String> = "add",
        /// Remove.
        remove: Vec<HeaderName> = "remove",
    }
    check: check_operations;
}

fn check_operations(_: &HeaderOperations, node: &Node, cx: &mut Context) {
    for field in ["set", "add"] {
        for entry in node.get(field).and_then(Node::as_mapping).into_iter().flat_map(|mapping| mapping.iter()) {
            let value = entry.value.as_str().unwrap_or_default();
            cx.at_field(field, |cx| cx.at_key(&entry.key, |cx| formats::check_header(value, &entry.value.span, cx)));
        }
    }
}

object! {
    /// A redirect.
    pub struct HttpRedirect {
        /// The path.
        uri: Option<String> = "uri",
        /// The host.
        authority: Option<String> = "authority",
        /// The scheme.
        scheme: Option<String> = "scheme",
        /// The port.
        port: Option<Port> = "port",
        /// The source of the port.
        derive_port: Option<DerivePort> = "derivePort",
        /// The status; 301 if not given.
        redirect_code: Option<Spanned<u32>> = "redirectCode",
        /// Replaces the part of the path that a prefix match matched.
        prefix_rewrite: Option<String> = "prefixRewrite",
    }
    check: check_redirect;
}

choices! {
    /// The source of a redirect's port.
    pub enum DerivePort {
        /// The usual one of the scheme.
        FromProtocolDefault = "FROM_PROTOCOL_DEFAULT",
        /// The request's.
        FromRequestPort = "FROM_REQUEST_PORT",
    }
}

object! {
    /// An answer by the proxy itself.
    pub struct DirectResponse {
        /// The status.
        status: Spanned<u32> = "status",
        /// The body.
        body: Option<HttpBody> = "body",
    }
    check: check_direct_response;
}

object! {
    /// A body.
    pub struct HttpBody {
        /// As text.
        string: Option<String> = "string",
        /// As bytes, in base64.
        bytes: Option<Base64> = "bytes",
    }
    check: check_body;
}

/// Bytes, written in base64 (RFC 4648 section 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Base64(pub Vec<u8>);

impl Decode for Base64 {
    fn schema() -> Schema {
        Schema::String("bytes in base64")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        let Some(text) = node.as_str() else {
            cx.wrong_type(node, &Self::schema());
            return None;
        };
        // Lines may be folded.
        let plain: String = text.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        match STANDARD.decode(plain) {
            Ok(bytes) => Some(Self(bytes)),
            Err(error) => {
                let help = "write text under `string`, or encode it: `base64 -w0`";
                cx.error("bad-value", &node.span, format!("not base64: {error}"), help);
                None
            }
        }
    }
}

object! {
    /// Changes to path and authority.
    pub struct HttpRewrite {
        /// Replaces the path, or the prefix that matched.
        uri: Option<String> = "uri",
        /// Replaces the authority.
        authority: Option<String> = "authority",
        /// Replaces what a regular expression matches.
        uri_regex_rewrite: Option<RegexRewrite> = "uriRegexRewrite",
    }
    check: check_rewrite;
}

object! {
    /// Replaces what a regular expression matches.
    pub struct RegexRewrite {
        /// The expression.
        regex: RegexText = "match",
        /// The replacement, with `\1` for groups.
        rewrite: String = "rewrite",
    }
}

object! {
    /// The conditions for retries.
    pub struct HttpRetry {
        /// Retries after the first try.
        attempts: Option<u32> = "attempts",
        /// Limit for each try.
        per_try_timeout: Option<Duration> = "perTryTimeout",
        /// Conditions, separated by commas.
        retry_on: Option<Spanned<String>> = "retryOn",
        /// Whether retries avoid hosts that were tried; they do if not given.
        retry_ignore_previous_hosts: Option<bool> = "retryIgnorePreviousHosts",
        /// Maximum pause before the first retry.
        backoff: Option<Duration> = "backoff",
        /// Whether retries avoid localities that were tried.
        retry_remote_localities: Option<bool> = "retryRemoteLocalities",
    }
    check: check_retry;
}

fn check_http_route(route: &HttpRoute, node: &Node, cx: &mut Context) {
    if route.delegate.is_some() {
        check_root_route(route, node, cx);
        return;
    }
    check_action(route, node, cx);
    check_mirrors(route, node, cx);
    let weights = route.route.iter().map(|d| d.weight.unwrap_or(0));
    cx.at_field("route", |cx| check_weights(weights, node, cx));
    let rewrites_prefix = route.rewrite.as_ref().is_some_and(|r| r.uri.is_some());
    let by_regex = route.matches.iter().find(|m| m.uri.as_ref().is_some_and(|u| u.regex.is_some()));
    if let (true, Some(found)) = (rewrites_prefix, by_regex) {
        let help = "use `uriRegexRewrite`, or match by `prefix` or `exact`";
        cx.error("conflict", &found.span, "`rewrite.uri` cannot replace what a `regex` matches", help);
    }
}

/// A route that delegates leaves the action to the other VirtualService (Istio's `validateHTTPRouteConflict`).
fn check_root_route(route: &HttpRoute, node: &Node, cx: &mut Context) {
    for (given, name) in [(!route.route.is_empty(), "route"), (route.redirect.is_some(), "redirect")] {
        if given {
            let message = format!("`{name}` and `delegate` cannot be used together");
            cx.error("conflict", node.span_of_path(name), message, "keep one of the two");
        }
    }
    check_mirrors(route, node, cx);
}

fn check_action(route: &HttpRoute, node: &Node, cx: &mut Context) {
    let actions = [!route.route.is_empty(), route.redirect.is_some(), route.direct_response.is_some()];
    match actions.into_iter().filter(|is| *is).count() {
        1 => {}
        0 => {
            let help = "add `route`, `redirect`, `directResponse` or `delegate`";
            cx.error("missing-field", &node.span, "this route has no action", help);
        }
        _ => {
            let message = "`route`, `redirect` and `directResponse` cannot be used together";
            cx.error("conflict", &node.span, message, "keep one of them");
        }
    }
    if route.route.is_empty() {
        for (given, name) in [
            (route.rewrite.is_some(), "rewrite"),
            (route.timeout.is_some(), "timeout"),
            (route.retries.is_some(), "retries"),
            (route.mirror.is_some(), "mirror"),
            (!route.mirrors.is_empty(), "mirrors"),
            (route.cors_policy.is_some(), "corsPolicy"),
        ] {
            if given {
                let message = format!("`{name}` has no effect without `route`");
                cx.warning("no-effect", node.span_of_path(name), message, "remove it, or add `route`");
            }
        }
    }
    if route.fault.is_some() && route.redirect.is_some() {
        let message = "`fault` and `redirect` cannot be used together";
        cx.error("conflict", node.span_of_path("fault"), message, "keep one of the two");
    }
}

fn check_mirrors(route: &HttpRoute, node: &Node, cx: &mut Context) {
    if route.mirror.is_some() && !route.mirrors.is_empty() {
        let message = "`mirror` and `mirrors` cannot be used together";
        cx.error("conflict", node.span_of_path("mirrors"), message, "move the destination of `mirror` into `mirrors`");
    }
    let shares = [
        (route.mirror_percentage.is_some(), "mirrorPercentage"),
        (route.mirror_percent.is_some(), "mirrorPercent"),
        (route.mirror_percent_snake.is_some(), "mirror_percent"),
    ];
    for (_, name) in shares.into_iter().filter(|(given, _)| *given && route.mirror.is_none()) {
        let help = "add `mirror`, or use `mirrors` with `percentage`";
        cx.warning("no-effect", node.span_of_path(name), format!("`{name}` has no effect without `mirror`"), help);
    }
    check_whole_percent(route.mirror_percent.as_ref(), "mirrorPercent", cx);
    check_whole_percent(route.mirror_percent_snake.as_ref(), "mirror_percent", cx);
}

fn check_http_match(value: &HttpMatch, node: &Node, cx: &mut Context) {
    cx.at_field("gateways", |cx| check_gateways(&value.gateways, cx));
    if value.ignore_uri_case && value.uri.as_ref().is_some_and(|u| u.regex.is_some()) {
        let help = "write `(?i)` at the start of the expression instead";
        cx.error("conflict", node.span_of_path("ignoreUriCase"), "`ignoreUriCase` does not apply to `regex`", help);
    }
    for (kind, headers) in [("headers", &value.headers), ("withoutHeaders", &value.without_headers)] {
        for name in headers.keys().filter(|name| [":path", "uri"].contains(&&*name.0)) {
            let message = format!("`{}` is not a header", name.0);
            cx.at_field(kind, |cx| {
                cx.error("bad-header", node.span_of_path(kind), message, "match the path with `uri`")
            });
        }
    }
}

fn check_redirect(redirect: &HttpRedirect, node: &Node, cx: &mut Context) {
    if redirect.port.is_some() && redirect.derive_port.is_some() {
        cx.error(
            "conflict",
            node.span_of_path("derivePort"),
            "`port` and `derivePort` cannot be used together",
            "keep one of the two",
        );
    }
    if redirect.uri.is_some() && redirect.prefix_rewrite.is_some() {
        let message = "`uri` and `prefixRewrite` cannot be used together";
        cx.error("conflict", node.span_of_path("prefixRewrite"), message, "keep one of the two");
    }
    if let Some(code) = redirect.redirect_code.as_ref().filter(|c| ![301, 302, 303, 307, 308].contains(&c.value)) {
        cx.error(
            "bad-value",
            &code.span,
            format!("{} is not a redirect status", code.value),
            "allowed: 301, 302, 303, 307 or 308",
        );
    }
    let scheme = redirect.scheme.as_deref().filter(|s| !["http", "https"].contains(s));
    if let Some(scheme) = scheme {
        cx.error(
            "bad-value",
            node.span_of_path("scheme"),
            format!("`{scheme}` is not allowed here"),
            "allowed: `http` or `https`",
        );
    }
}

fn check_direct_response(response: &DirectResponse, _: &Node, cx: &mut Context) {
    if !(200..600).contains(&response.status.value) {
        let message = format!("{} is not a response status", response.status.value);
        cx.at_field("status", |cx| cx.error("bad-value", &response.status.span, message, "expected 200 to 599"));
    }
}

fn check_body(body: &HttpBody, node: &Node, cx: &mut Context) {
    if body.string.is_some() && body.bytes.is_some() {
        let message = "`string` and `bytes` cannot be used together";
        cx.error("conflict", node.span_of_path("bytes"), message, "keep one of the two");
    }
}

fn check_rewrite(rewrite: &HttpRewrite, node: &Node, cx: &mut Context) {
    if rewrite.uri.is_some() && rewrite.uri_regex_rewrite.is_some() {
        cx.error(
            "conflict",
            node.span_of_path("uri"),
            "`uri` and `uriRegexRewrite` cannot be used together",
            "keep one of the two",
        );
    }
}

/// Envoy's conditions for `x-envoy-retry-on` and `x-envoy-retry-grpc-on`.
const RETRY_CONDITIONS: &[&str] = &[
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "envoy-ratelimited",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

fn check_retry(retry: &HttpRetry, _: &Node, cx: &mut Context) {
    let Some(conditions) = &retry.retry_on else { return };
    for condition in conditions.split(',').map(str::trim).filter(|c| !c.is_empty()) {
        let status = condition.parse::<u16>().is_ok_and(|code| (100..600).contains(&code));
        if !status && !RETRY_CONDITIONS.contains(&condition) {
            let help = match closest(condition, RETRY_CONDITIONS.iter().copied()) {
                Some(known) => format!("did you mean `{known}`?"),
                None => format!("allowed: a status such as 503, {}", one_of(RETRY_CONDITIONS.iter().copied())),
            };
            let message = format!("`{condition}` is not a retry condition");
            cx.at_field("retryOn", |cx| cx.error("bad-value", &conditions.span, message, help));
        }
    }
}
