//! One way from a caller to a workload: its condition, the search for a request that meets it, and the trial of what is found.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evenkeel_model::Workload;
use evenkeel_runtime_config::hcm::{HttpFilterConfig, RouteSource};
use evenkeel_runtime_config::header_edits::HeaderEdits;
use evenkeel_runtime_config::listener::{FilterChain, NetworkFilterConfig, Terminal};
use evenkeel_runtime_config::route::{RouteAction, VirtualHost};
use evenkeel_runtime_config::route_table::RouteTable;
use evenkeel_runtime_config::view::PlainRequest;
use evenkeel_runtime_config::{Config, HttpConnectionManager};
use evenkeel_translate::names::BLACK_HOLE_CLUSTER;

use super::language::{Language, Normal, Text};
use super::rules::{self, Conn, Judge, Remote, Through};
use super::space::{Expr, Given, Name, Parts, Space, Value};
use super::ways::{self, Client, Dialled, Kind, Leg, Met};
use super::{Claim, Party, Proof, Witness};
use crate::answer::{Hop, Outcome};
use crate::hop::{self, Arrival, CLIENT_PORT, Side};
use crate::world::World;

/// Requests that are tried on one way before it is given up, in requests.
const MAX_TRIALS: usize = 32;
/// Random draws that are tried for one request, in draws.
const MAX_DRAWS: u64 = 64;
/// Most domains of other virtual hosts that are told apart from a wildcard, in domains.
const MAX_OTHER_DOMAINS: usize = 200;

/// A way.
pub struct Way {
    /// Who calls.
    pub client: Client,
    /// What is called.
    pub dialled: Dialled,
    /// The first proxy, if the call meets one before the workload.
    pub first: Option<First>,
    /// The connection to the workload.
    pub leg: Leg,
    /// The workload; `None`: it is outside the mesh.
    pub server: Option<Arc<Workload>>,
}

