//! The names of resources that a proxy must wait for because of a resource.

use std::sync::Arc;

use prost::Message as _;

use crate::pb::envoy::config::cluster::v3::Cluster;
use crate::pb::envoy::config::cluster::v3::cluster::{ClusterDiscoveryType, DiscoveryType};
use crate::pb::envoy::config::listener::v3::{Listener, filter::ConfigType};
use crate::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};
use crate::type_url;

/// Returns the endpoints that a cluster needs, or the route tables that a listener needs; empty if it cannot be decoded.
pub(crate) fn of(url: &str, value: &[u8]) -> Box<[Arc<str>]> {
    match url {
        type_url::CLUSTER => eds_name(value).map(Arc::from).into_iter().collect(),
        type_url::LISTENER => rds_names(value).into_iter().map(Arc::from).collect(),
        _ => Box::default(),
    }
}

fn eds_name(value: &[u8]) -> Option<String> {
    let cluster = Cluster::decode(value).ok()?;
    let eds = ClusterDiscoveryType::Type(DiscoveryType::Eds as i32);
    if cluster.cluster_discovery_type != Some(eds) {
        return None;
    }
    let service = cluster.eds_cluster_config.map(|config| config.service_name).filter(|name| !name.is_empty());
    Some(service.unwrap_or(cluster.name))
}

fn rds_names(value: &[u8]) -> Vec<String> {
    let Ok(listener) = Listener::decode(value) else { return Vec::new() };
    let chains = listener.filter_chains.into_iter().chain(listener.default_filter_chain);
    let mut names: Vec<String> = chains
        .flat_map(|chain| chain.filters)
        .filter_map(|filter| match filter.config_type? {
            ConfigType::TypedConfig(any) => crate::unpack::<HttpConnectionManager>(&any).ok(),
            ConfigType::ConfigDiscovery(_) => None,
        })
        .filter_map(|manager| match manager.route_specifier? {
            RouteSpecifier::Rds(rds) => Some(rds.route_config_name),
            _ => None,
        })
        .collect();
    names.sort();
    names.dedup();
    names
}
