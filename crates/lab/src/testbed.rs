//! The testbed of every scenario: the mesh, the server, the fleet, the gateway and the measurements.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use evenkeel_process::resources::raise_open_files;
use rustc_hash::FxHashMap;
use tempfile::TempDir;

use crate::changes::{Change, ChangeId, ChangeKind};
use crate::error::LabError;
use crate::fleet::{Fleet, FleetSpec, Totals};

use crate::api_server::ApiServer;
use crate::mesh::{self, Address, Destination, Mesh};
use crate::options::Options;
use crate::process::Usage;
use crate::progress::Progress;
use crate::proxy::Scope;
use crate::real_proxy::{IN_NAMESPACE, ON_LOOPBACK, Ports, ProxyKind, RealProxy};
use crate::results::{
    ChangeRecord, Cost, KindSummary, Machine, MeshFacts, ProxyRecord, Results, Sample, Start, ms, round,
};
use crate::server::{Objects, Server};
use crate::wire::Protocol;
use crate::writer::Writer;
use evenkeel_measure::Distribution;

/// How often the server's usage is sampled.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
/// How often a condition outside the fleet is checked.
const LOOK_AGAIN: Duration = Duration::from_millis(5);
/// File descriptors for other things than the fleet's connections: files, logs, the gateway.
const SPARE_FILES: u64 = 128;

/// All parts of a scenario.
#[derive(Debug)]
pub struct Testbed {
    /// The flags.
    pub options: Options,
    /// The configuration.
    pub mesh: Mesh,
    /// The control plane.
    pub server: Server,
    /// The simulated proxies.
    pub fleet: Fleet,
    /// The real gateway.
    pub gateway: Option<RealProxy>,
    /// The endpoints that answer.
    pub backends: [Address; 2],
    /// The progress line.
    pub progress: Progress,
    /// The binary of control plane and gateway.
    pub program: PathBuf,
    /// The start of the mesh.
    pub start: Start,
    epoch: Instant,
    samples: Vec<Sample>,
    last_sample: Option<Instant>,
    ready: FxHashMap<ChangeId, Duration>,
    first_use: FxHashMap<ChangeId, Duration>,
    machine: Machine,
    work: TempDir,
    /// Before the directory, which it writes into.
    api_server: Option<ApiServer>,
}

/// The begin of a measured part of the scenario.
#[derive(Debug, Clone, Copy)]
pub struct Checkpoint {
    at: Instant,
    usage: Option<Usage>,
    totals: Totals,
    finished: usize,
}

impl Testbed {
    /// Writes the mesh, starts the server, connects all proxies at once and waits until they hold their whole
    /// configuration.
    pub async fn set(options: &Options, program: PathBuf, progress: Progress) -> Result<Self, LabError> {
        check(options)?;
        let machine = Machine::here();
        let work = TempDir::with_prefix("evenkeel-lab-").map_err(LabError::io("creating a temporary directory"))?;
        let config = options.config.clone().unwrap_or_else(|| work.path().join("mesh"));
        let backends = if options.kubernetes.is_some() { IN_NAMESPACE } else { ON_LOOPBACK };
        let ports = Ports::choose(backends)?;
        let own = options.program.clone().unwrap_or_else(|| program.clone());
        let api_server = match &options.kubernetes {
            Some(programs) => {
                progress.begin("starting the API server", 0);
                let server = ApiServer::start(programs, work.path()).await?;
                server.prepare(&own).await?;
                Some(server)
            }
            None => None,
        };
        let destination = match &api_server {
            Some(server) => Destination::Cluster(Writer::start(server.options().clone())?),
            None => Destination::Directory(config.clone()),
        };
        let mesh = Mesh::create(destination, options.kind, ports.http.port(), ports.backend_port())?;
        progress.begin("writing the mesh", options.services as u64);
        for service in 0..options.services {
            mesh.write(service, &endpoints_at_start(service))?;
        }
        let source = match &api_server {
            Some(server) => Objects::Cluster(server.options().kubeconfig.clone().unwrap_or_default()),
            None => Objects::Directory(config),
        };
        let server = match options.xds {
            Some(address) => Server::other(address, options.server_pid),
            None => Server::own(&own, source, work.path(), options.debounce)?,
        };
        let fleet = fleet(options, &mesh, server.address(), options.services);
        let mut testbed = Self {
            options: options.clone(),
            mesh,
            server,
            fleet,
            gateway: None,
            backends,
            progress,
            program: own,
            start: Start::default(),
            epoch: Instant::now(),
            samples: Vec::new(),
            last_sample: None,
            ready: FxHashMap::default(),
            first_use: FxHashMap::default(),
            machine,
            work,
            api_server,
        };
        testbed.wait_written().await?;
        testbed.start_all().await?;
        if !options.no_gateway {
            testbed.start_gateway(ports).await?;
        }
        Ok(testbed)
    }

