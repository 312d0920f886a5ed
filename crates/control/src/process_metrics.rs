//! What the process uses, under Prometheus' usual names, as proc_pid_stat(5) and proc_pid_status(5) tell it.

use std::fs;

/// Ticks in which the kernel tells processor time, per second: USER_HZ of x86-64 and arm64.
const TICKS_PER_SECOND: f64 = 100.0;
/// Places of `utime` and `stime` among what follows the program's name.
const USER_TICKS: usize = 11;

/// Name, type and value of each metric; what cannot be read is left out.
pub fn read() -> Vec<(&'static str, &'static str, f64)> {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let files = fs::read_dir("/proc/self/fd").map(Iterator::count).ok();
    let values = [
        ("process_cpu_seconds_total", "counter", cpu_seconds(&stat)),
        ("process_resident_memory_bytes", "gauge", bytes(&status, "VmRSS:")),
        ("process_virtual_memory_bytes", "gauge", bytes(&status, "VmSize:")),
        ("process_open_fds", "gauge", files.map(|files| files as f64)),
    ];
    values.into_iter().filter_map(|(name, kind, value)| Some((name, kind, value?))).collect()
}

/// Time of the processor, in user's and kernel's code.
fn cpu_seconds(stat: &str) -> Option<f64> {
    // A program's name may hold spaces and parentheses.
    let (_, after_name) = stat.rsplit_once(") ")?;
    let mut ticks = after_name.split(' ').skip(USER_TICKS).map(str::parse::<f64>);
    Some((ticks.next()?.ok()? + ticks.next()?.ok()?) / TICKS_PER_SECOND)
}

fn bytes(status: &str, field: &str) -> Option<f64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kibibytes: f64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_the_kernel_writes() {
        let stat = "41 (a (b) c) S 1 41 41 0 -1 4194560 900 0 3 0 250 50 0 0 20 0 9 0 88 123456789 3000 18446744073709551615 1 1";
        assert_eq!(cpu_seconds(stat), Some(3.0));
        assert_eq!(cpu_seconds("41 (a) S 1"), None);
        let status = "Name:\ta\nVmSize:\t  120564 kB\nVmRSS:\t    4096 kB\n";
        assert_eq!(bytes(status, "VmRSS:"), Some(4_194_304.0));
        assert_eq!(bytes(status, "VmSwap:"), None);
        let names: Vec<&str> = read().iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), 4, "{names:?}");
    }
}
