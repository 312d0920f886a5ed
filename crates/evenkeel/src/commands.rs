//! The command line: flags of each command, and the crate that runs it.

use std::ffi::OsString;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::{Args, Parser, Subcommand};
use evenkeel_api::istio;
use evenkeel_control::SignerOptions;
use evenkeel_k8s::client::KubernetesOptions;
use evenkeel_local::cleanup::StateDir;
use evenkeel_local::exec::{self, ContainerName, ExecOptions};
use evenkeel_local::ports::PortChoice;
use evenkeel_local::reader::{self, IgnoreBrokenPipe};
use evenkeel_model::MeshConfig;
use evenkeel_process::confinement::{self, Writes};
use evenkeel_process::secrets;

use crate::apply::{self, Change, ChangeArguments};
use crate::cluster::{self, ClusterCommand};
use crate::formats::Output;
use crate::in_cluster::ControlPlaneChoice;
use crate::logging::{self, LogOptions};
use crate::logs::{self, LogsArguments};
use crate::overrides::{self, ResetArguments};
use crate::proxy_config::command;
use crate::{
    admin, analyze, authz, bug_report, ca, cni, compiled, control_plane, dashboard, describe, effective, explain, get,
    history, inject, istio_iptables, manifests, migrate, mtls, plan, profile, prove, proxy_status, purge, tap, top,
    validate, why, workload,
};
use evenkeel_proxy::logging::Level;

/// A service mesh: proxy, control plane, and a whole mesh on one machine.
///
/// Takes Istio's YAML unchanged. Start with: evenkeel up examples/capitals
#[derive(Debug, Parser)]
#[command(name = "evenkeel", version, propagate_version = true, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

