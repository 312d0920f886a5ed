//! A run: threads with workers, from the warm-up to the sum of what they have counted.

use std::io::{IsTerminal as _, Write as _};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier, OnceLock, mpsc};
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, Signal};

use crate::codec::Codec;
use crate::flags::RequestFlags;
use crate::live::Audience;
use crate::tally::Tally;
use crate::worker::{Plan, Worker};

/// How often the line about a run is written.
const LIVE_PERIOD: Duration = Duration::from_millis(500);

/// What a run has counted, and its time.
#[derive(Debug)]
pub struct Measured {
    /// The counts.
    pub tally: Tally,
    /// From the first request that was due to the last response.
    pub elapsed: Duration,
}

/// Settings of a run beside its plan.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// Number of threads.
    pub threads: usize,
    /// Sends a request on each connection first.
    pub warms_up: bool,
    /// Goes on if one of these fails.
    pub allows_initial_errors: bool,
}

/// Stops the run at Ctrl-C; a second one ends the process. Threads that are started later inherit it.
pub fn stop_at_interrupt(plan: &Arc<Plan>) {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGINT);
    // The threads of workers inherit it, so that this thread alone gets the signal.
    if signals.thread_block().is_err() {
        return;
    }
    let plan = plan.clone();
    std::thread::spawn(move || {
        _ = signals.wait();
        plan.stop.store(true, Ordering::Relaxed);
        _ = signals.wait();
        std::process::exit(130);
    });
}

/// Sends what the plan says. `codec` makes the protocol's state of a connection.
///
/// # Errors
/// A request failed that warms up, or the system has no more descriptors.
pub fn run(
    plan: &Arc<Plan>,
    settings: Settings,
    codec: &(dyn Fn() -> Codec + Sync),
    before: &mut dyn FnMut(),
) -> Result<Measured, String> {
    let links = plan.callers.div_ceil(plan.streams);
    let threads = settings.threads.clamp(1, links);
    let (ready, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
    let (failure, start) = (OnceLock::new(), OnceLock::new());
    let (ended, ends) = mpsc::channel();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (ready, go, failure, start) = (&ready, &go, &failure, &start);
            let (links, ended) = (part(links, threads, thread), ended.clone());
            scope.spawn(move || {
                let mut worker = prepare(plan, settings, links, codec).map_err(|error| failure.set(error));
                ready.wait();
                go.wait();
                let tally = match (&failure.get(), &mut worker) {
                    (None, Ok(_)) => worker.ok().map(|worker| worker.measure(*start.get_or_init(Instant::now))),
                    _ => None,
                };
                // The other end waits for all threads.
                _ = ended.send(tally);
            });
        }
        drop(ended);
        ready.wait();
        if failure.get().is_none() {
            before();
        }
        go.wait();
        let tally = collect(plan, &ends, Instant::now());
        let elapsed = start.get().map_or(Duration::ZERO, Instant::elapsed);
        match failure.get() {
            Some(error) => Err(error.clone()),
            None => Ok(Measured { tally, elapsed }),
        }
    })
}

/// A thread's share of the connections.
fn part(links: usize, threads: usize, thread: usize) -> Range<usize> {
    links * thread / threads..links * (thread + 1) / threads
}

fn prepare<'p>(
    plan: &'p Plan,
    settings: Settings,
    links: Range<usize>,
    codec: &dyn Fn() -> Codec,
) -> Result<Worker<'p>, String> {
    // By default the kernel may wake the thread 50 µs late, which is more than what is measured.
    _ = nix::sys::prctl::set_timerslack(1);
    let mut worker = Worker::new(plan, links, codec).map_err(|error| format!("epoll: {error}"))?;
    if settings.warms_up
        && let Err(error) = worker.warm_up()
        && !settings.allows_initial_errors
    {
        return Err(format!("warmup error: {error} (-allow-initial-errors goes on)"));
    }
    Ok(worker)
}

/// Waits for all workers, and shows meanwhile how far they are.
fn collect(plan: &Plan, ends: &mpsc::Receiver<Option<Tally>>, start: Instant) -> Tally {
    let mut all = Tally::default();
    let mut error_output = std::io::stderr();
    let mut shown = false;
    loop {
        match ends.recv_timeout(LIVE_PERIOD) {
            Ok(tally) => {
                if let Some(tally) = tally {
                    all.add(tally);
                }
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
            Err(mpsc::RecvTimeoutError::Timeout) => {
                if plan.progress.is_for_terminal()
                    && let Some(line) = plan.progress.line(start.elapsed())
                {
                    // Nobody is lost if the terminal is.
                    _ = write!(error_output, "\r{line}\x1b[K");
                    _ = error_output.flush();
                    shown = true;
                }
            }
        }
    }
    if shown {
        _ = write!(error_output, "\r\x1b[K");
    }
    all
}

/// Who looks at a run of the command: a person, if standard error is a terminal.
pub fn audience(request: &RequestFlags) -> Audience {
    let is_watched = !request.is_quiet() && std::io::stderr().is_terminal();
    if is_watched { Audience::Terminal } else { Audience::Nobody }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_connection_has_a_thread() {
        let parts: Vec<_> = (0..3).map(|thread| super::part(10, 3, thread)).collect();
        assert_eq!(parts, [0..3, 3..6, 6..10]);
    }
}
