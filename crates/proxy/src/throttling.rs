//! How long the kernel has throttled the cgroup of this proxy, second by second: a request may be slow because of the container's CPU
//! limit, which no clock of a worker shows. Source: the kernel's documentation of cgroups, `cpu.stat`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, UNIX_EPOCH};

use tokio::time::{Instant, sleep};

use crate::clock::wall_clock;

/// How often the file is read.
const INTERVAL: Duration = Duration::from_secs(1);
/// Maximum number of intervals that are kept: 10 minutes.
const MAX_SAMPLES: usize = 600;

/// The intervals of the last minutes in which the cgroup was throttled.
#[derive(Debug, Clone, Default)]
pub(crate) struct Throttling {
    /// Whether the cgroup's times can be read.
    is_known: bool,
    samples: VecDeque<Sample>,
}

/// An interval in which the cgroup was throttled. Times are in microseconds, since 1970.
#[derive(Debug, Clone, Copy)]
struct Sample {
    begin_us: u64,
    end_us: u64,
    throttled_us: u64,
}

impl Throttling {
    /// How long the cgroup was throttled in the intervals that overlap a time, at most as long as that; `None`: not known. Both are in
    /// microseconds, the start since 1970.
    pub(crate) fn within(&self, start_us: u64, duration_us: u64) -> Option<u64> {
        let end_us = start_us.saturating_add(duration_us);
        let overlaps = |sample: &&Sample| sample.begin_us < end_us && sample.end_us > start_us;
        let all: u64 = self.samples.iter().filter(overlaps).map(|sample| sample.throttled_us).sum();
        self.is_known.then_some(all.min(duration_us))
    }

    fn add(&mut self, sample: Sample) {
        if sample.throttled_us == 0 {
            return;
        }
        if self.samples.len() >= MAX_SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back(sample);
    }
}

/// Starts to read the cgroup's times.
pub(crate) fn watched() -> Rc<RefCell<Throttling>> {
    let throttling = Rc::new(RefCell::new(Throttling::default()));
    tokio::task::spawn_local(watch(Rc::clone(&throttling)));
    throttling
}

/// Reads the cgroup's times for as long as they can be read, and somebody may ask for them.
async fn watch(throttling: Rc<RefCell<Throttling>>) {
    let now_us = || {
        let since = wall_clock(Instant::now()).duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
    };
    let Some(file) =
        own_file(Path::new("/sys/fs/cgroup"), &fs::read_to_string("/proc/self/cgroup").unwrap_or_default())
    else {
        return;
    };
    let (mut before, mut begin_us) = (None, now_us());
    while Rc::strong_count(&throttling) > 1
        && let Some(total) = fs::read_to_string(&file).ok().and_then(|text| throttled_us(&text))
    {
        let end_us = now_us();
        let throttled_us = total.saturating_sub(before.unwrap_or(total));
        {
            let mut throttling = throttling.borrow_mut();
            throttling.is_known = true;
            throttling.add(Sample { begin_us, end_us, throttled_us });
        }
        (before, begin_us) = (Some(total), end_us);
        sleep(INTERVAL).await;
    }
    throttling.borrow_mut().is_known = false;
}

/// The file of this process' cgroup, version 2 or 1. `own`: the content of `/proc/self/cgroup`.
fn own_file(root: &Path, own: &str) -> Option<PathBuf> {
    let version2 = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let version1 = own.lines().find_map(|line| line.split_once(":cpu,cpuacct:/").or_else(|| line.split_once(":cpu:/")));
    let candidates = [
        version2.map(|path| root.join(path).join("cpu.stat")),
        // In a container, the file system begins at its own cgroup.
        Some(root.join("cpu.stat")),
        version1.map(|(_, path)| root.join("cpu").join(path).join("cpu.stat")),
        Some(root.join("cpu/cpu.stat")),
    ];
    let has_times = |file: &PathBuf| fs::read_to_string(file).is_ok_and(|text| throttled_us(&text).is_some());
    candidates.into_iter().flatten().find(has_times)
}

/// The time for which the cgroup was throttled, in microseconds.
fn throttled_us(text: &str) -> Option<u64> {
    let value = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse::<u64>().ok()
    };
    value("throttled_usec").or_else(|| value("throttled_time").map(|nanos| nanos / 1000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cgroups_times_are_read_in_both_versions() {
        let check = |files: &[(&str, &str)], own: &str, expected: Option<u64>| {
            let root = tempfile::tempdir().expect("a temporary folder");
            for (name, text) in files {
                let path = root.path().join(name);
                fs::create_dir_all(path.parent().expect("a folder")).expect("our own folder");
                fs::write(path, text).expect("our own folder");
            }
            let file = own_file(root.path(), own);
            let read = file.and_then(|file| throttled_us(&fs::read_to_string(file).expect("a file")));
            assert_eq!(read, expected, "{files:?} {own}");
        };
        let version2 = "usage_usec 5\nnr_periods 7\nnr_throttled 3\nthrottled_usec 1234\n";
        let version1 = "nr_periods 7\nnr_throttled 3\nthrottled_time 1234000\n";
        check(&[("a/b/cpu.stat", version2), ("cpu.stat", "usage_usec 5\n")], "0::/a/b\n", Some(1234));
        check(&[("cpu.stat", version2)], "0::/\n", Some(1234));
        check(&[("cpu.stat", version2)], "0::/of/the/machine\n", Some(1234));
        check(&[("cpu/pod/cpu.stat", version1)], "4:cpu,cpuacct:/pod\n", Some(1234));
        check(&[("cpu/cpu.stat", version1)], "", Some(1234));
        check(&[("cpu.stat", "usage_usec 5\n")], "0::/\n", None);
        check(&[], "", None);
    }

    #[test]
    fn throttling_belongs_to_the_requests_of_its_time() {
        let mut throttling = Throttling { is_known: true, ..Throttling::default() };
        throttling.add(Sample { begin_us: 1000, end_us: 2000, throttled_us: 300 });
        throttling.add(Sample { begin_us: 2000, end_us: 3000, throttled_us: 400 });
        let check = |start: u64, duration: u64, expected: u64| {
            assert_eq!(throttling.within(start, duration), Some(expected), "{start} {duration}");
        };
        check(0, 900, 0);
        check(500, 1000, 300);
        check(1500, 1000, 700);
        check(1500, 100, 100);
        check(3000, 100, 0);
        assert_eq!(Throttling::default().within(0, 10), None);
    }
}
