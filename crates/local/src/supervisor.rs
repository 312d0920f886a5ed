//! Process 1 of the mesh's process namespace: starts everything, applies changes of the directory, and stops everything
//! in order.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::Arc;
use std::time::Duration;

use evenkeel_capture::nftables;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;

use crate::accounts::Accounts;
use crate::addresses::CONTROL_DEBUG;
use crate::check;
use crate::dashboard::MeshSource;
use crate::disk::Disk;
use crate::egress::rules;
use crate::exec_server::{self, Order, Restart};
use crate::follow;
use crate::logs;
use crate::mesh::{Mesh, MeshError};
use crate::network;
use crate::orphans::Orphans;
use crate::plan::Plan;
use crate::pods::{self, Roster};
use crate::preflight::Refused;
use crate::service_rules::{self, Behind};
use crate::ui::{Events, Screen, Style};
use crate::workloads::Workload;

/// How often orphans are collected and large logs are rotated.
const CHORES_PERIOD: Duration = Duration::from_secs(1);

/// Runs the mesh to its end and returns the exit status.
pub fn run(plan: Plan) -> u8 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = match runtime {
        Ok(runtime) => runtime.block_on(supervise(Arc::new(plan))),
        Err(error) => Err(MeshError::Io { what: "cannot start the event loop", source: error }),
    };
    ended.unwrap_or_else(|error| {
        let _ = writeln!(io::stderr(), "error: {error}");
        1
    })
}

async fn supervise(plan: Arc<Plan>) -> Result<u8, MeshError> {
    let mut stop = StopSignals::listen()?;
    prepare_network(&plan)?;
    let roster: Roster = watch::Sender::new(BTreeMap::new());
    let style = if plan.options.check { Style::Events } else { Style::Live };
    let (screen, events) = Screen::new(&plan.options.trust_domain, style);
    let screen = tokio::spawn(screen.show(roster.subscribe()));
    let (folder, view) = (plan.state.runtime(), roster.subscribe());
    let publisher = say_failure(&events, "telling the control plane about replicas", {
        let events = events.clone();
        async move { pods::publish(&folder, view, |said| events.say(said)).await }
    });
    let (accounts, note) = Accounts::settle(plan.state.path(), &plan.state.data(), &plan.directory);
    if let Some(note) = note {
        events.say(format!("note: {note}"));
    }
    let (behind, services) = watch::channel(Behind::new());
    let services_rules = tokio::spawn(service_rules::follow(plan.tools.clone(), roster.subscribe(), behind));
    let mut mesh = Mesh::new(plan.clone(), roster.clone(), accounts, services)?;
    let (order, mut orders) = exec_server::orders();
    let exec = exec_server::serve(plan.state.exec_socket(), mesh.replicas(), order);
    let exec = say_failure(&events, "serving `evenkeel exec`", exec);
    let (pages, record) = (plan.clone(), plan.state.pages());
    let serve_pages = async move { pages.host_pages.serve(&record, CONTROL_DEBUG).await };
    let pages = say_failure(&events, "serving the control plane's pages", serve_pages);

    let (dashboard, record) = (plan.clone(), plan.state.dashboard());
    let source = MeshSource { roster: roster.subscribe(), replicas: mesh.replicas() };
    let serve_dashboard = async move { dashboard.dashboard.serve(&record, source).await };
    let dashboard = say_failure(&events, "serving the dashboard", serve_dashboard);

    let (metrics, of_replicas) = (plan.clone(), mesh.replicas());
    let serve_metrics = async move { metrics.metrics_pages.serve(of_replicas).await };
    let metrics = say_failure(&events, "serving metrics", serve_metrics);

    let outcome = tokio::select! {
        outcome = run_mesh(&mut mesh, &plan, &events, &mut orders) => outcome,
        () = stop.next() => Ok(0),
    };

    let gateway = if plan.host_ports.is_empty() { "" } else { "the gateway drains first; " };
    events.footer(format!("stopping: {gateway}Ctrl-C again ends everything at once"));
    // A second signal ends the supervisor, and with it everything inside at once.
    tokio::select! {
        () = mesh.stop() => {}
        () = stop.next() => {}
    }
    services_rules.abort();
    exec.abort();
    pages.abort();
    metrics.abort();
    dashboard.abort();
    publisher.abort();
    events.end().await;
    let _ = screen.await;
    outcome
}

