//! Converts heads and trailers between the codec's form and that of the crate `http`, which the other services use.

use evenkeel_base::grpc::CONTENT_TYPE;
use evenkeel_http::{HeaderId, Headers, RequestHead, ResponseHead};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, Version};
use tonic::Status as GrpcStatus;

use crate::server::stream::Source;

/// The request's head; `None` if the crate `http` does not accept it.
pub(super) fn request<B>(head: &RequestHead, body: B) -> Option<http::Request<B>> {
    let mut request = http::Request::new(body);
    *request.version_mut() = Version::HTTP_2;
    *request.method_mut() = Method::from_bytes(head.method()).ok()?;
    *request.uri_mut() = Uri::try_from(head.path()).ok()?;
    for (_, name, value) in head.headers.iter() {
        let (name, value) = (HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?);
        request.headers_mut().append(name, value);
    }
    Some(request)
}

/// Asks the source whether a call is allowed, when only its head has arrived.
pub(super) fn admit<B>(source: &impl Source, request: &mut http::Request<B>) -> Result<(), GrpcStatus> {
    let mut extensions = std::mem::take(request.extensions_mut());
    let admitted = source.admit(request.uri().path(), request.headers(), &mut extensions);
    *request.extensions_mut() = extensions;
    admitted
}

/// A complete answer in a head ("Trailers-Only").
pub(super) fn refusal(status: &GrpcStatus) -> ResponseHead {
    let mut headers = trailers(status);
    headers.append_id(HeaderId::ContentType, CONTENT_TYPE.as_bytes());
    ResponseHead { status: 200, headers, ..ResponseHead::default() }
}

/// The response's head.
pub(super) fn response(parts: &http::response::Parts) -> ResponseHead {
    ResponseHead { status: parts.status.as_u16(), headers: headers(&parts.headers), ..ResponseHead::default() }
}

/// Header fields or trailers.
pub(super) fn headers(map: &HeaderMap) -> Headers {
    let mut headers = Headers::default();
    for (name, value) in map {
        headers.append(name.as_str().as_bytes(), value.as_bytes());
    }
    headers
}

/// The trailers with the status of a call.
pub(super) fn trailers(status: &GrpcStatus) -> Headers {
    let mut map = HeaderMap::new();
    match status.add_header(&mut map) {
        Ok(()) => headers(&map),
        // The details cannot be sent in a header; the code is enough.
        Err(_) => {
            let mut headers = Headers::default();
            headers.append(b"grpc-status", (status.code() as i32).to_string().as_bytes());
            headers
        }
    }
}
