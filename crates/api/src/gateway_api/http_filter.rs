//! Filters of HTTPRoutes and GRPCRoutes.

use evenkeel_base::Spanned;
use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;

use super::limits::at_most;
use super::reference::{LocalReference, MirrorBackendRef};
use crate::decode::{Context, HeaderName, Port};
use crate::formats;

object! {
    /// A filter of requests or responses.
    pub struct HttpFilter {
        /// Its type, which says what field is set.
        kind: FilterType = "type",
        /// Changes to request headers.
        request_header_modifier: Option<HeaderModifier> = "requestHeaderModifier",
        /// Changes to response headers.
        response_header_modifier: Option<HeaderModifier> = "responseHeaderModifier",
        /// Copies of requests.
        request_mirror: Option<RequestMirror> = "requestMirror",
        /// The client is sent elsewhere.
        request_redirect: Option<RequestRedirect> = "requestRedirect",
        /// Changes to path and host.
        url_rewrite: Option<UrlRewrite> = "urlRewrite",
        /// Which scripts in browsers may read responses.
        cors: Option<CorsFilter> = "cors",
        /// A filter of an implementation.
        extension_ref: Option<LocalReference> = "extensionRef",
    }
    refused: ["externalAuth"];
    check: check_filter;
}

choices! {
    /// The type of a filter.
    pub enum FilterType {
        /// `requestHeaderModifier`
        RequestHeaderModifier = "RequestHeaderModifier",
        /// `responseHeaderModifier`
        ResponseHeaderModifier = "ResponseHeaderModifier",
        /// `requestMirror`
        RequestMirror = "RequestMirror",
        /// `requestRedirect`
        RequestRedirect = "RequestRedirect",
        /// `urlRewrite`
        UrlRewrite = "URLRewrite",
        /// `extensionRef`
        ExtensionRef = "ExtensionRef",
        /// `cors`
        Cors = "CORS",
    }
    later: ["ExternalAuth"];
}

object! {
    /// Changes to headers: `set` first, then `add`, then `remove`.
    pub struct HeaderModifier {
        /// Headers that replace those of the same name.
        set: Vec<HeaderValue> = "set",
        /// Headers that are added.
        add: Vec<HeaderValue> = "add",
        /// Headers that are removed.
        remove: Vec<HeaderName> = "remove",
    }
    check: check_headers;
}

object! {
    /// A header.
    pub struct HeaderValue {
        /// Its name.
        name: HeaderName = "name",
        /// Its value.
        value: String = "value",
    }
    check: check_value;
}

object! {
    /// Copies of requests.
    pub struct RequestMirror {
        /// Who gets them.
        backend_ref: Spanned<MirrorBackendRef> = "backendRef",
        /// The share of requests, in percent; all if not given.
        percent: Option<Spanned<u32>> = "percent",
        /// The share of requests as a fraction.
        fraction: Option<Spanned<MirrorFraction>> = "fraction",
    }
    check: check_mirror;
}

object! {
    /// A fraction.
    pub struct MirrorFraction {
        /// The numerator.
        numerator: u32 = "numerator",
        /// The denominator; 100 if not given.
        denominator: Option<u32> = "denominator",
    }
    check: check_fraction;
}

object! {
    /// The client is sent elsewhere.
    pub struct RequestRedirect {
        /// The scheme; the request's if not given.
        scheme: Option<RedirectScheme> = "scheme",
        /// The host; the request's if not given.
        hostname: Option<Spanned<Hostname>> = "hostname",
        /// The path; the request's if not given.
        path: Option<PathModifier> = "path",
        /// The port; that of the scheme, or the listener's.
        port: Option<Port> = "port",
        /// 301, 302, 303, 307 or 308; 302 if not given.
        status_code: Option<Spanned<u32>> = "statusCode",
    }
    check: check_redirect;
}

choices! {
    /// The scheme of a redirect.
    pub enum RedirectScheme {
        /// `http`
        Http = "http",
        /// `https`
        Https = "https",
    }
}

object! {
    /// A change to the path.
    pub struct PathModifier {
        /// What is replaced.
        kind: PathModifierType = "type",
        /// Replaces the path.
        replace_full_path: Option<String> = "replaceFullPath",
        /// Replaces what a `PathPrefix` matched.
        replace_prefix_match: Option<String> = "replacePrefixMatch",
    }
    check: check_path_modifier;
}

choices! {
    /// What a path modifier replaces.
    pub enum PathModifierType {
        /// The path.
        ReplaceFullPath = "ReplaceFullPath",
        /// What a `PathPrefix` matched.
        ReplacePrefixMatch = "ReplacePrefixMatch",
    }
}

