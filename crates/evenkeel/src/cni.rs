//! `evenkeel cni`: the CNI plugin, and `evenkeel cni-node`: the agent on each node that installs it and loads the rules of Pods.

use std::io::{self, BufRead as _, BufReader, Read as _, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use anyhow::Context;
use evenkeel_capture::Capture;
use evenkeel_cni::agent::{self, Counts, Rules};
use evenkeel_cni::configuration::{PodName, Settings};
use evenkeel_cni::install::Node;
use evenkeel_cni::plugin::Invocation;
use evenkeel_inject::{VALIDATION, VALIDATION_FLAGS};
use evenkeel_k8s::client::{ClusterOptions, ExecPlugins};
use evenkeel_k8s::pod_rules::PodReader;
use evenkeel_process::signals::Signals;

use crate::istio_iptables;

/// How often the node's configuration is compared with what it should be.
const CHECK: Duration = Duration::from_secs(1);
/// How long a client of the page may take.
const PAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of a request's first line, in bytes.
const MAX_LINE_BYTES: u64 = 1024;

/// Flags of `evenkeel cni-node`.
#[derive(Debug, clap::Args)]
pub struct NodeArguments {
    /// The node's folder of CNI plugins.
    #[arg(long, value_name = "DIR", default_value = "/host/opt/cni/bin")]
    bin_dir: PathBuf,

    /// The node's folder of network configurations.
    #[arg(long, value_name = "DIR", default_value = "/host/etc/cni/net.d")]
    config_dir: PathBuf,

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
    cluster: ClusterOptions,
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
    let client = runtime.block_on(arguments.cluster.client(ExecPlugins::Refuse))?;
    let rules = Arc::new(ClusterRules { pods: PodReader::new(client, VALIDATION), runtime: runtime.handle().clone() });
    let state = Arc::new(State::default());
    let listener =
        agent::listen(&arguments.socket).with_context(|| format!("cannot listen on {}", arguments.socket.display()))?;
    let counts = state.counts.clone();
    thread::spawn(move || {
        let error = agent::serve(&listener, &rules, &counts);
        tracing::error!(%error, "the plugin's socket failed");
        std::process::exit(1);
    });
    serve_page(arguments.http_address, state.clone())?;
    let node = Node { programs: arguments.bin_dir, configurations: arguments.config_dir };
    let program = std::env::current_exe().context("cannot find the own program")?;
    node.install_program(&program)?;
    let settings = Settings {
        socket: arguments.socket,
        exclude_namespaces: arguments.exclude_namespace,
        agent_namespace: std::env::var("POD_NAMESPACE").unwrap_or_default(),
        // The names of a DaemonSet's Pods: the DaemonSet's name, and five characters.
        agent_prefix: std::env::var("POD_NAME")
            .ok()
            .and_then(|name| Some(name.rsplit_once('-')?.0.to_owned() + "-"))
            .unwrap_or_default(),
    };
    runtime.block_on(keep(&node, &settings, &state))?;
    node.remove()?;
    tracing::info!("the plugin is removed from the node");
    Ok(0)
}

/// Keeps the plugin's entry in the node's configuration, until a signal.
async fn keep(node: &Node, settings: &Settings, state: &State) -> anyhow::Result<()> {
    let mut signals = Signals::listen()?;
    let mut problem = None;
    loop {
        match node.install_entry(settings) {
            Ok(changed) => {
                if changed {
                    tracing::info!(folder = %node.configurations.display(), "the plugin is in the node's network configuration");
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
}

/// The rules of the Pods of a cluster.
struct ClusterRules {
    pods: PodReader,
    runtime: tokio::runtime::Handle,
}

impl Rules for ClusterRules {
    type Capture = Capture;

    fn of_pod(&self, pod: &PodName) -> Result<Option<Capture>, String> {
        let lookup = self.pods.rules(&pod.namespace, &pod.name);
        let Some(rules) = self.runtime.block_on(lookup).map_err(|error| error.to_string())? else { return Ok(None) };
        let mut servers: Vec<IpAddr> = istio_iptables::name_servers();
        servers.extend(rules.name_servers);
        let words = rules.arguments.iter().skip(1).map(String::as_str).filter(|word| !VALIDATION_FLAGS.contains(word));
        let capture = Capture::from_arguments(words, &servers);
        capture.map(Some).map_err(|error| format!("the arguments of its container {VALIDATION}: {error}"))
    }

    fn load(&self, capture: Capture) -> Result<(), String> {
        istio_iptables::load(&capture).map_err(|error| format!("{error:#}"))
    }
}

/// Serves the page from now on.
fn serve_page(address: SocketAddr, state: Arc<State>) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address).with_context(|| format!("cannot listen on {address}"))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // One at a time: kubelet and Prometheus ask every few seconds.
            if let Err(error) = answer(stream, &state) {
                tracing::debug!(%error, "a request of the page");
            }
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream, state: &State) -> io::Result<()> {
    stream.set_read_timeout(Some(PAGE_TIMEOUT))?;
    stream.set_write_timeout(Some(PAGE_TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(&stream).take(MAX_LINE_BYTES).read_line(&mut line)?;
    let (status, body) = match line.split(' ').nth(1) {
        Some("/readyz") if state.is_installed.load(Relaxed) => ("200 OK", "ok\n".to_owned()),
        Some("/readyz") => {
            ("503 Service Unavailable", "the plugin is not in the node's network configuration\n".to_owned())
        }
        Some("/metrics") => ("200 OK", metrics(&state.counts)),
        _ => ("404 Not Found", "pages: /readyz, /metrics\n".to_owned()),
    };
    let length = body.len();
    write!(
        stream,
        "HTTP/1.1 {status}\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{body}"
    )
}

fn metrics(counts: &Counts) -> String {
    let all = [("captured", &counts.captured), ("skipped", &counts.skipped), ("failed", &counts.failed)];
    let lines =
        all.map(|(result, count)| format!("evenkeel_cni_pods_total{{result=\"{result}\"}} {}\n", count.load(Relaxed)));
    format!(
        "# HELP evenkeel_cni_pods_total Pods that the CNI plugin has asked about.\n# TYPE evenkeel_cni_pods_total counter\n{}",
        lines.concat()
    )
}
