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
            None => anyhow::bail!("the built-in proxy is not linked in"),
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
