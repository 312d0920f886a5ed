//! The whole program, wired in one place: read this first.
//!
//! ```text
//!  options → bootstrap → workers ─┬─ settle: build the configuration, hand it to the workers
//!                                 ├─ subscribe: xDS streams        put resources in
//!                                 ├─ dns: names of clusters        put addresses in
//!                                 ├─ scope: what workers need and do not have is asked for
//!                                 ├─ admin                         shows it all
//!                                 ├─ handover: takes over from the process before, gives to the next
//!                                 └─ lifecycle: signals and /quitquitquit, drain, end
//! ```
//!
//! Workers have threads of their own; everything else runs on this one.

use std::cell::Cell;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use evenkeel_runtime_config::bootstrap::Scope as BootstrapScope;
use evenkeel_runtime_config::{Builder, Environment};
use evenkeel_stats::Registry;
use evenkeel_tls::SecretStore;
use evenkeel_xds::Schema;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

use crate::access_log::LogThread;
use crate::admin::{self, Admin, Command, DrainListeners};
use crate::bootstrap::{self, BootstrapError, Loaded};
use crate::handover::{HandoverError, Inheritance, Parcel, Predecessor, Request, Successor};
use crate::inherit;
use crate::logging::Logging;
use crate::memory;
use crate::options::{Mode, Options, OptionsError, Settings};
use crate::overload::{self, Overload};
use crate::scope::Scope;
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
    /// Taking over from the running process is not possible.
    #[error(transparent)]
    Handover(#[from] HandoverError),
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

async fn serve(
    settings: Settings,
    loaded: Loaded,
    builder: Builder,
    logging: Logging,
    stop: Option<oneshot::Receiver<()>>,
) -> Result<(), RunError> {
    let (successor, inheritance) = match &settings.handover {
        Some(path) => Successor::begin(path)?.map_or_else(Default::default, |(new, given)| (Some(new), given)),
        None => Default::default(),
    };
    let Inheritance { listeners: handed, admin: handed_admin, epoch } = inheritance;
    let log = LogThread::start().map_err(system("starting the access log's thread"))?;
    let registry = Registry::new();
    let overload = Overload::new(&loaded.bootstrap.overload);
    let worker_options = WorkerOptions {
        concurrency: settings.concurrency,
        inherited: inherit::listening_sockets(),
        overload: Arc::clone(&overload),
        handed,
        log: log.handle(),
        drain_time: settings.drain_time,
    };
    let pool = WorkerPool::start(worker_options, registry.clone()).map_err(system("starting worker threads"))?;
    let pool = Arc::new(pool);
    let limits = loaded.bootstrap.overload.clone();
    tokio::task::spawn_local(overload::monitor::watch(limits, overload, pool.clone(), registry.clone()));
    // What is asked for by name is waited for by name.
    let all = !loaded.bootstrap.scope.is_learned();
    let awaits =
        Awaits { clusters: all && loaded.bootstrap.cds.is_some(), listeners: all && loaded.bootstrap.lds.is_some() };
    let state = State::new(Parts {
        builder,
        pool: pool.clone(),
        registry: registry.clone(),
        subscriptions: Subscriptions::new(&loaded.bootstrap),
        awaits,
        scope: Scope::new(&loaded.bootstrap.scope),
        bootstrap: loaded.message,
    });
    let shared = Shared::new(state);

    let (commands, mut received) = mpsc::channel(MAX_COMMANDS);
    let admin = match loaded.bootstrap.admin {
        None => None,
        Some(address) => {
            let admin =
                Admin { shared: shared.clone(), logging, log: log.handle(), commands, options: settings.clone() };
            Some(AdminPort::bind(address, handed_admin, admin).await?)
        }
    };
    // The process before this one answers until this one is ready in its place.
    if let (Some(admin), None) = (&admin, &successor) {
        admin.open(&settings)?;
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
    if let Some(demands) = pool.take_demands() {
        let (asking, sweeping) = (shared.clone(), shared.clone());
        tokio::task::spawn_local(async move { asking.take_demands(demands).await });
        tokio::task::spawn_local(async move { sweeping.keep_scope().await });
    }
    tokio::task::spawn_local(memory::give_back_start_up());
    let binding = shared.clone();
    tokio::task::spawn_local(async move { binding.retry_binds().await });
    let balancing = pool.clone();
    tokio::task::spawn_local(async move { balancing.keep_balanced().await });

    let mut signals = match stop {
        Some(stop) => Ending::Told(stop),
        None => Ending::Signals(Signals::new().map_err(system("installing signal handlers"))?),
    };
    let (requests, mut requested) = mpsc::channel(1);
    let predecessor = || Predecessor {
        pool: pool.clone(),
        registry: registry.clone(),
        admin: admin.as_ref().and_then(AdminPort::copy),
        epoch,
        requests: requests.clone(),
    };
    let mut heir = match (&settings.handover, &successor) {
        (Some(path), None) => Some(predecessor().wait(path)?),
        _ => None,
    };
    let (mut succeeding, mut _taking) = (successor, None);
    let mut drains = Drains::new(shared.clone(), pool.clone(), settings.drain_time);
    let drain = loop {
        tokio::select! {
            told = signals.next() => match told {
                Told::End => break true,
                Told::ReopenLogs => log.handle().reopen(),
            },
            Some(command) = received.recv() => match command {
                Command::Quit => break false,
                Command::Drain(drain) => drains.begin(drain),
                Command::Health { failed } => drains.set_health(failed),
            },
            () = live(&shared), if succeeding.is_some() => {
                let successor = succeeding.take();
                let taking = |new: Successor| new.take_over(pool.clone(), registry.clone(), settings.parent_shutdown_time);
                _taking = successor.and_then(taking);
                tracing::info!(epoch, "took over from the process before");
                if let Some(admin) = &admin {
                    admin.open(&settings)?;
                }
                if let Some(path) = &settings.handover {
                    heir = Some(predecessor().wait(path)?);
                }
            }
            Some((request, done)) = requested.recv() => {
                match request {
                    Request::GiveAway(to) => drains.give_away(Some(to), admin.as_ref()),
                    Request::GoOn => drains.give_away(None, admin.as_ref()),
                    Request::End => break false,
                }
                let _ = done.send(());
            }
        }
    };
    drop(heir);
    if drain {
        finish_connections(&shared, &pool, &mut signals).await;
    }
    pool.stop();
    log.handle().flush(LOG_FLUSH_LIMIT);
    tracing::info!("ended");
    Ok(())
}

/// The admin interface's socket. It is open while this process is the one that answers.
struct AdminPort {
    /// As configured.
    address: SocketAddr,
    socket: std::net::TcpListener,
    admin: Rc<Admin>,
    serving: Cell<Option<AbortHandle>>,
}

impl AdminPort {
    /// The socket of the process before this one, when its address is the same, or a new one.
    async fn bind(address: SocketAddr, handed: Option<(SocketAddr, OwnedFd)>, admin: Admin) -> Result<Self, RunError> {
        let failed = |error| RunError::Admin { address, error };
        let socket = match handed {
            Some((theirs, socket)) if theirs == address => std::net::TcpListener::from(socket),
            _ => admin::bind(address).await.and_then(tokio::net::TcpListener::into_std).map_err(failed)?,
        };
        socket.set_nonblocking(true).map_err(failed)?;
        Ok(Self { address, socket, admin: Rc::new(admin), serving: Cell::new(None) })
    }

    /// Answers from now on.
    fn open(&self, settings: &Settings) -> Result<(), RunError> {
        let failed = |error| RunError::Admin { address: self.address, error };
        let bound = self.socket.local_addr().map_err(failed)?;
        self.serve().map_err(failed)?;
        if let Some(path) = &settings.admin_address_path {
            std::fs::write(path, bound.to_string()).map_err(|error| RunError::Write { path: path.clone(), error })?;
        }
        tracing::info!(address = %bound, "admin interface");
        Ok(())
    }

    fn serve(&self) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(self.socket.try_clone()?)?;
        let task = tokio::task::spawn_local(admin::serve(listener, self.admin.clone()));
        self.serving.set(Some(task.abort_handle()));
        Ok(())
    }

    /// Accepts no more; requests under way are answered.
    fn close(&self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
        }
    }

    fn copy(&self) -> Option<(SocketAddr, OwnedFd)> {
        Some((self.address, self.socket.try_clone().ok()?.into()))
    }
}

