//! A timer per thread, on the thread's own CPU clock: whoever computes is sampled, and whoever waits costs nothing.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem;
use std::ptr;

/// `CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED`: the kernel's encoding of a thread's CPU clock (`clock_getcpuclockid(3)`).
const THREAD_CPU_CLOCK: libc::clockid_t = 6;

/// A thread's number (`gettid(2)`).
pub(crate) type ThreadId = libc::pid_t;

/// The timers of all threads but this one.
#[derive(Debug)]
pub(crate) struct Timers {
    period_ns: i64,
    threads: BTreeMap<ThreadId, Thread>,
}

#[derive(Debug)]
struct Thread {
    name: String,
    timer: Timer,
}

impl Timers {
    pub(crate) fn new(period_ns: i64) -> io::Result<Self> {
        let mut timers = Self { period_ns, threads: BTreeMap::new() };
        timers.refresh()?;
        Ok(timers)
    }

    /// Starts timers for threads that have none; returns whether there are any such.
    pub(crate) fn refresh(&mut self) -> io::Result<bool> {
        let before = self.threads.len();
        // SAFETY: it has no arguments.
        let own = unsafe { libc::gettid() };
        for thread in threads()?.into_iter().filter(|thread| *thread != own) {
            // A thread may have ended since, or have ended before its name is read.
            let name = fs::read_to_string(format!("/proc/self/task/{thread}/comm"));
            if let Some(known) = self.threads.get_mut(&thread) {
                // A thread names itself after it has started, and a number may be used again.
                name.map(|name| known.name = name.trim_end().to_owned()).unwrap_or_default();
                continue;
            }
            let (Ok(name), Ok(timer)) = (name, Timer::start(thread, self.period_ns)) else { continue };
            self.threads.insert(thread, Thread { name: name.trim_end().to_owned(), timer });
        }
        Ok(self.threads.len() > before)
    }

    /// The names of the threads.
    pub(crate) fn stop(self) -> BTreeMap<ThreadId, String> {
        self.threads
            .into_iter()
            .map(|(id, Thread { name, timer })| {
                (id, {
                    mem::drop(timer);
                    name
                })
            })
            .collect()
    }
}

fn threads() -> io::Result<Vec<ThreadId>> {
    let mut threads = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        threads.extend(entry?.file_name().to_str().and_then(|name| name.parse::<ThreadId>().ok()));
    }
    Ok(threads)
}

#[derive(Debug)]
struct Timer(libc::timer_t);

// SAFETY: a timer may be deleted by any thread.
unsafe impl Send for Timer {}

impl Timer {
    fn start(thread: ThreadId, period_ns: i64) -> io::Result<Self> {
        // SAFETY: all bytes zero is a valid value.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        event.sigev_signo = libc::SIGPROF;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_notify_thread_id = thread;
        let mut timer: libc::timer_t = ptr::null_mut();
        // SAFETY: both pointers are valid during the call.
        checked(unsafe { libc::timer_create((!thread << 3) | THREAD_CPU_CLOCK, &raw mut event, &raw mut timer) })?;
        let timer = Self(timer);
        let period = libc::timespec { tv_sec: 0, tv_nsec: period_ns };
        let every = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer was just created, and the pointer is valid during the call.
        checked(unsafe { libc::timer_settime(timer.0, 0, &raw const every, ptr::null_mut()) })?;
        Ok(timer)
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: it was created here, and is deleted once.
        unsafe { libc::timer_delete(self.0) };
    }
}

fn checked(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
