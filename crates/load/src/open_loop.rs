//! An open loop over HTTP/1.1: requests are due at times drawn beforehand, whatever the answers do, and a request's latency
//! counts from when it was due. Waiting for a free connection is thus part of it, which a closed loop leaves out ("coordinated
//! omission"): wrk cannot do this, and h2load's `--rps` measures from when a request was sent.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::epoll::{Epoll, Interest};
use crate::error::{LoadError, io};
use crate::requests::{Requests, answer_end};

const REQUEST: &[u8] = b"GET /hello HTTP/1.1\r\nHost: backend.local\r\nUser-Agent: open-loop\r\n\r\n";
/// How long to wait for outstanding answers at the end.
const GRACE: Duration = Duration::from_secs(2);

/// Sends `rate` requests a second over `connections` keep-alive connections, at exponentially distributed distances that are the
/// same in every run.
///
/// # Errors
/// The server cannot be reached, or does not answer as expected.
pub fn run(target: SocketAddr, connections: usize, rate: u32, time: Duration) -> Result<Requests, LoadError> {
    precise_timers()?;
    let mut load = OpenLoop::connect(target, connections)?;
    let mut arrivals = Arrivals { state: 0x9e37_79b9_7f4a_7c15, mean: 1.0 / f64::from(rate), at: Duration::ZERO };
    let start = Instant::now();
    let (mut due, mut ready) = (arrivals.next(), Vec::new());
    loop {
        let now = start.elapsed();
        while due <= now && due < time {
            load.waiting.push_back(start + due);
            due = arrivals.next();
        }
        load.send()?;
        if due >= time && load.is_idle() {
            break;
        }
        if now >= time + GRACE {
            return Err(LoadError::Unanswered(load.waiting.len() + load.busy()));
        }
        let limit = if due < time { due.saturating_sub(start.elapsed()) } else { GRACE };
        load.epoll.wait_for(Some(limit), &mut ready).map_err(io("waiting for an answer"))?;
        for slot in ready.drain(..) {
            load.receive(slot)?;
        }
    }
    Ok(Requests { latencies: load.latencies, time: start.elapsed() })
}

/// Reduces the slack of timers: by default the kernel may wake the process 50 µs late, which is more than what is measured.
fn precise_timers() -> Result<(), LoadError> {
    nix::sys::prctl::set_timerslack(1).map_err(|error| io("timer slack")(error.into()))
}

struct OpenLoop {
    epoll: Epoll,
    connections: Vec<Connection>,
    /// Connections without a request, the longest idle one first.
    free: VecDeque<usize>,
    /// When requests were due that have no connection yet.
    waiting: VecDeque<Instant>,
    latencies: Vec<Duration>,
}

struct Connection {
    stream: TcpStream,
    due: Option<Instant>,
    answer: Vec<u8>,
}

impl OpenLoop {
    fn connect(target: SocketAddr, connections: usize) -> Result<Self, LoadError> {
        let epoll = Epoll::new().map_err(io("epoll"))?;
        let connect = |slot| -> Result<Connection, std::io::Error> {
            let stream = TcpStream::connect(target)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            epoll.add(&stream, slot, Interest::Read)?;
            Ok(Connection { stream, due: None, answer: Vec::new() })
        };
        let connections = (0..connections).map(connect).collect::<Result<Vec<_>, _>>().map_err(io("connecting"))?;
        let free = (0..connections.len()).collect();
        Ok(Self { epoll, connections, free, waiting: VecDeque::new(), latencies: Vec::new() })
    }

    fn send(&mut self) -> Result<(), LoadError> {
        while !self.waiting.is_empty()
            && let Some(slot) = self.free.pop_front()
        {
            let connection = &mut self.connections[slot];
            connection.due = self.waiting.pop_front();
            connection.stream.write_all(REQUEST).map_err(io("sending a request"))?;
        }
        Ok(())
    }

    fn receive(&mut self, slot: usize) -> Result<(), LoadError> {
        let connection = &mut self.connections[slot];
        let mut buffer = [0; 16 << 10];
        let count = match connection.stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            count => count.map_err(io("reading an answer"))?,
        };
        if count == 0 {
            return Err(LoadError::Closed);
        }
        connection.answer.extend_from_slice(&buffer[..count]);
        if answer_end(&connection.answer)?.is_some() {
            let due = connection.due.take().ok_or(LoadError::NoQuestion)?;
            self.latencies.push(due.elapsed());
            connection.answer.clear();
            self.free.push_back(slot);
        }
        Ok(())
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.free.len() == self.connections.len()
    }

    fn busy(&self) -> usize {
        self.connections.len() - self.free.len()
    }
}

/// The times at which requests are due: a Poisson process from a fixed seed.
struct Arrivals {
    state: u64,
    mean: f64,
    at: Duration,
}

impl Arrivals {
    fn next(&mut self) -> Duration {
        // xorshift64: plenty for this, and no dependency.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let uniform = (self.state >> 11) as f64 / (1u64 << 53) as f64;
        self.at += Duration::from_secs_f64(-(1.0 - uniform).ln() * self.mean);
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::{Arrivals, run};
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, TcpListener};
    use std::time::Duration;

    #[test]
    fn arrivals_keep_the_rate() {
        let mut arrivals = Arrivals { state: 1, mean: 0.001, at: Duration::ZERO };
        let last = (0..10_000).map(|_| arrivals.next()).last().unwrap();
        assert!((9.5..10.5).contains(&last.as_secs_f64()), "{last:?}");
    }

    #[test]
    fn a_stalled_server_shows_in_the_latency_of_all_that_were_due() {
        const STALL: Duration = Duration::from_millis(100);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let target = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut buffer = [0; 1024];
            assert!(stream.read(&mut buffer).unwrap() > 0);
            std::thread::park_timeout(STALL);
            loop {
                stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
                if stream.read(&mut buffer).unwrap_or(0) == 0 {
                    return;
                }
            }
        });
        // A closed loop would see one slow request of a hundred; due at a thousand a second, nearly all of them were late.
        let work = run(target, 1, 1000, STALL).unwrap().work().unwrap();
        server.join().unwrap();
        let (median, _) = work.latency.unwrap();
        assert!(work.count > 50 && median > STALL / 10, "{work:?}");
    }
}
