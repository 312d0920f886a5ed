//! HTTPRoute: routes of HTTP requests, at Gateways and in the mesh.

use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;
use evenkeel_base::{Span, Spanned};

use super::http_filter::{FilterType, HttpFilter, PathModifierType, check_filters};
use super::limits::{GatewayDuration, SectionName, at_most, check_hostname};
use super::reference::{BackendTarget, DefaultScope, ParentRef, check_parents};
use super::session::SessionPersistence;
use crate::decode::{Context, HeaderName, Label, Port, RegexText};

object! {
    /// Routes of HTTP requests.
    pub struct HttpRoute {
        /// The specification.
        spec: HttpRouteSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of an HTTPRoute.
    pub struct HttpRouteSpec {
        /// What it attaches to.
        parent_refs: Vec<Spanned<ParentRef>> = "parentRefs",
        /// The hosts; those of the listeners if not given. Without a meaning in the mesh.
        hostnames: Vec<Spanned<Hostname>> = "hostnames",
        /// The rules.
        rules: Option<Vec<Spanned<HttpRouteRule>>> = "rules",
        /// Whether it also attaches to the Gateways that say `defaultScope: All`.
        use_default_gateways: Option<Spanned<DefaultScope>> = "useDefaultGateways",
    }
    check: check_route;
}

object! {
    /// Conditions, and what becomes of a request that meets one of them.
    pub struct HttpRouteRule {
        /// Its name, for logs.
        name: Option<SectionName> = "name",
        /// The conditions; any of them is enough. Not given: every request.
        matches: Vec<Spanned<HttpRouteMatch>> = "matches",
        /// Filters.
        filters: Vec<Spanned<HttpFilter>> = "filters",
        /// The backends.
        backend_refs: Vec<Spanned<HttpBackendRef>> = "backendRefs",
        /// Timeouts.
        timeouts: Option<HttpTimeouts> = "timeouts",
        /// Retries.
        retry: Option<HttpRetry> = "retry",
        /// Whether the requests of a session go to one endpoint.
        session_persistence: Option<Spanned<SessionPersistence>> = "sessionPersistence",
    }
    check: check_rule;
}

object! {
    /// Conditions on a request; all must hold.
    pub struct HttpRouteMatch {
        /// The path; every path if not given.
        path: Option<HttpPathMatch> = "path",
        /// Headers.
        headers: Vec<HttpHeaderMatch> = "headers",
        /// Query parameters.
        query_params: Vec<HttpQueryParamMatch> = "queryParams",
        /// The method.
        method: Option<HttpMethod> = "method",
    }
    check: check_match;
}

object! {
    /// A condition on the path.
    pub struct HttpPathMatch {
        /// How it is matched; `PathPrefix` if not given.
        kind: Option<PathMatchType> = "type",
        /// The path; `/` if not given.
        value: Option<Spanned<String>> = "value",
    }
    check: check_path;
}

choices! {
    /// How a path is matched.
    pub enum PathMatchType {
        /// It is the same.
        Exact = "Exact",
        /// It begins with these parts between slashes.
        PathPrefix = "PathPrefix",
        /// It matches a regular expression, as a whole.
        RegularExpression = "RegularExpression",
    }
}

choices! {
    /// How a header or a query parameter is matched.
    pub enum ValueMatchType {
        /// It is the same.
        Exact = "Exact",
        /// It matches a regular expression, as a whole.
        RegularExpression = "RegularExpression",
    }
}

choices! {
    /// A method.
    pub enum HttpMethod {
        /// GET
        Get = "GET",
        /// HEAD
        Head = "HEAD",
        /// POST
        Post = "POST",
        /// PUT
        Put = "PUT",
        /// DELETE
        Delete = "DELETE",
        /// CONNECT
        Connect = "CONNECT",
        /// OPTIONS
        Options = "OPTIONS",
        /// TRACE
        Trace = "TRACE",
        /// PATCH
        Patch = "PATCH",
    }
}

object! {
    /// A condition on a header.
    pub struct HttpHeaderMatch {
        /// How it is matched; `Exact` if not given.
        kind: Option<ValueMatchType> = "type",
        /// Its name.
        name: HeaderName = "name",
        /// Its value.
        value: Spanned<String> = "value",
    }
    check: check_header;
}

object! {
    /// A condition on a query parameter.
    pub struct HttpQueryParamMatch {
        /// How it is matched; `Exact` if not given.
        kind: Option<ValueMatchType> = "type",
        /// Its name.
        name: String = "name",
        /// Its value.
        value: Spanned<String> = "value",
    }
    check: check_parameter;
}

object! {
    /// A backend and its share of the requests.
    pub struct HttpBackendRef {
        /// Its group; Kubernetes' core if not given.
        group: Option<String> = "group",
        /// Its kind; `Service` if not given.
        kind: Option<String> = "kind",
        /// Its name.
        name: Spanned<String> = "name",
        /// Its namespace; the route's own if not given.
        namespace: Option<Label> = "namespace",
        /// Its port.
        port: Option<Port> = "port",
        /// Its share, relative to the sum of all; 1 if not given.
        weight: Option<Spanned<u32>> = "weight",
        /// Filters for requests to it.
        filters: Vec<Spanned<HttpFilter>> = "filters",
    }
    check: check_backend;
}

object! {
    /// Timeouts.
    pub struct HttpTimeouts {
        /// For the whole request; 0: none.
        request: Option<Spanned<GatewayDuration>> = "request",
        /// For each try; 0: none.
        backend_request: Option<Spanned<GatewayDuration>> = "backendRequest",
    }
    check: check_timeouts;
}

object! {
    /// Retries.
    pub struct HttpRetry {
        /// Statuses after which a request is sent again.
        codes: Vec<Spanned<u32>> = "codes",
        /// Tries after the first.
        attempts: Option<u32> = "attempts",
        /// The shortest pause before a retry.
        backoff: Option<GatewayDuration> = "backoff",
    }
    check: check_retry;
}

impl HttpBackendRef {
    /// The backend.
    pub fn target(&self) -> BackendTarget<'_> {
        BackendTarget {
            group: self.group.as_deref().unwrap_or_default(),
            kind: self.kind.as_deref().unwrap_or("Service"),
            name: &self.name,
            namespace: self.namespace.as_ref(),
            port: self.port.map(|port| port.0),
        }
    }
}

