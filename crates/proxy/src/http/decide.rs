//! The first phases: normalize, identify the peer, match the route, ask the filters, pick the cluster.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_base::grpc::is_grpc;
use evenkeel_filters::RouteContext;
use evenkeel_http::{Framing, HeaderId, path};
use evenkeel_runtime_config::hcm::{EscapedSlashes, RouteSource};
use evenkeel_runtime_config::rewrite::{https_location, path_as_location};
use evenkeel_runtime_config::route::{
    ForwardAction, HostRewrite, Route, RouteAction, RouteTable, VirtualHost, WeightedCluster,
};
use evenkeel_runtime_config::route_match::RouteSelection;
use evenkeel_runtime_config::{Config, Demand, HttpConnectionManager};
use evenkeel_upstream::Cluster;
use evenkeel_upstream::conn::deadline::after;
use evenkeel_upstream::random::Random;
use tokio::time::Instant;

use super::affinity::Affinity;
use super::edits::Levels;
use super::failure::Failure;
use super::filters::{self, Filtered};
use super::grpc;
use super::identify::identify;
use super::log::record;
use super::origin::Origin;
use super::phases::ActiveStream;
use super::reply::Reply;
use super::request::{Request, Tunnel};
use super::retry::Policy;
use super::{retry, websocket};
use crate::stats::http::Counter;

/// What becomes of a request.
pub(super) enum Plan<'c> {
    /// Boxed: it would have its place in each future on the way here, and in that of every connection that waits.
    Forward(Box<Forward<'c>>),
    Reply(Reply, Option<Levels<'c>>),
    /// It cannot be said before the control plane has said this.
    Hold(Demand),
}

/// Where a request goes.
pub(super) struct Forward<'c> {
    pub(super) levels: Levels<'c>,
    pub(super) host: &'c VirtualHost,
    pub(super) action: &'c ForwardAction,
    pub(super) retry: Option<Policy<'c>>,
    pub(super) cluster: Rc<Cluster>,
    pub(super) affinity: Affinity<'c>,
    pub(super) timeout: Option<Duration>,
    /// The response must be complete by then (`max_stream_duration`).
    pub(super) ends_by: Option<Instant>,
    pub(super) idle: Option<Duration>,
    pub(super) request_until: Option<Instant>,
    /// The route, for the filters of the cluster.
    pub(super) route: RouteContext<'c>,
}

impl Forward<'_> {
    /// The upstream gets the bytes of a tunnel, and CONNECT ends here.
    pub(super) fn terminates_connect(&self, request: &Request) -> bool {
        self.action.connect_terminates && request.tunnel == Some(Tunnel::Connect)
    }
}

/// A route and what it belongs to.
#[derive(Clone, Copy)]
pub(super) struct Matched<'c> {
    pub(super) table: &'c RouteTable,
    host: &'c VirtualHost,
    pub(super) route: &'c Route,
    /// The cluster it goes to, when the route forwards.
    pub(super) leg: Option<&'c WeightedCluster>,
}

impl<'c> Matched<'c> {
    /// `None`: there is no route.
    fn of(table: &'c RouteTable, selection: RouteSelection<'c>, random: u64) -> Option<Self> {
        let RouteSelection::Route(host, route) = selection else { return None };
        let leg = match &route.action {
            RouteAction::Forward(action) => action.pick_cluster(random),
            RouteAction::Redirect(_) | RouteAction::DirectResponse { .. } => None,
        };
        Some(Self { table, host, route, leg })
    }

    fn levels(self) -> Levels<'c> {
        Levels::new(self.table, self.host, self.route, self.leg)
    }
}

