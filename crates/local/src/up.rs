//! `evenkeel up` from its flags to its end. Read [`run`] first.

use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use evenkeel_api::in_force;
use evenkeel_base::{Diagnostic, Diagnostics, Severity};
use evenkeel_control::source::files::Files;
use evenkeel_model::{AddressBook, MeshConfig, NOT_ENFORCED};

use crate::applied::Applied;
use crate::builds::{self, BuildError};
use crate::cleanup::{Claim, StateDir, StateError};
use crate::dashboard::DashboardPort;
use crate::egress::broker::Broker;
use crate::egress::rules::MACHINE_NAMES;
use crate::metrics_pages::MetricsPages;
use crate::pages::HostPages;
use crate::plan::{Options, Plan};
use crate::ports::{self, HostSockets, PortError};
use crate::prometheus::{Prometheus, PrometheusError};
use crate::running::RunningOptions;
use crate::sandbox::{self, SandboxError, SupervisorExit};
use crate::tools::{ToolError, Tools};
use crate::workloads::Manifest;
use crate::{check, preflight, supervisor};

/// Why `up` did not start.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// Not a directory.
    #[error("{} is not a directory with YAML files: {reason}", .directory.display())]
    Directory {
        /// The directory as given.
        directory: PathBuf,
        /// Why.
        reason: String,
    },
    /// The files have errors, which have been printed.
    #[error("{count} in {}; nothing was started", .directory.display())]
    Refused {
        /// The directory as given.
        directory: PathBuf,
        /// `2 errors`.
        count: String,
    },
    /// An external signer on the control plane's own loopback interface.
    #[error(
        "--external-signer {0}: the control plane has a network of its own, so this is not the machine's loopback address; write \
         {machine}:PORT for a signer on the machine, and let its certificate have that name",
        machine = MACHINE_NAMES[0]
    )]
    OwnLoopback(String),
    /// No workload in the files has a command.
    #[error(
        "no Deployment in {} says how to run it on this machine; write `workloads: {{NAME: {{command: COMMAND}}}}` in the file \
         evenkeel.yaml there, or add the annotation `local.evenkeel.dev/run: COMMAND` to its spec.template.metadata", .0.display()
    )]
    NothingToRun(PathBuf),
    /// A build step failed.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The state directory would be read as configuration.
    #[error("the state directory {} lies inside the configuration {}; choose another: --state DIR", .state.display(), .directory.display())]
    StateInside {
        /// The state directory.
        state: PathBuf,
        /// The configuration.
        directory: PathBuf,
    },
    /// The state directory.
    #[error(transparent)]
    State(#[from] StateError),
    /// A tool is missing.
    #[error(transparent)]
    Tool(#[from] ToolError),
    /// The Prometheus that was asked for.
    #[error(transparent)]
    Prometheus(#[from] PrometheusError),
    /// A host port is taken.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The system allows no isolation.
    #[error(transparent)]
    Sandbox(#[from] SandboxError),
    /// Files of the run itself.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// The operating system's error.
        source: io::Error,
    },
}

/// Checks the signer's address: the control plane has a separate network, so the loopback address is not the machine's.
fn check_signer(options: &Options) -> Result<(), UpError> {
    let Some(address) = &options.signer.external_signer else { return Ok(()) };
    let host = address.rsplit_once(':').map_or(&**address, |(host, _)| host).trim_matches(['[', ']']);
    let loopback = host.eq_ignore_ascii_case("localhost") || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback());
    if loopback { Err(UpError::OwnLoopback(address.clone())) } else { Ok(()) }
}

/// Runs the mesh until Ctrl-C (or until the check is done) and returns the exit status.
///
/// Must be called while the process has a single thread. `out` receives the output before and after the run; in between
/// the supervisor writes to standard output itself.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<u8, UpError> {
    let io = |what| move |source| UpError::Io { what, source };
    check_signer(options)?;
    let tools = Tools::find()?;
    let user_directory = directory(&options.directory)?;
    let scratch = StateLocation::new(options).map_err(io("cannot make a temporary state directory"))?;
    let state = StateDir::new(&scratch.state)?;
    refuse_state_inside(state.path(), &user_directory)?;
    let applied = (!options.check).then(|| Applied::of(&state, &user_directory));
    let manifest = read(&user_directory, &state, applied.as_ref(), options.leave_out_refused, out)?;
    builds::run(&manifest.builds, out)?;
    let callers = HostSockets::make(if options.check { check::HOST_SOCKETS } else { 0 });
    let callers = callers.map_err(io("cannot open sockets"))?;
    let host_ports = ports::open(&manifest.gateway_ports, &options.gateway_ports)?;
    let host_pages = HostPages::open().map_err(io("cannot open a port on 127.0.0.1"))?;
    let metrics_pages = MetricsPages::open().map_err(io("cannot open a port on 127.0.0.1"))?;
    let dashboard = DashboardPort::open().map_err(io("cannot open a port on 127.0.0.1"))?;
    let (claim, leftovers) = state.claim(&user_directory)?;
    if let Some(leftovers) = leftovers {
        let _ = writeln!(out, "{leftovers}");
    }
    if let Some(applied) = &applied {
        applied.prepare().map_err(io("cannot create the folder for applied objects"))?;
    }
    // The check edits files, so it works on a copy, to which it adds two callers.
    let (directory, manifest) = if options.check {
        let copy = check::prepare(&user_directory, &manifest, &state)
            .map_err(io("cannot copy the directory for the check"))?;
        let manifest = read(&copy, &state, None, options.leave_out_refused, &mut io::sink())?;
        (copy, manifest)
    } else {
        (user_directory.clone(), manifest)
    };
    let before = MachineState::look();
    let (broker, egress_broker) = options
        .egress
        .then(|| Broker::new(vec![host_pages.address, metrics_pages.address, dashboard.address]))
        .transpose()
        .map_err(io("cannot open egress from the mesh"))?
        .unzip();
    let (ports_requests, ports_broker) = Broker::for_gateway_ports().map_err(io("cannot open sockets"))?;
    let brokers = broker.into_iter().chain([ports_requests]).collect();
    let scraper = options.with_prometheus.then(|| Prometheus::start(&state, &metrics_pages.url())).transpose()?;
    let options_of_run = options.clone();
    let recorded = RunningOptions::of(&options.trust_domain, options.leave_out_refused);
    let plan = Plan {
        options: options_of_run,
        directory,
        applied,
        manifest,
        host_ports,
        host_pages,
        dashboard,
        metrics_pages,
        prometheus: scraper.as_ref().map(|scraper| scraper.url.clone()),
        callers,
        egress_broker,
        ports_broker,
        tools,
        state,
    };
    let supervise = || supervisor::run(plan);
    let ending = sandbox::run(supervise, |supervisor| claim.record(supervisor.as_raw(), Some(recorded)), brokers)?;
    drop(scraper);
    finish(options, ending, claim, scratch, &before, out).map_err(io("cannot clean up"))
}