/// Environment variables of the control plane; those of Istio have Istio's names.
const CONTROL_PLANE_VARIABLES: &str = "\
Environment:
  PILOT_DEBOUNCE_AFTER       Merge changes within this time of each other [default: 100ms]
  PILOT_DEBOUNCE_MAX         Maximum time that a change waits for others [default: 500ms]
  PILOT_ENABLE_EDS_DEBOUNCE  Also merge changes of endpoints [default: false]
  PILOT_PUSH_THROTTLE        Proxies that get their first resources at a time [default: 100]
  PILOT_JWT_ENABLE_REMOTE_JWKS        Who fetches the keys of issuers: istiod, hybrid, envoy [default: istiod]
  PILOT_JWT_PUB_KEY_REFRESH_INTERVAL  Maximum time between two fetches of keys [default: 20m]
  HTTPS_PROXY, HTTP_PROXY, NO_PROXY   The proxy through which keys are fetched, and hosts called without it
  EVENKEEL_COMPARE_FULL      Check each change against a build from scratch [default: false]";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the mesh described by a directory on this machine.
    Up(UpArguments),
    /// Create or change objects of the running mesh; they override those in its directory.
    Apply(ChangeArguments),
    /// Delete objects of the running mesh, including those in its directory.
    Delete {
        #[command(flatten)]
        change: ChangeArguments,

        /// Succeed even if an object does not exist.
        #[arg(long)]
        ignore_not_found: bool,
    },
    /// Print objects with their status; without kinds, list what `apply` and `delete` have changed.
    #[command(after_help = get::EXAMPLES)]
    Get(get::GetArguments),
    /// Forget what `apply` and `delete` have changed, so that the directory applies again.
    Reset(ResetArguments),
    /// Run a command inside a workload of the running mesh.
    Exec(ExecArguments),
    /// Print the address of the running mesh's dashboard, for a browser.
    Dashboard(dashboard::DashboardArguments),
    /// Print the logs of a workload's programs or sidecars.
    Logs(LogsArguments),
    /// Replace the replicas of a workload with new ones, without losing requests.
    Restart(RestartArguments),
    /// Hold a process namespace open (`up` starts it).
    #[command(name = evenkeel_local::init::COMMAND, hide = true)]
    PodInit,
    /// Check configuration files without running anything.
    Validate(ValidateArguments),
    /// Add sidecars to manifests, as the admission webhook adds them to Pods.
    #[command(after_help = inject::EXAMPLES)]
    Inject(Box<inject::InjectArguments>),
    #[command(flatten)]
    Cluster(ClusterCommand),
    /// Load the rules that redirect a Pod's connections to its proxy (the init container of injected Pods runs it).
    #[command(name = evenkeel_capture::COMMAND)]
    IstioIptables(istio_iptables::CaptureArguments),
    /// Run as the CNI plugin: a container runtime gives the network configuration on standard input, and CNI_COMMAND.
    Cni,
    /// Run the CNI plugin's agent on a node: it installs the plugin and loads the capture rules of Pods.
    CniNode {
        #[command(flatten)]
        arguments: cni::NodeArguments,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Show what happens to a call, and why: listener, rule, policy, endpoints, each with file and line.
    #[command(after_help = explain::EXAMPLES)]
    Explain(Box<explain::ExplainArguments>),
    /// Say why a request failed or was slow: whose fault it was, with the numbers; without an id, what went wrong lately.
    #[command(after_help = why::EXAMPLES)]
    Why(Box<why::WhyArguments>),
    /// Show the requests of a workload's proxies as they end, without secret values.
    #[command(after_help = tap::EXAMPLES)]
    Tap(Box<tap::TapArguments>),
    /// Show the requests, failures and durations of each workload of the running mesh, the busiest first.
    Top(top::TopArguments),
    /// Record where the CPU time of a live proxy or control plane goes, or what it allocates: a flame graph, and a file for pprof.
    #[command(after_help = profile::EXAMPLES)]
    Profile(profile::ProfileArguments),
    /// Replay recent requests against a change: how many would move where, which would fail.
    #[command(after_help = plan::EXAMPLES)]
    Plan(plan::PlanArguments),
    /// Report every mistake of a configuration at once, with Istio's message codes.
    Analyze(Box<analyze::AnalyzeArguments>),
    /// Show what holds for a host: the merged result of all objects that touch it.
    Effective(effective::EffectiveArguments),
    /// Describe a Pod or a Service: routes, settings, gateways, protection, and findings, each with file and line.
    #[command(subcommand)]
    Describe(describe::DescribeCommand),
    /// Collect what somebody needs who helps, in one archive without secrets: configuration, findings, pages, logs.
    #[command(after_help = bug_report::EXAMPLES)]
    BugReport(bug_report::BugReportArguments),
    /// Take machines that are no Pods into the mesh of a cluster.
    #[command(subcommand)]
    Workload(workload::WorkloadCommand),
    /// Move from Istio to Evenkeel.
    #[command(subcommand)]
    Migrate(migrate::MigrateCommand),
    /// Show who has talked to whom and how it was secured: identities, TLS version, cipher, key exchange, plain text.
    #[command(after_help = mtls::EXAMPLES)]
    Mtls(Box<mtls::MtlsArguments>),
    /// Decide whether any request gets from one party to another, over all policies and routes, and show one.
    #[command(after_help = prove::EXAMPLES)]
    Prove(Box<prove::ProveArguments>),
    /// Show what protects workloads.
    #[command(subcommand)]
    Authz(authz::AuthzCommand),
    /// Send load to a server and measure it, with Fortio's flags and results.
    Load(Box<evenkeel_loadtest::LoadArguments>),
    /// Answer requests as they say, as Fortio's server: HTTP, gRPC, TCP and UDP.
    Echo(Box<evenkeel_echo::EchoArguments>),
    /// Repeat published experiments with sidecars on this machine: latency, throughput, balance, telemetry.
    #[command(subcommand, after_help = evenkeel_experiments::EXAMPLES)]
    Bench(Box<evenkeel_experiments::BenchCommand>),
    /// Print a script that completes commands in a shell.
    Completion {
        /// The shell.
        shell: clap_complete::Shell,
    },
    /// Run the control plane.
    #[command(after_help = CONTROL_PLANE_VARIABLES)]
    ControlPlane {
        #[command(flatten)]
        options: Box<evenkeel_control::Options>,
        #[command(flatten)]
        kubernetes: KubernetesOptions,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Run the proxy with an Envoy bootstrap file.
    Proxy(evenkeel_proxy::Options),
    /// Run a workload's agent: it obtains certificates, answers DNS, and runs the proxy.
    Agent {
        #[command(flatten)]
        options: Box<evenkeel_agent::Options>,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Show the state of a running proxy.
    #[command(subcommand, visible_alias = "pc")]
    ProxyConfig(command::ProxyConfig),
    /// Show whether each proxy runs the current configuration, and how long changes took to reach it.
    #[command(visible_alias = "ps")]
    ProxyStatus(ProxyStatusArguments),
    /// Show which changes there were, and what each changed in files and at a proxy; or what a proxy ran at a given time.
    #[command(after_help = history::EXAMPLES)]
    History(history::HistoryArguments),
    /// Show the mesh's certificate authorities, or change to new ones without an outage.
    #[command(subcommand)]
    Ca(ca::CaCommand),
    /// Run a mesh's name server and its egress to the machine; `up` starts it.
    #[command(hide = true)]
    Egress {
        /// Egress is allowed: descriptor 3 leads to the machine's network.
        #[arg(long)]
        open: bool,
        #[command(flatten)]
        log: LogOptions,
    },
    /// Print the version.
    Version {
        /// Output format.
        #[arg(short, long, value_enum, default_value_t = Output::Text)]
        output: Output,
    },
}

impl Command {
    /// Whether the process holds keys, or messages of others, in memory.
    fn holds_secrets(&self) -> bool {
        matches!(self, Self::Agent { .. } | Self::Proxy(_) | Self::ControlPlane { .. } | Self::Egress { .. })
    }

    /// Whether the command should end when nobody reads its output any more.
    fn only_prints(&self) -> bool {
        matches!(
            self,
            Self::Logs(_)
                | Self::Dashboard(_)
                | Self::Get(_)
                | Self::Validate(_)
                | Self::Explain(_)
                | Self::Tap(_)
                | Self::Top(_)
                | Self::Analyze(_)
                | Self::Plan(_)
                | Self::Effective(_)
                | Self::Describe(_)
                | Self::Migrate(_)
                | Self::Authz(_)
                | Self::Mtls(_)
                | Self::Prove(_)
                | Self::Completion { .. }
                | Self::ProxyConfig(_)
                | Self::ProxyStatus(_)
                | Self::History(_)
                | Self::Version { .. }
        )
    }
}

#[derive(Debug, Args)]
struct ProxyStatusArguments {
    /// Show only this proxy: POD.NAMESPACE, POD, the beginning of either, or a workload [default: all].
    proxy: Option<String>,

    /// HTTP port of the control plane; repeat it for several control planes of the same mesh [default: that of the running `up`, one at
    /// 127.0.0.1:15014, or else those in the cluster that kubectl would use].
    #[arg(long, value_name = "HOST:PORT", value_parser = admin::address, conflicts_with_all = ["state", "kubeconfig", "context"])]
    control_plane: Vec<SocketAddr>,

    #[command(flatten)]
    in_cluster: ControlPlaneChoice,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = proxy_status::Output::Table)]
    output: proxy_status::Output,
}