    async fn start_all(&mut self) -> Result<(), LabError> {
        self.epoch = self.server.start()?;
        self.server.ready(self.options.patience).await?;
        if self.server.is_own() {
            self.start.server_ready_ms = ms(self.epoch.elapsed());
        }
        self.fleet.connect();
        self.wait_configured().await?;
        let configured = |fleet: &Fleet| {
            let mut all = Vec::new();
            fleet.for_each(|_, proxy, _| all.extend(proxy.configured));
            all
        };
        let times = configured(&self.fleet);
        let last = times.iter().max().copied().unwrap_or_default();
        let totals = self.fleet.totals();
        self.start.all_configured_ms = ms((self.fleet.start() + last).saturating_duration_since(self.epoch));
        self.start.configured_ms = Distribution::of(times.into_iter().map(ms));
        self.start.bytes = totals.bytes;
        self.start.resources = totals.resources;
        self.start.failures = totals.failures;
        self.start.server = self.server.usage()?;
        Ok(())
    }

    /// Waits until the API server has all objects.
    pub async fn wait_written(&mut self) -> Result<(), LabError> {
        self.wait("the API server has not stored all objects", |testbed| testbed.mesh.unwritten() == 0).await
    }

    /// How many list requests the API server has answered; `None` without one.
    pub async fn lists(&self) -> Result<Option<BTreeMap<String, f64>>, LabError> {
        match &self.api_server {
            Some(server) => server.lists().await.map(Some),
            None => Ok(None),
        }
    }

    /// Waits until every proxy holds its whole configuration.
    pub async fn wait_configured(&mut self) -> Result<(), LabError> {
        self.progress.begin("configuring", self.fleet.len() as u64);
        self.wait("the proxies are not configured", |testbed| {
            testbed.progress.at((testbed.fleet.len() - testbed.fleet.unconfigured()) as u64);
            testbed.fleet.unconfigured() == 0
        })
        .await
    }

    /// Starts the gateway. It will serve services that are added later; a request for an existing service checks that
    /// it works.
    async fn start_gateway(&mut self, ports: Ports) -> Result<(), LabError> {
        self.progress.begin("starting the gateway", 0);
        let service = self.options.services;
        self.mesh.write(service, &self.backends)?;
        let gateway = self.start_proxy(ProxyKind::Gateway, ports)?;
        let mut answer = gateway.first_answer(self.mesh.host(service));
        self.gateway = Some(gateway);
        let waited = self.wait("the gateway does not answer", |_| answer.try_recv().is_ok()).await;
        if let (Err(LabError::Stalled { .. }), Some(gateway)) = (&waited, &self.gateway) {
            return Err(gateway.failure("does not answer"));
        }
        waited
    }

    /// Starts a real proxy in the mesh.
    pub fn start_proxy(&self, kind: ProxyKind, ports: Ports) -> Result<RealProxy, LabError> {
        let scope = self.options.scope;
        RealProxy::start(kind, scope, &self.program, self.work.path(), ports, self.server.address())
    }

    /// The first service number that is not used yet.
    pub fn first_free_service(&self) -> usize {
        self.options.services + 1
    }

    /// The endpoints of an added service. They are real if the gateway will call it.
    pub fn endpoints_of_new(&self, service: usize) -> [Address; 2] {
        match self.gateway {
            Some(_) => self.backends,
            None => mesh::first_endpoints(service),
        }
    }

    /// Makes a change and tracks it.
    pub fn change(
        &mut self,
        kind: ChangeKind,
        service: usize,
        address: Option<Address>,
        endpoints: &[Address],
    ) -> Result<ChangeId, LabError> {
        let host = self.mesh.host(service);
        let mark = address.map(|address| address.to_string()).unwrap_or_default();
        let change = Change { kind, service, host, mark };
        self.fleet.change(change, || match kind {
            ChangeKind::RemoveService => self.mesh.remove(service),
            _ => self.mesh.write(service, endpoints),
        })
    }

    /// Changes the VirtualService of a service: a route matches another value of a header. `values`: how many were used.
    pub fn change_routes(&mut self, service: usize, values: usize) -> Result<ChangeId, LabError> {
        let (host, mark) = (self.mesh.host(service), mesh::tier(values));
        let change = Change { kind: ChangeKind::EditRoutes, service, host, mark: mark.clone() };
        self.fleet.change(change, || self.mesh.write_routes(service, &mesh::first_endpoints(service), &mark))
    }

    /// Records the time after which the gateway served a change.
    pub fn note_ready(&mut self, id: ChangeId, after: Duration) {
        self.ready.insert(id, after);
    }

