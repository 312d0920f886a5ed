//! `evenkeel cni`: the CNI plugin, and `evenkeel cni-node`: the agent on each node that installs it and loads the rules of Pods.

mod page;
mod rules;
mod upkeep;

use std::io::{self, Read as _, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use evenkeel_cni::agent::{self, Counts, SocketFile};
use evenkeel_cni::configuration::Settings;
use evenkeel_cni::install::{InstallError, Node, Placement};
use evenkeel_cni::plugin::Invocation;
use evenkeel_k8s::client::{ClusterOptions, ExecPlugins};
use evenkeel_process::signals::Signals;

use self::rules::ClusterRules;
use self::upkeep::{Findings, UpkeepArguments};

/// How often the node's files are compared with what they should be.
const CHECK: Duration = Duration::from_secs(1);

/// Flags of `evenkeel cni-node`.
#[derive(Debug, clap::Args)]
pub struct NodeArguments {
    /// The node's folder of CNI plugins.
    #[arg(long, value_name = "DIR", default_value = "/host/opt/cni/bin")]
    bin_dir: PathBuf,

    /// The node's folder of network configurations.
    #[arg(long, value_name = "DIR", default_value = "/host/etc/cni/net.d")]
    config_dir: PathBuf,

    /// Put the plugin into a configuration of its own of this name, with the plugins of the one that the runtime would use, instead of
    /// into that one.
    #[arg(long, value_name = "NAME.conflist", conflicts_with = "standalone_config")]
    own_config: Option<String>,

    /// Put the plugin alone into a configuration of this name, for Multus.
    #[arg(long, value_name = "NAME.conflist")]
    standalone_config: Option<String>,

    /// The agent's socket. The path is the same in the agent's Pod and on the node.
    #[arg(long, value_name = "FILE", default_value = "/run/evenkeel-cni/agent.sock")]
    socket: PathBuf,

    /// A namespace whose Pods are never captured; may be repeated.
    #[arg(long, value_name = "NAME", default_value = "kube-system")]
    exclude_namespace: Vec<String>,

    /// Address of readiness (/readyz) and metrics (/metrics).
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0:15014")]
    http_address: SocketAddr,

    #[command(flatten)]
    upkeep: UpkeepArguments,

    #[command(flatten)]
    cluster: ClusterOptions,
}

impl NodeArguments {
    fn placement(&self) -> Placement {
        match (&self.own_config, &self.standalone_config) {
            (Some(name), _) => Placement::Own(name.clone()),
            (None, Some(name)) => Placement::Alone(name.clone()),
            (None, None) => Placement::Chained,
        }
    }
}

/// Whether this process was started as the plugin, by its name: a container runtime gives no arguments.
pub fn is_plugin() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name().is_some_and(|name| name == evenkeel_cni::PLUGIN)
}

/// Runs the plugin: reads standard input, prints the result, and returns the exit status.
pub fn run_plugin() -> anyhow::Result<u8> {
    let mut input = Vec::new();
    io::stdin().lock().read_to_end(&mut input).context("cannot read the network configuration")?;
    let (printed, succeeded) = Invocation::of_environment().run(&input);
    if let Some(printed) = printed {
        writeln!(io::stdout().lock(), "{printed}")?;
    }
    Ok(u8::from(!succeeded))
}

/// Runs the agent until it is told to end; then the plugin is removed from the node.
pub fn run_node(arguments: NodeArguments) -> anyhow::Result<u8> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.context("cannot start the event loop")?;
    let placement = arguments.placement();
    let client = runtime.block_on(arguments.cluster.client(ExecPlugins::Refuse))?;
    let rules = Arc::new(ClusterRules::new(client.clone(), runtime.handle().clone()));
    let state = Arc::new(State::default());
    let listener =
        agent::listen(&arguments.socket).with_context(|| format!("cannot listen on {}", arguments.socket.display()))?;
    let socket = SocketFile::of(&arguments.socket).context("the socket is gone")?;
    let counts = state.counts.clone();
    thread::spawn(move || {
        let error = agent::serve(&listener, &rules, &counts);
        tracing::error!(%error, "the plugin's socket failed");
        std::process::exit(1);
    });
    page::serve(arguments.http_address, state.clone())?;
    let settings = Settings {
        socket: arguments.socket,
        exclude_namespaces: arguments.exclude_namespace,
        agent_namespace: std::env::var("POD_NAMESPACE").unwrap_or_default(),
        standalone: false,
        // The names of a DaemonSet's Pods: the DaemonSet's name, and five characters.
        agent_prefix: std::env::var("POD_NAME")
            .ok()
            .and_then(|name| Some(name.rsplit_once('-')?.0.to_owned() + "-"))
            .unwrap_or_default(),
    };
    let installed = Installed {
        node: Node { programs: arguments.bin_dir, configurations: arguments.config_dir },
        program: std::env::current_exe().context("cannot find the own program")?,
        placement,
        settings,
    };
    runtime.block_on(async {
        upkeep::start(arguments.upkeep, client, &state)?;
        keep(&installed, &state).await
    })?;
    installed.node.remove()?;
    socket.remove().context("the socket cannot be removed")?;
    tracing::info!("the plugin is removed from the node");
    Ok(0)
}

/// What the node has to have.
struct Installed {
    node: Node,
    program: PathBuf,
    placement: Placement,
    settings: Settings,
}

impl Installed {
    /// Puts in place what is missing or was changed; returns whether anything was.
    fn restore(&self) -> Result<bool, InstallError> {
        let is_missing = !self.node.has_program(&self.program);
        if is_missing {
            self.node.install_program(&self.program)?;
        }
        // The entry comes after the program, which the runtime would not find otherwise.
        Ok(self.node.install_entry(&self.placement, &self.settings)? || is_missing)
    }
}

/// Keeps the plugin in place, until a signal.
async fn keep(installed: &Installed, state: &State) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let mut problem = None;
    // That of an earlier version may have the same size.
    installed.node.install_program(&installed.program)?;
    loop {
        match installed.restore() {
            Ok(changed) => {
                if changed {
                    state.installs.fetch_add(1, Relaxed);
                    let folder = installed.node.configurations.display();
                    tracing::info!(%folder, "the plugin is in the node's network configuration");
                }
                problem = None;
            }
            Err(error) => {
                let error = error.to_string();
                if problem.as_ref() != Some(&error) {
                    tracing::warn!(error, "the plugin is not in the node's network configuration");
                    problem = Some(error);
                }
            }
        }
        state.is_installed.store(problem.is_none(), Relaxed);
        if tokio::time::timeout(CHECK, signals.end()).await.is_ok() {
            return Ok(());
        }
    }
}

/// What the page shows.
#[derive(Default)]
struct State {
    counts: Arc<Counts>,
    is_installed: AtomicBool,
    /// How often the plugin or its configuration was written.
    installs: AtomicU64,
    findings: Findings,
}
