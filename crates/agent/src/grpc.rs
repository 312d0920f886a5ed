//! Provides for gRPC programs without a proxy, as in Istio's template `grpc-agent`: the bootstrap file that
//! `GRPC_XDS_BOOTSTRAP` names, the workload's certificate in files, and a Unix socket that is relayed to the control plane.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use evenkeel_base::files::{Readers, write_atomically};
use evenkeel_proxy::HotRestartState;
use evenkeel_tls::SecretStore;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::options::{Options, OptionsError};
use crate::sds::PemBundle;
use crate::trust::ControlPlaneRoots;
use crate::{bootstrap, channel, files};

/// File of the socket in the state directory.
pub const XDS_SOCKET: &str = "xds.sock";
/// File of the certificate's chain in the state directory, leaf first.
pub const CHAIN_FILE: &str = "cert-chain.pem";
/// File of its key.
pub const KEY_FILE: &str = "key.pem";
/// File of the mesh's roots.
pub const ROOT_FILE: &str = "root-cert.pem";

/// How often programs check whether the files have changed. Istio's agent sets 900 s; a change of the root has to wait for
/// it.
pub(crate) const REFRESH: Duration = Duration::from_secs(30);
/// Relayed connections at a time, in connections. A program has one.
const MAX_CONNECTIONS: usize = 64;
/// Pause after an accept that failed for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The bootstrap of gRPC's xDS client.
pub fn bootstrap(options: &Options) -> Result<Value, OptionsError> {
    let mut node = bootstrap::node(options)?;
    if let Some(metadata) = node["metadata"].as_object_mut() {
        // This metadata is only for our own proxy.
        metadata.remove("EVENKEEL");
        metadata.insert("GENERATOR".into(), json!("grpc"));
    }
    let state = std::path::absolute(&options.state).unwrap_or_else(|_| options.state.clone());
    Ok(json!({
        "xds_servers": [{
            "server_uri": format!("unix://{}", state.join(XDS_SOCKET).display()),
            "channel_creds": [{ "type": "insecure" }],
            "server_features": ["xds_v3"],
        }],
        "node": node,
        "server_listener_resource_name_template": "xds.istio.io/grpc/lds/inbound/%s",
        "certificate_providers": {
            "default": {
                "plugin_name": "file_watcher",
                "config": {
                    "certificate_file": state.join(CHAIN_FILE),
                    "private_key_file": state.join(KEY_FILE),
                    "ca_certificate_file": state.join(ROOT_FILE),
                    "refresh_interval": format!("{}s", REFRESH.as_secs()),
                },
            },
        },
    }))
}

/// Writes the certificate for gRPC programs, which read it from files.
pub(crate) fn write_certificate(state: &Path, material: &PemBundle) -> Result<(), (PathBuf, io::Error)> {
    let files = [(CHAIN_FILE, &material.chain), (KEY_FILE, &material.key), (ROOT_FILE, &material.roots)];
    for (name, text) in files {
        let path = state.join(name);
        write_atomically(&path, text.as_bytes(), Readers::Owner).map_err(|error| (path, error))?;
    }
    Ok(())
}

/// Relays connections of gRPC programs from a Unix socket to the control plane. The bytes travel inside the agent's own
/// TLS connection, with the workload's certificate.
#[derive(Debug)]
pub(crate) struct GrpcRelay {
    listener: UnixListener,
    path: PathBuf,
    options: Options,
    store: SecretStore,
    roots: ControlPlaneRoots,
    state: watch::Receiver<HotRestartState>,
}

impl Drop for GrpcRelay {
    fn drop(&mut self) {
        // Otherwise another agent has taken over the socket.
        if *self.state.borrow() == HotRestartState::Serving {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl GrpcRelay {
    /// Takes over the previous agent's socket, or binds a new one in state of one that a crashed run left, and writes
    /// the bootstrap that names it. Only this user may connect.
    pub(crate) fn open(
        file: &Path,
        handed: Option<UnixListener>,
        options: &Options,
        (store, roots): (&SecretStore, &ControlPlaneRoots),
        state: watch::Receiver<HotRestartState>,
    ) -> anyhow::Result<Self> {
        let path = options.state.join(XDS_SOCKET);
        let listener = match handed {
            Some(listener) => listener,
            None => bind(&path).with_context(|| path.display().to_string())?,
        };
        let text = serde_json::to_vec_pretty(&bootstrap(options)?)?;
        files::write_whole(file, &text, Readers::All).with_context(|| file.display().to_string())?;
        Ok(Self { listener, path, options: options.clone(), store: store.clone(), roots: roots.clone(), state })
    }

    /// A duplicate of the socket's descriptor.
    pub(crate) fn socket(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Serves programs until the future is dropped.
    pub(crate) async fn run(self: Arc<Self>) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if connections.len() < MAX_CONNECTIONS => match accepted {
                    Ok((program, _)) => _ = connections.spawn(self.clone().pass_on(program)),
                    Err(error) => {
                        tracing::warn!(%error, "a gRPC program could not connect");
                        tokio::time::sleep(ACCEPT_PAUSE).await;
                    }
                },
                Some(_) = connections.join_next() => {}
            }
        }
    }
}

impl GrpcRelay {
    /// Relays one connection. Whichever side ends first, the program sees its connection end and reconnects.
    async fn pass_on(self: Arc<Self>, mut program: UnixStream) {
        let passed = async {
            let mut control_plane = channel::open(&self.options, &self.roots, &self.store).await?;
            copy_bidirectional(&mut program, &mut control_plane).await
        };
        if let Err(error) = passed.await {
            tracing::info!(%error, "a gRPC program's connection to the control plane ended");
        }
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))?;
    Ok(listener)
}
