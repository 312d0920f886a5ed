//! Format strings of access logs and header values: `%OPERATOR(argument):length%` with literals between.

use crate::substitution_format::{
    FilterStateFormat, Format, FormatPart, GrpcStatusFormat, Operator, Precision, TimePoint,
};

/// Envoy's own format, used when a file access log has none.
pub const ENVOY_DEFAULT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %BYTES_RECEIVED% %BYTES_SENT% %DURATION% %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \
    \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \
    \"%UPSTREAM_HOST%\"\n";

/// The format Istio's control plane sends for text logs.
pub const ISTIO_DEFAULT_FORMAT: &str = "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" \
    %RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% \
    \"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% \
    %RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" \"%REQ(X-REQUEST-ID)%\" \
    \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% %UPSTREAM_LOCAL_ADDRESS% \
    %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% %REQUESTED_SERVER_NAME% %ROUTE_NAME%\n";

/// Why a format string was rejected. Positions are byte offsets into it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A `%` that starts no operator.
    #[error("at byte {at}: \"%\" starts no operator; a literal percent sign is written \"%%\"")]
    Unfinished {
        /// Where.
        at: usize,
    },
    /// An operator this build does not know.
    #[error("at byte {at}: operator %{name}% is not supported")]
    Unknown {
        /// Where.
        at: usize,
        /// Which.
        name: String,
    },
    /// An argument is missing, superfluous or malformed.
    #[error("at byte {at}: operator %{name}% {expected}")]
    Argument {
        /// Where.
        at: usize,
        /// Which.
        name: String,
        /// The argument that it accepts.
        expected: &'static str,
    },
}

impl Format {
    /// Parses a format string. `environment` resolves `%ENVIRONMENT(NAME)%`.
    pub fn parse(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, FormatError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut at = 0;
        while let Some(offset) = text[at..].find('%') {
            literal.push_str(&text[at..at + offset]);
            at += offset;
            if text[at + 1..].starts_with('%') {
                literal.push('%');
                at += 2;
                continue;
            }
            let command = Command::parse(text, at)?;
            at = command.end;
            match command.operator(environment)? {
                Resolved::Literal(value) => literal.push_str(&value),
                Resolved::Operator(operator) => {
                    push_literal(&mut parts, &mut literal);
                    parts.push(FormatPart::Operator { operator, max_length: command.max_length });
                }
            }
        }
        literal.push_str(&text[at..]);
        push_literal(&mut parts, &mut literal);
        Ok(Self { parts })
    }
}

fn push_literal(parts: &mut Vec<FormatPart>, literal: &mut String) {
    if !literal.is_empty() {
        parts.push(FormatPart::Literal(std::mem::take(literal).into()));
    }
}

/// The parts of `%NAME(argument):length%`.
struct Command<'t> {
    at: usize,
    name: &'t str,
    argument: Option<&'t str>,
    max_length: Option<usize>,
    /// Position after the closing `%`.
    end: usize,
}

enum Resolved {
    Literal(String),
    Operator(Operator),
}

