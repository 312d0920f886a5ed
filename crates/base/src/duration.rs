//! Durations as users write them: protobuf's `1.5s` and Go's `1h2m3.5s`.

use std::time::Duration;

/// Why a text is not a duration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DurationError {
    /// No unit, or an unknown one.
    #[error("`{0}` is not a duration such as `500ms`, `1.5s` or `1h30m`")]
    Form(String),
    /// A minus sign.
    #[error("a duration cannot be negative")]
    Negative,
    /// More than protobuf's Duration holds (10,000 years).
    #[error("a duration has at most 315576000000 seconds")]
    TooLong,
}

/// Largest protobuf Duration, in seconds.
const MAX_SECONDS: u64 = 315_576_000_000;

/// Reads a sequence of numbers with units `h`, `m`, `s`, `ms`, `us`/`µs`, `ns` (Go's `time.ParseDuration`); `0` alone is fine.
pub fn parse(text: &str) -> Result<Duration, DurationError> {
    let form = || DurationError::Form(text.to_owned());
    if text.starts_with('-') {
        return Err(DurationError::Negative);
    }
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let mut rest = text.strip_prefix('+').unwrap_or(text);
    if rest.is_empty() {
        return Err(form());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let number_end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(form)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        let unit = nanos_of(unit).ok_or_else(form)?;
        nanos = nanos.saturating_add(scaled(number, unit).ok_or_else(form)?);
        rest = tail;
    }
    let seconds = u64::try_from(nanos / 1_000_000_000).map_err(|_| DurationError::TooLong)?;
    if seconds <= MAX_SECONDS {
        Ok(Duration::new(seconds, (nanos % 1_000_000_000) as u32))
    } else {
        Err(DurationError::TooLong)
    }
}

fn nanos_of(unit: &str) -> Option<u128> {
    Some(match unit {
        "h" => 3_600_000_000_000,
        "m" => 60_000_000_000,
        "s" => 1_000_000_000,
        "ms" => 1_000_000,
        "us" | "µs" | "μs" => 1_000,
        "ns" => 1,
        _ => return None,
    })
}

/// `number` × `unit` in whole nanoseconds, without the rounding of floating point.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    // Only digits get here, so the only failure is a number beyond 128 bits.
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().unwrap_or(u128::MAX) };
    let mut nanos = whole.saturating_mul(unit);
    let mut place = unit;
    for digit in fraction.chars() {
        place /= 10;
        nanos = nanos.saturating_add(u128::from(digit.to_digit(10)?) * place);
    }
    Some(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_forms() {
        let check = |text: &str, nanos: u128| assert_eq!(parse(text).map(|d| d.as_nanos()), Ok(nanos), "{text}");
        check("0", 0);
        check("0s", 0);
        check("1.5s", 1_500_000_000);
        check("1h2m", 3_720_000_000_000);
        check("500ms", 500_000_000);
        check(".5s", 500_000_000);
        check("0.0000001s", 100);
        check("10us1ns", 10_001);
        check("315576000000s", 315_576_000_000_000_000_000);
    }

    #[test]
    fn refuses_the_rest() {
        let check = |text: &str, expected: DurationError| assert_eq!(parse(text), Err(expected), "{text}");
        let form = |text: &str| DurationError::Form(text.into());
        for text in ["", "5", "s", "1 s", "1x", "1.2.3s", "1d", "+", ".s", "1m2"] {
            check(text, form(text));
        }
        check("-1s", DurationError::Negative);
        check("315576000001s", DurationError::TooLong);
        check("99999999999999999999999999h", DurationError::TooLong);
    }
}