/// Runs a side task; if it fails, prints why.
fn say_failure(
    events: &Events,
    what: &'static str,
    task: impl Future<Output = io::Result<()>> + Send + 'static,
) -> JoinHandle<()> {
    let events = events.clone();
    tokio::spawn(async move {
        if let Err(error) = task.await {
            events.say(format!("error: {what} has ended: {error}"));
        }
    })
}

/// Starts the mesh, then either applies changes of the directory until it is stopped, or runs the check once.
async fn run_mesh(
    mesh: &mut Mesh,
    plan: &Arc<Plan>,
    events: &Events,
    orders: &mut mpsc::Receiver<Order>,
) -> Result<u8, MeshError> {
    mesh.start(events).await?;
    if plan.options.check {
        return Ok(check::run(mesh, plan, events).await);
    }
    let mut follower = follow::Follower::new(plan)?;
    // These run concurrently with the steps below, which may take long.
    let (renewals, chores) =
        (tokio::spawn(mesh.renew_tokens()), tokio::spawn(run_housekeeping(plan.clone(), events.clone())));
    let _beside = [renewals, chores].map(AbortOnDrop);
    loop {
        tokio::select! {
            change = follower.next() => follow::apply(change, mesh, events).await,
            Some(order) = orders.recv() => match order {
                // The client may be gone.
                Order::Restart(Restart { workloads, done }) => {
                    let _ = done.send(mesh.restart(&workloads).await.map_err(|error| error.to_string()));
                }
                Order::Settle(done) => {
                    while let Some(change) = follower.look_again() {
                        follow::apply(change, mesh, events).await;
                    }
                    let runs = mesh.manifest().workloads.iter().filter(|workload| workload.replicas > 0);
                    let runs: BTreeSet<(String, String)> = runs.map(Workload::key).collect();
                    let gateways = mesh.manifest().gateway_ports.iter().map(|port| port.owner.clone());
                    let _ = done.send(gateways.filter(|owner| runs.contains(owner)).collect());
                }
            },
            () = mesh.changed() => if let Err(error) = mesh.step().await {
                events.say(format!("error: {error}"));
            },
        }
    }
}

/// A task that is aborted when this value is dropped.
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn run_housekeeping(plan: Arc<Plan>, events: Events) {
    let mut due = tokio::time::interval(CHORES_PERIOD);
    let (mut orphans, mut disk) = (Orphans::default(), Disk::default());
    loop {
        due.tick().await;
        orphans.collect();
        logs::limit(&plan.state.logs());
        if let Some(said) = disk.look(plan.state.path()) {
            events.say(said);
        }
    }
}

/// Sets up the bridge, and checks that the kernel can redirect before anything relies on it.
fn prepare_network(plan: &Plan) -> Result<(), MeshError> {
    network::set_up_bridge(&plan.tools)?;
    rules::install(&plan.tools, plan.options.egress)?;
    plan.tools.nft(nftables::PROBE).map_err(|error| {
        let source = io::Error::other(error.to_string());
        MeshError::Refused(Refused::new("nftables redirect rules (modules nft_redir, nft_chain_nat)", source))
    })
}

/// The signals SIGINT and SIGTERM.
struct StopSignals {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
}

impl StopSignals {
    fn listen() -> Result<Self, MeshError> {
        let listen = |kind| signal(kind).map_err(|source| MeshError::Io { what: "cannot listen for signals", source });
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}