fn directory(given: &Path) -> Result<PathBuf, UpError> {
    let refused = |reason: String| UpError::Directory { directory: given.to_path_buf(), reason };
    let path = given.canonicalize().map_err(|error| refused(error.to_string()))?;
    if path.is_dir() { Ok(path) } else { Err(refused("it is a file; name the directory it is in".to_owned())) }
}

/// Hidden folders are not read as configuration, so the state directory may be in one.
fn refuse_state_inside(state: &Path, directory: &Path) -> Result<(), UpError> {
    let inside = state
        .strip_prefix(directory)
        .is_ok_and(|below| !below.components().any(|part| part.as_os_str().to_string_lossy().starts_with('.')));
    if inside {
        Err(UpError::StateInside { state: state.to_path_buf(), directory: directory.to_path_buf() })
    } else {
        Ok(())
    }
}

/// Reads what to run. Prints warnings about what this machine cannot do. If a file has an error, prints all findings
/// and starts nothing.
fn read(
    directory: &Path,
    state: &StateDir,
    applied: Option<&Applied>,
    leave_out_refused: bool,
    out: &mut dyn Write,
) -> Result<Manifest, UpError> {
    let earlier = applied.filter(|applied| applied.folder().is_dir());
    let mut files = Files::new(
        [Some(directory), earlier.map(Applied::folder)].into_iter().flatten().map(Path::to_path_buf).collect(),
    );
    files.refresh(SystemTime::now());
    if let Some(applied) = earlier {
        let settled = applied.settle(&files);
        settled.map_err(|source| UpError::Io { what: "cannot read the applied objects", source })?;
        files.refresh(SystemTime::now());
    }
    if let Some(said) = earlier.and_then(overridden) {
        let _ = writeln!(out, "{said}");
    }
    let (manifest, local) = Manifest::of(&files, state.path());
    let open = not_enforced(&files, leave_out_refused);
    let mut all: Diagnostics = files.diagnostics().into_iter().chain(local.clone()).chain(open).collect();
    let errors = all.count(Severity::Error);
    let told = if errors > 0 {
        all.sort();
        all.clone()
    } else {
        // The control plane reports the other findings, together with those about the files as a whole.
        local
    };
    let (infos, others) = told.split_infos();
    let _ = out.write_all(infos.in_short().as_bytes());
    let _ = out.write_all(others.render(&files.sources(&others), preflight::is_terminal()).as_bytes());
    if errors > 0 {
        let count = if errors == 1 { "1 error".to_owned() } else { format!("{errors} errors") };
        return Err(UpError::Refused { directory: directory.to_path_buf(), count });
    }
    if let Some(skipped) = skipped(directory, &all) {
        let _ = writeln!(out, "{skipped}");
    }
    if manifest.is_empty() { Err(UpError::NothingToRun(directory.to_path_buf())) } else { Ok(manifest) }
}

