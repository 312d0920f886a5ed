//! The client side of a connection of the TCP proxy ([`ClientSide`]): the host's connection carries its bytes, or the host is another proxy
//! and is asked for a tunnel (`tunneling_config`). Over HTTP/1.1 the connection becomes the tunnel, over HTTP/2 a stream of a shared
//! connection does. A proxy that does not support CONNECT can be asked with POST over HTTP/2 (`use_post`): then the bodies of request and
//! response carry the bytes.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, ready};
use std::time::Duration;

use evenkeel_filters::decide::Tunnel;
use evenkeel_filters::{ConnectionInfo, StreamInfo};
use evenkeel_http::{Framing, RequestHead, ResponseHead, ResponseInfo, Version};
use evenkeel_runtime_config::route::Priority;
use evenkeel_upstream::conn::Deadline;
use evenkeel_upstream::random::Random;
use evenkeel_upstream::{Cluster, Host, Need, PickError, PooledConnection, RequestGuard, Target, turn};

use super::client_side::ClientSide;
use super::exchange::{Exchange, Tries};
use super::failure::{Failure, Retry};
use super::request::Request;
use super::timers::Timers;
use super::upstream::opened::Opened;
use super::upstream::{Arrived, MAX_INTERIM, Upstream};

/// A connection to open for a client of the TCP proxy.
pub(crate) struct TcpConnect<'t> {
    pub(crate) cluster: &'t Rc<Cluster>,
    pub(crate) target: Target<'t>,
    pub(crate) client: &'t ConnectionInfo,
    /// The request for a tunnel; without it the host gets the bytes themselves.
    pub(crate) tunnel: Option<RequestHead>,
    /// `max_connect_attempts`.
    pub(crate) attempts: u32,
    pub(crate) random: &'t Random,
}

/// Opens a connection or a tunnel to a host. What is known of the attempts is written to `stream`. `keep`: gets the response head of each
/// host that is asked for a tunnel.
pub(crate) async fn open(
    connect: TcpConnect<'_>,
    stream: &mut StreamInfo,
    keep: impl FnMut(&mut StreamInfo, &ResponseHead),
) -> Result<(Opened, RequestGuard), Failure> {
    let mut request = Request::begin();
    let TcpConnect { cluster, target, client, tunnel, attempts, random } = connect;
    let carries = match tunnel {
        None => Carries::Bytes,
        Some(head) => {
            request.head = head;
            if request.head.method() == b"CONNECT" {
                request.tunnel = Some(Tunnel::Connect);
                Carries::Connect
            } else {
                request.info.framing = Framing::Chunked;
                Carries::Post
            }
        }
    };
    std::mem::swap(&mut request.stream, stream);
    let mut side = TcpSide {
        cluster,
        target,
        client,
        carries,
        random,
        request: &mut request,
        admitted: 0,
        deadline: Deadline::default(),
        keep,
    };
    let timers = Timers::new(None, None, None);
    let mut exchange = Exchange::new(cluster, Tries::Connects(attempts), Priority::Default, timers);
    let response = exchange.response(&mut side).await;
    side.request.stream.attempts = side.admitted;
    std::mem::swap(&mut request.stream, stream);
    request.recycle();
    let answered = response?;
    match answered.up.into_tunnel() {
        Some(opened) => Ok((opened, answered.guard)),
        None => Err(Failure::UpstreamProtocol),
    }
}

/// How a connection carries the client's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Carries {
    /// As they are.
    Bytes,
    /// In a tunnel that CONNECT opens.
    Connect,
    /// In the bodies of a POST and its response.
    Post,
}

struct TcpSide<'t, K> {
    cluster: &'t Rc<Cluster>,
    target: Target<'t>,
    client: &'t ConnectionInfo,
    carries: Carries,
    random: &'t Random,
    request: &'t mut Request,
    /// The number of attempts for which the circuit breakers had room.
    admitted: u32,
    deadline: Deadline,
    keep: K,
}

