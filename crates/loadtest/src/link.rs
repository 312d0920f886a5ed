//! One connection of a worker: its socket, what waits to be sent, and the protocol's state.

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Instant;

use evenkeel_load::epoll::{Epoll, Interest};

use crate::codec::{Codec, Events};
use crate::outcome::Fault;
use crate::schedule::Random;
use crate::transport::{TlsTarget, Transport};

/// How connections are made.
#[derive(Debug, Clone)]
pub struct Connector {
    /// The addresses, used in turn.
    pub addresses: Arc<[SocketAddr]>,
    /// How TLS is used, if it is.
    pub tls: Option<TlsTarget>,
    /// Datagrams instead of a connection.
    pub datagrams: bool,
    /// After how many requests a connection is replaced.
    pub reuse: Option<RangeInclusive<u32>>,
}

/// One connection, and those that replace it.
#[derive(Debug)]
pub struct Link {
    /// The protocol's state.
    pub codec: Codec,
    /// When connecting began, while it goes on.
    pub connecting: Option<Instant>,
    /// The address of the socket.
    pub address: SocketAddr,
    transport: Option<Transport>,
    out: Vec<u8>,
    written: usize,
    awaits_room: bool,
    /// Sockets so far: the next address in turn.
    turn: usize,
    uses_left: Option<u32>,
    random: Random,
    /// What has come, if somebody wants to see it.
    recorded: Option<Vec<u8>>,
}

/// What a link found in the bytes that came.
#[derive(Debug)]
pub enum Received {
    /// Nothing more has come.
    AllSoFar,
    /// The connection has ended.
    Ended(Fault),
}

impl Link {
    /// The connection of this number, not yet connected.
    pub fn new(number: usize, codec: Codec, connector: &Connector) -> Self {
        // Addresses are used in turn over all connections.
        let address = connector.addresses[number % connector.addresses.len()];
        Self {
            codec,
            connecting: None,
            address,
            transport: None,
            out: Vec::new(),
            written: 0,
            awaits_room: false,
            turn: number,
            uses_left: None,
            random: Random::new(number as u64 + 1),
            recorded: None,
        }
    }

    /// Keeps a copy of what comes.
    pub fn record(&mut self) {
        self.recorded = Some(Vec::new());
    }

    /// What has come since [`Self::record`].
    pub fn recorded(&mut self) -> Vec<u8> {
        self.recorded.take().unwrap_or_default()
    }

    /// Whether there is a socket.
    pub fn is_open(&self) -> bool {
        self.transport.is_some()
    }

    /// Begins to connect.
    ///
    /// # Errors
    /// It failed at once.
    pub fn connect(&mut self, token: usize, connector: &Connector, epoll: &Epoll) -> Result<(), Fault> {
        self.address = connector.addresses[self.turn % connector.addresses.len()];
        self.turn += 1;
        let connected = if connector.datagrams {
            Transport::datagrams(self.address)
        } else {
            Transport::connect(self.address, connector.tls.as_ref())
        };
        let transport = connected.map_err(|error| of_connect(&error))?;
        let interest = if connector.datagrams { Interest::Read } else { Interest::Write };
        epoll.add(&transport, token, interest).map_err(|_| Fault::Connect)?;
        self.connecting = (!connector.datagrams).then(Instant::now);
        self.awaits_room = !connector.datagrams;
        self.transport = Some(transport);
        self.codec.reset();
        self.uses_left = connector.reuse.as_ref().map(|range| {
            let width = u64::from(range.end() - range.start()) + 1;
            range.start() + u32::try_from(self.random.next() % width).unwrap_or_default()
        });
        Ok(())
    }

    /// The socket is ready while connecting: whether the connection is established now, and the time of its last step. TLS counts
    /// as a part of connecting.
    ///
    /// # Errors
    /// Connecting failed.
    pub fn continue_connecting(&mut self, token: usize, epoll: &Epoll) -> Result<bool, Fault> {
        let Some(transport) = &mut self.transport else { return Err(Fault::Connect) };
        transport.connected().map_err(|error| of_connect(&error))?;
        transport.flush().map_err(|error| of_connect(&error))?;
        if transport.is_handshaking() {
            match transport.read(&mut [0]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == ErrorKind::InvalidData => return Err(Fault::Tls),
                Err(error) => return Err(Fault::of(&error)),
                // Before a request nothing is expected; a close is seen again by the next read.
                Ok(_) => {}
            }
        }
        if transport.is_handshaking() {
            self.awaits_room = false;
            epoll.change(transport, token, Interest::Read).map_err(|_| Fault::Socket)?;
            return Ok(false);
        }
        self.awaits_room = true;
        Ok(true)
    }

    /// Appends a request; it is sent by [`Self::flush`].
    pub fn request(&mut self, call: usize) -> usize {
        let before = self.out.len();
        self.codec.request(call, &mut self.out);
        if let Some(left) = &mut self.uses_left {
            *left = left.saturating_sub(1);
        }
        self.out.len() - before
    }

    /// Whether the connection has been used as often as it may be.
    pub fn is_used_up(&self) -> bool {
        self.uses_left == Some(0)
    }

    /// Sends what waits, as far as there is room.
    ///
    /// # Errors
    /// The connection has failed.
    pub fn flush(&mut self, token: usize, epoll: &Epoll) -> Result<(), Fault> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        if self.connecting.is_some() {
            return Ok(());
        }
        let mut has_room = true;
        while has_room && self.written < self.out.len() {
            match transport.write(&self.out[self.written..]) {
                Ok(count) => self.written += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => has_room = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(Fault::of(&error)),
            }
        }
        has_room &= transport.flush().map_err(|error| Fault::of(&error))?;
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        if self.awaits_room == has_room {
            self.awaits_room = !has_room;
            let interest = if has_room { Interest::Read } else { Interest::Both };
            epoll.change(transport, token, interest).map_err(|_| Fault::Socket)?;
        }
        Ok(())
    }

    /// Reads what has come.
    pub fn receive(&mut self, buffer: &mut [u8], events: &mut Events) -> Received {
        let Some(transport) = &mut self.transport else { return Received::AllSoFar };
        loop {
            match transport.read(buffer) {
                Ok(0) => return Received::Ended(self.codec.end(events)),
                Ok(count) => {
                    if let Some(recorded) = &mut self.recorded {
                        recorded.extend_from_slice(&buffer[..count]);
                    }
                    if let Err(fault) = self.codec.receive(&buffer[..count], events, &mut self.out) {
                        return Received::Ended(fault);
                    }
                    if count < buffer.len() && transport.is_drained_by_a_short_read() {
                        return Received::AllSoFar;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Received::AllSoFar,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                    return Received::Ended(self.codec.end(events));
                }
                Err(error) => return Received::Ended(Fault::of(&error)),
            }
        }
    }

    /// Closes the socket.
    pub fn close(&mut self) {
        self.transport = None;
        self.connecting = None;
        self.out.clear();
        self.written = 0;
        self.codec.reset();
    }
}

/// The fault of an error while connecting.
fn of_connect(error: &io::Error) -> Fault {
    match Fault::of(error) {
        fault @ (Fault::Refused | Fault::ConnectTimeout | Fault::Reset | Fault::Tls) => fault,
        _ => Fault::Connect,
    }
}
