//! Simulates both ends of a connection that many clients share, most of whom do not read, and measures the throughput of one
//! who does. No sockets and no clock: time is counted in rounds, in each of which every stream's task runs once
//! and the wire carries a fixed number of bytes each way.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use evenkeel_http::h2::Connection as Codec;
use evenkeel_http::{Framing, RequestHead, ResponseHead, Underscores};
use evenkeel_runtime_config::http2::Http2Options;
use evenkeel_runtime_config::overload::PrematureResets;
use evenkeel_stats::Scope;

use super::client::Client;
use super::driver::{Limits, codec_options};
use super::shared::{Core, Shared};
use super::stats::Stats;
use super::stream::{Received, Stream};
use super::windows::most_held;
use crate::random::Random;

/// Bytes that the wire carries per round, each way.
const BYTES_PER_ROUND: usize = 64 * 1024;
/// One-way delay, in rounds.
const DELAY: usize = 2;
/// Number of bytes that a task writes at once, like the proxy's tasks.
const BLOCK: usize = 32 * 1024;
/// Size requested by clients that do not read.
const LARGE: usize = 2 * 1024 * 1024;
/// Number of sequential requests of the client that reads.
const ASKED: usize = 100;

/// Which bodies are not read: those of responses (`Down`) or of requests (`Up`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Down,
    Up,
}

/// How a reader reads.
#[derive(Debug, Clone, Copy)]
enum Pace {
    /// Everything there is, immediately.
    Honest,
    /// This many bytes per round.
    Slow(usize),
    /// Like `Honest` until it has this many bytes, then nothing.
    StopsAt(usize),
}

/// One body in transfer.
struct Transfer {
    writer: Option<Stream>,
    reader: Option<Stream>,
    pace: Pace,
    size: usize,
    written: usize,
    taken: usize,
    begun: usize,
}

/// One end of the wire.
struct End {
    shared: Rc<Shared>,
    /// Bytes on their way to this end, and when they arrive.
    coming: VecDeque<(usize, Vec<u8>)>,
    input: Vec<u8>,
}

struct World {
    near: End,
    far: End,
    client: Client,
    options: Http2Options,
    direction: Direction,
    transfers: Vec<Transfer>,
    round: usize,
}

fn end(server: bool, options: &Http2Options) -> End {
    let limits = Limits {
        max_head_bytes: 60 * 1024,
        max_headers: 100,
        underscores: Underscores::Allow,
        head_timeout: None,
        idle_timeout: None,
        drain_timeout: std::time::Duration::ZERO,
        flush_timeout: None,
        // Hundreds of streams are dropped at once.
        premature_resets: PrematureResets { total_stream_count: u32::MAX, ..PrematureResets::default() },
    };
    let codec = if server {
        Codec::server(codec_options(options, &limits))
    } else {
        Codec::client(codec_options(options, &limits))
    };
    let stats = Rc::new(Scope::<Stats>::detached().writer());
    let shared = Rc::new(Shared(RefCell::new(Core::new(codec, server, options, stats))));
    End { shared, coming: VecDeque::new(), input: Vec::new() }
}

impl End {
    /// Receives what has arrived.
    fn receive(&mut self, round: usize) {
        while let Some((_, bytes)) = self.coming.pop_front_if(|(at, _)| *at <= round) {
            self.input.extend(bytes);
        }
        let mut core = self.shared.0.borrow_mut();
        loop {
            let taken = core.receive(&self.input).expect("both ends keep to the protocol");
            self.input.drain(..taken);
            if taken == 0 || self.input.is_empty() {
                break;
            }
        }
        core.pump();
    }

    /// The bytes sent in this round.
    fn send(&mut self) -> Vec<u8> {
        let mut core = self.shared.0.borrow_mut();
        let mut sent = Vec::new();
        loop {
            core.pump();
            let output = core.codec.output();
            let part = output[..output.len().min(BYTES_PER_ROUND - sent.len())].to_vec();
            if part.is_empty() {
                return sent;
            }
            core.codec.written(part.len());
            sent.extend(part);
        }
    }
}

