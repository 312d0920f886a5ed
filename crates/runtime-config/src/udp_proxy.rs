//! `envoy.filters.udp_listener.udp_proxy`, compiled.

use std::sync::Arc;
use std::time::Duration;

use crate::access_log::AccessLog;

/// The UDP proxy of a listener: it forwards the datagrams of each session to one host of its cluster.
#[derive(Debug)]
pub struct UdpProxy {
    /// Statistics prefix `udp.PREFIX.`.
    pub stat_prefix: Arc<str>,
    /// Destination cluster; `None`: there is no route, and datagrams are dropped.
    pub cluster: Option<Arc<str>>,
    /// Sessions without a datagram in either direction for this long end. 1 min when unset.
    pub idle_timeout: Duration,
    /// The hash for clusters that pick endpoints by hash.
    pub hash: Option<UdpHash>,
    /// The load balancer picks a host for each datagram, not for each session.
    pub per_packet: bool,
    /// One entry per session.
    pub access_logs: Vec<Arc<AccessLog>>,
    /// Longer datagrams of clients are dropped, in bytes.
    pub max_downstream_datagram_bytes: usize,
    /// Longer datagrams of hosts are dropped, in bytes.
    pub max_upstream_datagram_bytes: usize,
}

/// `UdpProxyConfig.HashPolicy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UdpHash {
    /// The hash of the client's IP address.
    SourceIp,
    /// The same for all sessions (`key`).
    Fixed(u64),
}

impl UdpProxy {
    /// Its cluster, and those that get its access logs.
    pub(crate) fn clusters(&self) -> impl Iterator<Item = &Arc<str>> {
        self.cluster.iter().chain(self.access_logs.iter().filter_map(|log| log.service()))
    }
}
