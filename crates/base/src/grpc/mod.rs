//! gRPC over HTTP/2 (`doc/PROTOCOL-HTTP2.md` of gRPC): content types, statuses, time limits, and messages in bodies ([`frames`]).

pub mod frames;

use std::time::Duration;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode, percent_encode};

pub use frames::{FrameError, Frames, Messages, frame};

/// The content type of calls, without the suffix for the encoding of messages.
pub const CONTENT_TYPE: &str = "application/grpc";

/// Whether this content type is gRPC's: `application/grpc`, with or without an encoding (`application/grpc+proto`).
/// `application/grpc-web` is another protocol.
pub fn is_grpc(content_type: &[u8]) -> bool {
    content_type.strip_prefix(CONTENT_TYPE.as_bytes()).is_some_and(|rest| matches!(rest.first(), None | Some(b'+')))
}

/// Statuses of calls, by number.
pub mod status {
    /// The call succeeded.
    pub const OK: u8 = 0;
    /// The caller has cancelled it.
    pub const CANCELLED: u8 = 1;
    /// No more specific status is known.
    pub const UNKNOWN: u8 = 2;
    /// It took longer than the caller allows.
    pub const DEADLINE_EXCEEDED: u8 = 4;
    /// A quota or a resource is used up.
    pub const RESOURCE_EXHAUSTED: u8 = 8;
    /// There is no such method.
    pub const UNIMPLEMENTED: u8 = 12;
    /// One side broke the protocol.
    pub const INTERNAL: u8 = 13;
    /// The service cannot be reached; a retry may help.
    pub const UNAVAILABLE: u8 = 14;
    /// Data was lost.
    pub const DATA_LOSS: u8 = 15;
}

/// Names of the statuses by number, as access logs write them.
pub const STATUS_NAMES: [(&str, &str); 17] = [
    ("OK", "OK"),
    ("Canceled", "CANCELLED"),
    ("Unknown", "UNKNOWN"),
    ("InvalidArgument", "INVALID_ARGUMENT"),
    ("DeadlineExceeded", "DEADLINE_EXCEEDED"),
    ("NotFound", "NOT_FOUND"),
    ("AlreadyExists", "ALREADY_EXISTS"),
    ("PermissionDenied", "PERMISSION_DENIED"),
    ("ResourceExhausted", "RESOURCE_EXHAUSTED"),
    ("FailedPrecondition", "FAILED_PRECONDITION"),
    ("Aborted", "ABORTED"),
    ("OutOfRange", "OUT_OF_RANGE"),
    ("Unimplemented", "UNIMPLEMENTED"),
    ("Internal", "INTERNAL"),
    ("Unavailable", "UNAVAILABLE"),
    ("DataLoss", "DATA_LOSS"),
    ("Unauthenticated", "UNAUTHENTICATED"),
];

/// Returns the gRPC status for an HTTP status (`doc/http-grpc-status-mapping.md` of gRPC).
pub fn status_of_http(status: u16) -> u8 {
    match status {
        400 => status::INTERNAL,
        401 => 16,
        403 => 7,
        404 => status::UNIMPLEMENTED,
        429 | 502..=504 => status::UNAVAILABLE,
        _ => status::UNKNOWN,
    }
}

/// Returns the HTTP status for a gRPC status, for statistics and outlier detection.
pub fn http_of_status(status: u8) -> u16 {
    match status {
        status::OK => 200,
        status::CANCELLED => 499,
        3 | 9 | 11 => 400,
        status::DEADLINE_EXCEEDED => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        status::UNIMPLEMENTED => 501,
        status::UNAVAILABLE => 503,
        16 => 401,
        _ => 500,
    }
}

/// The number in `grpc-status`; `None` if it is not a number.
pub fn parse_status(value: &[u8]) -> Option<u8> {
    std::str::from_utf8(value).ok()?.parse().ok()
}

/// Characters that `grpc-message` escapes: all but printable ASCII, and `%`. Bytes beyond ASCII are escaped in any set.
const NOT_IN_MESSAGE: &AsciiSet = &CONTROLS.add(b'%');

