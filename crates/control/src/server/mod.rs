//! Wires the parts of the control plane together.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use evenkeel_admin::clusters::RemoteClusters;
use evenkeel_base::files::{UntrustedError, private_directory};
use evenkeel_base::spiffe::SpiffeError;
use evenkeel_ca::rotation::Signing;
use evenkeel_ca::{TokenError, TokenKey};
use evenkeel_model::MeshConfig;
use evenkeel_process::manager::Manager;
use evenkeel_process::signals::Signals;
use evenkeel_store::Store;
use evenkeel_xds::Resource;
use evenkeel_xds::istio::auth::istio_certificate_service_server::IstioCertificateServiceServer;
use evenkeel_xds::istio::mesh::{ProxyConfig, TrustDomain};
use evenkeel_xds::scope::scope_service_server::ScopeServiceServer;
use evenkeel_xds::server::grpc::{self, Limits, Services};
use evenkeel_xds::server::{AdsServer, Source};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use crate::authentication::TokenAuthenticator;
use crate::authorities::{Authorities, AuthoritiesError};
use crate::barrier::Barrier;
use crate::certificates::{self, Certificates};
use crate::configuration::{self, AddressBookError, Configuration, Sinks};
use crate::debug::{self, Pages};
use crate::discovery::Discovery;
use crate::environment;
use crate::federation::Federation;
use crate::jwks::outgoing_proxy::{OutgoingProxies, OutgoingProxyError};
use crate::jwks::settings::{JwksSettings, JwksSettingsError};
use crate::jwks::{self, Fetcher};
use crate::listen::{self, ListenError};
use crate::mesh_roots::MeshRoots;
use crate::metrics::Metrics;
use crate::options::{CertificateTtlError, Options, max_certificate_ttl};
use crate::platform::Platform;
use crate::proxies::{Proxies, Trust};
use crate::publish::{PublishError, PublishOptions};
use crate::registration::{self, GraceError, Registrations};
use crate::scope::{ScopeServer, Scopes};
use crate::server_certificate::{ServerCertificateError, ServerCertificates};
use crate::source::LiveSource;
use crate::source::debounce::{DebounceError, DebounceOptions};
use crate::source::directories::{Directories, DirectoryError};
use crate::source::stored::StoredObjects;
use crate::tasks::{TaskEnded, Tasks};
use crate::webhooks::{self, Webhooks};
use crate::world::World;

/// How long streams may take to end at shutdown.
const DRAIN_TIME: Duration = Duration::from_secs(2);
/// HTTP/2 keepalive: a client that vanishes is noticed after this interval and the timeout.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// See [`KEEPALIVE_INTERVAL`].
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum number of concurrent streams on one HTTP/2 connection.
const MAX_STREAMS_PER_CONNECTION: u32 = 32;
/// Maximum size of a request on a connection's ADS stream, in bytes: a proxy may name very many resources.
const MAX_REQUEST_BYTES: usize = 16 * 1024 * 1024;
/// Maximum size of a request of any other call, in bytes: a workload's scope has names of 1 KiB at most.
const MAX_CALL_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size of a request on a further ADS stream of a connection, in bytes. Neither Envoy nor gRPC opens one.
const MAX_FURTHER_REQUEST_BYTES: usize = 1024 * 1024;

const LIMITS: Limits = Limits {
    max_streams: MAX_STREAMS_PER_CONNECTION,
    max_request_bytes: MAX_REQUEST_BYTES,
    max_call_bytes: MAX_CALL_BYTES,
    keepalive_interval: KEEPALIVE_INTERVAL,
    keepalive_timeout: KEEPALIVE_TIMEOUT,
};

