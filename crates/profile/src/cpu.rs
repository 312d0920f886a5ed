//! Which code uses CPU time: each thread's stack, once per [`PERIOD_NS`] of its CPU time.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::modules::Module;
use crate::published::Published;
use crate::registers::Registers;
use crate::report::{Measure, Report, Sample};
use crate::ring::Ring;
use crate::timers::{ThreadId, Timers};
use crate::unwind::{Stack, Unwinding};

/// CPU time between two samples of a thread, in nanoseconds: 99 Hz, so that it does not run in step with what happens every 10 ms.
pub const PERIOD_NS: i64 = 10_101_010;
/// How often samples are counted.
const TICK: Duration = Duration::from_millis(50);
/// Ticks between two looks for new threads.
const THREADS_TICKS: u32 = 4;
/// The greatest number of different stacks; samples of further ones are lost and counted.
const MAX_STACKS: usize = 20_000;

#[derive(Clone, Copy)]
struct CpuSample {
    thread: ThreadId,
    stack: Stack,
}

/// What the signal handler uses.
struct Recording {
    unwinding: Unwinding,
    ring: Ring<CpuSample>,
    /// Time that handlers have taken, in nanoseconds.
    spent_ns: AtomicU64,
}

static RECORDING: Published<Recording> = Published::new();

/// Records for this long. One recording at a time.
pub(crate) fn record(duration: Duration) -> io::Result<Report> {
    let modules = Module::all();
    let unwinding = Unwinding::new(&modules)?;
    let ring = Ring::new(CpuSample { thread: 0, stack: Stack::EMPTY });
    RECORDING.publish(Recording { unwinding, ring, spent_ns: AtomicU64::new(0) });
    let sampled = sample(duration);
    let Some(recording) = RECORDING.withdraw() else { return Err(io::Error::other("the recording has ended")) };
    let (mut counts, threads) = sampled?;
    recording.ring.drain(|sample| counts.add(sample));
    let lost = counts.lost + recording.ring.lost();
    let spent = Duration::from_nanos(recording.spent_ns.load(Ordering::Relaxed));
    let mut notes = vec![format!("the samples have taken {:.1} ms of CPU time", spent.as_secs_f64() * 1e3)];
    if lost > 0 {
        notes.push(format!("{lost} samples are lost: there was no room for them"));
    }
    let samples = counts.stacks.into_iter().map(|(Key { thread, addresses }, count)| Sample {
        values: vec![count, count * PERIOD_NS],
        thread: threads.get(&thread).cloned(),
        addresses: addresses.into_vec(),
    });
    let measures = vec![Measure { kind: "samples", unit: "count" }, Measure { kind: "cpu", unit: "nanoseconds" }];
    let period = Measure { kind: "cpu", unit: "nanoseconds" };
    Ok(Report {
        modules,
        measures,
        shown: 1,
        period,
        period_value: PERIOD_NS,
        duration,
        samples: samples.collect(),
        notes,
    })
}

/// The stacks of all threads until the time is over, and the threads' names.
fn sample(duration: Duration) -> io::Result<(Counts, BTreeMap<ThreadId, String>)> {
    handle_signal()?;
    let end = Instant::now() + duration;
    let mut timers = Timers::new(PERIOD_NS)?;
    let mut counts = Counts::default();
    for tick in 1.. {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        pause(left.min(TICK));
        let Some(recording) = RECORDING.get() else { break };
        recording.ring.drain(|sample| counts.add(sample));
        if tick % THREADS_TICKS == 0 && timers.refresh()? {
            recording.unwinding.refresh()?;
        }
    }
    Ok((counts, timers.stop()))
}

#[allow(clippy::disallowed_methods, reason = "signal handlers cannot wake this thread")]
fn pause(time: Duration) {
    std::thread::sleep(time);
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct Key {
    thread: ThreadId,
    addresses: Box<[u64]>,
}

/// How often each stack was seen.
#[derive(Debug, Default)]
struct Counts {
    stacks: HashMap<Key, i64>,
    lost: u64,
}

impl Counts {
    fn add(&mut self, sample: &CpuSample) {
        let key = Key { thread: sample.thread, addresses: sample.stack.addresses().into() };
        if self.stacks.len() >= MAX_STACKS && !self.stacks.contains_key(&key) {
            self.lost += 1;
            return;
        }
        *self.stacks.entry(key).or_default() += 1;
    }
}

/// Installs the handler for good: a signal may arrive after its timer has ended, and would end the process without one.
fn handle_signal() -> io::Result<()> {
    // SAFETY: all bytes zero is a valid value.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    action.sa_sigaction = on_signal as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler does only what handlers may, and the pointer is valid during the call.
    let result = unsafe { libc::sigaction(libc::SIGPROF, &raw const action, ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

extern "C" fn on_signal(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let Some(recording) = RECORDING.get() else { return };
    // SAFETY: the kernel passes the context of the interrupted thread.
    let Some(context) = (unsafe { context.cast::<libc::ucontext_t>().as_ref() }) else { return };
    let start = now_ns();
    recording.ring.push(|sample| {
        // SAFETY: it has no arguments.
        sample.thread = unsafe { libc::gettid() };
        recording.unwinding.stack(Registers::interrupted(context), &mut sample.stack);
    });
    recording.spent_ns.fetch_add(now_ns().saturating_sub(start), Ordering::Relaxed);
}

/// `clock_gettime(2)`, which signal handlers may call.
fn now_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid during the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;
    use crate::pprof::Profile;

    #[inline(never)]
    fn computes(until: &AtomicBool) -> u64 {
        let mut sum = 0_u64;
        while !until.load(Ordering::Relaxed) {
            for number in 0..1000 {
                sum = std::hint::black_box(sum).wrapping_mul(31).wrapping_add(number);
            }
        }
        sum
    }

    #[test]
    fn the_function_that_computes_has_the_time_of_its_thread() {
        let is_over = AtomicBool::new(false);
        let profile = std::thread::scope(|scope| {
            std::thread::Builder::new()
                .name("computing".to_owned())
                .spawn_scoped(scope, || computes(&is_over))
                .expect("a thread");
            let profile = record(Duration::from_millis(700)).map(Profile::of);
            is_over.store(true, Ordering::Relaxed);
            profile.expect("a profile")
        });
        let name = concat!(module_path!(), "::computes");
        let of_thread = |frames: &[String]| frames.first().is_some_and(|frame| frame == "computing");
        let stacks: Vec<_> = profile.stacks().into_iter().filter(|stack| of_thread(&stack.frames)).collect();
        let has_name = |frames: &[String]| frames.iter().any(|frame| frame == name);
        let sum = |is_wanted: &dyn Fn(&[String]) -> bool| -> u64 {
            stacks.iter().filter(|stack| is_wanted(&stack.frames)).map(|stack| stack.value).sum()
        };
        let (all, with_name) = (sum(&|_| true), sum(&has_name));
        assert!(with_name > 30_000_000, "30 ms of 700 ms, however busy the machine is: {stacks:?}");
        assert!(with_name * 10 >= all * 9, "{with_name} of {all} ns: {stacks:?}");
        // The callers are known up to the start of the thread.
        assert!(stacks.iter().any(|stack| stack.frames.len() > 8), "{stacks:?}");
    }
}
