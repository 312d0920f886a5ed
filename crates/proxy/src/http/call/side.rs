//! The client side of a call ([`ClientSide`]).

use std::future::poll_fn;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use evenkeel_filters::{Body, ConnectionInfo, Decision, RequestContext, RouteContext, Services};
use evenkeel_http::{Framing, HeaderId, ResponseInfo};
use evenkeel_runtime_config::metadata::MetadataMatch;
use evenkeel_runtime_config::retry::RetryPolicy;
use evenkeel_runtime_config::route::Priority;
use evenkeel_upstream::{Cluster, Host, Need, PickError, PooledConnection, Target, turn};

use super::ends::Source;
use super::until::Limit;
use super::upload::{Upload, collect};
use crate::http::client_side::ClientSide;
use crate::http::failure::Failure;
use crate::http::pause::until_woken;
use crate::http::request::Request;
use crate::http::timers::Timers;
use crate::http::upstream::filtered::Filtered;
use crate::http::upstream::{Arrived, MAX_INTERIM, Upstream};

/// Options of a call for its cluster, besides a host.
#[derive(Debug, Default)]
pub(crate) struct UpstreamOptions {
    pub(crate) retry: Option<Arc<RetryPolicy>>,
    pub(crate) hash: Option<u64>,
    pub(crate) metadata_match: Option<Arc<MetadataMatch>>,
    /// Append the local address of the upstream connection to `x-forwarded-for`, so that the host learns who calls.
    pub(crate) names_itself: bool,
}

/// A call in progress.
pub(super) struct CallSide<'c, S> {
    pub(super) cluster: &'c Rc<Cluster>,
    pub(super) request: &'c mut Request,
    pub(super) policy: Option<&'c RetryPolicy>,
    pub(super) wanted: &'c UpstreamOptions,
    pub(super) services: &'c Rc<dyn Services>,
    pub(super) source: &'c mut S,
    pub(super) upload: Upload,
    pub(super) limit: Limit<'c>,
    /// The local address was appended to `x-forwarded-for`.
    pub(super) named: bool,
}

impl<S: Source> ClientSide for CallSide<'_, S> {
    fn request(&self) -> &Request {
        self.request
    }

    fn request_mut(&mut self) -> &mut Request {
        self.request
    }

    fn random(&self) -> u64 {
        self.services.random()
    }

    fn pick(&self, previous: &[Rc<Host>]) -> Result<Rc<Host>, PickError> {
        let target = Target {
            previous,
            retry: self.policy.filter(|_| self.request.stream.attempts > 1),
            hash: self.wanted.hash,
            metadata_match: self.wanted.metadata_match.as_deref(),
            ..Target::default()
        };
        self.cluster.pick(&target)
    }

    fn picked(&mut self, _raced: bool) {}

    fn connections_of(&self, host: &Rc<Host>) -> Rc<Host> {
        self.cluster.called(host, self.request.head.authority(), None)
    }

    fn ready_connection(&self, host: &Rc<Host>) -> Option<PooledConnection> {
        self.cluster.try_acquire(host, self.request.head.version)
    }

    async fn connect(
        &mut self,
        host: &Rc<Host>,
        raced: bool,
        timers: &mut Timers,
    ) -> Result<PooledConnection, Failure> {
        let (cluster, version) = (self.cluster, self.request.head.version);
        let connecting = async {
            if raced {
                cluster.acquire_for(host, version, Need::Fresh, Priority::Default).await
            } else {
                cluster.acquire(host, version, Priority::Default).await
            }
        };
        Ok(self.limit.unless_over(timers, connecting).await??)
    }

    fn upstream(&self, connection: PooledConnection) -> Upstream {
        Upstream::new(connection, self.cluster)
    }

    fn connected(&mut self, _host: &Rc<Host>, up: &Upstream) {
        self.name_itself(up.local_addr());
    }

    fn can_replay(&self) -> bool {
        self.source.can_rewind()
    }

    async fn exchange_heads(&mut self, up: &mut Upstream, timers: &mut Timers) -> Result<ResponseInfo, Failure> {
        self.source.rewind();
        self.upload = Upload::default();
        if let Upstream::Filtered(filtered) = up {
            Box::pin(self.filter_try(filtered, timers)).await?;
        }
        up.send_head(self.request)?;
        let mut interim = 0;
        poll_fn(|cx| {
            timers.moved |= self.upload.poll(up, self.request, self.source, cx);
            loop {
                let arrived = match up.poll_head(self.request, cx) {
                    Poll::Ready(arrived) => arrived?,
                    Poll::Pending => return self.limit.poll(timers, cx).map(Err),
                };
                timers.moved = true;
                match arrived {
                    Arrived::Final(_) if self.request.response.status == 101 => {
                        return Poll::Ready(Err(Failure::UpstreamProtocol));
                    }
                    Arrived::Final(info) => return Poll::Ready(Ok(info)),
                    Arrived::Interim if interim >= MAX_INTERIM => return Poll::Ready(Err(Failure::UpstreamProtocol)),
                    Arrived::Interim => interim += 1,
                }
            }
        })
        .await
    }

    fn failed(&mut self, _failure: &Failure) {}

    fn abandoned(&mut self, _more: bool) {}

    async fn pause(&mut self, pause: Duration, timers: &mut Timers) -> Result<(), Failure> {
        self.limit.unless_over(timers, tokio::time::sleep(pause)).await
    }
}

impl<S: Source> CallSide<'_, S> {
    fn name_itself(&mut self, local: Option<SocketAddr>) {
        if let Some(local) = local.filter(|_| self.wanted.names_itself && !self.named) {
            self.named = true;
            let address = local.ip().to_string();
            self.request.head.headers.append_to_list(HeaderId::ForwardedFor, address.as_bytes());
        }
    }

    /// Calls the cluster's filters with the request, which has neither a client nor a route.
    async fn filter_try(&mut self, filtered: &mut Filtered, timers: &mut Timers) -> Result<(), Failure> {
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let nobody = Arc::new(ConnectionInfo::new(0, turn::now().into_std(), nowhere, nowhere));
        let from = (&nobody.view, &*nobody, nowhere.ip());
        let route = RouteContext::default();
        filtered.serve_with(Rc::clone(self.services), Arc::clone(&nobody));
        loop {
            let body = match &self.upload.collected {
                _ if self.request.info.framing.is_empty() => Body::Empty,
                Some(collected) => Body::Whole(&collected.body),
                None => Body::Coming,
            };
            let now = turn::now().into_std();
            let (head, facts) = (&mut self.request.head, &mut self.request.stream);
            let mut context = RequestContext::new(from, (head, body), route, facts, (&**self.services, now));
            match filtered.ask(&route.filters, &mut context) {
                Decision::Continue | Decision::Reroute => return Ok(()),
                Decision::Reply(reply) => return Err(Failure::Filter(Box::new(reply))),
                Decision::Pause(pause) => filtered.wake(self.limit.unless_over(timers, until_woken(pause)).await?),
                // Filters that may stand here do not ask for that.
                Decision::CollectStart { .. } => return Err(Failure::BodyTooLarge),
                Decision::Collect { .. } if self.upload.collected.is_some() => return Err(Failure::BodyTooLarge),
                Decision::Collect { max_bytes } => {
                    let collected = self.limit.unless_over(timers, collect(self.source, max_bytes)).await??;
                    self.request.info.framing = Framing::Length(collected.body.len() as u64);
                    self.upload.collected = Some(collected);
                }
            }
        }
    }
}
