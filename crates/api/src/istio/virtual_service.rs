//! VirtualService: routes for hosts.

use std::collections::BTreeMap;
use std::time::Duration;

use evenkeel_base::cidr::IpNet;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;
use evenkeel_base::{Diagnostic, Spanned};

use super::{StringMatch, check_export_to};
use crate::decode::{Context, HeaderName, Label, Port, RegexText};

object! {
    /// Routes for hosts.
    pub struct VirtualService {
        /// The specification.
        spec: VirtualServiceSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// Routes for hosts.
    pub struct VirtualServiceSpec {
        /// The hosts: full names, names of Services of the same namespace, wildcards.
        hosts: Vec<Spanned<Hostname>> = "hosts",
        /// Where it applies: names of Gateways or `mesh`; `mesh` if not given.
        gateways: Vec<Spanned<String>> = "gateways",
        /// Routes of HTTP requests.
        http: Vec<Spanned<HttpRoute>> = "http",
        /// Routes of TLS connections that are passed on unread.
        tls: Vec<Spanned<TlsRoute>> = "tls",
        /// Routes of TCP connections.
        tcp: Vec<Spanned<TcpRoute>> = "tcp",
        /// The namespaces that see it.
        export_to: Vec<Spanned<String>> = "exportTo",
    }
    check: check;
}

object! {
    /// One HTTP route.
    pub struct HttpRoute {
        /// Its name.
        name: Option<String> = "name",
        /// Any of these must hold.
        matches: Vec<Spanned<HttpMatch>> = "match",
        /// Where requests go.
        route: Vec<HttpRouteDestination> = "route",
        /// A redirect.
        redirect: Option<HttpRedirect> = "redirect",
        /// An answer by the proxy itself.
        direct_response: Option<DirectResponse> = "directResponse",
        /// Changes to path and authority.
        rewrite: Option<HttpRewrite> = "rewrite",
        /// Limit for the whole response.
        timeout: Option<Duration> = "timeout",
        /// When requests are tried again.
        retries: Option<HttpRetry> = "retries",
        /// Changes to headers.
        headers: Option<Headers> = "headers",
    }
    later: ["fault", "mirror", "mirrors", "mirrorPercent", "mirror_percent", "mirrorPercentage", "corsPolicy"];
    refused: ["delegate"];
    check: check_http_route;
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
        headers: BTreeMap<HeaderName, StringMatch> = "headers",
        /// Headers that must not match.
        without_headers: BTreeMap<HeaderName, StringMatch> = "withoutHeaders",
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
    }
    later: ["statPrefix"];
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
    /// A share of the connections.
    pub struct RouteDestination {
        /// The destination.
        destination: Spanned<Destination> = "destination",
        /// Its size.
        weight: Option<u32> = "weight",
    }
}

object! {
    /// A service, or part of one.
    pub struct Destination {
        /// The service.
        host: Spanned<Hostname> = "host",
        /// A subset of a DestinationRule.
        subset: Option<Spanned<String>> = "subset",
        /// The service's port.
        port: Option<Spanned<PortSelector>> = "port",
    }
    check: check_destination;
}

object! {
    /// A port.
    pub struct PortSelector {
        /// Its number.
        number: Port = "number",
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
        /// Where the port is taken from.
        derive_port: Option<DerivePort> = "derivePort",
        /// The status; 301 if not given.
        redirect_code: Option<Spanned<u32>> = "redirectCode",
    }
    refused: ["prefixRewrite"];
    check: check_redirect;
}

choices! {
    /// Where a redirect's port is taken from.
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
    }
    refused: ["bytes"];
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
    /// When requests are tried again.
    pub struct HttpRetry {
        /// Retries after the first try.
        attempts: Option<u32> = "attempts",
        /// Limit for each try.
        per_try_timeout: Option<Duration> = "perTryTimeout",
        /// Conditions, separated by commas.
        retry_on: Option<Spanned<String>> = "retryOn",
        /// Whether retries avoid hosts that were tried; they do if not given.
        retry_ignore_previous_hosts: Option<bool> = "retryIgnorePreviousHosts",
        /// Longest pause before the first retry.
        backoff: Option<Duration> = "backoff",
        /// Whether retries avoid localities that were tried.
        retry_remote_localities: Option<bool> = "retryRemoteLocalities",
    }
    check: check_retry;
}

