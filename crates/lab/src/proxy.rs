//! One simulated proxy: its subscriptions, the resources that it holds and its answers. It has no socket and no clock.

use std::collections::BTreeMap;
use std::time::Duration;

use bytes::Bytes;
use clap::ValueEnum;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use evenkeel_xds::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use evenkeel_xds::pb::google::protobuf::{Struct, Value, value::Kind};
use prost::Message as _;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use twox_hash::XxHash64;

use crate::changes::{ChangePart, ChangeTracker};
use crate::mesh::{self, SERVICE_PORT};
use crate::resources::{NameId, ResourceId, ResourceTable};
use crate::types::Type;
use crate::wire::{AnyBytes, DeltaResponse, Named, Protocol, SotwResponse, StreamError};

/// How much of the mesh a proxy subscribes to, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// As an Evenkeel proxy that requests what its workload uses by name.
    Learned,
    /// As an Evenkeel proxy that holds everything, with one resource per virtual host and DNS name.
    Full,
    /// As a plain Envoy: all clusters and listeners, then endpoints and whole route tables by name.
    Envoy,
}

/// The role of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Beside a workload.
    Sidecar,
    /// At the edge of the mesh.
    Gateway,
}

/// A request of either protocol variant.
#[derive(Debug, Clone)]
pub enum Request {
    /// Incremental.
    Delta(DeltaDiscoveryRequest),
    /// State of the world.
    Sotw(DiscoveryRequest),
}

/// The result of processing a response.
#[derive(Debug, Default)]
pub struct Reaction {
    /// Requests to send: the acknowledgement first, then new subscriptions.
    pub requests: Vec<Request>,
    /// The parts of changes that the acknowledgement covers.
    pub marks: Vec<ChangePart>,
}

/// The counters of a proxy.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Counts {
    /// Streams opened.
    pub connects: u64,
    /// Connections that the server refused or closed.
    pub failures: u64,
    /// Responses; each was acknowledged.
    pub responses: u64,
    /// Resources received.
    pub resources: u64,
    /// Resources among them that it already held in the same version.
    pub resources_again: u64,
    /// Resources removed.
    pub removed: u64,
}

/// One proxy.
#[derive(Debug)]
pub struct Proxy {
    /// Its role.
    pub role: Role,
    /// Its counters.
    pub counts: Counts,
    /// The time from the fleet's start until it held its whole configuration.
    pub configured: Option<Duration>,
    pub(crate) scope: Scope,
    protocol: Protocol,
    node: Node,
    types: [TypeState; Type::ALL.len()],
    /// The hosts that its workload calls, for learned scope.
    used: Vec<String>,
}

#[derive(Debug, Default)]
struct TypeState {
    wildcard: bool,
    /// The subscribed names, each with the number of held resources that refer to it. At 0 the next request
    /// unsubscribes it.
    wanted: FxHashMap<NameId, u32>,
    /// Names whose subscription changed since the last request.
    touched: Vec<NameId>,
    held: FxHashMap<NameId, ResourceId>,
    /// The number of held resources that belong to the mesh's services.
    held_of_services: usize,
    /// Whether a request of this type was sent on this stream.
    asked: bool,
    sotw_version: String,
    sotw_nonce: String,
}

/// Listeners and clusters that every sidecar needs, with Istio's names.
const BASE_LISTENERS: [&str; 3] = ["virtualOutbound", "virtualInbound", "0.0.0.0_80"];
const BASE_CLUSTERS: [&str; 3] = ["BlackHoleCluster", "PassthroughCluster", "InboundPassthroughCluster"];

