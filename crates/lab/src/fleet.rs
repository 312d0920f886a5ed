//! The simulated proxies. Each is a task with its own connection and ADS stream. All run on one thread, so shared state
//! needs no lock, and the other cores are left to the server.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

use tokio::sync::Notify;
use tokio::task::JoinHandle;

use evenkeel_xds::client::Backoff;

use crate::changes::{Change, ChangeId, ChangeTracker};
use crate::proxy::{Proxy, Request, Role, Scope};
use crate::resources::ResourceTable;
use crate::wire::{AdsStream, Protocol, StreamError};

/// The composition of the fleet.
#[derive(Debug, Clone, Copy)]
pub struct FleetSpec {
    /// The number of sidecars.
    pub sidecars: usize,
    /// Whether there is also a gateway.
    pub gateway: bool,
    /// What they subscribe to.
    pub scope: Scope,
    /// The xDS protocol variant.
    pub protocol: Protocol,
    /// The number of services that each workload uses, for learned scope.
    pub used: usize,
    /// The number of sidecars that stop reading once they are configured. They are the first ones.
    pub stuck: usize,
}

/// The running proxies. Dropping it ends them.
#[derive(Debug)]
pub struct Fleet {
    shared: Rc<Shared>,
    tasks: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    address: SocketAddr,
    protocol: Protocol,
    /// When the first proxy was started.
    start: Cell<Instant>,
    /// The number of services that a proxy must hold to count as configured.
    services: Cell<usize>,
    table: RefCell<ResourceTable>,
    tracker: RefCell<ChangeTracker>,
    members: Vec<Member>,
    unconfigured: Cell<usize>,
    stuck: usize,
    connected: Cell<usize>,
    last_failure: RefCell<Option<String>>,
    /// Notified whenever something happens that a caller may wait for.
    progress: Notify,
}

#[derive(Debug)]
struct Member {
    proxy: RefCell<Proxy>,
    /// Bytes received on its sockets.
    received: Rc<Cell<u64>>,
    /// Bytes of responses among them, without HTTP/2 framing.
    messages: Cell<u64>,
    /// Requests for its stream that do not answer a response.
    outbox: RefCell<Vec<Request>>,
    mail: Notify,
}

/// The number of bytes that one proxy received.
#[derive(Debug, Clone, Copy)]
pub struct Received {
    /// On its sockets, with HTTP/2 framing.
    pub bytes: u64,
    /// In responses, without HTTP/2 framing.
    pub messages: u64,
}

/// Totals over the fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Bytes received on all sockets.
    pub bytes: u64,
    /// Bytes of responses to sidecars, without HTTP/2 framing.
    pub sidecar_messages: u64,
    /// Bytes of responses to gateways.
    pub gateway_messages: u64,
    /// Resources received.
    pub resources: u64,
    /// Resources among them that the proxy already held in the same version.
    pub resources_again: u64,
    /// Resources removed.
    pub removed: u64,
    /// Responses received.
    pub responses: u64,
    /// Connections that the server refused or closed.
    pub failures: u64,
}

impl Totals {
    /// The difference from `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            bytes: self.bytes - earlier.bytes,
            sidecar_messages: self.sidecar_messages - earlier.sidecar_messages,
            gateway_messages: self.gateway_messages - earlier.gateway_messages,
            resources: self.resources - earlier.resources,
            resources_again: self.resources_again - earlier.resources_again,
            removed: self.removed - earlier.removed,
            responses: self.responses - earlier.responses,
            failures: self.failures - earlier.failures,
        }
    }
}