object! {
    /// One TLS route.
    pub struct TlsRoute {
        /// Any of these must hold.
        matches: Vec<TlsMatchAttributes> = "match",
        /// Where connections go.
        route: Vec<RouteDestination> = "route",
    }
    check: check_tls_route;
}

object! {
    /// Conditions on a TLS connection.
    pub struct TlsMatchAttributes {
        /// Names the client may ask for.
        sni_hosts: Vec<Spanned<Hostname>> = "sniHosts",
        /// Ranges of the called address.
        destination_subnets: Vec<IpNet> = "destinationSubnets",
        /// The port that is called.
        port: Option<Port> = "port",
        /// Labels of the client.
        source_labels: BTreeMap<String, String> = "sourceLabels",
        /// Namespace of the client.
        source_namespace: Option<Label> = "sourceNamespace",
        /// The gateways at which the condition applies.
        gateways: Vec<Spanned<String>> = "gateways",
    }
}

object! {
    /// One TCP route.
    pub struct TcpRoute {
        /// Any of these must hold.
        matches: Vec<L4MatchAttributes> = "match",
        /// Where connections go.
        route: Vec<RouteDestination> = "route",
    }
    check: check_tcp_route;
}

object! {
    /// Conditions on a TCP connection.
    pub struct L4MatchAttributes {
        /// Ranges of the called address.
        destination_subnets: Vec<IpNet> = "destinationSubnets",
        /// The port that is called.
        port: Option<Port> = "port",
        /// Labels of the client.
        source_labels: BTreeMap<String, String> = "sourceLabels",
        /// Namespace of the client.
        source_namespace: Option<Label> = "sourceNamespace",
        /// The gateways at which the condition applies.
        gateways: Vec<Spanned<String>> = "gateways",
    }
    refused: ["sourceSubnet"];
}

fn check(spec: &VirtualServiceSpec, node: &Node, cx: &mut Context) {
    check_export_to(&spec.export_to, cx);
    check_hosts(spec, node, cx);
    cx.at_field("gateways", |cx| check_gateways(&spec.gateways, cx));
    if spec.http.is_empty() && spec.tls.is_empty() && spec.tcp.is_empty() {
        cx.error("missing-field", &node.span, "there are no routes", "add `http`, `tls` or `tcp`");
    }
    check_reachable(&spec.http, cx);
    for sni in spec.tls.iter().flat_map(|r| &r.matches).flat_map(|m| &m.sni_hosts) {
        if !spec.hosts.iter().any(|h| h.covers(sni)) {
            let message = format!("`{}` is not one of the hosts of this VirtualService", sni.value);
            cx.at_field("tls", |cx| cx.error("bad-host", &sni.span, message, "add it to `hosts`"));
        }
    }
}

fn check_hosts(spec: &VirtualServiceSpec, node: &Node, cx: &mut Context) {
    cx.at_field("hosts", |cx| {
        if spec.hosts.is_empty() {
            // Istio allows it only for the target of a delegate, which is not supported.
            cx.error("missing-field", &node.span, "at least one host is needed", "add `hosts: [reviews]`");
        }
        let in_mesh = spec.gateways.is_empty() || spec.gateways.iter().any(|g| g.value == "mesh");
        for (index, host) in spec.hosts.iter().enumerate() {
            if spec.hosts.iter().take(index).any(|earlier| earlier == host) {
                let message = format!("`{}` appears twice", host.value);
                cx.error("duplicate-host", &host.span, message, "remove one of the two");
            }
            if in_mesh && host.as_str() == "*" {
                let help = "name the hosts, or list `gateways` without `mesh`";
                cx.error("bad-host", &host.span, "`*` is only for gateways, not for the mesh", help);
            }
        }
    });
}

/// Reports routes that are never used because an earlier route matches every request.
fn check_reachable(routes: &[Spanned<HttpRoute>], cx: &mut Context) {
    let Some(first) = routes.iter().position(|r| r.matches.is_empty()) else { return };
    let (Some(takes_all), Some(next)) = (routes.get(first), routes.get(first + 1)) else { return };
    let path = cx.path();
    let message =
        format!("`{path}.http[{}]`: never reached, because an earlier route matches every request", first + 1);
    cx.push(
        Diagnostic::warning("unreachable-route", next.span.clone(), message)
            .with_help("move it before the other, or add a `match` to that one")
            .with_related(takes_all.span.clone(), "matches every request"),
    );
}