#[derive(Debug, Args)]
struct UpArguments {
    /// Directory with the YAML, read recursively: Deployments, Services, Istio's kinds.
    directory: PathBuf,

    /// Run the example's scenario once, print each verified fact, and exit with 0 or 1.
    #[arg(long)]
    check: bool,

    /// State directory: the root certificate, logs, and files of the run [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Serve a Gateway's port on this port of 127.0.0.1; may be repeated. Without GATEWAY_PORT: the first one.
    #[arg(long = "gateway-port", value_name = "[GATEWAY_PORT=]PORT")]
    gateway_ports: Vec<PortChoice>,

    /// Trust domain of all identities.
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    trust_domain: String,

    /// Directory with the operator's certificate authority, in Istio's layout (`cacerts`) or as a TLS Secret.
    #[arg(long, value_name = "DIR")]
    ca_certs: Option<PathBuf>,

    /// Who signs instead, if somebody else does.
    #[command(flatten)]
    signer: SignerOptions,

    /// Forbid all traffic out of the mesh: connections to the machine, or through it to other hosts, fail at once.
    #[arg(long)]
    no_egress: bool,

    /// Pass this variable of the environment to all programs; may be repeated. They get none but PATH and HOME otherwise.
    #[arg(long = "env", value_name = "NAME")]
    env: Vec<String>,

