//! The control plane under test: a child process, or any other xDS server by address.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::error::LabError;
use crate::process::{Program, Usage, free_ports};

/// How often a starting server is polled.
const POLL: Duration = Duration::from_millis(2);

/// Where the control plane reads objects.
#[derive(Debug)]
pub enum Objects {
    /// Files in this directory.
    Directory(PathBuf),
    /// An API server, by this kubeconfig file.
    Cluster(PathBuf),
}

/// The server the fleet connects to.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    kind: ServerKind,
}

#[derive(Debug)]
enum ServerKind {
    /// `evenkeel control-plane`.
    OwnServer(Box<OwnServer>),
    /// Another server. The user may have given the id of its process.
    Other(Option<u32>),
}

#[derive(Debug)]
struct OwnServer {
    program: PathBuf,
    objects: Objects,
    work: PathBuf,
    secure: SocketAddr,
    http: SocketAddr,
    debounce: Option<Duration>,
    running: Option<Program>,
}

impl Server {
    /// Prepares an `evenkeel control-plane` on free ports, without starting it.
    pub fn own(program: &Path, objects: Objects, work: &Path, debounce: Option<Duration>) -> Result<Self, LabError> {
        let [address, secure, http] = free_ports()?;
        let own = OwnServer {
            program: program.to_owned(),
            objects,
            work: work.to_owned(),
            secure,
            http,
            debounce,
            running: None,
        };
        Ok(Self { address, kind: ServerKind::OwnServer(Box::new(own)) })
    }

    /// A server that is already running.
    pub fn other(address: SocketAddr, pid: Option<u32>) -> Self {
        Self { address, kind: ServerKind::Other(pid) }
    }

    /// Whether the lab starts and stops it.
    pub fn is_own(&self) -> bool {
        matches!(self.kind, ServerKind::OwnServer(_))
    }

    /// The address on which it serves plaintext xDS.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts the server, and returns the time of the start.
    pub fn start(&mut self) -> Result<Instant, LabError> {
        if let ServerKind::OwnServer(own) = &mut self.kind {
            let mut command = Command::new(&own.program);
            command.arg("control-plane");
            match &own.objects {
                Objects::Directory(directory) => command.arg("--config").arg(directory),
                Objects::Cluster(kubeconfig) => command.arg("--kubeconfig").arg(kubeconfig),
            };
            command.arg("--state").arg(own.work.join("state")).args(["-l", "warning"]);
            command.args(["--grpc-address", &self.address.to_string()]);
            command.args(["--secure-grpc-address", &own.secure.to_string()]);
            command.args(["--http-address", &own.http.to_string()]);
            if let Some(after) = own.debounce {
                // The longest wait has to allow it.
                for name in ["PILOT_DEBOUNCE_AFTER", "PILOT_DEBOUNCE_MAX"] {
                    command.env(name, format!("{}ms", after.as_millis()));
                }
            }
            let at = Instant::now();
            own.running = Some(Program::start("control plane", command, &own.work.join("control-plane.log"))?);
            return Ok(at);
        }
        Ok(Instant::now())
    }

    /// Waits until it accepts connections.
    pub async fn ready(&mut self, patience: Duration) -> Result<(), LabError> {
        let deadline = Instant::now() + patience;
        loop {
            let connected = tokio::time::timeout_at(deadline.into(), TcpStream::connect(self.address)).await;
            match connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(_) => return Ok(()),
                Err(reason) if Instant::now() >= deadline => {
                    let seconds = patience.as_secs_f64();
                    let what = format!("no xDS server takes connections at {} within {seconds} s", self.address);
                    return Err(LabError::Io { what, reason });
                }
                Err(_) => {}
            }
            self.check()?;
            tokio::time::sleep(POLL).await;
        }
    }

    /// Kills it, as a crash would.
    pub fn kill(&mut self) {
        if let ServerKind::OwnServer(own) = &mut self.kind {
            own.running = None;
        }
    }

    /// Returns an error if the server should run and does not.
    pub fn check(&mut self) -> Result<(), LabError> {
        match &mut self.kind {
            ServerKind::OwnServer(own) => own.running.as_mut().map_or(Ok(()), Program::check),
            ServerKind::Other(_) => Ok(()),
        }
    }

    /// Its usage; `None` if its process is unknown.
    pub fn usage(&self) -> Result<Option<Usage>, LabError> {
        match &self.kind {
            ServerKind::OwnServer(own) => own.running.as_ref().map(Program::usage).transpose(),
            ServerKind::Other(None) => Ok(None),
            ServerKind::Other(Some(pid)) => {
                Usage::of(*pid).map(Some).map_err(LabError::io(format!("measuring process {pid}")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_server_that_is_not_there_is_waited_for_as_long_as_was_asked() {
        let [address] = free_ports().expect("a free port");
        let waited = Server::other(address, None).ready(Duration::from_millis(20)).await;
        let said = waited.map_err(|error| error.to_string());
        assert!(said.is_err_and(|said| {
            said.starts_with(&format!("no xDS server takes connections at {address} within 0.02 s"))
        }));
    }
}
