//! `evenkeel control-plane`: a process around the control plane, with the cluster whose objects it reads.

use std::pin::Pin;
use std::sync::Arc;

use anyhow::Context;
use evenkeel_control::Options;
use evenkeel_k8s::certificate_requests::KubernetesSigner;
use evenkeel_k8s::client::{Client, ExecPlugins, KubernetesOptions};
use evenkeel_k8s::last_objects::LastObjects;
use evenkeel_k8s::remote::{self, RemoteOptions};
use evenkeel_k8s::replica::{self, Replica, ReplicaOptions};
use evenkeel_k8s::revision::DEFAULT;
use evenkeel_k8s::source::Scope;
use evenkeel_k8s::token_review::clusters::ClusterTokens;
use evenkeel_k8s::trust_bundles::SignerRoots;
use evenkeel_model::MeshConfig;
use evenkeel_process::confinement::{self, Writes};
use evenkeel_proxy::memory;
use evenkeel_store::Store;

use crate::{heaps, purge};

/// The file in the state directory with the roots of a signer of the cluster.
const SIGNER_ROOTS: &str = "kubernetes-signer-roots.pem";

/// Runs the control plane until it is told to end.
pub fn run(options: Options, kubernetes: KubernetesOptions) -> anyhow::Result<u8> {
    confine(&options);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .on_thread_park(memory::collect_if_asked)
        .build()
        .context("cannot start the event loop")?;
    purge::at_once(true);
    evenkeel_control::memory::set_allocator(heaps::ALLOCATOR);
    runtime.spawn(memory::give_back_start_up());
    // It runs on a worker thread: this thread only waits from now on and would never return the memory that is freed after
    // the start.
    runtime.block_on(runtime.spawn(serve(options, kubernetes)))??;
    Ok(0)
}

async fn serve(mut options: Options, kubernetes: KubernetesOptions) -> anyhow::Result<()> {
    if !kubernetes.is_used() {
        anyhow::ensure!(
            kubernetes.kubernetes_signer.is_none(),
            "--kubernetes-signer is a signer of a cluster: --kubernetes"
        );
        return Ok(evenkeel_control::run(options).await?);
    }
    let root = MeshConfig::default().root_namespace;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let revision = match options.injection.revision.as_str() {
        DEFAULT => variable("REVISION").unwrap_or_else(|| DEFAULT.to_owned()),
        named => named.to_owned(),
    };
    let scope = Scope { root: root.to_string(), revision, shared_settings: variable("SHARED_MESH_CONFIG") };
    let config = kubernetes.cluster.config(ExecPlugins::Refuse).await?;
    let client = kubernetes.cluster.client(ExecPlugins::Refuse).await?;
    let roots = use_signer(&mut options, &kubernetes, &client).await?;
    let this = ReplicaOptions::from_env(|name| std::env::var(name).ok(), &root);
    let own = options.injection.cluster.clone();
    let remote = RemoteOptions {
        namespace: this.namespace.clone(),
        root: scope.root.clone(),
        own: own.clone(),
        timeout: remote::timeout_from_env(|name| std::env::var(name).ok())?,
    };
    let (mut watching, source) = evenkeel_k8s::source::start(client.clone(), &scope);
    let (mut remotes, of_remotes) = remote::start(client.clone(), remote);
    // Proxies that are connected to another control plane must not get an empty mesh from this one.
    let last = LastObjects::new(Store::from(&options.state));
    watching.synced_or_restored(&last).await?;
    remotes.settled().await;
    let keeping = watching.keep(last);
    let this = ReplicaOptions { revision: scope.revision, ..this };
    let (replica, mut platform) = Replica::start(client.clone(), source, &this);
    platform.sources.push(Box::new(of_remotes));
    platform.tokens = Some(Arc::new(ClusterTokens::new(client, &own, remotes.reviews())));
    platform.remote_clusters = Some(remotes.page());
    if kubernetes.state_in_cluster {
        platform.store = Some(replica::store(config, &this, &options.state)?);
    }
    let ended = tokio::select! {
        ended = evenkeel_control::run_on(options, platform) => ended.map_err(anyhow::Error::from),
        stopped = watching.stopped() => Err(stopped.into()),
        () = keeping => Ok(()),
        () = roots => Ok(()),
    };
    replica.end().await;
    ended
}

/// Has a signer of the cluster sign, if one is named. Its roots are those that are given, or else those of its ClusterTrustBundles, which the
/// returned future follows. It never completes.
async fn use_signer(
    options: &mut Options,
    kubernetes: &KubernetesOptions,
    client: &Client,
) -> anyhow::Result<Pin<Box<dyn Future<Output = ()> + Send>>> {
    let Some(name) = kubernetes.signer(|name| std::env::var(name).ok())? else {
        return Ok(Box::pin(std::future::pending()));
    };
    options.signer.cluster = Some(Arc::new(KubernetesSigner::new(client.clone(), &name)));
    if options.signer.external_signer_roots.is_some() {
        return Ok(Box::pin(std::future::pending()));
    }
    let path = options.state.join(SIGNER_ROOTS);
    let mut roots = SignerRoots::new(client.clone(), &name, path.clone());
    roots.begin().await?;
    options.signer.external_signer_roots = Some(path);
    Ok(Box::pin(roots.keep()))
}

/// Confines the process before it has threads. Errors of the state directory are reported by the control plane itself.
fn confine(options: &Options) {
    let _ = evenkeel_base::files::private_directory(&options.state);
    let state = [options.state.as_path()];
    let writes = Writes::Below(&state);
    if (!options.no_confinement).then(|| confinement::confine(writes)).flatten().is_none() {
        tracing::warn!("not confined: the process may run programs, make any system call and write anywhere");
    }
}
