//! Decides a request and records the steps.

use std::cell::Cell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use evenkeel_http::{Framing, RequestHead, RequestInfo};
use evenkeel_runtime_config::cluster::Discovery;
use evenkeel_runtime_config::hcm::RouteSource;
use evenkeel_runtime_config::route::{ForwardAction, HostRewrite, RouteAction, VirtualHost, WeightedCluster};
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::route_table::RouteTable;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_runtime_config::{Cluster, Config, HttpConnectionManager};
use evenkeel_stats::Registry;

use super::step::{Retries, Says, Step, edit_lines};
use super::{Call, LocalAnswer, Trace, held};
use crate::callouts::{Callouts, NoCallouts};
use crate::decide::{
    Answer, Arrival, Filtered, Forward, Levels, Limits, Matched, Outcome, Parts, Policy, Stream, Tunnel, Visitor,
    decide,
};
use crate::format::{Record, header_value};
use crate::header_edits;
use crate::http::services::{Clock, Clusters, Names, SystemClock, Tasks};
use crate::http::{
    Body, ClusterScope, Decision, FilterDecision, FilterStreams, HeadView, HttpFilters, Reply, RequestContext,
    Services, Woken,
};
use crate::info::{ConnectionInfo, StreamInfo};
use crate::remark::Remark;
use crate::resolution::ForwardProxyFacts;

/// Takes a request through its connection manager. Returns the local reply, if any.
pub(super) fn explain(
    (config, registry): (&Config, &Arc<Registry>),
    (manager, filters): (&HttpConnectionManager, &HttpFilters),
    call: &Call<'_>,
    request: &PlainRequest,
    (steps, trace): (&mut Vec<Step>, &mut Trace),
) -> Option<LocalAnswer> {
    let peer_text = call.connection.remote.ip().to_canonical().to_string();
    let numbers = Numbers { random: call.random, drawn: Cell::new(false), config, registry: Arc::clone(registry) };
    let arrival = Arrival { config, manager, connection: call.connection, peer_text: &peer_text, services: &numbers };
    let mut written = Written::new(request, filters, arrival, &numbers);
    let outcome = match pin!(decide(arrival, &mut written)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(outcome) => outcome,
        // Filters are not waited for.
        Poll::Pending => return None,
    };
    let answer = written.conclude(outcome);
    steps.append(&mut written.steps);
    written.trace.chain = trace.chain.take();
    *trace = written.trace;
    answer
}

/// Random numbers: always the same one; remembers whether it was drawn.
struct Numbers<'c> {
    random: u64,
    drawn: Cell<bool>,
    config: &'c Config,
    registry: Arc<Registry>,
}

impl Services for Numbers<'_> {
    fn clusters(&self) -> &dyn Clusters {
        self
    }

    fn clock(&self) -> &dyn Clock {
        &SystemClock
    }

    fn random(&self) -> u64 {
        self.drawn.set(true);
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

impl Clusters for Numbers<'_> {
    fn scope(&self, name: &str) -> Option<Rc<ClusterScope>> {
        let cluster = self.config.clusters.get(name)?;
        Some(Rc::new(ClusterScope::new(Arc::clone(&self.registry), name).outside(cluster.external)))
    }

    fn forward_proxy(&self, cluster: &str) -> Option<ForwardProxyFacts> {
        let cluster = self.config.clusters.get(cluster)?;
        let resolves = matches!(cluster.discovery, Discovery::DynamicForwardProxy(_));
        resolves.then(|| ForwardProxyFacts { is_secure: cluster.transport.is_secure() })
    }

    /// An explained request counts nowhere.
    fn charge_response(&self, _: &str, _: u16) {}
}

/// A request whose steps are recorded.
struct Written<'c> {
    request: &'c PlainRequest,
    filters: &'c HttpFilters,
    arrival: Arrival<'c>,
    /// The connection, for format strings.
    known: ConnectionInfo,
    numbers: &'c Numbers<'c>,
    head: RequestHead,
    info: RequestInfo,
    tunnel: Option<Tunnel>,
    grpc: bool,
    client: Option<SocketAddr>,
    random: Option<u64>,
    streams: FilterStreams,
    stream: StreamInfo,
    /// A filter has collected the body, which is empty.
    collected: bool,
    /// The cluster that its route names.
    cluster: Option<&'c Arc<str>>,
    steps: Vec<Step>,
    trace: Trace,
}

