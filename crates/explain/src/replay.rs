//! Replays a request that a proxy has served in the mesh of some files.

use evenkeel_filters::explain::query::{self, Decision, QueriedCall, RecentRequest};
use evenkeel_translate::names::{VIRTUAL_INBOUND, VIRTUAL_OUTBOUND};

use crate::place::Source;
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
}

impl World {
    /// Decides about a request at the proxy of a Pod. `None`: there is no such Pod.
    pub fn replay(&self, pod: &str, namespace: &str, request: &RecentRequest) -> Option<Replayed> {
        let workload = self.find(pod, Some(namespace)).ok()?;
        let proxy = self.proxy(&workload);
        let call = completed(request);
        let decision = query::decide(&mut self.explainer.borrow_mut(), &proxy.config, &call);
        let source = decision.origin.as_deref().and_then(|origin| self.of_route(origin)).map(|(_, source)| source);
        let side = match (self.is_gateway(&workload), &*request.direction) {
            (true, _) => "gateway",
            (false, "inbound") => "inbound",
            (false, _) => "outbound",
        };
        Some(Replayed { decision, source, side })
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
