//! Listeners of sidecars and gateways.

pub mod gateway;
pub mod inbound;
mod inspectors;
mod l4;
pub mod outbound;
pub mod sni_dnat;
pub mod udp;

use std::time::Duration;

use crate::access_log;
use crate::context::Context;
use crate::output::Output;
use crate::pb::config::listener::listener::ConnectionBalanceConfig;
use crate::pb::config::listener::listener::connection_balance_config::{BalanceType, ExactBalance};
use crate::pb::config::listener::{Filter, FilterChain, FilterChainMatch, Listener};
use crate::pb::core::{Metadata, TrafficDirection, TransportSocket};
use crate::proto::{address, bool_value, duration, metadata};
use crate::view::ClientKind;

/// The listeners every proxy has.
pub fn basics(context: Context<'_>, out: &mut Output<'_>) {
    // Nothing would arrive there.
    if context.is_sidecar() && !context.is_uncaptured() {
        let made = outbound::virtual_outbound(context);
        out.add(made, None);
    }
}

/// A listener without filter chains.
fn listener(name: String, host: &str, port: u16, direction: TrafficDirection) -> Listener {
    Listener {
        name,
        address: Some(address(host, u32::from(port))),
        traffic_direction: direction as i32,
        ..Default::default()
    }
}

/// Envoy's exact balance of a listener's connections over workers. Evenkeel's proxy always balances, and needs no setting.
fn balance(context: Context<'_>, is_exact: bool) -> Option<ConnectionBalanceConfig> {
    let exact = || ConnectionBalanceConfig { balance_type: Some(BalanceType::ExactBalance(ExactBalance {})) };
    (is_exact && !context.client_kind().is_evenkeel()).then(exact)
}

/// How long a client's TLS handshake may take, as in Istio. Envoy's default is no limit.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Sets a chain's transport socket, if it has one, and a limit for the handshake.
fn secured(mut chain: FilterChain, socket: Option<TransportSocket>) -> FilterChain {
    chain.transport_socket_connect_timeout = socket.is_some().then(|| duration(HANDSHAKE_TIMEOUT));
    chain.transport_socket = socket;
    chain
}

/// A filter chain; an empty match is left out.
fn chain(name: &str, wanted: FilterChainMatch, filters: Vec<Filter>) -> FilterChain {
    FilterChain {
        name: name.to_owned(),
        filter_chain_match: (wanted != FilterChainMatch::default()).then_some(wanted),
        filters,
        ..Default::default()
    }
}

/// Metadata that makes a proxy with learned scope request listeners that bind ports of their own, because no connection
/// would trigger that.
fn companions(context: Context<'_>, names: impl Iterator<Item = String>) -> Option<Metadata> {
    let names: Vec<String> = names.collect();
    let is_wanted = context.client_kind() == ClientKind::EvenkeelLearned && !names.is_empty();
    is_wanted.then(|| metadata("evenkeel.dev", "listeners", &names.join(",")))
}

/// A listener that gets its connections from `virtualOutbound`.
fn unbound(context: Context<'_>, mut listener: Listener) -> Listener {
    listener.bind_to_port = Some(bool_value(false));
    listener.access_log = access_log::of_unmatched(context);
    listener
}