object! {
    /// Changes to path and host.
    pub struct UrlRewrite {
        /// The host.
        hostname: Option<Spanned<Hostname>> = "hostname",
        /// The path.
        path: Option<PathModifier> = "path",
    }
    check: check_rewrite;
}

object! {
    /// Which scripts in browsers may read responses.
    pub struct CorsFilter {
        /// Origins, with wildcards.
        allow_origins: Vec<Spanned<String>> = "allowOrigins",
        /// Methods.
        allow_methods: Vec<Spanned<String>> = "allowMethods",
        /// Request headers.
        allow_headers: Vec<Spanned<String>> = "allowHeaders",
        /// Response headers.
        expose_headers: Vec<Spanned<String>> = "exposeHeaders",
        /// How long browsers may cache the response to a preflight request, in seconds; 5 if not given.
        max_age: Option<u32> = "maxAge",
        /// Whether credentials may be used.
        allow_credentials: Option<bool> = "allowCredentials",
    }
    check: check_cors;
}

fn check_filter(filter: &HttpFilter, node: &Node, cx: &mut Context) {
    let fields = [
        (FilterType::RequestHeaderModifier, "requestHeaderModifier", filter.request_header_modifier.is_some()),
        (FilterType::ResponseHeaderModifier, "responseHeaderModifier", filter.response_header_modifier.is_some()),
        (FilterType::RequestMirror, "requestMirror", filter.request_mirror.is_some()),
        (FilterType::RequestRedirect, "requestRedirect", filter.request_redirect.is_some()),
        (FilterType::UrlRewrite, "urlRewrite", filter.url_rewrite.is_some()),
        (FilterType::Cors, "cors", filter.cors.is_some()),
        (FilterType::ExtensionRef, "extensionRef", filter.extension_ref.is_some()),
    ];
    for (kind, field, is_set) in fields {
        let message = match (kind == filter.kind, is_set) {
            (true, false) => format!("a filter of the type {} needs `{field}`", kind.as_str()),
            (false, true) => format!("`{field}` does not belong to a filter of the type {}", filter.kind.as_str()),
            _ => continue,
        };
        cx.error("conflict", &node.span, message, format!("`type: {}` and `{field}` belong together", kind.as_str()));
    }
}

fn check_headers(headers: &HeaderModifier, node: &Node, cx: &mut Context) {
    let lens = [("set", headers.set.len()), ("add", headers.add.len()), ("remove", headers.remove.len())];
    lens.into_iter().for_each(|(field, len)| at_most(16, len, field, &node.span, cx));
    let names = headers.set.iter().chain(&headers.add).map(|header| &header.name).chain(&headers.remove);
    for name in names.filter(|name| name.0.starts_with(':')) {
        let message = format!("`{}` is not the name of a header", name.0);
        cx.error("bad-header", &node.span, message, "expected letters, digits and dashes, such as `x-user`");
    }
}

fn check_value(header: &HeaderValue, node: &Node, cx: &mut Context) {
    let span = node.get("value").map_or(&node.span, |value| &value.span);
    cx.at_field("value", |cx| formats::check_header(&header.value, span, cx));
}

fn check_mirror(mirror: &RequestMirror, _: &Node, cx: &mut Context) {
    if let (Some(percent), Some(_)) = (&mirror.percent, &mirror.fraction) {
        let message = "`percent` and `fraction` exclude each other";
        cx.at_field("percent", |cx| cx.error("conflict", &percent.span, message, "remove one of them"));
    }
    if let Some(percent) = mirror.percent.as_ref().filter(|percent| percent.value > 100) {
        let message = format!("{} is out of range", percent.value);
        cx.at_field("percent", |cx| cx.error("out-of-range", &percent.span, message, "expected 0 to 100"));
    }
}

fn check_fraction(fraction: &MirrorFraction, node: &Node, cx: &mut Context) {
    let denominator = fraction.denominator.unwrap_or(100);
    if denominator == 0 || fraction.numerator > denominator {
        let message = format!("{}/{denominator} is not a share", fraction.numerator);
        cx.error("out-of-range", &node.span, message, "the numerator is at most the denominator, which is at least 1");
    }
}

fn check_redirect(redirect: &RequestRedirect, _: &Node, cx: &mut Context) {
    if let Some(code) = &redirect.status_code
        && !matches!(code.value, 301 | 302 | 303 | 307 | 308)
    {
        let message = format!("{} is not a status of a redirect", code.value);
        cx.at_field("statusCode", |cx| cx.error("bad-value", &code.span, message, "301, 302, 303, 307 or 308"));
    }
    check_precise_host(redirect.hostname.as_ref(), cx);
}

fn check_rewrite(rewrite: &UrlRewrite, _: &Node, cx: &mut Context) {
    check_precise_host(rewrite.hostname.as_ref(), cx);
}

