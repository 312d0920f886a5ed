//! The whole program, wired in one place: start reading here.
//!
//! ```text
//!  options → bootstrap → workers ─┬─ settle: builds the configuration, hands it to the workers
//!                                 ├─ subscribe: xDS streams        deliver resources
//!                                 ├─ dns: resolves cluster names   delivers addresses
//!                                 ├─ scope: requests the resources that workers lack
//!                                 ├─ stats_sinks: tells servers the statistics
//!                                 ├─ admin: pages that show all of this
//!                                 ├─ handover: takes over from a predecessor, hands over to a successor
//!                                 └─ lifecycle: signals, /quitquitquit, draining, end
//! ```
//!
//! Workers have threads of their own; everything else runs on this one.

mod admin_port;
mod drains;
mod error;
mod instructions;
mod lifecycle;
mod program;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_process::confinement::{self, Writes};
use evenkeel_runtime_config::bootstrap::{Bootstrap, Scope as BootstrapScope};
use evenkeel_runtime_config::tracing::OwnNode;
use evenkeel_runtime_config::{Builder, Environment, TracingDefaults};
use evenkeel_stats::Registry;
use evenkeel_tls::SecretStore;
use evenkeel_xds::Schema;
use tokio::sync::{mpsc, oneshot};

use self::admin_port::AdminPort;
pub use self::error::RunError;
use self::instructions::Instructions;
use self::lifecycle::{HotRestart, Lifecycle};
pub use self::program::{HotRestartState, Program};
use crate::access_log::{LogHandle, LogThread};
use crate::admin::{Admin, AdminLog};
use crate::bootstrap::{self, Loaded};
use crate::dns_cache::answer_lookups;
use crate::handover::{Inheritance, Succession};
use crate::inherit;
use crate::listener::socket::HandedSockets;
use crate::logging::Logging;
use crate::memory;
use crate::options::{Mode, Options, Settings};
use crate::overload::{self, Overload};
use crate::own_workload;
use crate::pool::{WorkerOptions, WorkerPool};
use crate::scope::usage::Scope;
use crate::settle::Settler;
use crate::state::{Awaits, Parts, Shared, State};
use crate::stats_config;
use crate::stats_sinks::Sinks;
use crate::subscribe::Subscriptions;
use crate::throttling;

/// How long flushing the access logs may take at the end.
const LOG_FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// Interval between two sweeps for metric series that are no longer updated.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(60);
/// Commands queued for the lifecycle; only operators send them, so there are few.
const MAX_COMMANDS: usize = 16;

fn system(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |error| RunError::System { what, error }
}

/// Runs until the process is told to end. `out` receives messages for the user.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), RunError> {
    let settings = options.resolve()?;
    let (mut loaded, builder) = prepare(&settings)?;
    if options.mode == Mode::Validate {
        let name =
            settings.bootstrap.path.as_ref().map_or("--config-yaml".to_owned(), |path| path.display().to_string());
        writeln!(out, "configuration '{name}' OK").map_err(system("writing to standard output"))?;
        return Ok(());
    }
    let logging = Logging::install(settings.log_level);
    // The configuration names the paths that it may write to.
    if (!options.no_confinement).then(|| confinement::confine(Writes::Anywhere)).flatten().is_none() {
        tracing::warn!("not confined: the process may run programs and make any system call");
    }
    bootstrap::tell_confinement(&mut loaded.bootstrap.node, confinement::state());
    block_on(serve(settings, loaded, builder, logging, None))
}

/// Runs inside another program until `stop` is sent or dropped, then drains. Signals are left to that program.
pub fn run_until(settings: Settings, stop: oneshot::Receiver<()>) -> Result<(), RunError> {
    run_in(settings, Program::until(stop))
}

/// As [`run_until`], for a program that takes part in hot restarts together with its proxy.
pub fn run_in(settings: Settings, program: Program) -> Result<(), RunError> {
    let (mut loaded, builder) = prepare(&settings)?;
    let state = format!("{}{}", evenkeel_xds::evenkeel::IN_AGENT, confinement::state());
    bootstrap::tell_confinement(&mut loaded.bootstrap.node, state);
    block_on(serve(settings, loaded, builder, Logging::of_program(), Some(program)))
}

/// Loads the bootstrap and builds its static resources.
fn prepare(settings: &Settings) -> Result<(Loaded, Builder), RunError> {
    // Held during all checks so that the schema is loaded once, and no longer, since it takes megabytes.
    let _schema = Schema::acquire();
    let environment = Environment { custom_filters: settings.custom_filters.clone(), ..Environment::process() };
    let loaded = bootstrap::load_in(&settings.bootstrap, &settings.node, &environment)?;
    let builder = builder_of(&loaded, environment)?;
    Ok((loaded, builder))
}

fn block_on(serve: impl Future<Output = Result<(), RunError>>) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Only reading DNS configuration and Unix socket calls block, and only briefly.
        .max_blocking_threads(2)
        .build()
        .map_err(system("starting the control thread's reactor"))?;
    tokio::task::LocalSet::new().block_on(&runtime, serve)
}

