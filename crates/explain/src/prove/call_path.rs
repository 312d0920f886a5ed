//! One call path from a caller to a workload, and its condition on requests.

use std::net::IpAddr;
use std::sync::Arc;

use evenkeel_filters::{FilterPolicy, FilterVerdict, http_verdict, network_verdict};
use evenkeel_model::Workload;
use evenkeel_runtime_config::header_edits::HeaderEdits;
use evenkeel_runtime_config::listener::{FilterChain, Terminal};
use evenkeel_runtime_config::rbac::{RbacAction, RbacFilter};
use evenkeel_runtime_config::route::{RouteAction, VirtualHost};
use evenkeel_runtime_config::route_table::RouteTable;

use super::answer::Claim;
use super::call_paths::{self, Client, Dialled, Kind, ProxyArrival, UpstreamConnection};
use super::language::{Language, Normal, Text};
use super::rules::{self, Conn, Judge, Remote, Through};
use super::space::{Expr, KnownRequest, Name, Parts, Value};
use crate::arrival::Side;
use crate::hop;
use crate::world::World;

/// Maximum number of domains of other virtual hosts that are distinguished from a wildcard.
const MAX_OTHER_DOMAINS: usize = 200;

/// A call path.
pub struct CallPath {
    /// The caller.
    pub client: Client,
    /// The called address.
    pub dialled: Dialled,
    /// The first proxy, if the call meets one before the workload.
    pub first: Option<First>,
    /// The connection to the workload.
    pub upstream: UpstreamConnection,
    /// The workload; `None`: it is outside the mesh.
    pub server: Option<Arc<Workload>>,
}

/// The decisions of the first proxy.
pub struct First {
    /// The proxy, and the connection to it.
    pub met: ProxyArrival,
    /// The filter chain.
    pub chain: Arc<FilterChain>,
    /// The route, if it is chosen by the request.
    pub route: Option<Routed>,
    /// The cluster.
    pub cluster: Arc<str>,
}

/// A route of a table.
pub struct Routed {
    /// The table.
    pub table: Arc<RouteTable>,
    /// The virtual host.
    pub host: Arc<VirtualHost>,
    /// The number of the route, and of its destination.
    pub at: (usize, usize),
}

/// What a search leaves out, to find out whether that is the reason.
#[derive(Debug, Clone, Default)]
pub struct LeftOut {
    /// Policies by their objects.
    pub policies: Vec<String>,
    /// ALLOW policies need not match.
    pub allow: bool,
}

impl CallPath {
    /// Returns a key that is equal for call paths with the same reason.
    pub fn key(&self) -> String {
        let server = self.server.as_ref().map(|own| (&own.workload_name, &own.namespace));
        let first = self.first.as_ref().map(|first| first.cluster.clone());
        let identity = self.upstream.tls.as_ref().and_then(|tls| tls.identity.as_ref());
        format!("{server:?} {} {first:?} {identity:?} {:?}", self.upstream.to.port(), self.dialled.kind)
    }

    /// Returns a key of what the condition depends on: call paths with the same key are examined once.
    pub fn same(&self) -> String {
        let route = self.first.as_ref().and_then(|first| first.route.as_ref());
        let route = route.map(|routed| (Arc::as_ptr(&routed.table), Arc::as_ptr(&routed.host), routed.at));
        // Only a cluster that leads where the client dialled tells addresses apart, and so does the upstream.
        let chain = self.first.as_ref().map(|first| Arc::as_ptr(&first.chain));
        format!(
            "{} {:?} {route:?} {chain:?} {:?} {:?}",
            self.client.name(),
            self.dialled.kind,
            self.upstream,
            self.dialled.tls
        )
    }

    pub fn given(&self, claim: &Claim, server: Option<&ProxyArrival>) -> KnownRequest {
        // Each proxy on the call path normalizes paths; the result has the normal form of all.
        let own = self.first.as_ref().map(|first| Arc::clone(&first.chain));
        let last = server.and_then(ProxyArrival::served).map(|(_, chain)| chain);
        let normal = own.iter().chain(&last).fold(Normal::default(), |all, chain| match &chain.terminal {
            Terminal::Http(manager) => all.and(rules::normal(manager)),
            Terminal::Tcp(_) => all,
        });
        let port = self.dialled.address.port();
        let with_port = |name: &str| if port == 80 { name.to_owned() } else { format!("{name}:{port}") };
        let liked = [self.dialled.host.as_ref().map(|host| host.as_str()), Some(&*self.dialled.name)];
        let liked = liked.into_iter().flatten().flat_map(|name| [with_port(name), name.to_owned()]).collect();
        KnownRequest {
            method: claim.method.clone(),
            authority: claim.host.as_ref().filter(|_| self.dialled.kind == Kind::Http).map(|host| with_port(host)),
            path: claim.path.clone(),
            normal,
            liked,
        }
    }

