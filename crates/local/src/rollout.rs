//! The next step of a workload's rollout, from the present replicas to the wanted ones. [`next`] follows a Deployment's
//! `RollingUpdate` with its defaults, with enough ready replicas at all times; [`next_of_set`] follows a StatefulSet's.
//!
//! Each is a pure function of the present state and is called again whenever a replica's state has changed. So it needs
//! no memory, and a further edit during a rollout is not a special case.

use std::collections::BTreeSet;

/// Replicas beyond those wanted, in percent of them, rounded up (`maxSurge`).
const MAX_SURGE_PERCENT: usize = 25;
/// Replicas that may be missing, in percent of those wanted, rounded down (`maxUnavailable`).
const MAX_UNAVAILABLE_PERCENT: usize = 25;

/// A replica that exists and is not being taken out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CurrentReplica<'a> {
    /// Its Pod's name.
    pub name: &'a str,
    /// Whether it takes requests.
    pub ready: bool,
    /// Whether it has the present template, if its name does not tell.
    pub current: bool,
}

/// The step to take now, as names of Pods.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Step<'a> {
    /// Pods to start.
    pub start: Vec<&'a str>,
    /// Pods to take out.
    pub retire: Vec<&'a str>,
}

/// The next step towards the `wanted` replicas: nothing if they are reached, or if a new replica must become ready
/// first.
pub fn next<'a>(wanted: &BTreeSet<&'a str>, present: &[CurrentReplica<'a>]) -> Step<'a> {
    let count = wanted.len();
    let surge = (count * MAX_SURGE_PERCENT).div_ceil(100);
    let least_ready = count - count * MAX_UNAVAILABLE_PERCENT / 100;
    let old = || present.iter().filter(|replica| !wanted.contains(replica.name));
    let missing = wanted.iter().copied().filter(|name| present.iter().all(|replica| replica.name != *name));
    // Replicas that are not ready can go at once. Ready ones can go only if enough others remain.
    let spare = present.iter().filter(|replica| replica.ready).count().saturating_sub(least_ready);
    let unready = old().filter(|replica| !replica.ready);
    let retire: Vec<&str> = unready.chain(old().filter(|replica| replica.ready).take(spare)).map(|r| r.name).collect();
    let room = (count + surge).saturating_sub(present.len() - retire.len());
    Step { start: missing.take(room).collect(), retire }
}

/// The next step of a StatefulSet, whose replicas keep their names. `wanted` is in the order of ordinals; `leaving` are
/// those being taken out.
///
/// Replicas are replaced one at a time, the highest ordinal first, and not while another is missing or not ready; a
/// successor starts when its name is free. Without `ordered`, only changes of the template go one by one. A replica of
/// an old template that is not ready is replaced, where Kubernetes would wait forever for it to become ready.
pub fn next_of_set<'a>(
    wanted: &[&'a str],
    present: &[CurrentReplica<'a>],
    leaving: &BTreeSet<&str>,
    ordered: bool,
) -> Step<'a> {
    let missing: Vec<&str> =
        wanted.iter().copied().filter(|name| present.iter().all(|replica| replica.name != *name)).collect();
    // `Workload::before` decides in which order programs start.
    let start: Vec<&str> = missing.iter().copied().filter(|name| !leaving.contains(name)).collect();
    let mut condemned: Vec<&str> = present.iter().map(|r| r.name).filter(|name| !wanted.contains(name)).collect();
    condemned.sort_by_key(|name| std::cmp::Reverse(ordinal(name)));
    if !ordered && !condemned.is_empty() {
        return Step { start, retire: condemned };
    }
    let highest_first = || wanted.iter().rev().filter_map(|name| present.iter().find(|replica| replica.name == *name));
    let mut stale = highest_first().filter(|replica| !replica.current);
    let retire = match highest_first().any(|replica| !replica.ready) {
        _ if !missing.is_empty() || !leaving.is_empty() => None,
        true => stale.find(|replica| !replica.ready).map(|replica| replica.name),
        false => condemned.first().copied().or_else(|| stale.next().map(|replica| replica.name)),
    };
    Step { start, retire: retire.into_iter().collect() }
}

/// The number at the end of a name.
fn ordinal(name: &str) -> Option<u32> {
    name.rsplit_once('-')?.1.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Replicas as `new+ new- old+`: ready or not; what is to be done as `start new2, retire old`.
    fn step(wanted: &str, present: &str) -> String {
        let present = present.split_whitespace().map(|word| word.split_at(word.len() - 1));
        let present: Vec<CurrentReplica<'_>> =
            present.map(|(name, sign)| CurrentReplica { name, ready: sign == "+", current: true }).collect();
        said(&next(&wanted.split_whitespace().collect(), &present))
    }

    fn said(Step { start, retire }: &Step<'_>) -> String {
        let of = |verb: &str, names: &[&str]| names.iter().map(|name| format!("{verb} {name}")).collect::<Vec<_>>();
        [of("start", start), of("retire", retire)].concat().join(", ")
    }

    /// Those of a StatefulSet as `db-0+ db-1- db-2~`: ready or not, or ready and of an old template; `!` of an old one and not ready, `x`
    /// leaving.
    fn step_of_set(count: u32, present: &str, ordered: bool) -> String {
        let names: Vec<String> = (0..count).map(|index| format!("db-{index}")).collect();
        let words: Vec<(&str, &str)> = present.split_whitespace().map(|word| word.split_at(word.len() - 1)).collect();
        let here: Vec<CurrentReplica<'_>> = words
            .iter()
            .filter(|(_, sign)| *sign != "x")
            .map(|(name, sign)| CurrentReplica {
                name,
                ready: ["+", "~"].contains(sign),
                current: ["+", "-"].contains(sign),
            })
            .collect();
        let leaving = words.iter().filter(|(_, sign)| *sign == "x").map(|(name, _)| *name).collect();
        said(&next_of_set(&names.iter().map(String::as_str).collect::<Vec<_>>(), &here, &leaving, ordered))
    }

    #[test]
    fn a_stateful_set_changes_one_by_one_from_the_highest() {
        let check = |count: u32, present: &str, expected: [&str; 2]| {
            assert_eq!([true, false].map(|ordered| step_of_set(count, present, ordered)), expected, "{present}");
        };
        let same = |expected: &'static str| [expected; 2];
        // The first start: programs wait for each other.
        check(2, "", same("start db-0, start db-1"));
        check(2, "db-0+ db-1-", same(""));
        // Another template: the highest goes, and the next when its successor is ready.
        check(3, "db-0~ db-1~ db-2~", same("retire db-2"));
        check(3, "db-0~ db-1~ db-2x", same(""));
        check(3, "db-0~ db-1~", same("start db-2"));
        check(3, "db-0~ db-1~ db-2-", same(""));
        check(3, "db-0~ db-1~ db-2+", same("retire db-1"));
        check(3, "db-0~ db-1+ db-2+", same("retire db-0"));
        check(3, "db-0+ db-1+ db-2+", same(""));
        // A replica that is not ready stops the rollout, unless it is the one to be replaced.
        check(3, "db-0- db-1~ db-2+", same(""));
        check(3, "db-0~ db-1! db-2~", same("retire db-1"));
        // Scaled down: the highest goes first, the next when that one is gone and the others are ready.
        check(1, "db-0+ db-10+ db-9+", ["retire db-10", "retire db-10, retire db-9"]);
        check(1, "db-0+ db-10x db-9+", ["", "retire db-9"]);
        check(1, "db-0- db-9+", ["", "retire db-9"]);
        check(0, "db-0+ db-1+", ["retire db-1", "retire db-1, retire db-0"]);
        // Fewer before another template; more at once with it.
        check(1, "db-0~ db-1~", same("retire db-1"));
        check(3, "db-0~ db-1~", same("start db-2"));
    }

    #[test]
    fn new_ones_are_ready_before_old_ones_go() {
        let check =
            |wanted: &str, present: &str, expected: &str| assert_eq!(step(wanted, present), expected, "{present}");
        // The first start: all at once.
        check("a b c", "", "start a, start b, start c");
        check("a b c", "a- b+ c-", "");
        // One replica: the new one first.
        check("b", "a+", "start b");
        check("b", "a+ b-", "");
        check("b", "a+ b+", "retire a");
        check("b", "b+", "");
        // Two: one after the other.
        check("c d", "a+ b+", "start c");
        check("c d", "a+ b+ c-", "");
        check("c d", "a+ b+ c+", "start d, retire a");
        check("c d", "b+ c+ d-", "");
        check("c d", "b+ c+ d+", "retire b");
        // A new replica that never becomes ready leaves the old ones alone; one that is not ready is not missed.
        check("c d", "a+ b- c-", "start d, retire b");
        // More of them may be missing for a moment: one of four.
        check("e f g h", "a+ b+ c+ d+", "start e, start f, retire a");
        // Another edit in the middle of it.
        check("e", "a+ c-", "start e, retire c");
        // Fewer, and none.
        check("a", "a+ b+ c-", "retire c, retire b");
        check("", "a+ b-", "retire b, retire a");
    }

    /// Whatever becomes ready or not in between, never are fewer ready than allowed, and the rollout ends.
    #[test]
    fn every_rollout_ends_and_never_leaves_too_few() {
        for count in 0..=9_usize {
            let old: Vec<String> = (0..count).map(|index| format!("old{index}")).collect();
            let new: Vec<String> = (0..count).map(|index| format!("new{index}")).collect();
            let wanted: BTreeSet<&str> = new.iter().map(String::as_str).collect();
            let mut present: Vec<CurrentReplica<'_>> =
                old.iter().map(|name| CurrentReplica { name, ready: true, current: true }).collect();
            let least = count - count / 4;
            for round in 0.. {
                assert!(round <= 4 * count, "no end with {count}: {present:?}");
                let step = next(&wanted, &present);
                if step == Step::default() && present.iter().all(|replica| replica.ready) {
                    break;
                }
                present.retain(|replica| !step.retire.contains(&replica.name));
                present.extend(step.start.iter().map(|name| CurrentReplica { name, ready: false, current: true }));
                assert!(present.iter().filter(|replica| replica.ready).count() >= least, "{present:?}");
                assert!(present.len() <= count + count.div_ceil(4), "{present:?}");
                // One becomes ready at a time.
                if let Some(replica) = present.iter_mut().find(|replica| !replica.ready) {
                    replica.ready = true;
                }
            }
            let mut names: Vec<&str> = present.iter().map(|replica| replica.name).collect();
            names.sort_unstable();
            assert_eq!(names, wanted.iter().copied().collect::<Vec<_>>());
        }
    }
}
