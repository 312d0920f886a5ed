//! Gives memory back: what only starting up needed, and what is free when memory is short.

use std::fs;
use std::io;
use std::sync::OnceLock;
use std::time::Duration;

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
    // SAFETY: `sysconf` only reads a constant of the system.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    pages.map(|pages| pages * page).ok_or_else(|| io::Error::other("/proc/self/statm does not say"))
}

/// When start-up is over: by then the first configuration is in place, or it is late for other reasons.
const AFTER_START: Duration = Duration::from_secs(2);

/// Once, some time after the start, lets go of the program's own code pages.
///
/// Reading and compiling a configuration runs through megabytes of generated code that serving requests never touches again.
/// The kernel keeps such pages mapped, and counted as ours, until memory is short. Measured with one listener and one
/// cluster: 22 MiB resident before, 13 after, 16 again after traffic and a scrape.
pub(crate) async fn give_back_start_up() {
    tokio::time::sleep(AFTER_START).await;
    match let_go_of_code() {
        Ok(bytes) => tracing::debug!(bytes, "let go of the code that starting up touched"),
        Err(error) => tracing::debug!(%error, "the code that starting up touched stays resident"),
    }
}

/// Unmaps the program's code from memory, to be read again where it is needed; returns how many bytes that may concern.
fn let_go_of_code() -> io::Result<usize> {
    let maps = fs::read_to_string("/proc/self/maps")?;
    let program = fs::read_link("/proc/self/exe")?;
    let mut bytes = 0;
    for (start, length) in code_ranges(&maps, &program.to_string_lossy()) {
        // SAFETY: the range is a private mapping of a file, not writable, so its pages are clean copies of the file's: dropping
        // them loses nothing, and the next use reads them again from the page cache.
        let result = unsafe { libc::madvise(start as *mut libc::c_void, length, libc::MADV_DONTNEED) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        bytes += length;
    }
    Ok(bytes)
}

/// Start and length of the executable, not writable, private mappings of `program` (proc_pid_maps(5)).
fn code_ranges(maps: &str, program: &str) -> Vec<(usize, usize)> {
    maps.lines().filter_map(|line| code_range(line, program)).collect()
}

fn code_range(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (range, permissions) = (fields.next()?, fields.next()?);
    if permissions != "r-xp" || !line.ends_with(program) {
        return None;
    }
    let (start, end) = range.split_once('-')?;
    let (start, end) = (usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?);
    Some((start, end.checked_sub(start)?))
}

#[cfg(test)]
mod tests {
    use super::code_ranges;

    #[test]
    fn only_the_programs_own_read_only_code() {
        let maps = "\
55d0c0000000-55d0c0400000 r--p 00000000 fe:00 12 /usr/bin/evenkeel
55d0c0400000-55d0c1600000 r-xp 00400000 fe:00 12 /usr/bin/evenkeel
55d0c1600000-55d0c1700000 rw-p 01600000 fe:00 12 /usr/bin/evenkeel
7f0000000000-7f0000100000 r-xp 00000000 fe:00 13 /usr/lib/libc.so.6
7f0000200000-7f0000300000 r-xp 00000000 00:00 0
nonsense
";
        assert_eq!(code_ranges(maps, "/usr/bin/evenkeel"), [(0x55d0_c040_0000, 0x120_0000)]);
    }

    #[test]
    fn a_process_has_some_memory() {
        assert!(super::resident_bytes().unwrap() > 1 << 20);
    }

    #[test]
    fn the_program_runs_on_without_its_pages() {
        let bytes = super::let_go_of_code().unwrap();
        assert!(bytes > 100_000, "a test program has more code than {bytes} bytes");
    }
}
