//! Running the workload's proxy.

use std::path::Path;

use anyhow::Context;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::envoy::Envoy;
use crate::options::Options;

/// Which proxy the options ask for, as the status file names it.
pub(crate) fn kind(options: &Options) -> &'static str {
    match options.envoy {
        Some(_) => "envoy",
        None => "evenkeel",
    }
}

/// The proxy, running.
pub(crate) struct Proxy {
    stop: Option<oneshot::Sender<()>>,
    ended: JoinHandle<anyhow::Result<()>>,
}

impl Proxy {
    /// Starts the proxy on a bootstrap file: Envoy as a child, or our own on threads of its own.
    pub(crate) fn start(options: &Options, bootstrap: &Path) -> anyhow::Result<Self> {
        let (stop, stopped) = oneshot::channel();
        let ended = match &options.envoy {
            Some(binary) => {
                let envoy = Envoy::new(binary, bootstrap, options);
                tokio::spawn(async move { envoy.supervise(stopped).await.context("Envoy") })
            }
            None => {
                let settings = settings(options, bootstrap)?;
                // A thread of its own: it brings its runtime, and its workers, with it.
                tokio::task::spawn_blocking(move || Ok(evenkeel_proxy::run_until(settings, stopped)?))
            }
        };
        Ok(Self { stop: Some(stop), ended })
    }

    /// Completes when the proxy has ended by itself.
    pub(crate) async fn ended(&mut self) -> anyhow::Result<()> {
        (&mut self.ended).await.context("the proxy panicked")?
    }

    /// Drains the proxy and waits for its end.
    pub(crate) async fn stop(mut self) -> anyhow::Result<()> {
        if let Some(stop) = self.stop.take() {
            // The receiver is gone only when the proxy has ended.
            let _ = stop.send(());
        }
        self.ended().await
    }
}

fn settings(options: &Options, bootstrap: &Path) -> anyhow::Result<evenkeel_proxy::Settings> {
    let proxy = evenkeel_proxy::Options {
        config_path: Some(bootstrap.to_path_buf()),
        concurrency: Some(usize::try_from(options.concurrency)?),
        drain_time_s: options.drain_time_s,
        ..evenkeel_proxy::Options::default()
    };
    Ok(proxy.resolve()?)
}
