//! Failures of a request, or before a TCP connection was proxied: one type, and one table with the consequences of each
//! failure for the client, the access log, the statistics, retries and outlier detection. Response flags and code details are
//! exactly Envoy's.

use std::borrow::Cow;

use evenkeel_filters::callouts::Problem;
use evenkeel_filters::explain::query::CircuitBreaker;
use evenkeel_filters::{BadBody, ResponseFlags};
use evenkeel_http::HeadError;
use evenkeel_http::h2::{Fault, Reason};
use evenkeel_upstream::{AcquireError, ConnectError, Outcome, Overflow, PickError, cluster_stats};

use self::Says::{Phrase, Reset, Words};
use crate::stats::http::Counter;
use crate::stats::tcp;

/// A failure.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The client sent an invalid head.
    Head(HeadError),
    /// The client's body is malformed.
    RequestBody,
    /// The body is longer than a filter accepts.
    BodyTooLarge,
    /// HTTP/1.0, which is off.
    LowVersion,
    /// The overload manager, or a limit of the listener, refuses the request.
    Overload,
    /// The path cannot be normalized, or has escaped slashes, which are configured to be refused.
    Path,
    /// The request target is not a path: `*`, or a URL where URLs are refused.
    NotAPath,
    /// The head did not arrive in time (`request_headers_timeout`).
    HeadTimeout,
    /// The request did not arrive in time (`request_timeout`).
    RequestTimeout,
    /// Nothing moved for longer than the stream idle timeout.
    Idle {
        /// The request was complete: the response is late.
        complete: bool,
    },
    /// The client has taken none of the response bytes that wait for it for too long (`stream_flush_timeout`).
    FlushTimeout,
    /// The client closed before the response was complete.
    ClientGone,
    /// The client reset the stream with this code, or the stream was reset because of what the client did on it.
    ClientReset(Reason),
    /// The client's message violated the protocol, and its stream was reset.
    ClientMessage(Fault),
    /// The client violated the protocol, and its connection was closed with all its streams.
    ClientConnection,
    /// The request has come back to this proxy too often.
    Loop,
    /// No route.
    NoRoute,
    /// The route's cluster does not exist; the client gets this status.
    NoCluster(u16),
    /// There is no host to pick; the client gets this status.
    NoHealthyHost(u16),
    /// Dropped by `drop_overloads`, which drops a share of the requests.
    DropOverload,
    /// Dropped by `drop_overloads`, which drops all requests.
    UnconditionalDropOverload,
    /// The requested upgrade is not allowed.
    UpgradeRefused,
    /// This circuit breaker is open.
    Overflow(Overflow),
    /// Connecting failed, with Envoy's transport failure reason.
    Connect(String),
    /// Connecting took too long.
    ConnectTimeout,
    /// The upstream closed or reset the connection before a response head. `sent`: part of the request was sent.
    UpstreamClosed {
        /// Request bytes were sent.
        sent: bool,
    },
    /// The upstream reset the stream.
    UpstreamReset,
    /// The upstream refused the stream without processing it, so that any request may be sent again.
    UpstreamRefused,
    /// The upstream's response is not valid HTTP.
    UpstreamProtocol,
    /// The route's timeout.
    ResponseTimeout,
    /// `per_try_timeout`.
    PerTryTimeout,
    /// `max_stream_duration`.
    LastedTooLong {
        /// The request was complete: the response is late.
        complete: bool,
    },
    /// `per_try_idle_timeout`.
    PerTryIdleTimeout,
    /// A filter of the cluster replies in place of the host.
    Filter(Box<evenkeel_filters::Reply>),
    /// A filter finds the request's body invalid.
    BadBody(BadBody),
    /// Filters made a body longer or shorter than its head announced.
    FilteredLength,
}

