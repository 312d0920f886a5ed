//! A real `evenkeel proxy`, configured by the server under test, between a client and a backend.
//!
//! Backend and client run on a separate thread, so that a busy fleet does not distort their measurements.

mod bootstrap;
mod ports;
mod traffic;

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use evenkeel_agent::sds::{SdsServer, Secrets};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use crate::error::LabError;
use crate::process::{Program, Usage};
use crate::proxy::Scope;
pub use ports::{IN_NAMESPACE, ON_LOOPBACK, Ports, ProxyKind};
use traffic::Probe;

/// The most hosts that may wait for their first request.
const MAX_WAITING: usize = 4096;

/// A running proxy.
#[derive(Debug)]
pub struct RealProxy {
    program: Program,
    /// Dropping this sender ends the thread of backend and client.
    probes: mpsc::Sender<Probe>,
}

impl RealProxy {
    /// Starts the proxy, the backend and the client.
    pub fn start(
        kind: ProxyKind,
        scope: Scope,
        program: &Path,
        work: &Path,
        ports: Ports,
        xds: SocketAddr,
    ) -> Result<Self, LabError> {
        let name = kind.name();
        let in_work = |ending| work.join(format!("{name}.{ending}"));
        let (file, socket) = (in_work("json"), in_work("sock"));
        let text = bootstrap::bootstrap(kind, scope, xds, &ports, &socket).to_string();
        fs::write(&file, text).map_err(LabError::io(format!("writing {}", file.display())))?;
        let probes = start_surroundings(ports, &socket).map_err(LabError::io("starting a proxy's backend"))?;
        let mut command = Command::new(program);
        command.arg("proxy").arg("-c").arg(&file).args(["--concurrency", "1", "-l", "warning"]);
        let program = Program::start(name, command, &in_work("log"))?;
        Ok(Self { program, probes })
    }

    /// Resolves when the backend first answers a request for the host, or with an error when the proxy is stopped.
    pub fn first_answer(&self, host: String) -> oneshot::Receiver<Instant> {
        let (answered, answer) = oneshot::channel();
        // If the queue is full, the probe is dropped and the receiver reports it.
        let _ = self.probes.try_send(Probe { host, answered });
        answer
    }

    /// What the proxy has used.
    pub fn usage(&self) -> Result<Usage, LabError> {
        self.program.usage()
    }

    /// Returns an error if the program has ended.
    pub fn check(&mut self) -> Result<(), LabError> {
        self.program.check()
    }

    /// Builds an error about the program, with the end of its log.
    pub fn failure(&self, what: impl Into<String>) -> LabError {
        self.program.failure(what)
    }
}

/// Starts the thread that serves the proxy's certificate, runs the backend and sends the probes.
fn start_surroundings(ports: Ports, socket: &Path) -> io::Result<mpsc::Sender<Probe>> {
    let (probes, waiting) = mpsc::channel(MAX_WAITING);
    let secrets = Secrets::new();
    secrets.publish(&bootstrap::certificate().map_err(io::Error::other)?);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let sds = {
        let _context = runtime.enter();
        SdsServer::bind(socket, secrets)?
    };
    std::thread::Builder::new().name("client".to_owned()).spawn(move || {
        runtime.block_on(async {
            tokio::spawn(sds.run());
            for listener in ports.backends.into_iter().map(TcpListener::from_std) {
                match listener {
                    Ok(listener) => drop(tokio::spawn(traffic::backend(listener))),
                    Err(error) => tracing::error!(%error, "the backend does not listen"),
                }
            }
            traffic::ask_for(waiting, ports.http).await;
        });
    })?;
    Ok(probes)
}
