//! What becomes of datagrams: at a gateway they go to the backends of its oldest UDPRoute; sidecars do not see them.

use std::net::SocketAddr;
use std::sync::Arc;

use evenkeel_model::{
    DestinationState, EndpointAddress, GatewayRef, L4Route, RouteSet, Server, ServerProtocol, WeightedDestination,
    Workload,
};
use evenkeel_runtime_config::address::EndpointAddress as HostAddress;
use evenkeel_runtime_config::listener::Listener;

use crate::answer::{Answer, Call, Cluster, Considered, Endpoint, Hop, Outcome, Route, Verdict};
use crate::arrival::{OUTSIDE, Side};
use crate::hop::{self, below_1024};
use crate::names::{self, Resolved};
use crate::place::Source;
use crate::proxy::Proxy;
use crate::question::{Caller, Question, QuestionError};
use crate::world::World;

/// A route at a listener.
type Attached<'a> = (&'a Arc<RouteSet>, &'a L4Route);

impl World {
    /// Answers a question about datagrams.
    pub(crate) fn asked_about_datagrams(&self, question: &Question) -> Result<Answer, QuestionError> {
        match &question.from {
            Caller::Outside => {
                let (gateway, port, published) = self.gateway_of(&question.target)?;
                let how = self.how_reached(&gateway, port, published);
                let address = gateway.addresses.first().copied().unwrap_or(OUTSIDE.into());
                let to = SocketAddr::new(address, port);
                let mut answer = answer(question, to, how);
                self.at_gateway(&gateway, to, question.random, &mut answer);
                Ok(answer)
            }
            Caller::Workload { name, namespace } => {
                let workload = self.find(name, namespace.as_deref())?;
                Ok(self.asked_by_sender(question, &workload))
            }
        }
    }

    /// The cluster's own network carries the datagrams of a workload.
    fn asked_by_sender(&self, question: &Question, workload: &Arc<Workload>) -> Answer {
        let (target, port) = (&question.target, question.target.port());
        let resolved: Resolved = names::resolve(target.host(), workload, None, &self.snapshot);
        let mut answer = answer(question, SocketAddr::new(resolved.address, port), resolved.how);
        let name = format!("{}.{}", workload.pod, workload.namespace);
        answer.notes.push(format!("{name}: sidecars capture no datagrams, so that the mesh does not route them"));
        let service = resolved.service.as_ref().filter(|service| !service.headless);
        let to = match service {
            None => SocketAddr::new(resolved.address, port),
            Some(service) => {
                let endpoints = self.snapshot.udp_endpoints(service, port).iter().filter(|endpoint| endpoint.ready);
                let first = endpoints.filter_map(|endpoint| match endpoint.address {
                    EndpointAddress::Ip(ip) => Some(SocketAddr::new(ip, endpoint.port)),
                    _ => None,
                });
                let Some(to) = first.into_iter().next() else {
                    let reason = format!(
                        "the Service {}/{} has no ready endpoint on its port {port} of UDP",
                        service.namespace, service.name
                    );
                    answer.verdict = dropped(None, reason);
                    return answer;
                };
                to
            }
        };
        match self.snapshot.workload_at(to.ip()).filter(|reached| self.is_gateway(reached)) {
            Some(gateway) => self.at_gateway(&Arc::clone(gateway), to, question.random, &mut answer),
            None => answer.verdict.reason = format!("they reach {to} without a proxy"),
        }
        answer
    }

    /// Datagrams that arrive at a gateway.
    fn at_gateway(&self, gateway: &Arc<Workload>, to: SocketAddr, random: u64, answer: &mut Answer) {
        let proxy = self.proxy(gateway);
        let mut hop =
            Hop { proxy: hop::name(Side::Gateway, gateway), arrives: format!("datagrams to {to}"), ..Hop::default() };
        match listener(&proxy, to.port()) {
            None => {
                let reason = format!("the gateway has no listener of UDP on port {}", to.port());
                hop.verdict = dropped(None, reason);
            }
            Some(listener) => self.at_listener(&proxy, listener, random, &mut hop),
        }
        hop::add_refused(&proxy, &mut hop);
        answer.verdict = hop.verdict.clone();
        answer.hops.push(hop);
    }

    fn at_listener(&self, proxy: &Proxy, listener: &Listener, random: u64, hop: &mut Hop) {
        hop.listener = Some(listener.name.to_string());
        let routes = self.routes_at(proxy, listener);
        let Some(((set, route), others)) = routes.split_first() else {
            let counter = format!("udp.{}.downstream_sess_no_route", listener.name);
            hop.verdict = dropped(Some("NR"), format!("no UDPRoute attaches to the listener; {counter} counts"));
            return;
        };
        hop.route = Some(Route { name: String::new(), source: Some(Source::at(object(set), &route.origin)) });
        hop.considered = others.iter().map(|(set, route)| later(set, route)).collect();
        let Some(cluster) = listener.udp.as_ref().and_then(|udp| udp.cluster.as_ref()) else {
            hop.verdict = self.closed(&proxy.workload);
            return;
        };
        let compiled = proxy.config.clusters.get(&**cluster);
        let hosts = compiled.map(|compiled| &*compiled.endpoints.hosts).unwrap_or_default();
        let total: u64 = route.destinations.iter().map(|to| u64::from(to.weight)).sum();
        let mut drawn = random % total.max(1);
        let mut is_open = true;
        for (at, to) in route.destinations.iter().enumerate() {
            let chosen = is_open && drawn < u64::from(to.weight);
            is_open &= !chosen;
            drawn = drawn.saturating_sub(u64::from(to.weight));
            // Each backend is a locality of the cluster.
            let own = hosts.iter().filter(|host| host.locality.split('/').nth(1) == Some(at.to_string().as_str()));
            let endpoints: Vec<Endpoint> = own.filter_map(|host| self.endpoint(&host.address)).collect();
            if chosen {
                hop.verdict = self.verdict(&proxy.workload, to, endpoints.is_empty(), total);
            }
            hop.clusters.push(Cluster {
                name: backend(to),
                weight: to.weight,
                chosen,
                exists: to.destination.state == DestinationState::Known,
                sources: vec![Source::at(object(set), &to.destination.origin)],
                endpoints,
            });
        }
    }