impl<'l> ActiveStream<'l> {
    /// Normalize, identify, match, filter, pick the cluster.
    pub(super) async fn decide<'c>(&mut self, config: &'c Config) -> Plan<'c>
    where
        'l: 'c,
    {
        let fail = |failure: Failure| Plan::Reply(Reply::from(&failure), None);
        let origin = self.origin;
        let (hcm, stats, request) = (&*origin.hcm, &origin.manager.http, &mut *self.request);
        let client = match request.client {
            // It was held, and comes again.
            Some(client) => client,
            None => match prepare(request, origin) {
                Ok(client) => client,
                Err(reply) => return Plan::Reply(reply, None),
            },
        };
        let random = *request.random.get_or_insert_with(|| origin.worker.random.next());
        let Some(table) = route_table(hcm, config) else {
            stats.inc(Counter::no_route);
            return fail(Failure::NoRoute).closing(request.head.method() == b"CONNECT");
        };
        let (selection, matched) = loop {
            if hcm.on_demand.is_some()
                && !self.request.unheld
                && let Some(demand) = table.unanswered(self.request.head.authority())
            {
                return Plan::Hold(demand);
            }
            let selection = table.select(&self.request.view(), random);
            let matched = Matched::of(table, selection, random);
            self.request.route_name = matched.map(|matched| Arc::clone(&matched.route.name));
            // Before the filters: what they let pass goes where they were told, not where a later route table says.
            if let Some(demand) = matched.and_then(|matched| self.unanswered_cluster(matched.leg?, config)) {
                return Plan::Hold(demand);
            }
            match self.filter(client, matched).await {
                Filtered::Passes => break (selection, matched),
                Filtered::Rerouted => {}
                Filtered::Answered(reply) => return Plan::Reply(reply, matched.map(Matched::levels)),
            }
        };
        let request = &*self.request;
        let Some(matched) = matched else {
            if let RouteSelection::TlsRedirect(_) = selection {
                let location = https_location(&request.view());
                return Plan::Reply(Reply::redirect(301, location, "tls_redirect"), None);
            }
            stats.inc(Counter::no_route);
            let upgrade = matches!(request.tunnel, Some(Tunnel::Upgrade(_)));
            return match upgrade && refuses_tunnel(request, hcm, None) {
                true => fail(Failure::UpgradeRefused),
                false => fail(Failure::NoRoute).closing(request.head.method() == b"CONNECT"),
            };
        };
        let levels = matched.levels();
        let action = match &matched.route.action {
            RouteAction::Forward(action) => action,
            RouteAction::Redirect(redirect) => {
                stats.inc(Counter::rq_redirect);
                let location = redirect.location(&matched.route.matches, &request.view());
                return Plan::Reply(Reply::redirect(redirect.status, location, "direct_response"), Some(levels));
            }
            RouteAction::DirectResponse { status, body } => {
                stats.inc(Counter::rq_direct_response);
                return Plan::Reply(Reply::direct(*status, body), Some(levels));
            }
        };
        if refuses_tunnel(request, hcm, Some(action)) {
            return Plan::Reply(Reply::from(&Failure::UpgradeRefused), Some(levels));
        }
        self.route_to(matched, action)
    }

    /// The cluster to ask for first (`odcds`).
    fn unanswered_cluster(&self, leg: &WeightedCluster, config: &Config) -> Option<Demand> {
        self.origin.hcm.on_demand?.clusters?;
        if self.request.unheld { None } else { config.unanswered_cluster(&leg.cluster) }
    }

    /// The cluster, and the head as the upstream gets it.
    fn route_to<'c>(&mut self, matched: Matched<'c>, action: &'c ForwardAction) -> Plan<'c> {
        let Matched { host, route, leg, .. } = matched;
        let (origin, request) = (self.origin, &mut *self.request);
        let levels = matched.levels();
        let Some((leg, cluster)) = leg.and_then(|leg| Some((leg, origin.worker.upstreams.cluster(&leg.cluster)?)))
        else {
            origin.manager.http.inc(Counter::no_cluster);
            return Plan::Reply(Reply::from(&Failure::NoCluster(action.cluster_not_found_status)), Some(levels));
        };
        request.cluster_name = Some(Arc::clone(&leg.cluster));
        let affinity = Affinity::new(action, leg, &cluster, request, &origin.view);
        let positive = |limit: Option<Duration>| limit.filter(|limit| !limit.is_zero());
        let by_header = retry::RequestedRetry::take(&mut request.head.headers);
        let retry = {
            let configured = action.retry.as_deref().or(host.retry.as_deref());
            retry::effective(configured, by_header.as_ref(), &request.view())
        };
        let asked = action.grpc_timeout.filter(|_| request.grpc);
        let timeout = match asked {
            _ if by_header.as_ref().is_some_and(|header| header.timeout.is_some()) => {
                positive(by_header.and_then(|header| header.timeout))
            }
            Some(asked) if asked.as_route_timeout => grpc::timeout(&request.head.headers, asked),
            _ => positive(action.timeout),
        };
        let longest = match asked.filter(|asked| !asked.as_route_timeout) {
            Some(asked) => grpc::timeout(&request.head.headers, asked).or(action.max_stream_duration),
            None => action.max_stream_duration,
        };
        // A try as long as the whole has no limit of its own.
        let retry = retry.map(|policy| match policy.per_try_timeout.zip(timeout) {
            Some((per_try, all)) if per_try >= all => policy.changed(|policy| policy.per_try_timeout = None),
            _ => policy,
        });
        if let Some(timeout) = retry.as_ref().and_then(|policy| policy.per_try_timeout).or(timeout) {
            let to_grpc = asked.is_some_and(|asked| asked.as_route_timeout);
            retry::announce_timeout(&mut request.head.headers, timeout, to_grpc);
        }
        forget_expectation(request, &origin.hcm);
        if !levels.is_empty() {
            let values = record(origin, request, |record| levels.request_values(record));
            levels.edit_request(&mut request.head.headers, values);
        }
        rewrite(request, route, action, leg.host_rewrite.as_deref());
        Plan::Forward(Box::new(Forward {
            levels,
            host,
            action,
            retry,
            cluster,
            affinity,
            timeout: timeout.filter(|_| request.tunnel.is_none()),
            ends_by: after(request.started, longest.or(origin.hcm.max_stream_duration)),
            idle: positive(action.idle_timeout.or(origin.hcm.stream_idle_timeout))
                .filter(|limit| *limit != Duration::MAX),
            request_until: after(request.started, positive(origin.hcm.request_timeout)),
            route: filters::context(Some(matched)),
        }))
    }
}

