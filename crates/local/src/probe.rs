//! Readiness probes: they run inside the replica's network and use the address that others will use.

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use evenkeel_agent::health::check_grpc;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::client::{Answer, Call, connect};
use crate::namespace::Namespace;
use crate::program::Program;

/// How often a replica that is not ready is probed.
pub const STARTUP_PERIOD: Duration = Duration::from_millis(50);
/// How much of a failed probe's answer is shown, in characters.
const MAX_SAID_CHARS: usize = 160;

/// A probe, from `readinessProbe` or otherwise for the first declared port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The check.
    pub check: Check,
    /// How often it runs once the replica is ready (`periodSeconds`; 1 s if not given).
    pub period: Duration,
    /// How long an answer may take (`timeoutSeconds`).
    pub timeout: Duration,
    /// Consecutive failures after which a ready replica is not ready any more (`failureThreshold`).
    pub failures: u32,
    /// Consecutive successes after which it is ready (`successThreshold`).
    pub successes: u32,
    /// Time after the start until the first probe (`initialDelaySeconds`).
    pub initial_delay: Duration,
}

/// The check of a probe.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Check {
    /// The program runs: without a declared port nothing more can be checked.
    Runs,
    /// The port accepts connections.
    Tcp(u16),
    /// A GET answers with 200 to 399.
    Http {
        /// Port.
        port: u16,
        /// Path and query.
        path: String,
        /// Headers.
        headers: Vec<(String, String)>,
    },
    /// A command ends with status 0.
    Exec(Vec<String>),
    /// gRPC's health service says SERVING.
    Grpc {
        /// Port.
        port: u16,
        /// The service to check; empty: the server as a whole.
        service: String,
    },
}

/// The context of probes and hooks: inside a replica, in its program's container.
#[derive(Debug, Clone, Copy)]
pub struct ProbeContext<'a> {
    /// Its namespaces could not be made.
    pub namespace: &'a Namespace,
    /// Its address.
    pub address: Ipv4Addr,
    /// Its program, in whose container commands run.
    pub program: Option<&'a Program>,
}

impl ProbeContext<'_> {
    /// Connects to a port.
    async fn connect(&self, port: u16, within: Duration) -> Result<tokio::net::TcpStream, String> {
        let opened = connect(Some(self.namespace), SocketAddr::from((self.address, port)));
        match tokio::time::timeout(within, opened).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(format!("port {port}: {error}")),
            Err(_) => Err(format!("port {port}: no connection within {} s", within.as_secs_f32())),
        }
    }

    /// Sends a GET and returns the answer.
    pub async fn get(
        &self,
        port: u16,
        path: &str,
        headers: &[(String, String)],
        within: Duration,
    ) -> Result<Answer, String> {
        let mut call = Call::get(format!("{}:{port}", self.address), path);
        call.timeout = within;
        for (name, value) in headers {
            if name.eq_ignore_ascii_case("host") {
                call.host.clone_from(value)
            } else {
                call.headers.push((name.clone().into(), value.clone()))
            }
        }
        let answer = call.send(Some(self.namespace), SocketAddr::from((self.address, port))).await;
        answer.map_err(|error| format!("GET :{port}{path}: {error}"))
    }

    /// Runs a command in the program's container; an error unless it ends with status 0 in time.
    pub async fn run(&self, command: &[String], within: Duration) -> Result<(), String> {
        let name = command.first().cloned().unwrap_or_default();
        let program = self.program.ok_or_else(|| format!("{name}: the replica has no program to run it beside"))?;
        let mut child = program.beside(command).spawn().map_err(|error| format!("{name}: {error}"))?;
        match tokio::time::timeout(within, child.wait()).await {
            Ok(Ok(status)) if status.success() => Ok(()),
            Ok(Ok(status)) => Err(format!("{name}: {status}")),
            Ok(Err(error)) => Err(format!("{name}: {error}")),
            Err(_) => {
                if let Some(pid @ 2..) = child.id().and_then(|id| i32::try_from(id).ok()) {
                    let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
                }
                let _ = child.wait().await;
                Err(format!("{name}: did not end within {} s", within.as_secs_f32()))
            }
        }
    }
}

impl Probe {
    /// Makes a probe with the defaults for one machine: every second, a timeout of one second, three failures.
    pub fn new(check: Check) -> Self {
        let (period, timeout) = (Duration::from_secs(1), Duration::from_secs(1));
        Self { check, period, timeout, failures: 3, successes: 1, initial_delay: Duration::ZERO }
    }

