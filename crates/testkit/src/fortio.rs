//! Fortio: its programs, and its server.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Once;

use crate::port::free_ports;
use crate::process::Process;
use crate::workspace;

/// One of Fortio's programs.
///
/// # Panics
/// When it cannot be installed.
pub fn program(name: &str) -> PathBuf {
    static INSTALLED: Once = Once::new();
    let path = workspace::target_dir().join("tools/bin").join(name);
    INSTALLED.call_once(|| workspace::install("fortio"));
    path
}

/// Fortio's server, with a port for each protocol.
pub struct Server {
    /// HTTP/1.1 and HTTP/2.
    pub http: SocketAddr,
    /// Bytes over TCP.
    pub tcp: SocketAddr,
    /// Datagrams.
    pub udp: SocketAddr,
    /// gRPC.
    pub grpc: SocketAddr,
    _process: Process,
}

impl Server {
    /// Starts it, with these further flags.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start(extra: &[&str]) -> Self {
        let [http, tcp, udp, grpc] = free_ports().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
        let mut command = Command::new(program("fortio"));
        command.args(["server", "-redirect-port", "disabled"]).args(extra);
        for (flag, address) in [("-http-port", http), ("-tcp-port", tcp), ("-udp-port", udp), ("-grpc-port", grpc)] {
            command.arg(flag).arg(address.to_string());
        }
        let mut process = Process::spawn(&mut command);
        process.wait_for_port(http);
        process.wait_for_port(tcp);
        process.wait_for_port(grpc);
        Self { http, tcp, udp, grpc, _process: process }
    }
}
