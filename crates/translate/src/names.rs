//! Names of clusters, listeners, routes and SNI values, as Istio spells them.

use crate::traffic::InnerProtocol;
use evenkeel_base::hostname::Hostname;
use evenkeel_model::Service;
use evenkeel_model::service::ServicePort;

/// Traffic to unknown destinations, sent to the address that the workload called.
pub const PASSTHROUGH_CLUSTER: &str = "PassthroughCluster";
/// HTTP to unknown hosts, sent to the address that DNS has for the host.
pub const ALLOW_ANY_DYNAMIC_DNS_CLUSTER: &str = "AllowAnyDynamicDNSCluster";
/// Traffic that must not leave.
pub const BLACK_HOLE_CLUSTER: &str = "BlackHoleCluster";
/// Traffic to a port of the workload that no Service names.
pub const INBOUND_PASSTHROUGH_CLUSTER: &str = "InboundPassthroughCluster";
/// The listener for captured outbound connections.
pub const VIRTUAL_OUTBOUND: &str = "virtualOutbound";
/// The listener for captured inbound connections.
pub const VIRTUAL_INBOUND: &str = "virtualInbound";
/// Port of [`VIRTUAL_OUTBOUND`].
pub const VIRTUAL_OUTBOUND_PORT: u16 = 15001;
/// Port of [`VIRTUAL_INBOUND`].
pub const VIRTUAL_INBOUND_PORT: u16 = 15006;

/// `outbound|PORT|SUBSET|HOST`; `subset` is empty for the whole service.
pub fn outbound_cluster(port: u16, subset: &str, host: &Hostname) -> String {
    format!("outbound|{port}|{subset}|{host}")
}

/// `outbound_.PORT_.SUBSET_.HOST`: a gateway's cluster, and the SNI of the connections that are passed on to it unread.
pub fn sni_dnat_cluster(port: u16, subset: &str, host: &Hostname) -> String {
    mesh_sni(port, subset, host)
}

/// `inbound|PORT||`.
pub fn inbound_cluster(port: u16) -> String {
    format!("inbound|{port}||")
}

/// `outbound_.PORT_.SUBSET_.HOST`, the SNI mesh clients send.
pub fn mesh_sni(port: u16, subset: &str, host: &Hostname) -> String {
    format!("outbound_.{port}_.{subset}_.{host}")
}

/// The virtual host of a service's port.
pub fn virtual_host(host: &str, port: u16) -> String {
    format!("{host}:{port}")
}

/// `ADDRESS_PORT`.
pub fn listener(address: &str, port: u16) -> String {
    format!("{address}_{port}")
}

/// `udp_ADDRESS_PORT`: a listener for datagrams.
pub fn udp_listener(address: &str, port: u16) -> String {
    format!("udp_{}", listener(address, port))
}

/// `udp|PORT||NAME.NAMESPACE`: the cluster of a Gateway's listener for datagrams.
pub fn udp_cluster(port: u16, gateway: &str, namespace: &str) -> String {
    format!("udp|{port}||{gateway}.{namespace}")
}

/// The prefix of a Unix socket's path, in the names of its listener and route configuration.
pub const UNIX_PREFIX: &str = "unix://";

/// `unix://PATH`: the route configuration of a Unix socket.
pub fn socket_route(path: &str) -> String {
    format!("{UNIX_PREFIX}{path}")
}

/// `unix://PATH_0`: the listener of a Unix socket.
pub fn socket_listener(path: &str) -> String {
    listener(&socket_route(path), 0)
}

/// `0.0.0.0_PORT`.
pub fn wildcard_listener(port: u16) -> String {
    listener("0.0.0.0", port)
}

/// The route configuration of a gateway's HTTP port.
pub fn gateway_route(port: u16) -> String {
    format!("http.{port}")
}

/// The DNS table's type.
pub const NAME_TABLE: &str = "istio.networking.nds.v1.NameTable";

/// The key by which `transport_socket_matches` match endpoint metadata.
pub const TLS_MODE: &str = "tlsMode";

/// Its value for endpoints behind a proxy.
pub const TLS_MODE_ISTIO: &str = "istio";

/// The name of the cluster for an inner protocol. A port without a declared protocol has two clusters, because the
/// client offers different ALPN protocols, and Envoy configures these per cluster.
pub fn outbound_name(port: &ServicePort, subset: &str, service: &Service, inner: InnerProtocol) -> String {
    let name = outbound_cluster(port.number, subset, &service.host);
    match inner {
        InnerProtocol::Tcp if port.protocol.is_auto() => format!("{name}|tcp"),
        _ => name,
    }
}
