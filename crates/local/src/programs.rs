//! The command lines of everything that a run starts. Evenkeel is one binary, so it starts itself.

use std::ffi::OsString;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_agent::options::{ANNOTATIONS_VARIABLE, PROMETHEUS_VARIABLE};
use evenkeel_api::annotations::LogLevels;
use evenkeel_api::istio::InterceptionMode;

use crate::accounts::ApplicationSetup;
use crate::addresses::{BRIDGE_ADDRESS, CONTROL_DEBUG, CONTROL_PORT, EGRESS_NAME};
use crate::exec::ADMIN_VARIABLE;
use crate::plan::Plan;
use crate::pods::{Membership, Pod};
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
    let role = if pod.is_gateway { "router" } else { "sidecar" };
    let mut arguments = words(["agent", role]);
    arguments.extend(log_levels(&pod.proxy.log_levels, &plan.options.log_level, envoy.is_some()));
    arguments.extend(words(["--id", &format!("{}.{}", pod.name, pod.namespace), "--namespace", &pod.namespace]));
    arguments.extend(words(["--service-account", &pod.service_account, "--workload-name", &pod.workload]));
    arguments.extend(words(["--ip", &pod.address.to_string()]));
    for (name, value) in &pod.labels {
        arguments.extend(words(["--labels", &format!("{name}={value}")]));
    }
    arguments.extend(words(["--trust-domain", &plan.options.trust_domain]));
    arguments.extend(words(["--discovery-address", &format!("{BRIDGE_ADDRESS}:{CONTROL_PORT}")]));
    let concurrency = pod.proxy.concurrency.unwrap_or(plan.options.sidecar_concurrency);
    let drain_time = pod.proxy.drain.unwrap_or(plan.options.drain_time);
    arguments.extend(words(["--concurrency", &concurrency.to_string()]));
    arguments.extend(words(["--drain-time-s", &drain_time.as_secs().to_string()]));
    arguments.extend(words(["--recent-requests", &plan.options.recent_requests.to_string()]));
    arguments.extend(["--root-cert".into(), credentials.root().into(), "--token".into(), credentials.token().into()]);
    arguments.extend(words(["--certificate-ttl-s", &CERTIFICATE_TTL.as_secs().to_string()]));
    arguments.extend(["--state".into(), folder.clone().into()]);
    arguments.extend(words(["--proxy-resolver", &format!("{BRIDGE_ADDRESS}:53")]));
    for (name, value) in &pod.proxy.metadata {
        let key = name.strip_prefix("ISTIO_META_");
        arguments.extend(key.iter().flat_map(|key| words(["--metadata", &format!("{key}={value}")])));
    }
    if role == "sidecar" {
        // The rules of a replica do not change; its listeners have to match them, whatever is written later.
        let mode = pod.proxy.mode;
        arguments.extend(words(["--metadata", &format!("INTERCEPTION_MODE={}", mode.as_str())]));
        if mode == InterceptionMode::None {
            arguments.push("--no-capture".into());
        }
    }
    // The control plane reads the rest of the ProxyConfig from the objects.
    let mut config = pod.proxy.agent_config.clone();
    if let Some(Membership { group, probe }) = &pod.proxy.membership {
        arguments.extend(words(["--metadata", &format!("AUTO_REGISTER_GROUP={group}")]));
        config.extend(probe.iter().map(|probe| ("readinessProbe".to_owned(), probe.clone())));
    }
    if !config.is_empty() {
        arguments.extend(words(["--proxy-config", &serde_json::Value::Object(config).to_string()]));
    }
    if let Some(port) = pod.proxy.status_port {
        arguments.extend(words(["--status-port", &port.to_string()]));
    }
    if full {
        arguments.extend(words(["--scope", "full"]));
    }
    if let Some(envoy) = envoy {
        arguments.extend(["--envoy".into(), envoy.into()]);
    }
    let mut program = evenkeel_program(plan, arguments, plan.state.log(&pod.name, "proxy"));
    program.notify = Some(folder.join(NOTIFY_FILE));
    if !pod.proxy.for_agent.is_empty() {
        let annotations = serde_json::json!(pod.proxy.for_agent).to_string();
        program.environment.push((ANNOTATIONS_VARIABLE.to_owned(), annotations));
    }
    // For commands that users run beside the proxy.
    let admin = pod.proxy.admin_port.map(|_| (ADMIN_VARIABLE.to_owned(), pod.proxy.admin().to_string()));
    program.environment.extend(admin);
    let metrics = pod.proxy.program_metrics.iter();
    program.environment.extend(metrics.map(|json| (PROMETHEUS_VARIABLE.to_owned(), json.clone())));
    Some(program)
}

/// Log levels of an agent and its proxy. Our own proxy is in the agent's process and has its log, so the level for the proxy
/// goes first there.
fn log_levels(levels: &LogLevels, default: &str, is_envoy: bool) -> Vec<OsString> {
    let agent = match is_envoy {
        true => levels.agent.as_deref(),
        false => levels.proxy.as_deref().or(levels.agent.as_deref()),
    };
    let mut arguments = words(["--log-level", agent.unwrap_or(default)]);
    if is_envoy {
        let flags = [("--proxy-log-level", &levels.proxy), ("--proxy-component-log-level", &levels.components)];
        let given = flags.into_iter().filter_map(|(flag, value)| Some((flag, value.as_deref()?)));
        arguments.extend(given.flat_map(|(flag, value)| words([flag, value])));
    }
    arguments
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn annotations_say_at_which_level_proxies_and_agents_log() {
        let check = |levels: [Option<&str>; 3], is_envoy: bool, expected: &str| {
            let [proxy, components, agent] = levels.map(|level| level.map(str::to_owned));
            let arguments = log_levels(&LogLevels { proxy, components, agent }, "info", is_envoy);
            let text: Vec<_> = arguments.iter().map(|word| word.to_string_lossy()).collect();
            assert_eq!(text.join(" "), expected, "{levels:?}");
        };
        check([None; 3], false, "--log-level info");
        check([None; 3], true, "--log-level info");
        check([Some("debug"), None, Some("error")], false, "--log-level debug");
        check([None, Some("http2:debug"), Some("error")], false, "--log-level error");
        check(
            [Some("debug"), Some("http2:trace"), Some("error")],
            true,
            "--log-level error --proxy-log-level debug --proxy-component-log-level http2:trace",
        );
    }
}
