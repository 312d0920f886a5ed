//! Listening sockets: one per worker and listener, or one shared by all.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use evenkeel_runtime_config::Listener;
use evenkeel_runtime_config::address::ListenAddress;
use evenkeel_runtime_config::bind::{ListenOption, SocketState};
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use super::options;
use super::unix::{self, SocketFile};
use crate::handover::PackedListener;
use crate::inherit::InheritedSocket;

/// A listener that could not be bound. Other listeners are not affected.
#[derive(Debug, thiserror::Error)]
#[error("listener {listener}: cannot bind {address}: {error}")]
pub struct BindError {
    /// Listener name.
    pub listener: Arc<str>,
    /// The address that could not be bound.
    pub address: ListenAddress,
    /// The system's reason.
    #[source]
    pub error: io::Error,
}

impl BindError {
    fn of(listener: &Listener, key: &ListenerKey, error: io::Error) -> Self {
        Self { listener: Arc::clone(&listener.name), address: key.address.clone(), error }
    }
}

/// The key of a listening socket: its configured address, so that a socket passes from a listener to its replacement at
/// the same address. Port 0 identifies no port, so each listener with port 0 has a socket of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ListenerKey {
    pub(crate) address: ListenAddress,
    name: Option<Arc<str>>,
}

impl ListenerKey {
    /// The key of a listener's first address.
    pub(crate) fn of(listener: &Listener) -> Self {
        Self::of_address(listener, &listener.address)
    }

    /// The keys of a listener: one for each of its addresses.
    pub(crate) fn all_of(listener: &Listener) -> impl Iterator<Item = Self> {
        listener.addresses().map(|address| Self::of_address(listener, address))
    }

    fn of_address(listener: &Listener, address: &ListenAddress) -> Self {
        let name = (address.port() == Some(0)).then(|| Arc::clone(&listener.name));
        Self { address: address.clone(), name }
    }

    /// Returns the key of a listener with a fixed port.
    pub(crate) fn at(address: SocketAddr) -> Self {
        Self { address: ListenAddress::Socket(address), name: None }
    }
}

impl From<&PackedListener> for ListenerKey {
    fn from(packed: &PackedListener) -> Self {
        match packed {
            PackedListener::Address(address, name) => {
                Self { address: ListenAddress::Socket(*address), name: name.as_deref().map(Arc::from) }
            }
            PackedListener::Pipe(path) => Self { address: ListenAddress::Pipe(path.as_str().into()), name: None },
            PackedListener::Datagram(address, name) => {
                Self { address: ListenAddress::Datagram(*address), name: name.as_deref().map(Arc::from) }
            }
        }
    }
}

impl From<&ListenerKey> for PackedListener {
    fn from(key: &ListenerKey) -> Self {
        match &key.address {
            ListenAddress::Socket(address) => Self::Address(*address, key.name.as_deref().map(str::to_owned)),
            ListenAddress::Pipe(path) => Self::Pipe(path.as_ref().to_owned()),
            ListenAddress::Datagram(address) => Self::Datagram(*address, key.name.as_deref().map(str::to_owned)),
        }
    }
}

impl std::fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// The open listening sockets.
#[derive(Debug)]
pub(crate) struct ListenerSockets {
    workers: usize,
    inherited: InheritedSockets,
    bound: HashMap<ListenerKey, Bound>,
}

/// A listener's sockets. The workers have duplicates: these are kept for a successor, and for accepting again if a
/// handover fails.
#[derive(Debug)]
struct Bound {
    /// The address it is actually bound to.
    real: ListenAddress,
    /// One socket, or one per worker; if taken from a predecessor with another number of workers, more or fewer.
    sockets: Vec<Socket>,
    /// The options that they have been set to.
    options: Arc<[ListenOption]>,
    /// The file of a Unix socket, which goes with its listener.
    file: Option<SocketFile>,
}

/// A listener's sockets on their way to another process.
#[derive(Debug)]
pub(crate) struct HandedSockets {
    pub(crate) listener: PackedListener,
    pub(crate) sockets: Vec<OwnedFd>,
}

impl HandedSockets {
    fn is_of(&self, key: &ListenerKey) -> bool {
        self.listener == PackedListener::from(key) && !self.sockets.is_empty()
    }
}

