//! `%START_TIME%`: the date is formatted once a second per thread, the fraction each time.

use std::cell::RefCell;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use time::OffsetDateTime;

#[derive(Default)]
struct Second {
    unix: u64,
    /// `2026-01-31T12:34:56`; zeroes until it is used.
    text: [u8; 19],
}

thread_local! {
    static SECOND: RefCell<Second> = RefCell::default();
}

/// Appends `2026-01-31T12:34:56.789Z`.
pub fn write_default(at: SystemTime, out: &mut Vec<u8>) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix = since.as_secs();
    SECOND.with_borrow_mut(|second| {
        if second.unix != unix || second.text[0] == 0 {
            second.unix = unix;
            let date = date(unix);
            // It fits: years have four digits.
            let _ = write!(
                second.text.as_mut_slice(),
                "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}",
                date.year(),
                u8::from(date.month()),
                date.day(),
                date.hour(),
                date.minute(),
                date.second()
            );
        }
        out.extend_from_slice(&second.text);
    });
    let millis = since.subsec_millis();
    out.extend_from_slice(&[
        b'.',
        b'0' + (millis / 100) as u8,
        b'0' + (millis / 10 % 10) as u8,
        b'0' + (millis % 10) as u8,
        b'Z',
    ]);
}

/// Appends the time in a `strftime` format with Envoy's extensions: `%s` for whole seconds, `%Nf` and `%f` for fractions of N (9) digits;
/// `%sNf` is not supported. Unknown sequences are copied as they are.
pub fn write_custom(at: SystemTime, format: &str, out: &mut Vec<u8>) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let date = date(since.as_secs());
    let mut rest = format;
    while let Some(start) = rest.find('%') {
        out.extend_from_slice(&rest.as_bytes()[..start]);
        rest = &rest[start + 1..];
        let digits = rest.chars().next().filter(char::is_ascii_digit);
        let width = digits.and_then(|digit| digit.to_digit(10)).unwrap_or(9);
        let code_at = usize::from(digits.is_some());
        let Some(code) = rest[code_at..].chars().next() else { break };
        let known = match (code, digits) {
            ('f', _) => {
                let nanos = format!("{:09}", since.subsec_nanos());
                out.extend_from_slice(&nanos.as_bytes()[..(width as usize).min(9)]);
                true
            }
            ('s', None) => write!(out, "{}", since.as_secs()).is_ok(),
            (code, None) => write_date_code(date, code, out),
            _ => false,
        };
        if !known {
            out.push(b'%');
            continue;
        }
        rest = &rest[code_at + code.len_utf8()..];
    }
    out.extend_from_slice(rest.as_bytes());
}

fn write_date_code(date: OffsetDateTime, code: char, out: &mut Vec<u8>) -> bool {
    let (year, month, day) = (date.year(), u8::from(date.month()), date.day());
    let (hour, minute, second) = (date.hour(), date.minute(), date.second());
    match code {
        'Y' => write!(out, "{year:04}"),
        'y' => write!(out, "{:02}", year.rem_euclid(100)),
        'm' => write!(out, "{month:02}"),
        'd' => write!(out, "{day:02}"),
        'e' => write!(out, "{day:2}"),
        'H' => write!(out, "{hour:02}"),
        'M' => write!(out, "{minute:02}"),
        'S' => write!(out, "{second:02}"),
        'T' => write!(out, "{hour:02}:{minute:02}:{second:02}"),
        'F' => write!(out, "{year:04}-{month:02}-{day:02}"),
        'b' => write!(out, "{:.3}", date.month().to_string()),
        'a' => write!(out, "{:.3}", date.weekday().to_string()),
        'z' => write!(out, "+0000"),
        'Z' => write!(out, "UTC"),
        '%' => write!(out, "%"),
        _ => return false,
    }
    .is_ok()
}

fn date(unix: u64) -> OffsetDateTime {
    i64::try_from(unix)
        .ok()
        .and_then(|seconds| OffsetDateTime::from_unix_timestamp(seconds).ok())
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn prints_envoys_formats() {
        let at = UNIX_EPOCH + Duration::new(1_770_000_000, 7_089_000);
        let mut out = Vec::new();
        write_default(at, &mut out);
        assert_eq!(String::from_utf8_lossy(&out), "2026-02-02T02:40:00.007Z");
        let check = |format: &str, expected: &str| {
            let mut out = Vec::new();
            write_custom(at, format, &mut out);
            assert_eq!(String::from_utf8_lossy(&out), expected, "{format}");
        };
        check("%Y/%m/%dT%H:%M:%S%z", "2026/02/02T02:40:00+0000");
        check("%s.%3f", "1770000000.007");
        check("%6f|%f|%9f", "007089|007089000|007089000");
        check("%a %e %b %F %T %Z %%", "Mon  2 Feb 2026-02-02 02:40:00 UTC %");
        check("100%", "100");
        check("%Q%3x é", "%Q%3x é");
    }
}
