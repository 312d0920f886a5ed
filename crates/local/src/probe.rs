//! Whether a replica may receive requests: asked from inside its network, at the address others will use.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use crate::client::{Call, connect};
use crate::namespace::Namespace;

/// How often a replica that is not ready is asked.
pub const STARTUP_PERIOD: Duration = Duration::from_millis(50);

/// What counts as ready, from `readinessProbe` or else from the first declared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// What is asked.
    pub check: Check,
    /// How often, once ready (`periodSeconds`; 1 s unless given).
    pub period: Duration,
    /// How long an answer may take (`timeoutSeconds`).
    pub timeout: Duration,
    /// After how many failures in a row a ready replica is not any more (`failureThreshold`).
    pub failures: u32,
}

/// The question.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// It runs: nothing more can be asked of a program that declares no port.
    Runs,
    /// The port accepts connections.
    Tcp(u16),
    /// A GET answers with 200 to 399.
    Http {
        /// Port.
        port: u16,
        /// Path and query.
        path: String,
    },
}

impl Probe {
    /// Asks `check` with the defaults for one machine: every second, one second to answer, three strikes.
    pub fn new(check: Check) -> Self {
        Self { check, period: Duration::from_secs(1), timeout: Duration::from_secs(1), failures: 3 }
    }

    /// The sidecar's own readiness, where Istio serves it.
    pub fn of_sidecar() -> Self {
        Self::new(Check::Http { port: 15021, path: "/healthz/ready".to_owned() })
    }

    /// Asks once; the error says what was seen.
    pub async fn ask(&self, namespace: &Namespace, address: Ipv4Addr) -> Result<(), String> {
        match &self.check {
            Check::Runs => Ok(()),
            Check::Tcp(port) => {
                let opened = connect(Some(namespace), SocketAddr::from((address, *port)));
                match tokio::time::timeout(self.timeout, opened).await {
                    Ok(Ok(_)) => Ok(()),
                    Ok(Err(error)) => Err(format!("port {port}: {error}")),
                    Err(_) => Err(format!("port {port}: no connection within {} s", self.timeout.as_secs_f32())),
                }
            }
            Check::Http { port, path } => {
                let mut call = Call::get(format!("{address}:{port}"), path);
                call.timeout = self.timeout;
                match call.send(Some(namespace), SocketAddr::from((address, *port))).await {
                    Ok(answer) if (200..400).contains(&answer.status.as_u16()) => Ok(()),
                    Ok(answer) => Err(format!("GET :{port}{path} answers {}", answer.status.as_u16())),
                    Err(error) => Err(format!("GET :{port}{path}: {error}")),
                }
            }
        }
    }
}

/// Counts answers: one success makes ready, `failures` misses in a row make unready.
#[derive(Debug, Default)]
pub struct Verdict {
    ready: bool,
    misses: u32,
}

impl Verdict {
    /// Takes one answer in and says whether the replica is ready now.
    pub fn after(&mut self, answered: bool, failures: u32) -> bool {
        self.misses = if answered { 0 } else { self.misses.saturating_add(1) };
        self.ready = answered || (self.ready && self.misses < failures);
        self.ready
    }

    /// A process ended: not ready, whatever was answered before.
    pub fn down(&mut self) {
        *self = Self::default();
    }

    /// Whether the replica was ready after the last answer.
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_success_makes_ready_and_only_failures_in_a_row_unready() {
        let check = |answers: &str, expected: &str| {
            let mut verdict = Verdict::default();
            let seen: String =
                answers.chars().map(|answer| if verdict.after(answer == '+', 3) { 'R' } else { '.' }).collect();
            assert_eq!(seen, expected, "{answers}");
        };
        check("--+", "..R");
        check("+--+--+", "RRRRRRR");
        check("+---+", "RRR.R");
    }
}
