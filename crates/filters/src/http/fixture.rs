//! One filter and one request, for tests.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Instant, SystemTime};

use evenkeel_http::{Headers, RequestHead, ResponseHead};
use evenkeel_runtime_config::hcm;
use evenkeel_runtime_config::route_filters::{FilterOverride, FilterOverrides, PerRoute, RouteFilters};
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_stats::{Registry, ScopeName};

use super::services::{Clock, Clusters, Names, SystemClock, Tasks};
use super::{
    Body, ClusterScope, Decision, FilterStreams, Flow, HeadView, HttpFilters, RequestContext, RequestFacts,
    RequestTrailersContext, ResponseContext, ResponseDecision, RouteContext, Services, Setup, TrailersContext,
};
use crate::callouts::{Callouts, NoCallouts};
use crate::format::Record;
use crate::info::{ConnectionInfo, StreamInfo};
use crate::resolution::ForwardProxyFacts;

/// The only filter's name.
const NAME: &str = "the filter";
/// The only cluster's name.
const CLUSTER: &str = "c";

/// A filter with a request in progress.
pub(crate) struct Fixture {
    pub(crate) registry: Arc<Registry>,
    pub(crate) filters: HttpFilters,
    pub(crate) streams: FilterStreams,
    pub(crate) info: StreamInfo,
    pub(crate) connection: ConnectionView,
    pub(crate) remote: IpAddr,
    pub(crate) cluster: Arc<str>,
    pub(crate) cluster_scope: Rc<ClusterScope>,
    pub(crate) head: RequestHead,
    /// The random number that every draw returns.
    pub(crate) random: u64,
    pub(crate) now: Instant,
    pub(crate) says: Vec<FilterOverride>,
}

impl Fixture {
    pub(crate) fn new(config: hcm::HttpFilterConfig) -> Self {
        Self::chain(&[hcm::HttpFilter { name: NAME.into(), disabled: false, skip: None, config }])
    }

    /// A chain of several filters.
    pub(crate) fn chain(filters: &[hcm::HttpFilter]) -> Self {
        let registry = Registry::new();
        let outer = ScopeName::tagged("http", "envoy_http_conn_manager_prefix", "inbound");
        let setup = Setup { registry: &registry, outer: &outer };
        let filters = HttpFilters::new(filters, &setup);
        let nowhere: SocketAddr = "127.0.0.1:1".parse().unwrap();
        Self {
            filters,
            streams: FilterStreams::default(),
            info: StreamInfo::new(Instant::now()),
            connection: ConnectionView::plaintext(nowhere, nowhere),
            remote: nowhere.ip(),
            cluster: CLUSTER.into(),
            cluster_scope: Rc::new(ClusterScope::new(Arc::clone(&registry), CLUSTER)),
            head: head(&PlainRequest::new("GET", "a", "/")),
            random: 0,
            now: Instant::now(),
            says: Vec::new(),
            registry,
        }
    }

    /// Adds a per-route configuration for the filter, on a level less specific than those added before.
    pub(crate) fn told(mut self, config: impl PerRoute) -> Self {
        self.says.push(FilterOverride { filter: NAME.into(), disabled: false, config: Some(Arc::new(config)) });
        self
    }

    /// Starts a new request with this head.
    pub(crate) fn request(&mut self, request: &PlainRequest) {
        self.head = head(request);
        self.streams.clear();
        self.info = StreamInfo::new(self.now);
    }

    /// The filter's decision about the request.
    pub(crate) fn ask(&mut self, body: Body<'_>) -> Decision {
        let says = FilterOverrides::new(self.says.clone(), &FilterOverrides::default());
        let route = RouteContext { route: None, cluster: Some(&self.cluster), filters: RouteFilters::of(&says) };
        let worker = self.worker();
        if !self.streams.is_begun() {
            self.filters.begin(&mut self.streams, &route.filters);
        }
        let known = self.client();
        let (client, request) = ((&self.connection, &known, self.remote), (&mut self.head, body));
        let mut context = RequestContext::new(client, request, route, &mut self.info, (&worker, self.now));
        self.filters.request_head(&mut self.streams, &mut context)
    }

    /// The request has ended.
    pub(crate) fn complete(&mut self) {
        let client = self.client();
        let request = HeadView::new(&self.head, &self.info.metadata);
        let end =
            Record { request: &request, ..Record::headless(&self.info, &client, (SystemTime::UNIX_EPOCH, self.now)) };
        self.filters.complete(&mut self.streams, &end);
    }

    fn client(&self) -> ConnectionInfo {
        ConnectionInfo::of_view(self.now, self.connection.clone())
    }

    /// Shows the filter the request's trailers.
    pub(crate) fn end_request(&mut self, trailers: &mut Headers) {
        let worker = self.worker();
        let facts = RequestFacts { connection: &self.client(), head: &self.head, now: self.now };
        let mut context = RequestTrailersContext { trailers, facts, info: &self.info, services: &worker };
        self.filters.request_trailers(&mut self.streams, &mut context);
    }

    fn worker(&self) -> Worker {
        Worker { cluster: Rc::clone(&self.cluster_scope), random: self.random }
    }

    /// Shows the filter the end of a response. Returns what it adds to the body.
    pub(crate) fn end(&mut self, response: &ResponseHead, trailers: &mut Headers) -> Vec<u8> {
        let client = self.client();
        let worker = self.worker();
        let facts = RequestFacts { connection: &client, head: &self.head, now: self.now };
        let (info, services) = (&mut self.info, &worker);
        let mut context =
            TrailersContext { trailers, response, facts, info, services, since_request: None, body: Vec::new() };
        assert!(matches!(self.filters.response_trailers(&mut self.streams, &mut context), Flow::Continue));
        context.body
    }

    /// The response's head after the filter.
    pub(crate) fn answer(&mut self, mut head: ResponseHead, local: bool) -> ResponseHead {
        let worker = self.worker();
        let client = self.client();
        let mut context = ResponseContext {
            head: &mut head,
            host: Some("10.0.0.1:80"),
            local,
            ends: false,
            since_request: None,
            body: Body::Coming,
            facts: RequestFacts { connection: &client, head: &self.head, now: self.now },
            info: &mut self.info,
            services: &worker,
            woken: None,
        };
        let decision = self.filters.response_head(&mut self.streams, &mut context);
        assert!(matches!(decision, ResponseDecision::Continue), "{decision:?}");
        head
    }
}

fn head(request: &PlainRequest) -> RequestHead {
    let mut head = RequestHead::default();
    head.set_method(request.method.as_bytes());
    head.set_authority(request.authority.as_bytes());
    head.set_path(request.path.as_bytes());
    request.headers.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value.as_bytes()));
    head
}

struct Worker {
    cluster: Rc<ClusterScope>,
    random: u64,
}

impl Services for Worker {
    fn clusters(&self) -> &dyn Clusters {
        self
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }

    fn random(&self) -> u64 {
        self.random
    }

    fn callouts(&self) -> &dyn Callouts {
        &NoCallouts
    }

    fn tasks(&self) -> Option<&dyn Tasks> {
        None
    }

    fn names(&self) -> Option<&dyn Names> {
        None
    }
}

impl Clusters for Worker {
    fn scope(&self, name: &str) -> Option<Rc<ClusterScope>> {
        (name == CLUSTER).then(|| Rc::clone(&self.cluster))
    }

    fn forward_proxy(&self, _: &str) -> Option<ForwardProxyFacts> {
        None
    }

    fn charge_response(&self, _: &str, _: u16) {}
}