/// The objects that protect something, and that nothing here enforces: a mesh that runs without them is more open than its
/// files say.
fn not_enforced(files: &Files, leave_out_refused: bool) -> impl Iterator<Item = Diagnostic> + use<> {
    let mesh = MeshConfig { leave_out_refused, on_one_machine: true, ..MeshConfig::default() };
    let (_, found) = evenkeel_model::build(&in_force(files.objects()), &mesh, &mut AddressBook::default());
    found.into_iter().filter(|finding| finding.code == NOT_ENFORCED && finding.severity == Severity::Error)
}

/// One line about the objects of earlier runs that take precedence over the directory.
fn overridden(applied: &Applied) -> Option<String> {
    // What cannot be read has been reported.
    let all = applied.list().unwrap_or_default();
    let named = all.iter().take(MAX_OBJECTS_NAMED).map(|one| {
        let change = if one.deleted { "deleted" } else { "applied" };
        format!("{} {change}", one.object)
    });
    let named: Vec<String> = named.collect();
    let more = match all.len().saturating_sub(MAX_OBJECTS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!(
        "note: `evenkeel apply` and `delete` of an earlier run override the directory: {}{more} (all: evenkeel get; forget \
         them: evenkeel reset)",
        named.join(", ")
    );
    (!all.is_empty()).then_some(what)
}

/// Maximum number of objects named in one line.
const MAX_OBJECTS_NAMED: usize = 5;
/// Maximum number of files named in one line.
const MAX_SKIPPED_NAMED: usize = 5;

/// One line for all files without Kubernetes objects.
fn skipped(directory: &Path, findings: &Diagnostics) -> Option<String> {
    let notes = findings.iter().filter(|finding| finding.code == evenkeel_api::SKIPPED);
    let files: Vec<&Path> = notes.map(|note| Path::new(&*note.span.file)).collect();
    let short = |path: &Path| path.strip_prefix(directory).unwrap_or(path).display().to_string();
    let named: Vec<String> = files.iter().take(MAX_SKIPPED_NAMED).map(|path| short(path)).collect();
    let more = match files.len().saturating_sub(MAX_SKIPPED_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let what = format!("note: skipped files without a Kubernetes object: {}{more}", named.join(", "));
    (!files.is_empty()).then_some(what)
}

/// The state directory of this run, and whether it is removed with the run.
struct StateLocation {
    state: PathBuf,
    temporary: bool,
}

impl StateLocation {
    fn new(options: &Options) -> io::Result<Self> {
        match (&options.state, options.check) {
            (Some(state), _) => Ok(Self { state: state.clone(), temporary: false }),
            (None, false) => Ok(Self { state: StateDir::default_path(), temporary: false }),
            (None, true) => {
                let state = nix::unistd::mkdtemp(&std::env::temp_dir().join("evenkeel-check-XXXXXX"))?;
                Ok(Self { state, temporary: true })
            }
        }
    }
}

/// The interfaces and mounts of the machine, which a run must not change.
#[derive(Debug, PartialEq, Eq)]
struct MachineState {
    interfaces: Vec<String>,
    mounts: String,
}

impl MachineState {
    fn look() -> Self {
        let names = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        let mut interfaces: Vec<String> = names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        interfaces.sort();
        Self { interfaces, mounts: fs::read_to_string("/proc/self/mounts").unwrap_or_default() }
    }
}

/// The keeper's last steps: removes files, and for a check verifies that nothing is left.
fn finish(
    options: &Options,
    ending: SupervisorExit,
    claim: Claim,
    scratch: StateLocation,
    before: &MachineState,
    out: &mut dyn Write,
) -> io::Result<u8> {
    claim.release()?;
    let mut status = match ending {
        SupervisorExit::Exited(status) => status,
        SupervisorExit::Killed(signal) => {
            writeln!(out, "the supervisor was killed by {signal}; everything it had started ended with it")?;
            1
        }
    };
    if options.check {
        let removed = check::verify_removal(&scratch.state, before == &MachineState::look());
        status = status.max(u8::from(!check::print(&removed, out)));
    }
    match (scratch.temporary, status) {
        (true, 0) => fs::remove_dir_all(&scratch.state)?,
        (true, _) => writeln!(out, "the logs are in {}", scratch.state.join("logs").display())?,
        (false, 0) if !options.check => {
            writeln!(out, "stopped, and removed all but the logs in {}", scratch.state.join("logs").display())?;
        }
        (false, _) => {}
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKLOAD: &str = "\
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}, annotations: {local.evenkeel.dev/run: exec sleep infinity}}
    spec: {containers: [{name: web}]}
";

    /// What nothing on this machine enforces stops the start, unless it is left out.
    #[test]
    fn what_nothing_enforces_stops_the_start() -> io::Result<()> {
        let folder = tempfile::tempdir()?;
        let state = StateDir::new(&folder.path().join("state")).expect("a short path");
        let directory = folder.path().join("mesh");
        fs::create_dir(&directory)?;
        let start = |document: &str, leave_out_refused: bool| {
            fs::write(directory.join("mesh.yaml"), format!("{WORKLOAD}---\n{document}")).expect("written");
            let mut out = Vec::new();
            let read = read(&directory, &state, None, leave_out_refused, &mut out);
            (read.is_ok(), String::from_utf8_lossy(&out).into_owned())
        };
        let policy = |spec: &str| {
            let head =
                "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: shop}\n";
            format!("{head}spec: {{{spec}}}\n")
        };
        let (starts, said) = start(&policy("podSelector: {}"), false);
        assert!(!starts && said.contains("NetworkPolicy shop/deny is not enforced on one machine"), "{said}");
        assert!(said.contains("--leave-out-refused"), "{said}");
        assert!(start(&policy("podSelector: {}"), true).0);
        assert!(start(&policy("podSelector: {}, ingress: [{}]"), false).0);
        let client = "apiVersion: extensions.istio.io/v1alpha1\nkind: WasmPlugin\nmetadata: {name: p, namespace: shop}\n\
                      spec: {url: x, match: [{mode: CLIENT}]}\n";
        // Its sidecars refuse these calls instead.
        assert!(start(client, false).0);
        assert!(start(&client.replace("CLIENT", "SERVER"), false).0);
        let waypoint = "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\nmetadata: {name: far, namespace: shop}\n\
                        spec: {hosts: [far.test], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n---\n\
                        apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\n\
                        spec: {targetRefs: [{kind: ServiceEntry, group: networking.istio.io, name: far}], rules: [{}]}\n";
        // Sidecars and gateways refuse these calls instead, too.
        assert!(start(waypoint, false).0);
        assert!(start(waypoint, true).0);
        let class = waypoint.replace(
            "kind: ServiceEntry, group: networking.istio.io, name: far",
            "kind: GatewayClass, group: gateway.networking.k8s.io, name: istio-waypoint",
        );
        // It judges nothing there, in Istio neither.
        assert!(start(&class, false).0);
        // In the root namespace it judges those that use a waypoint: their sidecars refuse their calls.
        assert!(start(&class.replace("{name: p, namespace: shop}", "{name: p, namespace: istio-system}"), false).0);
        Ok(())
    }
}
