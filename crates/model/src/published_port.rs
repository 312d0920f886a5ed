//! How the gateways of a mesh on one machine are reached from that machine.

use std::net::SocketAddr;

use serde::{Deserialize, Serialize};

use crate::Workload;

/// A port of this machine that leads to a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedPort {
    /// The gateway's namespace.
    pub namespace: String,
    /// The gateway's workload.
    pub workload: String,
    /// `servers[].port.number` of the Gateway.
    pub number: u16,
    /// The address on this machine.
    pub address: SocketAddr,
}

impl PublishedPort {
    /// Whether it leads to this workload.
    pub fn leads_to(&self, gateway: &Workload) -> bool {
        (&*gateway.namespace, &*gateway.workload_name) == (&*self.namespace, &*self.workload)
    }
}