    /// Leave out security objects that are refused or not supported, instead of refusing what they would have judged. Requests
    /// that they should deny then pass.
    #[arg(long)]
    leave_out_refused: bool,

    /// Run the machine's Prometheus, which scrapes the mesh as long as it runs.
    #[arg(long)]
    with_prometheus: bool,

    /// Worker threads of each proxy, unless a ProxyConfig says otherwise.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=64))]
    proxy_concurrency: u32,

    /// Recent requests that each worker of a proxy keeps for `why`, `explain --last` and `plan`; 0: none.
    #[arg(long, value_name = "N", default_value_t = evenkeel_proxy::recent::DEFAULT_LIMIT, value_parser = evenkeel_proxy::recent::limit)]
    recent_requests: usize,

    /// How long requests in flight may take when the mesh or a replica stops, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(0..=3600))]
    drain_time_s: u64,

    /// Log level of the control plane and the proxies, in the log files that `up` names.
    #[arg(short, long, value_name = "LEVEL", value_enum, hide_possible_values = true, default_value_t = Level::Info)]
    log_level: Level,
}

#[derive(Debug, Args)]
struct ExecArguments {
    /// Name of a workload or of one of its pods; also POD.NAMESPACE, or the beginning of a pod's name.
    workload: String,

    /// The workload's namespace; needed only if several namespaces have a workload of that name.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// The container to run the command in: `app` (the application) or `istio-proxy` (its sidecar).
    #[arg(short, long, value_name = "NAME", default_value = "app")]
    container: ContainerName,

    /// The command and its arguments [default: a shell].
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
struct RestartArguments {
    /// Name of a workload or of one of its pods.
    workload: String,

    /// The workload's namespace; needed only if several namespaces have a workload of that name.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// State directory of the running `up` [default: ~/.local/state/evenkeel].
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

impl RestartArguments {
    fn run(self) -> anyhow::Result<u8> {
        let state = self.state.unwrap_or_else(StateDir::default_path);
        let names = exec::restart(&state, &self.workload, self.namespace.as_deref())?;
        let text: String = match self.output {
            Output::Text => names.iter().map(|name| format!("{name} restarted\n")).collect(),
            Output::Json => format!("{:#}\n", serde_json::json!({ "restarted": names })),
        };
        io::Write::write_all(&mut IgnoreBrokenPipe(io::stdout()), text.as_bytes())?;
        Ok(0)
    }
}

#[derive(Debug, Args)]
struct ValidateArguments {
    /// A file (`-`: standard input), or a directory, whose files are also checked together; may be repeated.
    #[arg(value_name = "FILE|DIR", required_unless_present = "files")]
    paths: Vec<PathBuf>,

    /// The same as a flag.
    #[arg(short, long = "file", value_name = "FILE|DIR")]
    files: Vec<PathBuf>,

    /// Also fail on warnings.
    #[arg(long)]
    strict: bool,

