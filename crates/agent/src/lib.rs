//! The workload's agent: the role of Istio's `pilot-agent`.
//!
//! [`run`] gets the workload's certificate from the control plane and renews it ([`certificate`]), and serves it to the proxy
//! over a Unix socket ([`sds`]). It writes the proxy's [`bootstrap`] (or uses the user's, `custom_bootstrap`), and runs the
//! proxy: Evenkeel's in this process, or a stock [`envoy`]. It answers DNS queries for the mesh's names ([`dns`], [`names`]),
//! checks the workload's [`health`], and serves proxyless gRPC programs ([`grpc`]). When all of this is ready, it writes a
//! status file ([`status`]); its [`status_port`] reports the same, with the metrics of the proxy and of the program. An agent
//! started beside a running one takes over from it (`handover`).

#![forbid(unsafe_code)]

mod admin;
pub mod bootstrap;
pub mod certificate;
pub mod channel;
mod custom_bootstrap;
pub mod dns;
pub mod envoy;
mod envoy_json;
mod files;
pub mod grpc;
mod handover;
pub mod health;
pub mod names;
pub mod options;
pub mod program_metrics;
mod proxy;
pub mod resolv_conf;
mod scrape;
pub mod sds;
pub mod secret_names;
mod servers;
pub mod source;
mod stats_config;
mod status;
pub mod status_port;
mod telemetry;
pub mod trust;
mod unread;

use std::future::Future;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use evenkeel_base::files::Readers;
use evenkeel_process::manager::Manager;
use evenkeel_process::signals::Signals;
use evenkeel_proxy::HotRestartState;
use evenkeel_tls::SecretStore;
use evenkeel_xds::pb::envoy::config::core::v3::Node;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use certificate::CertificateRenewer;
use handover::while_held;
use names::TrustPath;
pub use options::{Options, Role};
use proxy::{Handover, Proxy};
use sds::{SdsServer, Secrets};
use servers::{Dns, GrpcServer};
pub use status::Status;
use status_port::StatusPort;
use trust::ControlPlaneRoots;
pub use unread::unread_metadata;

/// File of the proxy's bootstrap in the state directory.
pub const BOOTSTRAP_FILE: &str = "bootstrap.json";

/// Runs the agent and its proxy until SIGTERM or SIGINT, or until its terminal is closed.
///
/// # Errors
/// When the options contradict themselves, a file or port cannot be used, or the proxy cannot run. A control plane that
/// cannot be reached is no error: it is tried again until it can.
pub fn run(options: Options) -> anyhow::Result<()> {
    // One thread is enough: it is nearly always idle, and each worker thread would cost memory.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let stopped = runtime.block_on(async {
        let mut signals = Signals::listen()?;
        let mut reopen = signal(SignalKind::user_defined1())?;
        let admin_port = options.admin_port();
        // Reopens logs after a rotation, as a proxy without an agent does. Without a handler the signal would end the
        // process.
        let _reopen = Task::spawn(async move {
            while reopen.recv().await.is_some() {
                if let Err(error) = admin::ask(admin_port, http::Method::POST, "/reopen_logs").await {
                    tracing::warn!(%error, "the proxy did not reopen its logs");
                }
            }
        });
        serve(options, async move { signals.end().await }).await
    });
    // A host name lookup may still be running on a blocking thread; it is not needed any more.
    runtime.shutdown_background();
    stopped
}

