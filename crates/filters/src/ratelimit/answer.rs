//! What a rate limit service answers.

use evenkeel_envoy_api::envoy::config::core::v3::HeaderValue;
use evenkeel_envoy_api::envoy::service::ratelimit::v3::RateLimitResponse;
use evenkeel_envoy_api::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use evenkeel_envoy_api::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus};
use prost::Message;

/// The outcome of a call.
#[derive(Debug, PartialEq)]
pub(super) enum Answer {
    /// The service has decided.
    Decided(Box<Decided>),
    /// It has not, or says nothing that can be read.
    Failed,
    /// It was not asked, because too many calls are under way.
    Unasked,
}

/// A decision.
#[derive(Debug, PartialEq)]
pub(super) struct Decided {
    /// Whether the request is over a limit.
    pub(super) over: bool,
    /// Headers that the upstream gets.
    pub(super) request: Vec<Field>,
    /// Headers that the client gets.
    pub(super) response: Vec<Field>,
    /// The body of a refusal.
    pub(super) body: Vec<u8>,
    /// What is left.
    pub(super) left: Option<Left>,
}

/// A header's name, in lower case, and its value.
pub(super) type Field = (Vec<u8>, Vec<u8>);

/// What is left of the limit that is nearest, for `x-ratelimit-*`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// The limit, and all limits with their windows.
    pub(super) limit: String,
    /// Requests.
    pub(super) remaining: u32,
    /// Seconds until the limit begins anew.
    pub(super) reset: i64,
}

impl Answer {
    pub(super) fn of(message: &[u8]) -> Self {
        let Ok(answer) = RateLimitResponse::decode(message) else { return Self::Failed };
        let over = match Code::try_from(answer.overall_code) {
            Ok(Code::Ok) => false,
            Ok(Code::OverLimit) => true,
            Ok(Code::Unknown) | Err(_) => return Self::Failed,
        };
        Self::Decided(Box::new(Decided {
            over,
            request: fields(answer.request_headers_to_add),
            response: fields(answer.response_headers_to_add),
            body: answer.raw_body,
            left: left(&answer.statuses),
        }))
    }
}

/// Headers that a message can have. A service must not end a line, nor say what only the proxy does.
fn fields(headers: Vec<HeaderValue>) -> Vec<Field> {
    let field = |header: HeaderValue| {
        let value = if header.raw_value.is_empty() { header.value.into_bytes() } else { header.raw_value };
        let name = header.key.to_ascii_lowercase().into_bytes();
        let is_name = !name.is_empty()
            && name.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.!#$%&'*+^`|~".contains(byte));
        let is_framing =
            [&b"content-length"[..], b"transfer-encoding", b"connection", b"host", b"upgrade", b"te"].contains(&&*name);
        let is_value = !value.iter().any(|byte| matches!(byte, b'\r' | b'\n' | 0));
        (is_name && !is_framing && is_value).then_some((name, value))
    };
    headers.into_iter().filter_map(field).collect()
}

fn left(statuses: &[DescriptorStatus]) -> Option<Left> {
    let limited = || statuses.iter().filter_map(|status| Some((status, status.current_limit.as_ref()?)));
    let (nearest, limit) = limited().min_by_key(|(status, _)| status.limit_remaining)?;
    let mut text = limit.requests_per_unit.to_string();
    for (_, limit) in limited() {
        let Some(seconds) = window(limit.unit) else { continue };
        text.push_str(&format!(", {};w={seconds}", limit.requests_per_unit));
        // A name is quoted: it must not end the text.
        if !limit.name.is_empty() && !limit.name.contains(['"', '\\']) && !limit.name.contains(char::is_control) {
            text.push_str(&format!(";name=\"{}\"", limit.name));
        }
    }
    let reset = nearest.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    Some(Left { limit: text, remaining: nearest.limit_remaining, reset })
}

/// The length of a unit in seconds.
fn window(unit: i32) -> Option<u32> {
    match Unit::try_from(unit) {
        Ok(Unit::Second) => Some(1),
        Ok(Unit::Minute) => Some(60),
        Ok(Unit::Hour) => Some(3600),
        Ok(Unit::Day) => Some(86_400),
        Ok(Unit::Week) => Some(7 * 86_400),
        Ok(Unit::Month) => Some(30 * 86_400),
        Ok(Unit::Year) => Some(365 * 86_400),
        Ok(Unit::Unknown) | Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_read_is_a_failure() {
        for message in [&b"\xff\xff"[..], b"", b"\x08\x63"] {
            assert_eq!(Answer::of(message), Answer::Failed, "{message:?}");
        }
    }

    #[test]
    fn headers_that_would_break_a_message_are_left_out() {
        let header = |key: &str, value: &str| HeaderValue {
            key: key.to_owned(),
            value: value.to_owned(),
            raw_value: Vec::new(),
        };
        for (key, value, expected) in [
            ("X-A", "1", Some((b"x-a".to_vec(), b"1".to_vec()))),
            ("x-a", "1\r\nx-b: 2", None),
            (":path", "/other", None),
            ("Content-Length", "7", None),
            ("", "1", None),
        ] {
            assert_eq!(fields(vec![header(key, value)]).pop(), expected, "{key:?} {value:?}");
        }
    }
}
