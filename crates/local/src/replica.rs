//! One replica: its network, its sidecar, its program, and its readiness.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_process::manager::NOTIFY_SOCKET;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::container::{Container, ContainerSpec};
use crate::draining;
use crate::lifecycle::{self, Lifecycle, ProcessProbes, ProgramState};
use crate::namespace::Namespace;
use crate::network::{self, PodNetwork};
use crate::network_error::NetworkError;
use crate::pods::{LastExit, Pod, PodStatus, Roster};
use crate::probe::{Probe, ProbeContext, ReadinessCounter};
use crate::process::{Phase, Process, State};
use crate::program::Program;
use crate::service_rules::Behind;
use crate::tools::Tools;

/// Default time for a program to end after SIGTERM. Kubernetes' default `terminationGracePeriodSeconds` is 30; here
/// users wait for it.
pub const TERMINATION_GRACE: Duration = Duration::from_secs(5);

/// Details of a replica that is about to end.
const DRAINING: &str = "draining";
const STOPPING: &str = "stopping";

/// Least time for a program to end after a `preStop` hook that used up the grace period.
const LEAST_GRACE: Duration = Duration::from_secs(2);

/// The parts of a replica to start.
#[derive(Debug)]
pub struct ReplicaSpec {
    /// Its identity and address.
    pub pod: Arc<Pod>,
    /// Its network.
    pub network: PodNetwork,
    /// Its sidecar or gateway proxy; the container is set later.
    pub proxy: Option<Program>,
    /// Its program; a gateway has none. The container is set later.
    pub program: Option<Program>,
    /// The replica, by namespace and name, that must be ready before this program starts.
    pub after: Option<(String, String)>,
    /// The specification of its containers.
    pub containers: Containers<ContainerSpec>,
    /// Its readiness probe.
    pub probe: Probe,
    /// Time for requests and connections to end before the program is told to end.
    pub drain_time: Duration,
    /// Its other probes and hooks.
    pub lifecycle: Lifecycle,
    /// Time for its proxy to drain and end.
    pub proxy_grace: Duration,
    /// The replicas to which Services' addresses lead.
    pub(crate) behind: watch::Receiver<Behind>,
}

/// How a replica has to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Retirement {
    /// Not yet.
    None,
    /// Without losing a request: see [`draining`].
    Graceful,
    /// Together with all others: no replica is left to send requests.
    Now,
}

/// A value for each container of a replica. A container without a program still exists, for commands that run in it.
#[derive(Debug, Clone)]
pub struct Containers<T> {
    /// The application's.
    pub program: T,
    /// The proxy's port.
    pub proxy: T,
}

/// A running replica.
#[derive(Debug)]
pub struct Replica {
    /// Its identity and address.
    pub pod: Arc<Pod>,
    /// Its namespaces could not be made.
    pub namespace: Arc<Namespace>,
    /// The containers of its program and its proxy.
    pub containers: Containers<Arc<Container>>,
    /// Environment and working directory for commands of `evenkeel exec`.
    pub surroundings: Containers<(Vec<(String, String)>, PathBuf)>,
    processes: watch::Receiver<Processes>,
    roster: Roster,
    retire: watch::Sender<Retirement>,
}

/// The process ids of a replica's processes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Processes {
    /// The application.
    pub program: Option<u32>,
    /// The sidecar.
    pub proxy: Option<u32>,
}

/// Replicas by (namespace, pod name), for `exec` and the check.
pub type Replicas = Arc<BTreeMap<(String, String), Arc<Replica>>>;

