//! The command lines of everything that a run starts. Evenkeel is one binary, so it starts itself.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_inject::{Agent, Defaults, Expansion, Files, Identity, Role};

use crate::accounts::ApplicationSetup;
use crate::addresses::{BRIDGE_ADDRESS, CONTROL_DEBUG, CONTROL_PORT, EGRESS_NAME};
use crate::plan::Plan;
use crate::pods::Pod;
use crate::program::Program;
use crate::tokens::Credentials;
use crate::workloads::environment::of_replica;
use crate::workloads::{Command, Sidecar, Workload};

/// The name in its certificate.
pub const CONTROL_NAME: &str = "istiod.istio-system.svc";
/// Lifetime of a workload's certificate: the longest time it can outlive its Pod.
const CERTIFICATE_TTL: Duration = Duration::from_secs(3600);

/// Variables of `up` that its own components get, as those that begin with one of [`PASSED_PREFIXES`]: what they read, and
/// where probes find their commands.
const PASSED: [&str; 3] = ["PATH", "HOME", "RUST_BACKTRACE"];
const PASSED_PREFIXES: [&str; 1] = ["EVENKEEL_"];
/// Further ones of the control plane: Istio's settings, and the roots of those who serve keys.
const PASSED_TO_CONTROL_PLANE: [&str; 2] = ["SSL_CERT_FILE", "ROOT_CA_DIR"];
const PREFIXES_FOR_CONTROL_PLANE: [&str; 2] = ["PILOT_", "CITADEL_"];
/// The search path of a program if `up` has none: that of a container whose image sets none.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The socket in a replica's folder on which its agents tell which of them is the active one.
const NOTIFY_FILE: &str = "notify";

/// `evenkeel control-plane`, in the mesh's own network: only replicas can reach it, at the bridge's address.
pub fn control_plane(plan: &Plan) -> Program {
    let mut arguments = words(["control-plane", "--log-level", &plan.options.log_level]);
    for directory in plan.configuration().into_iter().chain([plan.state.runtime()]) {
        arguments.extend(["--config".into(), directory.into()]);
    }
    arguments.extend(["--state".into(), plan.state.control().into()]);
    arguments.extend(words(["--trust-domain", &plan.options.trust_domain]));
    arguments.extend(words(["--secure-grpc-address", &format!("{BRIDGE_ADDRESS}:{CONTROL_PORT}")]));
    arguments.extend(words(["--http-address", &CONTROL_DEBUG.to_string()]));
    arguments.extend(words(["--server-name", CONTROL_NAME, "--server-name", &BRIDGE_ADDRESS.to_string()]));
    if let Some(folder) = plan.authority() {
        arguments.extend(["--ca-certs".into(), folder.into()]);
    }
    arguments.extend(plan.options.signer.arguments());
    arguments.push("--require-running-pod".into());
    arguments.push("--on-one-machine".into());
    if plan.options.leave_out_refused {
        arguments.push("--leave-out-refused".into());
    }
    let mut program = evenkeel_program(plan, arguments, plan.state.logs().join("control-plane.log"));
    program.environment.extend(variables(&PASSED_TO_CONTROL_PLANE, &PREFIXES_FOR_CONTROL_PLANE));
    program
}

/// `evenkeel egress`, in the mesh's own network: the cluster's name server, and egress if it is enabled.
pub fn egress(plan: &Plan) -> Program {
    let arguments = words(["egress", "--log-level", &plan.options.log_level]);
    let mut program = evenkeel_program(plan, arguments, plan.state.logs().join("egress.log"));
    program.listeners = plan.egress_broker.iter().map(|keeper| (EGRESS_NAME.to_owned(), keeper.as_raw_fd())).collect();
    program.arguments.extend(plan.egress_broker.iter().map(|_| "--open".into()));
    program
}