impl Proxy {
    /// Creates proxy number `index` of the fleet. `used` are the hosts that its workload calls; only learned scope
    /// needs them.
    pub fn new(
        index: usize,
        role: Role,
        scope: Scope,
        protocol: Protocol,
        used: Vec<String>,
        table: &mut ResourceTable,
    ) -> Self {
        // A gateway needs everything that its routes refer to, so it does not learn.
        let scope = if role == Role::Gateway && scope == Scope::Learned { Scope::Full } else { scope };
        let mut proxy = Self {
            role,
            counts: Counts::default(),
            configured: None,
            scope,
            protocol,
            node: node(index, role, scope),
            types: Default::default(),
            used: Vec::new(),
        };
        match scope {
            Scope::Envoy => proxy.want_all(&[Type::Cluster, Type::Listener]),
            Scope::Full if role == Role::Gateway => {
                proxy.want_all(&[Type::Cluster, Type::Endpoint, Type::Listener, Type::VirtualHost]);
            }
            Scope::Full => {
                proxy.want_all(&[Type::Cluster, Type::Endpoint, Type::Listener, Type::VirtualHost, Type::Name]);
            }
            Scope::Learned => {
                BASE_CLUSTERS.iter().for_each(|name| proxy.want(Type::Cluster, name, table));
                BASE_LISTENERS.iter().for_each(|name| proxy.want(Type::Listener, name, table));
                used.into_iter().for_each(|host| proxy.want_host(host, table));
            }
        }
        proxy
    }

    /// Its node id.
    pub fn id(&self) -> &str {
        &self.node.id
    }

    /// Whether changes of a service with this host must reach this proxy.
    pub fn is_concerned_by(&self, host: &str) -> bool {
        self.scope != Scope::Learned || self.uses(host)
    }

    /// Whether its workload calls this host.
    pub fn uses(&self, host: &str) -> bool {
        self.used.iter().any(|used| used == host)
    }

    /// Simulates the first call of the workload to a host. Returns the requests needed; none if the proxy holds
    /// everything anyway.
    pub fn first_use(&mut self, host: &str, table: &mut ResourceTable) -> Vec<Request> {
        if self.scope != Scope::Learned || self.uses(host) {
            return Vec::new();
        }
        self.want_host(host.to_owned(), table);
        self.subscribe(table)
    }

    fn want_host(&mut self, host: String, table: &mut ResourceTable) {
        let cluster = format!("outbound|{SERVICE_PORT}||{host}");
        self.want(Type::Cluster, &cluster, table);
        self.want(Type::Endpoint, &cluster, table);
        self.want(Type::VirtualHost, &format!("{SERVICE_PORT}/{host}"), table);
        self.want(Type::Name, &host, table);
        self.used.push(host);
    }

    fn want_all(&mut self, kinds: &[Type]) {
        kinds.iter().for_each(|kind| self.types[kind.index()].wildcard = true);
    }

    fn want(&mut self, kind: Type, name: &str, table: &mut ResourceTable) {
        let name = table.name(kind, &Bytes::copy_from_slice(name.as_bytes()));
        self.types[kind.index()].want(name);
    }

    /// Returns the first requests of a new stream, which contain all subscriptions and the versions held.
    pub fn on_connect(&mut self, table: &ResourceTable) -> Vec<Request> {
        self.counts.connects += 1;
        for state in &mut self.types {
            state.asked = false;
            state.sotw_nonce.clear();
        }
        let mut requests = self.subscribe(table);
        match requests.first_mut() {
            Some(Request::Delta(first)) => first.node = Some(self.node.clone()),
            Some(Request::Sotw(first)) => first.node = Some(self.node.clone()),
            None => {}
        }
        requests
    }

    /// Returns requests for changed subscriptions.
    fn subscribe(&mut self, table: &ResourceTable) -> Vec<Request> {
        let protocol = self.protocol;
        let states = Type::ALL.into_iter().zip(&mut self.types);
        states.filter_map(|(kind, state)| state.next_request(kind, protocol, table)).collect()
    }

    /// Processes a response of either protocol variant.
    pub fn on_response(
        &mut self,
        message: Bytes,
        table: &mut ResourceTable,
        tracker: &ChangeTracker,
    ) -> Result<Reaction, StreamError> {
        let malformed = |error: prost::DecodeError| StreamError::Malformed(error.to_string());
        match self.protocol {
            Protocol::Delta => {
                let response = DeltaResponse::decode(message).map_err(malformed)?;
                Ok(self.on_delta(response, table, tracker))
            }
            Protocol::Sotw => self.on_sotw(SotwResponse::decode(message).map_err(malformed)?, table, tracker),
        }
    }

