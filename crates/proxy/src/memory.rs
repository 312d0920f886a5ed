//! Gives memory back: what only starting up needed, and what is free when memory is short.

use std::cell::Cell;
use std::ffi::CStr;
use std::fs;
use std::io;
use std::rc::Rc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::unistd::{SysconfVar, sysconf};
use tokio::sync::Notify;

/// The allocator's way to return what is free to the system, for the calling thread.
static COLLECTOR: OnceLock<fn()> = OnceLock::new();

/// Tells the proxy how the program's allocator returns free memory to the system. The first call counts.
pub fn set_collector(collector: fn()) {
    _ = COLLECTOR.set(collector);
}

/// Returns what this thread's heap has free to the system.
pub(crate) fn collect() {
    if let Some(collector) = COLLECTOR.get() {
        collector();
    }
}

/// Bytes of this process that are in memory (proc_pid_statm(5)).
pub(crate) fn resident_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages * page_size() as u64).ok_or_else(|| io::Error::other("/proc/self/statm does not say"))
}

/// Bytes of a page of memory. (rustix's own way to it reads the kernel's image, which is not there under valgrind.)
fn page_size() -> usize {
    let said = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    said.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(4096)
}

/// When start-up is over: by then the first configuration is in place, or it is late for other reasons.
const AFTER_START: Duration = Duration::from_secs(2);
/// For how long nothing must have changed: one change seldom comes alone, and what it ran through the next one needs again.
const QUIET: Duration = Duration::from_secs(1);
/// From one time that memory was given back to the next at least.
const INTERVAL: Duration = Duration::from_secs(5);

/// Once, some time after the start, lets go of freed memory and of the program's own read-only pages.
///
/// Reading and compiling a configuration runs through megabytes of generated code and tables that serving requests never touches
/// again. The kernel keeps such pages mapped, and counted as ours, until memory is short.
pub async fn give_back_start_up() {
    tokio::time::sleep(AFTER_START).await;
    collect();
    let bytes = let_go_of_code();
    tracing::debug!(bytes, "let go of the code that starting up touched");
}

/// Does as [`give_back_start_up`] whenever the configuration has come to rest after changes, the first one included, and has the
/// workers collect ([`collect_if_asked`]); for the life of the process.
pub(crate) async fn give_back_after_changes(changed: Rc<Notify>) {
    after_changes(&changed, QUIET, INTERVAL, || {
        collect();
        give_back();
    })
    .await;
}

/// Calls `then` when nothing has changed for `quiet`, and again so after later changes, but not within `interval`.
async fn after_changes(changed: &Notify, quiet: Duration, interval: Duration, mut then: impl FnMut()) {
    let mut change = Box::pin(changed.notified());
    loop {
        while tokio::time::timeout(quiet, change.as_mut()).await.is_ok() {
            change.set(changed.notified());
        }
        then();
        // What changes from now on is noticed even before it is waited for.
        change.set(changed.notified());
        tokio::time::sleep(interval.saturating_sub(quiet)).await;
        change.as_mut().await;
        change.set(changed.notified());
    }
}

/// How often threads were asked to return what their heaps have free.
static ASKED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// How often that was when this one did.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Lets go of free memory and of the program's own read-only pages, as [`give_back_start_up`] does; threads that call
/// [`collect_if_asked`] return what is free on their heaps.
pub fn give_back() {
    ASKED.fetch_add(1, Ordering::Relaxed);
    let bytes = let_go_of_code();
    tracing::debug!(bytes, "let go of code, until it is needed again");
}

/// Returns what this thread's heap has free if somebody has asked for that since it did last: for a thread that is about to sleep,
/// or looks now and then.
pub fn collect_if_asked() {
    let asked = ASKED.load(Ordering::Relaxed);
    if DONE.replace(asked) != asked {
        collect();
    }
}

/// Unmaps the code and constants of the program and its libraries from memory, to be read again where they are needed; returns
/// how many bytes that may concern.
fn let_go_of_code() -> usize {
    let mut segments: Vec<Segment> = Vec::new();
    // SAFETY: `note` is called only within this call, with this vector's address.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut segments).cast()) };
    let mut bytes = 0;
    for Segment { start, length } in segments {
        // SAFETY: a private mapping of a file, never written to, so its pages are the file's: dropping them loses nothing, and the
        // next use reads them again from the page cache.
        if unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) } == 0 {
            bytes += length;
        }
    }
    bytes
}

/// Whole pages of a loaded file that nobody may write to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    start: usize,
    length: usize,
}

/// Adds an object's read-only segments to the `Vec<Segment>` at `found`. What the loader writes before it protects it (relocated
/// constants) lies in segments that the file marks as writable.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: libc::size_t, found: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the caller of `dl_iterate_phdr` passed a vector, and nobody else uses it meanwhile.
    let found = unsafe { &mut *found.cast::<Vec<Segment>>() };
    // SAFETY: the loader passes a description that is valid during this call.
    let info = unsafe { &*info };
    // The kernel's own object is not a file's.
    // SAFETY: names are C strings, or null.
    let kernels =
        !info.dlpi_name.is_null() && unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes().starts_with(b"linux-");
    if info.dlpi_phdr.is_null() || kernels {
        return 0;
    }
    // SAFETY: so many headers are at this address, for as long as the object is loaded.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let page = page_size();
    for header in headers {
        if header.p_type == libc::PT_LOAD && header.p_flags & libc::PF_W == 0 {
            let from = info.dlpi_addr as usize + header.p_vaddr as usize;
            let end = (from + header.p_memsz as usize).next_multiple_of(page);
            let start = from - from % page;
            found.push(Segment { start, length: end - start });
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::time::Duration;

    #[tokio::test(flavor = "current_thread")]
    async fn memory_is_given_back_once_after_changes_and_again_after_more() {
        let (changed, times) = (tokio::sync::Notify::new(), Cell::new(0));
        let (quiet, interval) = (Duration::from_millis(5), Duration::from_millis(20));
        let giving = super::after_changes(&changed, quiet, interval, || times.set(times.get() + 1));
        let watching = async {
            for round in 1..=3 {
                while times.get() < round {
                    tokio::task::yield_now().await;
                }
                // Nothing has changed: nothing is done, however long that lasts.
                tokio::time::sleep(2 * interval).await;
                assert_eq!(times.get(), round);
                // Several at once are one, also when they come within the interval.
                changed.notify_waiters();
                changed.notify_waiters();
            }
        };
        tokio::select! {
            () = giving => unreachable!("for the life of the process"),
            done = tokio::time::timeout(Duration::from_secs(10), watching) => done.expect("memory given back"),
        }
    }

    #[test]
    fn a_process_has_some_memory() {
        assert!(super::resident_bytes().unwrap() > 1 << 20);
    }

    #[test]
    fn the_program_runs_on_without_its_pages() {
        static WRITTEN: [std::sync::atomic::AtomicU32; 2] = [const { std::sync::atomic::AtomicU32::new(1) }; 2];
        WRITTEN[1].store(7, std::sync::atomic::Ordering::Relaxed);
        let bytes = super::let_go_of_code();
        assert!(bytes > 100_000, "a test program has more code than {bytes} bytes");
        assert_eq!(WRITTEN[1].load(std::sync::atomic::Ordering::Relaxed), 7);
        // Relocated constants are still what the loader made of them.
        let text: &dyn std::fmt::Display = &"text";
        assert_eq!(text.to_string(), "text");
    }
}