    /// The connection as the workload's own proxy sees it; `None`: there is none.
    pub fn at_server(&self, world: &World) -> Option<ProxyArrival> {
        let server = self
            .server
            .as_ref()
            .filter(|server| world.arrives_at_proxy(server, self.upstream.to.port()) || world.is_gateway(server))?;
        let side = if world.is_gateway(server) { Side::Gateway } else { Side::Inbound };
        let source = self.source().unwrap_or(call_paths::OUTSIDE.into());
        let tls = self.upstream.tls.clone();
        Some(ProxyArrival {
            proxy: world.proxy(server),
            side,
            source,
            destination: self.upstream.to,
            tls,
            kind: self.dialled.kind,
        })
    }

    /// Returns the source address of the connection to the workload; `None`: any.
    pub fn source(&self) -> Option<IpAddr> {
        match (&self.client, &self.first) {
            (Client::Workload(own) | Client::Outside(own), _) => own.addresses.first().copied(),
            (Client::Anyone, _) => None,
        }
    }

    /// Whether the workload accepts the connection, as far as its own security decides.
    pub fn is_accepted(&self, world: &World) -> bool {
        let Some(server) = self.at_server(world) else { return true };
        let has = self.upstream.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        server.served().is_some_and(|(_, chain)| has || !chain.tls.as_ref().is_some_and(|tls| tls.is_mutual()))
    }

    /// The condition of the whole call path.
    pub fn expr<'w>(&'w self, claim: &Claim, server: Option<&'w ProxyArrival>, left_out: &LeftOut) -> Expr<'w> {
        let mut all = Vec::new();
        if let Some(first) = &self.first {
            all.extend(self.at_first(first, claim, left_out));
        }
        if let Some(server) = server {
            let Some(own) = self.at_last(server, claim, left_out) else { return Expr::Const(false) };
            all.extend(own);
        }
        Expr::And(all)
    }

    fn at_first<'w>(&'w self, first: &'w First, claim: &Claim, left_out: &LeftOut) -> Vec<Expr<'w>> {
        let is_gateway = first.met.side == Side::Gateway;
        let (manager, request) = match &first.chain.terminal {
            Terminal::Http(manager) => (Some(manager), true),
            Terminal::Tcp(_) => (None, false),
        };
        let remote = match manager {
            Some(manager) if manager.use_remote_address && manager.xff_num_trusted_hops == 0 => Remote::Peer,
            Some(manager) if !manager.use_remote_address && manager.xff_num_trusted_hops == 0 => Remote::Forwarded,
            Some(_) => Remote::Unknown,
            None => Remote::Peer,
        };
        let conn = Conn {
            source: if is_gateway { None } else { Some(first.met.source) },
            local: first.met.destination,
            sni: first.met.tls.as_ref().and_then(|tls| tls.server_name.clone()),
            identity: None,
            remote,
        };
        let judge = |request| self.judge(conn.clone(), request, None, claim, left_out);
        let mut all = filters(&first.chain, &judge(false), request.then(|| judge(true)).as_ref(), left_out);
        if let Some(routed) = &first.route {
            all.push(is_of_host(routed));
            all.push(rules::takes(&routed.host, routed.at.0));
        }
        all
    }

    fn at_last<'w>(&'w self, server: &'w ProxyArrival, claim: &Claim, left_out: &LeftOut) -> Option<Vec<Expr<'w>>> {
        let (_, chain) = server.served()?;
        let chain: &'w FilterChain = self.keep(server, chain)?;
        let ends_tls = chain.tls.is_some();
        let identity = self.upstream.tls.as_ref().and_then(|tls| tls.identity.clone()).filter(|_| ends_tls);
        if chain.tls.as_ref().is_some_and(|tls| tls.is_mutual()) && identity.is_none() {
            return None;
        }
        // The proxy sees no request inside the client's own TLS.
        let sees = self.dialled.kind == Kind::Http && (self.upstream.tls.is_none() || ends_tls);
        let (manager, request) = match &chain.terminal {
            Terminal::Http(manager) if sees => (Some(manager), true),
            Terminal::Http(_) => return None,
            Terminal::Tcp(_) => (None, false),
        };
        let before =
            self.first.as_ref().filter(|first| first.route.is_some()).map(|first| match &first.chain.terminal {
                Terminal::Http(manager) => manager.use_remote_address && !manager.skip_xff_append,
                Terminal::Tcp(_) => false,
            });
        let remote = match (manager, before) {
            (None, _) => Remote::Peer,
            (Some(manager), _) if manager.xff_num_trusted_hops > 0 => Remote::Unknown,
            (Some(manager), _) if manager.use_remote_address => Remote::Peer,
            (Some(_), Some(true)) => {
                let is_outside = matches!(self.client, Client::Outside(_));
                Remote::ClientBefore(if is_outside { None } else { self.source() })
            }
            (Some(_), _) => Remote::Forwarded,
        };
        let sni = self.upstream.tls.as_ref().and_then(|tls| tls.server_name.clone());
        let conn = Conn { source: self.source(), local: self.upstream.to, sni, identity, remote };
        let through = self.first.as_ref().and_then(First::through).map(|through| Through {
            normal: manager.map(|manager| rules::normal(manager)).unwrap_or_default(),
            ..through
        });
        let judge = |request| self.judge(conn.clone(), request, through, claim, left_out);
        Some(filters(chain, &judge(false), request.then(|| judge(true)).as_ref(), left_out))
    }

