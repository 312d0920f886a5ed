//! Resource usage of the process under Prometheus' usual names, from proc_pid_stat(5) and proc_pid_status(5).

use std::fs;

use evenkeel_stats::{SharedWriter, layout};

layout! {
    /// `process_`; 0 is what cannot be read.
    pub mod process {
        counters {
            /// Time of the processor, in user's and kernel's code. The kernel tells it in ticks, USER_HZ of x86-64 and arm64.
            cpu_seconds_total / 100,
        }
        gauges {
            /// Memory that is not swapped out.
            resident_memory_bytes,
            /// Address space.
            virtual_memory_bytes,
            /// Open file descriptors.
            open_fds,
            /// Maximum number of open file descriptors.
            max_fds,
            /// Maximum address space; 0: unlimited.
            virtual_memory_max_bytes,
            /// When the process started, in seconds since 1970.
            start_time_seconds,
            /// Threads.
            threads,
        }
        histograms {}
        statuses None
    }
}

/// Positions of `utime` and `stime` among the fields after the program's name.
const USER_TICKS: usize = 11;
/// Position of `starttime` there.
const START_TICKS: usize = 19;
/// Ticks of the kernel in a second.
const TICKS_PER_SECOND: u64 = 100;

/// Reads the values from the kernel and publishes them.
pub fn publish(metrics: &SharedWriter<process::Stats>) {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let machine = fs::read_to_string("/proc/stat").unwrap_or_default();
    metrics.set_total(process::Counter::cpu_seconds_total, cpu_ticks(&stat).unwrap_or(0));
    metrics.set(process::Gauge::resident_memory_bytes, bytes(&status, "VmRSS:").unwrap_or(0));
    metrics.set(process::Gauge::virtual_memory_bytes, bytes(&status, "VmSize:").unwrap_or(0));
    metrics.set(process::Gauge::open_fds, i64::try_from(files).unwrap_or(0));
    metrics.set(process::Gauge::max_fds, limit(&limits, "Max open files").unwrap_or(0));
    metrics.set(process::Gauge::virtual_memory_max_bytes, limit(&limits, "Max address space").unwrap_or(0));
    metrics.set(process::Gauge::start_time_seconds, started(&stat, &machine).unwrap_or(0));
    metrics.set(process::Gauge::threads, field(&status, "Threads:").unwrap_or(0));
}

/// Returns when the process started, in seconds since 1970.
fn started(stat: &str, machine: &str) -> Option<i64> {
    let (_, after_name) = stat.rsplit_once(") ")?;
    let since_boot = after_name.split(' ').nth(START_TICKS)?.parse::<u64>().ok()? / TICKS_PER_SECOND;
    field(machine, "btime ")?.checked_add_unsigned(since_boot)
}

/// Returns the soft limit of this name; `None`: there is none.
fn limit(limits: &str, name: &str) -> Option<i64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// Returns the number in the line that begins so.
fn field(text: &str, name: &str) -> Option<i64> {
    text.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
}

/// Returns the CPU time in user and kernel mode, in ticks.
fn cpu_ticks(stat: &str) -> Option<u64> {
    // The program's name may contain spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut ticks = after_name.split(' ').skip(USER_TICKS).map(str::parse::<u64>);
    ticks.next()?.ok()?.checked_add(ticks.next()?.ok()?)
}

fn bytes(status: &str, field: &str) -> Option<i64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: i64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use evenkeel_stats::{Registry, ScopeName};

    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "41 (a (b) c) S 1 41 41 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 9 0 88 123456789 3000 18446744073709551615 1 1";
        assert_eq!(cpu_ticks(stat), Some(300));
        assert_eq!(cpu_ticks("41 (a) S 1"), None);
        let status = "Name:\ta\nVmSize:\t  120564 kB\nVmRSS:\t    4096 kB\n";
        assert_eq!(bytes(status, "VmRSS:"), Some(4_194_304));
        assert_eq!(bytes(status, "VmSwap:"), None);
        assert_eq!(started(stat, "cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000));
        let limits = "Limit  Soft Limit  Hard Limit  Units\nMax open files            1024    4096    files\n\
                      Max address space         unlimited            unlimited            bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(1024));
        assert_eq!(limit(limits, "Max address space"), None);
        let registry = Registry::new();
        let metrics = SharedWriter::of(registry.scope(ScopeName::labelled("process_", Vec::new())).writer());
        publish(&metrics);
        let text = registry.text();
        assert!(text.contains("process_open_fds: ") && text.contains("process_resident_memory_bytes: "), "{text}");
    }
}
