//! The cost of a configuration change in a proxy that holds many services, and its effect on clients.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;
use evenkeel_load::{Requests, open_loop};
use evenkeel_measure::metric::{Metric, Values};
use evenkeel_measure::rounds::{Contest, Findings};

use super::{Context, Scenario, Unit, pause, values};
use crate::control_plane::{Change, ControlPlane};
use crate::peers::{Backend, EVENKEEL, Peer, Setup, free_address};

/// The row with few services.
pub const EVENKEEL_500: &str = "evenkeel, 500 services";
/// The row with many.
pub const EVENKEEL_10000: &str = "evenkeel, 10,000 services";
/// The peers in the tables of one change, with their numbers of services.
const HOLDERS: [(&str, usize); 6] = [
    (EVENKEEL_500, 500),
    ("evenkeel, 2,000 services", 2000),
    (EVENKEEL_10000, 10_000),
    ("envoy, 500 services", 500),
    ("envoy, 2,000 services", 2000),
    ("envoy, 10,000 services", 10_000),
];
/// The row of requests while nothing changes.
pub const AT_REST: &str = "evenkeel at rest";
/// The row of requests while much changes.
pub const CHANGING: &str = "evenkeel changing";
/// Services of the proxy that requests go through.
const LOADED_SERVICES: usize = 5000;
/// Requests per second.
const REQUEST_RATE: u32 = 1000;
/// Connections they are spread over.
const CONNECTIONS: usize = 16;
/// The interval between changes under load: twenty a second.
const CHANGE_INTERVAL: Duration = Duration::from_millis(50);
/// Requests with changes and without take turns for this long each.
const SLICE: Duration = Duration::from_millis(500);
/// Slices with changes, and slices without, in a round: 4,000 requests each, so that the 99th percentile rests on 40 of them.
const SLICES: usize = 8;
/// Between two changes that are counted.
const AFTER_CHANGE: Duration = Duration::from_millis(5);
/// Time for the remaining work of a start.
const SETTLING: Duration = Duration::from_secs(3);

/// The table of endpoint changes.
pub const ENDPOINTS_CASE: &str = "the endpoints of one service";
/// The table of route changes.
pub const ROUTES_CASE: &str = "a route table of 10 hosts";
/// The table of requests.
pub const REQUESTS_CASE: &str = "1,000 requests/s, 5,000 services, 20 changes/s or none";

/// The scenario.
pub const SCENARIO: Scenario = Scenario { name: "change", title: "Changes of the configuration", bases: &[], run };

fn run(cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
    let (_backend, upstream) = cx.setup.start_backend(Backend::Http1)?;
    let mut subjects = Vec::new();
    for (name, services) in HOLDERS {
        start(cx.setup, name, services, upstream, findings, &mut subjects);
    }
    let peers: Vec<_> = subjects.iter().map(|subject: &Subject| subject.peer.name).collect();
    for (case, change) in [(ENDPOINTS_CASE, Change::Endpoints), (ROUTES_CASE, Change::Routes)] {
        let contest = Contest { scenario: SCENARIO.name, case, peers: peers.clone() };
        findings.measure(&contest, cx.plan, cx.progress, |index, time| subjects[index].changes(change, time))?;
    }
    drop(subjects);
    let mut subjects = Vec::new();
    start(cx.setup, EVENKEEL, LOADED_SERVICES, upstream, findings, &mut subjects);
    let contest = Contest { scenario: SCENARIO.name, case: REQUESTS_CASE, peers: vec![AT_REST, CHANGING] };
    for subject in &mut subjects {
        if let Err(error) = subject.rounds(&contest, cx, findings) {
            (0..contest.peers.len()).for_each(|index| findings.leave_out(&contest, index, &error));
        }
    }
    Ok(())
}

/// A proxy with the control plane it follows.
struct Subject {
    peer: Peer,
    control_plane: ControlPlane,
}

fn start(
    setup: &Setup,
    name: &'static str,
    services: usize,
    upstream: std::net::SocketAddr,
    findings: &mut Findings,
    subjects: &mut Vec<Subject>,
) {
    if !setup.is_wanted(name) && !setup.is_wanted(name.split(',').next().unwrap_or_default()) {
        return;
    }
    match Subject::start(setup, name, services, upstream) {
        Ok(subject) => subjects.push(subject),
        Err(reason) => findings.absent(SCENARIO.name, name, &reason),
    }
}