/// A builder that contains the static resources.
fn builder_of(loaded: &Loaded, environment: Environment) -> Result<Builder, RunError> {
    let mut builder = Builder::new(environment, SecretStore::new());
    builder.set_default_bind(loaded.bootstrap.bind.clone());
    builder.set_default_resolver(loaded.bootstrap.resolver.clone());
    builder.set_runtime(Arc::clone(&loaded.bootstrap.runtime));
    builder.set_own_locality(loaded.bootstrap.node.locality.as_ref());
    builder.set_local_cluster(loaded.bootstrap.local_cluster.clone());
    builder.set_tracing(tracing_defaults(&loaded.bootstrap));
    if let BootstrapScope::Learned { listeners, .. } = &loaded.bootstrap.scope {
        builder.ask_by_name(listeners.iter().cloned());
    }
    for (index, cluster) in loaded.bootstrap.clusters.iter().enumerate() {
        let result = builder.set_static_cluster(cluster);
        result.map_err(|rejection| loaded.resource_error("clusters", index, &rejection.problems))?;
    }
    for (index, listener) in loaded.bootstrap.listeners.iter().enumerate() {
        let result = builder.set_static_listener(listener);
        result.map_err(|rejection| loaded.resource_error("listeners", index, &rejection.problems))?;
    }
    Ok(builder)
}

/// Returns the bootstrap's defaults for connection managers that trace.
fn tracing_defaults(bootstrap: &Bootstrap) -> TracingDefaults {
    let node = &bootstrap.node;
    let zone = node.locality.as_ref().map(|locality| locality.zone.clone()).unwrap_or_default();
    let (id, cluster) = (node.id.clone(), node.cluster.clone());
    let workload = Arc::new(own_workload::peer(node));
    let node = OwnNode { id, cluster, zone, address: own_address(), workload };
    TracingDefaults { provider: bootstrap.tracing.clone(), node: Arc::new(node) }
}

/// An IPv4 address of this machine that others can reach, or else the loopback address, as Envoy's spans have it.
fn own_address() -> Option<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().ok()?.filter_map(|interface| interface.address);
    let mut addresses = addresses.filter_map(|address| address.as_sockaddr_in().map(|address| address.ip()));
    Some(addresses.find(|address| !address.is_loopback()).unwrap_or(Ipv4Addr::LOCALHOST).into())
}

async fn serve(
    settings: Settings,
    loaded: Loaded,
    builder: Builder,
    logging: Logging,
    program: Option<Program>,
) -> Result<(), RunError> {
    let (stop, begun, mut hot_restart) = match program {
        Some(Program { stop, hot_restart, succession, sockets }) => {
            (Some(stop), succession, HotRestart::inside(hot_restart, sockets))
        }
        None => (None, None, HotRestart::alone()),
    };
    let succession = match (begun, &settings.handover) {
        (None, Some(path)) => Succession::begin(path)?,
        (begun, _) => begun,
    };
    let (successor, inheritance) = match succession {
        Some(Succession { successor, inheritance }) => (Some(successor), inheritance),
        None => (None, Inheritance::default()),
    };
    let Inheritance { listeners: handed, admin: handed_admin, epoch, program: _ } = inheritance;
    hot_restart.epoch = epoch;
    let log = LogThread::start(settings.log_flush).map_err(system("starting the access log's thread"))?;
    let registry = Registry::new();
    stats_config::apply(&registry, &loaded.bootstrap);
    let pool = start_workers(&settings, &loaded, handed, log.handle(), &registry)?;
    let admin_address = loaded.bootstrap.admin;
    let admin_logs = loaded.bootstrap.admin_logs.clone();
    let (sinks, node) = (loaded.bootstrap.stats_sinks.clone(), loaded.bootstrap.node.clone());
    let settler = Settler::new(Subscriptions::new(&loaded.bootstrap));
    let shared = Shared::new(state_of(loaded, builder, &pool, &registry), Rc::new(settler));

    let (commands, received) = mpsc::channel(MAX_COMMANDS);
    let admin = match admin_address {
        None => None,
        Some(address) => {
            let own = Arc::clone(pool.shared_clusters().own());
            let log = log.handle();
            let access = AdminLog::new(admin_logs, log.clone());
            let options = settings.clone();
            let throttling = throttling::watched();
            let admin = Admin { shared: shared.clone(), logging, log, access, commands, options, own, throttling };
            Some(AdminPort::bind(address, handed_admin, admin).await?)
        }
    };
    // With a predecessor, that process answers admin requests until this one is ready to replace it.
    if let (Some(admin), None) = (&admin, &successor) {
        admin.open(&settings)?;
    }
    await_first_answers(&shared);
    shared.settle();
    // Only bootstrap listeners exist so far, and a process that cannot do what its bootstrap says must not start.
    let unbound: Vec<String> = shared.state.borrow().bind_failures().map(|(_, reason)| reason.clone()).collect();
    if !unbound.is_empty() {
        return Err(RunError::Listeners(unbound));
    }
    spawn_keepers(&shared, &pool);
    let sinks = Sinks::start(&sinks, &node, &shared, log.handle());

    let instructions = Instructions::new(stop).map_err(system("installing signal handlers"))?;
    let mut lifecycle = Lifecycle::new(shared, pool, registry, settings, log.handle(), admin, hot_restart);
    lifecycle.run(successor, instructions, received).await?;
    if let Some(sinks) = sinks {
        sinks.finish().await;
    }
    log.handle().flush(LOG_FLUSH_LIMIT);
    tracing::info!("ended");
    Ok(())
}

