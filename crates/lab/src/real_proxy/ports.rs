//! The kind of a real proxy, and its ports.

use std::net::{Ipv4Addr, SocketAddr};

use crate::error::LabError;
use crate::mesh::Address;
use crate::process::free_ports;

/// The addresses of the backend. Each is an endpoint.
pub const ON_LOOPBACK: [Address; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::new(127, 0, 0, 3)];
/// Addresses for documentation (RFC 5737): an API server refuses endpoints in 127.0.0.0/8.
pub const IN_NAMESPACE: [Address; 2] = [Ipv4Addr::new(192, 0, 2, 2), Ipv4Addr::new(192, 0, 2, 3)];
/// The number of attempts to find a port that is free on both backend addresses.
const PORT_ATTEMPTS: usize = 20;

/// The proxy's ports. They are chosen before anything is started, because the mesh's files contain them.
#[derive(Debug)]
pub struct Ports {
    /// The address on which it serves HTTP.
    pub http: SocketAddr,
    /// The address of its admin interface.
    pub admin: SocketAddr,
    pub(super) backends: [std::net::TcpListener; 2],
}

impl Ports {
    /// Chooses free ports, and binds the backend's sockets.
    pub fn choose(backends: [Address; 2]) -> Result<Self, LabError> {
        let [http, admin] = free_ports()?;
        Ok(Self { http, admin, backends: bind(backends)? })
    }

    /// The port of the backend, the same on both addresses.
    pub fn backend_port(&self) -> u16 {
        self.backends[0].local_addr().map_or(0, |address| address.port())
    }
}

fn bind([first, second]: [Address; 2]) -> Result<[std::net::TcpListener; 2], LabError> {
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

/// The kind of a real proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProxyKind {
    /// At the edge of the mesh; its listener comes from the mesh configuration.
    Gateway,
    /// Beside a workload; its listener is the outbound one, to which capture rules would redirect.
    Sidecar,
}

impl ProxyKind {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gateway => "gateway",
            Self::Sidecar => "sidecar",
        }
    }
}