impl Plan<'_> {
    fn closing(mut self, close: bool) -> Self {
        if let Self::Reply(reply, _) = &mut self {
            reply.close |= close;
        }
        self
    }
}

/// The tunnel the request asks for.
fn asked_tunnel(request: &mut Request, random: &Random) -> Option<Tunnel> {
    // Extended CONNECT (RFC 8441 section 5) is an upgrade to everything behind this.
    if !request.head.protocol().is_empty() {
        let protocol = request.head.protocol().to_ascii_lowercase();
        request.head.set_protocol(b"");
        request.head.set_method(b"GET");
        request.info.framing = Framing::None;
        if protocol == b"websocket" {
            websocket::add_key(&mut request.head.headers, random);
        }
        return Some(Tunnel::Upgrade(protocol));
    }
    if request.head.method() == b"CONNECT" {
        // Whatever comes after the head belongs to the tunnel.
        request.info.framing = Framing::None;
        return Some(Tunnel::Connect);
    }
    let protocol = request.info.upgrade.then(|| request.head.headers.get(HeaderId::Upgrade)).flatten()?;
    let protocol = protocol.to_ascii_lowercase();
    // RFC 9113 knows this upgrade no more, but clients still offer it with their first request and are content with HTTP/1.1.
    if protocol == b"h2c" {
        request.head.headers.remove_name(b"http2-settings");
        return None;
    }
    Some(Tunnel::Upgrade(protocol))
}

/// Takes `expect: 100-continue` off, unless it is for the upstream to say 100. HTTP/1.0 does not know it.
fn forget_expectation(request: &mut Request, hcm: &HttpConnectionManager) {
    let upstreams = hcm.proxy_100_continue && request.info.expect_continue;
    let expected = request.head.headers.get(HeaderId::Expect);
    if !upstreams && expected.is_some_and(|what| what.eq_ignore_ascii_case(b"100-continue")) {
        request.head.headers.remove(HeaderId::Expect);
    }
}

/// Whether it may not have it: the route's word counts, else the connection manager's.
fn refuses_tunnel(request: &Request, hcm: &HttpConnectionManager, action: Option<&ForwardAction>) -> bool {
    let wanted = match &request.tunnel {
        Some(Tunnel::Upgrade(protocol)) => protocol.as_slice(),
        Some(Tunnel::Connect) => b"connect",
        None => return false,
    };
    let said = action.and_then(|action| action.upgrades.iter().find(|(name, _)| name.as_bytes() == wanted));
    !said.map_or_else(|| hcm.upgrades.iter().any(|name| name.as_bytes() == wanted), |(_, allowed)| *allowed)
}

