//! `up --with-prometheus`: a Prometheus of the machine that scrapes the mesh as long as it runs.

use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use evenkeel_process::children::die_with_parent;

use crate::cleanup::StateDir;
use crate::tools::find_program;

/// The usual port of a Prometheus.
const USUAL_PORT: u16 = 9090;
/// Time for which it keeps samples.
const RETENTION: &str = "1d";

/// Why there is no Prometheus.
#[derive(Debug, thiserror::Error)]
pub enum PrometheusError {
    /// It is not on this machine.
    #[error(
        "`prometheus` was not found on PATH; install it: apt-get install prometheus (or leave out --with-prometheus)"
    )]
    Missing,
    /// Its files, or the program.
    #[error("cannot start Prometheus: {0}")]
    Io(#[from] io::Error),
}

/// A running Prometheus. It ends, and its files are removed, when this is dropped.
#[derive(Debug)]
pub struct Prometheus {
    child: Child,
    folder: PathBuf,
    /// Where its pages are.
    pub url: String,
}

impl Prometheus {
    /// Starts one that scrapes what the list at this URL names.
    pub fn start(state: &StateDir, targets: &str) -> Result<Self, PrometheusError> {
        let program = find_program("prometheus").ok_or(PrometheusError::Missing)?;
        let folder = state.path().join("prometheus");
        // What a run that was killed has left is in the way of a new one.
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::create_dir_all(&folder)?;
        let address = free_address()?;
        let log = File::create(log_file(state)?)?;
        let mut command = Command::new(program);
        command.args(arguments(&folder, address)).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        die_with_parent(&mut command);
        fs::write(folder.join("prometheus.yml"), configuration(targets))?;
        Ok(Self { child: command.spawn()?, folder, url: format!("http://{address}/") })
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        // It may have ended by itself; its log says why.
        let _ = self.child.kill();
        let _ = self.child.wait();
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(folder = %self.folder.display(), %error, "Prometheus' files cannot be removed");
        }
    }
}

/// The usual address, or another one if something else has it. Nobody keeps it until Prometheus listens; if something takes it meanwhile,
/// Prometheus says so in its log and ends.
fn free_address() -> io::Result<SocketAddr> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, USUAL_PORT));
    bound.or_else(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)))?.local_addr()
}

fn log_file(state: &StateDir) -> io::Result<PathBuf> {
    let logs = state.logs();
    fs::create_dir_all(&logs)?;
    Ok(logs.join("prometheus.log"))
}

fn arguments(folder: &Path, address: SocketAddr) -> [String; 5] {
    [
        format!("--config.file={}", folder.join("prometheus.yml").display()),
        format!("--storage.tsdb.path={}", folder.join("data").display()),
        format!("--storage.tsdb.retention.time={RETENTION}"),
        format!("--web.listen-address={address}"),
        "--enable-feature=exemplar-storage".to_owned(),
    ]
}

fn configuration(targets: &str) -> String {
    format!(
        "global: {{scrape_interval: 5s, scrape_timeout: 4s}}\nscrape_configs:\n- job_name: evenkeel\n  \
         http_sd_configs: [{{url: '{targets}', refresh_interval: 5s}}]\n"
    )
}