/// The changes by a new configuration.
#[derive(Debug, Default)]
pub(crate) struct SocketChange {
    pub(crate) opened: Vec<Opened>,
    pub(crate) closed: Vec<ListenerKey>,
    pub(crate) errors: Vec<BindError>,
}

/// A newly opened listener.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) listener: ListenerKey,
    /// Sockets, each with the worker that accepts on it; every worker has at least one.
    pub(crate) sockets: Vec<(usize, Socket)>,
}

/// Listening sockets of other processes: the parent's, by port, which can be used for the life of this process; and
/// those of a predecessor, each for one listener.
#[derive(Debug, Default)]
pub(crate) struct InheritedSockets {
    parents: Vec<InheritedSocket>,
    predecessors: Vec<HandedSockets>,
}

/// The inherited sockets of one listener.
#[derive(Debug, Default)]
struct Taken {
    /// In place of its own.
    instead: Vec<Socket>,
    /// Beside its own.
    beside: Vec<Socket>,
}

impl InheritedSockets {
    pub(crate) fn new(parents: Vec<InheritedSocket>, predecessors: Vec<HandedSockets>) -> Self {
        Self { parents, predecessors }
    }

    fn parents(&self, key: &ListenerKey) -> impl Iterator<Item = &InheritedSocket> {
        // They are of TCP.
        let port = key.address.socket().map(|address| address.port());
        self.parents.iter().filter(move |parent| Some(parent.port) == port)
    }

    /// Whether a listener has a socket in place of its own.
    fn has(&self, key: &ListenerKey) -> bool {
        self.parents(key).any(|parent| !parent.beside) || self.predecessors.iter().any(|handed| handed.is_of(key))
    }

    fn take(&mut self, key: &ListenerKey) -> io::Result<Taken> {
        let mut taken = Taken::default();
        if let Some(at) = self.predecessors.iter().position(|handed| handed.is_of(key)) {
            let sockets = self.predecessors.swap_remove(at).sockets;
            // Those beside its own are among them.
            taken.instead = sockets.into_iter().map(Socket::from).collect();
            return Ok(taken);
        }
        for parent in self.parents(key) {
            let sockets = if parent.beside { &mut taken.beside } else { &mut taken.instead };
            sockets.push(Socket::from(parent.socket.try_clone()?));
        }
        Ok(taken)
    }
}

impl ListenerSockets {
    pub(crate) fn new(workers: usize, inherited: InheritedSockets) -> Self {
        Self { workers, inherited, bound: HashMap::new() }
    }

    /// The addresses a listener is bound to.
    pub(crate) fn bound_addresses(&self, listener: &Listener) -> impl Iterator<Item = ListenAddress> {
        ListenerKey::all_of(listener).filter_map(|key| self.bound.get(&key).map(|bound| bound.real.clone()))
    }