    fn on_delta(&mut self, response: DeltaResponse, table: &mut ResourceTable, tracker: &ChangeTracker) -> Reaction {
        self.counts.responses += 1;
        let mut reaction = Reaction::default();
        let Some(kind) = Type::of_url(&response.type_url) else { return reaction };
        for resource in &response.resources {
            let id = table.see(kind, &resource.name, &resource.version, &resource.any, tracker);
            self.take(kind, id, table, &mut reaction.marks);
        }
        for name in &response.removed_resources {
            let name = table.name(kind, name);
            self.lose(kind, name, table, tracker, &mut reaction.marks);
        }
        reaction.requests.push(Request::Delta(DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: String::from_utf8_lossy(&response.nonce).into_owned(),
            ..Default::default()
        }));
        reaction.requests.extend(self.subscribe(table));
        reaction
    }

    fn on_sotw(
        &mut self,
        response: SotwResponse,
        table: &mut ResourceTable,
        tracker: &ChangeTracker,
    ) -> Result<Reaction, StreamError> {
        self.counts.responses += 1;
        let mut reaction = Reaction::default();
        let Some(kind) = Type::of_url(&response.type_url) else { return Ok(reaction) };
        let mut received = Vec::with_capacity(response.resources.len());
        for any in &response.resources {
            let malformed = |error: prost::DecodeError| StreamError::Malformed(error.to_string());
            let value = AnyBytes::decode(any.clone()).map_err(malformed)?.value;
            // A name table has no name, because there is only one.
            let name = match kind {
                Type::Name => Bytes::new(),
                _ => Named::decode(value).map_err(malformed)?.name,
            };
            let version = Bytes::copy_from_slice(&XxHash64::oneshot(0, any).to_be_bytes());
            let id = table.see(kind, &name, &version, any, tracker);
            received.push(table.name(kind, &name));
            self.take(kind, id, table, &mut reaction.marks);
        }
        // A response of these two types contains the full state (xDS protocol, "Deleting Resources").
        if matches!(kind, Type::Cluster | Type::Listener) {
            received.sort();
            let held = self.types[kind.index()].held.keys().copied();
            let gone: Vec<NameId> = held.filter(|name| received.binary_search(name).is_err()).collect();
            gone.into_iter().for_each(|name| self.lose(kind, name, table, tracker, &mut reaction.marks));
        }
        let state = &mut self.types[kind.index()];
        state.sotw_version = response.version_info;
        state.sotw_nonce = response.nonce;
        reaction.requests.push(state.sotw_request(kind, table));
        reaction.requests.extend(self.subscribe(table));
        Ok(reaction)
    }

    fn take(&mut self, kind: Type, id: ResourceId, table: &ResourceTable, marks: &mut Vec<ChangePart>) {
        self.counts.resources += 1;
        let Some(seen) = table.resource(id) else { return };
        marks.extend(&seen.marks);
        let state = &mut self.types[kind.index()];
        let before = state.held.insert(seen.name, id);
        if before == Some(id) {
            self.counts.resources_again += 1;
            return;
        }
        if before.is_none() && table.is_of_a_service(seen.name) {
            state.held_of_services += 1;
        }
        self.follow(id, table, TypeState::want);
        if let Some(before) = before {
            self.follow(before, table, TypeState::give_up);
        }
    }

    fn lose(
        &mut self,
        kind: Type,
        name: NameId,
        table: &ResourceTable,
        tracker: &ChangeTracker,
        marks: &mut Vec<ChangePart>,
    ) {
        marks.extend(tracker.mark_of_removal(kind, table.text(name)));
        let state = &mut self.types[kind.index()];
        let Some(id) = state.held.remove(&name) else { return };
        self.counts.removed += 1;
        if table.is_of_a_service(name) {
            state.held_of_services -= 1;
        }
        self.follow(id, table, TypeState::give_up);
    }

    /// Applies `step` to each name that a resource refers to, to subscribe or unsubscribe it.
    fn follow(&mut self, id: ResourceId, table: &ResourceTable, step: fn(&mut TypeState, NameId)) {
        for (kind, name) in table.resource(id).into_iter().flat_map(|seen| &seen.names_others) {
            let state = &mut self.types[kind.index()];
            // With learned scope, an Evenkeel proxy subscribes to endpoints together with the clusters.
            if !state.wildcard && (self.scope != Scope::Learned || *kind == Type::Route) {
                step(state, *name);
            }
        }
    }

    /// Whether it holds its whole configuration of a mesh with this number of services.
    pub fn holds_all(&self, services: usize) -> bool {
        let all_wanted = |kind: Type| {
            let state = &self.types[kind.index()];
            state.wanted.keys().all(|name| state.held.contains_key(name))
        };
        let of_services = |kind: Type| self.types[kind.index()].held_of_services >= services;
        let routes = !self.types[Type::Route.index()].held.is_empty() && all_wanted(Type::Route);
        routes
            && match self.scope {
                Scope::Envoy => of_services(Type::Cluster) && of_services(Type::Endpoint),
                Scope::Full => [Type::Cluster, Type::Endpoint, Type::VirtualHost].into_iter().all(of_services),
                Scope::Learned => [Type::Cluster, Type::Endpoint, Type::VirtualHost].into_iter().all(all_wanted),
            }
    }

    /// Whether it holds the resources that a call to the host needs.
    pub fn can_call(&self, host: &str, table: &mut ResourceTable) -> bool {
        let mut holds = |kind: Type, name: &str| {
            let name = table.name(kind, &Bytes::copy_from_slice(name.as_bytes()));
            self.types[kind.index()].held.contains_key(&name)
        };
        let cluster = format!("outbound|{SERVICE_PORT}||{host}");
        holds(Type::Cluster, &cluster)
            && holds(Type::Endpoint, &cluster)
            && holds(Type::VirtualHost, &format!("{SERVICE_PORT}/{host}"))
    }

    /// The number of resources that it holds, by type.
    pub fn held(&self) -> BTreeMap<String, usize> {
        let states = Type::ALL.into_iter().zip(&self.types).filter(|(_, state)| !state.held.is_empty());
        states.map(|(kind, state)| (format!("{kind:?}"), state.held.len())).collect()
    }
}