impl Fleet {
    /// Creates the proxies, without connecting them to the server at `address`.
    pub fn new(address: SocketAddr, spec: FleetSpec, services: usize, host: impl Fn(usize) -> String) -> Self {
        let mut table = ResourceTable::default();
        let roles = std::iter::repeat_n(Role::Sidecar, spec.sidecars).chain(spec.gateway.then_some(Role::Gateway));
        let members: Vec<Member> = roles
            .enumerate()
            .map(|(index, role)| {
                // Successive proxies use different services, so that every service is used.
                let used = (0..spec.used.min(services)).map(|n| host((index * spec.used + n) % services)).collect();
                let proxy = Proxy::new(index, role, spec.scope, spec.protocol, used, &mut table);
                Member {
                    proxy: RefCell::new(proxy),
                    received: Rc::default(),
                    messages: Cell::default(),
                    outbox: RefCell::default(),
                    mail: Notify::new(),
                }
            })
            .collect();
        let shared = Shared {
            address,
            protocol: spec.protocol,
            start: Cell::new(Instant::now()),
            services: Cell::new(services),
            table: RefCell::new(table),
            tracker: RefCell::default(),
            unconfigured: Cell::new(members.len()),
            stuck: spec.stuck.min(spec.sidecars),
            members,
            connected: Cell::new(0),
            last_failure: RefCell::default(),
            progress: Notify::new(),
        };
        Self { shared: Rc::new(shared), tasks: Vec::new() }
    }

    /// Connects all proxies at once. It must be called inside a `LocalSet`.
    pub fn connect(&mut self) {
        self.shared.start.set(Instant::now());
        for index in 0..self.shared.members.len() {
            self.tasks.push(tokio::task::spawn_local(run_proxy(self.shared.clone(), index)));
        }
    }

    /// The number of proxies.
    pub fn len(&self) -> usize {
        self.shared.members.len()
    }

    /// The number of proxies that do not yet hold their whole configuration.
    pub fn unconfigured(&self) -> usize {
        self.shared.unconfigured.get()
    }

    /// The number of proxies with an open stream.
    pub fn connected(&self) -> usize {
        self.shared.connected.get()
    }

    /// The last connection error.
    pub fn last_failure(&self) -> Option<String> {
        self.shared.last_failure.borrow().clone()
    }

    /// When the proxies began to connect.
    pub fn start(&self) -> Instant {
        self.shared.start.get()
    }

    /// Calls `look` for each proxy, with its index and the bytes that it received.
    pub fn for_each(&self, mut look: impl FnMut(usize, &Proxy, Received)) {
        for (index, member) in self.shared.members.iter().enumerate() {
            let received = Received { bytes: member.received.get(), messages: member.messages.get() };
            look(index, &member.proxy.borrow(), received);
        }
    }

    /// Totals over all proxies.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        self.for_each(|_, proxy, received| {
            totals.bytes += received.bytes;
            match proxy.role {
                Role::Sidecar => totals.sidecar_messages += received.messages,
                Role::Gateway => totals.gateway_messages += received.messages,
            }
            totals.resources += proxy.counts.resources;
            totals.resources_again += proxy.counts.resources_again;
            totals.removed += proxy.counts.removed;
            totals.responses += proxy.counts.responses;
            totals.failures += proxy.counts.failures;
        });
        totals
    }

    /// The tracker of changes.
    pub fn tracker(&self) -> std::cell::Ref<'_, ChangeTracker> {
        self.shared.tracker.borrow()
    }

    /// Makes a change by calling `make`, which returns the time of the change, and tracks it at all concerned proxies.
    pub fn change<E>(&self, change: Change, make: impl FnOnce() -> Result<Instant, E>) -> Result<ChangeId, E> {
        let mut concerned = Vec::new();
        let stuck = self.shared.stuck;
        self.for_each(|index, proxy, _| {
            concerned.extend((index >= stuck && proxy.is_concerned_by(&change.host)).then_some(index));
        });
        let id = self.shared.tracker.borrow_mut().begin(change, concerned);
        let at = make()?;
        self.shared.tracker.borrow_mut().made(id, at);
        Ok(id)
    }

    /// Simulates the first call of a proxy's workload to a host.
    pub fn first_use(&self, index: usize, host: &str) {
        let Some(member) = self.shared.members.get(index) else { return };
        let requests = member.proxy.borrow_mut().first_use(host, &mut self.shared.table.borrow_mut());
        member.outbox.borrow_mut().extend(requests);
        member.mail.notify_one();
    }

    /// Whether a proxy holds the resources that a call to the host needs.
    pub fn can_call(&self, index: usize, host: &str) -> bool {
        let member = self.shared.members.get(index);
        member.is_some_and(|member| member.proxy.borrow().can_call(host, &mut self.shared.table.borrow_mut()))
    }

    /// Waits until something has happened at one of the proxies.
    pub async fn progress(&self) {
        self.shared.progress.notified().await;
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.tasks.iter().for_each(JoinHandle::abort);
    }
}