/// `grpc-message` as it is sent.
pub fn percent_encoded(text: &[u8]) -> Vec<u8> {
    percent_encode(text, NOT_IN_MESSAGE).flat_map(str::as_bytes).copied().collect()
}

/// The text of `grpc-message`. Invalid escapes stay as they are.
pub fn percent_decoded(value: &[u8]) -> String {
    percent_decode(value).decode_utf8_lossy().into_owned()
}

/// `grpc-timeout` for a time limit, in the finest unit (milliseconds or coarser) that needs at most eight digits.
pub fn format_timeout(timeout: Duration) -> String {
    const MOST: u128 = 99_999_999;
    let units = [(timeout.as_millis(), 'm'), (timeout.as_secs().into(), 'S'), ((timeout.as_secs() / 60).into(), 'M')];
    let fitting = units.into_iter().find(|(number, _)| *number <= MOST);
    let (number, unit) = fitting.unwrap_or(((timeout.as_secs() / 3600).into(), 'H'));
    format!("{}{unit}", number.min(MOST))
}

/// The time limit in `grpc-timeout`: at most eight digits and a unit.
pub fn parse_timeout(text: &[u8]) -> Option<Duration> {
    let (unit, digits) = text.split_last()?;
    if digits.is_empty() || digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let number: u64 = std::str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(number * 3600),
        b'M' => Duration::from_secs(number * 60),
        b'S' => Duration::from_secs(number),
        b'm' => Duration::from_millis(number),
        b'u' => Duration::from_micros(number),
        b'n' => Duration::from_nanos(number),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_types() {
        for (kind, expected) in [
            ("application/grpc", true),
            ("application/grpc+proto", true),
            ("application/grpc+", true),
            ("application/grpc;charset=utf-8", false),
            ("application/grpc; charset=utf-8", false),
            ("application/grpc-web", false),
            ("application/grpc-web+proto", false),
            ("application/grpcweb", false),
            ("application/grp", false),
            ("Application/grpc", false),
            ("application/json", false),
            ("", false),
        ] {
            assert_eq!(is_grpc(kind.as_bytes()), expected, "{kind}");
        }
    }

    #[test]
    fn statuses_stand_for_each_other() {
        for (http, grpc) in
            [(200, 2), (400, 13), (401, 16), (403, 7), (404, 12), (429, 14), (500, 2), (502, 14), (503, 14), (504, 14)]
        {
            assert_eq!(status_of_http(http), grpc, "{http}");
        }
        for (grpc, http) in [200, 499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401]
            .into_iter()
            .enumerate()
        {
            assert_eq!(http_of_status(grpc as u8), http, "{grpc}");
        }
        assert_eq!(http_of_status(17), 500);
        for (text, number) in
            [("0", Some(0)), ("14", Some(14)), ("-1", None), ("", None), ("fine", None), ("256", None)]
        {
            assert_eq!(parse_status(text.as_bytes()), number, "{text:?}");
        }
    }

    #[test]
    fn messages_are_escaped_and_read_again() {
        assert_eq!(percent_encoded(b"50% of \xc3\xa9\n"), b"50%25 of %C3%A9%0A");
        for text in ["", "plain", "50% of é\n", "%41", "100%"] {
            assert_eq!(percent_decoded(&percent_encoded(text.as_bytes())), text);
        }
        for (value, text) in [("%", "%"), ("%4", "%4"), ("%zz", "%zz"), ("%41%4a", "AJ"), ("%ff", "\u{fffd}")] {
            assert_eq!(percent_decoded(value.as_bytes()), text, "{value}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for seconds in [0, 1, 99_999, 100_000, 10_000_000_000] {
            let timeout = Duration::from_secs(seconds);
            let text = format_timeout(timeout);
            let read = parse_timeout(text.as_bytes()).expect("a timeout");
            assert!(read <= timeout && timeout - read < Duration::from_secs(3600), "{text}");
        }
        for wrong in ["5", "S", "-5S", "123456789S", "5s", " 5S", ""] {
            assert_eq!(parse_timeout(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
