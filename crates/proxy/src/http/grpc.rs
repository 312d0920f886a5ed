//! What gRPC adds to HTTP: its own status beside HTTP's, its own time limit.

use std::time::Duration;

use evenkeel_base::grpc::{CONTENT_TYPE, parse_status, parse_timeout, percent_encoded};
use evenkeel_http::{HeaderId, Headers};
use evenkeel_runtime_config::route::GrpcTimeout;

use super::request::Request;

/// How the call ended: by its trailers, else its headers.
pub(super) fn status(request: &Request) -> Option<u8> {
    let of = |headers: &Headers| headers.get(HeaderId::GrpcStatus).and_then(parse_status);
    of(&request.response_trailers).or_else(|| of(&request.response.headers))
}

/// Makes the head of a reply one that gRPC clients understand: 200, and the status and what it means beside it. No body follows.
pub(super) fn reply_head(headers: &mut Headers, status: u32, message: &[u8]) {
    headers.set(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
    let mut digits = itoa::Buffer::new();
    if headers.get(HeaderId::GrpcStatus).is_none_or(<[u8]>::is_empty) {
        headers.set(HeaderId::GrpcStatus, digits.format(status).as_bytes());
    }
    // JSON formats end their lines.
    let message = message.strip_suffix(b"\n").unwrap_or(message);
    if !message.is_empty() {
        headers.set_name(b"grpc-message", &percent_encoded(message));
    }
    headers.remove(HeaderId::ContentLength);
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
}
