//! The path of a call: the proxies it passes, one after the other.

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;

use evenkeel_base::hostname::Hostname;
use evenkeel_base::suggest::closest;
use evenkeel_model::{EndpointAddress, PublishedPort, Server, ServerProtocol, Service, Workload};
use evenkeel_runtime_config::view::PlainRequest;

use crate::answer::{Answer, Call, Outcome, Verdict};
use crate::arrival::{Arrival, CLIENT_PORT, OUTSIDE, Side, TlsClient};
use crate::hop::{self, Departure, below_1024};
use crate::names::{self, Resolved};
use crate::proxy::Proxy;
use crate::question::{Caller, Question, QuestionError, Target};
use crate::running;
use crate::world::World;

/// Maximum number of proxies on a call's path: an egress gateway makes three, more would be a loop.
pub const MAX_HOPS: usize = 6;

impl World {
    /// Answers a question.
    pub fn ask(&self, question: &Question) -> Result<Answer, QuestionError> {
        if let Target::Udp { .. } = question.target {
            return self.asked_about_datagrams(question);
        }
        match &question.from {
            Caller::Workload { name, namespace } => {
                let workload = self.find(name, namespace.as_deref())?;
                match &question.socket {
                    Some(socket) => self.asked_at_socket(question, socket, &workload),
                    None => Ok(self.asked_by_workload(question, &workload)),
                }
            }
            Caller::Outside => self.asked_from_outside(question),
        }
    }

    /// The workload, or Pod, of this name.
    pub fn find(&self, name: &str, namespace: Option<&str>) -> Result<Arc<Workload>, QuestionError> {
        let is_it = |workload: &&Arc<Workload>| {
            (&*workload.workload_name == name || &*workload.pod == name)
                && namespace.is_none_or(|namespace| &*workload.namespace == namespace)
        };
        let found: Vec<&Arc<Workload>> = self.snapshot.workloads.iter().filter(is_it).collect();
        let mut namespaces: Vec<&str> = found.iter().map(|workload| &*workload.namespace).collect();
        namespaces.dedup();
        match (found.first(), namespaces.as_slice()) {
            (Some(workload), [_]) => Ok(Arc::clone(workload)),
            (Some(_), several) => {
                Err(QuestionError::Ambiguous { name: name.to_owned(), namespaces: several.join(", ") })
            }
            (None, _) => {
                let asked = namespace.map_or_else(|| name.to_owned(), |namespace| format!("{name}.{namespace}"));
                let mut all: Vec<String> = self
                    .snapshot
                    .workloads
                    .iter()
                    .map(|workload| format!("{}.{}", workload.workload_name, workload.namespace))
                    .collect();
                all.sort();
                all.dedup();
                let there = match (closest(&asked, all.iter().map(String::as_str)), all.len()) {
                    (_, 0) => "these files have no Deployment, StatefulSet, DaemonSet or Pod".to_owned(),
                    (Some(near), _) => format!("did you mean `{near}`?"),
                    (None, 1..=12) => format!("there are {}", all.join(", ")),
                    (None, _) => {
                        format!("there are {}, … ({} in all)", all.get(..12).unwrap_or_default().join(", "), all.len())
                    }
                };
                Err(QuestionError::NoWorkload { name: asked, there })
            }
        }
    }

    fn asked_by_workload(&self, question: &Question, workload: &Arc<Workload>) -> Answer {
        let target = &question.target;
        let own = workload.has_proxy.then(|| self.proxy(workload));
        let resolved = names::resolve(target.host(), workload, own.as_deref(), &self.snapshot);
        let to = SocketAddr::new(resolved.address, target.port());
        let is_to_proxy = own.as_ref().is_some_and(|own| Self::listens_at(own, to));
        let is_to_itself = !is_to_proxy && self.calls_itself(workload, to);
        let proxy = own.filter(|_| !is_to_itself && self.leaves_through_proxy(workload, to));
        let source = SocketAddr::new(workload.addresses.first().copied().unwrap_or(OUTSIDE.into()), CLIENT_PORT);
        let arrival = Arrival {
            source,
            destination: to,
            socket: None,
            tls: client_tls(target, &["http/1.1"]),
            request: request(target),
            host: called(&resolved, target),
            random: question.random,
        };
        let mut answer = start(question, &resolved, &arrival);
        match proxy {
            Some(proxy) => {
                let to = self.note_host(&mut answer, &resolved, workload);
                self.walk(&proxy, Side::Outbound, arrival, &mut answer);
                answer.notes.extend(to);
            }
            None if is_to_itself => {
                let name = format!("{}.{}", workload.pod, workload.namespace);
                answer.notes.push(format!("{name} calls its own address: no proxy gets that, and no policy judges it"));
            }
            None => {
                let why = if workload.has_proxy {
                    "excludes this from capture (traffic annotations)"
                } else {
                    "has no sidecar"
                };
                answer
                    .notes
                    .push(format!("{}.{} {why}: its call is not routed by the mesh", workload.pod, workload.namespace));
                let to = self.without_proxy(&resolved, arrival.destination);
                let departure = Departure { to, tls: arrival.tls.clone(), request: arrival.request.clone() };
                self.follow(departure, &arrival, &mut answer);
            }
        }
        conclude(answer)
    }

