//! Server and client against each other, driven by one seed: changes, refusals, lost connections. Whatever happens,
//! the client ends with what the server has last, minus what it refused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_testkit::Random;

use crate::client::{Client, ClientRequest, ClientResponse, Protocol, Received, Rejected};
use crate::pb::envoy::config::cluster::v3::{Cluster, cluster};
use crate::pb::envoy::config::core::v3::Node;
use crate::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, cluster_load_assignment::Policy};
use crate::pb::envoy::config::listener::v3::{Filter, FilterChain, Listener, filter::ConfigType};
use crate::pb::envoy::config::route::v3::RouteConfiguration;
use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, Rds, http_connection_manager::RouteSpecifier,
};
use crate::server::{Announcement, ChangedNames, Interest, Response, Status, delta, sotw};
use crate::{Resource, ResourceSet, ResourceType, pack};

const NAMES: usize = 6;
/// The client rejects resources with this serial.
const BAD: u32 = 13;

enum Server {
    Delta(delta::Stream),
    Sotw(sotw::Stream),
}

impl Server {
    fn new(protocol: Protocol, client: Kind) -> Self {
        let identifier = if client == Kind::Ours { "evenkeel/test" } else { "" };
        let announcement = Announcement { identifier: identifier.into(), causes: client == Kind::Ours };
        match protocol {
            Protocol::Delta => Self::Delta(delta::Stream::new(announcement)),
            Protocol::Sotw => Self::Sotw(sotw::Stream::new(announcement)),
        }
    }

    fn on_request(&mut self, request: &ClientRequest, now: Duration) {
        match (self, request) {
            (Self::Delta(stream), ClientRequest::Delta(request)) => stream.on_request(request, now).unwrap(),
            (Self::Sotw(stream), ClientRequest::Sotw(request)) => stream.on_request(request, now).unwrap(),
            _ => panic!("protocols differ"),
        }
    }

    fn on_snapshot(&mut self, set: &Arc<ResourceSet>) {
        match self {
            Self::Delta(stream) => stream.on_snapshot(set),
            Self::Sotw(stream) => stream.on_snapshot(set),
        }
    }

    fn interest(&self) -> Interest {
        let interest = Interest::default();
        match self {
            Self::Delta(stream) => stream.note_interest(&interest),
            Self::Sotw(stream) => stream.note_interest(&interest),
        }
        interest
    }

    fn poll_response(&mut self, now: Duration) -> Option<ClientResponse> {
        fn decode<M: prost::Message + Default>(response: Response) -> M {
            M::decode(&*response.encode_to_vec()).unwrap()
        }
        match self {
            Self::Delta(stream) => {
                let response = stream.poll_response(now);
                stream.check_invariants();
                response.map(|response| ClientResponse::Delta(decode(response)))
            }
            Self::Sotw(stream) => {
                let response = stream.poll_response(now);
                stream.check_invariants();
                response.map(|response| ClientResponse::Sotw(decode(response)))
            }
        }
    }

    fn status(&self) -> Status {
        match self {
            Self::Delta(stream) => stream.status(),
            Self::Sotw(stream) => stream.status(),
        }
    }
}

/// A resource whose content is `serial`, and which names the one it depends on.
fn resource(kind: ResourceType, index: usize, serial: u32) -> Resource {
    let name = format!("r{index}");
    match kind {
        ResourceType::Cluster => Resource::from_message(
            name.clone(),
            &Cluster {
                name,
                alt_stat_name: serial.to_string(),
                cluster_discovery_type: Some(cluster::ClusterDiscoveryType::Type(cluster::DiscoveryType::Eds as i32)),
                ..Default::default()
            },
        ),
        ResourceType::Endpoint => Resource::from_message(
            name.clone(),
            &ClusterLoadAssignment {
                cluster_name: name,
                policy: Some(Policy {
                    overprovisioning_factor: Some(crate::pb::google::protobuf::UInt32Value { value: serial + 1 }),
                    ..Default::default()
                }),
                ..Default::default()
            },
        ),
        ResourceType::Listener => {
            let manager = HttpConnectionManager {
                route_specifier: Some(RouteSpecifier::Rds(Rds {
                    route_config_name: name.clone(),
                    ..Default::default()
                })),
                ..Default::default()
            };
            let filter = Filter { config_type: Some(ConfigType::TypedConfig(pack(&manager))), ..Default::default() };
            let chain = FilterChain { filters: vec![filter], ..Default::default() };
            let message = Listener {
                name: name.clone(),
                stat_prefix: serial.to_string(),
                filter_chains: vec![chain],
                ..Default::default()
            };
            Resource::from_message(name, &message)
        }
        _ => {
            let message = RouteConfiguration {
                name: name.clone(),
                internal_only_headers: vec![serial.to_string()],
                ..Default::default()
            };
            Resource::from_message(name, &message)
        }
    }
}

const KINDS: [ResourceType; 4] =
    [ResourceType::Cluster, ResourceType::Endpoint, ResourceType::Listener, ResourceType::Route];