    /// The chain with the life of the call path: the proxy that is met holds it.
    fn keep<'w>(&self, server: &'w ProxyArrival, chain: Arc<FilterChain>) -> Option<&'w FilterChain> {
        let listener = hop::listener(&server.proxy, server.side, server.destination)?;
        let all = listener.filter_chains.iter().chain(&listener.default_filter_chain);
        all.into_iter().find(|own| Arc::ptr_eq(own, &chain)).map(|own| &**own)
    }

    fn judge<'w>(
        &self,
        conn: Conn,
        request: bool,
        through: Option<Through<'w>>,
        claim: &Claim,
        left_out: &LeftOut,
    ) -> Judge<'w> {
        Judge {
            conn,
            request,
            through,
            without: left_out.policies.clone(),
            without_tokens: claim.without_jwt,
            plain: claim.path.is_none(),
        }
    }
}

impl First {
    fn through(&self) -> Option<Through<'_>> {
        let routed = self.route.as_ref()?;
        let route = routed.host.routes.get(routed.at.0)?;
        let RouteAction::Forward(action) = &route.action else { return None };
        let entry = action.clusters.get(routed.at.1)?;
        let levels: [&HeaderEdits; 4] = if routed.table.most_specific_wins {
            [&routed.table.headers, &routed.host.headers, &route.headers, &entry.headers]
        } else {
            [&entry.headers, &route.headers, &routed.host.headers, &routed.table.headers]
        };
        Some(Through { route, action, edits: levels, host: entry.host_rewrite.as_deref(), normal: Normal::default() })
    }
}

/// Returns the conditions of a chain's filters.
fn filters<'w>(
    chain: &'w FilterChain,
    connection: &Judge<'w>,
    request: Option<&Judge<'w>>,
    left_out: &LeftOut,
) -> Vec<Expr<'w>> {
    let mut all = Vec::new();
    let mut add = |filter: &'w RbacFilter, judge: &Judge<'w>| {
        let is_allow = filter.rules.as_ref().is_some_and(|rules| rules.action == RbacAction::Allow);
        if !(is_allow && left_out.allow) {
            all.push(rules::passes(filter, judge));
        }
    };
    let mut judge = |verdict: FilterVerdict<'w>, judge: &Judge<'w>| match verdict {
        FilterVerdict::Policy(FilterPolicy::Rules(rules)) => add(rules, judge),
        // Where the claim does not exclude tokens, a request has those that it needs. What decides outside lets it pass: the trial of a
        // request that gets through names who that is.
        FilterVerdict::Policy(FilterPolicy::Tokens) | FilterVerdict::Never | FilterVerdict::Outside => {}
    };
    for filter in &chain.network_filters {
        judge(network_verdict(&filter.config), connection);
    }
    if let (Terminal::Http(manager), Some(request)) = (&chain.terminal, request) {
        for filter in &manager.filters {
            judge(http_verdict(&filter.config), request);
        }
    }
    all
}

/// Whether the authority is one of the virtual host's.
fn is_of_host(routed: &Routed) -> Expr<'_> {
    let Routed { table, host, .. } = routed;
    let with_port = |language: Language| {
        if table.ignore_port_in_host_matching { Language::Host(Box::new(language)) } else { language }
    };
    let domain = |domain: &str| {
        let text = |text: &str| Text::new(text.as_bytes(), true);
        with_port(match (domain.strip_prefix('*'), domain.strip_suffix('*')) {
            (Some(suffix), _) => Language::Suffix(text(suffix)),
            (None, Some(prefix)) => Language::Prefix(text(prefix)),
            (None, None) => Language::Exact(text(domain)),
        })
    };
    let mut languages: Vec<Language> = host.domains.iter().map(|own| domain(own)).collect();
    let is_wild = host.domains.iter().any(|own| own.contains('*'));
    let others = table.virtual_hosts.iter().filter(|other| !Arc::ptr_eq(other, host)).flat_map(|other| &other.domains);
    let others: Vec<_> = others.filter(|_| is_wild).take(MAX_OTHER_DOMAINS + 1).collect();
    let is_complete = others.len() <= MAX_OTHER_DOMAINS;
    languages.extend(others.iter().take(MAX_OTHER_DOMAINS).map(|own| domain(own)));
    let holds = move |value: &Value| {
        let Value::Text(authority) = value else { return None };
        let is_it = table.find_virtual_host(authority.as_bytes()).is_some_and(|found| Arc::ptr_eq(found, host));
        (is_it || is_complete).then_some(is_it)
    };
    Expr::Test(Name::Authority, Parts::Languages(languages), Box::new(holds))
}