    /// A workload calls through a Unix socket of its sidecar. As in the proxy, such a connection has no addresses.
    fn asked_at_socket(
        &self,
        question: &Question,
        socket: &str,
        workload: &Arc<Workload>,
    ) -> Result<Answer, QuestionError> {
        let target = &question.target;
        if !workload.has_proxy {
            let caller = format!("{}.{}", workload.pod, workload.namespace);
            return Err(QuestionError::NoSocket { caller, socket: socket.to_owned() });
        }
        let proxy = self.proxy(workload);
        let resolved = names::resolve(target.host(), workload, Some(&proxy), &self.snapshot);
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let arrival = Arrival {
            source: nowhere,
            destination: nowhere,
            socket: Some(socket.into()),
            tls: client_tls(target, &["http/1.1"]),
            request: request(target),
            host: called(&resolved, target),
            random: question.random,
        };
        let resolved = Resolved { how: "a Unix socket of the sidecar".to_owned(), ..resolved };
        let mut answer = start(question, &resolved, &arrival);
        self.walk(&proxy, Side::Outbound, arrival, &mut answer);
        Ok(conclude(answer))
    }

    fn asked_from_outside(&self, question: &Question) -> Result<Answer, QuestionError> {
        let target = &question.target;
        let (gateway, port, published) = self.gateway_of(target)?;
        let address = gateway.addresses.first().copied().unwrap_or(OUTSIDE.into());
        let resolved = Resolved { address, service: None, how: self.how_reached(&gateway, port, published) };
        let host = target.server_name().or_else(|| Some(host_of(&target.authority()).to_owned()));
        let arrival = Arrival {
            source: SocketAddr::new(OUTSIDE.into(), CLIENT_PORT),
            destination: SocketAddr::new(address, port),
            socket: None,
            tls: client_tls(target, &["h2", "http/1.1"]),
            request: request(target),
            host: host.and_then(|host| Hostname::parse(&host).ok()),
            random: question.random,
        };
        let mut answer = start(question, &resolved, &arrival);
        if published.is_none() {
            let own = self.published().iter().filter(|own| own.leads_to(&gateway));
            let is_it = |own: &&PublishedPort| [Some(port), below_1024(port)].contains(&Some(own.number));
            let at = own.filter(is_it).map(|own| format!("{} of the Gateway is {}", own.number, own.address)).next();
            answer.notes.extend(at.map(|at| format!("on this machine, port {at}")));
        }
        self.walk(&self.proxy(&gateway), Side::Gateway, arrival, &mut answer);
        Ok(conclude(answer))
    }

    /// How a call from outside reaches a gateway, for people.
    pub(crate) fn how_reached(&self, gateway: &Workload, port: u16, published: Option<&PublishedPort>) -> String {
        let name = format!("the gateway {}.{}", gateway.workload_name, gateway.namespace);
        match published {
            Some(published) => format!("{name}, whose port {port} is {} on this machine", published.address),
            None => name,
        }
    }

