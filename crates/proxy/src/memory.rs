//! Returns memory to the system: what only the start needed, and free memory when memory is short.

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

/// Function of the allocator that returns the calling thread's free memory to the system.
static COLLECTOR: OnceLock<fn()> = OnceLock::new();

/// Sets the function by which the program's allocator returns free memory to the system. Only the first call has an
/// effect.
pub fn set_collector(collector: fn()) {
    _ = COLLECTOR.set(collector);
}

/// Returns the free memory of this thread's heap to the system.
pub(crate) fn collect() {
    if let Some(collector) = COLLECTOR.get() {
        collector();
    }
}

/// Resident memory of this process, in bytes (proc_pid_statm(5)).
pub(crate) fn resident_bytes() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/self/statm")?;
    let pages = text.split_ascii_whitespace().nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.map(|pages| pages * page_size() as u64).ok_or_else(|| io::Error::other("/proc/self/statm does not say"))
}

/// Page size in bytes. (rustix's own function reads it from the vDSO image, which does not exist under valgrind.)
fn page_size() -> usize {
    let said = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    said.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(4096)
}

/// Time after which the start counts as over: by then the first configuration is in place, or it is late for other
/// reasons.
const AFTER_START: Duration = Duration::from_secs(2);
/// How long nothing must have changed: changes seldom come alone, and the next one needs the same code and tables
/// again.
const QUIET: Duration = Duration::from_secs(1);
/// Minimum interval between two releases of memory.
const INTERVAL: Duration = Duration::from_secs(5);

/// Some time after the start, returns freed memory and the program's own read-only pages to the system, once.
///
/// Reading and compiling a configuration touches megabytes of generated code and tables that serving requests does not
/// need. The kernel keeps such pages resident, and counted towards the process, until memory is short.
pub async fn give_back_start_up() {
    tokio::time::sleep(AFTER_START).await;
    collect();
    let bytes = let_go_of_code();
    tracing::debug!(bytes, "let go of the code that starting up touched");
}

/// Does the same as [`give_back_start_up`] each time the configuration has settled after changes, including the first
/// one, and makes the workers collect ([`collect_if_asked`]); for the life of the process.
pub(crate) async fn give_back_after_changes(changed: Rc<Notify>) {
    after_changes(&changed, QUIET, INTERVAL, || {
        collect();
        give_back();
    })
    .await;
}

/// Calls `then` when nothing has changed for `quiet`, and again after later changes, but at most once per `interval`.
async fn after_changes(changed: &Notify, quiet: Duration, interval: Duration, mut then: impl FnMut()) {
    let mut change = Box::pin(changed.notified());
    loop {
        while tokio::time::timeout(quiet, change.as_mut()).await.is_ok() {
            change.set(changed.notified());
        }
        then();
        // Registered now, so that changes during the sleep are not missed.
        change.set(changed.notified());
        tokio::time::sleep(interval.saturating_sub(quiet)).await;
        change.as_mut().await;
        change.set(changed.notified());
    }
}

/// Number of times that threads were asked to return the free memory of their heaps.
static ASKED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Value of `ASKED` when this thread last did so.
    static DONE: Cell<u64> = const { Cell::new(0) };
}

/// Returns free memory and the program's own read-only pages to the system, as [`give_back_start_up`] does; threads
/// that call [`collect_if_asked`] return the free memory of their heaps.
pub fn give_back() {
    ASKED.fetch_add(1, Ordering::Relaxed);
    let bytes = let_go_of_code();
    tracing::debug!(bytes, "let go of code, until it is needed again");
}

/// Returns the free memory of this thread's heap if that has been requested since it last did: for a thread that is
/// about to sleep, or that runs at intervals.
pub fn collect_if_asked() {
    let asked = ASKED.load(Ordering::Relaxed);
    if DONE.replace(asked) != asked {
        collect();
    }
}

/// Drops the resident pages of code and constants of the program and its libraries; they are read again when needed.
/// Returns how many bytes of mappings were affected.
fn let_go_of_code() -> usize {
    let mut segments: Vec<Segment> = Vec::new();
    // SAFETY: `note` is called only within this call, with this vector's address.
    unsafe { libc::dl_iterate_phdr(Some(note), (&raw mut segments).cast()) };
    let mut bytes = 0;
    for Segment { start, length } in segments {
        // SAFETY: this is a private mapping of a file, never written to, so its pages are the file's: dropping them
        // loses nothing, and the next use reads them again from the page cache.
        if unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) } == 0 {
            bytes += length;
        }
    }
    bytes
}

/// Page-aligned range of a loaded file's read-only segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Segment {
    start: usize,
    length: usize,
}

/// Adds an object's read-only segments to the `Vec<Segment>` at `found`. Relocated constants, which the loader writes
/// before it protects them, are in segments that the file marks as writable.
unsafe extern "C" fn note(info: *mut libc::dl_phdr_info, _: libc::size_t, found: *mut libc::c_void) -> libc::c_int {
    // SAFETY: the caller of `dl_iterate_phdr` passed a vector, and nobody else uses it meanwhile.
    let found = unsafe { &mut *found.cast::<Vec<Segment>>() };
    // SAFETY: the loader passes a description that is valid during this call.
    let info = unsafe { &*info };
    // The vDSO is not backed by a file.
    // SAFETY: names are C strings, or null.
    let kernels =
        !info.dlpi_name.is_null() && unsafe { CStr::from_ptr(info.dlpi_name) }.to_bytes().starts_with(b"linux-");
    if info.dlpi_phdr.is_null() || kernels {
        return 0;
    }
    // SAFETY: this many headers are at this address, for as long as the object is loaded.
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
                // Without a change nothing is done, however long that lasts.
                tokio::time::sleep(2 * interval).await;
                assert_eq!(times.get(), round);
                // Several changes in a row count as one, also within the interval.
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
        // Relocated constants still have the values set by the loader.
        let text: &dyn std::fmt::Display = &"text";
        assert_eq!(text.to_string(), "text");
    }
}