    /// Opens sockets for added listeners and returns the keys of removed ones. A socket stays open while any listener
    /// has its address.
    pub(crate) fn change<'l>(&mut self, listeners: impl Iterator<Item = &'l Arc<Listener>>) -> SocketChange {
        let mut change = SocketChange::default();
        let wanted: HashMap<ListenerKey, &Arc<Listener>> =
            listeners.flat_map(|listener| ListenerKey::all_of(listener).map(move |key| (key, listener))).collect();
        change.closed = self.bound.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
        for file in change.closed.iter().filter_map(|key| self.bound.remove(key)?.file) {
            file.remove();
        }
        for (key, listener) in wanted {
            if let Some(bound) = self.bound.get_mut(&key) {
                bound.file.iter().for_each(|file| file.allow(listener.file_mode));
                if let Err(error) = bound.follow(&key, listener) {
                    change.errors.push(BindError::of(listener, &key, error));
                }
                continue;
            }
            let opened = self.open(&key, listener).and_then(|bound| Ok((bound.for_workers(self.workers)?, bound)));
            match opened {
                Ok((sockets, bound)) => {
                    self.bound.insert(key.clone(), bound);
                    change.opened.push(Opened { listener: key, sockets });
                }
                Err(error) => {
                    change.errors.push(BindError::of(listener, &key, error));
                }
            }
        }
        change
    }

    /// The error that binding the address of a warming listener would give now. Ports that this process uses itself are
    /// not tried: they may be about to be freed.
    pub(crate) fn obstacle(&self, listener: &Listener) -> Option<BindError> {
        ListenerKey::all_of(listener).find_map(|key| self.obstacle_at(&key, listener))
    }

    fn obstacle_at(&self, key: &ListenerKey, listener: &Listener) -> Option<BindError> {
        // A socket's file cannot be tried without creating it.
        let address = key.address.socket()?;
        let is_ours = self.bound.values().any(|bound| bound.real.port() == Some(address.port()));
        if is_ours || address.port() == 0 || !listener.bind_to_port || self.inherited.has(key) {
            return None;
        }
        let options = listener.socket_options_at(&key.address);
        let socket = bound(address, options, false);
        let error = socket.and_then(|socket| set_transparent(&socket, listener.transparent)).err()?;
        Some(BindError::of(listener, key, error))
    }

    /// Drops the matching sockets and returns their keys.
    pub(crate) fn close(&mut self, mut which: impl FnMut(&ListenerKey) -> bool) -> Vec<ListenerKey> {
        self.bound.extract_if(|key, _| which(key)).map(|(key, _)| key).collect()
    }

    /// Duplicates of all sockets, to accept on them again.
    pub(crate) fn reopen(&self) -> io::Result<Vec<Opened>> {
        let opened = self
            .bound
            .iter()
            .map(|(key, bound)| Ok(Opened { listener: key.clone(), sockets: bound.for_workers(self.workers)? }));
        opened.collect()
    }

    /// The keys of all sockets.
    pub(crate) fn keys(&self) -> Vec<ListenerKey> {
        self.bound.keys().cloned().collect()
    }

    /// Duplicates of all sockets, for another process.
    pub(crate) fn hand(&self) -> io::Result<Vec<HandedSockets>> {
        let handed = self.bound.iter().map(|(key, bound)| {
            let sockets = bound.sockets.iter().map(|socket| Ok(OwnedFd::from(socket.try_clone()?)));
            Ok(HandedSockets { listener: key.into(), sockets: sockets.collect::<io::Result<_>>()? })
        });
        handed.collect()
    }

    fn open(&mut self, key: &ListenerKey, listener: &Listener) -> io::Result<Bound> {
        let Taken { mut instead, beside } = self.inherited.take(key)?;
        let mut options = Arc::clone(listener.socket_options_at(&key.address));
        if instead.is_empty() {
            instead = self.bind_own(key, listener)?;
        } else {
            // Whoever bound them has set what is set before that.
            options = options.iter().filter(|option| option.state == SocketState::Prebind).cloned().collect();
        }
        // Every worker accepts on each of them: only sockets of one address share their connections by themselves.
        for socket in beside {
            for _ in 0..self.workers {
                instead.push(socket.try_clone()?);
            }
        }
        Bound::new(instead, options, key, listener)
    }

    fn bind_own(&self, key: &ListenerKey, listener: &Listener) -> io::Result<Vec<Socket>> {
        let address = match &key.address {
            ListenAddress::Socket(address) => *address,
            ListenAddress::Datagram(address) => return self.bind_datagrams(*address, listener),
            ListenAddress::Pipe(path) => {
                return Ok(vec![OwnedFd::from(unix::bind(path, listener.file_mode, listener.backlog)?).into()]);
            }
        };
        // A port in use has to be an error, but SO_REUSEPORT would silently share it with another process of this user.
        let options = listener.socket_options_at(&key.address);
        let first = bind(address, listener, options, false)?;
        if !listener.reuse_port {
            return Ok(vec![first]);
        }
        let real = socket_address(&first)?;
        drop(first);
        (0..self.workers).map(|_| bind(real, listener, options, true)).collect()
    }

    /// One socket for each worker: the kernel gives all datagrams of a client to the same one. Without `SO_REUSEPORT` there is
    /// one socket, which one worker serves.
    fn bind_datagrams(&self, address: SocketAddr, listener: &Listener) -> io::Result<Vec<Socket>> {
        let first = datagram_socket(address, listener, false)?;
        if !listener.reuse_port {
            return Ok(vec![first]);
        }
        let real = socket_address(&first)?;
        drop(first);
        (0..self.workers).map(|_| datagram_socket(real, listener, true)).collect()
    }
}

