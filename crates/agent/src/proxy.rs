//! Running the workload's proxy.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow};
use evenkeel_proxy::access_log::FlushOptions;
use evenkeel_proxy::handover::Succession;
use evenkeel_proxy::logging::Level;
use evenkeel_proxy::options::{AdminWriters, BootstrapSource, NodeOverrides};
use evenkeel_proxy::{HotRestartState, Program, Settings, recent};
use http::Method;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::admin;
use crate::bootstrap::{READINESS_LISTENER, STATS_LISTENER};
use crate::envoy::{Envoy, GRACEFUL_DRAIN};
use crate::handover;
use crate::options::Options;

/// Returns the kind of proxy to run, as the status file names it.
pub(crate) fn kind(options: &Options) -> &'static str {
    match options.envoy {
        _ if options.no_proxy => "none",
        Some(_) => "envoy",
        None => "evenkeel",
    }
}

/// The state that our own proxy takes over from a running one, and what it needs to hand over to the next.
pub(crate) struct Handover {
    pub(crate) hot_restart: watch::Sender<HotRestartState>,
    pub(crate) succession: Option<Succession>,
    pub(crate) sockets: Vec<(String, OwnedFd)>,
}

/// The proxy, running.
pub(crate) struct Proxy {
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<anyhow::Result<()>>,
}

impl Proxy {
    /// Starts the proxy with a bootstrap file: Envoy as a child process, or our own on separate threads.
    pub(crate) fn start(options: &Options, bootstrap: &Path, handover: Handover) -> anyhow::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let ended = match &options.envoy {
            Some(binary) => {
                let envoy = Envoy::new(binary, bootstrap, options);
                tokio::spawn(async move { envoy.supervise(stopped).await.context("Envoy") })
            }
            None => {
                let Handover { hot_restart, succession, sockets } = handover;
                in_process(settings(options, bootstrap), Program { stop: stopped, hot_restart, succession, sockets })?
            }
        };
        Ok(Self { stop: Some(stop), ended })
    }

    /// Completes when the proxy has ended by itself.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        (&mut self.ended).await.context("the proxy panicked")?
    }

    /// Goes on accepting connections for as long as the options say, and asks clients to connect elsewhere; then drains the proxy and waits
    /// for its end.
    pub(crate) async fn stop_after(mut self, options: &Options) -> anyhow::Result<()> {
        let accepts = Duration::from_secs(options.accept_after_stop_s);
        if !accepts.is_zero() {
            if let Err(error) = admin::ask(options.admin_port(), Method::POST, GRACEFUL_DRAIN).await {
                tracing::warn!(%error, "the proxy could not be told to drain; it accepts connections meanwhile");
            }
            tokio::select! {
                ended = self.ended() => return ended,
                () = sleep(accepts) => {}
            }
        }
        self.stop().await
    }

    /// Drains the proxy and waits for its end.
    async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(stop) = self.stop.take() {
            // The receiver is gone only when the proxy has ended.
            let _ = stop.send(());
        }
        self.ended().await
    }
}

fn settings(options: &Options, bootstrap: &Path) -> Settings {
    Settings {
        bootstrap: BootstrapSource { path: Some(bootstrap.to_owned()), text: None },
        concurrency: usize::try_from(options.concurrency()).unwrap_or(usize::MAX),
        node: NodeOverrides::default(),
        // Not used: logging is this process's.
        log_level: Level::default(),
        drain_time: options.drain_time_after_accepting(),
        listener_drain_time: options.listener_drain_time(),
        admin_address_path: None,
        handover: handover::socket(options),
        parent_shutdown_time: Duration::from_secs(options.parent_shutdown_time_s),
        admin_writers: AdminWriters::User,
        log_flush: FlushOptions::new(
            options.file_flush_interval().map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
            options.file_flush_min_size_kb(),
        ),
        custom_filters: Vec::new(),
        // Requests of operators say nothing about the workload.
        recent: recent::Options {
            limit: options.recent_requests,
            except: [READINESS_LISTENER, STATS_LISTENER].map(str::to_owned).to_vec(),
        },
    }
}

/// Our own proxy: its control thread, which starts the workers.
fn in_process(settings: Settings, program: Program) -> anyhow::Result<JoinHandle<anyhow::Result<()>>> {
    let (sender, result) = oneshot::channel();
    let thread = std::thread::Builder::new().name("proxy".into());
    thread
        .spawn(move || {
            // The receiver is gone only if the agent is gone.
            let _ = sender.send(evenkeel_proxy::run_in(settings, program));
        })
        .context("the proxy's thread")?;
    Ok(tokio::spawn(async move { Ok(result.await.map_err(|_| anyhow!("the proxy panicked"))??) }))
}
