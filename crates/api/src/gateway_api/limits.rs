//! Checks that several kinds have in common: names, host names, durations, and the length of lists.

use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::hostname::Hostname;
use evenkeel_base::yaml::Node;
use evenkeel_base::{Span, Spanned, duration};

use crate::decode::{Context, Decode, Schema, parsed};

/// The longest name of a section, and of a host.
const MAX_SUBDOMAIN_CHARS: usize = 253;

/// The name of a listener or of a rule (RFC 1123 subdomain).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionName(pub Arc<str>);

/// Whether a text is a DNS subdomain of RFC 1123, in lower case.
pub(super) fn is_subdomain(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    let is_label =
        |label: &str| !label.is_empty() && label.chars().all(inner) && !label.starts_with('-') && !label.ends_with('-');
    text.len() <= MAX_SUBDOMAIN_CHARS && text.split('.').all(is_label)
}

impl Decode for SectionName {
    fn schema() -> Schema {
        Schema::String("a name of lower-case letters, digits, dashes and dots")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-name", "lower-case letters, digits, inner dashes and dots", |text| {
            if is_subdomain(text) { Ok(Self(text.into())) } else { Err(format!("`{text}` is not a valid name")) }
        })
    }
}

/// A duration as the Gateway API writes it (GEP-2257): up to four numbers, each with a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GatewayDuration(pub Duration);

/// The most parts that a duration has.
const MAX_DURATION_PARTS: usize = 4;
/// The most digits of each of its numbers.
const MAX_DURATION_DIGITS: usize = 5;

impl GatewayDuration {
    fn parse(text: &str) -> Result<Self, String> {
        let refused = || format!("`{text}` is not a duration");
        let (mut rest, mut parts) = (text, 0);
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let unit = rest.get(digits..).unwrap_or_default();
            let unit = ["ms", "h", "m", "s"].into_iter().find(|known| unit.starts_with(known));
            let Some(unit) = unit.filter(|_| (1..=MAX_DURATION_DIGITS).contains(&digits)) else {
                return Err(refused());
            };
            rest = rest.get(digits + unit.len()..).unwrap_or_default();
            parts += 1;
        }
        let is_written_so = (1..=MAX_DURATION_PARTS).contains(&parts);
        duration::parse(text).ok().filter(|_| is_written_so).map(Self).ok_or_else(refused)
    }
}

impl Decode for GatewayDuration {
    fn schema() -> Schema {
        Schema::String("a duration such as `500ms`, `10s` or `1h30m`")
    }

    fn decode(node: &Node, cx: &mut Context) -> Option<Self> {
        parsed(node, cx, "bad-duration", "a duration such as `500ms`, `10s` or `1h30m`, without fractions", Self::parse)
    }
}

/// Checks a host name of a listener or a route: no address, in lower case, and a wildcard stands for whole labels.
pub(super) fn check_hostname(host: &Spanned<Hostname>, cx: &mut Context) {
    let text = host.as_str();
    let is_address = text.parse::<std::net::IpAddr>().is_ok();
    if is_address || !is_subdomain(text.strip_prefix("*.").unwrap_or(text)) {
        let message = format!("`{text}` is not a host name of the Gateway API");
        cx.error("bad-host", &host.span, message, "expected `a.example.com` or `*.example.com`");
    }
}

/// Checks that a list is not longer than the definition allows.
pub(super) fn at_most(max: usize, len: usize, field: &str, span: &Span, cx: &mut Context) {
    if len > max {
        let message = format!("{len} entries are too many");
        cx.at_field(field, |cx| cx.error("out-of-range", span, message, format!("at most {max}")));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_the_gateway_api_does() {
        let check = |text: &str, expected: Option<u64>| {
            let read = GatewayDuration::parse(text).ok().map(|read| read.0.as_millis());
            assert_eq!(read, expected.map(u128::from), "{text}");
        };
        check("0s", Some(0));
        check("500ms", Some(500));
        check("1h30m", Some(5_400_000));
        check("10s5ms", Some(10_005));
        check("1.5s", None);
        check("100000s", None);
        check("1h1m1s1ms1ms", None);
        check("-1s", None);
        check("1", None);
        check("", None);
    }
}
