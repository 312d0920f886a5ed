//! What becomes of a request: the one sequence of steps, for the proxy that serves it and for [`crate::explain`]. It does no I/O and
//! reads no clock.
//!
//! normalize the path → find the tunnel it asks for → identify the client → route table → virtual host and route → HTTP filters →
//! redirect, direct response, or cluster → limits, retries, header edits, rewrites.
//!
//! A [`Stream`] is the request that is decided. It brings what only its owner has: the head, random numbers, the filters' turn, the
//! clusters that exist. Its [`Visitor`] methods are told of the steps; they are empty unless it defines them.

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
use evenkeel_runtime_config::cluster::MetadataMatch;
use evenkeel_runtime_config::dynamic_metadata::DynamicMetadata;
use evenkeel_runtime_config::hcm::RouteSource;
use evenkeel_runtime_config::listener::TcpProxy;
use evenkeel_runtime_config::rewrite::https_location;
use evenkeel_runtime_config::route::{ForwardAction, Route, RouteAction, RouteTable, VirtualHost, WeightedCluster};
use evenkeel_runtime_config::route_filters::RouteFilters;
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::view::ConnectionView;
use evenkeel_runtime_config::{Config, Demand, HttpConnectionManager};

use crate::http::{HeadView, RouteContext, Services};

pub use answer::Answer;
pub use forward::{Forward, Limits, set_host};
pub use identify::append_via;
pub use levels::Levels;
pub use retry::{Policy, announce_timeout, effective};

/// What a request came on, and the configuration that decides it.
#[derive(Clone, Copy)]
pub struct Arrival<'c> {
    /// The configuration.
    pub config: &'c Config,
    /// What serves the connection.
    pub manager: &'c HttpConnectionManager,
    /// The connection.
    pub connection: &'c ConnectionView,
    /// Its peer's address as text.
    pub peer_text: &'c str,
    /// Random numbers.
    pub services: &'c dyn Services,
}

/// What is decided by, and what deciding changes, of one request.
pub struct Parts<'r> {
    /// Its head.
    pub head: &'r mut RequestHead,
    /// What the head says about its message.
    pub info: &'r mut RequestInfo,
    /// It asks for a tunnel.
    pub tunnel: &'r mut Option<Tunnel>,
    /// It is gRPC's, by its content type.
    pub grpc: &'r mut bool,
    /// The client; `None` until the request was prepared.
    pub client: &'r mut Option<SocketAddr>,
    /// Decides between weighted clusters and fractions, however often the route is chosen.
    pub drawn: &'r mut Option<u64>,
    /// What filters have found out.
    pub metadata: &'r DynamicMetadata,
    /// It may be held for what the control plane has not been asked for.
    pub may_be_held: bool,
}

impl Parts<'_> {
    /// The request as matchers see it.
    #[inline]
    pub fn view(&self) -> HeadView<'_> {
        HeadView::new(self.head, self.metadata)
    }
}

/// What a connection, or a stream, is to become.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tunnel {
    /// This protocol (`websocket`), in lower case: `Upgrade` in HTTP/1, extended CONNECT in HTTP/2.
    Upgrade(Vec<u8>),
    /// A byte stream to the authority: CONNECT.
    Connect,
}