impl<K: FnMut(&mut StreamInfo, &ResponseHead)> ClientSide for TcpSide<'_, K> {
    fn request(&self) -> &Request {
        self.request
    }

    fn request_mut(&mut self) -> &mut Request {
        self.request
    }

    fn random(&self) -> u64 {
        self.random.next()
    }

    fn pick(&self, _previous: &[Rc<Host>]) -> Result<Rc<Host>, PickError> {
        self.cluster.pick(&self.target)
    }

    fn picked(&mut self, _raced: bool) {}

    fn connections_of(&self, host: &Rc<Host>) -> Rc<Host> {
        self.cluster.on_behalf_of(host, self.client.source())
    }

    fn ready_connection(&self, _host: &Rc<Host>) -> Option<PooledConnection> {
        None
    }

    async fn connect(
        &mut self,
        host: &Rc<Host>,
        _raced: bool,
        _timers: &mut Timers,
    ) -> Result<PooledConnection, Failure> {
        self.admitted = self.request.stream.attempts;
        let connected = if self.carries == Carries::Bytes {
            self.cluster.connect_tcp(host, &self.client.view).await.map(PooledConnection::Http1)
        } else {
            self.cluster.acquire_for(host, Version::Http11, Need::Tunnel, Priority::Default).await
        };
        Ok(connected?)
    }

    fn upstream(&self, connection: PooledConnection) -> Upstream {
        match connection {
            PooledConnection::Http1(connection) if self.carries == Carries::Bytes => Upstream::raw(connection),
            // The HTTP filters of the cluster see no tunnels of the TCP proxy, as in Envoy.
            connection => Upstream::unfiltered(connection, self.cluster),
        }
    }

    fn connected(&mut self, _host: &Rc<Host>, _up: &Upstream) {}

    fn can_replay(&self) -> bool {
        true
    }

    /// The response may take as long as `connect_timeout`.
    async fn exchange_heads(&mut self, up: &mut Upstream, timers: &mut Timers) -> Result<ResponseInfo, Failure> {
        if matches!((&*up, self.carries), (Upstream::Http1(_), Carries::Post)) {
            return Err(Failure::Connect("use_post needs an upstream that speaks HTTP/2".to_owned()));
        }
        timers.begin_try(turn::now(), Some(self.cluster.config().connect_timeout), None);
        let https = up.host().transport.is_secure();
        if let Some(stream) = up.http2() {
            stream.open(self.request, https)?;
        } else {
            up.send_head(self.request)?;
        }
        let mut interim = 0;
        let info = poll_fn(|cx| {
            loop {
                // If sending fails, the response may still come, or tells why.
                _ = up.poll_flush(cx);
                match up.poll_head(self.request, cx) {
                    Poll::Ready(Ok(Arrived::Final(info))) => return Poll::Ready(Ok(info)),
                    Poll::Ready(Ok(Arrived::Interim)) if interim < MAX_INTERIM => interim += 1,
                    Poll::Ready(Ok(Arrived::Interim)) => return Poll::Ready(Err(Failure::UpstreamProtocol)),
                    Poll::Ready(Err(failure)) => return Poll::Ready(Err(failure)),
                    Poll::Pending => {
                        ready!(self.deadline.poll(timers.next(turn::now()), cx));
                        return Poll::Ready(Err(Failure::ConnectTimeout));
                    }
                }
            }
        })
        .await?;
        self.accept(up, info)
    }

    fn failed(&mut self, failure: &Failure) {
        let stream = &mut self.request.stream;
        if failure.row().retry == Retry::Never {
            stream.flags |= failure.flags();
            return;
        }
        // The flags stay, even if the next attempt succeeds.
        stream.flags |= Failure::ConnectTimeout.flags();
        // As in Envoy, it is empty for a peer that did not respond.
        stream.transport_failure = match failure {
            Failure::Connect(reason) => reason.clone(),
            _ => String::new(),
        };
        tracing::debug!(host = stream.host.as_deref(), error = %failure.details(), "connecting upstream failed");
    }

    fn abandoned(&mut self, _more: bool) {}

    /// There are no pauses between attempts to connect.
    async fn pause(&mut self, _pause: Duration, _timers: &mut Timers) -> Result<(), Failure> {
        Ok(())
    }
}

impl<K: FnMut(&mut StreamInfo, &ResponseHead)> TcpSide<'_, K> {
    /// Whether the host opens the tunnel. Over HTTP/2 Envoy accepts no other status than 200, nor a response that ends with its head.
    fn accept(&mut self, up: &Upstream, info: ResponseInfo) -> Result<ResponseInfo, Failure> {
        let Request { response, stream, .. } = &mut *self.request;
        if self.carries == Carries::Bytes {
            return Ok(info);
        }
        (self.keep)(stream, response);
        let opens = match up {
            Upstream::Http2(_) => response.status == 200 && info.framing != Framing::None,
            Upstream::Http1(_) | Upstream::Filtered(_) => (200..300).contains(&response.status),
        };
        // The text is Envoy's.
        if opens { Ok(info) } else { Err(Failure::Connect(format!("tunnel_response:{}", response.status))) }
    }
}