impl World {
    fn new(direction: Direction) -> Self {
        let options = Http2Options::default();
        let (near, far) = (end(false, &options), end(true, &options));
        let client = Client::over(Rc::clone(&near.shared), &options);
        let mut world = Self { near, far, client, options, direction, transfers: Vec::new(), round: 0 };
        (0..4 * DELAY).for_each(|_| world.pass());
        world
    }

    /// The end that holds unread bytes.
    fn holder(&self) -> &End {
        if self.direction == Direction::Down { &self.near } else { &self.far }
    }

    fn ask(&mut self, size: usize, pace: Pace) {
        let mut head = RequestHead::default();
        head.set_method(b"POST");
        head.set_path(b"/");
        head.set_authority(b"example.com");
        let down = self.direction == Direction::Down;
        let framing = if down { Framing::None } else { Framing::Chunked };
        let stream = self.client.open(&head, false, framing, down).expect("room for a stream");
        let (reader, writer) = if down { (Some(stream), None) } else { (None, Some(stream)) };
        let (written, taken, begun) = (0, 0, self.round);
        self.transfers.push(Transfer { writer, reader, pace, size, written, taken, begun });
    }

    /// Runs one round.
    fn pass(&mut self) {
        self.round += 1;
        self.near.receive(self.round);
        self.far.receive(self.round);
        self.accept();
        self.transfers.iter_mut().for_each(Transfer::pass);
        let (up, down) = (self.near.send(), self.far.send());
        self.far.coming.push_back((self.round + DELAY, up));
        self.near.coming.push_back((self.round + DELAY, down));
        let (core, most) = (self.holder().shared.0.borrow(), most_held(&self.options, self.transfers.len()));
        let held = core.streams.windows.held();
        assert!(held <= most, "{held} bytes are held, {most} may be, in round {}", self.round);
    }

    /// The far end accepts requests in the order they were made.
    fn accept(&mut self) {
        while let Some((index, ..)) = { self.far.shared.0.borrow_mut().streams.requests.pop_front() } {
            let mut stream = Stream::new(Rc::clone(&self.far.shared), index);
            let waits = |transfer: &&mut Transfer| transfer.writer.is_none() || transfer.reader.is_none();
            let transfer = self.transfers.iter_mut().find(waits).expect("it was asked");
            match self.direction {
                Direction::Down => {
                    let head = ResponseHead { status: 200, ..ResponseHead::default() };
                    stream.respond(&head, Framing::Chunked, false);
                    transfer.writer = Some(stream);
                }
                Direction::Up => transfer.reader = Some(stream),
            }
        }
    }

    /// Rounds that each of `count` sequential requests of `size` bytes takes.
    fn honest(&mut self, size: usize, count: usize) -> Vec<usize> {
        let mut rounds: Vec<_> = (0..count)
            .map(|_| {
                self.ask(size, Pace::Honest);
                while self.transfers.last().is_some_and(|transfer| transfer.taken < size) {
                    self.pass();
                    let last = self.transfers.last().expect("asked");
                    assert!(self.round - last.begun < 10_000, "{} of {size} bytes, and no more", last.taken);
                }
                let done = self.transfers.pop().expect("asked");
                self.round - done.begun
            })
            .collect();
        rounds.sort_unstable();
        rounds
    }

    /// Runs until the clients that stop reading have stopped, and hold as many bytes as they can.
    fn come_to_rest(&mut self) {
        let reads_on = |transfer: &Transfer| matches!(transfer.pace, Pace::StopsAt(bytes) if transfer.taken < bytes);
        while self.transfers.iter().any(reads_on) {
            self.pass();
            assert!(self.round < 10_000, "some are never served");
        }
        (0..100 * DELAY).for_each(|_| self.pass());
    }

