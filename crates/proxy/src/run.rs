//! The whole program, wired in one place: read this first.
//!
//! ```text
//!  options → bootstrap → workers ─┬─ settle: build the configuration, hand it to the workers
//!                                 ├─ subscribe: xDS streams        put resources in
//!                                 ├─ dns: names of clusters        put addresses in
//!                                 ├─ admin                         shows it all
//!                                 └─ lifecycle: signals and /quitquitquit, drain, end
//! ```
//!
//! Workers have threads of their own; everything else runs on this one.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_stats::Registry;
use evenkeel_tls::SecretStore;
use evenkeel_xds::Schema;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};

use crate::access_log::LogThread;
use crate::admin::{self, Admin, Command};
use crate::bootstrap::{self, BootstrapError, Loaded};
use crate::inherit;
use crate::logging::Logging;
use crate::memory;
use crate::options::{Mode, Options, OptionsError, Settings};
use crate::overload::{self, Overload};
use crate::state::{Awaits, Parts, Phase, Shared, State};
use crate::subscribe::Subscriptions;
use crate::worker::{DrainScope, WorkerOptions, WorkerPool};

/// How long the access logs may take to reach their files at the end.
const LOG_FLUSH_LIMIT: Duration = Duration::from_secs(5);
/// Commands waiting for the lifecycle; an operator's few.
const MAX_COMMANDS: usize = 16;

/// Why the process does not start, or ends.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The command line makes no sense.
    #[error(transparent)]
    Options(#[from] OptionsError),
    /// The bootstrap is wrong.
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    /// The admin interface cannot listen.
    #[error("cannot listen on the admin address {address}: {error}")]
    Admin {
        /// `admin.address`.
        address: SocketAddr,
        /// The system's reason.
        error: io::Error,
    },
    /// Listeners of the bootstrap cannot listen.
    #[error("{}", .0.join("\n"))]
    Listeners(Vec<String>),
    /// A file cannot be written.
    #[error("cannot write {}: {error}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The system refuses something every process needs.
    #[error("{what}: {error}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// The system's reason.
        error: io::Error,
    },
}

fn system(what: &'static str) -> impl Fn(io::Error) -> RunError {
    move |error| RunError::System { what, error }
}

/// Runs until the process is told to end. `out` gets what a user is to read.
pub fn run(options: &Options, out: &mut dyn Write) -> Result<(), RunError> {
    let settings = options.resolve()?;
    let (loaded, builder) = prepare(&settings)?;
    if options.mode == Mode::Validate {
        let name =
            settings.bootstrap.path.as_ref().map_or("--config-yaml".to_owned(), |path| path.display().to_string());
        writeln!(out, "configuration '{name}' OK").map_err(system("writing to standard output"))?;
        return Ok(());
    }
    let logging = Logging::install(settings.log_level);
    block_on(serve(settings, loaded, builder, logging, None))
}

/// Runs inside another program until `stop` is sent or dropped, then drains. Signals stay the program's.
pub fn run_until(settings: Settings, stop: oneshot::Receiver<()>) -> Result<(), RunError> {
    let (loaded, builder) = prepare(&settings)?;
    block_on(serve(settings, loaded, builder, Logging::default(), Some(stop)))
}

/// Reads and compiles what the bootstrap says.
fn prepare(settings: &Settings) -> Result<(Loaded, Builder), RunError> {
    // Held over all that is checked, so that it loads once, and not longer: it is megabytes.
    let _schema = Schema::acquire();
    let loaded = bootstrap::load(&settings.bootstrap, &settings.node)?;
    let builder = builder_of(&loaded)?;
    Ok((loaded, builder))
}

fn block_on(serve: impl Future<Output = Result<(), RunError>>) -> Result<(), RunError> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        // Only DNS configuration and Unix sockets ever block, and briefly.
        .max_blocking_threads(2)
        .build()
        .map_err(system("starting the control thread's reactor"))?;
    tokio::task::LocalSet::new().block_on(&runtime, serve)
}

