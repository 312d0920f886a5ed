//! Policies of a VirtualService's HTTP route besides forwarding: faults, mirrors, CORS.

use std::time::Duration;

use evenkeel_base::Spanned;
use evenkeel_base::grpc::STATUS_NAMES;
use evenkeel_base::suggest::{closest, one_of};
use evenkeel_base::yaml::Node;

use super::StringMatch;
use super::destination::Destination;
use crate::decode::{Context, Decimal, HeaderName};

object! {
    /// A share of requests.
    pub struct Percent {
        /// The percentage, 0 to 100.
        value: Option<Spanned<Decimal>> = "value",
    }
    check: check_percent;
}

object! {
    /// Faults that clients of a service see, for tests.
    pub struct HttpFaultInjection {
        /// Requests that wait.
        delay: Option<FaultDelay> = "delay",
        /// Requests that fail.
        abort: Option<FaultAbort> = "abort",
    }
}

object! {
    /// Requests that wait before they are forwarded.
    pub struct FaultDelay {
        /// The duration.
        fixed_delay: Option<Spanned<Duration>> = "fixedDelay",
        /// The share of requests; none if not given.
        percentage: Option<Percent> = "percentage",
        /// The older form of `percentage`.
        percent: Option<Spanned<u32>> = "percent",
    }
    refused: ["exponentialDelay"];
    check: check_delay;
}

object! {
    /// Requests that are answered with an error instead of being forwarded.
    pub struct FaultAbort {
        /// The HTTP status.
        http_status: Option<Spanned<u32>> = "httpStatus",
        /// The gRPC status, by its name.
        grpc_status: Option<Spanned<String>> = "grpcStatus",
        /// The share of requests; none if not given.
        percentage: Option<Percent> = "percentage",
    }
    refused: ["http2Error"];
    check: check_abort;
}

object! {
    /// A service that gets copies of requests.
    pub struct HttpMirrorPolicy {
        /// The service.
        destination: Spanned<Destination> = "destination",
        /// The share of requests; all if not given.
        percentage: Option<Percent> = "percentage",
    }
}

object! {
    /// Which scripts in browsers may read responses (Cross-Origin Resource Sharing).
    pub struct CorsPolicy {
        /// Origins of scripts.
        allow_origins: Vec<StringMatch> = "allowOrigins",
        /// The older form of `allowOrigins`: exact origins, or `*`.
        allow_origin: Vec<String> = "allowOrigin",
        /// Methods that they may use.
        allow_methods: Vec<Spanned<String>> = "allowMethods",
        /// Request headers that they may send.
        allow_headers: Vec<Spanned<String>> = "allowHeaders",
        /// Response headers that they may read.
        expose_headers: Vec<Spanned<String>> = "exposeHeaders",
        /// How long browsers may cache the response to a preflight request; whole seconds.
        max_age: Option<Spanned<Duration>> = "maxAge",
        /// Whether they may use credentials.
        allow_credentials: Option<bool> = "allowCredentials",
        /// How preflight requests of other origins are handled.
        unmatched_preflights: Option<UnmatchedPreflights> = "unmatchedPreflights",
    }
    check: check_cors;
}

choices! {
    /// How preflight requests of origins that are not allowed are handled.
    pub enum UnmatchedPreflights {
        /// They are forwarded.
        Unspecified = "UNSPECIFIED",
        /// They are forwarded.
        Forward = "FORWARD",
        /// The proxy answers, without CORS headers.
        Ignore = "IGNORE",
    }
}

fn check_percent(percent: &Percent, _: &Node, cx: &mut Context) {
    let wrong = percent.value.as_ref().filter(|value| !(0.0..=100.0).contains(&value.value.0));
    if let Some(value) = wrong {
        let message = format!("{} is not a percentage", value.value.0);
        cx.at_field("value", |cx| cx.error("out-of-range", &value.span, message, "expected 0 to 100"));
    }
}

/// Checks the older form of percentages.
pub(super) fn check_whole_percent(value: Option<&Spanned<u32>>, name: &str, cx: &mut Context) {
    if let Some(percent) = value.filter(|percent| percent.value > 100) {
        let message = format!("{} is not a percentage", percent.value);
        cx.at_field(name, |cx| cx.error("out-of-range", &percent.span, message, "expected 0 to 100"));
    }
}