impl<'c> Written<'c> {
    fn new(
        request: &'c PlainRequest,
        filters: &'c HttpFilters,
        arrival: Arrival<'c>,
        numbers: &'c Numbers<'c>,
    ) -> Self {
        let mut head = RequestHead::default();
        head.set_method(request.method.as_bytes());
        head.set_path(request.path.as_bytes());
        head.set_authority(request.authority.as_bytes());
        request.headers.iter().for_each(|(name, value)| head.headers.append(name.as_bytes(), value.as_bytes()));
        let asks = |name: &str, token: &str| {
            let tokens =
                request.headers.iter().filter(|(known, _)| known == name).flat_map(|(_, value)| value.split(','));
            tokens.map(str::trim).any(|known| known.eq_ignore_ascii_case(token))
        };
        let info = RequestInfo {
            head_bytes: 0,
            framing: Framing::None,
            keep_alive: true,
            upgrade: asks("connection", "upgrade"),
            expect_continue: asks("expect", "100-continue"),
            https_target: false,
            dropped: 0,
        };
        let now = Instant::now();
        Self {
            request,
            filters,
            known: ConnectionInfo::of_view(now, arrival.connection.clone()),
            arrival,
            numbers,
            head,
            info,
            tunnel: None,
            grpc: false,
            client: None,
            random: Some(numbers.random),
            streams: FilterStreams::default(),
            stream: StreamInfo::new(now),
            collected: false,
            cluster: None,
            steps: Vec::new(),
            trace: Trace::default(),
        }
    }

    /// Calls the remaining filters, one after the other.
    fn ask(&mut self, client: SocketAddr, matched: Option<Matched<'c>>) -> Filtered<Reply> {
        let (filters, route) = (self.filters, Matched::context(matched));
        if !self.streams.is_begun() {
            filters.begin(&mut self.streams, &route.filters);
        }
        loop {
            self.numbers.drawn.set(false);
            let body = if self.collected { Body::Whole(b"") } else { Body::Empty };
            let (from, message) = ((self.arrival.connection, &self.known, client.ip()), (&mut self.head, body));
            // No decision depends on the time. Durations are none, so that one call is always forwarded alike.
            let told = (self.numbers as &dyn Services, self.stream.times.start());
            let mut context = RequestContext::new(from, message, route, &mut self.stream, told);
            let Some(asked) = filters.explain_next(&mut self.streams, &mut context) else { return Filtered::Passes };
            if let Some(filtered) = self.note(asked) {
                return filtered;
            }
        }
    }

    /// Records a filter's decision. `None`: the next filter is called, or the same one again.
    fn note(&mut self, asked: FilterDecision) -> Option<Filtered<Reply>> {
        let FilterDecision { name, decision, remark } = asked;
        let chance = self.numbers.drawn.get();
        let mut say = |says| self.steps.push(Step::Filter { name: Arc::clone(&name), says, chance });
        let ends_turn =
            !matches!(decision, Decision::Pause(_) | Decision::Collect { .. } | Decision::CollectStart { .. });
        let while_waiting = match &remark {
            Some(Remark::ByState(text)) => Some(text.clone()),
            _ => None,
        };
        let verdict = matches!(remark, Some(Remark::Verdict(_)));
        match remark.filter(|_| ends_turn) {
            Some(remark) => self.steps.push(Step::of_remark(&name, remark, chance)),
            None if chance && matches!(decision, Decision::Continue) => say(Says::Passes),
            None => {}
        }
        let mut say = |says| self.steps.push(Step::Filter { name: Arc::clone(&name), says, chance });
        match decision {
            Decision::Continue => None,
            Decision::Reroute => {
                say(Says::Reroutes);
                Some(Filtered::Rerouted)
            }
            Decision::Reply(reply) => {
                if !verdict {
                    let details = reply.details.to_string();
                    say(Says::Replies { status: reply.status, details, flags: reply.flags });
                }
                Some(Filtered::Answered(reply))
            }
            Decision::Pause(pause) => {
                say(match while_waiting.filter(|_| pause.wait.is_some()) {
                    Some(text) => Says::Remarks { text, state: true },
                    None => Says::Waits { limit: pause.limit, answer: pause.wait.is_some() },
                });
                match pause.wait {
                    None => self.streams.wake(Woken::TimedOut),
                    // What the filter waits for is not available here.
                    Some(_) => self.streams.skip(),
                }
                None
            }
            Decision::Collect { max_bytes } | Decision::CollectStart { bytes: max_bytes } => {
                say(Says::Collects { max_bytes });
                self.collected = true;
                None
            }
        }
    }

