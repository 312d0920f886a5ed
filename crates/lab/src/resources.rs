//! Every resource that any proxy of the fleet has received: its name, the other resources that it refers to, and the
//! parts of pending changes that it carries. A route table that 200 proxies receive is thus decoded only once.

use bytes::Bytes;
use evenkeel_xds::pb::envoy::config::listener::v3::Listener;
use evenkeel_xds::pb::envoy::config::listener::v3::filter::ConfigType;
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};
use evenkeel_xds::unpack;
use prost::Message as _;
use rustc_hash::FxHashMap;

use crate::changes::{ChangePart, ChangeTracker};
use crate::mesh::Mesh;
use crate::types::Type;
use crate::wire::{AnyBytes, LeanCluster};

/// Index of a resource name in the [`ResourceTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NameId(u32);

/// Index of one version of a resource in the [`ResourceTable`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ResourceId(u32);

/// All names and resources received so far.
#[derive(Debug, Default)]
pub struct ResourceTable {
    name_ids: FxHashMap<(Type, Bytes), NameId>,
    names: Vec<Name>,
    resource_ids: FxHashMap<(NameId, Bytes), ResourceId>,
    resources: Vec<KnownResource>,
}

#[derive(Debug)]
struct Name {
    text: String,
    of_a_service: bool,
}

/// The facts about one version of a resource.
#[derive(Debug)]
pub struct KnownResource {
    /// Its name.
    pub name: NameId,
    /// Its version, as sent by the server.
    pub version: Bytes,
    /// The parts of changes that it carries.
    pub marks: Vec<ChangePart>,
    /// The number of changes begun when `marks` was computed.
    as_of: usize,
    /// The names of other resources that a client subscribes to because of this one.
    pub names_others: Vec<(Type, NameId)>,
}

impl ResourceTable {
    /// Returns the id of a name, and creates it if needed.
    pub fn name(&mut self, kind: Type, name: &Bytes) -> NameId {
        let key = (kind, name.clone());
        if let Some(id) = self.name_ids.get(&key) {
            return *id;
        }
        let id = NameId(u32::try_from(self.names.len()).unwrap_or(u32::MAX));
        let text = String::from_utf8_lossy(name).into_owned();
        let of_a_service = Mesh::is_of_a_service(&text);
        self.names.push(Name { text, of_a_service });
        // The name is copied, because the slice would keep the whole response in memory.
        self.name_ids.insert((kind, Bytes::copy_from_slice(name)), id);
        id
    }

    /// The text of a name.
    pub fn text(&self, name: NameId) -> &str {
        self.names.get(name.0 as usize).map_or("", |name| &name.text)
    }

    /// Whether a name belongs to one of the mesh's services.
    pub fn is_of_a_service(&self, name: NameId) -> bool {
        self.names.get(name.0 as usize).is_some_and(|name| name.of_a_service)
    }

    /// The facts about one version of a resource.
    pub fn resource(&self, id: ResourceId) -> Option<&KnownResource> {
        self.resources.get(id.0 as usize)
    }

    /// Records a resource that a proxy received, and decodes it if it is new.
    pub fn see(
        &mut self,
        kind: Type,
        name: &Bytes,
        version: &Bytes,
        any: &Bytes,
        tracker: &ChangeTracker,
    ) -> ResourceId {
        let name_id = self.name(kind, name);
        let key = (name_id, version.clone());
        if let Some(id) = self.resource_ids.get(&key).copied() {
            // A later change may bring back an earlier version, so its marks are computed again.
            if self.resource(id).is_some_and(|seen| seen.as_of != tracker.begun()) {
                let marks = tracker.marks(kind, self.text(name_id), any);
                if let Some(seen) = self.resources.get_mut(id.0 as usize) {
                    (seen.marks, seen.as_of) = (marks, tracker.begun());
                }
            }
            return id;
        }
        let id = ResourceId(u32::try_from(self.resources.len()).unwrap_or(u32::MAX));
        let version = Bytes::copy_from_slice(version);
        let marks = tracker.marks(kind, self.text(name_id), any);
        let others = named_by(kind, any);
        let names_others = others.into_iter().map(|(kind, name)| (kind, self.name(kind, &name))).collect();
        self.resources.push(KnownResource {
            name: name_id,
            version: version.clone(),
            marks,
            as_of: tracker.begun(),
            names_others,
        });
        self.resource_ids.insert((name_id, version), id);
        id
    }
}

/// The value of `DiscoveryType::EDS`.
const EDS: i32 = 3;