impl HttpPathMatch {
    /// How it is matched.
    pub fn kind(&self) -> PathMatchType {
        self.kind.unwrap_or(PathMatchType::PathPrefix)
    }

    /// The path.
    pub fn value(&self) -> &str {
        self.value.as_ref().map_or("/", |value| value.as_str())
    }
}

/// The most conditions of a route.
const MAX_MATCHES: usize = 128;

fn check_route(route: &HttpRouteSpec, node: &Node, cx: &mut Context) {
    check_parents(&route.parent_refs, node, cx);
    at_most(16, route.hostnames.len(), "hostnames", &node.span, cx);
    for (at, host) in route.hostnames.iter().enumerate() {
        cx.at_field("hostnames", |cx| cx.at_index(at, |cx| check_hostname(host, cx)));
    }
    let Some(rules) = &route.rules else { return };
    if rules.is_empty() {
        cx.at_field("rules", |cx| {
            cx.error("missing-field", &node.span, "a route needs at least one rule", "add a rule, or remove `rules`")
        });
    }
    at_most(16, rules.len(), "rules", &node.span, cx);
    let matches: usize = rules.iter().map(|rule| rule.matches.len()).sum();
    at_most(MAX_MATCHES, matches, "rules", &node.span, cx);
}

fn check_rule(rule: &HttpRouteRule, node: &Node, cx: &mut Context) {
    at_most(64, rule.matches.len(), "matches", &node.span, cx);
    at_most(16, rule.backend_refs.len(), "backendRefs", &node.span, cx);
    check_filters(&rule.filters, node, cx);
    let redirect = rule.filters.iter().find(|filter| filter.kind == FilterType::RequestRedirect);
    if let Some(redirect) = redirect.filter(|_| !rule.backend_refs.is_empty()) {
        let message = "a redirect excludes `backendRefs`";
        cx.at_field("filters", |cx| cx.error("conflict", &redirect.span, message, "remove one of them"));
    }
    check_prefixes(rule, &rule.filters, cx);
    for backend in &rule.backend_refs {
        check_prefixes(rule, &backend.filters, cx);
    }
}

/// A prefix can be replaced only if the rule has a single condition, on a prefix.
fn check_prefixes(rule: &HttpRouteRule, filters: &[Spanned<HttpFilter>], cx: &mut Context) {
    let is_prefix = match rule.matches.as_slice() {
        [] => true,
        [only] => only.path.as_ref().is_none_or(|path| path.kind() == PathMatchType::PathPrefix),
        _ => false,
    };
    let paths = filters.iter().filter_map(|filter| {
        let of_redirect = filter.request_redirect.as_ref().and_then(|redirect| redirect.path.as_ref());
        let of_rewrite = filter.url_rewrite.as_ref().and_then(|rewrite| rewrite.path.as_ref());
        of_redirect.or(of_rewrite).map(|path| (filter, path))
    });
    for (filter, _) in paths.filter(|(_, path)| path.kind == PathModifierType::ReplacePrefixMatch && !is_prefix) {
        let message = "`replacePrefixMatch` needs exactly one match, of the type PathPrefix";
        cx.error("conflict", &filter.span, message, "split the rule, or use `replaceFullPath`");
    }
}

