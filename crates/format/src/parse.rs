//! Format strings of access logs and header values: `%OPERATOR(argument):length%` with literals between.

use std::sync::Arc;

use evenkeel_base::suggest::closest;

use crate::names;
use crate::operator::{Format, FormatPart, Operator};

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
    /// An operator that is none of Envoy's.
    #[error("at byte {at}: there is no operator %{name}%{}", near(name))]
    Unknown {
        /// Where.
        at: usize,
        /// Which.
        name: String,
    },
    /// An operator of Envoy's that this proxy does not have.
    #[error("at byte {at}: operator %{name}% is Envoy's, and Evenkeel's proxy does not have it")]
    OnlyEnvoy {
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
        expected: String,
    },
}

/// The way out of a mistyped name.
fn near(name: &str) -> String {
    let meant = closest(name, names::known());
    meant.map(|meant| format!("; did you mean %{meant}%?")).unwrap_or_default()
}

impl FormatError {
    /// Where the mistake is: a byte of the text.
    pub fn at(&self) -> usize {
        match self {
            Self::Unfinished { at }
            | Self::Unknown { at, .. }
            | Self::OnlyEnvoy { at, .. }
            | Self::Argument { at, .. } => *at,
        }
    }

    /// What is wrong, without the place.
    pub fn what(&self) -> String {
        let text = self.to_string();
        text.split_once(": ").map(|(_, what)| what.to_owned()).unwrap_or(text)
    }

    /// The operator, if it is one that only a stock Envoy has.
    pub fn only_envoy(&self) -> Option<&str> {
        match self {
            Self::OnlyEnvoy { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// What is known where a format string is read.
#[derive(Clone)]
pub struct Surroundings<'e> {
    /// The value of an environment variable (`%ENVIRONMENT(NAME)%`).
    pub variable: &'e dyn Fn(&str) -> Option<String>,
    /// The proxy's id and cluster, for expressions.
    pub node: Arc<[String; 2]>,
    /// The kind of log that it is for (`%ACCESS_LOG_TYPE%`): `DownstreamEnd`; empty: it is for none.
    pub log_type: &'static str,
}

impl<'e> Surroundings<'e> {
    /// With nothing known but variables.
    pub fn new(variable: &'e dyn Fn(&str) -> Option<String>) -> Self {
        Self { variable, node: Arc::default(), log_type: "" }
    }
}

impl Format {
    /// Parses a format string. `environment` resolves `%ENVIRONMENT(NAME)%`.
    pub fn parse(text: &str, environment: &dyn Fn(&str) -> Option<String>) -> Result<Self, FormatError> {
        Self::parse_in(text, &Surroundings::new(environment))
    }

    /// Parses a format string.
    pub fn parse_in(text: &str, surroundings: &Surroundings<'_>) -> Result<Self, FormatError> {
        let mut parts = Vec::new();
        let mut literal = String::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('%') {
            literal.push_str(before);
            if let Some(after) = after.strip_prefix('%') {
                literal.push('%');
                rest = after;
                continue;
            }
            let (command, after) = Command::split(after, text.len() - after.len() - 1)?;
            rest = after;
            match command.resolve(surroundings)? {
                Resolved::Literal(value) => literal.push_str(&value),
                Resolved::Operator(operator) => {
                    push_literal(&mut parts, &mut literal);
                    parts.push(FormatPart::Operator { operator, max_length: command.max_length });
                }
            }
        }
        literal.push_str(rest);
        push_literal(&mut parts, &mut literal);
        Ok(Self { parts })
    }
}

/// The length of the operator in a text behind a `%`, with its last `%`; an error: it has the form of one, and is none that this proxy
/// has. `None`: it has not even the form.
pub fn operator_at(after: &str) -> Option<Result<usize, FormatError>> {
    let (command, rest) = Command::split(after, 0).ok()?;
    let resolved = command.resolve(&Surroundings::new(&|_| None));
    Some(resolved.map(|_| after.len() - rest.len()))
}

fn push_literal(parts: &mut Vec<FormatPart>, literal: &mut String) {
    if !literal.is_empty() {
        parts.push(FormatPart::Literal(std::mem::take(literal).into()));
    }
}

/// The parts of `%NAME(argument):length%`.
pub(crate) struct Command<'t> {
    /// The position of its first `%`.
    pub(crate) at: usize,
    pub(crate) name: &'t str,
    pub(crate) argument: Option<&'t str>,
    pub(crate) max_length: Option<usize>,
}

/// What an operator stands for.
pub(crate) enum Resolved {
    Literal(String),
    Operator(Operator),
}

impl<'t> Command<'t> {
    /// Splits the text behind a `%` into an operator and what follows it. As in Envoy, an argument ends at the first `)` behind which the
    /// operator can end, so that expressions may hold brackets.
    fn split(text: &'t str, at: usize) -> Result<(Self, &'t str), FormatError> {
        let unfinished = FormatError::Unfinished { at };
        let is_name = |b: &u8| b.is_ascii_uppercase() || b.is_ascii_digit() || *b == b'_';
        let (name, rest) = text.split_at(text.bytes().take_while(is_name).count());
        if name.is_empty() {
            return Err(unfinished);
        }
        let Some(inside) = rest.strip_prefix('(') else {
            let (max_length, rest) = end(rest).ok_or(unfinished)?;
            return Ok((Self { at, name, argument: None, max_length }, rest));
        };
        let ends = inside.match_indices(')').find_map(|(place, _)| {
            let (argument, after) = inside.split_at(place);
            let (max_length, rest) = end(after.get(1..)?)?;
            Some((Self { at, name, argument: Some(argument), max_length }, rest))
        });
        ends.ok_or(unfinished)
    }

    pub(crate) fn wrong_argument(&self, expected: impl Into<String>) -> FormatError {
        FormatError::Argument { at: self.at, name: self.name.into(), expected: expected.into() }
    }

    pub(crate) fn unknown(&self) -> FormatError {
        let (at, name) = (self.at, self.name.to_owned());
        if names::ONLY_ENVOY.contains(&self.name) {
            FormatError::OnlyEnvoy { at, name }
        } else {
            FormatError::Unknown { at, name }
        }
    }
}

/// The end of an operator: `:length%` or `%`.
fn end(text: &str) -> Option<(Option<usize>, &str)> {
    let Some(after) = text.strip_prefix(':') else { return Some((None, text.strip_prefix('%')?)) };
    let (digits, rest) = after.split_at(after.bytes().take_while(u8::is_ascii_digit).count());
    Some((Some(digits.parse().ok()?), rest.strip_prefix('%')?))
}