impl TypeState {
    fn want(&mut self, name: NameId) {
        let count = self.wanted.entry(name).or_default();
        *count += 1;
        if *count == 1 {
            self.touched.push(name);
        }
    }

    fn give_up(&mut self, name: NameId) {
        if let Some(count) = self.wanted.get_mut(&name) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                self.touched.push(name);
            }
        }
    }

    fn is_subscribed(&self) -> bool {
        self.wildcard || !self.wanted.is_empty()
    }

    fn next_request(&mut self, kind: Type, protocol: Protocol, table: &ResourceTable) -> Option<Request> {
        if !self.is_subscribed() {
            return None;
        }
        if !self.asked {
            self.asked = true;
            self.touched.clear();
            self.wanted.retain(|_, count| *count > 0);
            return Some(match protocol {
                Protocol::Delta => self.first_delta_request(kind, table),
                Protocol::Sotw => self.sotw_request(kind, table),
            });
        }
        let (added, gone) = self.settle_touched(table);
        if added.is_empty() && gone.is_empty() {
            return None;
        }
        let texts = |names: Vec<NameId>| names.into_iter().map(|name| table.text(name).to_owned()).collect();
        Some(match protocol {
            Protocol::Sotw => self.sotw_request(kind, table),
            Protocol::Delta => Request::Delta(DeltaDiscoveryRequest {
                type_url: kind.url().to_owned(),
                resource_names_subscribe: texts(added),
                resource_names_unsubscribe: texts(gone),
                ..Default::default()
            }),
        })
    }

    /// Returns the names to subscribe to, which are not held yet, and the names to unsubscribe from.
    fn settle_touched(&mut self, table: &ResourceTable) -> (Vec<NameId>, Vec<NameId>) {
        let mut touched = std::mem::take(&mut self.touched);
        touched.sort();
        touched.dedup();
        let (mut added, mut gone) = (Vec::new(), Vec::new());
        for name in touched {
            match self.wanted.get(&name) {
                Some(0) => {
                    self.wanted.remove(&name);
                    if self.held.remove(&name).is_some() && table.is_of_a_service(name) {
                        self.held_of_services -= 1;
                    }
                    gone.push(name);
                }
                Some(_) if !self.held.contains_key(&name) => added.push(name),
                _ => {}
            }
        }
        (added, gone)
    }

    fn first_delta_request(&self, kind: Type, table: &ResourceTable) -> Request {
        let text = |name: &NameId| table.text(*name).to_owned();
        let version = |(name, id): (&NameId, &ResourceId)| {
            let version = &table.resource(*id)?.version;
            Some((text(name), String::from_utf8_lossy(version).into_owned()))
        };
        // Listing no names is the oldest form of the wildcard, and all servers know it. Other types do not have this
        // form.
        let names_all = self.wildcard && !matches!(kind, Type::Cluster | Type::Listener | Type::Name);
        let star = names_all.then(|| "*".to_owned());
        Request::Delta(DeltaDiscoveryRequest {
            type_url: kind.url().to_owned(),
            resource_names_subscribe: self.wanted.keys().map(text).chain(star).collect(),
            initial_resource_versions: self.held.iter().filter_map(version).collect(),
            ..Default::default()
        })
    }

    fn sotw_request(&self, kind: Type, table: &ResourceTable) -> Request {
        Request::Sotw(DiscoveryRequest {
            version_info: self.sotw_version.clone(),
            response_nonce: self.sotw_nonce.clone(),
            type_url: kind.url().to_owned(),
            resource_names: if self.wildcard {
                Vec::new()
            } else {
                self.wanted.keys().map(|name| table.text(*name).to_owned()).collect()
            },
            ..Default::default()
        })
    }
}

