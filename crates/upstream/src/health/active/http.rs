//! `HttpHealthCheck`: a request over HTTP/1.1 or HTTP/2, judged by the response's status and, if configured, its body.

use bytes::Bytes;
use evenkeel_runtime_config::health_check::HttpProbe;
use http::header::{HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{HeaderMap, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::rt::Executor;
use hyper_util::rt::TokioIo;
use tokio::task::spawn_local;

use super::{Check, CheckTarget, MAX_RESPONSE_BYTES, Verdict, holds_in_order};
use crate::alpn::WantedProtocol;

/// The user agent of Envoy's checks, which servers recognize.
const AGENT: &str = "Envoy/HC";

/// Checks one host.
pub(super) struct Prober {
    probe: Box<HttpProbe>,
    kept: Option<Client>,
}

/// A connection for requests.
pub(super) enum Client {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// Spawns a connection's tasks on this thread, where its stream lives.
#[derive(Debug, Clone, Copy)]
struct LocalExecutor;

impl<F: Future<Output: 'static> + 'static> Executor<F> for LocalExecutor {
    fn execute(&self, future: F) {
        spawn_local(future);
    }
}

impl Client {
    /// Connects. The connection is driven by a task of its own and ends with the client.
    pub async fn connect(target: &CheckTarget, http2: bool) -> Result<Self, Verdict> {
        let stream = target.connect().await.map_err(|_| Verdict::NetworkFailure)?;
        let io = TokioIo::new(stream);
        let failed = |_| Verdict::NetworkFailure;
        if http2 {
            let (client, connection) = http2::handshake(LocalExecutor, io).await.map_err(failed)?;
            spawn_local(connection);
            Ok(Self::Http2(client))
        } else {
            let (client, connection) = http1::handshake(io).await.map_err(failed)?;
            spawn_local(connection);
            Ok(Self::Http1(client))
        }
    }

    pub async fn send(&mut self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, Verdict> {
        let sent = match self {
            Self::Http1(client) => match client.ready().await {
                Ok(()) => client.send_request(request).await,
                Err(error) => Err(error),
            },
            Self::Http2(client) => match client.ready().await {
                Ok(()) => client.send_request(request).await,
                Err(error) => Err(error),
            },
        };
        sent.map_err(|_| Verdict::NetworkFailure)
    }

    fn is_open(&self) -> bool {
        match self {
            Self::Http1(client) => !client.is_closed(),
            Self::Http2(client) => !client.is_closed(),
        }
    }
}

impl Check for Prober {
    type Probe = Box<HttpProbe>;

    fn wanted(probe: &Self::Probe) -> WantedProtocol {
        if probe.http2 { WantedProtocol::Http2 } else { WantedProtocol::Http1 }
    }

    fn new(probe: Self::Probe) -> Self {
        Self { probe, kept: None }
    }

    async fn check(&mut self, target: &CheckTarget) -> Verdict {
        match self.exchange(target).await {
            Ok(verdict) | Err(verdict) => verdict,
        }
    }
}

impl Prober {
    async fn exchange(&mut self, target: &CheckTarget) -> Result<Verdict, Verdict> {
        // A configuration from which no request can be built was rejected; a host's address always makes a URI.
        let request = self.request(target).ok_or(Verdict::NetworkFailure)?;
        let kept = self.kept.take().filter(Client::is_open);
        let mut client = match kept {
            Some(client) => client,
            None => Client::connect(target, self.probe.http2).await?,
        };
        let response = client.send(request).await?;
        let (head, body) = response.into_parts();
        let limit = match self.probe.response_buffer_bytes {
            0 => MAX_RESPONSE_BYTES,
            bytes => bytes.min(MAX_RESPONSE_BYTES),
        };
        let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
        let body = body.map_err(|_| Verdict::NetworkFailure)?.to_bytes();
        let closes = head.headers.get(http::header::CONNECTION).is_some_and(|value| value.as_bytes() == b"close");
        if target.reuse_connection && !closes {
            self.kept = Some(client);
        }
        let seen = body.get(..limit).unwrap_or(&body);
        Ok(self.judge(head.status, &head.headers, seen))
    }

    fn request(&self, target: &CheckTarget) -> Option<Request<Full<Bytes>>> {
        let probe = &self.probe;
        let authority = target.authority(&probe.host);
        let uri = if probe.http2 {
            Uri::builder().scheme("http").authority(authority).path_and_query(&*probe.path).build().ok()?
        } else {
            Uri::try_from(&*probe.path).ok()?
        };
        let mut request = Request::builder().method(probe.method).uri(uri).body(Full::from(probe.send.clone())).ok()?;
        let headers = request.headers_mut();
        if !probe.http2 {
            headers.insert(HOST, HeaderValue::from_str(authority).ok()?);
        }
        headers.insert(USER_AGENT, HeaderValue::from_static(AGENT));
        headers.insert("x-envoy-internal", HeaderValue::from_static("true"));
        for (name, value) in &probe.headers_to_add {
            headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?);
        }
        for name in &probe.headers_to_remove {
            headers.remove(&**name);
        }
        Some(request)
    }

    fn judge(&self, status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Verdict {
        let probe = &self.probe;
        let status = status.as_u16();
        let expected = if probe.expected_statuses.is_empty() {
            status == 200
        } else {
            probe.expected_statuses.iter().any(|range| range.contains(&status))
        };
        if !expected {
            return Verdict::Unhealthy {
                retriable: probe.retriable_statuses.iter().any(|range| range.contains(&status)),
            };
        }
        if !holds_in_order(body, &probe.receive) {
            return Verdict::Unhealthy { retriable: false };
        }
        let service = headers.get("x-envoy-upstream-healthchecked-cluster").map_or(&b""[..], HeaderValue::as_bytes);
        if probe.service_name.as_ref().is_some_and(|wanted| !wanted.matches(service)) {
            return Verdict::Unhealthy { retriable: false };
        }
        Verdict::Healthy { degraded: headers.contains_key("x-envoy-degraded") }
    }
}
