//! Kinds of traffic that generators tell apart.

/// The traffic that a connection manager serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Requests from the workload.
    Outbound,
    /// Requests to the workload.
    Inbound,
    /// Requests from outside the mesh.
    Gateway,
}

/// The protocol that a client uses inside the mesh's TLS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InnerProtocol {
    /// HTTP.
    Http,
    /// Any bytes.
    Tcp,
}