/// The resources that a client subscribes to because of this one. Empty if it cannot be decoded; the proxy's own tests
/// find such errors.
fn named_by(kind: Type, any: &Bytes) -> Vec<(Type, Bytes)> {
    let value = || AnyBytes::decode(any.clone()).map(|any| any.value);
    match kind {
        Type::Cluster => {
            let Ok(cluster) = value().and_then(LeanCluster::decode) else { return Vec::new() };
            if cluster.discovery_type != EDS {
                return Vec::new();
            }
            let own = cluster.eds.map(|eds| eds.service_name).filter(|name| !name.is_empty());
            vec![(Type::Endpoint, own.unwrap_or(cluster.name))]
        }
        Type::Listener => {
            let Ok(listener) = value().and_then(Listener::decode) else { return Vec::new() };
            let mut names: Vec<String> = route_names(&listener);
            names.sort();
            names.dedup();
            names.into_iter().map(|name| (Type::Route, Bytes::from(name))).collect()
        }
        _ => Vec::new(),
    }
}

fn route_names(listener: &Listener) -> Vec<String> {
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let configs = chains.flat_map(|chain| &chain.filters).filter_map(|filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(config)) => unpack::<HttpConnectionManager>(config).ok(),
        _ => None,
    });
    configs
        .filter_map(|manager| match manager.route_specifier {
            Some(RouteSpecifier::Rds(rds)) => Some(rds.route_config_name),
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::changes::{Change, ChangeKind};
    use evenkeel_xds::pack;
    use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
    use evenkeel_xds::pb::envoy::config::cluster::v3::cluster::{
        ClusterDiscoveryType, DiscoveryType, EdsClusterConfig,
    };
    use evenkeel_xds::pb::envoy::config::listener::v3::{Filter, FilterChain};
    use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::Rds;

    #[test]
    fn a_resource_names_what_to_ask_for_next() {
        let check = |kind, any: evenkeel_xds::Any, expected: &[(Type, &str)]| {
            let found = named_by(kind, &Bytes::from(any.encode_to_vec()));
            let found: Vec<(Type, &str)> =
                found.iter().map(|(kind, name)| (*kind, std::str::from_utf8(name).expect("text"))).collect();
            assert_eq!(found, expected);
        };
        let cluster = |kind: DiscoveryType, service: &str| Cluster {
            name: "c".to_owned(),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind as i32)),
            eds_cluster_config: Some(EdsClusterConfig { service_name: service.to_owned(), ..Default::default() }),
            ..Default::default()
        };
        check(Type::Cluster, pack(&cluster(DiscoveryType::Eds, "")), &[(Type::Endpoint, "c")]);
        check(Type::Cluster, pack(&cluster(DiscoveryType::Eds, "e")), &[(Type::Endpoint, "e")]);
        check(Type::Cluster, pack(&cluster(DiscoveryType::Static, "e")), &[]);
        let manager = HttpConnectionManager {
            route_specifier: Some(RouteSpecifier::Rds(Rds {
                route_config_name: "80".to_owned(),
                ..Default::default()
            })),
            ..Default::default()
        };
        let filter = Filter { config_type: Some(ConfigType::TypedConfig(pack(&manager))), ..Default::default() };
        let chain = FilterChain { filters: vec![filter], ..Default::default() };
        let listener =
            Listener { filter_chains: vec![chain.clone()], default_filter_chain: Some(chain), ..Default::default() };
        check(Type::Listener, pack(&listener), &[(Type::Route, "80")]);
    }

    #[test]
    fn the_same_version_is_looked_into_once() {
        let (mut table, tracker) = (ResourceTable::default(), ChangeTracker::default());
        let (name, any) = (Bytes::from_static(b"x"), Bytes::new());
        let mut see =
            |kind, version: &'static [u8]| table.see(kind, &name, &Bytes::from_static(version), &any, &tracker);
        let first = see(Type::Endpoint, b"1");
        assert_eq!(see(Type::Endpoint, b"1"), first);
        assert_ne!(see(Type::Endpoint, b"2"), first);
        assert_ne!(see(Type::Cluster, b"1"), first);
    }

    #[test]
    fn a_version_that_comes_back_brings_what_came_between() {
        let (mut table, mut tracker) = (ResourceTable::default(), ChangeTracker::default());
        let (name, version) = (Bytes::from_static(b"outbound|80||svc-7.lab"), Bytes::from_static(b"1"));
        let any = Bytes::from_static(b"\x0810.0.0.7");
        let id = table.see(Type::Endpoint, &name, &version, &any, &tracker);
        let (host, address) = ("svc-7.lab".to_owned(), "10.0.0.9".to_owned());
        tracker.begin(Change { kind: ChangeKind::RemoveEndpoint, service: 7, host, mark: address }, [0]);
        assert_eq!(table.see(Type::Endpoint, &name, &version, &any, &tracker), id);
        assert_eq!(table.resource(id).map(|seen| seen.marks.len()), Some(1));
    }
}
