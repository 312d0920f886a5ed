//! One thread of a run: its callers send when they are due, over their connections.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use evenkeel_load::epoll::Epoll;

use crate::codec::{Codec, Events};
use crate::link::{Connector, Link, Received};
use crate::live::Progress;
use crate::outcome::{Answer, Code, Fault};
use crate::schedule::{Next, Pace, Place, Schedule};
use crate::tally::Tally;

const READ_BYTES: usize = 64 << 10;
/// How often timeouts and a stop are looked for.
const TICK: Duration = Duration::from_millis(100);

/// What all workers of a run share.
#[derive(Debug)]
pub struct Plan {
    /// When requests are due.
    pub pace: Pace,
    /// Number of callers, which Fortio calls threads.
    pub callers: usize,
    /// Callers on each connection.
    pub streams: usize,
    /// How connections are made.
    pub connector: Connector,
    /// How long to wait for a response.
    pub timeout: Duration,
    /// The status that stops the run, -1 for failures; 0 for none.
    pub abort_on: i32,
    /// Latencies count from when a request was sent, as Fortio's do.
    pub from_sent: bool,
    /// Stops the run before its end.
    pub stop: AtomicBool,
    /// Whether the code that stops the run has come.
    pub aborted: AtomicBool,
    /// Where the workers report how far they are.
    pub progress: Progress,
}

impl Plan {
    /// Calls of a caller: all but the first have the same number.
    pub fn calls_of(&self, caller: usize) -> Option<u64> {
        let pace = &self.pace;
        let by_time = || Some((pace.rate? * pace.duration?.as_secs_f64()) as u64);
        let (exact, callers) = (pace.exactly, self.callers as u64);
        let all = exact.or_else(by_time)?;
        let left_over = if caller == 0 && exact.is_some() { all % callers } else { 0 };
        Some(all / callers + left_over)
    }

    fn place(&self, caller: usize) -> Place {
        Place { index: caller, callers: self.callers, calls: self.calls_of(caller) }
    }
}

/// Its callers and their connections.
pub struct Worker<'p> {
    plan: &'p Plan,
    epoll: Epoll,
    links: Vec<Link>,
    callers: Vec<Caller>,
    first_link: usize,
    /// Callers by the time at which they send.
    due: BinaryHeap<Reverse<Due>>,
    /// Callers that send at once.
    ready: Vec<usize>,
    active: usize,
    tally: Tally,
    buffer: Vec<u8>,
    events: Events,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Instant,
    caller: usize,
}

#[derive(Debug)]
struct Caller {
    schedule: Schedule,
    /// From when the latency of its request counts, while there is one.
    since: Option<Instant>,
    sent: Instant,
    calls: u64,
}

impl<'p> Worker<'p> {
    /// The callers of these connections.
    ///
    /// # Errors
    /// The system has no more descriptors.
    pub fn new(plan: &'p Plan, links: Range<usize>, codec: &dyn Fn() -> Codec) -> io::Result<Self> {
        let first_link = links.start;
        let callers = links.end.saturating_mul(plan.streams).min(plan.callers) - first_link * plan.streams;
        let now = Instant::now();
        let caller = |_| Caller { schedule: Schedule::once(), since: None, sent: now, calls: 0 };
        Ok(Self {
            plan,
            epoll: Epoll::new()?,
            links: links.map(|number| Link::new(number, codec(), &plan.connector)).collect(),
            callers: (0..callers).map(caller).collect(),
            first_link,
            due: BinaryHeap::new(),
            ready: Vec::new(),
            active: 0,
            tally: Tally::default(),
            buffer: vec![0; READ_BYTES],
            events: Events::default(),
        })
    }

    /// Sends one request on each connection, which does not count.
    ///
    /// # Errors
    /// One failed; says how.
    pub fn warm_up(&mut self) -> Result<(), String> {
        self.run();
        let failed = self.tally.codes().into_keys().find(|code| !code.is_ok());
        let fault = self.tally.faults.keys().next().copied();
        self.tally.forget_requests();
        match (fault, failed) {
            (Some(fault), _) => Err(fault.name().to_owned()),
            (None, Some(Code::Http(status))) => Err(format!("status {status}")),
            (None, Some(Code::Named(name))) => Err(name.to_owned()),
            (None, None) => Ok(()),
        }
    }

    /// Sends all requests from `start` on, and returns what was counted.
    pub fn measure(mut self, start: Instant) -> Tally {
        let first = self.first_link * self.plan.streams;
        for (index, caller) in self.callers.iter_mut().enumerate() {
            caller.schedule = Schedule::new(&self.plan.pace, self.plan.place(first + index), start);
            caller.calls = 0;
        }
        self.run();
        let stopped = self.plan.stop.load(Ordering::Relaxed);
        for (index, caller) in self.callers.iter().enumerate() {
            self.tally.skipped += caller.schedule.skipped;
            if !stopped {
                self.tally.unsent += caller.schedule.unsent();
            }
            self.tally.calls.insert(first + index, caller.calls);
        }
        self.tally
    }

    fn run(&mut self) {
        let mut now = Instant::now();
        self.active = self.callers.len();
        for caller in 0..self.callers.len() {
            self.schedule(caller, now);
        }
        let (mut tokens, mut next_tick) = (Vec::new(), now + TICK);
        while self.active > 0 {
            self.send_due(now);
            let limit = self.due.peek().map_or(next_tick, |Reverse(due)| due.at.min(next_tick));
            let limit =
                if self.ready.is_empty() { limit.saturating_duration_since(Instant::now()) } else { Duration::ZERO };
            // Waiting fails only if the descriptor is wrong, and this one is right.
            _ = self.epoll.wait_for(Some(limit), &mut tokens);
            now = Instant::now();
            for token in tokens.drain(..) {
                self.socket_ready(token);
            }
            if now >= next_tick {
                next_tick = now + TICK;
                let calls = self.callers.iter().map(|caller| caller.calls);
                self.plan.progress.report(self.first_link, &self.tally, calls);
                self.end_timeouts(now);
                if self.plan.stop.load(Ordering::Relaxed) {
                    return;
                }
            }
        }
    }