impl Subject {
    fn start(setup: &Setup, name: &'static str, services: usize, upstream: std::net::SocketAddr) -> Result<Self> {
        let (listen, admin) = (free_address()?, free_address()?);
        let control_plane = ControlPlane::start(services, listen, upstream)?;
        let program = name.split([',', ' ']).next().unwrap_or_default();
        let mut process = setup.start_with(program, name, &control_plane.bootstrap("changing", admin))?;
        process.wait_until_ready(admin)?;
        process.wait_for_port(listen)?;
        control_plane.wait_accepted()?;
        pause(SETTLING);
        Ok(Self { peer: Peer { name, entry: listen, processes: vec![process] }, control_plane })
    }

    /// Makes one change after the other, each accepted before the next.
    fn changes(&mut self, change: Change, time: Duration) -> Result<Values> {
        let (before, start) = (self.peer.cpu()?, Instant::now());
        let mut changes = 0u32;
        while start.elapsed() < time {
            self.control_plane.change(change)?;
            self.control_plane.wait_accepted()?;
            changes += 1;
            // Work after the answer belongs to the change.
            pause(AFTER_CHANGE);
        }
        let spent = self.peer.cpu()?.saturating_sub(before);
        Ok(Values::from([(Metric::CpuMsPerChange, spent.as_secs_f64() * 1e3 / f64::from(changes))]))
    }

    /// Runs the rounds. In each, slices of requests with and without changes alternate, so that other load on the machine
    /// affects both alike.
    fn rounds(&mut self, contest: &Contest<'_>, cx: &mut Context<'_>, findings: &mut Findings) -> Result<()> {
        self.slice(false)?;
        self.slice(true)?;
        for round in 0..cx.plan.rounds {
            let mut slices = [Slices::default(), Slices::default()];
            for slice in 0..SLICES {
                // Neither is always first.
                for index in [slice % 2, 1 - slice % 2] {
                    slices[index].add(self.slice(contest.peers[index] == CHANGING)?);
                }
            }
            write!(cx.progress, "{}, {}, round {} of {}:", contest.scenario, contest.case, round + 1, cx.plan.rounds)?;
            for (index, Slices { requests, spent }) in slices.into_iter().enumerate() {
                let of_round = values(&self.peer, Unit::Request, requests.work()?, spent)?;
                write!(cx.progress, "  {} {:.0} p99 µs", contest.peers[index], of_round[&Metric::P99Us])?;
                findings.add(contest, index, round, of_round);
            }
            writeln!(cx.progress)?;
        }
        Ok(())
    }

    /// Requests for the time of a slice, under changes or without.
    fn slice(&mut self, changing: bool) -> Result<Slices> {
        let (peer, control_plane) = (&self.peer, &mut self.control_plane);
        let (ended, before) = (AtomicBool::new(!changing), peer.cpu()?);
        let requests = std::thread::scope(|scope| {
            let changes = scope.spawn(|| -> Result<()> {
                while !ended.load(Ordering::Relaxed) {
                    control_plane.change(Change::Endpoints)?;
                    pause(CHANGE_INTERVAL);
                }
                Ok(())
            });
            let requests = open_loop::run(peer.entry, CONNECTIONS, REQUEST_RATE, SLICE);
            ended.store(true, Ordering::Relaxed);
            changes.join().unwrap_or_else(|_| anyhow::bail!("changing panicked"))?;
            Ok::<_, anyhow::Error>(requests?)
        })?;
        // Work after the last change belongs to it.
        control_plane.wait_accepted()?;
        pause(AFTER_CHANGE);
        Ok(Slices { requests, spent: peer.cpu()?.saturating_sub(before) })
    }
}

/// Requests of several slices, and the proxy's CPU time meanwhile.
#[derive(Default)]
struct Slices {
    requests: Requests,
    spent: Duration,
}

impl Slices {
    fn add(&mut self, other: Self) {
        self.requests.add(other.requests);
        self.spent += other.spent;
    }
}
