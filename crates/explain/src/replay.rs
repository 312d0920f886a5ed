//! Replays a request that a proxy has served in the mesh of some files: at that proxy, and at those that follow.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use evenkeel_filters::explain::Trace;
use evenkeel_filters::explain::query::{self, Decision, QueriedCall, QueriedHead, RecentRequest};
use evenkeel_model::Workload;
use evenkeel_translate::names::{VIRTUAL_INBOUND, VIRTUAL_OUTBOUND};

use crate::answer::Hop;
use crate::arrival::{Arrival, CLIENT_PORT, Side, TlsClient};
use crate::hop::{self, Departure};
use crate::place::Source;
use crate::proxy::Proxy;
use crate::unaccepted_tls::{self, UnacceptedTls};
use crate::walk::MAX_HOPS;
use crate::world::World;

/// The decision of one proxy about one request, and where the route is written.
#[derive(Debug, Clone)]
pub struct Replayed {
    /// The decision.
    pub decision: Decision,
    /// The rule of a VirtualService or another kind; none for routes that the mesh makes.
    pub source: Option<Source>,
    /// `outbound`, `inbound` or `gateway`.
    pub side: &'static str,
    /// The proxy's workload.
    workload: Arc<Workload>,
    /// The call as it leaves the proxy; none: it does not, or only for the program.
    departure: Option<Departure>,
}

impl Replayed {
    /// The proxy, as `POD.NAMESPACE`.
    pub fn proxy(&self) -> String {
        format!("{}.{}", self.workload.pod, self.workload.namespace)
    }

    /// Whether it is the proxy of this Pod.
    pub fn is_at(&self, pod: &str, namespace: &str) -> bool {
        *self.workload.pod == *pod && *self.workload.namespace == *namespace
    }

    /// Whether the request fails here: it is refused, or answered with an error.
    pub fn fails(&self) -> bool {
        let Decision { outcome, status, response_flag, .. } = &self.decision;
        matches!(&**outcome, "deny" | "reset") || status.is_some_and(|status| status >= 400) || response_flag.is_some()
    }

    /// Whether the next proxy sees the same call in both cases.
    pub fn leaves_as(&self, other: &Self) -> bool {
        self.departure == other.departure
    }
}

impl World {
    /// Decides about a request at the proxy of a Pod. `None`: there is no such Pod.
    pub fn replay(&self, pod: &str, namespace: &str, request: &RecentRequest) -> Option<Replayed> {
        let workload = self.find(pod, Some(namespace)).ok()?;
        let (side, arrival, call) = self.arrived(&workload, request);
        let endpoint = request.endpoint.as_deref().and_then(|endpoint| endpoint.parse().ok());
        Some(self.decided(&self.proxy(&workload), side, &arrival, (&call, endpoint)))
    }

    /// Takes a request through the proxy of a Pod again, with the reasons.
    pub(crate) fn retake(&self, workload: &Arc<Workload>, request: &RecentRequest) -> Hop {
        let (side, arrival, _) = self.arrived(workload, request);
        hop::take(self, &self.proxy(workload), side, &arrival).0
    }

    /// A request as it came to a proxy.
    fn arrived(&self, workload: &Workload, request: &RecentRequest) -> (Side, Arrival, QueriedCall) {
        let side = match (self.is_gateway(workload), &*request.direction) {
            (true, _) => Side::Gateway,
            (false, "inbound") => Side::Inbound,
            (false, _) => Side::Outbound,
        };
        let call = completed(request);
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let arrival = Arrival {
            source: call.source.unwrap_or(nowhere),
            destination: call.destination.unwrap_or(nowhere),
            socket: None,
            tls: call.tls.as_ref().map(|tls| TlsClient {
                server_name: tls.server_name.clone(),
                alpn: tls.alpn.clone(),
                identity: tls.identities.first().cloned(),
            }),
            request: call.request.as_ref().map(QueriedHead::plain),
            host: None,
            random: call.random,
        };
        (side, arrival, call)
    }

