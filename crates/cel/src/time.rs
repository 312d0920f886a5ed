//! Points in time: reading them (RFC 3339), and their parts in UTC.

use crate::value::Failure;

const NANOS: i64 = 1_000_000_000;
const DAY_SECONDS: i64 = 86_400;

/// A part of a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    FullYear,
    /// From 0.
    Month,
    /// From 0.
    DayOfMonth,
    /// From 1.
    Date,
    /// From 0, which is Sunday.
    DayOfWeek,
    /// From 0.
    DayOfYear,
    Hours,
    Minutes,
    Seconds,
    Milliseconds,
}

/// Reads `2026-01-31T12:34:56.789Z`, also with an offset. In nanoseconds since 1970.
pub(crate) fn timestamp(text: &str) -> Result<i64, Failure> {
    let wrong = || Failure::Conversion("timestamp");
    if !text.is_ascii() || text.len() < 20 {
        return Err(wrong());
    }
    let number = |from: usize, length: usize| {
        let digits = text.get(from..from + length).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        digits.and_then(|digits| digits.parse::<i64>().ok()).ok_or_else(wrong)
    };
    let is = |at: usize, wanted: &[u8]| text.as_bytes().get(at).is_some_and(|byte| wanted.contains(byte));
    if !(is(4, b"-") && is(7, b"-") && is(10, b"Tt") && is(13, b":") && is(16, b":")) {
        return Err(wrong());
    }
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let is_date = (1..=12).contains(&month) && (1..=days_of(year, month)).contains(&day);
    if !is_date || hour > 23 || minute > 59 || second > 59 {
        return Err(wrong());
    }
    let (mut rest, mut fraction) = (text.get(19..).ok_or_else(wrong)?, 0);
    if let Some(digits) = rest.strip_prefix('.') {
        let end = digits.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
        let (digits, behind) = digits.split_at(end);
        if !(1..=9).contains(&digits.len()) {
            return Err(wrong());
        }
        fraction = format!("{digits:0<9}").parse::<i64>().map_err(|_| wrong())?;
        rest = behind;
    }
    let offset = match rest.as_bytes() {
        b"Z" | b"z" => 0,
        [sign @ (b'+' | b'-'), h1 @ b'0'..=b'2', h2 @ b'0'..=b'9', b':', m1 @ b'0'..=b'5', m2 @ b'0'..=b'9'] => {
            let digit = |byte: &u8| i64::from(byte - b'0');
            let minutes = (digit(h1) * 10 + digit(h2)) * 60 + digit(m1) * 10 + digit(m2);
            if *sign == b'-' { -minutes * 60 } else { minutes * 60 }
        }
        _ => return Err(wrong()),
    };
    let seconds = days_since_1970(year, month, day) * DAY_SECONDS + hour * 3600 + minute * 60 + second - offset;
    let nanos = seconds.checked_mul(NANOS).and_then(|nanos| nanos.checked_add(fraction));
    nanos.ok_or(Failure::Range("timestamp"))
}

/// A part of a point in time. `nanos`: since 1970.
pub(crate) fn part(part: Part, nanos: i64) -> i64 {
    let seconds = nanos.div_euclid(NANOS);
    let (days, of_day) = (seconds.div_euclid(DAY_SECONDS), seconds.rem_euclid(DAY_SECONDS));
    match part {
        Part::Hours => of_day / 3600,
        Part::Minutes => of_day / 60 % 60,
        Part::Seconds => of_day % 60,
        Part::Milliseconds => nanos.rem_euclid(NANOS) / 1_000_000,
        // 1970 began on a Thursday.
        Part::DayOfWeek => (days + 4).rem_euclid(7),
        of_date => {
            let (year, month, day) = date(days);
            match of_date {
                Part::FullYear => year,
                Part::Month => month - 1,
                Part::DayOfMonth => day - 1,
                Part::DayOfYear => days - days_since_1970(year, 1, 1),
                _ => day,
            }
        }
    }
}

fn days_of(year: i64, month: i64) -> i64 {
    match month {
        2 if year % 4 == 0 && (year % 100 != 0 || year % 400 == 0) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Counts years from March, so that the leap day is the last one.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, month) = (year.div_euclid(400), (month + 9) % 12);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * month + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

fn date(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    (year + era * 400 + next, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_points_in_time() {
        for (text, expected) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-12-01T13:00:00.5Z", Some(1_796_130_000_500_000_000)),
            ("2026-12-01T15:00:00.5+02:00", Some(1_796_130_000_500_000_000)),
            ("1969-12-31T23:59:59.999999999z", Some(-1)),
            ("2000-02-29T00:00:00Z", Some(951_782_400_000_000_000)),
            ("1900-02-29T00:00:00Z", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-12-01T24:00:00Z", None),
            ("2026-12-01 13:00:00Z", None),
            ("2026-12-01T13:00:00", None),
            ("2026-12-01T13:00:00.Z", None),
            ("2026-12-01T13:00:00.0123456789Z", None),
            ("9999-12-31T23:59:59Z", None),
            ("+026-12-01T13:00:00Z", None),
            ("2026-12-01T13:00:00+2:00", None),
            ("", None),
            ("ä026-12-01T13:00:00Z", None),
        ] {
            assert_eq!(timestamp(text).ok(), expected, "{text}");
        }
    }

    #[test]
    fn dates_and_days_agree() {
        for days in (-800_000..800_000).step_by(17) {
            let (year, month, day) = date(days);
            assert_eq!(days_since_1970(year, month, day), days);
            assert!((1..=days_of(year, month)).contains(&day), "{year}-{month}-{day}");
        }
    }
}