impl Replica {
    /// Sets up its network and starts it: first the sidecar and, when that serves, the program, as Kubernetes orders
    /// native sidecars. From then on its status is in the roster.
    pub async fn start(spec: ReplicaSpec, tools: &Tools, roster: Roster) -> Result<Self, NetworkError> {
        let namespace = Arc::new(set_up_network(&spec.network, tools).await?);
        let containers = make_containers(&namespace, spec.containers.clone()).await?;
        let surroundings = surroundings(&spec);
        let (report, processes) = watch::channel(Processes::default());
        let (retire, retired) = watch::channel(Retirement::None);
        let pod = spec.pod.clone();
        let task = ReplicaTask {
            namespace: namespace.clone(),
            containers: containers.clone(),
            pod: pod.clone(),
            roster: roster.clone(),
            report,
            retired,
        };
        task.tell(false, "starting", &Counts::default());
        tokio::spawn(task.run(spec));
        Ok(Self { pod, namespace, containers, surroundings, processes, roster, retire })
    }

    /// Whether it is ready now.
    pub fn is_ready(&self) -> bool {
        self.roster.borrow().get(&key(&self.pod)).is_some_and(|status| status.ready)
    }

    /// Its processes now.
    pub fn processes(&self) -> Processes {
        *self.processes.borrow()
    }

    /// Returns its processes that keep crashing.
    pub fn failing(&self, now: Instant) -> Vec<LastExit> {
        let roster = self.roster.borrow();
        let ends = roster.get(&key(&self.pod)).into_iter().flat_map(|status| &status.ends);
        ends.filter(|part| part.end.is_of_many(now)).cloned().collect()
    }

    /// Takes the replica out: it is not ready at once, then the program ends, then the sidecar. A second call can only
    /// speed it up.
    pub async fn stop(&self, how: Retirement) {
        self.retire.send_if_modified(|before| *before < how && std::mem::replace(before, how) < how);
        // Its task holds the sender for as long as anything of the replica runs.
        let mut processes = self.processes.clone();
        while processes.changed().await.is_ok() {}
        self.roster.send_modify(|pods| {
            pods.remove(&key(&self.pod));
        });
    }
}

/// The environment and directories of its programs. A proxy started by `exec` to take over also gets the socket on
/// which to name its own successor.
fn surroundings(spec: &ReplicaSpec) -> Containers<(Vec<(String, String)>, PathBuf)> {
    let of = |program: Option<&Program>| {
        let known = program.map(|program| (program.environment.clone(), program.directory.clone()));
        known.unwrap_or_else(|| (Vec::new(), PathBuf::from("/")))
    };
    let (program, mut proxy) = (of(spec.program.as_ref()), of(spec.proxy.as_ref()));
    let notify = spec.proxy.as_ref().and_then(|proxy| proxy.notify.as_ref());
    proxy.0.extend(notify.map(|socket| (NOTIFY_SOCKET.to_owned(), socket.display().to_string())));
    Containers { program, proxy }
}

async fn make_containers(
    namespace: &Arc<Namespace>,
    specs: Containers<ContainerSpec>,
) -> Result<Containers<Arc<Container>>, NetworkError> {
    let namespace = namespace.clone();
    let made = tokio::task::spawn_blocking(move || {
        let make = |spec| Container::create(namespace.clone(), spec).map(Arc::new);
        Ok::<_, NetworkError>(Containers { program: make(specs.program)?, proxy: make(specs.proxy)? })
    });
    made.await.unwrap_or_else(|_| Err(std::io::Error::other("the thread that makes containers ended").into()))
}

fn key(pod: &Pod) -> (String, String) {
    (pod.namespace.clone(), pod.name.clone())
}

/// Sets up the network on another thread, because it waits for `ip` and `nft` and must not delay other replicas'
/// probes.
async fn set_up_network(network: &PodNetwork, tools: &Tools) -> Result<Namespace, NetworkError> {
    let (outer_network, tools) = (network.clone(), tools.clone());
    let laid = tokio::task::spawn_blocking(move || {
        let (inner_network, inner_tools) = (outer_network.clone(), tools.clone());
        // This thread never leaves the mesh's own network.
        let home = File::open("/proc/thread-self/ns/net")?;
        let namespace = Namespace::create(move || network::settle(&inner_network, &inner_tools, home.as_fd()))?;
        network::attach_to_bridge(&outer_network, &tools)?;
        Ok::<_, NetworkError>(namespace)
    });
    let namespace = laid
        .await
        .unwrap_or_else(|_| Err(std::io::Error::other("the thread that sets up the network ended").into()))?;
    network::wait_carrier(network).await;
    Ok(namespace)
}