/// A failure's row of the table: its consequences.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    /// Status the client gets; 0 when it gets no response.
    pub(crate) status: u16,
    /// Envoy's `%RESPONSE_FLAGS%`.
    pub(crate) flags: ResponseFlags,
    says: Says,
    /// Who ended the request.
    pub(crate) ended_by: EndedBy,
    /// Whether the connection cannot carry another request, because it is unknown where the next one begins on it.
    pub(crate) ends_connection: bool,
    /// A header that tells a downstream proxy why the request was refused.
    pub(crate) header: Option<(&'static [u8], &'static [u8])>,
    /// The connection manager's counter for it.
    pub(crate) counter: Option<Counter>,
    /// The cluster's counter for it, incremented by each try that ends in it.
    pub(crate) cluster_counter: Option<cluster_stats::Counter>,
    /// The cluster's counter for an HTTP/1 exchange that ends in it.
    pub(crate) http1_reset: Option<cluster_stats::Counter>,
    /// The cluster's counter for an HTTP/2 stream that ends in it. Unless the upstream has ended the stream, this proxy resets it.
    pub(crate) http2_reset: Option<cluster_stats::Counter>,
    /// The TCP proxy's counter for it.
    pub(crate) tcp_counter: Option<tcp::Counter>,
    /// Which retry policies cover it.
    pub(crate) retry: Retry,
    /// The outcome reported to outlier detection about the host; `None`: none.
    pub(crate) outcome: Option<Outcome>,
    /// The problem reported to a filter whose call failed in this way.
    pub(crate) problem: Problem,
    /// Whether the try's span has its flags. Resets always have; other failures are those of the request.
    pub(crate) is_of_try: bool,
}

/// The texts for the access log and the client.
#[derive(Debug, Clone, Copy)]
enum Says {
    /// Envoy's `%RESPONSE_CODE_DETAILS%`, and the response body.
    Words(&'static str, &'static str),
    /// Likewise; the body is the reason phrase of the status.
    Phrase(&'static str),
    /// Envoy's name for the upstream's reset: details and body are built from it.
    Reset(&'static str),
}

/// Who ended a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndedBy {
    /// The client left, or sent an invalid request.
    Client,
    /// This proxy: it refused the request, or timed out.
    Proxy,
    /// The upstream, or the connection to it.
    Upstream,
}

/// Which `retry_on` conditions cover a failure. None covers an open circuit breaker: retries would only add to the load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retry {
    /// None.
    Never,
    /// The conditions for resets.
    Reset,
    /// Those, and `reset-before-request`.
    Unsent,
    /// As [`Retry::Unsent`], and `connect-failure`.
    Connect,
    /// As [`Retry::Unsent`], and `refused-stream`.
    Refused,
}

/// Makes [`Failure::row`] from one line for each failure.
macro_rules! table {
    ($($failure:pat => $status:expr, $flags:ident, $says:expr, $ended_by:ident, $ends:ident $(, $field:ident: $value:expr)*;)*) => {
        impl Failure {
            /// The consequences of the failure.
            #[allow(clippy::too_many_lines, reason = "one line for each failure")]
            pub(crate) fn row(&self) -> Row {
                match self {
                    $($failure => Row {
                        $($field: $value,)*
                        ..Row::new($status, ResponseFlags::$flags, $says, EndedBy::$ended_by, $ends)
                    },)*
                }
            }
        }
    };
}

/// The connection stays open.
const STAYS: bool = false;
/// The connection is closed after the request.
const ENDS: bool = true;

