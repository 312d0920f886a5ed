//! What went wrong with a request: whose fault it is, what the client is told, what the log says, and whether it may be
//! tried again. One type, mapped one to one to Envoy's response flags and `response_code_details`.

use std::borrow::Cow;

use evenkeel_http::HeadError;
use evenkeel_http::h2::{Fault, Reason};
use evenkeel_upstream::{AcquireError, ConnectError, PickError};

use crate::response_flags::ResponseFlags;

/// What went wrong.
#[derive(Debug, Clone)]
pub(crate) enum Failure {
    /// The client sent no acceptable head.
    Head(HeadError),
    /// The client's body is broken.
    RequestBody,
    /// The body is longer than a filter takes.
    BodyTooLarge,
    /// HTTP/1.0 where it is off.
    LowVersion,
    /// The proxy, or its listener, has too much to do.
    Overload,
    /// The path cannot be normalized, or holds escaped slashes where these are refused.
    Path,
    /// The target is no path: `*`, or a URL where these are refused.
    NotAPath,
    /// The head did not arrive in time.
    HeadTimeout,
    /// The request did not arrive in time.
    RequestTimeout,
    /// Nothing moved for too long.
    Idle {
        /// The request was complete: it is the answer that is late.
        complete: bool,
    },
    /// Bytes of the answer wait for a client that takes none for too long.
    FlushTimeout,
    /// The client closed before the response was complete.
    ClientGone,
    /// The client reset the stream with this code, or it was reset for what the client did to it.
    ClientReset(Reason),
    /// The client's message broke the protocol, and its stream was reset for it.
    ClientMessage(Fault),
    /// The client's connection broke the protocol, and ended with all its streams.
    ClientConnection,
    /// No route.
    NoRoute,
    /// The route's cluster does not exist; answered with this status.
    NoCluster(u16),
    /// No host to pick; answered with this status.
    NoHealthyHost(u16),
    /// The control plane has a share of the requests refused.
    DropOverload,
    /// The control plane has all requests refused.
    UnconditionalDropOverload,
    /// The upgrade asked for is not allowed.
    UpgradeRefused,
    /// A circuit breaker is open.
    Overflow,
    /// No connection: Envoy's transport failure reason.
    Connect(String),
    /// No connection in time.
    ConnectTimeout,
    /// The upstream closed or reset before a response head; `sent`: the request had begun to leave.
    UpstreamClosed {
        /// Request bytes were sent.
        sent: bool,
    },
    /// The upstream reset the stream.
    UpstreamReset,
    /// The upstream has not looked at the request, and says so: it may be sent again whatever it is.
    UpstreamRefused,
    /// The upstream's answer is no HTTP.
    UpstreamProtocol,
    /// The route's timeout.
    ResponseTimeout,
    /// The limit of one try.
    PerTryTimeout,
    /// The stream's longest life.
    LastedTooLong {
        /// The request was complete: it is the answer that is late.
        complete: bool,
    },
    /// Nothing moved in one try for too long.
    PerTryIdleTimeout,
    /// A filter of the cluster answers in place of the host.
    Filter(Box<evenkeel_filters::Reply>),
}

impl Failure {
    /// Status the client gets; 0 when it gets none.
    pub(crate) fn status(&self) -> u16 {
        match self {
            Self::Head(error) => error.status(),
            Self::RequestBody | Self::Path => 400,
            Self::BodyTooLarge => 413,
            Self::LowVersion => 426,
            Self::Idle { complete: true } | Self::LastedTooLong { complete: true } => 504,
            Self::HeadTimeout | Self::RequestTimeout | Self::Idle { .. } | Self::LastedTooLong { .. } => 408,
            Self::FlushTimeout
            | Self::ClientGone
            | Self::ClientReset(_)
            | Self::ClientMessage(_)
            | Self::ClientConnection => 0,
            Self::NoRoute | Self::NotAPath => 404,
            Self::NoCluster(status) | Self::NoHealthyHost(status) => *status,
            Self::Filter(reply) => reply.status,
            Self::UpgradeRefused => 403,
            Self::UpstreamProtocol => 502,
            Self::ResponseTimeout | Self::PerTryTimeout | Self::PerTryIdleTimeout => 504,
            Self::Overload
            | Self::DropOverload
            | Self::UnconditionalDropOverload
            | Self::Overflow
            | Self::Connect(_)
            | Self::ConnectTimeout
            | Self::UpstreamReset
            | Self::UpstreamRefused
            | Self::UpstreamClosed { .. } => 503,
        }
    }