    fn is_pressed(&self) -> bool {
        self.holder().shared.0.borrow().streams.windows.is_pressed()
    }
}

impl Transfer {
    /// Runs both ends' tasks once.
    fn pass(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Some(writer) = &mut self.writer {
            while self.written < self.size && matches!(writer.poll_sent(&mut cx), Poll::Ready(Ok(()))) {
                let count = BLOCK.min(self.size - self.written);
                self.written += count;
                writer.send_data(&vec![0; count], self.written == self.size);
            }
        }
        let mut may_take = match self.pace {
            Pace::Honest => usize::MAX,
            Pace::Slow(bytes) => bytes,
            Pace::StopsAt(bytes) => bytes.saturating_sub(self.taken),
        };
        let Some(reader) = &mut self.reader else { return };
        while may_take > 0 {
            let mut count = 0;
            match reader.poll_data(may_take.min(BLOCK), &mut |data| count += data.len(), &mut cx) {
                Poll::Ready(Ok(Received::Data)) => {}
                Poll::Ready(Err(reset)) => panic!("{reset}"),
                Poll::Ready(Ok(_)) | Poll::Pending => return,
            }
            self.taken += count;
            may_take -= count;
        }
    }
}

fn p99(sorted: &[usize]) -> usize {
    sorted[(sorted.len() * 99).div_ceil(100) - 1]
}

/// A random kind of client that does not read, or hardly.
fn hostile(random: &Random) -> Pace {
    match random.below(4) {
        0 | 1 => Pace::StopsAt(0),
        2 => Pace::Slow(1 + random.below(100)),
        // Long enough to be given a widened window.
        _ => Pace::StopsAt(random.below(LARGE / 4)),
    }
}

/// Runs `stalled` streams that are not read, each of a random kind, and checks what an honest client then sees.
fn check(direction: Direction, stalled: usize, seed: u64) {
    // Less than the smallest window, and little more than a head.
    const SIZES: [usize; 2] = [15_000, 100];
    let alone = SIZES.map(|size| World::new(direction).honest(size, ASKED));
    let (mut world, random) = (World::new(direction), Random::seeded(seed));
    for _ in 0..stalled {
        world.ask(LARGE, hostile(&random));
        if random.below(8) == 0 {
            world.pass();
        }
    }
    world.come_to_rest();
    for (size, alone) in SIZES.iter().zip(&alone) {
        let (beside, alone) = (p99(&world.honest(*size, ASKED)), p99(alone));
        assert!(
            beside <= 2 * alone,
            "{direction:?}, {stalled} stalled, seed {seed}, {size} bytes: p99 {beside} rounds, alone {alone}"
        );
    }
    world.transfers.clear();
    (0..20 * DELAY).for_each(|_| world.pass());
    assert!(!world.is_pressed());
    assert_eq!(world.honest(SIZES[0], ASKED), alone[0], "nothing of it is left");
}

#[test]
fn an_honest_client_beside_hundreds_that_do_not_read_waits_no_longer() {
    for direction in [Direction::Down, Direction::Up] {
        for (seed, stalled) in [(1, 24), (2, 60), (3, 300), (4, 900)] {
            check(direction, stalled, seed);
        }
    }
}

/// The first of many bodies gets a wide window, the last gets the rest.
#[test]
fn a_large_body_is_as_fast_beside_them() {
    for direction in [Direction::Down, Direction::Up] {
        let size = 16 * 1024 * 1024;
        let alone = World::new(direction).honest(size, 1);
        assert!(alone[0] < size / BYTES_PER_ROUND * 5 / 4, "{direction:?}: {alone:?} rounds");
        let mut world = World::new(direction);
        (0..300).for_each(|_| world.ask(LARGE, Pace::StopsAt(0)));
        world.come_to_rest();
        assert!(world.is_pressed());
        let beside = world.honest(size, 1);
        assert!(beside[0] <= 2 * alone[0], "{direction:?}: {beside:?} rounds, alone {alone:?}");
    }
}