/// Starts workers without listeners, and the monitor of their memory and connections.
fn start_workers(
    settings: &Settings,
    loaded: &Loaded,
    handed: Vec<HandedSockets>,
    log: LogHandle,
    registry: &Arc<Registry>,
) -> Result<Arc<WorkerPool>, RunError> {
    let overload = Overload::new(&loaded.bootstrap.overload);
    let options = WorkerOptions {
        concurrency: settings.concurrency,
        inherited: inherit::listening_sockets(),
        overload: Arc::clone(&overload),
        handed,
        log,
        node: Arc::new(loaded.bootstrap.node.clone()),
        drain_time: settings.drain_time,
        listener_drain_time: settings.listener_drain_time,
        recent: settings.recent.clone(),
    };
    let pool = WorkerPool::start(options, registry.clone()).map_err(system("starting worker threads"))?;
    let pool = Arc::new(pool);
    let limits = loaded.bootstrap.overload.clone();
    tokio::task::spawn_local(overload::monitor::watch(limits, overload, pool.clone(), registry.clone()));
    Ok(pool)
}

/// The initial state, from the bootstrap.
fn state_of(loaded: Loaded, builder: Builder, pool: &Arc<WorkerPool>, registry: &Arc<Registry>) -> State {
    let bootstrap = &loaded.bootstrap;
    // With an on-demand scope, only named resources are awaited, each by name.
    let all = !bootstrap.scope.is_learned();
    State::new(Parts {
        builder,
        pool: pool.clone(),
        registry: registry.clone(),
        awaits: Awaits { clusters: all && bootstrap.cds.is_some(), listeners: all && bootstrap.lds.is_some() },
        scope: Scope::new(&bootstrap.scope),
        bootstrap: loaded.message,
    })
}

/// Starts the background tasks that run for as long as the process lives.
fn spawn_keepers(shared: &Shared, pool: &Arc<WorkerPool>) {
    let settling = shared.clone();
    tokio::task::spawn_local(async move { settling.keep_settled().await });
    if let Some(demands) = pool.take_demands() {
        let (asking, sweeping) = (shared.clone(), shared.clone());
        tokio::task::spawn_local(async move { asking.take_demands(demands).await });
        tokio::task::spawn_local(async move { sweeping.keep_scope().await });
    }
    if let Some(lookups) = pool.take_lookups() {
        let registry = shared.state.borrow().registry.clone();
        tokio::task::spawn_local(answer_lookups(lookups, registry));
    }
    tokio::task::spawn_local(memory::give_back_after_changes(shared.settled.clone()));
    let certificates = shared.clone();
    tokio::task::spawn_local(async move { certificates.follow_certificate_files().await });
    let saying = shared.clone();
    tokio::task::spawn_local(async move { saying.say_what_is_awaited().await });
    let binding = shared.clone();
    tokio::task::spawn_local(async move { binding.retry_binds().await });
    let balancing = pool.clone();
    tokio::task::spawn_local(async move { balancing.keep_balanced().await });
    let registry = shared.state.borrow().registry.clone();
    tokio::task::spawn_local(async move {
        let mut looks = tokio::time::interval(EXPIRY_INTERVAL);
        loop {
            registry.expire(looks.tick().await.into_std());
        }
    });
}

/// Stops waiting for CDS and LDS after `initial_fetch_timeout`, so that a control plane that does not answer cannot
/// keep static listeners from becoming ready.
fn await_first_answers(shared: &Shared) {
    let timeouts = {
        let state = shared.state.borrow();
        let dynamic = state.bootstrap.dynamic_resources.clone().unwrap_or_default();
        let of = |source: Option<_>| bootstrap::initial_fetch_timeout(source);
        [(true, of(dynamic.cds_config.as_ref())), (false, of(dynamic.lds_config.as_ref()))]
    };
    for (clusters, timeout) in timeouts {
        let Some(timeout) = timeout else { continue };
        let shared = shared.clone();
        tokio::task::spawn_local(async move {
            tokio::time::sleep(timeout).await;
            let mut state = shared.state.borrow_mut();
            let awaited = if clusters { &mut state.awaits.clusters } else { &mut state.awaits.listeners };
            if std::mem::take(awaited) {
                let what = if clusters { "clusters" } else { "listeners" };
                tracing::warn!(what, "the control plane sent none within initial_fetch_timeout; going on without");
                shared.dirty.notify_one();
            }
        });
    }
}