/// A host that a request gets has no wildcard.
fn check_precise_host(host: Option<&Spanned<Hostname>>, cx: &mut Context) {
    if let Some(host) = host.filter(|host| !super::limits::is_subdomain(host.as_str())) {
        let message = format!("`{}` is not a host that a request can have", host.value);
        cx.at_field("hostname", |cx| cx.error("bad-host", &host.span, message, "expected `a.example.com`"));
    }
}

fn check_path_modifier(path: &PathModifier, node: &Node, cx: &mut Context) {
    let is_full = path.kind == PathModifierType::ReplaceFullPath;
    if is_full != path.replace_full_path.is_some() || is_full == path.replace_prefix_match.is_some() {
        let kind = path.kind.as_str();
        let field = if is_full { "replaceFullPath" } else { "replacePrefixMatch" };
        let message = format!("`type: {kind}` goes with `{field}` alone");
        cx.error("conflict", &node.span, message, format!("write `{field}`"));
    }
}

/// The methods that a CORS filter may name.
const CORS_METHODS: [&str; 10] = ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "*"];

fn check_cors(cors: &CorsFilter, _: &Node, cx: &mut Context) {
    let lists = [
        ("allowOrigins", &cors.allow_origins),
        ("allowMethods", &cors.allow_methods),
        ("allowHeaders", &cors.allow_headers),
    ];
    for (field, list) in lists {
        if let Some(star) = list.iter().find(|text| text.as_str() == "*").filter(|_| list.len() > 1) {
            let message = "`*` stands for all and excludes other entries";
            cx.at_field(field, |cx| cx.error("conflict", &star.span, message, "remove `*`, or the other entries"));
        }
    }
    for method in cors.allow_methods.iter().filter(|method| !CORS_METHODS.contains(&method.as_str())) {
        let message = format!("`{}` is not a method", method.value);
        cx.at_field("allowMethods", |cx| cx.error("bad-value", &method.span, message, "such as GET, in capitals"));
    }
    let is_name = |name: &&Spanned<String>| name.as_str() != "*" && !HeaderName::is_valid(name);
    for (field, list) in [("allowHeaders", &cors.allow_headers), ("exposeHeaders", &cors.expose_headers)] {
        for name in list.iter().filter(is_name) {
            let message = format!("`{}` is not the name of a header", name.value);
            cx.at_field(field, |cx| cx.error("bad-header", &name.span, message, "such as `x-user`"));
        }
    }
    for origin in cors.allow_origins.iter().filter(|origin| !is_origin(origin)) {
        let message = format!("`{}` is not an origin", origin.value);
        let help = "expected `*`, `https://a.example.com` or `https://*.example.com`, without a path";
        cx.at_field("allowOrigins", |cx| cx.error("bad-value", &origin.span, message, help));
    }
}

/// Whether a text is `*`, or a scheme and a host, perhaps a wildcard, perhaps with a port.
fn is_origin(text: &str) -> bool {
    let Some((scheme, rest)) = text.split_once("://") else { return text == "*" };
    let (host, port) = rest.split_once(':').map_or((rest, None), |(host, port)| (host, Some(port)));
    let is_port = |port: &str| (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit());
    let is_label = |label: &str| !label.is_empty() && label.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let named = host.strip_prefix("*.").unwrap_or(host);
    let is_host = host == "*" || named.split('.').all(is_label);
    matches!(scheme, "http" | "https") && is_host && port.is_none_or(is_port)
}

/// What the filters of a rule or of a backend are checked for.
pub(super) fn check_filters(filters: &[Spanned<HttpFilter>], node: &Node, cx: &mut Context) {
    at_most(16, filters.len(), "filters", &node.span, cx);
    for (at, filter) in filters.iter().enumerate() {
        let may_repeat = matches!(filter.kind, FilterType::RequestMirror | FilterType::ExtensionRef);
        let is_repeated = filters.iter().take(at).any(|other| other.kind == filter.kind);
        let excluded = match filter.kind {
            FilterType::RequestRedirect => Some(FilterType::UrlRewrite),
            FilterType::UrlRewrite => Some(FilterType::RequestRedirect),
            _ => None,
        };
        let beside = filters.iter().take(at).find(|other| Some(other.kind) == excluded);
        let message = match beside {
            Some(other) => format!("{} and {} exclude each other", other.kind.as_str(), filter.kind.as_str()),
            None if is_repeated && !may_repeat => format!("{} cannot be repeated", filter.kind.as_str()),
            None => continue,
        };
        let at_place = |cx: &mut Context| cx.error("conflict", &filter.span, message, "remove one of them");
        cx.at_field("filters", |cx| cx.at_index(at, at_place));
    }
}
