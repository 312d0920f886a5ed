//! The running example, as used by the check's steps.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::report::Line;
use crate::client::{Answer, Call, CallError, Session};
use crate::mesh::Mesh;
use crate::plan::Plan;
use crate::program::Program;
use crate::replica::Replica;

/// Time between two checks of something that is expected to change.
pub const POLL_PERIOD: Duration = Duration::from_millis(10);

/// The running example.
pub struct Example<'a> {
    mesh: &'a Mesh,
    /// The plan of the run.
    pub plan: &'a Arc<Plan>,
    started: Instant,
}

impl<'a> Example<'a> {
    /// Makes the view; "ready after" is measured from here.
    pub fn new(mesh: &'a Mesh, plan: &'a Arc<Plan>) -> Self {
        Self { mesh, plan, started: Instant::now() }
    }

    /// Waits until every replica is ready.
    pub async fn all_ready(&self, timeout: Duration) -> Line {
        let mut view = self.mesh.roster().subscribe();
        let ready = view.wait_for(|pods| !pods.is_empty() && pods.values().all(|status| status.ready));
        let in_time = tokio::time::timeout(timeout, ready).await.is_ok_and(|waited| waited.is_ok());
        let pods = self.mesh.roster().borrow().clone();
        let missing: Vec<String> = pods
            .values()
            .filter(|status| !status.ready)
            .map(|status| format!("{} ({})", status.pod.name, status.detail))
            .collect();
        let what = if in_time {
            format!("all {} replicas ready, {} ms after their start", pods.len(), self.started.elapsed().as_millis())
        } else {
            format!("all {} replicas ready within {} s", pods.len(), timeout.as_secs())
        };
        Line::new(what, in_time, format!("not ready: {}", missing.join(", ")))
    }

    /// The replicas of a workload.
    pub fn replicas(&self, workload: &str) -> Vec<Arc<Replica>> {
        let replicas = self.mesh.replicas().borrow().clone();
        replicas.values().filter(|replica| replica.pod.workload == workload).cloned().collect()
    }

    /// The first replica of a workload.
    pub fn replica(&self, workload: &str) -> Result<Arc<Replica>, String> {
        self.replicas(workload).into_iter().next().ok_or_else(|| format!("no replica of {workload} runs"))
    }

    /// Whether a pod is ready now.
    pub fn is_ready(&self, pod: &str) -> bool {
        self.mesh.roster().borrow().values().any(|status| status.pod.name == pod && status.ready)
    }

    /// A kept-alive connection to the gateway, from the host.
    pub async fn visit(&self) -> Result<GatewayConnection, CallError> {
        let Some(port) = self.plan.host_ports.first() else {
            return Err(CallError::Http("no Gateway opens a port".to_owned()));
        };
        let stream = self.plan.callers.connect(port.address).await?;
        Ok(GatewayConnection { session: Session::open(stream).await?, host: port.address.to_string() })
    }

    /// Calls `http://host:port/path` from a workload, as its program would: the name is resolved inside.
    pub async fn call_from(&self, workload: &str, host: &str, call: Call) -> Result<Answer, String> {
        let replica = self.replica(workload)?;
        let address = self.resolve(&replica, host).await?;
        let call = Call { host: format!("{host}:8080"), ..call };
        let answer = call.send(Some(&replica.namespace), SocketAddr::from((address, 8080))).await;
        answer.map_err(|error| error.to_string())
    }

    /// Resolves a name inside a replica with the system's resolver.
    pub async fn resolve(&self, replica: &Replica, name: &str) -> Result<Ipv4Addr, String> {
        let output = self.run_inside(replica, &["getent", "ahostsv4", name]).await?;
        let first = output.split_whitespace().next().and_then(|address| address.parse().ok());
        first.ok_or_else(|| format!("{name} does not resolve in {}: {:?}", replica.pod.name, output.trim()))
    }

    async fn run_inside(&self, replica: &Replica, command: &[&str]) -> Result<String, String> {
        let (environment, directory) = replica.surroundings.program.clone();
        let log: PathBuf = self.plan.state.mounts(&replica.pod.name).join("check-output");
        let _ = std::fs::remove_file(&log);
        let arguments = command.iter().skip(1).map(|word| (*word).into()).collect();
        let mut program = Program::new(command.first().copied().unwrap_or_default(), arguments, directory, log.clone());
        (program.environment, program.container) = (environment, Some(replica.containers.program.clone()));
        let mut child = program.spawn().map_err(|error| format!("cannot run {command:?}: {error}"))?;
        let ended = tokio::time::timeout(Duration::from_secs(10), child.wait()).await;
        if ended.is_err() {
            let _ = child.kill().await;
            return Err(format!("{command:?} did not end within 10 s"));
        }
        std::fs::read_to_string(&log).map_err(|error| error.to_string())
    }
}

/// A connection to the gateway from the host.
pub struct GatewayConnection {
    session: Session,
    host: String,
}

impl GatewayConnection {
    /// One request.
    pub async fn call(&mut self, call: Call) -> Result<Answer, CallError> {
        self.session.call(&Call { host: self.host.clone(), ..call }).await
    }

    /// The version of capitals-info that answered a request for France; the error has any other answer.
    pub async fn version(&mut self) -> Result<String, String> {
        let answer = self.call(Call::get("", "/api/capitals/France")).await.map_err(|error| error.to_string())?;
        match (answer.status.as_u16(), answer.header("x-version")) {
            (200, Some(version)) => Ok(version.to_owned()),
            _ => Err(answer.to_string()),
        }
    }
}
