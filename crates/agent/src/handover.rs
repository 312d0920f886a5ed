//! Upgrade without connection resets: an agent that is started with the `--state` of a running agent takes over from
//! it.
//!
//! The running proxy hands its sockets to the new one (`evenkeel_proxy::handover`), and the agents' own sockets travel
//! with them. Until the new proxy is ready, the running agent serves as before, even if the new one fails. Then the new
//! agent owns the state directory, and the old agent stays until its proxy has no connections left.

use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use evenkeel_proxy::HotRestartState;
use evenkeel_proxy::handover::Succession;
use serde_json::Value;
use tokio::net::{TcpListener, UdpSocket, UnixListener};
use tokio::sync::watch;

use crate::BOOTSTRAP_FILE;
use crate::options::Options;

/// The socket over which proxies hand over. It has a directory of its own, because others may be able to write to the
/// state directory, for example a volume of a pod.
const SOCKET: &str = "handover/proxy.sock";
/// Maximum length of a Unix socket's path on Linux, in bytes.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// The suffix that the proxy uses while it replaces the socket: `.PID.new` instead of `.sock`.
const NEW_SUFFIX_BYTES: usize = 10;

/// Names of the agent's sockets.
pub(crate) const DNS_UDP: &str = "dns-udp";
pub(crate) const DNS_TCP: &str = "dns-tcp";
pub(crate) const GRPC: &str = "grpc";
pub(crate) const STATUS: &str = "status";

/// The path of the handover socket of this state directory; `None` if the proxy is not ours, or if the path is too long
/// for a socket.
pub(crate) fn socket(options: &Options) -> Option<PathBuf> {
    let path = options.state.join(SOCKET);
    let fits = path.as_os_str().as_bytes().len() + NEW_SUFFIX_BYTES <= MAX_SOCKET_PATH_BYTES;
    if !fits {
        tracing::info!(path = %path.display(), "too long for a socket: no other agent can take over from this one");
    }
    (fits && options.envoy.is_none() && !options.no_proxy).then_some(path)
}

/// Asks a running agent for its sockets; `None` when there is none.
pub(crate) async fn begin(options: &Options, node: &Value) -> anyhow::Result<Option<Inherited>> {
    let Some(path) = socket(options) else { return Ok(None) };
    let running = node_id_in(&options.state.join(BOOTSTRAP_FILE));
    let asked = tokio::task::spawn_blocking(move || Succession::begin(&path)).await?;
    let Some(mut succession) = asked.context("taking over from the running agent")? else { return Ok(None) };
    if let (Some(running), Some(own)) = (running, node["id"].as_str())
        && running != own
    {
        bail!("--state {}: an agent of {running} runs with it, and this one is {own}", options.state.display());
    }
    tracing::info!("another agent runs with this state directory; taking over from it");
    let dns = (succession.take_socket(DNS_UDP), succession.take_socket(DNS_TCP));
    let dns = if let (Some(udp), Some(tcp)) = dns { Some((udp, tcp)) } else { None };
    let (grpc, status) = (succession.take_socket(GRPC), succession.take_socket(STATUS));
    Ok(Some(Inherited { succession, dns, grpc, status }))
}

fn node_id_in(bootstrap: &Path) -> Option<String> {
    let bootstrap: Value = serde_json::from_slice(&std::fs::read(bootstrap).ok()?).ok()?;
    bootstrap["node"]["id"].as_str().map(str::to_owned)
}

/// The state that the running agent has handed over.
pub(crate) struct Inherited {
    pub(crate) succession: Succession,
    dns: Option<(OwnedFd, OwnedFd)>,
    grpc: Option<OwnedFd>,
    status: Option<OwnedFd>,
}

impl Inherited {
    /// The DNS proxy's sockets, for UDP and TCP.
    pub(crate) fn take_dns(&mut self) -> anyhow::Result<Option<(UdpSocket, TcpListener)>> {
        let Some((udp, tcp)) = self.dns.take() else { return Ok(None) };
        Ok(Some((UdpSocket::from_std(udp.into())?, TcpListener::from_std(tcp.into())?)))
    }

    /// The socket of the status port.
    pub(crate) fn take_status(&mut self) -> anyhow::Result<Option<TcpListener>> {
        self.status.take().map(|socket| Ok(TcpListener::from_std(socket.into())?)).transpose()
    }

    /// The socket of gRPC programs.
    pub(crate) fn take_grpc(&mut self) -> anyhow::Result<Option<UnixListener>> {
        self.grpc.take().map(|socket| Ok(UnixListener::from_std(socket.into())?)).transpose()
    }
}

/// Runs `serve` whenever this agent is the active one, until the future is dropped.
pub(crate) async fn while_held<F: Future<Output = ()>>(
    mut state: watch::Receiver<HotRestartState>,
    serve: impl Fn() -> F,
) {
    let mut given = state.clone();
    // An error means that the sender is gone, because the agent ends.
    while state.wait_for(|state| *state == HotRestartState::Serving).await.is_ok() {
        tokio::select! {
            biased;
            Ok(_) = given.wait_for(|state| *state != HotRestartState::Serving) => {}
            () = serve() => return,
        }
    }
}
