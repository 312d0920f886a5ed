//! A stock Envoy as the workload's proxy: started, restarted when it dies, drained when it is to stop.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_process::children::die_with_parent;
use evenkeel_process::manager::NOTIFY_SOCKET;
use evenkeel_xds::client::Backoff;
use http::Method;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::process::{Child, Command};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use crate::admin;
use crate::options::Options;

/// After a run of this length the next restart is immediate again.
const STABLE: Duration = Duration::from_secs(10);
/// How long Envoy may take to end after SIGTERM, before SIGKILL.
const KILL_AFTER: Duration = Duration::from_secs(5);
/// The request after which listeners keep answering, but ask clients to reconnect elsewhere.
pub(crate) const GRACEFUL_DRAIN: &str = "/drain_listeners?graceful&skip_exit";
/// How often the remaining connections are counted.
const DRAIN_POLL: Duration = Duration::from_millis(100);

/// How to run Envoy.
#[derive(Debug, Clone)]
pub struct Envoy {
    binary: PathBuf,
    bootstrap: PathBuf,
    concurrency: u32,
    admin_port: u16,
    drain_time: Duration,
    /// Further arguments.
    more: Vec<String>,
}

impl Envoy {
    /// Envoy from `binary` with a bootstrap file.
    pub fn new(binary: &Path, bootstrap: &Path, options: &Options) -> Self {
        Self {
            binary: binary.to_owned(),
            bootstrap: bootstrap.to_owned(),
            concurrency: options.concurrency(),
            admin_port: options.admin_port(),
            drain_time: options.drain_time_after_accepting(),
            more: arguments(options),
        }
    }

    /// Runs Envoy until `stop` fires, and restarts it when it ends by itself. After `stop` its connections have the
    /// drain time to end.
    ///
    /// # Errors
    /// When Envoy cannot be started at all.
    pub async fn supervise(self, mut stop: oneshot::Receiver<()>) -> io::Result<()> {
        let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, u64::from(std::process::id()));
        loop {
            let started = Instant::now();
            let mut child = self.spawn()?;
            tokio::select! {
                _ = &mut stop => return self.stop(child).await,
                status = child.wait() => tracing::error!(status = %status?, "Envoy ended; starting it again"),
            }
            if started.elapsed() >= STABLE {
                backoff.reset();
            }
            tokio::select! {
                _ = &mut stop => return Ok(()),
                () = sleep(backoff.next_wait()) => {}
            }
        }
    }

    fn spawn(&self) -> io::Result<Child> {
        let mut command = Command::new(&self.binary);
        command.arg("-c").arg(&self.bootstrap).arg("--disable-hot-restart").args(&self.more);
        if self.concurrency > 0 {
            command.args(["--concurrency", &self.concurrency.to_string()]);
        }
        // The agent, not Envoy, is what the service manager supervises.
        command.env_remove(NOTIFY_SOCKET).kill_on_drop(true);
        die_with_parent(command.as_std_mut());
        command.spawn().map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", self.binary.display())))
    }

    async fn stop(&self, mut child: Child) -> io::Result<()> {
        if admin::ask(self.admin_port, Method::POST, GRACEFUL_DRAIN).await.is_ok() {
            let deadline = Instant::now() + self.drain_time;
            while Instant::now() < deadline && self.has_connections().await {
                sleep(DRAIN_POLL).await;
            }
        }
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            // It may have ended by itself.
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
        if timeout(KILL_AFTER, child.wait()).await.is_err() {
            tracing::warn!("Envoy did not end within {KILL_AFTER:?} of SIGTERM");
            child.kill().await?;
        }
        Ok(())
    }

    /// Whether a listener other than the admin listener has an open connection.
    async fn has_connections(&self) -> bool {
        let path = "/stats?usedonly&filter=^listener\\..*downstream_cx_active$";
        let Ok((_, body)) = admin::ask(self.admin_port, Method::GET, path).await else { return false };
        has_active(&String::from_utf8_lossy(&body))
    }
}

/// Returns the arguments that follow from options and settings.
fn arguments(options: &Options) -> Vec<String> {
    let mut arguments = vec!["--log-level".to_owned(), options.proxy_log_level.clone()];
    // As Istio's agent. Clients are asked to leave at once: at the end of Envoy they have less time than that.
    let drain_time = options.listener_drain_time().as_secs().max(1).to_string();
    arguments.extend(["--drain-time-s", &drain_time, "--drain-strategy", "immediate"].map(str::to_owned));
    let mut add = |flag: &str, value: Option<String>| {
        arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    };
    add("--component-log-level", options.proxy_component_log_level.clone());
    add("--file-flush-interval-msec", options.file_flush_interval().map(|time| time.as_millis().to_string()));
    add("--file-flush-min-size-kb", options.file_flush_min_size_kb().map(|size| size.to_string()));
    arguments
}

fn has_active(stats: &str) -> bool {
    let lines = stats.lines().filter(|line| !line.starts_with("listener.admin."));
    lines.filter_map(|line| line.rsplit_once(": ")).any(|(_, value)| value != "0")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_connections_of_all_listeners_but_the_admin_interface() {
        let check = |stats: &str, expected| assert_eq!(has_active(stats), expected, "{stats}");
        check("", false);
        check("listener.admin.downstream_cx_active: 1\nlistener.0.0.0.0_15006.downstream_cx_active: 0\n", false);
        check("listener.0.0.0.0_15006.downstream_cx_active: 3\n", true);
        check("nonsense", false);
    }
}
