//! The HTTP echo: the response is the request's body, or what the query says.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use evenkeel_loadtest::go_numbers::parse_duration;
use http::header::{CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use percent_encoding::percent_decode_str;

use crate::choices::{Choice, choose};

/// A response's body.
pub type Body = BoxBody<Bytes, hyper::Error>;

/// Maximum size of a body that the debug page shows.
const MAX_SHOWN_BYTES: usize = 1 << 20;

/// What holds for all requests.
#[derive(Debug)]
pub struct Echo {
    /// Longest delay.
    pub max_delay: Duration,
    /// Largest response that a query asks for.
    pub max_size: usize,
    /// Path of the debug page; empty: none.
    pub debug_path: String,
    /// The query of requests without one.
    pub default_query: String,
    /// When the server was started.
    pub started: Instant,
}

/// Bytes as a body.
pub fn full(bytes: impl Into<Bytes>) -> Body {
    Full::new(bytes.into()).map_err(|never: Infallible| match never {}).boxed()
}

impl Echo {
    /// Answers a request.
    pub async fn answer(&self, request: Request<Incoming>, client: SocketAddr) -> Response<Body> {
        let path = request.uri().path();
        if !self.debug_path.is_empty() && path == self.debug_path {
            return self.debug_page(request, client).await;
        }
        let query = query(request.uri().query().unwrap_or(&self.default_query));
        self.delay(&query).await;
        let mut response = self.echo(request, &query).await;
        if value(&query, "close").is_some_and(yes) {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        for header in query.iter().filter(|field| field.name == "header") {
            let parts = header.value.split_once(':');
            let parts = parts.and_then(|(name, value)| {
                let value = HeaderValue::from_str(value.trim()).ok()?;
                Some((name.trim().parse::<HeaderName>().ok()?, value))
            });
            if let Some((name, value)) = parts {
                response.headers_mut().append(name, value);
            }
        }
        response
    }

    async fn delay(&self, query: &[Field]) {
        let delay = value(query, "delay").map(|list| choose(list, percent(), |text| parse_duration(text).ok()));
        if let Some(Choice::Value(delay)) = delay {
            tokio::time::sleep(delay.min(self.max_delay)).await;
        }
    }

    async fn echo(&self, request: Request<Incoming>, query: &[Field]) -> Response<Body> {
        let (head, body) = request.into_parts();
        let size = value(query, "size").map(|list| choose(list, percent(), |text| text.parse::<usize>().ok()));
        let mut response = match size {
            Some(Choice::Value(size)) => {
                discard(body).await;
                let mut response = Response::new(full(payload(size.min(self.max_size))));
                let binary = HeaderValue::from_static("application/octet-stream");
                response.headers_mut().insert(CONTENT_TYPE, binary);
                response
            }
            _ => {
                let mut response = Response::new(body.boxed());
                for name in [CONTENT_TYPE, CONTENT_LENGTH] {
                    if let Some(value) = head.headers.get(&name) {
                        response.headers_mut().insert(name, value.clone());
                    }
                }
                response
            }
        };
        *response.status_mut() = status(query);
        response
    }

    /// The request as text, for people.
    async fn debug_page(&self, request: Request<Incoming>, client: SocketAddr) -> Response<Body> {
        let (head, body) = request.into_parts();
        let (version, up) = (env!("CARGO_PKG_VERSION"), self.started.elapsed().as_secs_f64());
        let mut page = format!("Evenkeel {version} echo debug server up for {up:.1}s - request from {client}\n\n");
        _ = write!(page, "{} {} {:?}\n\nheaders:\n\n", head.method, head.uri, head.version);
        for (name, value) in &head.headers {
            _ = writeln!(page, "{name}: {}", String::from_utf8_lossy(value.as_bytes()));
        }
        let mut page = format!("{page}\nbody:\n\n").into_bytes();
        match Limited::new(body, MAX_SHOWN_BYTES).collect().await {
            Ok(body) => page.extend_from_slice(&body.to_bytes()),
            Err(error) => page.extend_from_slice(error.to_string().as_bytes()),
        }
        page.push(b'\n');
        let mut response = Response::new(full(page));
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=UTF-8"));
        response
    }
}

/// The status that the query asks for; 400 if it is none.
fn status(query: &[Field]) -> StatusCode {
    let parse =
        |text: &str| text.parse().ok().filter(|status| *status >= 200).and_then(|s| StatusCode::from_u16(s).ok());
    match value(query, "status").map(|list| choose(list, percent(), parse)) {
        None | Some(Choice::Rest) => StatusCode::OK,
        Some(Choice::Value(status)) => status,
        Some(Choice::Invalid) => StatusCode::BAD_REQUEST,
    }
}

/// Whether `true`, or a share in per cent, says yes this time.
fn yes(share: &str) -> bool {
    share == "true" || share.parse::<f64>().is_ok_and(|share| percent() < share)
}

/// A random number from 0 to 100.
fn percent() -> f64 {
    fastrand::f64() * 100.0
}

/// Letters.
fn payload(size: usize) -> Vec<u8> {
    (b'a'..=b'z').cycle().take(size).collect()
}

/// Reads a body to its end, so that the connection can be used again.
async fn discard(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

/// A part of a query.
#[derive(Debug, PartialEq, Eq)]
struct Field {
    name: String,
    value: String,
}

fn query(text: &str) -> Vec<Field> {
    let decode = |text: &str| percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned();
    let field = |part: &str| {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        Field { name: decode(name), value: decode(value) }
    };
    text.split('&').filter(|part| !part.is_empty()).map(field).collect()
}

fn value<'q>(query: &'q [Field], name: &str) -> Option<&'q str> {
    query.iter().find(|field| field.name == name).map(|field| field.value.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_decoded() {
        let fields = query("a=b%3Ac&header=x:+y&close&&d=");
        let found: Vec<_> = fields.iter().map(|field| (field.name.as_str(), field.value.as_str())).collect();
        assert_eq!(found, [("a", "b:c"), ("header", "x: y"), ("close", ""), ("d", "")]);
    }

    #[test]
    fn only_statuses_of_final_responses_are_sent() {
        for (text, expected) in
            [("", 200), ("status=503", 503), ("status=100", 400), ("status=x", 400), ("status=418:0", 200)]
        {
            assert_eq!(status(&query(text)).as_u16(), expected, "{text}");
        }
    }
}