/// What the first proxy does.
pub struct First {
    /// The proxy, and the connection to it.
    pub met: Met,
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

/// What a search has found.
pub enum Found {
    /// A request.
    Witness(Box<Witness>),
    /// There is none.
    Nothing,
    /// That is not decided, for this reason.
    Undecided(String),
}

/// All ways of a client to the targets; without targets, to hosts outside the mesh.
pub fn of(world: &World, claim: &Claim, client: &Client, targets: &[Arc<Workload>], proof: &mut Proof) -> Vec<Way> {
    match client {
        Client::Anyone => targets.iter().flat_map(|target| of_anyone(world, claim, target)).collect(),
        Client::Outside(gateway) => of_outside(world, claim, (client, gateway), targets, proof),
        Client::Workload(workload) => of_workload(world, claim, (client, workload), targets, proof),
    }
}

fn of_anyone(world: &World, claim: &Claim, target: &Arc<Workload>) -> Vec<Way> {
    let dialled = ways::dialled(world, std::slice::from_ref(target), (claim.host.as_deref(), claim.port));
    let is_own = |dialled: &Dialled| target.addresses.contains(&dialled.address.ip());
    dialled
        .into_iter()
        .filter(is_own)
        .map(|dialled| Way {
            client: Client::Anyone,
            leg: Leg { to: dialled.address, tls: dialled.tls.clone() },
            dialled,
            first: None,
            server: Some(Arc::clone(target)),
        })
        .collect()
}

fn of_workload(
    world: &World,
    claim: &Claim,
    (client, workload): (&Client, &Arc<Workload>),
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<Way> {
    let mut all = Vec::new();
    let mut dialled = ways::dialled(world, targets, (claim.host.as_deref(), claim.port));
    if claim.to == Party::Outside {
        dialled.extend(ways::elsewhere(claim));
    }
    // Those that lead to a target by their name come first: a witness is best called as people do.
    let leads = |dialled: &Dialled| {
        let service = dialled.host.as_ref().and_then(|host| world.snapshot.services_of(host.as_str()).first());
        let endpoints =
            service.map(|service| world.snapshot.endpoints(service, dialled.address.port())).unwrap_or_default();
        endpoints.iter().any(|endpoint| {
            let address = endpoint.address.clone();
            targets
                .iter()
                .any(|target| target.addresses.iter().any(|own| address == evenkeel_model::EndpointAddress::Ip(*own)))
        })
    };
    dialled.sort_by_cached_key(|dialled| (dialled.kind != Kind::Http, !leads(dialled)));
    for dialled in dialled {
        if !ways::leaves_through_proxy(world, workload, dialled.address) {
            for to in world.without_proxy_all(dialled.host.as_ref(), dialled.address) {
                let Some(server) = target_at(world, targets, to) else { continue };
                let leg = Leg { to, tls: dialled.tls.clone() };
                all.push(Way { client: client.clone(), dialled: dialled.clone(), first: None, leg, server });
            }
            continue;
        }
        let met = |world: &World| Met {
            proxy: world.proxy(workload),
            side: Side::Outbound,
            source: workload.addresses.first().copied().unwrap_or(ways::OUTSIDE.into()),
            destination: dialled.address,
            tls: dialled.tls.clone(),
            kind: dialled.kind,
        };
        all.extend(through(world, (client, &dialled), &met, targets, proof));
    }
    all
}

fn of_outside(
    world: &World,
    claim: &Claim,
    (client, gateway): (&Client, &Arc<Workload>),
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<Way> {
    let proxy = world.proxy(gateway);
    let address = gateway.addresses.first().copied().unwrap_or(ways::OUTSIDE.into());
    let mut all = Vec::new();
    let servers = world.snapshot.gateways_for(&gateway.labels);
    let ports: Vec<u16> = servers.iter().flat_map(|gateway| gateway.servers.iter().map(|server| server.port)).collect();
    for port in ports.into_iter().collect::<std::collections::BTreeSet<_>>() {
        if claim.port.is_some_and(|wanted| wanted != port) {
            continue;
        }
        let destination = SocketAddr::new(address, port);
        let Some(listener) = hop::listener(&proxy, Side::Gateway, destination) else { continue };
        for tls in ways::gateway_clients(listener) {
            for kind in [Kind::Http, Kind::Bytes, Kind::Tls] {
                if (kind == Kind::Tls) != tls.is_some() && kind != Kind::Http {
                    continue;
                }
                let name = claim.host.clone().or_else(|| tls.as_ref()?.server_name.clone());
                let name = name.unwrap_or_else(|| address.to_string());
                let dialled = Dialled { address: destination, host: None, name, kind, tls: tls.clone() };
                let met = |world: &World| Met {
                    proxy: world.proxy(gateway),
                    side: Side::Gateway,
                    source: ways::OUTSIDE.into(),
                    destination,
                    tls: dialled.tls.clone(),
                    kind,
                };
                all.extend(through(world, (client, &dialled), &met, targets, proof));
            }
        }
    }
    all
}

/// The ways through a first proxy.
fn through(
    world: &World,
    (client, dialled): (&Client, &Dialled),
    met: &dyn Fn(&World) -> Met,
    targets: &[Arc<Workload>],
    proof: &mut Proof,
) -> Vec<Way> {
    let first = met(world);
    let Some((_, chain)) = first.served() else { return Vec::new() };
    let config = Arc::clone(&first.proxy.config);
    let mut leads: Vec<(Option<Routed>, Arc<str>)> = Vec::new();
    match &chain.terminal {
        Terminal::Tcp(proxy) => {
            let is_used = |weight: u32| weight > 0 || proxy.clusters.len() == 1;
            leads
                .extend(proxy.clusters.iter().filter(|own| is_used(own.weight)).map(|own| (None, own.cluster.clone())));
        }
        Terminal::Http(_) if dialled.kind != Kind::Http => {}
        Terminal::Http(manager) => {
            let Some(table) = table_of(&config, manager) else { return Vec::new() };
            for host in &table.virtual_hosts {
                for (number, route) in host.routes.iter().enumerate() {
                    let RouteAction::Forward(action) = &route.action else { continue };
                    let is_used = |weight: u32| weight > 0 || action.clusters.len() == 1;
                    for (entry, own) in action.clusters.iter().enumerate().filter(|(_, own)| is_used(own.weight)) {
                        let routed = Routed { table: Arc::clone(&table), host: Arc::clone(host), at: (number, entry) };
                        leads.push((Some(routed), own.cluster.clone()));
                    }
                }
            }
        }
    }
    let mut all = Vec::new();
    for (route, cluster) in leads {
        let Some(compiled) = config.clusters.get(&*cluster).filter(|_| *cluster != *BLACK_HOLE_CLUSTER) else {
            continue;
        };
        let is_http = route.is_some();
        let own = dialled.tls.as_ref().filter(|_| chain.tls.is_none());
        for leg in ways::legs(world, &first.proxy, compiled, (dialled.address, is_http), own) {
            let Some(server) = target_at(world, targets, leg.to) else {
                note_gateway(world, &leg, proof);
                continue;
            };
            let route = route.as_ref().map(|own| Routed {
                table: Arc::clone(&own.table),
                host: Arc::clone(&own.host),
                at: own.at,
            });
            let first = First { met: met(world), chain: Arc::clone(&chain), route, cluster: cluster.clone() };
            all.push(Way { client: client.clone(), dialled: dialled.clone(), first: Some(first), leg, server });
        }
    }
    all
}

/// A way over a further gateway is not followed.
fn note_gateway(world: &World, leg: &Leg, proof: &mut Proof) {
    let Some(gateway) = world.snapshot.workload_at(leg.to.ip()).filter(|own| world.is_gateway(own)) else { return };
    let note = format!("ways over the gateway {}.{} are not followed", gateway.workload_name, gateway.namespace);
    if !proof.gateways.iter().any(|(known, _)| Arc::ptr_eq(known, gateway)) {
        proof.gateways.push((Arc::clone(gateway), note));
    }
}

/// The target at an address: a workload, or what is outside the mesh.
fn target_at(world: &World, targets: &[Arc<Workload>], to: SocketAddr) -> Option<Option<Arc<Workload>>> {
    let found = world.snapshot.workload_at(to.ip());
    match targets.is_empty() {
        true => found.is_none().then_some(None),
        false => {
            targets.iter().find(|target| target.addresses.contains(&to.ip())).map(|target| Some(Arc::clone(target)))
        }
    }
}

fn table_of(config: &Config, manager: &HttpConnectionManager) -> Option<Arc<RouteTable>> {
    match &manager.routes {
        RouteSource::Static(table) => Some(Arc::clone(table)),
        RouteSource::Rds(name) => config.routes.get(&**name).cloned(),
    }
}

/// What a search leaves out, to find out whether that is the reason.
#[derive(Debug, Clone, Default)]
pub struct LeftOut {
    /// Policies by their objects.
    pub policies: Vec<String>,
    /// ALLOW policies need not match.
    pub allow: bool,
}

impl Way {
    /// What decides whether two ways have the same reason.
    pub fn key(&self) -> String {
        let server = self.server.as_ref().map(|own| (&own.workload_name, &own.namespace));
        let first = self.first.as_ref().map(|first| first.cluster.clone());
        let identity = self.leg.tls.as_ref().and_then(|tls| tls.identity.as_ref());
        format!("{server:?} {} {first:?} {identity:?} {:?}", self.leg.to.port(), self.dialled.kind)
    }

    /// What the condition depends on: ways that do not differ in it are looked at once.
    pub fn same(&self) -> String {
        let route = self.first.as_ref().and_then(|first| first.route.as_ref());
        let route = route.map(|routed| (Arc::as_ptr(&routed.table), Arc::as_ptr(&routed.host), routed.at));
        // Only a cluster that leads where the client dialled tells addresses apart, and so does the leg.
        let chain = self.first.as_ref().map(|first| Arc::as_ptr(&first.chain));
        format!(
            "{} {:?} {route:?} {chain:?} {:?} {:?}",
            self.client.name(),
            self.dialled.kind,
            self.leg,
            self.dialled.tls
        )
    }

    /// Searches for a request that gets through.
    pub fn search(&self, world: &World, claim: &Claim) -> Found {
        let space;
        let formula;
        {
            let server = self.at_server(world);
            let expr = self.expr(claim, server.as_ref(), &LeftOut::default());
            if matches!(expr, Expr::Const(false)) {
                return Found::Nothing;
            }
            let given = self.given(claim, server.as_ref());
            space = match Space::new(&expr, &given) {
                Ok(space) => space,
                Err(error) => return Found::Undecided(error.to_string()),
            };
            formula = space.formula(&expr);
        }
        let mut all = vec![formula];
        for _ in 0..MAX_TRIALS {
            let conditions = super::formula::Formula::And(all.clone());
            match conditions.solve(&space.counts()) {
                Err(error) => return Found::Undecided(error.to_string()),
                Ok(None) if all.len() == 1 => return Found::Nothing,
                Ok(None) => break,
                Ok(Some(classes)) => {
                    let values = space.values(&classes);
                    if let Some(witness) = self.tried(world, &values) {
                        return Found::Witness(Box::new(witness));
                    }
                    all.push(space.except(&classes));
                }
            }
        }
        Found::Undecided(format!(
            "{} to {}: policies allow requests there, but something else decides about them (a token, a header that \
             proxies make, chance, a path that is rewritten to another form)",
            self.client.name(),
            self.leg.to
        ))
    }

    /// Whether there is a request, with some policies left out; what nobody knows counts as met.
    pub fn is_open(&self, world: &World, claim: &Claim, left_out: &LeftOut) -> bool {
        let server = self.at_server(world);
        let expr = self.expr(claim, server.as_ref(), left_out);
        let Ok(space) = Space::new(&expr, &self.given(claim, server.as_ref())) else { return true };
        let formula = space.formula(&expr);
        !matches!(formula.solve(&space.counts()), Ok(None))
    }

    fn given(&self, claim: &Claim, server: Option<&Met>) -> Given {
        // Each proxy on the way brings paths to its form; what is left is in the form of all.
        let own = self.first.as_ref().map(|first| Arc::clone(&first.chain));
        let last = server.and_then(Met::served).map(|(_, chain)| chain);
        let normal = own.iter().chain(&last).fold(Normal::default(), |all, chain| match &chain.terminal {
            Terminal::Http(manager) => all.and(rules::normal(manager)),
            Terminal::Tcp(_) => all,
        });
        let port = self.dialled.address.port();
        let with_port = |name: &str| if port == 80 { name.to_owned() } else { format!("{name}:{port}") };
        let liked = [self.dialled.host.as_ref().map(|host| host.as_str()), Some(&*self.dialled.name)];
        let liked = liked.into_iter().flatten().flat_map(|name| [with_port(name), name.to_owned()]).collect();
        Given {
            method: claim.method.clone(),
            authority: claim.host.as_ref().filter(|_| self.dialled.kind == Kind::Http).map(|host| with_port(host)),
            path: claim.path.clone(),
            normal,
            liked,
        }
    }

    /// The connection as the workload's own proxy sees it; `None`: there is none.
    pub fn at_server(&self, world: &World) -> Option<Met> {
        let server = self
            .server
            .as_ref()
            .filter(|server| ways::arrives_at_proxy(world, server, self.leg.to.port()) || world.is_gateway(server))?;
        let side = if world.is_gateway(server) { Side::Gateway } else { Side::Inbound };
        let source = self.source().unwrap_or(ways::OUTSIDE.into());
        let tls = self.leg.tls.clone();
        Some(Met { proxy: world.proxy(server), side, source, destination: self.leg.to, tls, kind: self.dialled.kind })
    }

    /// Where the connection to the workload comes from; `None`: from anywhere.
    fn source(&self) -> Option<IpAddr> {
        match (&self.client, &self.first) {
            (Client::Workload(own) | Client::Outside(own), _) => own.addresses.first().copied(),
            (Client::Anyone, _) => None,
        }
    }

    /// Whether the workload accepts the connection, as far as its own security decides.
    pub fn is_accepted(&self, world: &World) -> bool {
        let Some(server) = self.at_server(world) else { return true };
        let has = self.leg.tls.as_ref().is_some_and(|tls| tls.identity.is_some());
        server.served().is_some_and(|(_, chain)| has || !chain.tls.as_ref().is_some_and(|tls| tls.is_mutual()))
    }

    /// The condition of the whole way.
    fn expr<'w>(&'w self, claim: &Claim, server: Option<&'w Met>, left_out: &LeftOut) -> Expr<'w> {
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

    fn at_last<'w>(&'w self, server: &'w Met, claim: &Claim, left_out: &LeftOut) -> Option<Vec<Expr<'w>>> {
        let (_, chain) = server.served()?;
        let chain: &'w FilterChain = self.keep(server, chain)?;
        let ends_tls = chain.tls.is_some();
        let identity = self.leg.tls.as_ref().and_then(|tls| tls.identity.clone()).filter(|_| ends_tls);
        if chain.tls.as_ref().is_some_and(|tls| tls.is_mutual()) && identity.is_none() {
            return None;
        }
        // Inside the client's own TLS nobody sees a request.
        let sees = self.dialled.kind == Kind::Http && (self.leg.tls.is_none() || ends_tls);
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
        let sni = self.leg.tls.as_ref().and_then(|tls| tls.server_name.clone());
        let conn = Conn { source: self.source(), local: self.leg.to, sni, identity, remote };
        let through = self.first.as_ref().and_then(First::through).map(|through| Through {
            normal: manager.map(|manager| rules::normal(manager)).unwrap_or_default(),
            ..through
        });
        let judge = |request| self.judge(conn.clone(), request, through, claim, left_out);
        Some(filters(chain, &judge(false), request.then(|| judge(true)).as_ref(), left_out))
    }

    /// The chain with the life of the way: the proxy that is met holds it.
    fn keep<'w>(&self, server: &'w Met, chain: Arc<FilterChain>) -> Option<&'w FilterChain> {
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
        Judge { conn, request, through, without: left_out.policies.clone(), without_tokens: claim.without_jwt }
    }

    /// Tries a request with the proxies' own decision.
    fn tried(&self, world: &World, values: &std::collections::BTreeMap<Name, Value>) -> Option<Witness> {
        let text = |name: Name| match values.get(&name) {
            Some(Value::Text(text)) => text.clone(),
            _ => String::new(),
        };
        let (method, authority, path) = (text(Name::Method), text(Name::Authority), text(Name::Path));
        let mut request = PlainRequest::new(&method, &authority, &path);
        let mut headers = Vec::new();
        for (name, value) in values {
            if let (Name::Header(name), Value::Lines(lines)) = (name, value) {
                for line in lines {
                    request = request.with_header(name, line);
                    headers.push((name.to_string(), line.clone()));
                }
            }
        }
        let source = match values.get(&Name::Client) {
            Some(Value::Address(address)) => Some(*address),
            _ => None,
        };
        if self.dialled.tls.is_some() {
            request.scheme = "https".to_owned();
        }
        let request = (self.dialled.kind == Kind::Http).then_some(request);
        let draws = if self.first.is_some() { MAX_DRAWS } else { 1 };
        let (hop, draw) =
            (0..draws).find_map(|draw| Some((self.walked(world, request.clone(), (source, draw))?, draw)))?;
        let allowed_by =
            hop.and_then(|hop| hop.policies.into_iter().find(|policy| policy.action == "ALLOW" && policy.decides));
        let allowed_by = allowed_by.map(|policy| match policy.source.position() {
            Some(position) => format!("{}, {position}", policy.source.object),
            None => policy.source.object,
        });
        Some(self.witness((method, authority, path, headers), (source, draw), allowed_by))
    }

    /// Takes a request all the way. `None`: it does not get through. The result is what the workload's own proxy said.
    fn walked(
        &self,
        world: &World,
        request: Option<PlainRequest>,
        (source, draw): (Option<IpAddr>, u64),
    ) -> Option<Option<Hop>> {
        let passed = |hop: &Hop| hop.verdict.outcome == Outcome::Forward && hop.verdict.status.is_none();
        let mut arrival = Arrival {
            source: SocketAddr::new(source.unwrap_or(ways::OUTSIDE.into()), CLIENT_PORT),
            destination: self.dialled.address,
            tls: self.dialled.tls.clone(),
            request,
            host: self.dialled.host.clone(),
            random: 0,
        };
        if let Some(first) = &self.first {
            if first.met.side == Side::Outbound {
                arrival.source = SocketAddr::new(first.met.source, CLIENT_PORT);
            }
            arrival.random = first.draw(draw)?;
            let (hop, departure) = hop::take(world, &first.met.proxy, first.met.side, &arrival);
            let leads = hop.clusters.iter().any(|cluster| cluster.chosen && cluster.name == *first.cluster);
            if !passed(&hop) || !leads {
                return None;
            }
            arrival.request = departure?.request;
        }
        arrival.destination = self.leg.to;
        arrival.tls.clone_from(&self.leg.tls);
        if let Some(source) = self.source() {
            arrival.source = SocketAddr::new(source, CLIENT_PORT);
        }
        let Some(server) = self.at_server(world) else { return Some(None) };
        let needs = server.served()?.1.tls.as_ref().is_some_and(|tls| tls.is_mutual());
        if needs && self.leg.tls.as_ref().is_none_or(|tls| tls.identity.is_none()) {
            return None;
        }
        let (hop, _) = hop::take(world, &server.proxy, server.side, &arrival);
        passed(&hop).then_some(Some(hop))
    }

    fn witness(
        &self,
        (method, authority, path, headers): (String, String, String, Vec<(String, String)>),
        (source, draw): (Option<IpAddr>, u64),
        allowed_by: Option<String>,
    ) -> Witness {
        let Dialled { address, name, kind, tls, .. } = &self.dialled;
        let is_plain = tls.is_none();
        let default = if is_plain { 80 } else { 443 };
        let scheme = if is_plain { "http" } else { "https" };
        let shown = match self.client {
            Client::Outside(_) => {
                tls.as_ref().and_then(|tls| tls.server_name.clone()).unwrap_or_else(|| host_of(&authority))
            }
            _ => name.clone(),
        };
        let at = if address.port() == default { shown.clone() } else { format!("{shown}:{}", address.port()) };
        let url = match kind {
            Kind::Http => format!("{scheme}://{at}{path}"),
            Kind::Bytes => format!("tcp://{at}"),
            Kind::Tls => format!("tls://{at}"),
        };
        let implied = if address.port() == default { shown.clone() } else { format!("{shown}:{}", address.port()) };
        let mut all = headers.clone();
        if *kind == Kind::Http && authority != implied {
            all.insert(0, ("Host".to_owned(), authority.clone()));
        }
        let options: String =
            all.iter().map(|(name, value)| format!(" -H {}", quoted(&format!("{name}: {value}")))).collect();
        let method_option = if method == "GET" { String::new() } else { format!(" -X {}", quoted(&method)) };
        let (prefix, resolve) = match &self.client {
            Client::Workload(own) => {
                (format!("evenkeel exec {} -n {} -- ", own.workload_name, own.namespace), String::new())
            }
            Client::Outside(_) if tls.is_some() => {
                (String::new(), format!(" -k --resolve {shown}:{}:GATEWAY", address.port()))
            }
            Client::Outside(_) => (String::new(), format!(" --connect-to ::GATEWAY:{}", address.port())),
            Client::Anyone => (String::new(), String::new()),
        };
        let curl = match kind {
            Kind::Http => format!("{prefix}curl -sS --path-as-is{method_option}{options}{resolve} {}", quoted(&url)),
            Kind::Bytes => format!("{prefix}curl -sS {}", quoted(&format!("telnet://{at}"))),
            Kind::Tls => format!("{prefix}curl -sSk {}", quoted(&format!("https://{at}/"))),
        };
        let from = match &self.client {
            Client::Workload(own) => Some(format!("--from {}.{}", own.workload_name, own.namespace)),
            Client::Outside(_) => Some("--from-outside".to_owned()),
            Client::Anyone => None,
        };
        let random = if draw == 0 {
            String::new()
        } else {
            format!(" --random {}", self.first.as_ref().and_then(|first| first.draw(draw)).unwrap_or(draw))
        };
        let explain = from.map(|from| match kind {
            Kind::Http => format!("evenkeel explain {from} --url {}{method_option}{options}{random}", quoted(&url)),
            Kind::Bytes => format!("evenkeel explain {from} --tcp {at}{random}"),
            Kind::Tls => format!("evenkeel explain {from} --tcp {at} --tls{random}"),
        });
        Witness {
            from: self.client.name(),
            to: self
                .server
                .as_ref()
                .map_or_else(|| self.leg.to.to_string(), |own| format!("{}.{}", own.pod, own.namespace)),
            kind: match kind {
                Kind::Http => "http",
                Kind::Bytes => "bytes",
                Kind::Tls => "tls",
            },
            method,
            url,
            authority,
            headers,
            source: source.map(|source| source.to_string()),
            transport: ways::secured(self.leg.tls.as_ref()),
            allowed_by,
            curl,
            explain,
        }
    }
}

impl First {
    fn through(&self) -> Option<Through<'_>> {
        let routed = self.route.as_ref()?;
        let route = routed.host.routes.get(routed.at.0)?;
        let RouteAction::Forward(action) = &route.action else { return None };
        let entry = action.clusters.get(routed.at.1)?;
        let levels: [&HeaderEdits; 4] = match routed.table.most_specific_wins {
            true => [&routed.table.headers, &routed.host.headers, &route.headers, &entry.headers],
            false => [&entry.headers, &route.headers, &routed.host.headers, &routed.table.headers],
        };
        Some(Through { route, action, edits: levels, host: entry.host_rewrite.as_deref(), normal: Normal::default() })
    }

    /// The random number to try: first one that chooses the destination, then others.
    fn draw(&self, draw: u64) -> Option<u64> {
        let before = |weights: &mut dyn Iterator<Item = u32>| -> u64 { weights.map(u64::from).sum() };
        let at = match (&self.route, &self.chain.terminal) {
            (Some(routed), _) => {
                let RouteAction::Forward(action) = &routed.host.routes.get(routed.at.0)?.action else { return None };
                let total = u64::from(action.total_weight.max(1));
                let start = before(&mut action.clusters.iter().take(routed.at.1).map(|own| own.weight));
                start + draw.checked_mul(total)?
            }
            (None, Terminal::Tcp(proxy)) => {
                let total: u64 = before(&mut proxy.clusters.iter().map(|own| own.weight)).max(1);
                let number = proxy.clusters.iter().position(|own| own.cluster == self.cluster)?;
                before(&mut proxy.clusters.iter().take(number).map(|own| own.weight)) + draw.checked_mul(total)?
            }
            (None, Terminal::Http(_)) => draw,
        };
        Some(at)
    }
}

/// What the filters of a chain ask.
fn filters<'w>(
    chain: &'w FilterChain,
    connection: &Judge<'w>,
    request: Option<&Judge<'w>>,
    left_out: &LeftOut,
) -> Vec<Expr<'w>> {
    let mut all = Vec::new();
    let mut add = |filter: &'w evenkeel_runtime_config::rbac::RbacFilter, judge: &Judge<'w>| {
        let is_allow =
            filter.rules.as_ref().is_some_and(|rules| rules.action == evenkeel_runtime_config::rbac::RbacAction::Allow);
        if !(is_allow && left_out.allow) {
            all.push(rules::passes(filter, judge));
        }
    };
    for filter in &chain.network_filters {
        if let NetworkFilterConfig::Rbac(rbac) = &filter.config {
            add(&rbac.filter, connection);
        }
    }
    if let (Terminal::Http(manager), Some(judge)) = (&chain.terminal, request) {
        for filter in &manager.filters {
            if let HttpFilterConfig::Rbac(rbac) = &filter.config {
                add(rbac, judge);
            }
        }
    }
    all
}

/// Whether the authority is one of the virtual host's.
fn is_of_host(routed: &Routed) -> Expr<'_> {
    let Routed { table, host, .. } = routed;
    let with_port = |language: Language| match table.ignore_port_in_host_matching {
        true => Language::Host(Box::new(language)),
        false => language,
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

fn host_of(authority: &str) -> String {
    String::from_utf8_lossy(evenkeel_runtime_config::route_match::without_port(authority.as_bytes())).into_owned()
}

/// A word for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+=,".contains(c);
    match !text.is_empty() && text.chars().all(is_plain) {
        true => text.to_owned(),
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}