    /// Records how long the first use of a changed service took.
    pub fn note_first_use(&mut self, id: ChangeId, after: Duration) {
        self.first_use.insert(id, after);
    }

    /// Waits until `done` returns true, and samples the server meanwhile. Fails if the server ends or the time limit
    /// passes.
    pub async fn wait(&mut self, what: &'static str, mut done: impl FnMut(&mut Self) -> bool) -> Result<(), LabError> {
        let begin = Instant::now();
        loop {
            self.sample()?;
            if done(self) {
                return Ok(());
            }
            self.server.check()?;
            self.mesh.check()?;
            if let Some(server) = &mut self.api_server {
                server.check()?;
            }
            if let Some(gateway) = &mut self.gateway {
                gateway.check()?;
            }
            if begin.elapsed() > self.options.patience {
                return Err(LabError::Stalled { what, seconds: begin.elapsed().as_secs_f64(), state: self.describe() });
            }
            // The condition may also depend on something outside the fleet, so it is also checked from time to time.
            let _ = tokio::time::timeout(LOOK_AGAIN, self.fleet.progress()).await;
        }
    }

    /// Waits until all concerned proxies have acknowledged every change.
    pub async fn wait_settled(&mut self) -> Result<(), LabError> {
        self.wait("a change has not reached everybody", |testbed| testbed.fleet.tracker().under_way() == 0).await
    }

    /// Waits for this time, and samples the server meanwhile.
    pub async fn pause(&mut self, time: Duration) -> Result<(), LabError> {
        let end = Instant::now() + time;
        self.wait("time stands still", |_| Instant::now() >= end).await
    }

    fn describe(&self) -> String {
        let failure = self.fleet.last_failure().map(|f| format!("; last failure: {f}")).unwrap_or_default();
        let mut example = String::new();
        self.fleet.for_each(|_, proxy, _| {
            if example.is_empty() && proxy.configured.is_none() {
                example = format!("; {} holds {:?}", proxy.id(), proxy.held());
            }
        });
        format!(
            "{} of {} proxies connected, {} not configured; {}{example}{failure}",
            self.fleet.connected(),
            self.fleet.len(),
            self.fleet.unconfigured(),
            self.fleet.tracker().describe(),
        )
    }

    fn sample(&mut self) -> Result<(), LabError> {
        let now = Instant::now();
        if self.last_sample.is_some_and(|last| now - last < SAMPLE_INTERVAL) {
            return Ok(());
        }
        self.last_sample = Some(now);
        if let Some(usage) = self.server.usage()? {
            self.samples.push(Sample {
                at_ms: ms(now.saturating_duration_since(self.epoch)),
                cpu_s: round(usage.cpu_s),
                resident_mib: round(usage.resident_mib),
                bytes: self.fleet.totals().bytes,
            });
        }
        Ok(())
    }

    /// The begin of a measured part of the scenario.
    pub fn mark(&self) -> Result<Checkpoint, LabError> {
        Ok(Checkpoint {
            at: Instant::now(),
            usage: self.server.usage()?,
            totals: self.fleet.totals(),
            finished: self.fleet.tracker().finished().len(),
        })
    }

    /// Returns the server's resource usage since `mark`.
    pub fn cost_since(&self, mark: Checkpoint) -> Result<Cost, LabError> {
        let usage = self.server.usage()?;
        let totals = self.fleet.totals().since(mark.totals);
        let changes = self.fleet.tracker().finished().len() - mark.finished;
        let per_change = |value: f64| round(value / changes.max(1) as f64);
        let cpu_s = usage.zip(mark.usage).map(|(now, then)| now.cpu_s - then.cpu_s);
        Ok(Cost {
            seconds: round(mark.at.elapsed().as_secs_f64()),
            changes,
            cpu_s: cpu_s.map(round),
            cpu_ms_per_change: cpu_s.map(|cpu| per_change(cpu * 1000.0)),
            bytes: totals.bytes,
            sidecar_bytes_per_change: per_change(totals.sidecar_messages as f64),
            gateway_bytes_per_change: per_change(totals.gateway_messages as f64),
            resources_per_change_and_proxy: per_change(totals.resources as f64 / self.fleet.len().max(1) as f64),
            server: usage,
            gateway: self.gateway.as_ref().map(RealProxy::usage).transpose()?,
        })
    }

    /// Replaces the fleet by a new one for this number of services, and restarts the server.
    pub async fn start_over(&mut self, services: usize) -> Result<(), LabError> {
        self.gateway = None;
        self.server.kill();
        self.fleet = fleet(&self.options, &self.mesh, self.server.address(), services);
        self.server.start()?;
        self.server.ready(self.options.patience).await?;
        self.fleet.connect();
        self.wait_configured().await
    }