/// Why the control plane cannot run.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// A listening socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The configuration directories.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// The address book.
    #[error(transparent)]
    AddressBook(#[from] AddressBookError),
    /// An environment variable of the debounce.
    #[error(transparent)]
    Debounce(#[from] DebounceError),
    /// An environment variable of pushes.
    #[error(transparent)]
    Publish(#[from] PublishError),
    /// The environment variable of the longest lifetime of certificates.
    #[error(transparent)]
    CertificateTtl(#[from] CertificateTtlError),
    /// The environment variable of the grace period of registered workloads.
    #[error(transparent)]
    Grace(#[from] GraceError),
    /// An environment variable of fetching keys.
    #[error(transparent)]
    Jwks(#[from] JwksSettingsError),
    /// An environment variable of the outgoing HTTP proxy.
    #[error(transparent)]
    OutgoingProxy(#[from] OutgoingProxyError),
    /// The state directory.
    #[error("--state {}: {reason}", .path.display())]
    State {
        /// The directory.
        path: PathBuf,
        /// The error of the operating system.
        reason: io::Error,
    },
    /// Others can write to the state directory.
    #[error("--state {0}")]
    UntrustedState(#[from] UntrustedError),
    /// The trust domain.
    #[error("--trust-domain: {0}")]
    TrustDomain(#[from] SpiffeError),
    /// The certificate authorities.
    #[error(transparent)]
    Authorities(#[from] AuthoritiesError),
    /// The key that signs tokens.
    #[error(transparent)]
    Tokens(#[from] TokenError),
    /// The TLS port's certificate.
    #[error(transparent)]
    ServerCertificate(#[from] ServerCertificateError),
    /// A part of the control plane has ended. This is a defect, and a restart is better than to serve without it.
    #[error(transparent)]
    Task(#[from] TaskEnded),
    /// The thread of the translator cannot be started.
    #[error("no thread for the translator: {0}")]
    Thread(io::Error),
}

/// A control plane whose sockets are bound and whose configuration is read.
#[derive(Debug)]
pub struct ControlPlane {
    /// The addresses on which it listens.
    pub addresses: Addresses,
    parts: Parts,
}

/// The addresses on which a control plane listens, with the ports that were chosen where the flag has port 0.
#[derive(Debug, Clone, Copy)]
pub struct Addresses {
    /// Plaintext xDS.
    pub grpc: SocketAddr,
    /// xDS and certificates over TLS.
    pub secure_grpc: SocketAddr,
    /// Metrics and debug pages.
    pub http: SocketAddr,
    /// Admission webhooks, if there are any.
    pub webhooks: Option<SocketAddr>,
}

impl Addresses {
    /// Where these listen.
    fn of(
        grpc: &tokio::net::TcpListener,
        secure_grpc: &tokio::net::TcpListener,
        http: &tokio::net::TcpListener,
        webhooks: Option<&tokio::net::TcpListener>,
    ) -> Result<Self, ControlError> {
        Ok(Self {
            grpc: local("--grpc-address", grpc)?,
            secure_grpc: local("--secure-grpc-address", secure_grpc)?,
            http: local("--http-address", http)?,
            webhooks: webhooks.map(|listener| local("--webhook-address", listener)).transpose()?,
        })
    }
}

#[derive(Debug)]
struct Parts {
    grpc: tokio::net::TcpListener,
    secure_grpc: tokio::net::TcpListener,
    http: tokio::net::TcpListener,
    webhooks: Option<(tokio::net::TcpListener, Arc<Webhooks>)>,
    store: Store,
    configuration: Configuration,
    /// The control plane's own objects.
    stored: [Arc<StoredObjects>; 2],
    debounce: DebounceOptions,
    world: watch::Sender<Arc<crate::world::World>>,
    proxies: Arc<Proxies>,
    metrics: Arc<Metrics>,
    certificates: Arc<Certificates>,
    authorities: Arc<Authorities>,
    scopes: Arc<Scopes>,
    registrations: Arc<Registrations>,
    server_certificates: ServerCertificates,
    fetcher: Fetcher,
    federation: Federation,
    /// Who verifies tokens for debug pages; `None`: they need none.
    tokens: Option<Arc<dyn TokenAuthenticator>>,
    /// What is known of remote clusters.
    remote_clusters: Option<watch::Receiver<RemoteClusters>>,
    /// Who gets the roots of the server's certificate.
    roots: Option<watch::Sender<Arc<str>>>,
    /// Where the roots are published for the platform's workloads.
    namespace_roots: Option<watch::Sender<MeshRoots>>,
}

impl ControlPlane {
    /// Binds the sockets, opens the authority, and reads the configuration. Everything that can fail fails here, with the
    /// flag's name. Errors in the configuration are reported and are no failure.
    pub async fn start(options: &Options) -> Result<Self, ControlError> {
        Self::start_on(options, Platform::default()).await
    }

    /// Starts with further sources beside the configuration directories, each with everything that it has at the start.
    pub async fn start_with(options: &Options, further: Vec<Box<dyn LiveSource>>) -> Result<Self, ControlError> {
        Self::start_on(options, Platform { sources: further, ..Platform::default() }).await
    }

    /// Starts with what a platform provides.
    pub async fn start_on(options: &Options, platform: Platform) -> Result<Self, ControlError> {
        environment::report();
        let debounce = DebounceOptions::from_env(|name| std::env::var(name).ok())?;
        let publish = PublishOptions::from_env(|name| std::env::var(name).ok())?;
        let grace = registration::grace_from_env(|name| std::env::var(name).ok())?;
        let max_ttl = max_certificate_ttl(options.max_certificate_ttl_s, |name| std::env::var(name).ok())?;
        let fetching = options.jwks.map_or_else(|| JwksSettings::from_env(|name| std::env::var(name).ok()), Ok)?;
        let blocked = jwks::settings::blocked(|name| std::env::var(name).ok())?;
        let outgoing = Arc::new(OutgoingProxies::from_env(|name| std::env::var(name).ok())?);
        listen::check_plaintext(options.grpc_address, options.allow_plaintext_from_network)?;
        let grpc = listen::bind("--grpc-address", options.grpc_address).await?;
        let secure_grpc = listen::bind("--secure-grpc-address", options.secure_grpc_address).await?;
        let http = listen::bind("--http-address", options.http_address).await?;
        let webhooks = bind_webhooks(options).await?;
        let state = |reason| ControlError::State { path: options.state.clone(), reason };
        private_directory(&options.state)?;

        // Several control planes may start with the same empty directory: one creates the root and the key and assigns
        // addresses, the others find them.
        let store = platform.store.clone().unwrap_or_else(|| Store::from(&options.state));
        let lease = store.lease("start").map_err(state)?;
        let directories = Directories::watch(options.config.clone())?;
        // The WorkloadEntries of registered workloads, and fetched keys, are configuration like that of the user.
        let (registered, entries) =
            StoredObjects::open(&store, registration::FOLDER, registration::source()).map_err(state)?;
        let (keys, key_sets) = StoredObjects::open(&store, jwks::FOLDER, jwks::source()).map_err(state)?;
        let own: [Box<dyn LiveSource>; 3] = [Box::new(directories), Box::new(entries), Box::new(key_sets)];
        let sources = own.into_iter().chain(platform.sources).collect();
        let mut configuration = Configuration::open(sources, &store, mesh(options, fetching)?)?;
        let world = watch::Sender::new(Arc::new(configuration.first()));

        let trust_domain = world.borrow().snapshot.mesh.trust_domain.clone();
        let metrics = Arc::new(Metrics::default());
        let (plugged, signer) = (options.plugged_authority(), options.signer.clone());
        let now = SystemTime::now();
        let authorities = Authorities::open(store.clone(), plugged, signer, world.subscribe(), metrics.clone(), now)?;
        let tokens: Arc<dyn TokenAuthenticator> = match platform.tokens.clone() {
            Some(tokens) => tokens,
            None => Arc::new(TokenKey::open(&store)?),
        };
        let client = || {
            let client = jwks::Client::new(&[authorities.current().roots.to_string()]);
            client.through(outgoing.clone()).without(blocked.clone())
        };
        let fetcher = Fetcher::new(keys.clone(), client(), fetching.refresh, metrics.clone());
        let federation = Federation::new(&store, client());
        drop(lease);
        let server_certificates =
            ServerCertificates::new(authorities.subscribe(), &options.server_names, trust_domain.clone())?;
        let mut certificates =
            Certificates::new(authorities.clone(), tokens, trust_domain, metrics.clone()).lasting_at_most(max_ttl);
        if options.require_running_pod {
            certificates = certificates.of_running_pods(world.subscribe());
        }
        let certificates = Arc::new(certificates);
        let addresses = Addresses::of(&grpc, &secure_grpc, &http, webhooks.as_ref())?;
        let webhooks = webhooks.map(|listener| {
            let (injection, world) = (options.injection.clone(), world.subscribe());
            (listener, Arc::new(Webhooks { injection, world, metrics: metrics.clone() }))
        });
        let controller = crate::discovery::identifier();
        let registrations =
            Registrations::new(registered.clone(), world.subscribe(), controller, grace, metrics.clone());
        let proxies = Proxies::new(world.subscribe(), metrics.clone(), publish).map_err(ControlError::Thread)?;
        let parts = Parts {
            grpc,
            secure_grpc,
            http,
            webhooks,
            store: store.clone(),
            configuration,
            stored: [registered, keys],
            debounce,
            world,
            proxies,
            metrics,
            certificates,
            authorities,
            scopes: Scopes::open(&store),
            registrations,
            server_certificates,
            fetcher,
            federation,
            tokens: platform.tokens,
            remote_clusters: platform.remote_clusters,
            roots: platform.roots,
            namespace_roots: platform.namespace_roots,
        };
        Ok(Self { addresses, parts })
    }

    /// Serves until `shutdown` completes, then lets streams end.
    ///
    /// # Errors
    /// A part of the control plane has ended. Then what the last change assigned is stored, and streams end, too.
    pub async fn serve(self, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
        // Boxed: it holds the tasks until they are started.
        Box::pin(self.serve_with(Tasks::default(), shutdown)).await
    }

    /// Serves with further tasks, which must not end either.
    async fn serve_with(self, mut tasks: Tasks, shutdown: impl Future<Output = ()>) -> Result<(), ControlError> {
        let Parts { grpc, secure_grpc, http, store, configuration, stored, debounce, world, proxies, metrics, .. } =
            self.parts;
        let barrier = Arc::new(Barrier::default());
        let registrations = self.parts.registrations;
        let authorities = self.parts.authorities;
        let shown = (store, barrier.clone(), registrations.clone());
        let pages = Pages::new(world.subscribe(), proxies.clone(), metrics.clone(), shown);
        let pages = pages.with_remote_clusters(self.parts.remote_clusters);
        let pages = Arc::new(pages.with_authorities(authorities.clone()).with_tokens(self.parts.tokens));
        let certificates = self.parts.certificates.clone();
        let discovery = Discovery::new(proxies.clone(), metrics.clone(), certificates, registrations.clone());
        let discovery = discovery.with_authorities(authorities.clone());
        let domains = self.parts.federation.subscribe();
        let (roots, trusted) = watch::channel(authorities.current().roots.clone());
        // Unlike the other tasks, these end by themselves once `stop` is set.
        let (mut storing, mut draining) = (Tasks::default(), Tasks::default());
        let (stop, stopped) = watch::channel(false);
        let trust = spread_trust(authorities.clone(), domains, world.subscribe(), (proxies.clone(), roots));
        tasks.spawn("trust", trust);
        if let Some(published) = self.parts.namespace_roots {
            tasks.spawn("roots of namespaces", MeshRoots::keep(authorities.subscribe(), world.subscribe(), published));
        }
        tasks.spawn("federation", self.parts.federation.keep(world.subscribe(), trusted));
        tasks.spawn("registrations", registrations.keep());
        tasks.spawn("token keys", self.parts.fetcher.keep(world.subscribe(), authorities.subscribe()));
        if let Some(roots) = self.parts.roots {
            tasks.spawn("roots of the webhooks", publish_roots(authorities.subscribe(), roots));
        }
        tasks.spawn("authorities", authorities.keep());
        let discovery = Arc::new(discovery);
        let ads = || AdsServer::new(discovery.clone()).max_decoding_message_size(MAX_FURTHER_REQUEST_BYTES);
        let certificates = IstioCertificateServiceServer::from_arc(self.parts.certificates)
            .max_decoding_message_size(certificates::MAX_MESSAGE_BYTES);
        let scopes = self.parts.scopes;
        let scope = || ScopeServiceServer::new(ScopeServer(scopes.clone())).max_decoding_message_size(MAX_CALL_BYTES);
        let server = |services: Services| {
            // These services also serve ADS, for a second stream on a connection, which Envoy and gRPC do not open.
            let services = services.with(ads()).with(scope());
            grpc::Server::new(discovery.clone(), services, LIMITS, stopped.clone())
        };
        let plain = serve(listen::plain(grpc), server(Services::default()), stopped.clone());
        draining.spawn("plaintext gRPC", plain);
        if let Some((listener, webhooks)) = self.parts.webhooks {
            tasks.spawn("webhooks", webhooks::serve(listener, self.parts.server_certificates.config(), webhooks));
        }
        let tls = listen::tls(secure_grpc, self.parts.server_certificates.config());
        let secure = serve(tls, server(Services::default().with(certificates)), stopped.clone());
        draining.spawn("gRPC over TLS", secure);
        tasks.spawn("server certificate", self.parts.server_certificates.renew());
        tasks.spawn("lagging streams", {
            let proxies = proxies.clone();
            async move { proxies.catch_up().await }
        });
        tasks.spawn("scopes", scopes.clone().keep());
        tasks.spawn("pages", debug::serve(http, pages));
        for objects in stored {
            tasks.spawn("stored objects", objects.keep());
        }
        let sinks = Sinks { world, proxies: proxies.clone(), metrics, barrier };
        storing.spawn("configuration", configuration::keep(configuration, debounce, sinks, stopped));
        let at = self.addresses;
        tracing::info!(grpc = %at.grpc, secure_grpc = %at.secure_grpc, http = %at.http, "control plane ready");
        let manager = Manager::of_this_process();
        manager.ready();

        let ended = tokio::select! {
            () = shutdown => {
                manager.stopping();
                None
            }
            ended = tasks.ended() => Some(ended),
            ended = storing.ended() => Some(ended),
            ended = draining.ended() => Some(ended),
            reason = proxies.failed() => Some(TaskEnded::Panicked("translator", reason)),
        };
        drop(tasks);
        let _ = stop.send(true);
        // What the last change assigned is stored before the process ends, whatever the reason.
        let _ = tokio::time::timeout(DRAIN_TIME, storing.all_ended()).await;
        scopes.write(SystemTime::now());
        proxies.close();
        let _ = tokio::time::timeout(DRAIN_TIME, draining.all_ended()).await;
        ended.map_or(Ok(()), |ended| Err(ended.into()))
    }
}

async fn bind_webhooks(options: &Options) -> Result<Option<tokio::net::TcpListener>, ControlError> {
    match options.webhook_address {
        Some(address) => Ok(Some(listen::bind("--webhook-address", address).await?)),
        None => Ok(None),
    }
}

/// What the options say about the mesh.
fn mesh(options: &Options, fetching: JwksSettings) -> Result<MeshConfig, ControlError> {
    let mut mesh = MeshConfig {
        leave_out_refused: options.leave_out_refused,
        on_one_machine: options.on_one_machine,
        cluster: options.injection.cluster.as_str().into(),
        jwks_fetching: fetching.by,
        ..MeshConfig::default()
    };
    if let Some(trust_domain) = &options.trust_domain {
        evenkeel_base::spiffe::SpiffeId::new(trust_domain, "default", "default")?;
        mesh.trust_domain = trust_domain.as_str().into();
    }
    Ok(mesh)
}

/// Tells the proxies' agents which roots to trust, and records which agents do.
async fn spread_trust(
    authorities: Arc<Authorities>,
    mut domains: watch::Receiver<Arc<Vec<TrustDomain>>>,
    mut world: watch::Receiver<Arc<World>>,
    (proxies, roots): (Arc<Proxies>, watch::Sender<Arc<str>>),
) {
    let noting = Arc::downgrade(&authorities);
    proxies.on_trust(move |serial, version| {
        if let Some(authorities) = noting.upgrade() {
            authorities.trusts(serial, version, SystemTime::now());
        }
    });
    let mut current = authorities.subscribe();
    loop {
        let signs = authorities.signers().current().is_none();
        let trust = trust(&current.borrow_and_update(), &domains.borrow_and_update(), signs);
        proxies.set_trust(trust);
        roots.send_if_modified(|told| {
            let now = current.borrow().roots.clone();
            let is_new = *told != now;
            *told = now;
            is_new
        });
        // Nothing else in the configuration matters here.
        let other_signer = world.wait_for(|world| authorities.signers().current_in(world).is_none() != signs);
        let changed = tokio::select! {
            changed = current.changed() => changed.is_ok(),
            changed = domains.changed() => changed.is_ok(),
            changed = other_signer => changed.is_ok(),
        };
        if !changed {
            return;
        }
    }
}

/// Hands the roots of the server's certificate to the platform.
async fn publish_roots(mut authorities: watch::Receiver<Arc<Signing>>, roots: watch::Sender<Arc<str>>) {
    loop {
        let current = authorities.borrow_and_update().roots.clone();
        roots.send_if_modified(|before| {
            let is_new = *before != current;
            *before = current;
            is_new
        });
        if authorities.changed().await.is_err() {
            return;
        }
    }
}

/// Returns the roots as they are sent to agents. `signs`: whether the authority in use signs certificates. Otherwise no agent
/// replaces its certificate for being signed by another authority.
fn trust(signing: &Signing, domains: &[TrustDomain], signs: bool) -> Trust {
    let bundle = if signs { signing.bundle.to_string() } else { signing.trust() };
    let ca_certificates_pem = vec![bundle];
    let message = ProxyConfig { ca_certificates_pem, trust_domains: domains.to_vec() };
    Trust { resource: Arc::new(Resource::from_message("", &message)), version: signing.version.clone() }
}

/// Starts a control plane and serves until SIGTERM or SIGINT, or until its terminal is closed.
pub async fn run(options: Options) -> Result<(), ControlError> {
    run_on(options, Platform::default()).await
}

/// The same, with what a platform provides.
pub async fn run_on(options: Options, platform: Platform) -> Result<(), ControlError> {
    ControlPlane::start_on(&options, platform).await?.serve(signals()).await
}

/// Serves connections until `stop` completes, then the remaining ones until they end.
async fn serve<S: Source>(
    mut connections: mpsc::Receiver<listen::Connection>,
    server: grpc::Server<S>,
    mut stop: watch::Receiver<bool>,
) {
    let server = Arc::new(server);
    let mut open = JoinSet::new();
    loop {
        tokio::select! {
            connection = connections.recv() => {
                let Some(connection) = connection else { break };
                let server = server.clone();
                open.spawn(async move {
                    let client = connection.client();
                    server.serve(connection, client).await;
                });
            }
            Some(_) = open.join_next() => {}
            _ = stop.wait_for(|stop| *stop) => break,
        }
    }
    drop(connections);
    while open.join_next().await.is_some() {}
}

fn local(flag: &'static str, listener: &tokio::net::TcpListener) -> Result<SocketAddr, ListenError> {
    listener.local_addr().map_err(|reason| ListenError::Bind {
        flag,
        address: SocketAddr::from(([0, 0, 0, 0], 0)),
        reason,
        hint: "",
    })
}

/// Completes when the process is told to end. Signals are handled from this call on.
fn signals() -> impl Future<Output = ()> {
    let listening = Signals::listen();
    async move {
        match listening {
            Ok(mut signals) => signals.end().await,
            Err(error) => {
                // Without handlers the signals end the process at once.
                tracing::warn!(%error, "signals end the control plane at once");
                std::future::pending().await
            }
        }
        tracing::info!("shutting down");
    }
}

#[cfg(test)]
mod tests;