/// A builder with the static resources in it.
fn builder_of(loaded: &Loaded) -> Result<Builder, RunError> {
    let mut builder = Builder::new(Environment::process(), SecretStore::new());
    builder.set_default_bind(loaded.bootstrap.bind.clone());
    builder.set_own_locality(loaded.bootstrap.node.locality.as_ref());
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

async fn serve(
    settings: Settings,
    loaded: Loaded,
    builder: Builder,
    logging: Logging,
    stop: Option<oneshot::Receiver<()>>,
) -> Result<(), RunError> {
    let log = LogThread::start().map_err(system("starting the access log's thread"))?;
    let registry = Registry::new();
    let overload = Overload::new(&loaded.bootstrap.overload);
    let worker_options = WorkerOptions {
        concurrency: settings.concurrency,
        inherited: inherit::listening_sockets(),
        overload: Arc::clone(&overload),
        log: log.handle(),
        drain_time: settings.drain_time,
    };
    let pool = WorkerPool::start(worker_options, registry.clone()).map_err(system("starting worker threads"))?;
    let pool = Arc::new(pool);
    let limits = loaded.bootstrap.overload.clone();
    tokio::task::spawn_local(overload::monitor::watch(limits, overload, pool.clone(), registry.clone()));
    let awaits = Awaits { clusters: loaded.bootstrap.cds.is_some(), listeners: loaded.bootstrap.lds.is_some() };
    let state = State::new(Parts {
        builder,
        pool: pool.clone(),
        registry,
        subscriptions: Subscriptions::new(&loaded.bootstrap),
        awaits,
        bootstrap: loaded.message,
    });
    let shared = Shared::new(state);

    let (commands, mut received) = mpsc::channel(MAX_COMMANDS);
    if let Some(address) = loaded.bootstrap.admin {
        let admin = Admin { shared: shared.clone(), logging, log: log.handle(), commands, options: settings.clone() };
        start_admin(address, admin, &settings).await?;
    }
    await_first_answers(&shared);
    shared.settle();
    // Only what the bootstrap says is there so far, and a process that cannot do what its file says does not start.
    let unbound: Vec<String> = shared.state.borrow().bind_failures().map(|(_, reason)| reason.clone()).collect();
    if !unbound.is_empty() {
        return Err(RunError::Listeners(unbound));
    }
    let settling = shared.clone();
    tokio::task::spawn_local(async move { settling.keep_settled().await });
    tokio::task::spawn_local(memory::give_back_start_up());
    let balancing = pool.clone();
    tokio::task::spawn_local(async move { balancing.keep_balanced().await });

    let mut signals = match stop {
        Some(stop) => Ending::Told(stop),
        None => Ending::Signals(Signals::new().map_err(system("installing signal handlers"))?),
    };
    let drain = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::End => break true,
                Told::ReopenLogs => log.handle().reopen(),
            },
            Some(command) = received.recv() => match command {
                Command::Quit => break false,
                Command::Drain { graceful } => {
                    shared.state.borrow_mut().phase = Phase::Draining;
                    pool.drain(DrainScope::All);
                    if !graceful {
                        pool.stop_listening(DrainScope::All);
                    }
                }
            },
        }
    };
    if drain {
        finish_connections(&shared, &pool, &mut signals).await;
    }
    pool.stop();
    log.handle().flush(LOG_FLUSH_LIMIT);
    tracing::info!("ended");
    Ok(())
}

async fn start_admin(address: SocketAddr, admin: Admin, settings: &Settings) -> Result<(), RunError> {
    let listener = admin::bind(address).await.map_err(|error| RunError::Admin { address, error })?;
    let bound = listener.local_addr().map_err(|error| RunError::Admin { address, error })?;
    if let Some(path) = &settings.admin_address_path {
        std::fs::write(path, bound.to_string()).map_err(|error| RunError::Write { path: path.clone(), error })?;
    }
    tracing::info!(address = %bound, "admin interface");
    tokio::task::spawn_local(admin::serve(listener, Rc::new(admin)));
    Ok(())
}

/// A control plane that does not answer must not keep static listeners from being ready for ever.
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

/// Takes no new connections and lets the others finish, for the drain time at most or until told again.
async fn finish_connections(shared: &Shared, pool: &WorkerPool, signals: &mut Ending) {
    shared.state.borrow_mut().phase = Phase::Draining;
    let open = pool.active_connections();
    tracing::info!(connections = open, "draining; signal again to end at once");
    pool.drain(DrainScope::All);
    pool.stop_listening(DrainScope::All);
    tokio::select! {
        finished = pool.drained() => if !finished {
            tracing::warn!(connections = pool.active_connections(), "drain time is over; closing what is left");
        },
        () = signals.end() => tracing::warn!(connections = pool.active_connections(), "told again; closing what is left"),
    }
}

/// What ends the process.
enum Ending {
    Signals(Signals),
    Told(oneshot::Receiver<()>),
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    reopen: Signal,
}

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            reopen: signal(SignalKind::user_defined1())?,
        })
    }
}

/// What the process is told from outside.
enum Told {
    End,
    ReopenLogs,
}

impl Ending {
    /// The next thing the process is told.
    async fn next(&mut self) -> Told {
        match self {
            Self::Signals(signals) => {
                tokio::select! {
                    _ = signals.terminate.recv() => Told::End,
                    _ = signals.interrupt.recv() => Told::End,
                    _ = signals.reopen.recv() => Told::ReopenLogs,
                }
            }
            Self::Told(stop) if stop.is_terminated() => std::future::pending().await,
            Self::Told(stop) => {
                _ = stop.await;
                Told::End
            }
        }
    }

    /// Done when the process is told to end once more.
    async fn end(&mut self) {
        while !matches!(self.next().await, Told::End) {}
    }
}
