//! The processes of sidecars, found by their command lines, and what each of their threads has used.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::Duration;

/// The CPU time of a process, and of each of its workers, so far.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Usage {
    /// All threads.
    pub total: Duration,
    /// By the number of the worker.
    pub workers: BTreeMap<u32, Duration>,
}

impl Usage {
    /// What was used since an earlier reading.
    pub fn since(&self, earlier: &Self) -> Self {
        let zero = Duration::ZERO;
        let workers = self
            .workers
            .iter()
            .map(|(worker, time)| (*worker, time.saturating_sub(earlier.workers.get(worker).copied().unwrap_or(zero))));
        Self { total: self.total.saturating_sub(earlier.total), workers: workers.collect() }
    }

    /// Adds another process.
    pub fn add(&mut self, other: &Self) {
        self.total += other.total;
        for (worker, time) in &other.workers {
            *self.workers.entry(*worker).or_default() += *time;
        }
    }
}

/// The sidecar of a workload: its agent, and the Envoy that the agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sidecar {
    /// The workload's namespace.
    pub namespace: String,
    /// The workload's name.
    pub workload: String,
    /// Its processes.
    pub pids: Vec<u32>,
}

impl Sidecar {
    /// What its processes have used so far.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for pid in &self.pids {
            usage.add(&of_process(*pid));
        }
        usage
    }
}

/// A process as `/proc` shows it.
struct Process {
    pid: u32,
    parent: u32,
    arguments: Vec<String>,
}

/// The sidecars that descend from a process.
pub fn sidecars(ancestor: u32) -> Vec<Sidecar> {
    let folders = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = folders.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let all: Vec<Process> = pids.filter_map(read).collect();
    let mut family = BTreeSet::from([ancestor]);
    loop {
        let known = family.len();
        family.extend(
            all.iter()
                .filter(|process| family.contains(&process.parent))
                .map(|process| process.pid)
                .collect::<Vec<_>>(),
        );
        if family.len() == known {
            break;
        }
    }
    let ours = all.iter().filter(|process| family.contains(&process.pid));
    ours.filter_map(|agent| {
        let after = |flag: &str| {
            let at = agent.arguments.iter().position(|argument| argument == flag)?;
            agent.arguments.get(at + 1).cloned()
        };
        if !agent.arguments.iter().any(|argument| argument == "agent") {
            return None;
        }
        let children = all.iter().filter(|process| process.parent == agent.pid).map(|process| process.pid);
        let pids = std::iter::once(agent.pid).chain(children).collect();
        Some(Sidecar { namespace: after("--namespace")?, workload: after("--workload-name")?, pids })
    })
    .collect()
}

fn read(pid: u32) -> Option<Process> {
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let arguments = command.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()?;
    Some(Process { pid, parent, arguments })
}

/// Reads all threads of a process; one that has ended meanwhile counts nothing.
fn of_process(pid: u32) -> Usage {
    let mut usage = Usage::default();
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let text = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
        let Some(time) = on_cpu(&text("schedstat")) else { continue };
        usage.total += time;
        if let Some(worker) = worker_number(text("comm").trim()) {
            *usage.workers.entry(worker).or_default() += time;
        }
    }
    usage
}

/// The first number of `schedstat`: nanoseconds on a CPU.
fn on_cpu(schedstat: &str) -> Option<Duration> {
    schedstat.split_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}

/// The number in the name of a worker's thread: `worker-3` (Evenkeel), `wrk:worker_3` (Envoy).
fn worker_number(name: &str) -> Option<u32> {
    name.strip_prefix("worker-").or_else(|| name.strip_prefix("wrk:worker_"))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_are_known_by_their_threads_names() {
        let check = |name: &str, expected: Option<u32>| assert_eq!(worker_number(name), expected, "{name}");
        check("worker-0", Some(0));
        check("wrk:worker_12", Some(12));
        check("worker-", None);
        check("tokio-rt-worker", None);
        check("envoy", None);
    }

    #[test]
    fn time_is_read_in_nanoseconds() {
        let check = |text: &str, expected: Option<u64>| {
            assert_eq!(on_cpu(text), expected.map(Duration::from_nanos), "{text}");
        };
        check("1500 20 3\n", Some(1500));
        check("", None);
        check("x 1 2", None);
        assert!(of_process(std::process::id()).total > Duration::ZERO);
        assert_eq!(of_process(0), Usage::default());
    }

    #[test]
    fn usage_since_a_reading_is_the_difference() {
        let usage = |total: u64, worker: u64| Usage {
            total: Duration::from_millis(total),
            workers: BTreeMap::from([(0, Duration::from_millis(worker))]),
        };
        assert_eq!(usage(50, 30).since(&usage(20, 5)), usage(30, 25));
        // A thread that ended takes its time with it.
        assert_eq!(usage(10, 5).since(&usage(20, 6)), usage(0, 0));
    }
}
