//! What the callers of a run have counted.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::histogram::Recorder;
use crate::outcome::{Answer, Code, Fault};

/// Counts of one worker, or of all.
#[derive(Debug, Clone)]
pub struct Tally {
    /// Latencies, from when each request was due.
    pub durations: Recorder,
    /// Those of requests that failed.
    pub error_durations: Recorder,
    /// Times to connect.
    pub connections: Recorder,
    /// Sizes of responses' heads.
    pub header_sizes: Recorder,
    /// Sizes of responses.
    pub sizes: Recorder,
    /// How often each code came.
    codes: Vec<CodeCount>,
    /// How often each fault came.
    pub faults: BTreeMap<Fault, u64>,
    /// Connections to each address.
    pub addresses: BTreeMap<SocketAddr, u64>,
    /// Sockets and times of each connection, by its number.
    pub sockets: BTreeMap<usize, Sockets>,
    /// Requests of each caller, by its number.
    pub calls: BTreeMap<usize, u64>,
    /// Bytes of requests.
    pub bytes_sent: u64,
    /// Bytes of responses.
    pub bytes_received: u64,
    /// Requests that were left out because their caller was busy when they were due.
    pub skipped: u64,
    /// Requests that were due and not sent when the time was over.
    pub unsent: u64,
}

#[derive(Debug, Clone, Copy)]
struct CodeCount {
    code: Code,
    count: u64,
}

/// The sockets that a connection has used one after the other.
#[derive(Debug, Clone, Default)]
pub struct Sockets {
    /// Their number.
    pub count: u64,
    /// The times to connect, in seconds.
    pub seconds: Vec<f64>,
    /// The last address.
    pub address: Option<SocketAddr>,
}

/// Times to connect that are remembered for each connection.
const MAX_CONNECT_TIMES: usize = 10_000;

impl Sockets {
    /// Counts a socket.
    pub fn record(&mut self, address: SocketAddr) {
        self.count += 1;
        self.address = Some(address);
    }

    /// Adds a time to connect.
    pub fn connected(&mut self, seconds: f64) {
        if self.seconds.len() < MAX_CONNECT_TIMES {
            self.seconds.push(seconds);
        }
    }
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            durations: Recorder::of_seconds(),
            error_durations: Recorder::of_seconds(),
            connections: Recorder::of_seconds(),
            header_sizes: Recorder::of_bytes(),
            sizes: Recorder::of_bytes(),
            codes: Vec::new(),
            faults: BTreeMap::new(),
            addresses: BTreeMap::new(),
            sockets: BTreeMap::new(),
            calls: BTreeMap::new(),
            bytes_sent: 0,
            bytes_received: 0,
            skipped: 0,
            unsent: 0,
        }
    }
}

impl Tally {
    /// Counts a response that came after this many nanoseconds.
    pub fn answered(&mut self, answer: &Answer, nanoseconds: u64) {
        self.durations.record(nanoseconds);
        if !answer.code.is_ok() {
            self.error_durations.record(nanoseconds);
        }
        self.header_sizes.record(answer.header_bytes);
        self.sizes.record(answer.total_bytes);
        self.bytes_received += answer.total_bytes;
        self.count(answer.code, 1);
    }

    /// Counts a request without a response.
    pub fn failed(&mut self, fault: Fault, nanoseconds: u64) {
        self.durations.record(nanoseconds);
        self.error_durations.record(nanoseconds);
        self.header_sizes.record(0);
        self.sizes.record(0);
        *self.faults.entry(fault).or_default() += 1;
    }

    fn count(&mut self, code: Code, count: u64) {
        match self.codes.iter_mut().find(|known| known.code == code) {
            Some(known) => known.count += count,
            None => self.codes.push(CodeCount { code, count }),
        }
    }

    /// How often each code came, in their order.
    pub fn codes(&self) -> BTreeMap<Code, u64> {
        self.codes.iter().map(|known| (known.code, known.count)).collect()
    }

    /// Forgets the requests; connections stay.
    pub fn forget_requests(&mut self) {
        let Self { connections, addresses, sockets, .. } = std::mem::take(self);
        *self = Self { connections, addresses, sockets, ..Self::default() };
    }

    /// Adds what another worker has counted.
    pub fn add(&mut self, other: Self) {
        self.durations.add(&other.durations);
        self.error_durations.add(&other.error_durations);
        self.connections.add(&other.connections);
        self.header_sizes.add(&other.header_sizes);
        self.sizes.add(&other.sizes);
        for known in &other.codes {
            self.count(known.code, known.count);
        }
        for (fault, count) in other.faults {
            *self.faults.entry(fault).or_default() += count;
        }
        for (address, count) in other.addresses {
            *self.addresses.entry(address).or_default() += count;
        }
        self.sockets.extend(other.sockets);
        self.calls.extend(other.calls);
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.skipped += other.skipped;
        self.unsent += other.unsent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_requests_too() {
        let answer =
            |status| Answer { call: 0, code: Code::Http(status), header_bytes: 10, total_bytes: 20, closes: false };
        let (mut tally, mut other) = (Tally::default(), Tally::default());
        tally.answered(&answer(200), 1_000);
        other.answered(&answer(503), 2_000);
        other.failed(Fault::Timeout, 3_000);
        tally.add(other);
        assert_eq!((tally.durations.count(), tally.error_durations.count()), (3, 2));
        assert_eq!(tally.faults, [(Fault::Timeout, 1)].into());
        assert_eq!(tally.codes(), [(Code::Http(200), 1), (Code::Http(503), 1)].into());
        tally.forget_requests();
        assert_eq!((tally.durations.count(), tally.faults.len(), tally.codes().len()), (0, 0, 0));
    }
}