    /// The routes of the server that a listener is for, the one that is followed first.
    fn routes_at<'a>(&'a self, proxy: &Proxy, listener: &Listener) -> Vec<Attached<'a>> {
        let Some(port) = listener.address.port() else { return Vec::new() };
        let workload = &*proxy.workload;
        let is_it = |server: &&Server| {
            let own = workload.target_port(server.port).unwrap_or(server.port);
            server.protocol == ServerProtocol::Udp && [server.port, own].contains(&port)
        };
        for gateway in self.snapshot.gateways_for(workload) {
            let reference = GatewayRef::Named { namespace: gateway.namespace.clone(), name: gateway.name.clone() };
            if gateway.servers.iter().any(|server| is_it(&server)) {
                let sets = self.snapshot.route_sets_at(&reference, workload).into_iter();
                return sets.filter_map(|set| Some((set, set.udp.first()?))).collect();
            }
        }
        Vec::new()
    }

    /// A host of a backend; `None`: the one that stands for a backend without endpoints.
    fn endpoint(&self, address: &HostAddress) -> Option<Endpoint> {
        let HostAddress::Socket(address) = address else { return None };
        let found = self.snapshot.workload_at(address.ip());
        (address.port() != 0).then(|| Endpoint {
            address: address.to_string(),
            workload: found.map(|found| format!("{}.{}", found.pod, found.namespace)),
            locality: String::new(),
            priority: 0,
            healthy: true,
            flags: Vec::new(),
        })
    }

    /// What becomes of new sessions that go to a backend.
    fn verdict(&self, gateway: &Workload, to: &WeightedDestination, is_empty: bool, total: u64) -> Verdict {
        let name = backend(to);
        let share = f64::from(to.weight) * 100.0 / (total.max(1) as f64);
        let service = self.snapshot.service(to.destination.host.as_str(), gateway);
        let closed_by = service.and_then(|service| service.closed_by.first());
        let why = match (to.destination.state, closed_by) {
            (DestinationState::Known, Some(policy)) => {
                format!("is closed by {}, which judges no datagrams", policy.what)
            }
            (DestinationState::Known, None) if is_empty => "has no ready endpoint".to_owned(),
            (DestinationState::Known, None) => {
                let reason = format!("a new session goes to {name}, and stays there");
                return Verdict { reason, ..Verdict::default() };
            }
            (DestinationState::UnknownHost | DestinationState::UnknownSubset, _) => "does not exist".to_owned(),
            (DestinationState::UnknownPort, _) => "has no such port of UDP".to_owned(),
            (DestinationState::Refused, _) => "may not be a backend of the route".to_owned(),
        };
        dropped(Some("UH"), format!("{name} {why}: its share ({share:.1} % of new sessions) is dropped"))
    }

    /// A listener with a route that is not followed: policies judge requests and connections.
    fn closed(&self, gateway: &Workload) -> Verdict {
        let policies = self.snapshot.policies_for(&gateway.namespace, gateway);
        let named =
            policies.first().map(|policy| format!(": AuthorizationPolicy {}/{}", policy.namespace, policy.name));
        let reason = "policies select the gateway, and judge requests and connections, not datagrams";
        Verdict {
            outcome: Outcome::Drop,
            reason: format!("{reason}{}", named.unwrap_or_default()),
            ..Verdict::default()
        }
    }
}

/// The listener for datagrams of a port.
fn listener(proxy: &Proxy, port: u16) -> Option<&Arc<Listener>> {
    let targets = |port: u16| proxy.workload.target_port(port).into_iter().chain([port]);
    let at_port = |port: u16| {
        let mut listeners = proxy.config.listeners.values().filter(|listener| listener.udp.is_some());
        listeners.find(|listener| listener.address.port() == Some(port))
    };
    targets(port).chain(below_1024(port).into_iter().flat_map(targets)).find_map(at_port)
}

fn answer(question: &Question, to: SocketAddr, resolved: String) -> Answer {
    let call =
        Call { from: question.from.to_string(), to: question.target.to_string(), address: to.to_string(), resolved };
    Answer { call, verdict: Verdict::default(), hops: Vec::new(), notes: Vec::new() }
}

fn dropped(response_flag: Option<&'static str>, reason: String) -> Verdict {
    Verdict { outcome: Outcome::Drop, response_flag, reason, ..Verdict::default() }
}

/// A backend's name for people.
fn backend(to: &WeightedDestination) -> String {
    match to.destination.port {
        Some(port) => format!("{}:{port}", to.destination.host),
        None => to.destination.host.to_string(),
    }
}

fn object(set: &RouteSet) -> String {
    format!("{} {}/{}", set.kind, set.namespace, set.name)
}

/// A route that is not followed.
fn later(set: &RouteSet, route: &L4Route) -> Considered {
    Considered {
        name: String::new(),
        source: Source::at(object(set), &route.origin),
        reason: "a listener of UDP follows only its oldest UDPRoute".to_owned(),
        later: true,
    }
}