/// Ready when everything that was waited for is there.
async fn live(shared: &Shared) {
    loop {
        let settled = shared.settled.notified();
        if shared.state.borrow().phase == Phase::Live {
            return;
        }
        settled.await;
    }
}

/// What drains while the process lives, by whose order.
struct Drains {
    shared: Shared,
    pool: Arc<WorkerPool>,
    /// How long a graceful drain goes on accepting.
    after: Duration,
    /// `/drain_listeners`.
    listeners: DrainScope,
    /// `/healthcheck/fail`.
    health_failed: bool,
    given_away: bool,
}

impl Drains {
    fn new(shared: Shared, pool: Arc<WorkerPool>, after: Duration) -> Self {
        Self { shared, pool, after, listeners: DrainScope::None, health_failed: false, given_away: false }
    }

    fn begin(&mut self, DrainListeners { scope, graceful, skip_exit }: DrainListeners) {
        self.listeners = self.listeners.max(scope);
        self.settle();
        if !graceful {
            self.pool.stop_listening(scope);
        } else if !skip_exit {
            let (pool, after) = (self.pool.clone(), self.after);
            tokio::task::spawn_local(async move {
                tokio::time::sleep(after).await;
                pool.stop_listening(scope);
            });
        }
    }

    /// As Envoy: while the health check fails, clients are asked to go.
    fn set_health(&mut self, failed: bool) {
        self.health_failed = failed;
        self.settle();
    }

    fn give_away(&mut self, to: Option<mpsc::Sender<Parcel>>, admin: Option<&AdminPort>) {
        let given_away = to.is_some();
        if self.given_away == given_away {
            return;
        }
        self.given_away = given_away;
        if let Err(error) = self.pool.give_away(to) {
            tracing::error!(%error, "handover: cannot listen again");
        }
        match admin {
            Some(admin) if given_away => admin.close(),
            Some(admin) => _ = admin.serve().inspect_err(|error| tracing::error!(%error, "admin interface")),
            None => {}
        }
        self.settle();
    }

    fn settle(&self) {
        self.pool.drain(if self.health_failed { DrainScope::All } else { self.listeners });
        let drains = self.health_failed || self.given_away || self.listeners == DrainScope::All;
        let phase = &mut self.shared.state.borrow_mut().phase;
        match (drains, *phase) {
            (true, _) => *phase = Phase::Draining,
            (false, Phase::Draining) => *phase = Phase::Live,
            (false, _) => {}
        }
    }
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