    /// The gateway that a call from outside reaches, the port of its Gateway, and the port of this machine that leads there:
    /// where a mesh runs, calls of this machine's addresses have the port on which `up` serves the Gateway's.
    pub(crate) fn gateway_of(
        &self,
        target: &Target,
    ) -> Result<(Arc<Workload>, u16, Option<&PublishedPort>), QuestionError> {
        let gateways: Vec<&Arc<Workload>> =
            self.snapshot.workloads.iter().filter(|workload| self.is_gateway(workload)).collect();
        let ports_of = |gateway: &Workload| -> Vec<u16> {
            let servers = self.snapshot.gateways_for(gateway);
            // A port of UDP is another one than a port of TCP.
            let is_udp = matches!(target, Target::Udp { .. });
            let of_kind = |server: &&Server| (server.protocol == ServerProtocol::Udp) == is_udp;
            servers
                .iter()
                .flat_map(|gateway| gateway.servers.iter().filter(of_kind).map(|server| server.port))
                .collect()
        };
        let mut ports: Vec<u16> = gateways.iter().flat_map(|gateway| ports_of(gateway)).collect();
        ports.sort_unstable();
        ports.dedup();
        let port = target.port();
        let is_chosen = is_this_machine(target.host()) || !ports.contains(&port);
        let published = self.published().iter().find(|own| is_chosen && own.address.port() == port);
        if let Some(published) = published
            && let Some(gateway) = gateways.iter().find(|gateway| published.leads_to(gateway))
        {
            return Ok((Arc::clone(gateway), published.number, Some(published)));
        }
        let serves = |gateway: &&&Arc<Workload>| {
            let own = ports_of(gateway);
            std::iter::once(port).chain(below_1024(port)).any(|asked| own.contains(&asked))
        };
        match gateways.iter().find(serves) {
            Some(gateway) => Ok((Arc::clone(gateway), port, None)),
            None => Err(QuestionError::NoGateway { port, there: self.listed(&ports) }),
        }
    }

    /// The ports of Gateways, for people.
    fn listed(&self, ports: &[u16]) -> String {
        if ports.is_empty() {
            return "there is no Gateway".to_owned();
        }
        let own = |port: &u16| {
            let at = self.published().iter().find(|own| own.number == *port);
            at.map_or_else(|| port.to_string(), |at| format!("{port} ({} on this machine)", at.address))
        };
        format!("Gateways listen on {}", ports.iter().map(own).collect::<Vec<_>>().join(", "))
    }

    /// Takes the call through a proxy, and on.
    fn walk(&self, proxy: &Proxy, side: Side, arrival: Arrival, answer: &mut Answer) {
        let (mut hop, mut departure) = hop::take(self, proxy, side, &arrival);
        if let Some(running) = &self.running {
            departure = running::join((self, proxy), (side, &arrival), &**running, &mut hop, departure);
        }
        answer.hops.push(hop);
        if let Some(departure) = departure.filter(|_| answer.hops.len() < MAX_HOPS) {
            let source = proxy.workload.addresses.first().copied().unwrap_or(arrival.source.ip());
            let from = Arrival { source: SocketAddr::new(source, CLIENT_PORT), socket: None, ..arrival };
            self.follow(departure, &from, answer);
        }
    }

    /// Takes a call on to where it was sent.
    fn follow(&self, departure: Departure, from: &Arrival, answer: &mut Answer) {
        let Some((proxy, side)) = self.next(departure.to) else { return };
        let Departure { to, tls, request } = departure;
        let arrival = Arrival {
            source: from.source,
            destination: to,
            socket: None,
            tls,
            request,
            host: from.host.clone(),
            random: from.random,
        };
        self.walk(&proxy, side, arrival, answer);
    }

    /// The proxy that serves connections to this address.
    pub(crate) fn next(&self, to: SocketAddr) -> Option<(Rc<Proxy>, Side)> {
        let workload = self.snapshot.workload_at(to.ip())?;
        let side = match (self.is_gateway(workload), self.arrives_at_proxy(workload, to.port())) {
            (true, _) => Side::Gateway,
            (false, true) => Side::Inbound,
            (false, false) => return None,
        };
        Some((self.proxy(workload), side))
    }

    /// Returns where the cluster's own network routes a call: a service's address leads to one of its endpoints.
    fn without_proxy(&self, resolved: &Resolved, called: SocketAddr) -> SocketAddr {
        let endpoint = |service: &Arc<Service>| {
            let endpoints = self.snapshot.endpoints(service, called.port());
            endpoints.iter().filter(|endpoint| endpoint.ready).find_map(|endpoint| match endpoint.address {
                EndpointAddress::Ip(ip) => Some(SocketAddr::new(ip, endpoint.port)),
                _ => None,
            })
        };
        resolved.service.as_ref().filter(|service| !service.headless).and_then(endpoint).unwrap_or(called)
    }

