//! Every row of the project's speed table as a scenario: its peers, its load and its metrics.

mod authorization;
mod change;
mod generators;
mod handshakes;
mod hop;
mod http2;
mod jwt;
mod latency;
mod memory;
pub mod pair;
mod policy;
mod signing;
mod startup;
mod tcp;

pub use authorization::{CASE as AUTHORIZATION_CASE, ENVOY_ASKS, EVENKEEL_ASKS};
pub use change::{AT_REST, CHANGING, ENDPOINTS_CASE, EVENKEEL_500, EVENKEEL_10000, REQUESTS_CASE, ROUTES_CASE};
pub use generators::{CASE as GENERATORS_CASE, EVENKEEL_LOAD, FORTIO, WRK};
pub use handshakes::{RESUMED_CASE, X25519_CASE};
pub use http2::{GRPC_CASE, HTTP_CASE};
pub use jwt::{CASE as TOKENS_CASE, ENVOY_TOKENS, EVENKEEL_TOKENS};
pub use latency::CASE as LATENCY_CASE;
pub use memory::{IDLE_CASE, PLAIN_CASE, STREAM_CASE, TLS_CASE};
pub use pair::{ENVOY_HTTP1, EVENKEEL_MESH};
pub use policy::{CASE as POLICY_CASE, EVENKEEL_RULES};
pub use signing::CASE as SIGNING_CASE;
pub use startup::{CASE as STARTUP_CASE, SIDECAR};

use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_load::Work;
use evenkeel_measure::metric::{Metric, Values};
use evenkeel_measure::rounds::{Findings, Plan};

use crate::peers::{Peer, Setup};

/// The inputs of a scenario.
pub struct Context<'a> {
    /// Programs and files.
    pub setup: &'a Setup,
    /// The amount of measuring.
    pub plan: &'a Plan,
    /// The configuration whose sidecar's start-up is measured.
    pub example: PathBuf,
    /// The output for progress.
    pub progress: &'a mut dyn Write,
}

/// One scenario.
pub struct Scenario {
    /// Its name after `--only`.
    pub name: &'static str,
    /// Its heading in the results.
    pub title: &'static str,
    /// Peers whose cost every other's is divided by.
    pub bases: &'static [&'static str],
    /// Measures.
    pub run: fn(&mut Context<'_>, &mut Findings) -> Result<()>,
}

/// All scenarios, in the order in which they run.
pub const ALL: &[Scenario] = &[
    startup::SCENARIO,
    memory::SCENARIO,
    hop::SCENARIO,
    pair::SCENARIO,
    http2::SCENARIO,
    latency::SCENARIO,
    tcp::SCENARIO,
    handshakes::SCENARIO,
    policy::SCENARIO,
    authorization::SCENARIO,
    jwt::SCENARIO,
    signing::SCENARIO,
    change::SCENARIO,
    generators::SCENARIO,
];

/// Time after readiness at which the memory for starting has been returned.
const SETTLING: Duration = Duration::from_secs(3);

/// The unit that is counted under load.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// Requests and their answers.
    Request,
    /// Bytes.
    Byte,
    /// Connections that carry one request.
    Connection,
}

/// Runs a load against a peer and values it by what the peer's processes spent meanwhile.
fn under_load(peer: &Peer, unit: Unit, load: impl FnOnce() -> Result<Work>) -> Result<Values> {
    let before = peer.cpu()?;
    let work = load()?;
    values(peer, unit, work, peer.cpu()?.saturating_sub(before))
}

/// Computes the values of a load on a peer whose processes spent that much CPU time on it.
fn values(peer: &Peer, unit: Unit, work: Work, spent: Duration) -> Result<Values> {
    let spent = spent.as_secs_f64();
    let (count, seconds) = (work.count as f64, work.time.as_secs_f64());
    let (cost, rate) = match unit {
        Unit::Request => ((Metric::CpuUsPerRequest, spent * 1e6 / count), (Metric::RequestsPerSecond, count / seconds)),
        Unit::Byte => ((Metric::MbPerCpuSecond, count / 1e6 / spent), (Metric::MbPerSecond, count / 1e6 / seconds)),
        Unit::Connection => {
            ((Metric::ConnectionsPerCpuSecond, count / spent), (Metric::ConnectionsPerSecond, count / seconds))
        }
    };
    let mut values = Values::from([rate]);
    if !peer.processes.is_empty() {
        let resident = peer.processes.iter().map(|process| process.resident_kib()).sum::<Result<u64>>()?;
        values.extend([cost, (Metric::ResidentMib, resident as f64 / 1024.0)]);
    }
    if let Some((p50, p99)) = work.latency {
        values.extend([(Metric::P50Us, p50.as_secs_f64() * 1e6), (Metric::P99Us, p99.as_secs_f64() * 1e6)]);
    }
    Ok(values)
}

fn names(peers: &[Peer]) -> Vec<&'static str> {
    peers.iter().map(|peer| peer.name).collect()
}

fn connections_case(count: usize) -> String {
    format!("{count} connection{}", if count == 1 { "" } else { "s" })
}

fn pause(time: Duration) {
    let end = Instant::now() + time;
    while let Some(rest) = end.checked_duration_since(Instant::now()).filter(|rest| !rest.is_zero()) {
        std::thread::park_timeout(rest);
    }
}
