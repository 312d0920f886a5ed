//! Kubernetes' probes of the Pod's programs, which the injector redirects to the agent (`ISTIO_KUBE_APP_PROBERS`).
//!
//! Kubelet has no certificate of the mesh, and the programs' ports are the proxy's. So it asks the agent at
//! `/app-health/CONTAINER/readyz`, and the agent asks the program inside the Pod. Only paths of the table exist: nobody can use
//! the agent to ask something else.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::timeout;

use super::Health;
use super::config::ReadinessProbe;
use super::probe::Prober;

/// The probes by their paths.
#[derive(Debug, Default)]
pub struct AppProbes(BTreeMap<String, AppProbe>);

#[derive(Debug)]
struct AppProbe {
    prober: Prober,
    limit: Duration,
}

impl AppProbes {
    /// Reads the table. `mark`: of the sockets. A probe that cannot be used fails with the reason whenever it is asked for.
    ///
    /// # Errors
    /// Why the table cannot be read.
    pub fn new(table: &str, mark: Option<u32>) -> Result<Self, String> {
        let table: BTreeMap<String, ReadinessProbe> = serde_json::from_str(table).map_err(|error| error.to_string())?;
        let probes = table.into_iter().map(|(path, mut probe)| {
            // Kubelet runs commands in the program's container; here they would run in the agent's.
            probe.exec = None;
            let prober = Prober::new(&probe, mark).map_err(|reason| format!("{path}: {reason}"))?;
            Ok((path, AppProbe { prober, limit: probe.timeout() }))
        });
        probes.collect::<Result<_, String>>().map(Self)
    }

    /// Asks the program; `None`: there is no such probe.
    pub async fn ask(&self, path: &str) -> Option<Health> {
        let AppProbe { prober, limit } = self.0.get(path)?;
        let late = || Err(format!("{prober}: no answer within {} s", limit.as_secs()));
        Some(timeout(*limit, prober.ask()).await.unwrap_or_else(|_| late()))
    }
}