/// Runs one proxy: connects, and reconnects whenever the stream ends.
async fn run_proxy(shared: Rc<Shared>, index: usize) {
    let mut backoff = Backoff::new(Backoff::BASE, Backoff::MAX, index as u64 + 1);
    let Some(member) = shared.members.get(index) else { return };
    loop {
        let responses = member.proxy.borrow().counts.responses;
        let mut is_connected = Connected { count: &shared.connected, counted: false };
        let Err(error) = stream(&shared, index, member, &mut is_connected).await;
        drop(is_connected);
        member.proxy.borrow_mut().counts.failures += 1;
        *shared.last_failure.borrow_mut() = Some(error.to_string());
        shared.progress.notify_waiters();
        if member.proxy.borrow().counts.responses > responses {
            backoff.reset();
        }
        tokio::time::sleep(backoff.next_wait()).await;
    }
}

/// Counts an open stream for as long as it is open.
struct Connected<'a> {
    count: &'a Cell<usize>,
    counted: bool,
}

impl Connected<'_> {
    fn now(&mut self) {
        self.counted = true;
        self.count.set(self.count.get() + 1);
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.count.set(self.count.get() - 1);
        }
    }
}

async fn stream(
    shared: &Shared,
    index: usize,
    member: &Member,
    connected: &mut Connected<'_>,
) -> Result<std::convert::Infallible, StreamError> {
    let mut stream = AdsStream::open(shared.address, shared.protocol, member.received.clone()).await?;
    connected.now();
    member.outbox.borrow_mut().clear();
    let first = member.proxy.borrow_mut().on_connect(&shared.table.borrow());
    send(&mut stream, first)?;
    loop {
        let message = tokio::select! {
            message = stream.next() => message?,
            () = member.mail.notified() => {
                let requests = std::mem::take(&mut *member.outbox.borrow_mut());
                send(&mut stream, requests)?;
                continue;
            }
        };
        member.messages.set(member.messages.get() + message.len() as u64);
        let (is_stuck, progress) = {
            let mut proxy = member.proxy.borrow_mut();
            let reaction = proxy.on_response(message, &mut shared.table.borrow_mut(), &shared.tracker.borrow())?;
            send(&mut stream, reaction.requests)?;
            let mut progress = shared.tracker.borrow_mut().acknowledged(index, &reaction.marks, Instant::now());
            // With learned scope a caller may wait for this response. Other scopes produce thousands of responses, so
            // they do not notify for each.
            progress |= proxy.scope == Scope::Learned;
            if proxy.configured.is_none() && proxy.holds_all(shared.services.get()) {
                proxy.configured = Some(shared.start.get().elapsed());
                shared.unconfigured.set(shared.unconfigured.get() - 1);
                progress = true;
            }
            (index < shared.stuck && proxy.configured.is_some(), progress)
        };
        if progress {
            shared.progress.notify_waiters();
        }
        if is_stuck {
            stream.stall().await?;
        }
    }
}

fn send(stream: &mut AdsStream, requests: Vec<Request>) -> Result<(), StreamError> {
    requests.iter().try_for_each(|request| match request {
        Request::Delta(request) => stream.send(request),
        Request::Sotw(request) => stream.send(request),
    })
}