/// The task that runs a replica.
struct ReplicaTask {
    namespace: Arc<Namespace>,
    containers: Containers<Arc<Container>>,
    pod: Arc<Pod>,
    roster: Roster,
    report: watch::Sender<Processes>,
    retired: watch::Receiver<Retirement>,
}

/// Why a replica is not ready.
enum NotReady {
    /// A process does not run.
    Down(String),
    /// A probe failed.
    Unanswered(String),
}

impl ReplicaTask {
    async fn run(mut self, spec: ReplicaSpec) {
        let enter = |container: &Arc<Container>, mut program: Program| {
            program.container = Some(container.clone());
            Process::start(program)
        };
        let containers = self.containers.clone();
        let mut proxy = spec.proxy.map(|proxy| enter(&containers.proxy, proxy));
        let beside = spec.program.clone().map(|mut program| {
            program.container = Some(containers.program.clone());
            program
        });
        let managed = ManagedProgram { lifecycle: spec.lifecycle, program: beside.map(Arc::new) };
        let mut probes: Option<ProcessProbes> = None;
        let mut held_back = spec.program;
        let mut program: Option<Process> = None;
        let mut readiness = ReadinessCounter::default();
        loop {
            // Subscribe before probing, to notice a process that ends during a probe.
            let mut ends = [program.as_ref(), proxy.as_ref()].map(subscribe);
            let mut seen = self.ask_proxy(proxy.as_ref()).await;
            if seen.is_ok() && held_back.is_some() && !self.is_ready(spec.after.as_ref()) {
                seen = Err(NotReady::Unanswered("waits for the replica before it".to_owned()));
            }
            if seen.is_ok() {
                if let Some(start) = held_back.take() {
                    program = Some(enter(&containers.program, start));
                    continue;
                }
                seen = self.ask_program(program.as_ref(), &spec.probe, &managed, &mut probes).await;
            }
            self.judge(&mut readiness, seen, &spec.probe, &Counts::of(program.as_ref(), proxy.as_ref()));
            self.keep_serving(readiness.is_ready(), [program.as_ref(), proxy.as_ref()]);
            self.note_processes(program.as_ref(), proxy.as_ref());
            let pause = if readiness.is_ready() { spec.probe.period } else { spec.probe.startup_period() };
            let pause =
                probes.as_ref().and_then(|probes| probes.pause(Instant::now())).map_or(pause, |due| due.min(pause));
            let [program_ends, proxy_ends] = &mut ends;
            tokio::select! {
                _ = self.retired.wait_for(|retired| *retired != Retirement::None) => break,
                () = changed(program_ends) => {}
                () = changed(proxy_ends) => {}
                () = tokio::time::sleep(pause) => {}
            }
        }
        let counts = Counts::of(program.as_ref(), proxy.as_ref());
        if readiness.is_ready() {
            self.tell(false, DRAINING, &counts);
            let (namespace, address, mut retired) = (self.namespace.clone(), self.pod.address, self.retired.clone());
            let admin = self.pod.proxy.admin();
            let leave = async {
                draining::wait_until_unused(address, spec.behind).await;
                if proxy.is_some() {
                    draining::drain(&namespace, admin, spec.drain_time).await;
                }
            };
            tokio::select! {
                () = leave => {}
                _ = retired.wait_for(|retired| *retired == Retirement::Now) => {}
            }
        }
        self.tell(false, STOPPING, &counts);
        if let Some(program) = &mut program {
            let left = managed.before_stop(&self, program.pid().is_some()).await;
            program.stop(left).await;
        }
        if let Some(proxy) = &mut proxy {
            proxy.stop(spec.proxy_grace).await;
        }
        self.note_processes(None, None);
    }