/// The number of namespaces that the clients are distributed over.
const CLIENT_NAMESPACES: usize = 10;

fn node(index: usize, role: Role, scope: Scope) -> Node {
    let text = |text: &str| Value { kind: Some(Kind::StringValue(text.to_owned())) };
    let object = |fields: &[(&str, Value)]| Value {
        kind: Some(Kind::StructValue(Struct {
            fields: fields.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect(),
        })),
    };
    let (kind, namespace, workload) = match role {
        Role::Sidecar => ("sidecar", format!("clients-{}", index % CLIENT_NAMESPACES), format!("client-{index}")),
        Role::Gateway => ("router", mesh::NAMESPACE.to_owned(), format!("{}-{index}", mesh::GATEWAY)),
    };
    let labels = match role {
        Role::Sidecar => object(&[("app", text(&workload))]),
        Role::Gateway => object(&[("istio", text(mesh::GATEWAY))]),
    };
    let mut metadata = vec![
        ("NAME", text(&format!("{workload}-0"))),
        ("NAMESPACE", text(&namespace)),
        ("SERVICE_ACCOUNT", text(&workload)),
        ("WORKLOAD_NAME", text(&workload)),
        ("CLUSTER_ID", text("Kubernetes")),
        ("LABELS", labels),
    ];
    match scope {
        Scope::Envoy => {}
        Scope::Full => metadata.push(("EVENKEEL", object(&[("SCOPE", text("full"))]))),
        Scope::Learned => metadata.push(("EVENKEEL", object(&[("SCOPE", text("learned"))]))),
    }
    // 172.16.0.0/12
    let address = mesh::Address::from(0xac10_0000 + u32::try_from(index + 1).unwrap_or(u32::MAX) % (1 << 20));
    Node {
        id: format!("{kind}~{address}~{workload}-0.{namespace}~{namespace}.svc.cluster.local"),
        cluster: format!("{workload}.{namespace}"),
        metadata: Some(Struct { fields: metadata.into_iter().map(|(name, value)| (name.to_owned(), value)).collect() }),
        ..Default::default()
    }
}
