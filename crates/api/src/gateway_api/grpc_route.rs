//! GRPCRoute: routes of gRPC calls, at Gateways and in the mesh.

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::http_filter::{HttpFilter, check_filters};
use super::http_route::{HttpBackendRef, HttpHeaderMatch, ValueMatchType};
use super::limits::{SectionName, at_most, check_hostname};
use super::reference::{DefaultScope, ParentRef, check_parents};
use super::session::SessionPersistence;
use crate::decode::{Context, RegexText};

object! {
    /// Routes of gRPC calls.
    pub struct GrpcRoute {
        /// The specification.
        spec: GrpcRouteSpec = "spec",
    }
    inert: ["status"];
}

object! {
    /// The specification of a GRPCRoute.
    pub struct GrpcRouteSpec {
        /// What it attaches to.
        parent_refs: Vec<Spanned<ParentRef>> = "parentRefs",
        /// The hosts; those of the listeners if not given. Without a meaning in the mesh.
        hostnames: Vec<Spanned<Hostname>> = "hostnames",
        /// The rules.
        rules: Vec<Spanned<GrpcRouteRule>> = "rules",
        /// Whether it also attaches to the Gateways that say `defaultScope: All`.
        use_default_gateways: Option<Spanned<DefaultScope>> = "useDefaultGateways",
    }
    check: check_route;
}

object! {
    /// Conditions, and what becomes of a call that meets one of them.
    pub struct GrpcRouteRule {
        /// Its name, for logs.
        name: Option<SectionName> = "name",
        /// The conditions; any of them is enough. Not given: every call.
        matches: Vec<Spanned<GrpcRouteMatch>> = "matches",
        /// Filters.
        filters: Vec<Spanned<HttpFilter>> = "filters",
        /// The backends.
        backend_refs: Vec<Spanned<HttpBackendRef>> = "backendRefs",
        /// Whether the calls of a session go to one endpoint.
        session_persistence: Option<Spanned<SessionPersistence>> = "sessionPersistence",
    }
    check: check_rule;
}

object! {
    /// Conditions on a call; all must hold.
    pub struct GrpcRouteMatch {
        /// Service and method; every one if not given.
        method: Option<GrpcMethodMatch> = "method",
        /// Headers.
        headers: Vec<HttpHeaderMatch> = "headers",
    }
}

object! {
    /// A condition on the service and the method.
    pub struct GrpcMethodMatch {
        /// How they are matched; `Exact` if not given.
        kind: Option<ValueMatchType> = "type",
        /// The service, with its package; every one if not given.
        service: Option<Spanned<String>> = "service",
        /// The method; every one if not given.
        method: Option<Spanned<String>> = "method",
    }
    check: check_method;
}

fn check_route(route: &GrpcRouteSpec, node: &Node, cx: &mut Context) {
    check_parents(&route.parent_refs, node, cx);
    at_most(16, route.hostnames.len(), "hostnames", &node.span, cx);
    for (at, host) in route.hostnames.iter().enumerate() {
        cx.at_field("hostnames", |cx| cx.at_index(at, |cx| check_hostname(host, cx)));
    }
    at_most(16, route.rules.len(), "rules", &node.span, cx);
}

fn check_rule(rule: &GrpcRouteRule, node: &Node, cx: &mut Context) {
    at_most(64, rule.matches.len(), "matches", &node.span, cx);
    at_most(16, rule.backend_refs.len(), "backendRefs", &node.span, cx);
    check_filters(&rule.filters, node, cx);
    let all = rule.filters.iter().chain(rule.backend_refs.iter().flat_map(|backend| &backend.filters));
    for filter in
        all.filter(|filter| filter.request_redirect.is_some() || filter.url_rewrite.is_some() || filter.cors.is_some())
    {
        let message = format!("a GRPCRoute has no filter of the type {}", filter.kind.as_str());
        cx.error("bad-value", &filter.span, message, "use an HTTPRoute for it");
    }
}

fn check_method(method: &GrpcMethodMatch, node: &Node, cx: &mut Context) {
    if method.service.is_none() && method.method.is_none() {
        let message = "neither `service` nor `method` is given";
        cx.error("missing-field", &node.span, message, "write one of them, or leave out the condition");
    }
    let is_regex = method.kind == Some(ValueMatchType::RegularExpression);
    let is_name = |text: &str| {
        let is_first = |c: char| c.is_ascii_alphabetic() || c == '_';
        text.starts_with(is_first) && text.chars().all(|c| is_first(c) || c.is_ascii_digit())
    };
    for (field, written, has_package) in [("service", &method.service, true), ("method", &method.method, false)] {
        let Some(written) = written else { continue };
        let text = written.strip_prefix('.').filter(|_| has_package).unwrap_or(written);
        let is_valid = if has_package { text.split('.').all(is_name) } else { is_name(text) };
        let of_name = || (!is_valid).then(|| format!("`{}` is not a name in gRPC", written.value));
        let mistake = if is_regex { RegexText::new(written).err() } else { of_name() };
        if let Some(message) = mistake {
            let help = "such as `shop.v1.Reviews` and `Get`, or an expression with `type: RegularExpression`";
            cx.at_field(field, |cx| cx.error("bad-value", &written.span, message, help));
        }
    }
}