    /// The probe of the sidecar's own readiness, on Istio's port and path.
    pub fn of_sidecar() -> Self {
        Self::new(Check::Http { port: 15021, path: "/healthz/ready".to_owned(), headers: Vec::new() })
    }

    /// Probes once; the error says why it failed.
    pub async fn ask(&self, inside: &ProbeContext<'_>) -> Result<(), String> {
        match &self.check {
            Check::Runs => Ok(()),
            Check::Tcp(port) => inside.connect(*port, self.timeout).await.map(drop),
            Check::Http { port, path, headers } => {
                let answer = inside.get(*port, path, headers, self.timeout).await?;
                match answer.status.as_u16() {
                    200..400 => Ok(()),
                    status => Err(format!("GET :{port}{path} answers {status}{}", said(&answer.body))),
                }
            }
            Check::Exec(command) => inside.run(command, self.timeout).await,
            Check::Grpc { port, service } => {
                let stream = inside.connect(*port, self.timeout).await?;
                let authority = format!("{}:{port}", inside.address);
                let answer = tokio::time::timeout(self.timeout, check_grpc(stream, &authority, service)).await;
                let answer =
                    answer.unwrap_or_else(|_| Err(format!("no answer within {} s", self.timeout.as_secs_f32())));
                answer.map_err(|reason| format!("gRPC :{port}: {reason}"))
            }
        }
    }

    /// Time between two probes of a replica that is not ready; short if the check is cheap.
    pub fn startup_period(&self) -> Duration {
        match self.check {
            Check::Exec(_) => STARTUP_PERIOD.max(self.period / 4),
            _ => STARTUP_PERIOD,
        }
    }
}

/// The body of a failed answer, which often says why, in one line after a colon.
fn said(body: &str) -> String {
    let lines: Vec<&str> = body.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    // The text goes to a terminal, and the program may print anything.
    let line = lines.join(": ").replace(char::is_control, "");
    let short: String = line.chars().take(MAX_SAID_CHARS).collect();
    match (short.is_empty(), short.len() < line.len()) {
        (true, _) => String::new(),
        (false, false) => format!(": {short}"),
        (false, true) => format!(": {short}…"),
    }
}

/// Counts consecutive successes and failures of a readiness probe to decide whether a replica is ready.
#[derive(Debug, Default)]
pub struct ReadinessCounter {
    ready: bool,
    hits: u32,
    misses: u32,
}

impl ReadinessCounter {
    /// Counts one result and returns whether the replica is ready now.
    pub fn after(&mut self, answered: bool, probe: &Probe) -> bool {
        (self.hits, self.misses) =
            if answered { (self.hits.saturating_add(1), 0) } else { (0, self.misses.saturating_add(1)) };
        self.ready = if self.ready { self.misses < probe.failures } else { self.hits >= probe.successes.max(1) };
        self.ready
    }

    /// A process has ended: the replica is not ready, whatever the previous results.
    pub fn down(&mut self) {
        *self = Self::default();
    }

    /// Whether the replica was ready after the last result.
    pub fn is_ready(&self) -> bool {
        self.ready
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successes_in_a_row_make_ready_and_only_failures_in_a_row_unready() {
        let check_after = |successes: u32, answers: &str, expected: &str| {
            let probe = Probe { successes, ..Probe::new(Check::Runs) };
            let mut verdict = ReadinessCounter::default();
            let seen: String =
                answers.chars().map(|answer| if verdict.after(answer == '+', &probe) { 'R' } else { '.' }).collect();
            assert_eq!(seen, expected, "{answers}");
        };
        check_after(2, "+-++--++---", "...RRRRRRR.");
        let check = |answers: &str, expected: &str| check_after(1, answers, expected);
        check("--+", "..R");
        check("+--+--+", "RRRRRRR");
        check("+---+", "RRR.R");
    }

    #[test]
    fn what_a_replica_says_of_itself_is_shown_in_one_line() {
        let check = |body: &str, expected: &str| assert_eq!(said(body), expected, "{body:?}");
        check("", "");
        check(" \r\n", "");
        check("INITIALIZING\nwaits for VHDS 9999/old\n", ": INITIALIZING: waits for VHDS 9999/old");
        check("no \x1b[2Jdatabase\r\n", ": no [2Jdatabase");
        check(&"é".repeat(200), &format!(": {}…", "é".repeat(MAX_SAID_CHARS)));
    }
}