/// Like [`run`], on the caller's runtime and until `stop` completes.
pub async fn serve(options: Options, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
    unread::report(&options);
    make_state_directory(&options.state)?;
    let mut inherited = handover::begin(&options, &bootstrap::node(&options)?).await?;
    let epoch = inherited.as_ref().map_or(0, |inherited| inherited.succession.epoch());
    let hot_restart =
        watch::channel(if inherited.is_some() { HotRestartState::Waiting } else { HotRestartState::Serving }).0;
    let (manager, held) = (Manager::of_this_process(), hot_restart.subscribe());
    let stop = async {
        stop.await;
        // Otherwise another process has taken over as the service.
        if *held.borrow() == HotRestartState::Serving {
            manager.stopping();
        }
    };
    tokio::pin!(stop);
    let bootstrap = if options.no_proxy { None } else { Some(write_bootstrap(&options, epoch)?) };
    let (store, secrets) = (SecretStore::new(), Secrets::new());
    let (certificate_sender, certificate) = watch::channel(None);
    let ((pushed, bundles), roots) = (trust::channel(), ControlPlaneRoots::default());
    let trusted = (bundles, roots.clone());
    let mut keeper =
        CertificateRenewer::new(options.clone(), secrets.clone(), store.clone(), certificate_sender, trusted)?;
    let dns = Dns::start(&options, inherited.as_mut(), &hot_restart).await?;
    let grpc = GrpcServer::start(&options, inherited.as_mut(), (&store, &roots), &hot_restart)?;
    let (ready, is_ready) = watch::channel(false);
    let status_port = StatusPort::start(&options, inherited.as_mut(), is_ready, &hot_restart).await?;
    let watcher = status::Watcher {
        ready,
        state: options.state.clone(),
        proxy: proxy::kind(&options),
        admin_port: bootstrap.is_some().then_some(options.admin_port()),
        certificate,
        names: dns.as_ref().map(|dns| dns.names.clone()),
        manager: manager.clone(),
    };
    let watcher = Arc::new(watcher);
    let _status = Task::spawn(while_held(hot_restart.subscribe(), move || watcher.clone().run()));

    // Proxy and programs cannot serve before the first certificate.
    tokio::select! {
        () = keeper.obtain() => {}
        () = &mut stop => return Ok(()),
    }
    let path = TrustPath { pushed, renewed: keeper.renewals(), roots: roots.clone() };
    let _keeper = Task::spawn(keeper.keep());
    options.note_idle_levels();
    let _stream = servers::follow(&options, dns.as_ref(), &store, path)?;
    // Only one agent checks and reports, also while another one takes over.
    let _health = options.readiness_probe()?.map(|probe| {
        let (options, store, roots) = (options.clone(), store.clone(), roots.clone());
        Task::spawn(while_held(hot_restart.subscribe(), move || {
            health::run(options.clone(), probe.clone(), (store.clone(), roots.clone()))
        }))
    });
    let Some(bootstrap) = bootstrap else {
        stop.await;
        return Ok(());
    };
    let sds = SdsServer::bind(&options.state.join(bootstrap::sds_socket(epoch)), secrets).context("the SDS socket")?;
    let _sds = Task::spawn(sds.run());
    if let (Some(_), Some(dns)) = (&inherited, &dns) {
        // The proxy may take over as soon as it runs, and then this agent must answer DNS.
        tokio::select! {
            () = dns.has_names() => {}
            () = &mut stop => return Ok(()),
        }
    }
    let sockets = servers::sockets(dns.as_ref(), grpc.as_ref(), status_port.as_ref())?;
    let succession = inherited.map(|inherited| inherited.succession);
    let mut proxy =
        Proxy::start(&options, &bootstrap, Handover { hot_restart: hot_restart.clone(), succession, sockets })?;
    let ended = tokio::select! {
        ended = proxy.ended() => ended,
        () = &mut stop => proxy.stop_after(&options).await,
    };
    let HotRestartState::HandedOver { to } = *hot_restart.borrow() else { return ended };
    if let Some(dns) = &dns {
        // The next agent cannot answer the queries that this one has read.
        dns.finish().await;
    }
    if let Some(process) = to {
        manager.replaced_by(process);
    }
    ended
}

/// Makes the state directory, accessible to this user only.
fn make_state_directory(state: &Path) -> anyhow::Result<()> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state);
    made.with_context(|| format!("--state {}", state.display()))
}

fn write_bootstrap(options: &Options, epoch: u32) -> anyhow::Result<PathBuf> {
    let path = options.state.join(BOOTSTRAP_FILE);
    let own = bootstrap::bootstrap(options, epoch)?;
    let bootstrap = match custom_bootstrap::file(options) {
        Some(file) => custom_bootstrap::read(&file, &own)?,
        None => own,
    };
    let text = serde_json::to_vec_pretty(&bootstrap)?;
    files::write_whole(&path, &text, Readers::All).with_context(|| path.display().to_string())?;
    Ok(path)
}

/// The node of the bootstrap, as the agent's own stream sends it.
fn node_message(options: &Options) -> anyhow::Result<Node> {
    let json = bootstrap::node(options)?;
    Ok(node_from_json(&json))
}

fn node_from_json(json: &serde_json::Value) -> Node {
    let text = |name: &str| json.get(name).and_then(serde_json::Value::as_str).unwrap_or_default().to_owned();
    Node {
        id: text("id"),
        cluster: text("cluster"),
        metadata: json.get("metadata").and_then(names::to_struct),
        user_agent_name: "evenkeel-agent".into(),
        ..Node::default()
    }
}

/// A task that is aborted when its handle is dropped.
struct Task(tokio::task::AbortHandle);

impl Task {
    fn spawn<T: Send + 'static>(future: impl Future<Output = T> + Send + 'static) -> Self {
        Self(tokio::spawn(future).abort_handle())
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
