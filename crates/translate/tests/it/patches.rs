//! Every message passes the last step before it is encoded, where a patch changes it.

use evenkeel_translate::{
    ClientKind, MessageKind, Patch, Patches, ProxyKind, ProxyView, Typed, patched_resources, resources,
};
use evenkeel_xds::pb::envoy::config::cluster::v3::Cluster;
use evenkeel_xds::pb::envoy::config::endpoint::v3::ClusterLoadAssignment;
use evenkeel_xds::pb::envoy::config::listener::v3::{Filter, Listener, filter::ConfigType};
use evenkeel_xds::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};
use evenkeel_xds::pb::envoy::extensions::filters::network::http_connection_manager::v3::HttpConnectionManager;
use evenkeel_xds::{ResourceType, unpack};
use prost::Message;

use crate::scenario::{SCENARIOS, Scenario};

/// The mark of [`Mark`].
const MARK: &str = "p";

/// Leaves a mark in every message: two marks show a message that passed by twice.
#[derive(Debug)]
struct Mark;

impl Patch for Mark {
    fn reaches(&self, _: MessageKind) -> bool {
        true
    }

    fn apply(&self, message: Typed<'_>) {
        match message {
            Typed::Listener(listener) => listener.stat_prefix.push_str(MARK),
            Typed::ConnectionManager(manager) => manager.via.push_str(MARK),
            Typed::Cluster(cluster) => cluster.alt_stat_name.push_str(MARK),
            Typed::Routes(routes) => routes.internal_only_headers.push(MARK.to_owned()),
            Typed::VirtualHost(table, host) => host.request_headers_to_remove.push(format!("{MARK} {table}")),
            Typed::Endpoints(assigned) => assigned.endpoints.push(Default::default()),
            Typed::Secret(secret) => secret.r#type = None,
        }
    }
}

/// Reaches one kind, and leaves it as it is.
#[derive(Debug)]
struct Idle(MessageKind);

impl Patch for Idle {
    fn reaches(&self, kind: MessageKind) -> bool {
        kind == self.0
    }

    fn apply(&self, message: Typed<'_>) {
        let fits = matches!(
            (self.0, message),
            (MessageKind::Listener, Typed::Listener(_))
                | (MessageKind::ConnectionManager, Typed::ConnectionManager(_))
                | (MessageKind::Cluster, Typed::Cluster(_))
                | (MessageKind::Routes, Typed::Routes(_))
                | (MessageKind::VirtualHost, Typed::VirtualHost(..))
                | (MessageKind::Endpoints, Typed::Endpoints(_))
                | (MessageKind::Secret, Typed::Secret(_))
        );
        assert!(fits, "a message of a kind that it does not reach");
    }
}

/// Each proxy of each scenario, as each kind of client.
fn each_proxy(check: impl Fn(&str, &ProxyView, &Scenario)) {
    for name in SCENARIOS {
        let scenario = Scenario::read(name);
        for view in &scenario.proxies {
            for client_kind in [ClientKind::Envoy, ClientKind::EvenkeelLearned, ClientKind::Grpc] {
                if client_kind == ClientKind::Grpc && view.kind != ProxyKind::Sidecar {
                    continue;
                }
                let view = ProxyView { client_kind, ..view.clone() };
                check(&format!("{name}, {} as {client_kind:?}", view.pod), &view, &scenario);
            }
        }
    }
}

fn managers(listener: &Listener) -> Vec<HttpConnectionManager> {
    let chains = listener.filter_chains.iter().chain(&listener.default_filter_chain);
    let filters = chains.flat_map(|chain| &chain.filters).filter_map(|filter: &Filter| match &filter.config_type {
        Some(ConfigType::TypedConfig(any)) => Some(any),
        _ => None,
    });
    let api = listener.api_listener.iter().filter_map(|api| api.api_listener.as_ref());
    let url = evenkeel_xds::type_url::of::<HttpConnectionManager>();
    let packed = filters.chain(api).filter(|any| any.type_url == url);
    packed.map(|any| unpack(any).expect("a connection manager")).collect()
}

fn marks(host: &VirtualHost) -> Vec<&String> {
    host.request_headers_to_remove.iter().filter(|header| header.starts_with(MARK)).collect()
}

#[test]
fn a_patch_changes_every_message_once() {
    each_proxy(|name, view, scenario| {
        let set = patched_resources(view, &scenario.snapshot, Patches::new(&[&Mark]));
        let is_grpc = view.client_kind == ClientKind::Grpc;
        for (of, resource) in set.of(ResourceType::Listener) {
            let listener = Listener::decode(resource.value()).expect("a listener");
            assert_eq!(listener.stat_prefix, MARK, "{name}: {of}");
            managers(&listener).iter().for_each(|manager| assert_eq!(manager.via, MARK, "{name}: {of}"));
        }
        for (of, resource) in set.of(ResourceType::Route) {
            let table = RouteConfiguration::decode(resource.value()).expect("a table");
            assert_eq!(table.internal_only_headers, [MARK], "{name}: {of}");
            for host in table.virtual_hosts.iter().filter(|_| !is_grpc) {
                assert_eq!(marks(host), [&format!("{MARK} {of}")], "{name}: {}", host.name);
            }
        }
        for (of, resource) in set.of(ResourceType::VirtualHost) {
            let host = VirtualHost::decode(resource.value()).expect("a host");
            let table = of.rsplit_once('/').expect("a table").0;
            assert_eq!(marks(&host), [&format!("{MARK} {table}")], "{name}: {of}");
        }
        for (of, resource) in set.of(ResourceType::Cluster) {
            let cluster = Cluster::decode(resource.value()).expect("a cluster");
            assert!(cluster.alt_stat_name.matches(MARK).count() >= 1, "{name}: {of}");
        }
        for (of, resource) in set.of(ResourceType::Endpoint) {
            let assigned = ClusterLoadAssignment::decode(resource.value()).expect("endpoints");
            let added = assigned.endpoints.iter().filter(|locality| **locality == Default::default()).count();
            assert_eq!(added, 1, "{name}: {of}");
        }
    });
}

#[test]
fn what_a_patch_leaves_as_it_is_stays_the_same_bytes() {
    use MessageKind::{Cluster, ConnectionManager, Endpoints, Listener, Routes, Secret, VirtualHost};
    let kinds = [Listener, ConnectionManager, Cluster, Routes, VirtualHost, Endpoints, Secret];
    let idle = kinds.map(Idle);
    let all = [&idle[0] as &dyn Patch, &idle[1], &idle[2], &idle[3], &idle[4], &idle[5], &idle[6]];
    each_proxy(|name, view, scenario| {
        let plain = resources(view, &scenario.snapshot, 1);
        let patched = patched_resources(view, &scenario.snapshot, Patches::new(&all));
        for kind in ResourceType::ALL {
            assert!(plain.of(kind).iter().eq(patched.of(kind).iter()), "{name}: {kind}");
        }
    });
}