table! {
    // Envoy's codec accepts these heads, its connection manager refuses them: no flag.
    Self::Head(error @ (HeadError::MissingHost | HeadError::Fragment)) => error.status(), NONE, Words(error.details(), ""), Client, ENDS;
    Self::Head(error) => error.status(), DOWNSTREAM_PROTOCOL_ERROR, Phrase(error.details()), Client, ENDS;
    Self::RequestBody => 400, DOWNSTREAM_PROTOCOL_ERROR, Phrase("http1.codec_error"), Client, ENDS;
    Self::ClientGone => 0, DOWNSTREAM_CONNECTION_TERMINATION, Words("downstream_remote_disconnect", ""), Client, ENDS;
    Self::ClientReset(Reason::NO_ERROR) => 0, NONE, Words("", ""), Client, STAYS;
    Self::ClientReset(Reason::PROTOCOL_ERROR) => 0, DOWNSTREAM_PROTOCOL_ERROR, Words("http2.remote_reset", ""), Client, STAYS;
    Self::ClientReset(Reason::REFUSED_STREAM) => 0, DOWNSTREAM_REMOTE_RESET, Words("http2.remote_refuse", ""), Client, STAYS;
    Self::ClientReset(_) => 0, DOWNSTREAM_REMOTE_RESET, Words("http2.remote_reset", ""), Client, STAYS;
    Self::ClientMessage(Fault::Field) => 0, DOWNSTREAM_PROTOCOL_ERROR, Words("http2.invalid.header.field", ""), Client, STAYS;
    Self::ClientMessage(Fault::Message) => 0, DOWNSTREAM_PROTOCOL_ERROR, Words("http2.violation.of.messaging.rule", ""), Client, STAYS;
    // Envoy resets the stream itself in these two cases as well, and still flags them as a reset by the client.
    Self::ClientMessage(Fault::TooLarge) => 0, DOWNSTREAM_REMOTE_RESET, Words("http2.too_many_headers", ""), Client, STAYS;
    Self::ClientMessage(Fault::Underscore) => 0, DOWNSTREAM_REMOTE_RESET, Words("http2.unexpected_underscore", ""), Client, STAYS;
    Self::ClientMessage(Fault::Block) => 0, DOWNSTREAM_PROTOCOL_ERROR, Words("codec_error", ""), Client, STAYS;
    // Envoy appends its codec library's error text.
    Self::ClientConnection => 0, DOWNSTREAM_PROTOCOL_ERROR, Words("codec_error", ""), Client, ENDS;

    Self::LowVersion => 426, DOWNSTREAM_PROTOCOL_ERROR, Phrase("low_version"), Proxy, ENDS;
    Self::Overload => 503, OVERLOAD_MANAGER, Words("overload", "envoy overloaded"), Proxy, STAYS,
        counter: Some(Counter::downstream_rq_overload_close);
    Self::Path => 400, NONE, Words("path_normalization_failed", ""), Proxy, ENDS;
    Self::NotAPath => 404, NONE, Words("absolute_path_rejected", ""), Proxy, STAYS,
        counter: Some(Counter::downstream_rq_non_relative_path);
    Self::BodyTooLarge => 413, NONE, Phrase("request_payload_too_large"), Proxy, ENDS,
        counter: Some(Counter::downstream_rq_too_large);
    Self::Loop => 508, NONE, Words("proxy_loop", "the request comes back to the proxy that forwards it"), Proxy, STAYS;
    Self::NoRoute => 404, NO_ROUTE_FOUND, Words("route_not_found", ""), Proxy, STAYS, counter: Some(Counter::no_route);
    Self::UpgradeRefused => 403, NONE, Words("upgrade_failed", ""), Proxy, ENDS;
    Self::NoCluster(status) => *status, NO_CLUSTER_FOUND, Words("cluster_not_found", ""), Proxy, STAYS,
        counter: Some(Counter::no_cluster), tcp_counter: Some(tcp::Counter::downstream_cx_no_route);
    Self::NoHealthyHost(status) => *status, NO_HEALTHY_UPSTREAM, Words("no_healthy_upstream", "no healthy upstream"), Proxy, STAYS, problem: Problem::NoHealthyHost;
    Self::DropOverload => 503, DROP_OVERLOAD, Words("drop_overload", "drop overload"), Proxy, STAYS,
        header: Some((b"x-envoy-drop-overload", b"true")), problem: Problem::Refused;
    Self::UnconditionalDropOverload => 503, UNCONDITIONAL_DROP_OVERLOAD, Words("unconditional_drop_overload", "unconditional drop overload"), Proxy, STAYS,
        header: Some((b"x-envoy-unconditional-drop-overload", b"true")), problem: Problem::Refused;
    Self::Overflow(_) => 503, UPSTREAM_OVERFLOW, Reset("overflow"), Proxy, STAYS, header: Some((b"x-envoy-overloaded", b"true")), problem: Problem::Refused;

    // The texts are in the filter's reply.
    Self::Filter(reply) => reply.status, NONE, Words("", ""), Proxy, STAYS, http2_reset: None;
    Self::BadBody(bad) => bad.status, NONE, Words(bad.details, bad.body), Proxy, STAYS;
    Self::FilteredLength => 500, NONE, Words("filtered_length", ""), Proxy, STAYS;

    Self::HeadTimeout => 408, NONE, Words("request_header_timeout", "request header timeout"), Proxy, ENDS,
        counter: Some(Counter::downstream_rq_header_timeout);
    Self::RequestTimeout => 408, NONE, Words("request_overall_timeout", "request timeout"), Proxy, ENDS,
        counter: Some(Counter::downstream_rq_timeout);
    Self::Idle { complete: false } => 408, STREAM_IDLE_TIMEOUT, Words("stream_idle_timeout", "stream timeout"), Proxy, ENDS,
        counter: Some(Counter::downstream_rq_idle_timeout);
    Self::Idle { complete: true } => 504, STREAM_IDLE_TIMEOUT, Words("stream_idle_timeout", "stream timeout"), Proxy, STAYS,
        counter: Some(Counter::downstream_rq_idle_timeout);
    Self::FlushTimeout => 0, STREAM_IDLE_TIMEOUT, Words("stream_flush_timeout", ""), Proxy, ENDS,
        counter: Some(Counter::downstream_rq_idle_timeout);
    Self::LastedTooLong { complete: false } => 408, NONE, Words("max_duration_timeout", "downstream duration timeout"), Proxy, ENDS;
    Self::LastedTooLong { complete: true } => 504, NONE, Words("max_duration_timeout", "downstream duration timeout"), Proxy, STAYS;
    Self::ResponseTimeout => 504, UPSTREAM_REQUEST_TIMEOUT, Words("response_timeout", "upstream request timeout"), Proxy, STAYS,
        cluster_counter: Some(cluster_stats::Counter::upstream_rq_timeout), outcome: Some(Outcome::TimedOut), problem: Problem::Timeout;
    Self::PerTryTimeout => 504, UPSTREAM_REQUEST_TIMEOUT, Words("upstream_per_try_timeout", "upstream request timeout"), Proxy, STAYS,
        cluster_counter: Some(cluster_stats::Counter::upstream_rq_per_try_timeout), outcome: Some(Outcome::TimedOut), retry: Retry::Reset, problem: Problem::Timeout, is_of_try: true;
    Self::PerTryIdleTimeout => 504, UPSTREAM_REQUEST_TIMEOUT, Words("upstream_per_try_idle_timeout", "upstream request timeout"), Proxy, STAYS,
        cluster_counter: Some(cluster_stats::Counter::upstream_rq_per_try_idle_timeout), outcome: Some(Outcome::TimedOut), retry: Retry::Reset, problem: Problem::Timeout, is_of_try: true;

    Self::Connect(_) => 503, UPSTREAM_CONNECTION_FAILURE, Reset("remote connection failure"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Connect, problem: Problem::Connect;
    Self::ConnectTimeout => 503, UPSTREAM_CONNECTION_FAILURE, Reset("connection timeout"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Connect, problem: Problem::Connect;
    Self::UpstreamClosed { sent: false } => 503, UPSTREAM_CONNECTION_TERMINATION, Reset("connection termination"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Unsent,
        http2_reset: Some(cluster_stats::Counter::upstream_rq_pending_failure_eject);
    Self::UpstreamClosed { sent: true } => 503, UPSTREAM_CONNECTION_TERMINATION, Reset("connection termination"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Reset,
        http2_reset: Some(cluster_stats::Counter::upstream_rq_pending_failure_eject);
    Self::UpstreamReset => 503, UPSTREAM_REMOTE_RESET, Reset("remote reset"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Reset,
        http1_reset: Some(cluster_stats::Counter::upstream_rq_rx_reset), http2_reset: Some(cluster_stats::Counter::upstream_rq_rx_reset);
    Self::UpstreamRefused => 503, UPSTREAM_REMOTE_RESET, Reset("remote refused stream reset"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Refused, http2_reset: None;
    Self::UpstreamProtocol => 502, UPSTREAM_PROTOCOL_ERROR, Reset("protocol error"), Upstream, STAYS,
        outcome: Some(Outcome::ConnectFailed), retry: Retry::Reset, http1_reset: Some(cluster_stats::Counter::upstream_cx_protocol_error);
}

impl Row {
    /// A row with the fields that every failure has.
    fn new(status: u16, flags: ResponseFlags, says: Says, ended_by: EndedBy, ends_connection: bool) -> Self {
        Self {
            status,
            flags,
            says,
            ended_by,
            ends_connection,
            header: None,
            counter: None,
            cluster_counter: None,
            http1_reset: None,
            http2_reset: Some(cluster_stats::Counter::upstream_rq_tx_reset),
            tcp_counter: None,
            retry: Retry::Never,
            outcome: None,
            problem: Problem::Reset,
            is_of_try: matches!(says, Says::Reset(_)),
        }
    }

    /// The body the client gets; empty where Envoy sends none.
    pub(crate) fn body(&self) -> Cow<'static, str> {
        self.body_telling("reset reason")
    }

    /// The body the client gets when this was not the first try.
    pub(crate) fn body_after_retries(&self) -> Cow<'static, str> {
        self.body_telling("retried and the latest reset reason")
    }

    fn body_telling(&self, what: &str) -> Cow<'static, str> {
        match self.says {
            Says::Words(_, body) => body.into(),
            Says::Phrase(_) => evenkeel_http::encode::reason(self.status).into(),
            Says::Reset(reason) => {
                format!("upstream connect error or disconnect/reset before headers. {what}: {reason}").into()
            }
        }
    }
}

impl Failure {
    /// Status the client gets; 0 when it gets no response.
    pub(crate) fn status(&self) -> u16 {
        self.row().status
    }

    /// Envoy's `%RESPONSE_FLAGS%`.
    pub(crate) fn flags(&self) -> ResponseFlags {
        self.row().flags
    }

    /// The circuit breaker that was open.
    pub(crate) fn circuit_breaker(&self) -> Option<CircuitBreaker> {
        let Self::Overflow(overflow) = self else { return None };
        Some(match overflow {
            Overflow::Connections => CircuitBreaker::Connections,
            Overflow::Pools => CircuitBreaker::Pools,
            Overflow::Pending => CircuitBreaker::PendingRequests,
            Overflow::Requests => CircuitBreaker::Requests,
            Overflow::Retries => CircuitBreaker::Retries,
        })
    }

    /// Envoy's words for a stream that was reset, or for a connection that was not made.
    pub(crate) fn reset_reason(&self) -> Option<&'static str> {
        match self.row().says {
            Says::Reset(reason) => Some(reason),
            Says::Words(..) | Says::Phrase(_) => None,
        }
    }

    /// Envoy's `%RESPONSE_CODE_DETAILS%`; Envoy replaces blanks by `_`.
    pub(crate) fn details(&self) -> Cow<'static, str> {
        match (self.row().says, self) {
            (Says::Words(details, _) | Says::Phrase(details), _) => details.into(),
            (Says::Reset(reason), Self::Connect(transport)) if !transport.is_empty() => {
                format!("upstream_reset_before_response_started{{{reason}|{transport}}}").replace(' ', "_").into()
            }
            (Says::Reset(reason), _) => {
                format!("upstream_reset_before_response_started{{{reason}}}").replace(' ', "_").into()
            }
        }
    }

    /// `%RESPONSE_CODE_DETAILS%` of a failure after the response head was sent.
    pub(crate) fn details_after_head(&self) -> Cow<'static, str> {
        match self.row().says {
            Says::Words(details, _) | Says::Phrase(details) => details.into(),
            Says::Reset(reason) => {
                format!("upstream_reset_after_response_started{{{reason}}}").replace(' ', "_").into()
            }
        }
    }
}

