//! Decides what happens to a request, in one sequence of steps shared by the proxy and [`crate::explain`]. It does no
//! I/O and reads no clock.
//!
//! normalize the path → find the tunnel it asks for → identify the client → route table → virtual host and route → HTTP
//! filters → redirect, direct response, or cluster → limits, retries, header edits, rewrites.
//!
//! A [`Stream`] is the request to decide about. It provides what only its owner has: the head, random numbers, the filters,
//! the existing clusters. Its [`Visitor`] methods are called for the steps; by default they do nothing.

mod answer;
mod between_proxies;
mod client_cert;
mod forward;
mod identify;
mod levels;
mod prepare;
mod retry;

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_http::{RequestHead, RequestInfo};
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::hcm::RouteSource;
use evenkeel_runtime_config::listener::TcpProxy;
use evenkeel_runtime_config::metadata::MetadataMatch;
use evenkeel_runtime_config::rewrite::https_location;
use evenkeel_runtime_config::route::{ForwardAction, Route, RouteAction, VirtualHost, WeightedCluster};
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::route_table::RouteTable;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_runtime_config::{Config, Demand, HttpConnectionManager};

use crate::http::{HeadView, RouteContext, Services};

pub use answer::Answer;
pub use forward::{Forward, Limits, set_host};
pub use identify::append_via;
pub use levels::Levels;
pub use retry::{Policy, announce_timeout, effective};

/// The request's connection, and the configuration to decide by.
#[derive(Clone, Copy)]
pub struct Arrival<'c> {
    /// The configuration.
    pub config: &'c Config,
    /// The connection manager of the connection's filter chain.
    pub manager: &'c HttpConnectionManager,
    /// The connection.
    pub connection: &'c ConnectionView,
    /// The peer's address as text.
    pub peer_text: &'c str,
    /// Random numbers.
    pub services: &'c dyn Services,
}

/// The parts of a request that deciding reads and changes.
pub struct Parts<'r> {
    /// Its head.
    pub head: &'r mut RequestHead,
    /// Message framing, as given by the head.
    pub info: &'r mut RequestInfo,
    /// The tunnel it asks for.
    pub tunnel: &'r mut Option<Tunnel>,
    /// It is a gRPC request, by its content type.
    pub grpc: &'r mut bool,
    /// A filter has made a gRPC call of it.
    pub made_grpc: bool,
    /// The client's address; `None` until the request was prepared.
    pub client: &'r mut Option<SocketAddr>,
    /// The random number for weighted clusters and fractions, the same however often the route is chosen.
    pub drawn: &'r mut Option<u64>,
    /// Dynamic metadata set by filters.
    pub metadata: &'r DynamicMetadata,
    /// It may be held until the control plane has delivered a missing resource.
    pub may_be_held: bool,
}

impl Parts<'_> {
    /// The request as matchers see it.
    #[inline]
    pub fn view(&self) -> HeadView<'_> {
        HeadView::new(self.head, self.metadata)
    }
}

/// What a connection or stream turns into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tunnel {
    /// This protocol (`websocket`), in lower case: by `Upgrade` in HTTP/1, by extended CONNECT in HTTP/2.
    Upgrade(Vec<u8>),
    /// A byte stream to the authority: CONNECT.
    Connect,
}