    /// Takes a replayed call on through the proxies that follow.
    pub fn replay_on(&self, first: &Replayed, request: &RecentRequest) -> Vec<Replayed> {
        let mut all: Vec<Replayed> = Vec::new();
        let random = random(&request.id);
        while all.len() + 1 < MAX_HOPS {
            let last = all.last().unwrap_or(first);
            let (Some(departure), Some(own)) = (&last.departure, last.workload.addresses.first()) else { break };
            let Some((proxy, side)) = self.next(departure.to) else { break };
            let Departure { to, tls, request } = departure.clone();
            let source = SocketAddr::new(*own, CLIENT_PORT);
            let arrival = Arrival { source, destination: to, socket: None, tls, request, host: None, random };
            let (listeners, seen) = hop::at_proxy(&proxy, side, &arrival);
            let replayed = self.decided(&proxy, side, &seen, (&hop::asked(&seen, listeners), None));
            all.push(replayed);
        }
        all
    }

    /// Whether whoever has this address sends its requests through a proxy of the mesh.
    pub(crate) fn sends_through_proxy(&self, address: IpAddr) -> bool {
        self.snapshot.workload_at(address).is_some_and(|client| client.has_proxy || self.is_gateway(client))
    }

    /// `endpoint`: the one that the proxy has chosen, if it is still there.
    fn decided(
        &self,
        proxy: &Proxy,
        side: Side,
        arrival: &Arrival,
        (call, endpoint): (&QueriedCall, Option<SocketAddr>),
    ) -> Replayed {
        let (mut decision, trace) = query::decide_traced(&mut self.explainer.borrow_mut(), &proxy.config, call);
        // The records are of requests that came in plain text, or in TLS that the proxy took off: what answers now does not expect TLS.
        let ends = match unaccepted_tls::of(side, arrival, &trace) {
            Some(UnacceptedTls::Refused) => Some(unaccepted_tls::NO_CERTIFICATE),
            Some(UnacceptedTls::PassedOn) if decision.outcome == "forward" => Some(unaccepted_tls::PROGRAM_GETS_TLS),
            _ => None,
        };
        if let Some(why) = ends {
            decision =
                Decision { outcome: "reset".to_owned(), status: None, details: Some(why.to_owned()), ..decision };
        }
        let source = decision.origin.as_deref().and_then(|origin| self.of_route(origin)).map(|(_, source)| source);
        let departure = self.departure(proxy, side, (arrival, endpoint), (&decision, &trace));
        Replayed { decision, source, side: side.as_str(), workload: Arc::clone(&proxy.workload), departure }
    }

    fn departure(
        &self,
        proxy: &Proxy,
        side: Side,
        (arrival, endpoint): (&Arrival, Option<SocketAddr>),
        (decision, trace): (&Decision, &Trace),
    ) -> Option<Departure> {
        let leaves = side != Side::Inbound && decision.outcome == "forward" && decision.status.is_none();
        let cluster = decision.cluster.as_deref().filter(|_| leaves)?;
        let cluster = proxy.config.clusters.get(cluster)?;
        hop::leaving(self, proxy, (cluster, endpoint), trace, arrival).map(|(departure, _)| departure)
    }

    /// The Pod at an address, as `POD.NAMESPACE`.
    pub fn pod_at(&self, endpoint: &str) -> Option<String> {
        let address: std::net::SocketAddr = endpoint.parse().ok()?;
        let workload = self.snapshot.workload_at(address.ip())?;
        Some(format!("{}.{}", workload.pod, workload.namespace))
    }
}

/// Returns the call, with the listeners that would accept it if the original one is gone, and a random number that is the
/// same each time.
pub fn completed(request: &RecentRequest) -> QueriedCall {
    let mut call = request.call.clone();
    let port_listeners = call.destination.iter().flat_map(|to| evenkeel_runtime_config::demand::listeners_of(*to));
    let mut names: Vec<String> = match &*request.direction {
        "inbound" => vec![VIRTUAL_INBOUND.to_owned()],
        "outbound" => port_listeners.map(|name| name.to_string()).collect(),
        _ => Vec::new(),
    };
    if request.direction == "outbound" {
        // A listener for the destination comes first, whichever served it then.
        names.push(VIRTUAL_OUTBOUND.to_owned());
        names.append(&mut call.listeners);
        call.listeners = names;
    } else {
        call.listeners.append(&mut names);
    }
    call.random = random(&request.id);
    call
}

/// FNV-1a: the same for the same request.
fn random(id: &str) -> u64 {
    id.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