    /// Records the last steps.
    fn conclude(&mut self, outcome: Outcome<'c, Self>) -> Option<LocalAnswer> {
        match outcome {
            Outcome::Hold(demand) => {
                self.steps.push(held(demand));
                None
            }
            Outcome::Forward(forward) => {
                self.forwarded(&forward);
                None
            }
            Outcome::Answer(answer, _) => Some(self.answered(answer)),
        }
    }

    fn forwarded(&mut self, forward: &Forward<'c, (&'c Arc<str>, &'c Arc<Cluster>)>) {
        let (name, cluster) = forward.to;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let authority = match &forward.action.host_rewrite {
            HostRewrite::Auto if self.head.authority() == self.request.authority.as_bytes() => {
                "(the endpoint's host name)".into()
            }
            _ => text(self.head.authority()),
        };
        self.trace.sent = Some(self.plain());
        let (cluster_name, path) = (Arc::clone(name), text(self.head.path()));
        self.steps.push(Step::Forward { cluster: cluster_name, path, authority });
        self.steps.push(Step::Endpoints { cluster: Arc::clone(name), count: cluster.endpoints.hosts.len() });
    }

    fn answered(&mut self, answer: Answer<'c, Reply>) -> LocalAnswer {
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        let (status, details) = (answer.status().unwrap_or_default(), answer.details().unwrap_or_default().to_owned());
        let translated = |verbatim: bool, status| if self.grpc && !verbatim { 200 } else { status };
        if let Answer::Filter(reply) = answer {
            let status = translated(reply.verbatim, reply.status);
            return LocalAnswer { status, details: reply.details.into_owned() };
        }
        let sent = translated(false, status);
        self.steps.extend(match answer {
            Answer::NotAPath | Answer::BadPath => Some(Step::PathRefused { status, details: details.clone() }),
            Answer::PathRedirect(location) => Some(Step::PathRedirect { location: text(location) }),
            Answer::NoRouteTable => self.table().map(|name| Step::NoRouteTable { name, status }),
            Answer::NoRoute => Some(Step::NoRoute),
            Answer::TlsRedirect(location) => Some(Step::TlsRedirect { location: text(location) }),
            Answer::Redirect { status, location } => Some(Step::Redirect { status, location: text(location) }),
            Answer::Direct { status, .. } => Some(Step::DirectResponse { status }),
            Answer::UpgradeRefused => Some(Step::UpgradeRefused { status }),
            Answer::NoCluster(status) => {
                self.cluster.map(|cluster| Step::NoCluster { cluster: Arc::clone(cluster), status })
            }
            Answer::Filter(_) => None,
        });
        LocalAnswer { status: sent, details }
    }

    /// The route table's name, if it is requested by name (RDS).
    fn table(&self) -> Option<Arc<str>> {
        match &self.arrival.manager.routes {
            RouteSource::Static(_) => None,
            RouteSource::Rds(name) => Some(Arc::clone(name)),
        }
    }

    /// The head as it is now.
    fn plain(&self) -> PlainRequest {
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let headers = self.head.headers.iter().map(|(_, name, value)| (text(name), text(value))).collect();
        PlainRequest {
            method: text(self.head.method()),
            path: text(self.head.path()),
            authority: text(self.head.authority()),
            scheme: self.request.scheme.clone(),
            headers,
        }
    }

    fn host(&mut self, table: &RouteTable, host: &VirtualHost) {
        self.steps.push(Step::VirtualHost { table: Arc::clone(&table.name), name: Arc::clone(&host.name) });
    }
}