impl Bound {
    fn new(
        sockets: Vec<Socket>,
        options: Arc<[ListenOption]>,
        key: &ListenerKey,
        listener: &Listener,
    ) -> io::Result<Self> {
        let first = sockets.first().ok_or(io::ErrorKind::NotFound)?;
        let (real, file) = match &key.address {
            ListenAddress::Socket(_) => (ListenAddress::Socket(socket_address(first)?), None),
            ListenAddress::Datagram(_) => (ListenAddress::Datagram(socket_address(first)?), None),
            ListenAddress::Pipe(path) => (key.address.clone(), SocketFile::at(path)),
        };
        sockets.iter().try_for_each(|socket| socket.set_nonblocking(true))?;
        let mut made = Self { real, sockets, options, file };
        made.follow(key, listener)?;
        Ok(made)
    }

    /// Sets the options that may differ between a listener and the one that the sockets were made for. One that the listener no longer
    /// has keeps its value, as its former one is not known.
    fn follow(&mut self, key: &ListenerKey, listener: &Listener) -> io::Result<()> {
        let options = listener.socket_options_at(&key.address);
        for option in options.iter().filter(|option| !self.options.contains(option)) {
            self.sockets.iter().try_for_each(|socket| options::set(socket, option))?;
        }
        self.options = Arc::clone(options);
        match self.real {
            ListenAddress::Socket(_) => {
                self.sockets.iter().try_for_each(|socket| set_transparent(socket, listener.transparent))
            }
            ListenAddress::Datagram(_) | ListenAddress::Pipe(_) => Ok(()),
        }
    }

    /// Assigns a socket to every worker, and a worker to every socket: each accept queue that the kernel fills must be
    /// emptied. A socket of UDP has one worker, which has all its sessions.
    fn for_workers(&self, workers: usize) -> io::Result<Vec<(usize, Socket)>> {
        let users = if matches!(self.real, ListenAddress::Datagram(_)) { 0 } else { workers };
        let pairs = (0..users.max(self.sockets.len())).map(|at| {
            let socket = self.sockets.get(at % self.sockets.len()).ok_or(io::ErrorKind::NotFound)?;
            Ok((at % workers, socket.try_clone()?))
        });
        pairs.collect()
    }
}

fn bind(address: SocketAddr, listener: &Listener, options: &[ListenOption], reuse_port: bool) -> io::Result<Socket> {
    let socket = bound(address, options, reuse_port)?;
    // Before it listens: no connection is to arrive that it cannot accept.
    set_transparent(&socket, listener.transparent)?;
    socket.listen(i32::try_from(listener.backlog).unwrap_or(i32::MAX))?;
    options::set_in(&socket, options, SocketState::Listening)?;
    Ok(socket)
}

/// The address that a socket is bound to.
fn socket_address(socket: &Socket) -> io::Result<SocketAddr> {
    socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::Unsupported.into())
}

/// Lets a socket accept connections to other addresses, or stops that. Makes no system call if nothing changes, as it may
/// need a privilege.
fn set_transparent(socket: &Socket, transparent: bool) -> io::Result<()> {
    let is_ipv4 = socket.domain()? == Domain::IPV4;
    let is_set = if is_ipv4 { socket.ip_transparent_v4()? } else { socket.ip_transparent_v6()? };
    if is_set == transparent {
        return Ok(());
    }
    let set =
        if is_ipv4 { socket.set_ip_transparent_v4(transparent) } else { socket.set_ip_transparent_v6(transparent) };
    set.map_err(|error| io::Error::new(error.kind(), format!("`transparent` needs CAP_NET_ADMIN: {error}")))
}

/// A socket bound to the address, not listening yet.
fn bound(address: SocketAddr, options: &[ListenOption], reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Of UDP it would allow several sockets at one address.
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    bind_to(socket, address, options)
}

/// A UDP socket bound to the address. Each datagram comes with the address that it was sent to, if there are several.
fn datagram_socket(address: SocketAddr, listener: &Listener, reuse_port: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.ip().is_unspecified() {
        if address.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4PacketInfo, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvPacketInfo, &true)?;
        }
    }
    socket.set_reuse_port(reuse_port)?;
    bind_to(socket, address, &listener.socket_options)
}

fn bind_to(socket: Socket, address: SocketAddr, options: &[ListenOption]) -> io::Result<Socket> {
    socket.set_nonblocking(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    options::set_in(&socket, options, SocketState::Prebind)?;
    socket.bind(&address.into())?;
    options::set_in(&socket, options, SocketState::Bound)?;
    Ok(socket)
}