impl<'t> Command<'t> {
    fn parse(text: &'t str, at: usize) -> Result<Self, FormatError> {
        let unfinished = FormatError::Unfinished { at };
        let rest = &text[at + 1..];
        let name_length =
            rest.bytes().take_while(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_').count();
        let (name, mut rest) = rest.split_at(name_length);
        if name.is_empty() {
            return Err(unfinished);
        }
        let mut argument = None;
        if let Some(inside) = rest.strip_prefix('(') {
            let (value, after) = inside.split_once(')').ok_or(unfinished.clone())?;
            (argument, rest) = (Some(value), after);
        }
        let mut max_length = None;
        if let Some(after) = rest.strip_prefix(':') {
            let digits = after.bytes().take_while(u8::is_ascii_digit).count();
            max_length = Some(after[..digits].parse().map_err(|_| unfinished.clone())?);
            rest = &after[digits..];
        }
        let rest = rest.strip_prefix('%').ok_or(unfinished)?;
        Ok(Self { at, name, argument, max_length, end: text.len() - rest.len() })
    }

    fn operator(&self, environment: &dyn Fn(&str) -> Option<String>) -> Result<Resolved, FormatError> {
        if let Some(operator) = plain_operator(self.name) {
            return match self.argument {
                None => Ok(Resolved::Operator(operator)),
                Some(_) => Err(self.wrong_argument("takes no argument")),
            };
        }
        Ok(Resolved::Operator(match self.name {
            "START_TIME" => Operator::StartTime(self.argument.filter(|a| !a.is_empty()).map(Into::into)),
            "REQ" => self.header(Operator::Req)?,
            "REQ_WITHOUT_QUERY" => self.header(Operator::ReqWithoutQuery)?,
            "RESP" => self.header(Operator::Resp)?,
            "TRAILER" => self.header(Operator::Trailer)?,
            "GRPC_STATUS" => Operator::GrpcStatus(match self.argument {
                None | Some("CAMEL_STRING") => GrpcStatusFormat::Camel,
                Some("SNAKE_STRING") => GrpcStatusFormat::Snake,
                Some("NUMBER") => GrpcStatusFormat::Number,
                Some(_) => return Err(self.wrong_argument("takes CAMEL_STRING, SNAKE_STRING or NUMBER")),
            }),
            "COMMON_DURATION" => self.common_duration()?,
            "GRPC_STATUS_NUMBER" => Operator::GrpcStatus(GrpcStatusFormat::Number),
            "ENVIRONMENT" => {
                let name = self.argument.filter(|a| !a.is_empty());
                let name = name.ok_or_else(|| self.wrong_argument("takes the name of an environment variable"))?;
                let mut value = environment(name).unwrap_or_else(|| "-".into());
                if let Some(limit) = self.max_length {
                    value.truncate(value.floor_char_boundary(limit));
                }
                return Ok(Resolved::Literal(value));
            }
            "FILTER_STATE" if self.argument.is_some() => self.filter_state()?,
            "DYNAMIC_METADATA" => self.dynamic_metadata()?,
            // Nothing sets it in this build, so `-` is correct.
            "UPSTREAM_FILTER_STATE" if self.argument.is_some() => Operator::Unset,
            name => return Err(FormatError::Unknown { at: self.at, name: name.into() }),
        }))
    }

    fn header(&self, make: fn(Box<str>, Option<Box<str>>) -> Operator) -> Result<Operator, FormatError> {
        let expected = "takes a header name, or two: %REQ(FIRST?SECOND)%";
        let argument = self.argument.ok_or_else(|| self.wrong_argument(expected))?;
        let mut names = argument.split('?').map(str::to_ascii_lowercase);
        let (first, second, third) = (names.next().unwrap_or_default(), names.next(), names.next());
        let named = |name: &String| !name.is_empty() && name.bytes().all(|b| b.is_ascii_graphic());
        if third.is_some() || !named(&first) || !second.iter().all(named) {
            return Err(self.wrong_argument(expected));
        }
        Ok(make(first.into(), second.map(Into::into)))
    }

    /// Filter state objects have no accessible fields.
    fn filter_state(&self) -> Result<Operator, FormatError> {
        let argument = self.argument.unwrap_or_default();
        let (key, format) = argument.split_once(':').unwrap_or((argument, "TYPED"));
        let format = match format {
            "TYPED" => FilterStateFormat::Typed,
            "PLAIN" => FilterStateFormat::Plain,
            field if let Some(field) = field.strip_prefix("FIELD:") => {
                return Ok(Operator::FilterStateField(key.into(), field.into()));
            }
            _ => return Err(self.wrong_argument("takes a key, and TYPED, PLAIN or FIELD:NAME behind a colon")),
        };
        Ok(match (key, format) {
            ("envoy.tcp_proxy.propagate_response_headers", FilterStateFormat::Typed) => Operator::TunnelHeaders,
            ("envoy.tcp_proxy.propagate_response_trailers", FilterStateFormat::Typed) => Operator::TunnelTrailers,
            // These have no plain form, as in Envoy.
            ("envoy.tcp_proxy.propagate_response_headers" | "envoy.tcp_proxy.propagate_response_trailers", _) => {
                Operator::Unset
            }
            (key, format) => Operator::FilterState(key.into(), format),
        })
    }

    fn dynamic_metadata(&self) -> Result<Operator, FormatError> {
        let mut names = self.argument.unwrap_or_default().split(':');
        match names.next().filter(|filter| !filter.is_empty()) {
            Some(filter) => {
                Ok(Operator::DynamicMetadata { filter: filter.into(), path: names.map(Into::into).collect() })
            }
            None => Err(self.wrong_argument("takes a filter's name, and keys behind colons")),
        }
    }

    fn common_duration(&self) -> Result<Operator, FormatError> {
        let parts: Vec<&str> = self.argument.unwrap_or_default().split(':').collect();
        let expected = "takes START:END:PRECISION: two of DS_RX_BEG, DS_RX_END, US_CX_BEG, US_CX_END, US_HS_END, US_TX_BEG, \
                        US_TX_END, US_RX_BEG, US_RX_BODY_BEG, US_RX_END, DS_TX_BEG, DS_TX_END, ON_DEMAND_BEG and ON_DEMAND_END, and \
                        ms, us or ns";
        let point = |name: &str| TimePoint::ALL.iter().find(|(known, _)| *known == name).map(|(_, point)| *point);
        let precision = |name: &str| {
            Some(match name {
                "ms" => Precision::Millis,
                "us" => Precision::Micros,
                "ns" => Precision::Nanos,
                _ => return None,
            })
        };
        let operator = match parts.as_slice() {
            [start, end, unit] => point(start).zip(point(end)).zip(precision(unit)),
            _ => None,
        };
        let ((start, end), precision) = operator.ok_or_else(|| self.wrong_argument(expected))?;
        Ok(Operator::CommonDuration { start, end, precision })
    }

    fn wrong_argument(&self, expected: &'static str) -> FormatError {
        FormatError::Argument { at: self.at, name: self.name.into(), expected }
    }
}

/// Operators that take no argument.
fn plain_operator(name: &str) -> Option<Operator> {
    Some(match name {
        "PROTOCOL" => Operator::Protocol,
        "RESPONSE_CODE" => Operator::ResponseCode,
        "RESPONSE_CODE_DETAILS" => Operator::ResponseCodeDetails,
        "CONNECTION_TERMINATION_DETAILS" => Operator::ConnectionTerminationDetails,
        "RESPONSE_FLAGS" => Operator::ResponseFlags,
        "RESPONSE_FLAGS_LONG" => Operator::ResponseFlagsLong,
        "BYTES_RECEIVED" => Operator::BytesReceived,
        "BYTES_SENT" => Operator::BytesSent,
        "DURATION" => Operator::Duration,
        "REQUEST_DURATION" => Operator::RequestDuration,
        "RESPONSE_DURATION" => Operator::ResponseDuration,
        "RESPONSE_TX_DURATION" => Operator::ResponseTxDuration,
        "UPSTREAM_HOST" => Operator::UpstreamHost,
        "UPSTREAM_REMOTE_ADDRESS" => Operator::UpstreamRemoteAddress,
        "UPSTREAM_CLUSTER" => Operator::UpstreamCluster,
        "UPSTREAM_CLUSTER_RAW" => Operator::UpstreamClusterRaw,
        "UPSTREAM_LOCAL_ADDRESS" => Operator::UpstreamLocalAddress,
        "UPSTREAM_TRANSPORT_FAILURE_REASON" => Operator::UpstreamTransportFailureReason,
        "DOWNSTREAM_TRANSPORT_FAILURE_REASON" => Operator::DownstreamTransportFailureReason,
        "UPSTREAM_REQUEST_ATTEMPT_COUNT" => Operator::UpstreamRequestAttemptCount,
        "DOWNSTREAM_LOCAL_ADDRESS" => Operator::DownstreamLocalAddress,
        "DOWNSTREAM_LOCAL_ADDRESS_WITHOUT_PORT" => Operator::DownstreamLocalAddressWithoutPort,
        "DOWNSTREAM_LOCAL_PORT" => Operator::DownstreamLocalPort,
        "DOWNSTREAM_REMOTE_ADDRESS" => Operator::DownstreamRemoteAddress,
        "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT" => Operator::DownstreamRemoteAddressWithoutPort,
        "DOWNSTREAM_REMOTE_PORT" => Operator::DownstreamRemotePort,
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS" => Operator::DownstreamDirectRemoteAddress,
        "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT" => Operator::DownstreamDirectRemoteAddressWithoutPort,
        "DOWNSTREAM_PEER_URI_SAN" => Operator::DownstreamPeerUriSan,
        "DOWNSTREAM_LOCAL_URI_SAN" => Operator::DownstreamLocalUriSan,
        "DOWNSTREAM_PEER_SUBJECT" => Operator::DownstreamPeerSubject,
        "DOWNSTREAM_TLS_VERSION" => Operator::DownstreamTlsVersion,
        "DOWNSTREAM_TLS_CIPHER" => Operator::DownstreamTlsCipher,
        "REQUESTED_SERVER_NAME" => Operator::RequestedServerName,
        "ROUTE_NAME" => Operator::RouteName,
        "VIRTUAL_CLUSTER_NAME" => Operator::VirtualClusterName,
        "CONNECTION_ID" => Operator::ConnectionId,
        "STREAM_ID" => Operator::RequestId,
        "HOSTNAME" => Operator::Hostname,
        "LOCAL_REPLY_BODY" => Operator::LocalReplyBody,
        "FILTER_CHAIN_NAME" => Operator::FilterChainName,
        _ => return None,
    })
}
