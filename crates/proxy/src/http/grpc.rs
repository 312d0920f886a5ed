//! What gRPC adds to HTTP: its own status beside HTTP's, its own time limit.

use std::time::Duration;

use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::route::GrpcTimeout;

use super::request::Request;

const OK: u8 = 0;
const UNKNOWN: u8 = 2;
const DEADLINE_EXCEEDED: u8 = 4;

/// The gRPC status that stands for an HTTP status (`doc/http-grpc-status-mapping.md` of gRPC).
pub(crate) fn status_of_http(status: u16) -> u8 {
    match status {
        400 => 13,
        401 => 16,
        403 => 7,
        404 => 12,
        429 | 502..=504 => 14,
        _ => UNKNOWN,
    }
}

/// The HTTP status that stands for a gRPC status: what statistics and health count.
pub(super) fn http_of_status(status: u8) -> u16 {
    match status {
        OK => 200,
        1 => 499,
        3 | 9 | 11 => 400,
        DEADLINE_EXCEEDED => 504,
        5 => 404,
        6 | 10 => 409,
        7 => 403,
        8 => 429,
        12 => 501,
        14 => 503,
        16 => 401,
        _ => 500,
    }
}

/// How the call ended: by its trailers, else its headers.
pub(super) fn status(request: &Request) -> Option<u8> {
    let of = |headers: &Headers| std::str::from_utf8(headers.get(HeaderId::GrpcStatus)?).ok()?.parse().ok();
    of(&request.response_trailers).or_else(|| of(&request.response.headers))
}

/// Makes the head of a reply one that gRPC clients understand: 200, and the status and what it means beside it. No body follows.
pub(super) fn reply_head(headers: &mut Headers, status: u32, message: &[u8]) {
    headers.set(HeaderId::ContentType, b"application/grpc");
    let mut digits = itoa::Buffer::new();
    headers.append_id(HeaderId::GrpcStatus, digits.format(status).as_bytes());
    if !message.is_empty() {
        headers.append(b"grpc-message", &percent_encoded(message));
    }
}

/// `grpc-message` (gRPC over HTTP/2: printable ASCII stays, but for `%`).
fn percent_encoded(text: &[u8]) -> Vec<u8> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut encoded = Vec::with_capacity(text.len());
    for byte in text {
        match byte {
            b'%' | 0..=0x1f | 0x7f.. => {
                encoded.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
            }
            _ => encoded.push(*byte),
        }
    }
    encoded
}

/// The limit a client asked for, as far as the route lets it. `None`: none.
pub(super) fn timeout(headers: &Headers, route: GrpcTimeout) -> Option<Duration> {
    let asked = headers.find(b"grpc-timeout").and_then(parse_timeout).filter(|asked| !asked.is_zero());
    let asked = asked.map(|asked| if route.offset < asked { asked - route.offset } else { asked });
    match (asked, route.most) {
        (Some(asked), Some(most)) => Some(asked.min(most)),
        (asked, most) => asked.or(most.filter(|_| route.as_route_timeout)),
    }
}

/// A limit as clients write it, in the finest unit from milliseconds up that eight digits are enough for.
pub(super) fn format_timeout(timeout: Duration) -> String {
    const MOST: u128 = 99_999_999;
    let units = [(timeout.as_millis(), 'm'), (timeout.as_secs().into(), 'S'), ((timeout.as_secs() / 60).into(), 'M')];
    let fitting = units.into_iter().find(|(number, _)| *number <= MOST);
    let (number, unit) = fitting.unwrap_or(((timeout.as_secs() / 3600).into(), 'H'));
    format!("{}{unit}", number.min(MOST))
}

/// At most eight digits and a unit.
fn parse_timeout(text: &[u8]) -> Option<Duration> {
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
    fn timeouts_are_read_and_bounded() {
        let route = |most: u64, offset: u64| GrpcTimeout {
            as_route_timeout: true,
            most: (most > 0).then(|| Duration::from_millis(most)),
            offset: Duration::from_millis(offset),
        };
        let check = |header: &str, route: GrpcTimeout, millis: Option<u64>| {
            let mut headers = Headers::default();
            if !header.is_empty() {
                headers.append(b"grpc-timeout", header.as_bytes());
            }
            assert_eq!(timeout(&headers, route), millis.map(Duration::from_millis), "{header:?} {route:?}");
        };
        check("5S", route(0, 0), Some(5_000));
        check("2M", route(0, 0), Some(120_000));
        check("250m", route(0, 50), Some(200));
        check("250m", route(0, 300), Some(250));
        check("1H", route(10_000, 0), Some(10_000));
        check("", route(10_000, 0), Some(10_000));
        check("", route(0, 0), None);
        check("", GrpcTimeout { as_route_timeout: false, ..route(10_000, 0) }, None);
        for wrong in ["5", "S", "-5S", "123456789S", "5s", " 5S"] {
            check(wrong, route(0, 0), None);
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
    }

    #[test]
    fn messages_and_statuses() {
        assert_eq!(percent_encoded(b"50% of \xc3\xa9\n"), b"50%25 of %C3%A9%0A");
        for status in [400, 401, 403, 404, 429, 500, 503] {
            assert!(http_of_status(status_of_http(status)) >= 400, "{status}");
        }
        assert_eq!(http_of_status(status_of_http(503)), 503);
    }
}
