//! Which code allocates memory, and what it holds: about one block per [`INTERVAL`] bytes, with its stack.
//!
//! The program's allocator calls [`allocated`] and [`freed`].

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::live::Live;
use crate::modules::Module;
use crate::published::Published;
use crate::registers::Registers;
use crate::report::{Measure, Report, Sample};
use crate::ring::Ring;
use crate::unwind::{Stack, Unwinding};

/// Bytes between two samples, on average; as in Go's profiles.
pub const INTERVAL: u64 = 512 * 1024;
/// How often samples are counted.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two looks for new threads.
const THREADS_TICKS: u32 = 4;
/// The greatest number of samples that are kept; further ones are lost and counted.
const MAX_SAMPLES: usize = 20_000;

#[derive(Clone, Copy)]
struct HeapSample {
    /// Its number, from 1.
    number: u64,
    bytes: u64,
    stack: Stack,
}

/// A sample after it has left the allocator.
struct BlockSample {
    number: u64,
    bytes: u64,
    addresses: Box<[u64]>,
}

struct Recording {
    unwinding: Unwinding,
    ring: Ring<HeapSample>,
    numbers: AtomicU64,
}

static RECORDING: Published<Recording> = Published::new();
/// Whether there is a recording: all that an allocation asks when there is none.
static IS_RECORDING: AtomicBool = AtomicBool::new(false);
static LIVE: Live = Live::new();