    /// Body the client gets; empty where Envoy sends none.
    pub(crate) fn body(&self) -> Cow<'static, str> {
        match self {
            Self::Head(HeadError::MissingHost | HeadError::Fragment)
            | Self::Path
            | Self::NotAPath
            | Self::NoRoute
            | Self::NoCluster(_)
            | Self::UpgradeRefused
            | Self::FlushTimeout
            | Self::ClientGone
            | Self::ClientReset(_)
            | Self::ClientMessage(_)
            | Self::ClientConnection => "".into(),
            Self::Head(_) | Self::RequestBody | Self::BodyTooLarge | Self::LowVersion => {
                evenkeel_http::encode::reason(self.status()).into()
            }
            Self::HeadTimeout => "request header timeout".into(),
            Self::RequestTimeout => "request timeout".into(),
            Self::Idle { .. } => "stream timeout".into(),
            Self::LastedTooLong { .. } => "downstream duration timeout".into(),
            Self::Overload => "envoy overloaded".into(),
            Self::Filter(reply) => String::from_utf8_lossy(&reply.body).into_owned().into(),
            Self::NoHealthyHost(_) => "no healthy upstream".into(),
            Self::DropOverload => "drop overload".into(),
            Self::UnconditionalDropOverload => "unconditional drop overload".into(),
            Self::ResponseTimeout | Self::PerTryTimeout | Self::PerTryIdleTimeout => "upstream request timeout".into(),
            Self::Overflow
            | Self::Connect(_)
            | Self::ConnectTimeout
            | Self::UpstreamClosed { .. }
            | Self::UpstreamReset
            | Self::UpstreamRefused
            | Self::UpstreamProtocol => format!(
                "upstream connect error or disconnect/reset before headers. reset reason: {}",
                self.reset_reason()
            )
            .into(),
        }
    }

    /// The body when this was not the first try.
    pub(crate) fn body_after_retries(&self) -> Cow<'static, str> {
        match self.body() {
            Cow::Owned(text) => text.replace("reset reason:", "retried and the latest reset reason:").into(),
            text => text,
        }
    }

    /// A header that tells a client which is a proxy why it was refused.
    pub(crate) fn header(&self) -> Option<(&'static [u8], &'static [u8])> {
        match self {
            Self::Overflow => Some((b"x-envoy-overloaded", b"true")),
            Self::DropOverload => Some((b"x-envoy-drop-overload", b"true")),
            Self::UnconditionalDropOverload => Some((b"x-envoy-unconditional-drop-overload", b"true")),
            _ => None,
        }
    }

    /// Envoy's `%RESPONSE_FLAGS%`.
    pub(crate) fn flags(&self) -> ResponseFlags {
        match self {
            // What the codec has no objections to.
            Self::Head(HeadError::MissingHost | HeadError::Fragment) => ResponseFlags::NONE,
            Self::Head(_) | Self::RequestBody | Self::LowVersion => ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR,
            Self::BodyTooLarge
            | Self::Path
            | Self::NotAPath
            | Self::HeadTimeout
            | Self::RequestTimeout
            | Self::UpgradeRefused
            | Self::LastedTooLong { .. } => ResponseFlags::NONE,
            Self::Filter(reply) => reply.flag.and_then(ResponseFlags::from_short_name).unwrap_or_default(),
            Self::Idle { .. } | Self::FlushTimeout => ResponseFlags::STREAM_IDLE_TIMEOUT,
            Self::Overload => ResponseFlags::OVERLOAD_MANAGER,
            Self::ClientGone => ResponseFlags::DOWNSTREAM_CONNECTION_TERMINATION,
            Self::ClientReset(Reason::NO_ERROR) => ResponseFlags::NONE,
            Self::ClientReset(Reason::PROTOCOL_ERROR) => ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR,
            // The last two are Envoy's own doing there as well, and yet it says so.
            Self::ClientReset(_) | Self::ClientMessage(Fault::TooLarge | Fault::Underscore) => {
                ResponseFlags::DOWNSTREAM_REMOTE_RESET
            }
            Self::ClientMessage(_) | Self::ClientConnection => ResponseFlags::DOWNSTREAM_PROTOCOL_ERROR,
            Self::NoRoute => ResponseFlags::NO_ROUTE_FOUND,
            Self::NoCluster(_) => ResponseFlags::NO_CLUSTER_FOUND,
            Self::NoHealthyHost(_) => ResponseFlags::NO_HEALTHY_UPSTREAM,
            Self::DropOverload => ResponseFlags::DROP_OVERLOAD,
            Self::UnconditionalDropOverload => ResponseFlags::UNCONDITIONAL_DROP_OVERLOAD,
            Self::Overflow => ResponseFlags::UPSTREAM_OVERFLOW,
            Self::Connect(_) | Self::ConnectTimeout => ResponseFlags::UPSTREAM_CONNECTION_FAILURE,
            Self::UpstreamReset | Self::UpstreamRefused => ResponseFlags::UPSTREAM_REMOTE_RESET,
            Self::UpstreamClosed { .. } => ResponseFlags::UPSTREAM_CONNECTION_TERMINATION,
            Self::UpstreamProtocol => ResponseFlags::UPSTREAM_PROTOCOL_ERROR,
            Self::ResponseTimeout | Self::PerTryTimeout | Self::PerTryIdleTimeout => {
                ResponseFlags::UPSTREAM_REQUEST_TIMEOUT
            }
        }
    }

    /// Envoy's `%RESPONSE_CODE_DETAILS%`; blanks become `_` as Envoy writes them.
    pub(crate) fn details(&self) -> Cow<'static, str> {
        let fixed = match self {
            Self::Head(error) => error.details(),
            Self::RequestBody => "http1.codec_error",
            Self::BodyTooLarge => "request_payload_too_large",
            Self::LowVersion => "low_version",
            Self::Path => "path_normalization_failed",
            Self::NotAPath => "absolute_path_rejected",
            Self::HeadTimeout => "request_header_timeout",
            Self::RequestTimeout => "request_overall_timeout",
            Self::Idle { .. } => "stream_idle_timeout",
            Self::FlushTimeout => "stream_flush_timeout",
            Self::LastedTooLong { .. } => "max_duration_timeout",
            Self::Overload => "overload",
            Self::ClientGone => "downstream_remote_disconnect",
            Self::ClientReset(Reason::NO_ERROR) => "",
            Self::ClientReset(Reason::REFUSED_STREAM) => "http2.remote_refuse",
            Self::ClientReset(_) => "http2.remote_reset",
            Self::ClientMessage(fault) => match fault {
                Fault::Field => "http2.invalid.header.field",
                Fault::Message => "http2.violation.of.messaging.rule",
                Fault::TooLarge => "http2.too_many_headers",
                Fault::Underscore => "http2.unexpected_underscore",
                Fault::Block => "codec_error",
            },
            // Envoy adds its library's words.
            Self::ClientConnection => "codec_error",
            Self::NoRoute => "route_not_found",
            Self::NoCluster(_) => "cluster_not_found",
            Self::NoHealthyHost(_) => "no_healthy_upstream",
            Self::DropOverload => "drop_overload",
            Self::UnconditionalDropOverload => "unconditional_drop_overload",
            Self::UpgradeRefused => "upgrade_failed",
            Self::ResponseTimeout => "response_timeout",
            Self::PerTryTimeout => "upstream_per_try_timeout",
            Self::PerTryIdleTimeout => "upstream_per_try_idle_timeout",
            Self::Filter(reply) => return reply.details.clone(),
            Self::Connect(transport) if !transport.is_empty() => {
                let text = format!("upstream_reset_before_response_started{{{}|{transport}}}", self.reset_reason());
                return text.replace(' ', "_").into();
            }
            Self::Overflow
            | Self::Connect(_)
            | Self::ConnectTimeout
            | Self::UpstreamClosed { .. }
            | Self::UpstreamReset
            | Self::UpstreamRefused
            | Self::UpstreamProtocol => {
                return format!("upstream_reset_before_response_started{{{}}}", self.reset_reason())
                    .replace(' ', "_")
                    .into();
            }
        };
        fixed.into()
    }

    /// It is the proxy that breaks an answer off for this, not the client.
    pub(crate) fn is_ours(&self) -> bool {
        !matches!(
            self,
            Self::ClientGone
                | Self::ClientReset(_)
                | Self::ClientMessage(_)
                | Self::ClientConnection
                | Self::RequestBody
                | Self::Head(_)
        )
    }

    /// The connection cannot carry another request after this: what the client sent cannot be told apart.
    pub(crate) fn ends_connection(&self) -> bool {
        matches!(
            self,
            Self::Head(_)
                | Self::RequestBody
                | Self::BodyTooLarge
                | Self::LowVersion
                | Self::Path
                | Self::HeadTimeout
                | Self::RequestTimeout
                | Self::Idle { complete: false }
                | Self::LastedTooLong { complete: false }
                | Self::FlushTimeout
                | Self::ClientGone
                | Self::ClientConnection
                | Self::UpgradeRefused
        )
    }

    /// `%RESPONSE_CODE_DETAILS%` of a failure after the response's head was sent.
    pub(crate) fn details_after_head(&self) -> Cow<'static, str> {
        match self {
            Self::UpstreamClosed { .. } | Self::UpstreamReset | Self::UpstreamRefused | Self::UpstreamProtocol => {
                let reason = self.reset_reason().replace(' ', "_");
                format!("upstream_reset_after_response_started{{{reason}}}").into()
            }
            other => other.details(),
        }
    }

    fn reset_reason(&self) -> &'static str {
        match self {
            Self::Overflow => "overflow",
            Self::Connect(_) => "remote connection failure",
            Self::ConnectTimeout => "connection timeout",
            Self::UpstreamReset => "remote reset",
            Self::UpstreamRefused => "remote refused stream reset",
            Self::UpstreamProtocol => "protocol error",
            _ => "connection termination",
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
            AcquireError::Overflow(_) => Self::Overflow,
            AcquireError::Connect(ConnectError::Timeout(_)) => Self::ConnectTimeout,
            AcquireError::Connect(error) => Self::Connect(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speaks_envoys_words() {
        let check = |failure: Failure, status: u16, flags: &str, details: &str, body: &str| {
            let names: Vec<_> = failure.flags().short_names().collect();
            assert_eq!(
                (failure.status(), names.join(","), &*failure.details(), &*failure.body()),
                (status, flags.to_owned(), details, body),
                "{failure:?}"
            );
        };
        check(Failure::BodyTooLarge, 413, "", "request_payload_too_large", "Payload Too Large");
        check(Failure::NoRoute, 404, "NR", "route_not_found", "");
        check(Failure::NoHealthyHost(503), 503, "UH", "no_healthy_upstream", "no healthy upstream");
        let (idle, long) = (|complete| Failure::Idle { complete }, |complete| Failure::LastedTooLong { complete });
        check(idle(false), 408, "SI", "stream_idle_timeout", "stream timeout");
        check(idle(true), 504, "SI", "stream_idle_timeout", "stream timeout");
        check(long(true), 504, "", "max_duration_timeout", "downstream duration timeout");
        assert_eq!(
            [idle(false), idle(true), long(false), long(true)].map(|late| late.ends_connection()),
            [true, false, true, false]
        );
        check(Failure::DropOverload, 503, "DO", "drop_overload", "drop overload");
        check(Failure::ResponseTimeout, 504, "UT", "response_timeout", "upstream request timeout");
        check(
            Failure::Connect("delayed connect error: Connection refused".into()),
            503,
            "UF",
            "upstream_reset_before_response_started{remote_connection_failure|delayed_connect_error:_Connection_refused}",
            "upstream connect error or disconnect/reset before headers. reset reason: remote connection failure",
        );
        check(
            Failure::UpstreamClosed { sent: true },
            503,
            "UC",
            "upstream_reset_before_response_started{connection_termination}",
            "upstream connect error or disconnect/reset before headers. reset reason: connection termination",
        );
        check(Failure::Head(HeadError::MissingHost), 400, "", "missing_host_header", "");
        check(
            Failure::Head(HeadError::TooLarge),
            431,
            "DPE",
            "http1.headers_too_large",
            "Request Header Fields Too Large",
        );
    }
}