    /// Whether the replica that must come first is ready.
    fn is_ready(&self, first: Option<&(String, String)>) -> bool {
        first.is_none_or(|first| self.roster.borrow().get(first).is_some_and(|status| status.ready))
    }

    fn inside<'a>(&'a self, program: Option<&'a Program>) -> ProbeContext<'a> {
        ProbeContext { namespace: &self.namespace, address: self.pod.address, program }
    }

    async fn ask_proxy(&self, proxy: Option<&Process>) -> Result<(), NotReady> {
        let Some(proxy) = proxy else { return Ok(()) };
        let runs = running(proxy);
        let answer = Probe::of_sidecar().ask(&self.inside(None)).await;
        match (runs, answer) {
            // The proxy answers, whether or not its process runs: another one may have taken over without notice. The
            // next one that is started takes over from that one.
            (_, Ok(())) => Ok(()),
            (Ok(()), Err(seen)) => Err(NotReady::Unanswered(format!("proxy not ready: {seen}"))),
            (Err(reason), Err(_)) => Err(NotReady::Down(format!("proxy {reason}"))),
        }
    }

    async fn ask_program(
        &self,
        program: Option<&Process>,
        probe: &Probe,
        managed: &ManagedProgram,
        probes: &mut Option<ProcessProbes>,
    ) -> Result<(), NotReady> {
        let Some(program) = program else { return Ok(()) };
        running(program).map_err(NotReady::Down)?;
        let Some(process) = program.pid() else { return Err(NotReady::Down("starting".to_owned())) };
        let inside = managed.inside(self);
        if probes.as_ref().is_none_or(|probes| probes.process() != process) {
            *probes = Some(ProcessProbes::of(&managed.lifecycle, process, Instant::now()));
            managed.after_start(self);
        }
        let Some(present) = probes.as_mut() else { return Ok(()) };
        match present.ask(&inside).await {
            ProgramState::Started if present.age() < probe.initial_delay => {
                Err(NotReady::Unanswered("starting".to_owned()))
            }
            ProgramState::Started => probe.ask(&inside).await.map_err(NotReady::Unanswered),
            ProgramState::Starting(reason) => Err(NotReady::Unanswered(reason)),
            ProgramState::Failed(reason) => {
                tokio::spawn(lifecycle::end(process, managed.grace(), program.state()));
                Err(NotReady::Down(reason))
            }
        }
    }

    fn judge(&self, readiness: &mut ReadinessCounter, seen: Result<(), NotReady>, probe: &Probe, counts: &Counts) {
        let (answered, detail) = match seen {
            Ok(()) => (true, String::new()),
            Err(NotReady::Unanswered(reason)) => (false, reason),
            Err(NotReady::Down(reason)) => {
                readiness.down();
                (false, reason)
            }
        };
        let ready = readiness.after(answered, probe);
        self.tell(ready, if ready { "" } else { &detail }, counts);
    }

    /// Shortens the restart delay of processes that have served, and of those that no other replica can replace.
    fn keep_serving(&self, ready: bool, processes: [Option<&Process>; 2]) {
        let stands_in = |status: &PodStatus| {
            let (theirs, ours) = (&status.pod, &self.pod);
            status.ready && theirs.workload == ours.workload && theirs.namespace == ours.namespace
        };
        let alone = !ready && !self.roster.borrow().values().any(stands_in);
        for process in processes.into_iter().flatten() {
            if ready {
                process.note_served();
            } else if alone && process.has_served() {
                process.shorten_backoff();
            }
        }
    }

    /// Updates the replica's status in the roster; wakes its readers only if it has changed.
    fn tell(&self, ready: bool, detail: &str, counts: &Counts) {
        let Counts { restarts, takeovers, ends } = counts.clone();
        let leaving = [DRAINING, STOPPING].contains(&detail);
        let detail = detail.to_owned();
        let status = PodStatus { pod: self.pod.clone(), ready, leaving, detail, restarts, takeovers, ends };
        self.roster.send_if_modified(|pods| {
            let before = pods.insert(key(&self.pod), status.clone());
            before.as_ref() != Some(&status)
        });
    }