thread_local! {
    /// Bytes until this thread's next sample.
    static LEFT: Cell<u64> = const { Cell::new(INTERVAL) };
    /// The state of this thread's random numbers; 0: none was drawn yet.
    static RANDOM: Cell<u64> = const { Cell::new(0) };
    /// Whether this thread is the one that counts samples, or takes one.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// A block has been allocated.
#[inline]
pub fn allocated(block: *mut u8, bytes: usize) {
    if IS_RECORDING.load(Ordering::Relaxed) {
        count(block, bytes as u64);
    }
}

/// A block is about to be freed.
#[inline]
pub fn freed(block: *mut u8) {
    if IS_RECORDING.load(Ordering::Relaxed) {
        LIVE.remove(block.addr());
    }
}

#[cold]
fn count(block: *mut u8, bytes: u64) {
    let left = LEFT.get();
    if bytes < left {
        LEFT.set(left - bytes);
        return;
    }
    LEFT.set(until_next());
    if block.is_null() || IS_OWN.replace(true) {
        return;
    }
    if let Some(recording) = RECORDING.get() {
        let number = recording.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        recording.ring.push(|sample| {
            (sample.number, sample.bytes) = (number, bytes);
            recording.unwinding.stack(Registers::current(), &mut sample.stack);
        });
        // Without room it counts as freed.
        LIVE.add(block.addr(), number);
    }
    IS_OWN.set(false);
}

/// A distance with an exponential distribution, so that each byte is as likely to be sampled as any other.
fn until_next() -> u64 {
    let mut state = RANDOM.get();
    if state == 0 {
        state = RANDOM.with(|cell| std::ptr::from_ref(cell).addr() as u64) | 1;
    }
    // xorshift64.
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    RANDOM.set(state);
    let uniform = ((state >> 11) as f64 + 1.0) / (1_u64 << 53) as f64;
    (-uniform.ln() * INTERVAL as f64) as u64 + 1
}

/// Records for this long. One recording at a time.
pub(crate) fn record(duration: Duration) -> io::Result<Report> {
    IS_OWN.set(true);
    let modules = Module::all();
    let unwinding = Unwinding::new(&modules)?;
    let ring = Ring::new(HeapSample { number: 0, bytes: 0, stack: Stack::EMPTY });
    RECORDING.publish(Recording { unwinding, ring, numbers: AtomicU64::new(0) });
    LIVE.clear();
    IS_RECORDING.store(true, Ordering::SeqCst);
    let mut samples = Vec::new();
    let sampled = sample(duration, &mut samples);
    IS_RECORDING.store(false, Ordering::SeqCst);
    let recording = RECORDING.withdraw();
    let live = LIVE.clear().into_iter().collect();
    let lost = recording.map_or(0, |recording| {
        recording.ring.drain(|sample| keep(&mut samples, sample));
        recording.ring.lost()
    });
    IS_OWN.set(false);
    sampled?;
    let mut notes =
        vec![format!("allocations of these {} s; what was allocated before is not in it", duration.as_secs())];
    if lost > 0 || samples.len() == MAX_SAMPLES {
        notes.push("some samples are lost: there was no room for them".to_owned());
    }
    let measure = |kind| Measure { kind, unit: if kind_is_bytes(kind) { "bytes" } else { "count" } };
    let measures = ["alloc_objects", "alloc_space", "inuse_objects", "inuse_space"].map(measure).to_vec();
    let period = Measure { kind: "space", unit: "bytes" };
    let samples = sums(&samples, &live);
    Ok(Report { modules, measures, shown: 3, period, period_value: INTERVAL as i64, duration, samples, notes })
}

fn kind_is_bytes(kind: &str) -> bool {
    kind.ends_with("space")
}

fn sample(duration: Duration, samples: &mut Vec<BlockSample>) -> io::Result<()> {
    let end = Instant::now() + duration;
    for tick in 1.. {
        let left = end.saturating_duration_since(Instant::now());
        let Some(recording) = RECORDING.get().filter(|_| !left.is_zero()) else { break };
        pause(left.min(TICK));
        recording.ring.drain(|sample| keep(samples, sample));
        if tick % THREADS_TICKS == 0 {
            recording.unwinding.refresh()?;
        }
    }
    Ok(())
}

fn keep(samples: &mut Vec<BlockSample>, sample: &HeapSample) {
    if samples.len() < MAX_SAMPLES {
        samples.push(BlockSample {
            number: sample.number,
            bytes: sample.bytes,
            addresses: sample.stack.addresses().into(),
        });
    }
}

#[allow(clippy::disallowed_methods, reason = "the allocator cannot wake this thread")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// What the samples of each stack stand for.
fn sums(samples: &[BlockSample], live: &HashSet<u64>) -> Vec<Sample> {
    let mut stacks: HashMap<&[u64], [f64; 4]> = HashMap::new();
    for BlockSample { number, bytes, addresses } in samples {
        // A block of this size is sampled with this probability.
        let weight = 1.0 / -(-(*bytes as f64) / INTERVAL as f64).exp_m1();
        let sum = stacks.entry(addresses).or_default();
        let space = weight * *bytes as f64;
        let in_use = if live.contains(number) { 1.0 } else { 0.0 };
        for (sum, value) in sum.iter_mut().zip([weight, space, weight * in_use, space * in_use]) {
            *sum += value;
        }
    }
    let sample = |(addresses, values): (&[u64], [f64; 4])| Sample {
        values: values.iter().map(|value| value.round() as i64).collect(),
        thread: None,
        addresses: addresses.to_vec(),
    };
    stacks.into_iter().map(sample).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn samples_stand_for_blocks_that_were_not_sampled() {
        let sample = |number, bytes| BlockSample { number, bytes, addresses: Box::default() };
        let check = |samples: &[BlockSample], live: &[u64], expected: &[i64]| {
            let live: HashSet<u64> = live.iter().copied().collect();
            assert_eq!(sums(samples, &live).iter().map(|sample| &*sample.values).collect::<Vec<_>>(), [expected]);
        };
        let large = 1 << 30;
        check(&[sample(1, large)], &[], &[1, 1 << 30, 0, 0]);
        check(&[sample(1, large), sample(2, large)], &[2], &[2, 2 << 30, 1, 1 << 30]);
        // One of 8,192 blocks of 64 bytes is sampled.
        check(&[sample(1, 64)], &[1], &[8193, 524_320, 8193, 524_320]);
    }

    #[inline(never)]
    fn allocates(blocks: std::ops::Range<usize>) {
        blocks.for_each(|block| allocated(std::ptr::without_provenance_mut(block * 64), 1 << 20));
    }

    #[test]
    fn what_is_held_is_told_from_what_was_freed() {
        let (start, end) = (IS_RECORDING.load(Ordering::Relaxed), std::sync::mpsc::channel());
        assert!(!start);
        let recording = std::thread::spawn(move || {
            let profile = record(Duration::from_millis(500)).map(crate::pprof::Profile::of);
            end.0.send(profile.expect("a profile")).expect("somebody waits");
        });
        while !IS_RECORDING.load(Ordering::Relaxed) {
            std::thread::yield_now();
        }
        allocates(1..101);
        (1..51).for_each(|block| freed(std::ptr::without_provenance_mut(block * 64)));
        let profile = end.1.recv().expect("it ends");
        recording.join().expect("it has ended");
        let name = concat!(module_path!(), "::allocates");
        let has_name = |frames: &[String]| frames.iter().any(|frame| frame.starts_with(name));
        let held: u64 = profile.stacks().iter().filter(|s| has_name(&s.frames)).map(|s| s.value >> 20).sum();
        // Each block of 1 MiB is sampled in 86 of 100 cases.
        assert!((30..70).contains(&held), "{held} of 50 MiB: {:?}", profile.stacks());
        assert_eq!(profile.shown(), ["inuse_space", "bytes"]);
    }

    #[test]
    fn distances_are_as_long_as_the_interval_on_average() {
        let sum: u64 = (0..10_000).map(|_| until_next()).sum();
        assert!((INTERVAL * 9_000..INTERVAL * 11_000).contains(&sum), "{sum}");
    }
}