    /// Returns all endpoints to which the cluster's own network may route a call.
    pub(crate) fn without_proxy_all(&self, host: Option<&Hostname>, called: SocketAddr) -> Vec<SocketAddr> {
        let service = host.and_then(|host| self.snapshot.services_of(host.as_str()).first());
        let Some(service) = service.filter(|service| !service.headless) else { return vec![called] };
        let endpoints = self.snapshot.endpoints(service, called.port()).iter().filter(|endpoint| endpoint.ready);
        let address = |endpoint: &evenkeel_model::Endpoint| match endpoint.address {
            EndpointAddress::Ip(ip) => Some(SocketAddr::new(ip, endpoint.port)),
            _ => None,
        };
        endpoints.filter_map(address).collect()
    }

    /// Notes why the workload does not see an existing service.
    fn note_host(&self, answer: &mut Answer, resolved: &Resolved, workload: &Workload) -> Option<String> {
        let service = resolved.service.as_ref()?;
        let kind = if service.is_kubernetes() { "Service" } else { "ServiceEntry" };
        let name = format!("{kind} {}/{}", service.namespace, service.name);
        let port: u16 = answer.call.address.rsplit(':').next()?.parse().ok()?;
        if !service.export_to.seen_by(&*workload.namespace) {
            return Some(format!("{name} is not exported to the namespace {}", workload.namespace));
        }
        if service.port(port).is_none() {
            let ports: Vec<String> = service.ports.iter().map(|port| port.number.to_string()).collect();
            return Some(format!("{name} has no port {port}; it has {}", ports.join(", ")));
        }
        let sidecar = self.snapshot.sidecar_for(&workload.namespace, &workload.labels)?;
        let imports = sidecar.imports_port(service, port, &workload.namespace);
        let place = crate::place::Source::at("", &sidecar.origin).position().unwrap_or_default();
        (!imports).then(|| format!("Sidecar {}/{} ({place}) does not import {name}", sidecar.namespace, sidecar.name))
    }
}

fn start(question: &Question, resolved: &Resolved, arrival: &Arrival) -> Answer {
    let call = Call {
        from: question.from.to_string(),
        to: question.target.to_string(),
        address: arrival.called(),
        resolved: resolved.how.clone(),
    };
    Answer { call, verdict: Verdict::default(), hops: Vec::new(), notes: Vec::new() }
}

/// Sets the outcome of the whole call, which is that of its last proxy.
fn conclude(mut answer: Answer) -> Answer {
    let Some(last) = answer.hops.last() else {
        answer.verdict.reason = format!("it reaches {} without a proxy", answer.call.address);
        return answer;
    };
    answer.verdict = last.verdict.clone();
    if last.verdict.outcome == Outcome::Forward && last.verdict.status.is_none() && last.proxy.side == "inbound" {
        answer.verdict.reason = format!("{}.{} answers", last.proxy.pod, last.proxy.namespace);
    }
    answer
}

/// The request as the client sends it.
fn request(target: &Target) -> Option<PlainRequest> {
    let Target::Http { method, path, headers, tls, .. } = target else { return None };
    let request = PlainRequest::new(method, &target.authority(), path);
    let request = PlainRequest { scheme: if *tls { "https" } else { "http" }.to_owned(), ..request };
    let others = headers.iter().filter(|(name, _)| name != "host");
    Some(others.fold(request, |request, (name, value)| request.with_header(name, value)))
}

fn client_tls(target: &Target, http: &[&str]) -> Option<TlsClient> {
    let is_http = matches!(target, Target::Http { .. });
    let alpn = if is_http { http.iter().map(|name| (*name).to_owned()).collect() } else { Vec::new() };
    target.is_tls().then(|| TlsClient { server_name: target.server_name(), alpn, identity: None })
}

/// The host that rules are looked up for: the service's, or the name that is called.
fn called(resolved: &Resolved, target: &Target) -> Option<Hostname> {
    let authority = target.authority();
    // An explicit `Host` header decides which virtual host serves the request.
    let named = match target {
        Target::Http { headers, .. } if headers.iter().any(|(name, _)| name == "host") => Some(host_of(&authority)),
        _ => None,
    };
    match (&resolved.service, named) {
        (_, Some(named)) => Hostname::parse(named).ok(),
        (Some(service), None) => Some(service.host.clone()),
        (None, None) => Hostname::parse(target.host()).ok(),
    }
}

/// Whether a host of a URL is this machine.
fn is_this_machine(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address: IpAddr| address.is_loopback())
}

fn host_of(authority: &str) -> &str {
    match authority.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') && port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => authority,
    }
}
