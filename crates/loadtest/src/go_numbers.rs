//! Numbers and durations as Go's `fmt` and `time` print and read them, because results are compared with Fortio's.

use std::time::Duration;

/// `%g`: as many digits as the value needs.
pub fn shortest(value: f64) -> String {
    let text = format!("{value:e}");
    let digits = text.split('e').next().unwrap_or_default().bytes().filter(u8::is_ascii_digit).count();
    general(value, Form { digits, scientific_from: 21 })
}

/// `%.Ng`: at most this many significant digits.
pub fn significant(value: f64, digits: usize) -> String {
    general(value, Form { digits, scientific_from: i32::try_from(digits).unwrap_or(i32::MAX) })
}

struct Form {
    digits: usize,
    /// The exponent from which the scientific notation is used.
    scientific_from: i32,
}

fn general(value: f64, form: Form) -> String {
    let scientific = format!("{value:.*e}", form.digits.saturating_sub(1));
    let Some((mantissa, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if exponent < -4 || exponent >= form.scientific_from {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", without_zeros(mantissa), exponent.abs());
    }
    let decimals = i32::try_from(form.digits).unwrap_or(i32::MAX) - 1 - exponent;
    without_zeros(&format!("{value:.*}", usize::try_from(decimals).unwrap_or(0))).to_owned()
}

/// A number without the zeros that end its fraction.
fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// A duration as Go prints it: `1m30s`, `1.5ms`, `0s`.
pub fn duration(value: Duration) -> String {
    let nanoseconds = value.as_nanos();
    let in_units = |unit: u128, name: &str| format!("{}{name}", shortest(nanoseconds as f64 / unit as f64));
    match nanoseconds {
        0 => "0s".to_owned(),
        1..1_000 => in_units(1, "ns"),
        1_000..1_000_000 => in_units(1_000, "µs"),
        1_000_000..1_000_000_000 => in_units(1_000_000, "ms"),
        _ => {
            let (hours, minutes) = (value.as_secs() / 3600, value.as_secs() / 60 % 60);
            let seconds = (value.as_secs() % 60) as f64 + f64::from(value.subsec_nanos()) / 1e9;
            let seconds = shortest((seconds * 1e9).round() / 1e9);
            match (hours, minutes) {
                (0, 0) => format!("{seconds}s"),
                (0, _) => format!("{minutes}m{seconds}s"),
                _ => format!("{hours}h{minutes}m{seconds}s"),
            }
        }
    }
}

/// Reads a duration as Go's `time.ParseDuration` does: `300ms`, `1.5h`, `2h45m`, `0`.
///
/// # Errors
/// It is no duration; says what is expected.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("invalid duration {text:?}: expected numbers with units, such as 300ms, 1.5s or 2m30s");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut rest, mut seconds) = (text, 0.0);
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, after) = rest.split_at(unit_at);
        let next_at = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let (unit, after) = after.split_at(next_at);
        let scale = match unit {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            _ => return Err(wrong()),
        };
        seconds += number.parse::<f64>().map_err(|_| wrong())? * scale;
        rest = after;
    }
    if text.is_empty() {
        return Err(wrong());
    }
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_look_like_those_of_go() {
        let check = |value: f64, digits: usize, expected: &str| assert_eq!(significant(value, digits), expected);
        check(0.000_545_184, 6, "0.000545184");
        check(0.000_090_368, 6, "9.0368e-05");
        check(99.651_881, 5, "99.652");
        check(20.0, 6, "20");
        check(0.0, 4, "0");
        check(1_234_567.0, 6, "1.23457e+06");
        for (value, expected) in [(217.0, "217"), (9.0368e-5, "9.0368e-05"), (0.001, "0.001"), (8.0, "8"), (0.1, "0.1")]
        {
            assert_eq!(shortest(value), expected);
        }
    }

    #[test]
    fn durations_look_like_those_of_go() {
        let check = |nanoseconds: u64, expected: &str| {
            assert_eq!(duration(Duration::from_nanos(nanoseconds)), expected);
            assert_eq!(parse_duration(expected), Ok(Duration::from_nanos(nanoseconds)), "{expected}");
        };
        check(0, "0s");
        check(15, "15ns");
        check(921_597, "921.597µs");
        check(200_698_670, "200.69867ms");
        check(5_000_000_000, "5s");
        check(90_000_000_000, "1m30s");
        check(3_600_000_000_000, "1h0m0s");
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "5", "5 s", "s", "1x", "-1s", "1.2.3s"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
