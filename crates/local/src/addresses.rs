//! Addresses and names that are the same in every mesh of `evenkeel up`.

use std::net::{Ipv4Addr, SocketAddr};

/// The bridge that all replicas are attached to.
pub const BRIDGE: &str = "ek0";
/// The bridge's own address: the default route, and where the control plane listens.
pub const BRIDGE_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 244, 0, 1);
/// Prefix length of the pods' network, 10.244.0.0/16.
pub const POD_PREFIX: u8 = 16;
/// The name server written into every `/etc/resolv.conf`. Queries of a captured replica go to its sidecar's agent instead.
pub const NAME_SERVER: Ipv4Addr = Ipv4Addr::new(10, 96, 0, 10);
/// The name server of what runs in the mesh's own network, the control plane. No replica reaches it there.
pub const OWN_NAME_SERVER: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// The control plane's TLS port.
pub const CONTROL_PORT: u16 = 15012;
/// The control plane's debug port, on loopback.
pub const CONTROL_DEBUG: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 15014);
/// DNS suffix of the mesh's services.
pub const CLUSTER_DOMAIN: &str = "cluster.local";
/// The name of the keeper's descriptor when it is handed over (`LISTEN_FDNAMES`), and of the egress program.
pub const EGRESS_NAME: &str = "egress";
