//! Listening sockets: one per worker and listener, or one shared by all.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use evenkeel_runtime_config::Listener;
use socket2::{Domain, Protocol, Socket, Type};

use crate::worker::BindError;

/// What a listening socket is known by: its configured address, so that a socket passes from one listener to the next that
/// has it. Port 0 names no port, and each listener with it has a socket of its own.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ListenerKey {
    pub(crate) address: SocketAddr,
    name: Option<Arc<str>>,
}

impl ListenerKey {
    pub(crate) fn of(listener: &Listener) -> Self {
        let name = (listener.address.port() == 0).then(|| Arc::clone(&listener.name));
        Self { address: listener.address, name }
    }
}

impl std::fmt::Display for ListenerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.address.fmt(f)
    }
}

/// Sockets that are open.
#[derive(Debug)]
pub(crate) struct ListenerSockets {
    workers: usize,
    inherited: InheritedSockets,
    /// Where each is really bound.
    bound: HashMap<ListenerKey, SocketAddr>,
}

/// What changed with a configuration.
#[derive(Debug, Default)]
pub(crate) struct SocketChange {
    pub(crate) opened: Vec<Opened>,
    pub(crate) closed: Vec<ListenerKey>,
    pub(crate) errors: Vec<BindError>,
}

/// A newly opened listener: a socket for each worker.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) listener: ListenerKey,
    pub(crate) sockets: Vec<TcpListener>,
}

/// Listening sockets of the parent process, by port. They stay usable for the life of the process.
#[derive(Debug)]
pub(crate) struct InheritedSockets(Vec<(u16, OwnedFd)>);

impl InheritedSockets {
    pub(crate) fn new(sockets: Vec<(u16, OwnedFd)>) -> Self {
        Self(sockets)
    }

    fn take(&self, port: u16) -> Option<io::Result<TcpListener>> {
        let (_, socket) = self.0.iter().find(|(inherited, _)| *inherited == port)?;
        Some(socket.try_clone().map(TcpListener::from))
    }
}

impl ListenerSockets {
    pub(crate) fn new(workers: usize, inherited: InheritedSockets) -> Self {
        Self { workers, inherited, bound: HashMap::new() }
    }

    /// Where a listener is bound.
    pub(crate) fn bound_address(&self, listener: &Listener) -> Option<SocketAddr> {
        self.bound.get(&ListenerKey::of(listener)).copied()
    }

    /// Opens what `listeners` add and names what they no longer have. A socket stays open while some listener has its address.
    pub(crate) fn change<'l>(&mut self, listeners: impl Iterator<Item = &'l Arc<Listener>>) -> SocketChange {
        let mut change = SocketChange::default();
        let wanted: HashMap<ListenerKey, &Arc<Listener>> =
            listeners.map(|listener| (ListenerKey::of(listener), listener)).collect();
        change.closed = self.bound.keys().filter(|key| !wanted.contains_key(key)).cloned().collect();
        change.closed.iter().for_each(|key| _ = self.bound.remove(key));
        for (key, listener) in wanted {
            if self.bound.contains_key(&key) {
                continue;
            }
            match self.open(listener) {
                Ok((real, sockets)) => {
                    self.bound.insert(key.clone(), real);
                    change.opened.push(Opened { listener: key, sockets });
                }
                Err(error) => {
                    let (listener, address) = (Arc::clone(&listener.name), listener.address);
                    change.errors.push(BindError { listener, address, error });
                }
            }
        }
        change
    }

    /// Forgets sockets and names them.
    pub(crate) fn close(&mut self, mut which: impl FnMut(&ListenerKey) -> bool) -> Vec<ListenerKey> {
        self.bound.extract_if(|key, _| which(key)).map(|(key, _)| key).collect()
    }

    fn open(&self, listener: &Listener) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
        if let Some(inherited) = self.inherited.take(listener.address.port()) {
            return shared(inherited?, self.workers);
        }
        // A port in use is an error, though SO_REUSEPORT would quietly share it with another process of this user.
        let first = bind(listener.address, listener.backlog, false)?;
        if !listener.reuse_port {
            return shared(first, self.workers);
        }
        let real = first.local_addr()?;
        drop(first);
        let sockets = (0..self.workers).map(|_| bind(real, listener.backlog, true)).collect::<io::Result<_>>()?;
        Ok((real, sockets))
    }
}

fn shared(socket: TcpListener, workers: usize) -> io::Result<(SocketAddr, Vec<TcpListener>)> {
    socket.set_nonblocking(true)?;
    let sockets = (0..workers).map(|_| socket.try_clone()).collect::<io::Result<_>>()?;
    Ok((socket.local_addr()?, sockets))
}

fn bind(address: SocketAddr, backlog: u32, reuse_port: bool) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(reuse_port)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}