/// How a client handles a response of which it rejects a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Accepts the rest, and reports the rejected part to a server that understands.
    Ours,
    /// Takes the rest, and names the part in its message.
    Naming,
    /// Accepts nothing, and does not report why.
    AllOrNothing,
}

struct World {
    random: Random,
    protocol: Protocol,
    kind: Kind,
    now: Duration,
    client: Client,
    server: Server,
    to_server: VecDeque<ClientRequest>,
    to_client: VecDeque<ClientResponse>,
    current: ResourceSet,
    /// The last set given to the server.
    published: ResourceSet,
    /// Serials of all resources the server ever had, by kind and bytes.
    serials: BTreeMap<Vec<u8>, u32>,
    /// The resources that the client has applied.
    applied: BTreeMap<(ResourceType, String), Vec<u8>>,
    wanted: BTreeMap<ResourceType, BTreeSet<String>>,
}

impl World {
    fn new(seed: u64, protocol: Protocol) -> Self {
        let kind = [Kind::Ours, Kind::Naming, Kind::AllOrNothing][(seed % 3) as usize];
        let mut client = Client::new(protocol, Node { id: "sim".into(), ..Default::default() });
        client.subscribe_all(ResourceType::Cluster);
        client.subscribe_all(ResourceType::Listener);
        Self {
            random: Random::new(seed),
            protocol,
            kind,
            now: Duration::ZERO,
            client,
            server: Server::new(protocol, kind),
            to_server: VecDeque::new(),
            to_client: VecDeque::new(),
            current: ResourceSet::new(1),
            published: ResourceSet::new(1),
            serials: BTreeMap::new(),
            applied: BTreeMap::new(),
            wanted: BTreeMap::new(),
        }
    }

    fn change(&mut self) {
        for _ in 0..=self.random.below(3) {
            let kind = self.random.pick(&KINDS);
            let index = self.random.below(NAMES);
            if self.random.below(4) == 0 {
                self.current.remove(kind, &format!("r{index}"));
            } else {
                self.put(kind, index);
            }
        }
        self.publish();
    }

    fn put(&mut self, kind: ResourceType, index: usize) {
        let serial = self.random.below(16) as u32;
        let resource = resource(kind, index, serial);
        self.serials.insert(resource.value().to_vec(), serial);
        self.current.insert(kind, Arc::new(resource));
    }

    fn put_good(&mut self, kind: ResourceType, index: usize) {
        let resource = resource(kind, index, 1);
        self.serials.insert(resource.value().to_vec(), 1);
        self.current.insert(kind, Arc::new(resource));
    }

    fn publish(&mut self) {
        self.current.generation += 1;
        while let Some(response) = self.server.poll_response(self.now) {
            self.to_client.push_back(response);
        }
        let touched = ChangedNames::between(&self.published, &self.current);
        let concerned = self.server.interest().concerned_by(&touched);
        self.published = self.current.clone();
        self.server.on_snapshot(&Arc::new(self.current.clone()));
        // A stream that is not concerned is not woken: it must have nothing to say.
        if let Some(response) = self.server.poll_response(self.now) {
            assert!(concerned, "{response:?} after {touched:?}");
            self.to_client.push_back(response);
        }
    }

    fn reconnect(&mut self) {
        self.to_client.clear();
        self.to_server.clear();
        self.server = Server::new(self.protocol, self.kind);
        self.published = self.current.clone();
        self.server.on_snapshot(&Arc::new(self.current.clone()));
        self.client.on_connect();
    }

    /// Delivers one message, or does nothing if there is none.
    fn deliver(&mut self) -> bool {
        while let Some(request) = self.client.poll_request() {
            self.to_server.push_back(request);
        }
        while let Some(response) = self.server.poll_response(self.now) {
            self.to_client.push_back(response);
        }
        let client_first = self.random.below(2) == 0;
        if client_first && let Some(response) = self.to_client.pop_front() {
            self.receive(response);
        } else if let Some(request) = self.to_server.pop_front() {
            self.server.on_request(&request, self.now);
        } else if let Some(response) = self.to_client.pop_front() {
            self.receive(response);
        } else {
            return false;
        }
        true
    }

