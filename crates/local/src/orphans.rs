//! Collects orphans: process 1 inherits every orphan of its namespace and must collect those that end.

use std::collections::BTreeSet;
use std::fs;

use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// Collects ended children that no other code waits for.
///
/// The code that started a program collects it within milliseconds, and would get an error if somebody else had. So a
/// child counts as an orphan only if it has ended and is still there at the next check.
#[derive(Debug, Default)]
pub struct Orphans {
    ended: BTreeSet<i32>,
}

impl Orphans {
    /// Checks once; call it about every second.
    pub fn collect(&mut self) {
        let own = i32::try_from(std::process::id()).unwrap_or_default();
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
        for pid in self.step(stats.filter_map(|stat| ended_child(&stat, own)).collect()) {
            // It may have been collected meanwhile.
            let _ = waitpid(Pid::from_raw(pid), Some(WaitPidFlag::WNOHANG));
        }
    }

    /// Takes the ended children, and returns those that had already ended at the last check.
    fn step(&mut self, ended: BTreeSet<i32>) -> Vec<i32> {
        let orphans = ended.intersection(&self.ended).copied().collect();
        self.ended = ended;
        orphans
    }
}

/// The process id in a `/proc/PID/stat`, if it is a child of `parent` that has ended.
fn ended_child(stat: &str, parent: i32) -> Option<i32> {
    let (pid, _) = stat.split_once(' ')?;
    let (_, after_name) = stat.rsplit_once(") ")?;
    let (state, rest) = after_name.split_once(' ')?;
    let ppid = rest.split_ascii_whitespace().next()?;
    (state == "Z" && ppid.parse() == Ok(parent)).then(|| pid.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_children_that_have_ended_count() {
        let check = |stat: &str, expected| assert_eq!(ended_child(stat, 1), expected, "{stat}");
        check("42 (sh) Z 1 40 40 0 -1 0", Some(42));
        check("42 (a) Z 9 (b) Z 1 40 40 0 -1 0", Some(42));
        check("42 (sh) S 1 40 40 0 -1 0", None);
        check("42 (sh) Z 7 40 40 0 -1 0", None);
        check("", None);
    }

    #[test]
    fn a_child_is_left_to_its_owner_until_the_second_look() {
        let mut orphans = Orphans::default();
        assert_eq!(orphans.step(BTreeSet::from([5, 6])), Vec::<i32>::new());
        assert_eq!(orphans.step(BTreeSet::from([6, 7])), [6]);
        assert_eq!(orphans.step(BTreeSet::from([7])), [7]);
    }
}