    fn note_processes(&self, program: Option<&Process>, proxy: Option<&Process>) {
        let now = Processes { program: program.and_then(Process::pid), proxy: proxy.and_then(Process::pid) };
        self.report.send_if_modified(|before| std::mem::replace(before, now) != now);
    }
}

/// A program with its probes and hooks.
struct ManagedProgram {
    lifecycle: Lifecycle,
    program: Option<Arc<Program>>,
}

impl ManagedProgram {
    fn inside<'a>(&'a self, task: &'a ReplicaTask) -> ProbeContext<'a> {
        task.inside(self.program.as_deref())
    }

    fn grace(&self) -> Duration {
        self.lifecycle.grace.unwrap_or(TERMINATION_GRACE)
    }

    /// Starts the `postStart` hook, which runs concurrently.
    fn after_start(&self, task: &ReplicaTask) {
        let Some(hook) = self.lifecycle.post_start.clone() else { return };
        let (namespace, address, program) = (task.namespace.clone(), task.pod.address, self.program.clone());
        tokio::spawn(async move {
            let inside = ProbeContext { namespace: &namespace, address, program: program.as_deref() };
            lifecycle::post_start(&hook, &inside).await;
        });
    }

    /// Runs the `preStop` hook of a running program. Returns the rest of its grace period.
    async fn before_stop(&self, task: &ReplicaTask, runs: bool) -> Duration {
        let Some(hook) = self.lifecycle.pre_stop.as_ref().filter(|_| runs) else { return self.grace() };
        let begun = Instant::now();
        if let Err(reason) = hook.run(&self.inside(task), self.grace()).await {
            tracing::warn!(pod = %task.pod.name, %reason, "preStop failed");
        }
        // Kubernetes, too, gives a program two seconds if its hook has used up the grace period.
        self.grace().saturating_sub(begun.elapsed()).max(LEAST_GRACE)
    }
}

fn running(process: &Process) -> Result<(), String> {
    match &process.state().borrow().phase {
        Phase::Running(_) => Ok(()),
        Phase::Starting => Err("starting".to_owned()),
        Phase::Crashed(reason) => Err(reason.clone()),
        Phase::Stopped => Err("stopped".to_owned()),
    }
}

/// Counters of events of a replica's processes.
#[derive(Debug, Clone, Default)]
struct Counts {
    /// Restarts of its program, or of its proxy if it has no program.
    restarts: u32,
    /// How often another process took over from its proxy.
    takeovers: u32,
    /// The last exit of each process.
    ends: Vec<LastExit>,
}

impl Counts {
    fn of(program: Option<&Process>, proxy: Option<&Process>) -> Self {
        Self {
            restarts: program.or(proxy).map_or(0, |process| process.state().borrow().restarts),
            takeovers: proxy.map_or(0, |proxy| proxy.state().borrow().takeovers),
            ends: [("program", program), ("proxy", proxy)].into_iter().filter_map(last_end).collect(),
        }
    }
}

fn last_end((part, process): (&'static str, Option<&Process>)) -> Option<LastExit> {
    let state = process?.state().borrow().clone();
    let runs = matches!(state.phase, Phase::Running(_));
    Some(LastExit { part, restarts: state.restarts, runs, end: state.last_end? })
}

fn subscribe(process: Option<&Process>) -> Option<watch::Receiver<State>> {
    let mut state = process?.state();
    state.mark_unchanged();
    Some(state)
}

/// Completes at the next change of phase; never if there is no process.
async fn changed(state: &mut Option<watch::Receiver<State>>) {
    let gone = match state {
        Some(state) => state.changed().await.is_err(),
        None => true,
    };
    if gone {
        std::future::pending().await
    }
}
