//! The control plane under test: a child process, or any other xDS server by address.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;

use crate::error::LabError;
use crate::process::{Program, Usage, free_ports};

/// How long it may take to read its configuration and listen.
const START_PATIENCE: Duration = Duration::from_secs(120);
/// How often it is asked whether it does.
const POLL: Duration = Duration::from_millis(2);

/// The server the fleet connects to.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    kind: ServerKind,
}

#[derive(Debug)]
enum ServerKind {
    /// `evenkeel control-plane`.
    Own(Box<Own>),
    /// Some other one; its process, if it runs here and the user said which it is.
    Other(Option<u32>),
}

#[derive(Debug)]
struct Own {
    program: PathBuf,
    config: PathBuf,
    work: PathBuf,
    secure: SocketAddr,
    http: SocketAddr,
    running: Option<Program>,
}

impl Server {
    /// An `evenkeel control-plane` on ports of its own, not started.
    pub fn own(program: &Path, config: &Path, work: &Path) -> Result<Self, LabError> {
        let [address, secure, http] = free_ports()?;
        let own = Own {
            program: program.to_owned(),
            config: config.to_owned(),
            work: work.to_owned(),
            secure,
            http,
            running: None,
        };
        Ok(Self { address, kind: ServerKind::Own(Box::new(own)) })
    }

    /// A server that runs already.
    pub fn other(address: SocketAddr, pid: Option<u32>) -> Self {
        Self { address, kind: ServerKind::Other(pid) }
    }

    /// Whether the lab starts and ends it.
    pub fn is_own(&self) -> bool {
        matches!(self.kind, ServerKind::Own(_))
    }

    /// Where it serves xDS in plain text.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Starts it; returns when.
    pub fn start(&mut self) -> Result<Instant, LabError> {
        if let ServerKind::Own(own) = &mut self.kind {
            let mut command = Command::new(&own.program);
            command.arg("control-plane").arg("--config").arg(&own.config);
            command.arg("--state").arg(own.work.join("state")).args(["-l", "warning"]);
            command.args(["--grpc-address", &self.address.to_string()]);
            command.args(["--secure-grpc-address", &own.secure.to_string()]);
            command.args(["--http-address", &own.http.to_string()]);
            let at = Instant::now();
            own.running = Some(Program::start("control plane", command, &own.work.join("control-plane.log"))?);
            return Ok(at);
        }
        Ok(Instant::now())
    }

    /// Waits until it takes connections.
    pub async fn ready(&mut self) -> Result<(), LabError> {
        let deadline = Instant::now() + START_PATIENCE;
        loop {
            match TcpStream::connect(self.address).await {
                Ok(_) => return Ok(()),
                Err(reason) if Instant::now() > deadline => {
                    return Err(LabError::Io { what: format!("connecting to {}", self.address), reason });
                }
                Err(_) => {}
            }
            self.check()?;
            tokio::time::sleep(POLL).await;
        }
    }

    /// Ends it at once, as a crash would.
    pub fn kill(&mut self) {
        if let ServerKind::Own(own) = &mut self.kind {
            own.running = None;
        }
    }

    /// An error if it should run and does not.
    pub fn check(&mut self) -> Result<(), LabError> {
        match &mut self.kind {
            ServerKind::Own(own) => own.running.as_mut().map_or(Ok(()), Program::check),
            ServerKind::Other(_) => Ok(()),
        }
    }

    /// What it has used; `None` if its process is not known.
    pub fn usage(&self) -> Result<Option<Usage>, LabError> {
        match &self.kind {
            ServerKind::Own(own) => own.running.as_ref().map(Program::usage).transpose(),
            ServerKind::Other(None) => Ok(None),
            ServerKind::Other(Some(pid)) => {
                Usage::of(*pid).map(Some).map_err(LabError::io(format!("measuring process {pid}")))
            }
        }
    }
}
