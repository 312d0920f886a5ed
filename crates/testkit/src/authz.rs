//! An authorization server built on Envoy's published API; its source is in `scripts/authz-server`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::{Process, free_ports, wait, workspace};

/// How long the server may take to print a question.
const PATIENCE: Duration = Duration::from_secs(5);
/// Silence after which everything has been printed.
const QUIET: Duration = Duration::from_millis(500);

/// Returns the path of the program; its source defines its answers. It is rebuilt if its source is newer.
///
/// # Panics
/// When it cannot be built.
pub fn authz_server() -> PathBuf {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let path = workspace::target_dir().join("tools/bin/authz-server");
        let written = |path: &Path| path.metadata().and_then(|metadata| metadata.modified()).ok();
        if written(&path) < written(&workspace::root().join("scripts/authz-server/main.go")) {
            workspace::install("authz-server");
        }
        path
    })
    .clone()
}

/// The program, running, with each question printed.
pub struct AuthzServer {
    process: Process,
    grpc: u16,
    http: u16,
    /// Bytes of its output that were read.
    read: usize,
}

impl AuthzServer {
    /// Starts it on loopback.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts it with more arguments.
    ///
    /// # Panics
    /// When it does not start.
    pub fn start_with(arguments: &[&str]) -> Self {
        let [grpc, http] = free_ports::<2>();
        let mut command = Command::new(authz_server());
        let at = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port)).to_string();
        command.args(["-log", "-grpc", &at(grpc), "-http", &at(http)]).args(arguments);
        let mut process = Process::spawn(&mut command);
        process.wait_for_line("listening");
        let read = process.output().len();
        Self { process, grpc, http, read }
    }

    /// Returns its gRPC port.
    pub fn grpc(&self) -> u16 {
        self.grpc
    }

    /// Returns its HTTP port.
    pub fn http(&self) -> u16 {
        self.http
    }

    /// The lines it has printed since the last call.
    pub fn questions(&mut self) -> Vec<String> {
        let output = self.process.output();
        let new = output.get(self.read..).unwrap_or_default();
        let complete = new.rfind('\n').map_or(0, |end| end + 1);
        self.read += complete;
        new.get(..complete).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// Returns the questions once no more come: the server prints before it answers, but its output takes time.
    pub fn all_questions(&mut self) -> Vec<String> {
        let mut all = self.questions();
        let mut last = Instant::now();
        wait::poll(PATIENCE, || {
            let new = self.questions();
            if !new.is_empty() {
                last = Instant::now();
            }
            all.extend(new);
            (last.elapsed() > QUIET).then_some(())
        });
        all
    }

    /// Waits for a line that contains `text`, among the unread ones.
    pub fn wait_for(&mut self, text: &str) -> Option<String> {
        wait::poll(PATIENCE, || self.questions().into_iter().find(|line| line.contains(text)))
    }
}
