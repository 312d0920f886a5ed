//! Where a proxy stands, and its ports.

use std::net::{Ipv4Addr, SocketAddr};

use crate::error::LabError;
use crate::mesh::Address;
use crate::process::free_ports;

/// Addresses of the backend, each an endpoint of its own.
pub const BACKENDS: [Address; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
/// How often a port is looked for that is free on both backend addresses.
const PORT_ATTEMPTS: usize = 20;

/// The proxy's ports, known before anything is started: the mesh's files name them.
#[derive(Debug)]
pub struct Ports {
    /// Where it serves HTTP.
    pub http: SocketAddr,
    /// Its admin port.
    pub admin: SocketAddr,
    pub(super) backends: [std::net::TcpListener; 2],
}

impl Ports {
    /// Free ones, and bound sockets for the backend.
    pub fn choose() -> Result<Self, LabError> {
        let [http, admin] = free_ports()?;
        Ok(Self { http, admin, backends: bind_backends()? })
    }

    /// The port of the backend, on both its addresses.
    pub fn backend_port(&self) -> u16 {
        self.backends[0].local_addr().map_or(0, |address| address.port())
    }
}

fn bind_backends() -> Result<[std::net::TcpListener; 2], LabError> {
    let [first, second] = BACKENDS;
    let bind = || {
        let one = std::net::TcpListener::bind((first, 0))?;
        let other = std::net::TcpListener::bind((second, one.local_addr()?.port()))?;
        one.set_nonblocking(true)?;
        other.set_nonblocking(true)?;
        Ok([one, other])
    };
    let mut result = bind();
    for _ in 1..PORT_ATTEMPTS {
        if result.is_ok() {
            break;
        }
        result = bind();
    }
    result.map_err(LabError::io("binding the backend's sockets"))
}

/// Where the proxy stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyKind {
    /// At the mesh's edge; its listener comes from the mesh.
    Gateway,
    /// Beside a workload; its listener is the workload's way out, which capture rules would lead to.
    Sidecar,
}

impl ProxyKind {
    /// In messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Sidecar => "sidecar",
        }
    }
}