/// Is told of the steps.
pub trait Visitor<'c> {
    /// Path, authority and headers have the form that routes and filters see.
    fn prepared(&mut self) {}
    /// An upgrade came as extended CONNECT (RFC 8441 section 5).
    fn upgrade_by_connect(&mut self) {}
    /// The filters are asked next. A filter may have the route chosen again.
    fn chosen(&mut self, _matched: Option<&Matched<'c>>) {}
    /// The filters have let it pass.
    fn routed(&mut self, _table: &'c RouteTable, _selection: RouteSelection<'c>) {}
    /// The route forwards with these limits.
    fn limited(&mut self, _limits: &Limits, _retry: Option<&Policy<'c>>) {}
    /// The head is to be edited, before path and authority are rewritten.
    fn edit_request(&mut self, _levels: Levels<'c>) {}
}

/// A request that is decided.
pub trait Stream<'c>: Visitor<'c> {
    /// A cluster, as its owner needs it.
    type Cluster;
    /// An answer of a filter.
    type Reply;

    /// What is decided by.
    fn parts(&mut self) -> Parts<'_>;
    /// Asks the filters that are left.
    fn filter(
        &mut self,
        client: SocketAddr,
        matched: Option<Matched<'c>>,
    ) -> impl Future<Output = Filtered<Self::Reply>>;
    /// The cluster, if it exists. The head is as the filters left it.
    fn cluster(&mut self, action: &'c ForwardAction, entry: &'c WeightedCluster) -> Option<Self::Cluster>;
}

/// What the filters make of a request.
#[derive(Debug)]
pub enum Filtered<R> {
    /// The router takes it.
    Passes,
    /// Its route is to be chosen again, and the filters that are left are to be asked.
    Rerouted,
    /// It is answered.
    Answered(R),
}

/// What becomes of a request.
pub enum Outcome<'c, S: Stream<'c>> {
    /// It cannot be said before the control plane has answered this.
    Hold(Demand),
    /// The proxy answers it, with these edits of the answer's head.
    Answer(Answer<'c, S::Reply>, Option<Levels<'c>>),
    /// It goes to a cluster. Boxed: it would have its place in each future on the way here.
    Forward(Box<Forward<'c, S::Cluster>>),
}

/// A route and what it belongs to.
#[derive(Debug, Clone, Copy)]
pub struct Matched<'c> {
    /// The route table.
    pub table: &'c RouteTable,
    /// The virtual host.
    pub host: &'c VirtualHost,
    /// The route.
    pub route: &'c Arc<Route>,
    /// The entry of its weighted clusters it goes to, when the route forwards.
    pub entry: Option<&'c WeightedCluster>,
}

impl<'c> Matched<'c> {
    /// `None`: there is no route.
    fn of(table: &'c RouteTable, selection: RouteSelection<'c>, random: u64) -> Option<Self> {
        let RouteSelection::Route(host, route) = selection else { return None };
        let entry = match &route.action {
            RouteAction::Forward(action) => action.pick_cluster(random),
            RouteAction::Redirect(_) | RouteAction::DirectResponse { .. } => None,
        };
        Some(Self { table, host, route, entry })
    }

    /// Its header edits.
    pub fn levels(&self) -> Levels<'c> {
        Levels::new(self)
    }

    /// As filters see it.
    pub fn context(matched: Option<Self>) -> RouteContext<'c> {
        let Some(Self { table, route, entry, .. }) = matched else { return RouteContext::default() };
        let filters = RouteFilters::new(table, route, entry);
        RouteContext { route: Some(route), cluster: entry.map(|entry| &entry.cluster), filters }
    }
}

/// Decides what becomes of a request, from its head as it was read to the cluster it goes to.
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
        // Before the filters: what they let pass goes where they were told, not where a later route table says.
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

/// Does what the route says.
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

/// The cluster to ask for first (`odcds`).
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

/// Whether it may not have the tunnel: the route's word counts, else the connection manager's.
fn refuses_tunnel(tunnel: Option<&Tunnel>, manager: &HttpConnectionManager, action: Option<&ForwardAction>) -> bool {
    let wanted = match tunnel {
        Some(Tunnel::Upgrade(protocol)) => protocol.as_slice(),
        Some(Tunnel::Connect) => b"connect",
        None => return false,
    };
    let said = action.and_then(|action| action.upgrades.iter().find(|(name, _)| name.as_bytes() == wanted));
    !said.map_or_else(|| manager.upgrades.iter().any(|name| name.as_bytes() == wanted), |(_, allowed)| *allowed)
}

/// Where a TCP proxy's connection goes.
#[derive(Debug)]
pub struct TcpDestination<'c> {
    /// The cluster.
    pub cluster: &'c Arc<str>,
    /// Metadata of the subset there.
    pub metadata_match: Option<&'c MetadataMatch>,
    /// The control plane is to be asked for the cluster first.
    pub demand: Option<Demand>,
}

/// Decides where a TCP proxy's connection goes. `None` only when there are no clusters, which the compiler refuses.
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
