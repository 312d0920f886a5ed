//! Istio's exchange of metadata over TCP, `istio.metadata_exchange`: both ends of a connection with mutual TLS tell which workload they are
//! for. Only Evenkeel's proxies get it: a stock Envoy has no such filter.

use evenkeel_xds::istio::metadata_exchange::MetadataExchange;
use evenkeel_xds::pb::envoy::config::cluster::v3 as cluster;
use evenkeel_xds::pb::envoy::config::listener::v3::Filter;

use crate::context::Context;
use crate::proto::{self, any};

/// Istio's name of the filters.
const NAME: &str = "istio.metadata_exchange";
/// The ALPN protocol of connections that begin with the exchange.
pub const PEER_EXCHANGE: &str = "istio-peer-exchange";

/// The server's side, before the filters that decide.
pub fn of_listener(context: Context<'_>) -> Option<Filter> {
    exchanges(context).then(|| proto::network_filter(NAME, any(&config())))
}

/// The client's side.
pub fn of_cluster(context: Context<'_>) -> Vec<cluster::Filter> {
    let filter = || cluster::Filter { name: NAME.to_owned(), typed_config: Some(any(&config())), ..Default::default() };
    exchanges(context).then(filter).into_iter().collect()
}

/// Whether the proxy has the filter.
pub fn exchanges(context: Context<'_>) -> bool {
    context.client_kind().is_evenkeel()
}

fn config() -> MetadataExchange {
    MetadataExchange { protocol: PEER_EXCHANGE.to_owned(), ..Default::default() }
}
