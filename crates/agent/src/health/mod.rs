//! Health checks of a workload that is a WorkloadEntry: the agent checks it and reports to the control plane, which sends
//! traffic to healthy workloads only. As Istio's `pkg/istio-agent/health`.
//!
//! The check is `readinessProbe` of the proxy's ProxyConfig, as `istioctl x workload entry configure` writes it from the
//! `probe` of a WorkloadGroup.

pub(crate) mod app_probes;
pub(crate) mod config;
mod grpc;
mod probe;
mod report;
mod verdict;

use std::time::Duration;

use evenkeel_tls::SecretStore;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

pub use config::ReadinessProbe;
pub use grpc::check as check_grpc;
pub use probe::Prober;
pub use verdict::Verdict;

use crate::admin;
use crate::options::Options;
use crate::trust::ControlPlaneRoots;

/// The health of a workload; the error is the reason why it is unhealthy.
pub type Health = Result<(), String>;

/// Checks the workload and reports its health until the future is dropped.
pub(crate) async fn run(options: Options, probe: ReadinessProbe, (secrets, roots): (SecretStore, ControlPlaneRoots)) {
    let (sender, health) = watch::channel(None);
    tokio::join!(check(&options, &probe, &sender), report::run(&options, (&secrets, &roots), health));
}

/// Checks again and again. Only changes are reported, as in Istio.
async fn check(options: &Options, probe: &ReadinessProbe, health: &watch::Sender<Option<Health>>) {
    let prober = match Prober::new(probe, options.mark()) {
        Ok(prober) => prober,
        Err(reason) => {
            tracing::error!(%reason, "the health of the workload cannot be checked, so it gets no traffic");
            health.send_replace(Some(Err(reason)));
            return std::future::pending().await;
        }
    };
    let proxy = (!options.no_proxy).then_some(options.admin_port());
    sleep(probe.initial_delay()).await;
    let mut verdict = Verdict::new(probe.successes(), probe.failures());
    let mut ticks = interval(probe.period());
    // A slow check delays the next one instead of being followed by several.
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let result = once(&prober, proxy, probe.timeout()).await;
        if let Err(reason) = &result {
            tracing::debug!(%reason, "health check failed");
        }
        if let Some(changed) = verdict.after(result) {
            match &changed {
                Ok(()) => tracing::info!("the workload is healthy"),
                Err(reason) => tracing::warn!(%reason, "the workload is not healthy"),
            }
            health.send_replace(Some(changed));
        }
    }
}

/// Runs one check. A workload whose proxy is not ready is not healthy, either.
async fn once(prober: &Prober, proxy: Option<u16>, within: Duration) -> Health {
    if let Some(port) = proxy {
        admin::ready(port).await.map_err(|reason| format!("the proxy is not ready: {reason}"))?;
    }
    match timeout(within, prober.ask()).await {
        Ok(result) => result,
        Err(_) => Err(format!("{prober}: no answer within {} s", within.as_secs_f32())),
    }
}