    fn receive(&mut self, response: ClientResponse) {
        let update = self.client.on_response(response).unwrap();
        let kind = update.kind;
        let mut rejected = Vec::new();
        let is_bad = |received: &Received| self.serials[&received.any.value] == BAD;
        if self.kind == Kind::AllOrNothing && update.added.iter().any(is_bad) {
            let names = update.added.iter().map(|received| &received.name).chain(&update.removed);
            let reason = || "it does not validate".to_owned();
            rejected.extend(names.map(|name| Rejected { name: name.clone(), reason: reason() }));
            self.client.answer(&update, &rejected);
            return;
        }
        for received in &update.added {
            if is_bad(received) {
                rejected.push(Rejected { name: received.name.clone(), reason: format!("{} is bad", received.name) });
            } else {
                self.applied.insert((kind, received.name.clone()), received.any.value.clone());
            }
        }
        for name in &update.removed {
            self.applied.remove(&(kind, name.clone()));
        }
        self.client.answer(&update, &rejected);
        // Like a proxy, subscribes to the endpoints of clusters and the routes of listeners.
        for (from, to) in
            [(ResourceType::Cluster, ResourceType::Endpoint), (ResourceType::Listener, ResourceType::Route)]
        {
            let names: BTreeSet<String> =
                self.applied.keys().filter(|(kind, _)| *kind == from).map(|(_, name)| name.clone()).collect();
            self.client.set_names(to, names.iter().map(String::as_str));
            self.applied.retain(|(kind, name), _| *kind != to || names.contains(name));
            self.wanted.insert(to, names);
        }
    }

    fn check_settled(&self, seed: u64) {
        // The version before a rejected one may use clusters that are gone.
        let is_bad = |kind| self.current.of(kind).values().any(|resource| self.serials[resource.value()] == BAD);
        let kept = [ResourceType::Listener, ResourceType::Route].into_iter().any(is_bad);
        for kind in KINDS {
            for index in 0..NAMES {
                let name = format!("r{index}");
                let wanted = self.wanted.get(&kind).is_none_or(|names| names.contains(&name));
                let server = self.current.get(kind, &name).filter(|_| wanted);
                let applied = self.applied.get(&(kind, name.clone()));
                match server {
                    Some(resource) if self.serials[resource.value()] != BAD => {
                        assert_eq!(applied, Some(&resource.value().to_vec()), "seed {seed}: {kind} {name}");
                    }
                    // Refused: the last good one, or none, stays.
                    Some(_) => {}
                    // State of the world cannot say that a named resource is gone.
                    None if self.protocol == Protocol::Sotw && self.wanted.contains_key(&kind) => {}
                    None if kept && matches!(kind, ResourceType::Cluster | ResourceType::Endpoint) => {}
                    None => assert_eq!(applied, None, "seed {seed}: {kind} {name}"),
                }
            }
        }
        let status = self.server.status();
        assert_eq!(status.settled_generation, self.current.generation, "seed {seed}");
        for kind in KINDS {
            let bad = is_bad(kind);
            let refused = status.of(kind).is_some_and(|status| status.nack.is_some());
            assert!(bad || !refused, "seed {seed}: a refusal of what is gone: {status:?}");
        }
    }
}

fn run(seed: u64, protocol: Protocol) {
    let mut world = World::new(seed, protocol);
    world.publish();
    world.client.on_connect();
    for _ in 0..300 {
        match world.random.below(40) {
            0 => world.reconnect(),
            1..=6 => world.change(),
            // Refused ones are offered again.
            7 => world.now += Duration::from_millis(world.random.below(4000) as u64),
            8 => world.client.report(),
            _ => _ = world.deliver(),
        }
    }
    let mut steps = 0;
    while world.deliver() {
        steps += 1;
        assert!(steps < 1000, "seed {seed}: the two never come to rest");
    }
    world.check_settled(seed);
    world.client.report();
    while world.deliver() {}
    assert_eq!(world.server.status().divergence, None, "seed {seed}: a false alarm");
}

#[test]
fn delta_converges_whatever_happens() {
    (0..400).for_each(|seed| run(seed, Protocol::Delta));
}

#[test]
fn state_of_the_world_converges_whatever_happens() {
    (0..400).for_each(|seed| run(seed, Protocol::Sotw));
}

/// A client that holds something else than was applied, for any reason, is detected by its digest and healed.
#[test]
fn a_divergence_is_found_and_healed() {
    let mut world = World::new(3, Protocol::Delta);
    assert_eq!(world.kind, Kind::Ours);
    (0..NAMES).for_each(|index| world.put_good(ResourceType::Cluster, index));
    world.publish();
    world.client.on_connect();
    while world.deliver() {}
    let Client::Delta(client) = &mut world.client else { panic!("a delta client") };
    let held = client.corrupt(ResourceType::Cluster);
    held.remove("r1");
    held.insert("r2".into(), "0123456789abcdef".into());
    held.insert("stranger".into(), "0123456789abcdef".into());
    for name in ["r1", "r2"] {
        world.applied.remove(&(ResourceType::Cluster, name.into()));
    }
    world.applied.insert((ResourceType::Cluster, "stranger".into()), Vec::new());
    world.client.report();
    while world.deliver() {}
    let divergence = world.server.status().divergence.expect("an alarm");
    assert_eq!((divergence.number, divergence.kind), (1, ResourceType::Cluster));
    assert_eq!(divergence.names, ["r1", "r2", "stranger"]);
    world.check_settled(3);
    assert!(!world.applied.contains_key(&(ResourceType::Cluster, "stranger".into())));
    world.client.report();
    while world.deliver() {}
    assert_eq!(world.server.status().divergence.map(|divergence| divergence.number), Some(1));
}
