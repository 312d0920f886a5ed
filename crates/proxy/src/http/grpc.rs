//! The gRPC status, which a call has besides the HTTP status.

use evenkeel_base::grpc::{CONTENT_TYPE, parse_status, percent_encoded};
use evenkeel_http::{HeaderId, Headers};

use super::request::Request;

/// The status of a call: from its trailers, else from its headers.
pub(super) fn status(request: &Request) -> Option<u8> {
    let of = |headers: &Headers| headers.get(HeaderId::GrpcStatus).and_then(parse_status);
    of(&request.response_trailers).or_else(|| of(&request.response.headers))
}

/// Makes the head of a reply one that gRPC clients understand: 200, with the status and the message in headers. No body follows.
pub(super) fn reply_head(headers: &mut Headers, status: u32, message: &[u8]) {
    headers.set(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
    let mut digits = itoa::Buffer::new();
    if headers.get(HeaderId::GrpcStatus).is_none_or(<[u8]>::is_empty) {
        headers.set(HeaderId::GrpcStatus, digits.format(status).as_bytes());
    }
    if !message.is_empty() {
        headers.set_name(b"grpc-message", &percent_encoded(message));
    }
    headers.remove(HeaderId::ContentLength);
}