    /// Collects all measurements.
    pub fn results(&self, scenario: &str, cost: Cost) -> Results {
        let changes = self.change_records();
        Results {
            scenario: scenario.to_owned(),
            mesh: MeshFacts::new(&self.options),
            machine: self.machine.clone(),
            summary: summaries(&changes),
            changes,
            cost,
            restart: None,
            provision: None,
            shrink: None,
            sidecar: None,
            labels: None,
            proxies: proxy_records(&self.fleet),
            start: self.start.clone(),
            samples: self.samples.clone(),
        }
    }

    fn change_records(&self) -> Vec<ChangeRecord> {
        let tracker = self.fleet.tracker();
        let mut records: Vec<ChangeRecord> = tracker
            .finished()
            .iter()
            .map(|finished| ChangeRecord {
                kind: finished.change.kind,
                host: finished.change.host.clone(),
                at_ms: ms(finished.since.saturating_duration_since(self.epoch)),
                holders: finished.acks.len(),
                ack_ms: Distribution::of(finished.acks.iter().map(|(_, after)| ms(*after))),
                ready_ms: self.ready.get(&finished.id).copied().map(ms),
                first_use_ms: self.first_use.get(&finished.id).copied().map(ms),
            })
            .collect();
        records.sort_by(|a, b| a.at_ms.total_cmp(&b.at_ms));
        records
    }
}

fn check(options: &Options) -> Result<(), LabError> {
    if options.services == 0 || options.proxies == 0 {
        return Err(LabError::Usage("--services and --proxies have to be at least 1".to_owned()));
    }
    if options.sotw && options.scope != Scope::Envoy {
        return Err(LabError::Usage(
            "--sotw needs --scope envoy: Evenkeel proxies speak the incremental protocol".to_owned(),
        ));
    }
    if options.stuck >= options.proxies {
        return Err(LabError::Usage("--stuck has to be less than --proxies: the others are measured".to_owned()));
    }
    let files = raise_open_files().map_err(LabError::io("raising the limit on open files"))?;
    let needed = options.proxies as u64 + SPARE_FILES;
    if files < needed {
        return Err(LabError::Usage(format!(
            "{} proxies need {needed} open files, the limit is {files} (ulimit -n)",
            options.proxies
        )));
    }
    Ok(())
}

fn fleet(options: &Options, mesh: &Mesh, address: SocketAddr, services: usize) -> Fleet {
    let spec = FleetSpec {
        sidecars: options.proxies,
        gateway: true,
        scope: options.scope,
        protocol: if options.sotw { Protocol::Sotw } else { Protocol::Delta },
        used: options.used,
        stuck: options.stuck,
    };
    Fleet::new(address, spec, services, |service| mesh.host(service))
}

/// The endpoints of the services at the start, which nobody calls.
fn endpoints_at_start(service: usize) -> [Address; 2] {
    mesh::first_endpoints(service)
}

fn summaries(changes: &[ChangeRecord]) -> Vec<KindSummary> {
    let mut kinds: Vec<ChangeKind> = changes.iter().map(|change| change.kind).collect();
    kinds.sort();
    kinds.dedup();
    let summary = |kind: ChangeKind| {
        let of_kind = || changes.iter().filter(move |change| change.kind == kind);
        KindSummary {
            kind,
            changes: of_kind().count(),
            last_ack_ms: Distribution::of(of_kind().filter_map(|change| Some(change.ack_ms?.max))),
            ready_ms: Distribution::of(of_kind().filter_map(|change| change.ready_ms)),
            first_use_ms: Distribution::of(of_kind().filter_map(|change| change.first_use_ms)),
        }
    };
    kinds.into_iter().map(summary).collect()
}

fn proxy_records(fleet: &Fleet) -> Vec<ProxyRecord> {
    let mut acks: FxHashMap<usize, Vec<f64>> = FxHashMap::default();
    for (proxy, after) in fleet.tracker().finished().iter().flat_map(|finished| &finished.acks) {
        acks.entry(*proxy).or_default().push(ms(*after));
    }
    let mut records = Vec::with_capacity(fleet.len());
    fleet.for_each(|index, proxy, received| {
        records.push(ProxyRecord {
            node: proxy.id().to_owned(),
            role: proxy.role,
            configured_ms: proxy.configured.map(ms),
            ack_ms: Distribution::of(acks.remove(&index).unwrap_or_default()),
            bytes: received.bytes,
            connects: proxy.counts.connects,
            failures: proxy.counts.failures,
            responses: proxy.counts.responses,
            resources: proxy.counts.resources,
            held: proxy.held().values().sum(),
        });
    });
    records
}