/// `evenkeel agent`, which runs a replica's proxy: a sidecar, or the gateway.
pub fn proxy(plan: &Plan, pod: &Arc<Pod>, sidecar: &Sidecar, credentials: &Credentials) -> Option<Program> {
    let (envoy, full) = match sidecar {
        Sidecar::None => return None,
        Sidecar::Evenkeel { full } => (None, *full),
        Sidecar::Gateway => (None, true),
        Sidecar::Envoy(path) => (Some(path), false),
    };
    let folder = plan.state.pod(&pod.name);
    let (defaults, address) = (agent_defaults(plan), pod.address.to_string());
    let (roots, token) = (credentials.root(), credentials.token());
    let agent = Agent {
        role: if pod.is_gateway { Role::Gateway } else { Role::Sidecar },
        identity: Identity {
            pod: &pod.name,
            namespace: &pod.namespace,
            service_account: &pod.service_account,
            workload: &pod.workload,
            address: &address,
            labels: &pod.labels,
        },
        settings: &pod.proxy,
        defaults: &defaults,
        files: Files { roots: &roots, token: &token, state: &folder },
        envoy: envoy.map(PathBuf::as_path),
        has_full_scope: full,
        has_own_user: false,
        expansion: Expansion::None,
    };
    let mut program = evenkeel_program(plan, agent.arguments(), plan.state.log(&pod.name, "proxy"));
    program.notify = Some(folder.join(NOTIFY_FILE));
    program.environment.extend(agent.environment());
    // As in a Pod; others could change what the process is, and it has more rights here than there.
    let telemetry = pod.proxy.metadata.iter().filter(|(name, _)| name.starts_with("OTEL_"));
    program.environment.extend(telemetry.map(|(name, value)| (name.clone(), value.clone())));
    Some(program)
}

/// What applies to the agents of all replicas.
fn agent_defaults(plan: &Plan) -> Defaults {
    Defaults {
        trust_domain: plan.options.trust_domain.clone(),
        discovery_address: format!("{BRIDGE_ADDRESS}:{CONTROL_PORT}"),
        log_level: plan.options.log_level.clone(),
        concurrency: Some(plan.options.sidecar_concurrency),
        drain: Some(plan.options.drain_time),
        recent_requests: Some(plan.options.recent_requests),
        certificate_ttl: Some(CERTIFICATE_TTL),
        proxy_resolver: Some(format!("{BRIDGE_ADDRESS}:53")),
    }
}

/// A replica's own program.
pub fn application(
    plan: &Plan,
    (workload, command): (&Workload, &Command),
    pod: &Pod,
    applicant: &ApplicationSetup,
) -> Program {
    let home = std::env::var("HOME").map(|home| ("HOME".to_owned(), home));
    let mut environment = vec![("PATH".to_owned(), std::env::var("PATH").unwrap_or_else(|_| DEFAULT_PATH.to_owned()))];
    environment.extend(home);
    environment.extend(variables(&plan.options.passed_variables, &[]));
    environment.extend([
        ("POD_NAME".to_owned(), pod.name.clone()),
        ("POD_NAMESPACE".to_owned(), pod.namespace.clone()),
        ("POD_IP".to_owned(), pod.address.to_string()),
        ("HOSTNAME".to_owned(), pod.name.clone()),
        ("EVENKEEL_DATA_DIR".to_owned(), applicant.data.display().to_string()),
    ]);
    environment.extend(applicant.environment.iter().cloned());
    environment.extend(of_replica(&workload.environment, pod));
    environment.extend(command.environment.iter().cloned());
    let (arguments, log) = (words(["-c", &command.run]), plan.state.log(&pod.name, "app"));
    let directory = command.directory.clone().unwrap_or_else(|| plan.directory.clone());
    let mut program = Program::new("/bin/sh", arguments, directory, log);
    program.environment = environment;
    program.piped = true;
    program
}

fn evenkeel_program(plan: &Plan, arguments: Vec<OsString>, log: PathBuf) -> Program {
    // Not its path, because the binary may be rebuilt or removed while it runs.
    let mut program = Program::new("/proc/self/exe", arguments, plan.state.path().to_path_buf(), log);
    program.environment.extend(variables(&PASSED, &PASSED_PREFIXES));
    program
}

/// The variables of `up` with these names or prefixes.
fn variables(names: &[impl AsRef<str>], prefixes: &[&str]) -> Vec<(String, String)> {
    let all =
        std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let is_passed = |name: &str| {
        names.iter().any(|known| known.as_ref() == name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
    };
    all.filter(|(name, _)| is_passed(name)).collect()
}

fn words<const N: usize>(words: [&str; N]) -> Vec<OsString> {
    words.map(OsString::from).into()
}