fn check_delay(delay: &FaultDelay, node: &Node, cx: &mut Context) {
    check_whole_percent(delay.percent.as_ref(), "percent", cx);
    match &delay.fixed_delay {
        None => {
            let help = "add `fixedDelay`, such as `5s`";
            cx.warning("no-effect", &node.span, "without `fixedDelay` no request is delayed", help);
        }
        // Istio's `validateDuration`.
        Some(fixed) if fixed.value < Duration::from_millis(1) => {
            cx.error("out-of-range", &fixed.span, "the delay is shorter than 1 ms", "give a longer duration");
        }
        Some(_) if delay.percentage.is_none() && delay.percent.is_none() => {
            note_no_share(node, "delayed", cx);
        }
        Some(_) => {}
    }
}

fn check_abort(abort: &FaultAbort, node: &Node, cx: &mut Context) {
    match (&abort.http_status, &abort.grpc_status) {
        (Some(_), Some(grpc)) => {
            let message = "`httpStatus` and `grpcStatus` cannot be used together";
            cx.error("conflict", &grpc.span, message, "keep one of the two");
        }
        (None, None) => {
            let help = "add `httpStatus` or `grpcStatus`";
            cx.warning("no-effect", &node.span, "without a status no request is aborted", help);
        }
        _ if abort.percentage.is_none() => note_no_share(node, "aborted", cx),
        _ => {}
    }
    // Envoy allows 200 to 599.
    if let Some(status) = abort.http_status.as_ref().filter(|status| !(200..600).contains(&status.value)) {
        let message = format!("{} is not a response status", status.value);
        cx.at_field("httpStatus", |cx| cx.error("bad-value", &status.span, message, "expected 200 to 599"));
    }
    let names = || STATUS_NAMES.iter().map(|(_, name)| *name);
    if let Some(status) = abort.grpc_status.as_ref().filter(|status| !names().any(|name| name == status.value)) {
        let help = match closest(status, names()) {
            Some(name) => format!("did you mean `{name}`?"),
            None => format!("allowed: {}", one_of(names())),
        };
        let message = format!("`{}` is not the name of a gRPC status", status.value);
        cx.at_field("grpcStatus", |cx| cx.error("bad-value", &status.span, message, help));
    }
}

/// A fault without a share applies to no request, as in Istio.
fn note_no_share(node: &Node, what: &str, cx: &mut Context) {
    let message = format!("without `percentage` no request is {what}");
    cx.warning("no-effect", &node.span, message, "add `percentage: {value: 100}`");
}

/// The methods that Istio allows here.
const METHODS: &[&str] = &["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*"];

fn check_cors(cors: &CorsPolicy, node: &Node, cx: &mut Context) {
    if !cors.allow_origins.is_empty() && !cors.allow_origin.is_empty() {
        let message = "`allowOrigin` has no effect beside `allowOrigins`";
        cx.warning("no-effect", node.span_of_path("allowOrigin"), message, "remove it");
    }
    for (index, method) in cors.allow_methods.iter().enumerate() {
        if !METHODS.contains(&method.as_str()) {
            let message = format!("`{}` is not a method", method.value);
            let help = format!("allowed: {}", one_of(METHODS.iter().copied()));
            cx.at_field("allowMethods", |cx| {
                cx.at_index(index, |cx| cx.error("bad-value", &method.span, message, help))
            });
        }
    }
    for (name, headers) in [("allowHeaders", &cors.allow_headers), ("exposeHeaders", &cors.expose_headers)] {
        // They are sent as written, so they are not read as `HeaderName`s, which are lower case.
        for (index, header) in headers.iter().enumerate().filter(|(_, header)| !HeaderName::is_valid(header)) {
            let message = format!("`{}` is not the name of a header", header.value);
            let help = "expected letters, digits and dashes, such as `x-user`";
            cx.at_field(name, |cx| cx.at_index(index, |cx| cx.error("bad-header", &header.span, message, help)));
        }
    }
    if let Some(age) = cors.max_age.as_ref().filter(|age| age.value.subsec_nanos() > 0) {
        let message = "`maxAge` counts whole seconds";
        cx.at_field("maxAge", |cx| cx.error("bad-value", &age.span, message, "give a duration such as `24h`"));
    }
}
