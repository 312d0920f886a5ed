//! Listeners of gRPC servers, requested by the address a server listens on: whether it uses mutual TLS, and whom it
//! serves.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use evenkeel_model::MtlsMode;

use crate::context::Context;
use crate::finish::connection_manager;
use crate::output::Output;
use crate::pb::config::listener::{FilterChain, Listener};
use crate::pb::config::route::{NonForwardingAction, Route, RouteConfiguration, VirtualHost, route};
use crate::pb::hcm::{HttpConnectionManager, HttpFilter, http_connection_manager::RouteSpecifier};
use crate::proto::address;
use crate::routes::matches;
use crate::{ext_authz, http, jwt, rbac, tls};

/// The prefix of these listeners' names, as in the `server_listener_resource_name_template` of Istio's agent.
const NAME_PREFIX: &str = "xds.istio.io/grpc/lds/inbound/";
/// The label of workloads whose servers use mutual TLS.
const TLS_MODE_LABEL: &str = "security.istio.io/tlsMode";
/// Its value.
const TLS_MODE_ISTIO: &str = "istio";
/// Addresses a server may listen on besides its workload's own.
const USUAL_ADDRESSES: [IpAddr; 4] = [
    IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    IpAddr::V4(Ipv4Addr::LOCALHOST),
    IpAddr::V6(Ipv6Addr::LOCALHOST),
];

/// A listener for each service port of the workload and for each address that a server may have bound: gRPC serves only
/// if the address is the one it listens on.
pub fn listeners(context: Context<'_>, out: &mut Output<'_>) {
    let own = context.workload().map(|workload| workload.addresses.as_slice()).unwrap_or_default();
    for port in context.inbound_ports() {
        let chain = chain(context, port.port);
        let origin = port.service.as_ref().map(|(service, _)| service.origin.clone());
        for bound in USUAL_ADDRESSES.iter().chain(own) {
            let made = Listener {
                name: format!("{NAME_PREFIX}{}", SocketAddr::new(*bound, port.port)),
                address: Some(address(&bound.to_string(), u32::from(port.port))),
                filter_chains: vec![chain.clone()],
                ..Default::default()
            };
            out.add(made, origin.clone());
        }
    }
}

/// The only filter chain. gRPC cannot detect TLS, so PERMISSIVE becomes either TLS or plain text, as in Istio: mutual
/// TLS if the workload's label makes its clients use it.
fn chain(context: Context<'_>, port: u16) -> FilterChain {
    let takes_tls = match context.snapshot.mtls_mode(context.namespace(), &context, port) {
        MtlsMode::Strict => true,
        MtlsMode::Permissive => &*context.label(&TLS_MODE_LABEL.into()) == TLS_MODE_ISTIO,
        MtlsMode::Disable => false,
    };
    let manager = HttpConnectionManager {
        route_specifier: Some(RouteSpecifier::RouteConfig(to_the_server())),
        http_filters: filters(context),
        ..Default::default()
    };
    FilterChain {
        name: if takes_tls { "inbound-mtls" } else { "inbound-plaintext" }.to_owned(),
        filters: vec![connection_manager(context.patches(), manager)],
        transport_socket: takes_tls.then(tls::proxyless_server),
        ..Default::default()
    }
}

/// The RBAC filters, first the one in place of what checks tokens, then the router. gRPC requires a unique name for each filter.
fn filters(context: Context<'_>) -> Vec<HttpFilter> {
    let mut filters = ext_authz::refusing_filters(context);
    filters.extend(rbac::http_filters(context));
    if let [deny, _allow] = filters.as_mut_slice() {
        deny.name.push_str(".DENY");
    }
    if let Some(mut tokens) = jwt::grpc_filter(context) {
        tokens.name.push_str(".TOKENS");
        filters.insert(0, tokens);
    }
    filters.push(http::router());
    filters
}

fn to_the_server() -> RouteConfiguration {
    let route = Route {
        r#match: Some(matches::everything()),
        action: Some(route::Action::NonForwardingAction(NonForwardingAction {})),
        ..Default::default()
    };
    let host = VirtualHost {
        name: "inbound".to_owned(),
        domains: vec!["*".to_owned()],
        routes: vec![route],
        ..Default::default()
    };
    RouteConfiguration { name: "inbound".to_owned(), virtual_hosts: vec![host], ..Default::default() }
}