fn check_match(condition: &HttpRouteMatch, node: &Node, cx: &mut Context) {
    at_most(16, condition.headers.len(), "headers", &node.span, cx);
    at_most(16, condition.query_params.len(), "queryParams", &node.span, cx);
}

fn check_path(path: &HttpPathMatch, _: &Node, cx: &mut Context) {
    let Some(value) = &path.value else { return };
    if path.kind() == PathMatchType::RegularExpression {
        check_regex(value, cx);
        return;
    }
    let text = value.as_str();
    let forbidden = ["//", "/./", "/../", "%2f", "%2F", "#"].into_iter().find(|part| text.contains(part));
    let ending = ["/..", "/."].into_iter().find(|end| text.ends_with(end));
    let message = match (forbidden, ending) {
        _ if !text.starts_with('/') => format!("the path `{text}` does not begin with a slash"),
        (Some(part), _) => format!("the path `{text}` contains `{part}`"),
        (None, Some(end)) => format!("the path `{text}` ends in `{end}`"),
        _ if !is_path(text) => format!("the path `{text}` has characters that no path has"),
        _ => return,
    };
    cx.at_field("value", |cx| {
        cx.error("bad-value", &value.span, message, "write the path as normalized requests have it")
    });
}

/// Whether a text has only characters of a path (RFC 3986).
fn is_path(text: &str) -> bool {
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let hex = rest.get(1..3).is_some_and(|hex| hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let len = match c {
            '%' if hex => 3,
            _ if c.is_ascii_alphanumeric() || "-/._~!$&'()*+,;=:@".contains(c) => 1,
            _ => return false,
        };
        rest = rest.get(len..).unwrap_or_default();
    }
    true
}

pub(super) fn check_regex(value: &Spanned<String>, cx: &mut Context) {
    if let Err(message) = RegexText::new(value) {
        let help = "a regular expression in RE2 syntax, without look-around and back references";
        cx.at_field("value", |cx| cx.error("bad-regex", &value.span, message, help));
    }
}

fn check_header(header: &HttpHeaderMatch, node: &Node, cx: &mut Context) {
    if header.name.0.starts_with(':') {
        let message = format!("`{}` is not the name of a header", header.name.0);
        cx.at_field("name", |cx| cx.error("bad-header", &node.span, message, "match path and method by their fields"));
    }
    check_value(header.kind, &header.value, cx);
}

fn check_parameter(parameter: &HttpQueryParamMatch, node: &Node, cx: &mut Context) {
    if !HeaderName::is_valid(&parameter.name) {
        let message = format!("`{}` is not a name of a parameter", parameter.name);
        cx.at_field("name", |cx| cx.error("bad-name", &node.span, message, "expected letters, digits and dashes"));
    }
    check_value(parameter.kind, &parameter.value, cx);
}

fn check_value(kind: Option<ValueMatchType>, value: &Spanned<String>, cx: &mut Context) {
    if value.is_empty() {
        cx.at_field("value", |cx| cx.error("bad-value", &value.span, "the value is empty", "write a value"));
    }
    if kind == Some(ValueMatchType::RegularExpression) {
        check_regex(value, cx);
    }
}

/// The greatest weight.
const MAX_WEIGHT: u32 = 1_000_000;

pub(super) fn check_weight(weight: Option<&Spanned<u32>>, cx: &mut Context) {
    if let Some(weight) = weight.filter(|weight| weight.value > MAX_WEIGHT) {
        let message = format!("{} is out of range", weight.value);
        cx.at_field("weight", |cx| cx.error("out-of-range", &weight.span, message, format!("at most {MAX_WEIGHT}")));
    }
}

fn check_backend(backend: &HttpBackendRef, node: &Node, cx: &mut Context) {
    backend.target().check(cx);
    check_weight(backend.weight.as_ref(), cx);
    check_filters(&backend.filters, node, cx);
}

fn check_timeouts(timeouts: &HttpTimeouts, _: &Node, cx: &mut Context) {
    let (Some(request), Some(backend)) = (&timeouts.request, &timeouts.backend_request) else { return };
    if !request.value.0.is_zero() && backend.value.0 > request.value.0 {
        let message = "`backendRequest` is longer than `request`";
        let span: &Span = &backend.span;
        cx.at_field("backendRequest", |cx| cx.error("conflict", span, message, "shorten it"));
    }
}

fn check_retry(retry: &HttpRetry, _: &Node, cx: &mut Context) {
    for (at, code) in retry.codes.iter().enumerate().filter(|(_, code)| !(400..=599).contains(&code.value)) {
        let message = format!("{} is not a status of an error", code.value);
        let at_place = |cx: &mut Context| cx.error("bad-value", &code.span, message, "expected 400 to 599");
        cx.at_field("codes", |cx| cx.at_index(at, at_place));
    }
}