fn check_gateways(gateways: &[Spanned<String>], cx: &mut Context) {
    for (index, gateway) in gateways.iter().enumerate() {
        let named = |part: &str| {
            let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
            !part.is_empty() && part.chars().all(inner)
        };
        let parts: Vec<&str> = gateway.split('/').collect();
        if parts.len() > 2 || !parts.iter().all(|p| named(p)) {
            let message = format!("`{}` is not the name of a Gateway", gateway.value);
            cx.at_index(index, |cx| {
                cx.error("bad-value", &gateway.span, message, "expected `name`, `namespace/name` or `mesh`")
            });
        }
    }
}

fn check_http_route(route: &HttpRoute, node: &Node, cx: &mut Context) {
    let actions = [!route.route.is_empty(), route.redirect.is_some(), route.direct_response.is_some()];
    match actions.into_iter().filter(|is| *is).count() {
        1 => {}
        0 => {
            let help = "add `route`, `redirect` or `directResponse`";
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
        ] {
            if given {
                let message = format!("`{name}` has no effect without `route`");
                cx.warning("no-effect", node.span_of_path(name), message, "remove it, or add `route`");
            }
        }
    }
    let weights = route.route.iter().map(|d| d.weight.unwrap_or(0));
    cx.at_field("route", |cx| check_weights(weights, node, cx));
    let rewrites_prefix = route.rewrite.as_ref().is_some_and(|r| r.uri.is_some());
    let by_regex = route.matches.iter().find(|m| m.uri.as_ref().is_some_and(|u| u.regex.is_some()));
    if let (true, Some(found)) = (rewrites_prefix, by_regex) {
        let help = "use `uriRegexRewrite`, or match by `prefix` or `exact`";
        cx.error("conflict", &found.span, "`rewrite.uri` cannot replace what a `regex` matches", help);
    }
}

/// Checks weights: a single destination gets everything; of several, at least one must have a weight above zero.
fn check_weights(weights: impl ExactSizeIterator<Item = u32>, node: &Node, cx: &mut Context) {
    let several = weights.len() > 1;
    if several && weights.map(u64::from).sum::<u64>() == 0 {
        cx.error(
            "bad-weight",
            node.span_of_path("route"),
            "all weights are zero",
            "give each destination a `weight`, e.g. 90 and 10",
        );
    }
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

fn check_destination(destination: &Destination, _: &Node, cx: &mut Context) {
    if destination.host.is_wildcard() {
        let message = format!("`{}` does not name one service", destination.host.value);
        cx.at_field("host", |cx| {
            cx.error("bad-host", &destination.host.span, message, "a destination needs the name of one service")
        });
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

fn check_tls_route(route: &TlsRoute, node: &Node, cx: &mut Context) {
    if route.matches.is_empty() || route.matches.iter().any(|m| m.sni_hosts.is_empty()) {
        cx.error(
            "missing-field",
            &node.span,
            "a TLS route needs `match` with `sniHosts`",
            "add `match: [{sniHosts: [example.com]}]`",
        );
    }
    check_l4_route(&route.route, node, cx);
    for matched in &route.matches {
        cx.at_field("match", |cx| check_gateways(&matched.gateways, cx));
    }
}

fn check_tcp_route(route: &TcpRoute, node: &Node, cx: &mut Context) {
    check_l4_route(&route.route, node, cx);
    for matched in &route.matches {
        cx.at_field("match", |cx| check_gateways(&matched.gateways, cx));
    }
}

fn check_l4_route(destinations: &[RouteDestination], node: &Node, cx: &mut Context) {
    cx.at_field("route", |cx| {
        if destinations.is_empty() {
            cx.error(
                "missing-field",
                &node.span,
                "at least one destination is needed",
                "add `- destination: {host: db}`",
            );
        }
        check_weights(destinations.iter().map(|d| d.weight.unwrap_or(0)), node, cx);
    });
}