    /// Decides when a caller sends next.
    fn schedule(&mut self, caller: usize, now: Instant) {
        match self.callers[caller].schedule.next(now) {
            Next::At(at) => self.due.push(Reverse(Due { at, caller })),
            Next::Now => self.ready.push(caller),
            Next::Done => self.active -= 1,
        }
    }

    fn send_due(&mut self, now: Instant) {
        while let Some(Reverse(due)) = self.due.peek().filter(|Reverse(due)| due.at <= now).copied() {
            self.due.pop();
            self.send(due.caller, if self.plan.from_sent { now } else { due.at });
        }
        let mut ready = std::mem::take(&mut self.ready);
        for caller in ready.drain(..) {
            self.send(caller, Instant::now());
        }
        // Those that failed at once come in the next turn, so that a run also ends if all fail.
        ready.append(&mut self.ready);
        self.ready = ready;
    }

    fn send(&mut self, caller: usize, since: Instant) {
        let number = caller / self.plan.streams;
        let state = &mut self.callers[caller];
        (state.since, state.sent) = (Some(since), Instant::now());
        state.calls += 1;
        let is_busy = self.callers_of(number).any(|other| other != caller && self.callers[other].since.is_some());
        let link = &mut self.links[number];
        if link.codec.is_spent() && !is_busy {
            link.close();
        }
        if !link.is_open() {
            let connected = link.connect(number, &self.plan.connector, &self.epoll);
            *self.tally.addresses.entry(link.address).or_default() += 1;
            self.tally.sockets.entry(self.first_link + number).or_default().record(link.address);
            if let Err(fault) = connected {
                return self.fail(number, fault);
            }
        }
        let link = &mut self.links[number];
        self.tally.bytes_sent += link.request(caller) as u64;
        if let Err(fault) = link.flush(number, &self.epoll) {
            self.fail(number, fault);
        }
    }

    fn socket_ready(&mut self, number: usize) {
        let link = &mut self.links[number];
        if let Some(began) = link.connecting {
            match link.continue_connecting(number, &self.epoll) {
                Ok(true) => {
                    link.connecting = None;
                    let took = began.elapsed();
                    self.tally.connections.record(nanoseconds(took));
                    let sockets = self.tally.sockets.entry(self.first_link + number).or_default();
                    sockets.connected(took.as_secs_f64());
                }
                Ok(false) => return,
                Err(fault) => return self.fail(number, fault),
            }
        }
        let link = &mut self.links[number];
        let mut events = std::mem::take(&mut self.events);
        let received = link.receive(&mut self.buffer, &mut events);
        let now = Instant::now();
        for answer in events.answers.drain(..) {
            self.answered(number, &answer, now);
        }
        for caller in events.failed.drain(..) {
            self.fail_call(caller, Fault::StreamReset, now);
        }
        self.events = events;
        if let Received::Ended(fault) = received {
            self.fail(number, fault);
        } else if let Err(fault) = self.links[number].flush(number, &self.epoll) {
            self.fail(number, fault);
        }
    }

    fn answered(&mut self, number: usize, answer: &Answer, now: Instant) {
        let Some(since) = self.callers.get_mut(answer.call).and_then(|caller| caller.since.take()) else { return };
        self.tally.answered(answer, nanoseconds(now.saturating_duration_since(since)));
        if let Code::Http(status) = answer.code
            && i32::from(status) == self.plan.abort_on
        {
            self.abort();
        }
        if (answer.closes || self.links[number].is_used_up()) && !self.is_busy(number) {
            self.links[number].close();
        }
        self.schedule(answer.call, now);
    }

    fn is_busy(&self, number: usize) -> bool {
        self.callers_of(number).any(|caller| self.callers[caller].since.is_some())
    }

    fn callers_of(&self, number: usize) -> Range<usize> {
        let first = number * self.plan.streams;
        first..(first + self.plan.streams).min(self.callers.len())
    }

    /// The connection has failed, and with it the requests on it.
    fn fail(&mut self, number: usize, fault: Fault) {
        self.links[number].close();
        let now = Instant::now();
        for caller in self.callers_of(number) {
            self.fail_call(caller, fault, now);
        }
    }

    fn fail_call(&mut self, caller: usize, fault: Fault, now: Instant) {
        let Some(since) = self.callers.get_mut(caller).and_then(|caller| caller.since.take()) else { return };
        self.tally.failed(fault, nanoseconds(now.saturating_duration_since(since)));
        if self.plan.abort_on == -1 {
            self.abort();
        }
        self.schedule(caller, now);
    }

    fn abort(&self) {
        self.plan.aborted.store(true, Ordering::Relaxed);
        self.plan.stop.store(true, Ordering::Relaxed);
    }

    fn end_timeouts(&mut self, now: Instant) {
        for caller in 0..self.callers.len() {
            let state = &self.callers[caller];
            if state.since.is_some() && now.saturating_duration_since(state.sent) >= self.plan.timeout {
                let number = caller / self.plan.streams;
                let fault =
                    if self.links[number].connecting.is_some() { Fault::ConnectTimeout } else { Fault::Timeout };
                self.fail(number, fault);
            }
        }
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}
