//! Listening sockets: one per worker and listener, or one shared by all.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;

use evenkeel_runtime_config::{Config, Listener};
use socket2::{Domain, Protocol, Socket, Type};

use crate::worker::BindError;

/// Sockets that are open, by configured address.
#[derive(Debug)]
pub(crate) struct ListenerSockets {
    workers: usize,
    inherited: InheritedSockets,
    /// The configured address and where it really is bound.
    bound: HashMap<SocketAddr, SocketAddr>,
}

/// What changed with a configuration.
#[derive(Debug, Default)]
pub(crate) struct SocketChange {
    pub(crate) opened: Vec<Opened>,
    pub(crate) closed: Vec<SocketAddr>,
    pub(crate) errors: Vec<BindError>,
}

/// A newly opened listener: a socket for each worker.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) address: SocketAddr,
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

    /// Where the listener configured at `address` is bound.
    pub(crate) fn bound_address(&self, address: SocketAddr) -> Option<SocketAddr> {
        self.bound.get(&address).copied()
    }

    /// Opens what `config` adds and names what it no longer has. A socket stays open while some listener has its address.
    pub(crate) fn change(&mut self, config: &Config) -> SocketChange {
        let mut change = SocketChange::default();
        let wanted: HashMap<SocketAddr, &Arc<Listener>> = config
            .listeners
            .values()
            .filter(|listener| listener.bind_to_port)
            .map(|listener| (listener.address, listener))
            .collect();
        change.closed = self.bound.keys().filter(|address| !wanted.contains_key(address)).copied().collect();
        change.closed.iter().for_each(|address| _ = self.bound.remove(address));
        for (address, listener) in wanted {
            if self.bound.contains_key(&address) {
                continue;
            }
            match self.open(listener) {
                Ok((real, sockets)) => {
                    self.bound.insert(address, real);
                    change.opened.push(Opened { address, sockets });
                }
                Err(error) => change.errors.push(BindError { listener: Arc::clone(&listener.name), address, error }),
            }
        }
        change
    }

    /// Forgets all sockets and names them.
    pub(crate) fn close_all(&mut self) -> Vec<SocketAddr> {
        self.bound.drain().map(|(address, _)| address).collect()
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