/// Observes the steps.
pub trait Visitor<'c> {
    /// Path, authority and headers are in the form that routes and filters see.
    fn prepared(&mut self) {}
    /// The request asks for an upgrade by extended CONNECT (RFC 8441 section 5).
    fn upgrade_by_connect(&mut self) {}
    /// A route was chosen; the filters are called next, and may have it chosen again.
    fn chosen(&mut self, _matched: Option<&Matched<'c>>) {}
    /// The filters have let the request pass.
    fn routed(&mut self, _table: &'c RouteTable, _selection: RouteSelection<'c>) {}
    /// The route forwards with these limits.
    fn limited(&mut self, _limits: &Limits, _retry: Option<&Policy<'c>>) {}
    /// The head is about to be edited, before path and authority are rewritten.
    fn edit_request(&mut self, _levels: Levels<'c>) {}
}

/// A request to decide.
pub trait Stream<'c>: Visitor<'c> {
    /// The owner's handle of a cluster.
    type Cluster;
    /// A filter's local reply.
    type Reply;

    /// The parts that deciding reads and changes.
    fn parts(&mut self) -> Parts<'_>;
    /// Calls the remaining filters.
    fn filter(
        &mut self,
        client: SocketAddr,
        matched: Option<Matched<'c>>,
    ) -> impl Future<Output = Filtered<Self::Reply>>;
    /// The cluster, if it exists. The head is as the filters left it.
    fn cluster(&mut self, action: &'c ForwardAction, entry: &'c WeightedCluster) -> Option<Self::Cluster>;
}

/// The result of the filters.
#[derive(Debug)]
pub enum Filtered<R> {
    /// Continue with the router.
    Passes,
    /// Choose the route again, then call the remaining filters.
    Rerouted,
    /// Send this local reply.
    Answered(R),
}

/// The outcome of a request.
pub enum Outcome<'c, S: Stream<'c>> {
    /// Undecided until the control plane delivers this.
    Hold(Demand),
    /// Send a local reply, with these edits of its head.
    Answer(Answer<'c, S::Reply>, Option<Levels<'c>>),
    /// Forward to a cluster. Boxed, since it would take up space in every future on the way here.
    Forward(Box<Forward<'c, S::Cluster>>),
}

/// A matched route and its context.
#[derive(Debug, Clone, Copy)]
pub struct Matched<'c> {
    /// The route table.
    pub table: &'c RouteTable,
    /// The virtual host.
    pub host: &'c VirtualHost,
    /// The route.
    pub route: &'c Arc<Route>,
    /// The chosen entry of its weighted clusters, if the route forwards.
    pub entry: Option<&'c WeightedCluster>,
}

impl<'c> Matched<'c> {
    /// `None` if no route matched.
    fn of(table: &'c RouteTable, selection: RouteSelection<'c>, random: u64) -> Option<Self> {
        let RouteSelection::Route(host, route) = selection else { return None };
        let entry = match &route.action {
            RouteAction::Forward(action) => action.pick_cluster(random),
            RouteAction::Redirect(_) | RouteAction::DirectResponse { .. } => None,
        };
        Some(Self { table, host, route, entry })
    }

    /// The header edits that apply.
    pub fn levels(&self) -> Levels<'c> {
        Levels::new(self)
    }

    /// The match as filters see it.
    pub fn context(matched: Option<Self>) -> RouteContext<'c> {
        let Some(Self { table, route, entry, .. }) = matched else { return RouteContext::default() };
        let filters = RouteFilters::new(&table.filters, &route.filters, entry.map(|entry| &entry.filters));
        RouteContext { route: Some(route), cluster: entry.map(|entry| &entry.cluster), filters }
    }
}