    /// Check for a mesh that runs with this option: security objects that are refused or not supported are left out.
    #[arg(long)]
    leave_out_refused: bool,

    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

/// Runs the command and returns the exit status.
pub fn run(cli: Cli) -> anyhow::Result<u8> {
    if cli.command.holds_secrets() {
        secrets::hide().context("closing this process to others of its user")?;
    }
    if cli.command.only_prints() {
        reader::end_with_reader();
    }
    match cli.command {
        Command::Up(arguments) => up(arguments),
        Command::Apply(change) => apply::run(&change, Change::Apply, &mut IgnoreBrokenPipe(io::stdout().lock())),
        Command::Delete { change, ignore_not_found } => {
            apply::run(&change, Change::Delete { ignore_not_found }, &mut IgnoreBrokenPipe(io::stdout().lock()))
        }
        Command::Get(arguments) => get::run(&arguments, &mut io::stdout().lock()),
        Command::Reset(arguments) => overrides::reset(&arguments, &mut IgnoreBrokenPipe(io::stdout().lock())),
        Command::Exec(arguments) => exec_inside(arguments),
        Command::Logs(arguments) => {
            logs::run(&arguments, &mut io::stdout().lock())?;
            Ok(0)
        }
        Command::Dashboard(arguments) => dashboard::run(&arguments, &mut io::stdout().lock()),
        Command::Restart(arguments) => arguments.run(),
        Command::PodInit => evenkeel_local::init::run(),
        Command::Validate(ValidateArguments { paths, files, strict, leave_out_refused, output }) => {
            let mesh = MeshConfig { leave_out_refused, ..manifests::mesh()? };
            let options = validate::Options { strict, mesh };
            Ok(validate::run(&[paths, files].concat(), options, output, &mut io::stdout().lock())?)
        }
        Command::Inject(arguments) => inject::run(&arguments, &mut io::stdout().lock()),
        Command::Cluster(command) => cluster::run(&command),
        Command::IstioIptables(arguments) => istio_iptables::run(&arguments, &mut io::stdout().lock()),
        Command::Cni => cni::run_plugin(),
        Command::CniNode { arguments, log } => {
            logging::start(log.log_level);
            cni::run_node(arguments)
        }
        Command::Explain(arguments) => explain::run(&arguments, &mut io::stdout().lock()),
        Command::Why(arguments) => why::run(&arguments, &mut io::stdout().lock()),
        Command::Tap(arguments) => tap::run(&arguments, &mut io::stdout().lock()),
        Command::Top(arguments) => top::run(&arguments, &mut io::stdout().lock()),
        Command::Profile(arguments) => profile::run(&arguments, &mut io::stdout().lock()),
        Command::Plan(arguments) => plan::run(&arguments, &mut io::stdout().lock()),
        Command::Analyze(arguments) => analyze::run(&arguments, &mut io::stdout().lock()),
        Command::Effective(arguments) => effective::run(&arguments, &mut io::stdout().lock()),
        Command::Describe(command) => describe::run(&command, &mut io::stdout().lock()),
        Command::BugReport(arguments) => bug_report::run(&arguments, &mut io::stdout().lock()),
        Command::Workload(command) => workload::run(&command, &mut io::stdout().lock()),
        Command::Migrate(command) => migrate::run(&command, &mut io::stdout().lock()),
        Command::Prove(arguments) => prove::run(&arguments, &mut io::stdout().lock()),
        Command::Mtls(arguments) => mtls::run(&arguments, &mut io::stdout().lock()),
        Command::Authz(command) => authz::run(&command, &mut io::stdout().lock()),
        Command::Load(arguments) => {
            Ok(evenkeel_loadtest::run(&arguments, &mut io::stderr(), &mut io::stdout().lock())?)
        }
        Command::Echo(arguments) => {
            evenkeel_echo::run(&arguments, &mut io::stdout())?;
            Ok(0)
        }
        Command::Bench(command) => Ok(evenkeel_experiments::run(&command, &mut io::stdout().lock())?),
        Command::Completion { shell } => {
            let mut command = <Cli as clap::CommandFactory>::command();
            clap_complete::generate(shell, &mut command, "evenkeel", &mut io::stdout());
            Ok(0)
        }
        Command::Proxy(options) => {
            purge::while_starting();
            evenkeel_proxy::run(&options, &mut io::stdout().lock())?;
            Ok(0)
        }
        Command::ControlPlane { options, kubernetes, log } => {
            logging::start(log.log_level);
            control_plane::run(*options, kubernetes)
        }
        Command::Agent { options, log } => {
            logging::start(log.log_level);
            purge::while_starting();
            logging::report(&istio::ProxyConfig::findings_of_agent(&options.proxy_config));
            evenkeel_agent::run(*options)?;
            Ok(0)
        }
        Command::Egress { open, log } => {
            logging::start(log.log_level);
            confinement::confine(Writes::Below(&[]));
            evenkeel_local::egress::run(open)?;
            Ok(0)
        }
        Command::ProxyConfig(command) => command::run(command),
        Command::ProxyStatus(arguments) => proxy_status(arguments),
        Command::Ca(command) => ca::run(&command, &mut IgnoreBrokenPipe(io::stdout().lock())),
        Command::History(arguments) => {
            history::run(&arguments, &mut io::stdout().lock())?;
            Ok(0)
        }
        Command::Version { output } => {
            io::Write::write_all(&mut io::stdout(), version(output).as_bytes())?;
            Ok(0)
        }
    }
}

fn version(output: Output) -> String {
    let version = env!("CARGO_PKG_VERSION");
    match output {
        Output::Text => format!("evenkeel {version}\n"),
        Output::Json => format!("{:#}\n", serde_json::json!({ "version": version })),
    }
}

fn proxy_status(arguments: ProxyStatusArguments) -> anyhow::Result<u8> {
    let state = arguments.state.as_deref();
    let control_planes = admin::control_planes(&arguments.control_plane, state, &arguments.in_cluster)?;
    // Without `up` there are no replicas to list.
    let replicas = if arguments.control_plane.is_empty() && !arguments.in_cluster.cluster.is_given() {
        exec::list(&arguments.state.unwrap_or_else(StateDir::default_path), "", None).unwrap_or_default()
    } else {
        Vec::new()
    };
    let (pod, output) = (arguments.proxy.as_deref(), arguments.output);
    proxy_status::run(&control_planes, &replicas, pod, output, &mut io::stdout().lock())
}

fn up(arguments: UpArguments) -> anyhow::Result<u8> {
    let options = evenkeel_local::Options {
        directory: arguments.directory,
        state: arguments.state,
        gateway_ports: arguments.gateway_ports,
        check: arguments.check,
        trust_domain: arguments.trust_domain,
        ca_certs: arguments.ca_certs,
        signer: arguments.signer,
        sidecar_concurrency: arguments.proxy_concurrency,
        log_level: arguments.log_level.to_string(),
        recent_requests: arguments.recent_requests,
        passed_variables: arguments.env,
        drain_time: Duration::from_secs(arguments.drain_time_s),
        egress: !arguments.no_egress,
        leave_out_refused: arguments.leave_out_refused,
        with_prometheus: arguments.with_prometheus,
        compile: compiled::refusals,
    };
    Ok(evenkeel_local::run(&options, &mut IgnoreBrokenPipe(io::stdout()))?)
}

fn exec_inside(arguments: ExecArguments) -> anyhow::Result<u8> {
    let options = ExecOptions {
        state: arguments.state.unwrap_or_else(StateDir::default_path),
        workload: arguments.workload,
        namespace: arguments.namespace,
        container: arguments.container,
        command: if arguments.command.is_empty() { vec!["sh".into()] } else { arguments.command },
    };
    Ok(exec::run(&options)?)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_of_all_commands_fit_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn everything_behind_the_dashes_is_the_command() {
        let parsed = Cli::try_parse_from(["evenkeel", "exec", "web", "-n", "shop", "--", "curl", "-s", "--", "x"]);
        let command = match parsed.map(|cli| cli.command) {
            Ok(Command::Exec(arguments)) => (arguments.namespace, arguments.command),
            other => panic!("{other:?}"),
        };
        assert_eq!(command, (Some("shop".to_owned()), ["curl", "-s", "--", "x"].map(OsString::from).to_vec()));
    }
}