impl From<PickError> for Failure {
    fn from(error: PickError) -> Self {
        match error {
            PickError::NoHealthyHost => Self::NoHealthyHost(503),
            PickError::HostGone { status } => Self::NoHealthyHost(status),
            PickError::DropOverload { all: false } => Self::DropOverload,
            PickError::DropOverload { all: true } => Self::UnconditionalDropOverload,
        }
    }
}

impl From<AcquireError> for Failure {
    fn from(error: AcquireError) -> Self {
        match error {
            AcquireError::Overflow(breaker) => Self::Overflow(breaker),
            AcquireError::Connect(ConnectError::Timeout(_)) => Self::ConnectTimeout,
            AcquireError::Connect(error) => Self::Connect(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use evenkeel_testkit::golden;

    use super::*;

    /// A failure for each row of the table.
    fn all() -> Vec<Failure> {
        let mut all: Vec<_> = [
            HeadError::Malformed,
            HeadError::MissingHost,
            HeadError::Fragment,
            HeadError::TooLarge,
            HeadError::TooManyHeaders,
            HeadError::LengthAndEncoding,
            HeadError::TransferEncoding,
            HeadError::Underscore,
        ]
        .map(Failure::Head)
        .into();
        let reasons = [Reason::NO_ERROR, Reason::PROTOCOL_ERROR, Reason::REFUSED_STREAM, Reason::CANCEL];
        all.push(Failure::RequestBody);
        all.push(Failure::ClientGone);
        all.extend(reasons.map(Failure::ClientReset));
        let faults = [Fault::Field, Fault::Message, Fault::TooLarge, Fault::Underscore, Fault::Block];
        all.extend(faults.map(Failure::ClientMessage));
        all.extend([
            Failure::ClientConnection,
            Failure::LowVersion,
            Failure::Overload,
            Failure::Path,
            Failure::NotAPath,
            Failure::BodyTooLarge,
            Failure::Loop,
            Failure::NoRoute,
            Failure::UpgradeRefused,
            Failure::NoCluster(500),
            Failure::NoHealthyHost(503),
            Failure::DropOverload,
            Failure::UnconditionalDropOverload,
            Failure::Overflow(Overflow::Requests),
            Failure::BadBody(BadBody { status: 400, body: "not base64", details: "bad_base64" }),
            Failure::FilteredLength,
            Failure::HeadTimeout,
            Failure::RequestTimeout,
            Failure::Idle { complete: false },
            Failure::Idle { complete: true },
            Failure::FlushTimeout,
            Failure::LastedTooLong { complete: false },
            Failure::LastedTooLong { complete: true },
            Failure::ResponseTimeout,
            Failure::PerTryTimeout,
            Failure::PerTryIdleTimeout,
            Failure::Connect("delayed connect error: Connection refused".into()),
            Failure::Connect(String::new()),
            Failure::ConnectTimeout,
            Failure::UpstreamClosed { sent: false },
            Failure::UpstreamClosed { sent: true },
            Failure::UpstreamReset,
            Failure::UpstreamRefused,
            Failure::UpstreamProtocol,
        ]);
        all
    }

    /// The whole table as users see it; the interoperation tables compare its flags and details with Envoy's.
    #[test]
    fn the_table_is_this() {
        let mut text = String::new();
        for failure in all() {
            let row = failure.row();
            let flags: Vec<_> = row.flags.short_names().collect();
            let connection = if row.ends_connection { "ends" } else { "stays" };
            let _ = writeln!(text, "{failure:?}");
            let _ = writeln!(text, "  {} flags={:?} by={:?} connection={connection}", row.status, flags, row.ended_by);
            let _ = writeln!(text, "  details={:?} after_head={:?}", failure.details(), failure.details_after_head());
            let _ = writeln!(text, "  body={:?} retried={:?}", row.body(), row.body_after_retries());
            let header = row.header.map(|(name, _)| String::from_utf8_lossy(name));
            let _ = writeln!(
                text,
                "  header={header:?} retry={:?} outcome={:?} problem={:?}",
                row.retry, row.outcome, row.problem
            );
            let _ =
                writeln!(text, "  http={:?} cluster={:?} tcp={:?}", row.counter, row.cluster_counter, row.tcp_counter);
            let _ = writeln!(
                text,
                "  http1_reset={:?} http2_reset={:?} is_of_try={}",
                row.http1_reset, row.http2_reset, row.is_of_try
            );
        }
        golden::check(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/golden/failures.txt"), &text);
    }
}