/// Decides what happens to a request, from its head as received to the cluster it goes to.
pub async fn decide<'c, S: Stream<'c>>(arrival: Arrival<'c>, stream: &mut S) -> Outcome<'c, S> {
    let Arrival { config, manager, .. } = arrival;
    let client = match prepare::prepare(arrival, stream) {
        Ok(client) => client,
        Err(answer) => return Outcome::Answer(answer, None),
    };
    let random = *stream.parts().drawn.get_or_insert_with(|| arrival.services.random());
    let Some(table) = route_table(manager, config) else { return Outcome::Answer(Answer::NoRouteTable, None) };
    let (selection, matched) = loop {
        let parts = stream.parts();
        let may_be_held = parts.may_be_held;
        if manager.on_demand.is_some()
            && may_be_held
            && let Some(demand) = table.unanswered(parts.head.authority())
        {
            return Outcome::Hold(demand);
        }
        let selection = table.select(&parts.view(), random);
        let matched = Matched::of(table, selection, random);
        stream.chosen(matched.as_ref());
        // Before the filters: a request that they pass must go where they were told, not where a later route table says.
        if may_be_held && let Some(demand) = matched.and_then(|matched| unanswered_cluster(matched.entry?, arrival)) {
            return Outcome::Hold(demand);
        }
        match stream.filter(client, matched).await {
            Filtered::Passes => break (selection, matched),
            Filtered::Rerouted => {}
            Filtered::Answered(reply) => {
                let levels = matched.map(|matched| matched.levels());
                return Outcome::Answer(Answer::Filter(reply), levels);
            }
        }
    };
    stream.routed(table, selection);
    match matched {
        Some(matched) => follow(arrival, stream, matched),
        None => {
            let parts = stream.parts();
            let upgrade = matches!(parts.tunnel, Some(Tunnel::Upgrade(_)));
            let answer = match selection {
                RouteSelection::TlsRedirect(_) => Answer::TlsRedirect(https_location(&parts.view())),
                _ if upgrade && refuses_tunnel(parts.tunnel.as_ref(), manager, None) => Answer::UpgradeRefused,
                _ => Answer::NoRoute,
            };
            Outcome::Answer(answer, None)
        }
    }
}

/// Executes the route's action.
fn follow<'c, S: Stream<'c>>(arrival: Arrival<'c>, stream: &mut S, matched: Matched<'c>) -> Outcome<'c, S> {
    let parts = stream.parts();
    let levels = Some(matched.levels());
    match &matched.route.action {
        RouteAction::Redirect(redirect) => {
            let location = redirect.location(&matched.route.matches, &parts.view());
            Outcome::Answer(Answer::Redirect { status: redirect.status, location }, levels)
        }
        RouteAction::DirectResponse { status, body } => {
            Outcome::Answer(Answer::Direct { status: *status, body }, levels)
        }
        RouteAction::Forward(action) if refuses_tunnel(parts.tunnel.as_ref(), arrival.manager, Some(action)) => {
            Outcome::Answer(Answer::UpgradeRefused, levels)
        }
        RouteAction::Forward(action) => match forward::forward(arrival.manager, stream, matched, action) {
            Some(forward) => Outcome::Forward(forward),
            None => Outcome::Answer(Answer::NoCluster(action.cluster_not_found_status), levels),
        },
    }
}

/// The cluster to request from the control plane first (`odcds`).
fn unanswered_cluster(entry: &WeightedCluster, arrival: Arrival<'_>) -> Option<Demand> {
    arrival.manager.on_demand?.clusters?;
    arrival.config.unanswered_cluster(&entry.cluster)
}

fn route_table<'c>(manager: &'c HttpConnectionManager, config: &'c Config) -> Option<&'c RouteTable> {
    match &manager.routes {
        RouteSource::Static(table) => Some(table),
        RouteSource::Rds(name) => config.routes.get(name).map(|table| &**table),
    }
}

/// Whether the tunnel is not allowed: by the route if it says so, else by the connection manager.
fn refuses_tunnel(tunnel: Option<&Tunnel>, manager: &HttpConnectionManager, action: Option<&ForwardAction>) -> bool {
    let wanted = match tunnel {
        Some(Tunnel::Upgrade(protocol)) => protocol.as_slice(),
        Some(Tunnel::Connect) => b"connect",
        None => return false,
    };
    let said = action.and_then(|action| action.upgrades.iter().find(|(name, _)| name.as_bytes() == wanted));
    !said.map_or_else(|| manager.upgrades.iter().any(|name| name.as_bytes() == wanted), |(_, allowed)| *allowed)
}

/// The destination of a TCP proxy's connection.
#[derive(Debug)]
pub struct TcpDestination<'c> {
    /// The cluster.
    pub cluster: &'c Arc<str>,
    /// Metadata of the cluster's subset to use.
    pub metadata_match: Option<&'c MetadataMatch>,
    /// The cluster is to be requested from the control plane first.
    pub demand: Option<Demand>,
}

/// Decides the destination of a TCP proxy's connection. `None` only without clusters, which the compiler rejects.
pub fn tcp_destination<'c>(
    config: &Config,
    proxy: &'c TcpProxy,
    connection: &'c ConnectionView,
    random: u64,
) -> Option<TcpDestination<'c>> {
    let (cluster, metadata_match) = proxy.destination(connection.server_name.as_ref(), random)?;
    let demand = proxy.on_demand.and_then(|_| config.unanswered_cluster(cluster));
    Some(TcpDestination { cluster, metadata_match, demand })
}