/// Path and authority into their normal form; a redirect where the path's slashes are to be unescaped that way.
fn normalize(request: &mut Request, hcm: &HttpConnectionManager) -> Result<Option<Reply>, Failure> {
    if request.is_http_10()
        && request.head.authority().is_empty()
        && let Some(host) = &hcm.default_host_for_http_10
    {
        request.head.set_authority(host.as_bytes());
    }
    match request.head.path().first() {
        // CONNECT.
        None => return Ok(None),
        Some(b'/') => {}
        Some(_) => return Err(Failure::NotAPath),
    }
    let mut redirect = false;
    if hcm.escaped_slashes != EscapedSlashes::KeepUnchanged && path::has_escaped_slash(request.head.path()) {
        if hcm.escaped_slashes == EscapedSlashes::Reject {
            return Err(Failure::Path);
        }
        redirect = hcm.escaped_slashes == EscapedSlashes::UnescapeAndRedirect;
        if let Some(unescaped) = path::unescape_slashes(request.head.path()) {
            request.head.set_path(&unescaped);
        }
    }
    if hcm.normalize_path
        && let Some(normal) = path::normalize(request.head.path()).map_err(|_| Failure::Path)?
    {
        request.head.set_path(&normal);
    }
    if hcm.merge_slashes
        && let Some(merged) = path::merge_slashes(request.head.path())
    {
        request.head.set_path(&merged);
    }
    let location = redirect.then(|| path_as_location(request.head.path()));
    Ok(location.map(|location| Reply::redirect(307, location, "path_normalization_redirect")))
}

/// Normalize, and find out whose request it is; what is done once, however often it is decided.
fn prepare(request: &mut Request, origin: &Origin) -> Result<SocketAddr, Reply> {
    let hcm = &*origin.hcm;
    match normalize(request, hcm) {
        Ok(None) => {}
        Ok(Some(redirect)) => return Err(redirect),
        Err(failure) => {
            if matches!(failure, Failure::NotAPath) {
                origin.manager.http.inc(Counter::downstream_rq_non_relative_path);
            }
            return Err(Reply::from(&failure));
        }
    }
    request.tunnel = asked_tunnel(request, &origin.worker.random);
    // What the client has said of this hop ends here, before anything is added that it must not be able to name.
    request.head.headers.remove_hop_by_hop();
    let client = identify(&mut request.head, hcm, &origin.view, &origin.peer_text, &origin.worker.random);
    request.client = Some(client);
    request.grpc = request.head.headers.get(HeaderId::ContentType).is_some_and(is_grpc);
    Ok(client)
}

fn route_table<'c>(hcm: &'c HttpConnectionManager, config: &'c Config) -> Option<&'c RouteTable> {
    match &hcm.routes {
        RouteSource::Static(table) => Some(table),
        RouteSource::Rds(name) => config.routes.get(name).map(|table| &**table),
    }
}

/// Path and host as the route wants them, with the originals beside them.
fn rewrite(request: &mut Request, route: &Route, action: &ForwardAction, leg_host: Option<&str>) {
    if action.prefix_rewrite.is_some() || action.regex_rewrite.is_some() {
        let original = request.head.path().to_vec();
        let path = action.rewrite_path(&route.matches, &original);
        request.head.set_path(&path);
        request.head.headers.set(HeaderId::EnvoyOriginalPath, &original);
    }
    let literal = match &action.host_rewrite {
        HostRewrite::Literal(host) => Some(&**host),
        HostRewrite::None | HostRewrite::Auto => None,
    };
    if action.append_x_forwarded_host && (literal.is_some() || leg_host.is_some()) {
        let authority = request.head.authority().to_vec();
        request.head.headers.append_to_list(HeaderId::ForwardedHost, &authority);
    }
    if let Some(host) = leg_host.or(literal) {
        set_host(request, host.as_bytes());
    }
}

pub(super) fn set_host(request: &mut Request, host: &[u8]) {
    if request.head.authority() != host {
        let original = request.head.authority().to_vec();
        request.head.headers.set_name(b"x-envoy-original-host", &original);
        request.head.set_authority(host);
    }
}