impl<'c> Visitor<'c> for Written<'c> {
    fn prepared(&mut self) {
        let (path, authority) = (self.head.path(), self.head.authority());
        if path != self.request.path.as_bytes() || authority != self.request.authority.as_bytes() {
            let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
            let step = Step::Normalized { path: text(path), authority: text(authority) };
            self.steps.push(step);
        }
    }

    fn chosen(&mut self, matched: Option<&Matched<'c>>) {
        self.trace.matched = Some(self.plain());
        self.trace.client = self.client;
        self.trace.route = matched.map(|matched| Arc::clone(matched.route));
        self.trace.host = matched.and_then(|matched| matched.table.find_virtual_host(self.head.authority())).cloned();
        self.trace.table_filters = matched.map(|matched| matched.table.filters.clone()).unwrap_or_default();
    }

    fn routed(&mut self, table: &'c RouteTable, selection: RouteSelection<'c>) {
        if let RouteSelection::NotFound(Some(host)) | RouteSelection::TlsRedirect(host) = selection {
            self.trace.host = Some(Arc::clone(host));
            self.trace.table_filters = table.filters.clone();
        }
        match selection {
            RouteSelection::NotFound(host) => {
                if let Some(host) = host {
                    self.host(table, host);
                }
            }
            RouteSelection::TlsRedirect(host) => self.host(table, host),
            RouteSelection::Route(host, route) => {
                self.host(table, host);
                let share = route.matches.fraction_ppm;
                self.steps.push(Step::Route {
                    name: Arc::clone(&route.name),
                    origin: route.origin.clone(),
                    share_ppm: (share < 1_000_000).then_some(share),
                });
                let RouteAction::Forward(action) = &route.action else { return };
                let entry = action.pick_cluster(self.numbers.random).filter(|_| action.clusters.len() > 1);
                self.steps.extend(entry.map(|entry| Step::Share {
                    cluster: Arc::clone(&entry.cluster),
                    weight: entry.weight,
                    total: action.total_weight,
                }));
            }
        }
    }

    fn limited(&mut self, limits: &Limits, retry: Option<&Policy<'c>>) {
        let retries = retry.map(|policy| Retries {
            on: policy.on.names(),
            most: policy.num_retries,
            per_try_timeout: policy.per_try_timeout,
        });
        self.steps.push(Step::Limits { limits: *limits, retries });
    }

    fn edit_request(&mut self, levels: Levels<'c>) {
        self.steps.extend(levels.named().map(|(level, edits)| Step::Headers { level, edits: edit_lines(edits) }));
        for edits in levels.iter() {
            edits.request_remove.iter().for_each(|name| self.head.headers.remove_name(name.as_bytes()));
            for addition in &edits.request_add {
                let (head, now) = (HeadView::new(&self.head, &self.stream.metadata), self.stream.times.start());
                let known = Record::headless(&self.stream, &self.known, (SystemClock.wall_clock(now, now), now));
                let value = header_value(&addition.value, &Record { request: &head, ..known });
                header_edits::add_header(&mut self.head.headers, addition, &value);
            }
        }
    }
}

impl<'c> Stream<'c> for Written<'c> {
    type Cluster = (&'c Arc<str>, &'c Arc<Cluster>);
    type Reply = Reply;

    fn parts(&mut self) -> Parts<'_> {
        Parts {
            head: &mut self.head,
            info: &mut self.info,
            tunnel: &mut self.tunnel,
            grpc: &mut self.grpc,
            made_grpc: self.stream.made_grpc,
            client: &mut self.client,
            drawn: &mut self.random,
            metadata: &self.stream.metadata,
            may_be_held: true,
        }
    }

    fn filter(
        &mut self,
        client: SocketAddr,
        matched: Option<Matched<'c>>,
    ) -> impl Future<Output = Filtered<Self::Reply>> {
        std::future::ready(self.ask(client, matched))
    }

    fn cluster(&mut self, _: &'c ForwardAction, entry: &'c WeightedCluster) -> Option<Self::Cluster> {
        self.cluster = Some(&entry.cluster);
        self.arrival.config.clusters.get(&entry.cluster).map(|cluster| (&entry.cluster, cluster))
    }
}
