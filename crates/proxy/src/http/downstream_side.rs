//! The client side of a client's request ([`ClientSide`]).

use std::future::poll_fn;
use std::rc::Rc;
use std::time::Duration;

use evenkeel_filters::alpn::APPLICATION_PROTOCOLS;
use evenkeel_filters::decide::{announce_timeout, set_host};
use evenkeel_filters::explain::query::FailedTry;
use evenkeel_filters::{HostOverride, StateObject};
use evenkeel_http::{HeaderId, ResponseInfo};
use evenkeel_runtime_config::route::HostRewrite;
use evenkeel_runtime_config::substitution_format::TimePoint;
use evenkeel_upstream::{Host, Need, OverrideHost, PickError, PooledConnection, Target, turn};

use super::active_stream::ActiveStream;
use super::client_side::ClientSide;
use super::decide::Forward;
use super::failure::Failure;
use super::mirror::is_mirrored;
use super::request::Request;
use super::timers::Timers;
use super::transfer::Transfer;
use super::upload::Upload;
use super::upstream::Upstream;
use crate::recent::Span;

/// A client's stream, and where its request goes.
pub(super) struct DownstreamSide<'s, 'l, 'c> {
    pub(super) active: &'s mut ActiveStream<'l>,
    pub(super) forward: &'s Forward<'c>,
    pub(super) upload: &'s mut Upload,
}

impl ClientSide for DownstreamSide<'_, '_, '_> {
    #[inline]
    fn request(&self) -> &Request {
        self.active.request
    }

    #[inline]
    fn request_mut(&mut self) -> &mut Request {
        self.active.request
    }

    fn random(&self) -> u64 {
        self.active.conn.worker.random.next()
    }

    fn pick(&self, previous: &[Rc<Host>]) -> Result<Rc<Host>, PickError> {
        let (forward, stream) = (self.forward, &self.active.request.stream);
        let first = stream.attempts == 1;
        let target = Target {
            // A filter's override host is tried once: a retry picks by load balancing.
            override_host: stream.host_override.as_deref().filter(|_| first).map(override_host),
            original_dst: Some(self.active.conn.info.view.local),
            dynamic: stream.dynamic_host.as_deref(),
            previous,
            retry: forward.retry.as_deref().filter(|_| !first),
            ..forward.to.affinity.target()
        };
        forward.to.cluster.pick(&target)
    }

    fn picked(&mut self, raced: bool) {
        self.active.begin_traced_try();
        if self.active.request.stream.attempts == 1 && !raced && is_mirrored(self.forward) {
            self.upload.mirrors = self.active.mirror(self.forward, self.upload.known());
        }
    }

    fn connections_of(&self, host: &Rc<Host>) -> Rc<Host> {
        let cluster = &self.forward.to.cluster;
        let request = &self.active.request;
        let alpn = request.stream.object(APPLICATION_PROTOCOLS).and_then(StateObject::alpn);
        let called = cluster.called(host, request.head.authority(), alpn);
        cluster.on_behalf_of(&called, self.active.conn.info.source())
    }

    fn ready_connection(&self, host: &Rc<Host>) -> Option<PooledConnection> {
        let request = &self.active.request;
        if request.tunnel.is_some() {
            return None;
        }
        self.forward.to.cluster.try_acquire(host, request.head.version)
    }

    async fn connect(
        &mut self,
        host: &Rc<Host>,
        raced: bool,
        timers: &mut Timers,
    ) -> Result<PooledConnection, Failure> {
        let (forward, view, request) = (self.forward, &self.active.conn.info.view, &self.active.request);
        let (version, priority) = (request.head.version, forward.action.priority);
        let (is_tcp, is_tunnel) = (forward.terminates_connect(request.tunnel.as_ref()), request.tunnel.is_some());
        let connecting = async {
            let cluster = &forward.to.cluster;
            if is_tcp {
                cluster.connect_tcp(host, view).await.map(PooledConnection::Http1)
            } else if host.names_clients() {
                cluster.acquire_naming(host, version, view).await
            } else if is_tunnel {
                cluster.acquire_for(host, version, Need::Tunnel, priority).await
            } else if raced {
                cluster.acquire_for(host, version, Need::Fresh, priority).await
            } else {
                cluster.acquire(host, version, priority).await
            }
        };
        let begin = turn::now();
        let connected = self.active.unless_over(timers, connecting).await;
        self.active.request.notes().waited_for_connection(Span { begin, end: turn::now() });
        connected?.map_err(Failure::from).inspect_err(|failure| {
            if let Failure::Connect(reason) = failure {
                self.active.request.stream.transport_failure.clone_from(reason);
            }
        })
    }

    fn upstream(&self, connection: PooledConnection) -> Upstream {
        match connection {
            PooledConnection::Http1(connection)
                if self.forward.terminates_connect(self.active.request.tunnel.as_ref()) =>
            {
                Upstream::raw(connection)
            }
            connection => Upstream::new(connection, &self.forward.to.cluster),
        }
    }

    fn connected(&mut self, host: &Rc<Host>, up: &Upstream) {
        let (conn, request) = (self.active.conn, &mut *self.active.request);
        request.connected(up.local_addr(), up.connect_times());
        request.stream.upstream_protocol = Some(up.version().as_str());
        let peer = (&**host, up.connect_times());
        request.edge = conn.worker.edges.of_server(&conn.info, peer, turn::now()).cloned();
    }

    fn can_replay(&self) -> bool {
        self.upload.can_replay()
    }

    async fn exchange_heads(&mut self, up: &mut Upstream, timers: &mut Timers) -> Result<ResponseInfo, Failure> {
        let (forward, hcm) = (self.forward, &*self.active.conn.hcm);
        let request = &mut *self.active.request;
        if forward.host.include_request_attempt_count {
            let mut digits = itoa::Buffer::new();
            let count = digits.format(request.stream.attempts);
            request.head.headers.set(HeaderId::EnvoyAttemptCount, count.as_bytes());
        }
        if matches!(forward.action.host_rewrite, HostRewrite::Auto) && !up.host().hostname.is_empty() {
            set_host(&mut request.head, up.host().hostname.as_bytes(), !hcm.suppress_envoy_headers);
        }
        if !self.upload.begin() {
            return Err(Failure::UpstreamClosed { sent: true });
        }
        if let Upstream::Filtered(filtered) = up {
            // Boxed: few clusters have filters.
            Box::pin(self.active.filter_try(forward, filtered, self.upload, timers)).await?;
        }
        self.active.send_traced(up);
        let request = &mut *self.active.request;
        request.note(TimePoint::UpstreamTxBegin);
        request.scheme_of_upstream = hcm.forwarded.as_ref().is_some_and(|forwarded| forwarded.matches_upstream);
        if let Err(failure) = up.send_head(request) {
            let Some(side) = up.http2() else { return Err(failure) };
            if request.tunnel.is_none() {
                return Err(failure);
            }
            // The peer's SETTINGS tell whether it accepts extended CONNECT (RFC 8441).
            Box::pin(side.settled()).await;
            side.send_head(request)?;
        }
        let mut transfer = Transfer::new(self.active, up, self.upload, timers);
        poll_fn(|cx| transfer.poll_head(hcm, cx)).await
    }

    fn failed(&mut self, failure: &Failure) {
        self.active.end_traced_try(Some(failure), false);
        let transport_failure = if let Failure::Connect(reason) = failure { reason.clone() } else { String::new() };
        self.try_ended(FailedTry {
            details: failure.details().into_owned(),
            transport_failure,
            full: failure.circuit_breaker(),
            ..FailedTry::default()
        });
    }

    fn abandoned(&mut self, more: bool) {
        self.active.end_traced_try(None, more);
        // A try without a response is noted as failed.
        if self.active.request.response.status > 0 {
            self.try_ended(FailedTry { status: self.active.request.response.status, ..FailedTry::default() });
        }
    }

    async fn pause(&mut self, pause: Duration, timers: &mut Timers) -> Result<(), Failure> {
        self.active.unless_over(timers, tokio::time::sleep(pause)).await?;
        self.active.request.notes().retry_begins(turn::now());
        self.announce_time_left();
        Ok(())
    }
}

