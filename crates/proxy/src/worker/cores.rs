//! The number of cores available to this process.

use std::fs;

/// Cores this process may keep busy: the smaller of its CPU affinity and its cgroup's quota, at least 1.
pub fn available_cores() -> usize {
    // This covers CPU affinity, and the quota of cgroup v1 and v2 as seen from this process's own group.
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let quota = fs::read_to_string("/sys/fs/cgroup/cpu.max").ok().and_then(|text| quota_cores(&text));
    threads.min(quota.unwrap_or(usize::MAX)).max(1)
}

/// Cores granted by a `cpu.max` line, rounded up: `150000 100000` is 2.
fn quota_cores(text: &str) -> Option<usize> {
    let (quota, period) = text.trim().split_once(' ')?;
    let (quota, period): (u64, u64) = (quota.parse().ok()?, period.parse().ok()?);
    if period == 0 { None } else { usize::try_from(quota.div_ceil(period)).ok().map(|cores| cores.max(1)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_quotas() {
        assert_eq!(quota_cores("max 100000\n"), None);
        assert_eq!(quota_cores("150000 100000\n"), Some(2));
        assert_eq!(quota_cores("5000 100000\n"), Some(1));
        assert_eq!(quota_cores("x"), None);
        assert!(available_cores() >= 1);
    }
}