impl DownstreamSide<'_, '_, '_> {
    /// Notes a try that has failed, or whose response is not used.
    #[cold]
    fn try_ended(&mut self, ended: FailedTry) {
        let request = &mut *self.active.request;
        let endpoint = request.host.as_ref().and(request.stream.host.as_deref()).map(str::to_owned);
        let after = turn::now().saturating_duration_since(request.started());
        let end_us = u64::try_from(after.as_micros()).unwrap_or(u64::MAX);
        request.notes().try_ended(FailedTry { endpoint, end_us, ..ended });
    }

    /// Updates the timeout headers for the next try: less time is left.
    fn announce_time_left(&mut self) {
        let (forward, hcm) = (self.forward, &*self.active.conn.hcm);
        let request = &mut *self.active.request;
        let (Some(all), Some(since)) = (forward.limits.timeout, request.received_all()) else { return };
        let left = all.saturating_sub(turn::now().duration_since(since)).max(Duration::from_millis(1));
        let per_try = forward.retry.as_deref().and_then(|policy| policy.per_try_timeout);
        let to_grpc = request.calls_grpc() && forward.action.grpc_timeout.is_some_and(|asked| asked.as_route_timeout);
        let announced = per_try.map_or(left, |limit| limit.min(left));
        announce_timeout(&mut request.head.headers, announced, to_grpc, !hcm.suppress_envoy_headers);
    }
}

fn override_host(wanted: &HostOverride) -> OverrideHost<'_> {
    OverrideHost { address: &wanted.address, strict: wanted.strict, status_if_gone: wanted.status_if_gone }
}
